"""Memory for requests: one budget bounds the bytes that all clients together make the node hold.

A frame that has not arrived completely is reserved in full before more of it is read. Without room it waits, and its
socket is not read: first come, first served. So incomplete frames cannot hold more than the budget, and each frame
is served eventually, since those before it are answered, or lose their connection if they stall
(`broker.node.net.stalls`).

Frames that fit one read (small ones) and longer ones (large ones) wait in separate queues, and an eighth of the budget
is reserved for small ones: a heartbeat does not wait behind many large requests. No frame is larger than the remainder
(`broker.node.settings.memory.frame_budget_bytes_min`).

    small frames may take    max(share, total - large - first)
    a large frame begins     if large + its size + max(share, small) <= total

`first` is the size of the large frame at the head of its queue: its room is reserved, so that small frames do not
starve it. It is not reserved while an older small frame waits.

While `crowded`, connections read no more than the size of their next frame, so that no unreserved bytes accumulate.
"""

from collections import OrderedDict
from itertools import count
from typing import Protocol

from anabranch.broker.node.settings.memory import SMALL_FRAME_SHARE


class FrameWaiter(Protocol):
    """A connection that waits for a reservation, known by identity."""

    def granted(self) -> None:
        """Continue to read the frame."""
        ...


class FrameBudget:
    """Bytes held and reserved of `bytes_max`, and the frames that wait. The caller releases the same sizes later.

    Small frames that arrive completely in one read are always taken: they exceed the budget by one read at most.
    """

    def __init__(self, bytes_max: int, *, small_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.small_bytes_max = small_bytes_max
        """Frames up to this size are small."""
        self.crowded = False
        """True if a frame waits, or small frames have reached their limit."""
        self.small_bytes = 0
        self.large_bytes = 0
        self._share = bytes_max // SMALL_FRAME_SHARE
        self._small_limit = bytes_max
        self._small: OrderedDict[FrameWaiter, tuple[int, int]] = OrderedDict()
        self._large: OrderedDict[FrameWaiter, tuple[int, int]] = OrderedDict()
        """Ticket and size of each waiting frame."""
        self._tickets = count()

    @property
    def bytes_held(self) -> int:
        """Bytes of all frames, reserved ones in full."""
        return self.small_bytes + self.large_bytes

    @property
    def waiting(self) -> int:
        """Number of frames that wait for their reservation."""
        return len(self._small) + len(self._large)

    @property
    def small_is_short(self) -> bool:
        """True if a small frame waits, or small frames hold more than their share."""
        return bool(self._small) or self.small_bytes > self._share

    def take(self, size: int) -> None:
        """Count a small frame that has arrived completely."""
        self.small_bytes += size
        if self.small_bytes >= self._small_limit:
            self.crowded = True

    def reserve(self, waiter: FrameWaiter, size: int) -> bool:
        """Reserve a frame that has not arrived completely. If False, `waiter.granted` is called when there is room."""
        assert size <= self.bytes_max - self._share, "a frame leaves room for the share of small ones"
        is_small = size <= self.small_bytes_max
        queue = self._small if is_small else self._large
        if not queue and (self._fits_small(size) if is_small else self._fits_large(size)):
            self._add(size)
            return True
        queue[waiter] = next(self._tickets), size
        self._limit()
        return False

    def release_small(self, size: int) -> None:
        """Release the bytes of small frames."""
        self.small_bytes -= size
        if self.crowded:
            self._grant_waiting()

    def release_large(self, size: int) -> None:
        """Release a large frame."""
        self.large_bytes -= size
        self._limit()
        if self.crowded:
            self._grant_waiting()

    def withdraw(self, waiter: FrameWaiter) -> None:
        """Cancel the reservation that `waiter` waits for, if any."""
        if self._small.pop(waiter, None) is not None or self._large.pop(waiter, None) is not None:
            self._limit()
            self._grant_waiting()

    def _add(self, size: int) -> None:
        if size <= self.small_bytes_max:
            self.small_bytes += size
        else:
            self.large_bytes += size
        self._limit()

    def _grant_waiting(self) -> None:
        """Grant the waiting reservations that there is room for, in order."""
        while self._large and self._fits_large(_first(self._large)[1]):
            self._grant(self._large)
        while self._small and self._fits_small(_first(self._small)[1]):
            self._grant(self._small)
        self._limit()

    def _grant(self, queue: OrderedDict[FrameWaiter, tuple[int, int]]) -> None:
        waiter, (_, size) = queue.popitem(last=False)
        self._add(size)
        waiter.granted()

    def _fits_small(self, size: int) -> bool:
        return self.small_bytes + size <= self._small_limit

    def _fits_large(self, size: int) -> bool:
        return self.large_bytes + size + max(self._share, self.small_bytes) <= self.bytes_max

    def _large_is_first(self) -> bool:
        return bool(self._large) and (not self._small or _first(self._large) < _first(self._small))

    def _limit(self) -> None:
        """Recompute the limit of small frames, and `crowded`."""
        first = _first(self._large)[1] if self._large_is_first() else 0
        self._small_limit = max(self._share, self.bytes_max - self.large_bytes - first)
        self.crowded = bool(self._small or self._large) or self.small_bytes >= self._small_limit


def _first(queue: OrderedDict[FrameWaiter, tuple[int, int]]) -> tuple[int, int]:
    return next(iter(queue.values()))
