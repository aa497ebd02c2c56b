"""The tails that this node follows: one question under way to each leader, with all partitions that readers here want.

A partition is followed from when a reader has got to the end of what objects have, or its leader has sent an invitation
(`followers`), until no reader has asked for it for some seconds. The windows of all tails share a bound; the oldest
batch leaves first. A node follows leaders in other racks only: beside a leader there is nothing to gain.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import structlog

from anabranch.broker.kafka.topics.tail_partition import LedPartition, TailPartition
from anabranch.broker.node.peers.interface import Peers, PeerUnavailable
from anabranch.broker.node.peers.members import Members
from anabranch.broker.node.peers.relay import RelayRefused, relay
from anabranch.protocol.errors import ErrorCode, ProtocolError
from anabranch.protocol.messages.internal.follow_tail import (
    FollowedPartition,
    FollowTailRequest,
    FollowTailResponse,
)
from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES

WAIT_MS: Final = 500
"""Time for which a leader waits for records, and so the time that a new partition may have to wait for its turn."""
ANSWER_BYTES_MAX: Final = 900_000
"""Records, and what comes with them, in one answer: it must fit into a response of the link."""
PAUSE_S: Final = 0.005
"""Pause after each answer, for each `PAUSED_PARTITIONS` that were asked for: it bounds what the leader has to do."""
PAUSED_PARTITIONS: Final = 100
RETRY_S: Final = 0.5
"""Pause after a question that was not answered."""
UNUSED_S: Final = 10.0
"""Time after the last reader's request for which a partition is followed."""
FOLLOWED_MAX: Final = 2_000
"""Partitions that are followed. Readers of others go to their leaders."""
WINDOWS_BYTES_MAX: Final = 16 << 20
"""Size of all windows."""
_LOST: Final = frozenset({ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.MESSAGE_TOO_LARGE})
"""Errors of a leader that has the next records in objects only, or in a batch that no answer holds."""

_log = structlog.get_logger("storage")


