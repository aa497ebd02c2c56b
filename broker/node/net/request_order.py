"""The order in which the requests of a connection start, and their responses are sent. Does no I/O.

Invariants:

- Responses are sent in the order of requests. Those of pipelined APIs (Produce) start next to each other: each is
  appended at once and answered when durable. Any other starts only when all before it are answered, and blocks those
  after it.
- Requests of another node start at once, and their responses are sent in any order: it matches them by their ids.
"""

from collections import deque
from collections.abc import Collection, Sequence

from anabranch.broker.node.net.exchange import Exchange
from anabranch.wal.interface import Buffer


class RequestOrder:
    """Requests of one connection that wait for their start, and those in progress."""

    __slots__ = ("_exclusive", "_is_ordered", "_pipelined", "in_progress", "waiting")

    def __init__(self, pipelined: frozenset[int]) -> None:
        """`pipelined` has the keys of the APIs whose requests start next to each other."""
        self._pipelined = pipelined
        self._is_ordered = True
        """False if the other end accepts responses in any order."""
        self.waiting: deque[Buffer] = deque()
        """Frames of requests that have not started. To be read only, as the next one."""
        self.in_progress: deque[Exchange] = deque()
        """Requests whose responses are not sent yet, in their order."""
        self._exclusive: Exchange | None = None
        """Request in progress that blocks all after it."""

    def allow_any_order(self) -> None:
        """Start all requests at once from now on, and send each response as soon as it is there."""
        self._is_ordered = False

    def may_start(self, frame: Buffer) -> bool:
        """Return whether the next request may start: pipelined ones next to each other, others by themselves."""
        if self._exclusive is not None:
            return False
        if not self.in_progress or not self._is_ordered:
            return True
        return (frame[0] << 8 | frame[1]) in self._pipelined  # the API key

    def add_waiting(self, frame: Buffer) -> None:
        """Let a request wait until `next_waiting` returns it."""
        self.waiting.append(frame)

    def next_waiting(self) -> Buffer | None:
        """Return the next request that waits, if it may start now."""
        return self.waiting.popleft() if self.waiting and self.may_start(self.waiting[0]) else None

    def start(self, exchange: Exchange) -> None:
        """Note that a request is in progress."""
        if exchange.api_key not in self._pipelined and self._is_ordered:
            self._exclusive = exchange
        self.in_progress.append(exchange)

    def hold(self, exchange: Exchange) -> None:
        """Start no request until this one is answered."""
        if self._is_ordered:
            self._exclusive = exchange

    def complete(self, exchange: Exchange) -> Sequence[Exchange]:
        """Return the requests whose responses are next, now that this one is done; they are no longer in progress."""
        in_progress = self.in_progress
        if in_progress[0] is exchange:
            in_progress.popleft()
        elif self._is_ordered:
            return ()
        else:
            in_progress.remove(exchange)
        answered = [exchange]
        while in_progress and in_progress[0].done:
            answered.append(in_progress.popleft())
        if self._exclusive in answered:
            self._exclusive = None
        return answered

    @property
    def next_may_wait_long(self) -> bool:
        """True if a request may wait as long as its client chooses, behind Fetch or JoinGroup."""
        exclusive = self._exclusive
        if exclusive is not None and exclusive.api_key not in self._pipelined:
            return True
        return any((frame[0] << 8 | frame[1]) not in self._pipelined for frame in self.waiting)  # the API key

    def drop_waiting(self) -> None:
        """Drop the requests that have not started."""
        self.waiting.clear()

    def drop_all(self) -> Collection[Exchange]:
        """Drop everything; return the requests that were in progress."""
        self.waiting.clear()
        dropped, self.in_progress = self.in_progress, deque()
        return dropped