class Tails:
    """Followed partitions by stream, and a task for each leader of one."""

    def __init__(
        self, peers: Peers, members: Members, node_id: int, spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._peers = peers
        self._members = members
        self._node_id = node_id
        self._spawn = spawn
        self._tails: dict[int, TailPartition] = {}
        """By stream. The one that has waited longest for records is in front: it is the first to get some."""
        self._asking: set[int] = set()
        """Leaders with a task."""
        self._arrivals: deque[TailPartition] = deque()
        """The tail of each batch in all windows, the oldest batch in front, and of some that were in ended ones."""
        self._released = 0
        """Number of the latter."""
        self.size_bytes = 0
        """Bytes of all windows."""
        self.received_bytes = 0
        """Bytes of records received since the start."""
        self.lost = 0
        """Tails that have ended because the leader could not tell the next records."""

    def __len__(self) -> int:
        return len(self._tails)

    def __iter__(self) -> Iterator[TailPartition]:
        """Iterate over the tails that may be served now."""
        now_s = _now_s()
        return (tail for tail in self._tails.values() if tail.is_served(now_s))

    @property
    def lag_s(self) -> float:
        """Longest time for which a tail has lacked records that its leader has."""
        now_s = _now_s()
        return max((now_s - each.lacking_s for each in self._tails.values() if each.lacking_s is not None), default=0.0)

    def get(self, stream_id: int) -> TailPartition | None:
        """Return the tail of a stream if it may be served now."""
        tail = self._tails.get(stream_id)
        return tail if tail is not None and tail.is_served(_now_s()) else None

    def end(self, stream_id: int, reason: str) -> None:
        """End the tail of a stream, if there is one: there is doubt about it."""
        tail = self._tails.get(stream_id)
        if tail is not None:
            self._end(tail, reason)

    def follow(self, led: LedPartition, offset: int) -> TailPartition | None:
        """Return the tail of a partition, followed from `offset` on unless it is followed already.

        None if it is not to be followed.
        """
        leader = self._members.get(led.leader)
        if leader is None or leader.rack == self._members.own.rack or led.leader == self._node_id:
            return None
        tail = self._tails.get(led.stream_id)
        if tail is not None and tail.led != led:
            if tail.leader_epoch > led.leader_epoch:
                return None
            self._end(tail, "it has another leader epoch")
            tail = None
        if tail is None:
            if len(self._tails) >= FOLLOWED_MAX:
                return None
            tail = self._tails[led.stream_id] = TailPartition(led, offset, _now_s())
        tail.asked_s = _now_s()
        if led.leader not in self._asking:
            self._asking.add(led.leader)
            self._spawn(self._ask_leader(led.leader))
        return tail

    async def _ask_leader(self, leader: int) -> None:
        """Ask a leader again and again, as long as partitions that it leads are followed."""
        try:
            while tails := self._tails_of(leader):
                try:
                    await self._ask(leader, tails)
                except (PeerUnavailable, ProtocolError) as error:
                    _log.debug("a leader does not tell the tail", node_id=leader, reason=str(error))
                    for tail in tails:
                        if isinstance(error, RelayRefused) or not tail.heard.is_set():
                            self._end(tail, str(error))
                    await asyncio.sleep(RETRY_S)
                else:
                    await asyncio.sleep(PAUSE_S * (1 + len(tails) // PAUSED_PARTITIONS))
        finally:
            self._asking.discard(leader)

    def _tails_of(self, leader: int) -> Sequence[TailPartition]:
        """Return the tails that a leader is to be asked for; removes those that have ended, or are not used."""
        now_s = _now_s()
        found = [tail for tail in self._tails.values() if tail.led.leader == leader]
        for tail in found:
            if not tail.is_used(now_s, UNUSED_S):
                self._end(tail, "no reader asks for it")
            elif tail.heard.is_set() and not tail.is_served(now_s):
                self._end(tail, "the leader is silent")
        return [tail for tail in found if not tail.end_reason]

    async def _ask(self, leader: int, tails: Sequence[TailPartition]) -> None:
        """Ask once. Raises PeerUnavailable, ProtocolError."""
        request = FollowTailRequest(
            node_id=self._node_id,
            wait_ms=WAIT_MS,
            bytes_max=ANSWER_BYTES_MAX,
            partitions=[
                FollowedPartition(
                    topic_id=tail.led.topic_id,
                    index=tail.led.index,
                    leader_epoch=tail.leader_epoch,
                    window_offset=tail.window_offset if tail.heard.is_set() else -1,
                    offset=tail.next_offset,
                )
                for tail in tails
            ],
        )
        asked_s = _now_s()
        response: FollowTailResponse = await relay(self._peers, leader, request, 0)
        if len(response.partitions) != len(tails):
            raise ProtocolError(f"{len(response.partitions)} partitions in the answer, asked for {len(tails)}")
        for tail, told in zip(tails, response.partitions, strict=True):
            if tail.end_reason:
                continue
            added = tail.take(told, asked_s)
            if added is None:
                self.lost += told.error_code in _LOST
                self._end(tail, tail.end_reason)
            elif added:
                self._note_added(tail, added, len(told.records))

    def _note_added(self, tail: TailPartition, batches: int, size_bytes: int) -> None:
        """Count what was added to a window, keep all windows to their bound, and let others be first next time."""
        self.received_bytes += size_bytes
        self.size_bytes += size_bytes + batches * BATCH_OVERHEAD_BYTES
        self._arrivals.extend([tail] * batches)
        while self.size_bytes > WINDOWS_BYTES_MAX:
            evicted_bytes = self._arrivals.popleft().evict_first()
            self.size_bytes -= evicted_bytes
            self._released -= not evicted_bytes
        self._tails[tail.led.stream_id] = self._tails.pop(tail.led.stream_id)

    def _end(self, tail: TailPartition, reason: str) -> None:
        """End a tail, and forget it."""
        tail.end(reason)
        if self._tails.get(tail.led.stream_id) is tail:
            del self._tails[tail.led.stream_id]
            batches, size_bytes = tail.release()
            self.size_bytes -= size_bytes
            self._released += batches
            if self._released > len(self._arrivals) // 2:  # not for each tail: thousands may end at once
                self._arrivals = deque(each for each in self._arrivals if not each.has_failed)
                self._released = 0


def _now_s() -> float:
    return asyncio.get_running_loop().time()
