"""FollowTail and InviteFollower: replicas read the newest records over the links between nodes (KIP-392).

FollowTail is a Fetch without sessions, quotas and loads: what is not in the log cache is an error, upon which the
replica begins anew when a reader needs it. As with Fetch, nobody who appends does anything for a replica but wake it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from anabranch.broker.api.access.guard import open_to_all
from anabranch.broker.api.declaration import declare
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.followers import Held
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.internal.follow_tail import (
    AbortedRange,
    FollowedPartition,
    FollowTailRequest,
    FollowTailResponse,
    PartitionTail,
)
from anabranch.protocol.messages.internal.invite_follower import InviteFollowerRequest, InviteFollowerResponse
from anabranch.s3stream.errors import OffsetOutOfRange

PARTITION_BYTES: Final = 64
"""Size of a partition in the answer without records, rounded up."""
ABORTED_BYTES: Final = 32
"""Size of an aborted transaction in it."""
ABORTED_MAX: Final = 2_000
"""Aborted transactions of a partition in one answer. A partition with more is not followed."""
EXCESS_BYTES: Final = ABORTED_MAX * ABORTED_BYTES
"""Aborted transactions in one answer beyond its limit: they come with records, or are of records told before."""


async def _follow_tail(serving: Serving, request: FollowTailRequest, _exchange: Exchange) -> FollowTailResponse:
    answer = _Answer(serving, request)
    answer.read()
    if not answer.has_news and request.wait_ms > 0:
        await _changed(answer.partitions, request.wait_ms / 1000)
        answer.read()
    if not serving.ownership.is_proved:  # it may have been paused, and another node leads
        answer.refuse_all()
    return answer.respond()


async def _changed(partitions: Sequence[Partition], wait_s: float) -> None:
    """Return when one of the partitions has changed, or after the time."""
    changed = asyncio.Event()

    def note(_: Partition) -> None:
        changed.set()

    for partition in partitions:
        partition.add_listener(note)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await changed.wait()
    finally:
        for partition in partitions:
            partition.remove_listener(note)


def _invite_follower(serving: Serving, request: InviteFollowerRequest, _exchange: Exchange) -> InviteFollowerResponse:
    for invitation in request.invitations:
        serving.replicas.accept(request.node_id, invitation)
    return InviteFollowerResponse()


class _Answer:
    """The answer to one question."""

    def __init__(self, serving: Serving, request: FollowTailRequest) -> None:
        self._serving = serving
        self._request = request
        self.tails: list[PartitionTail] = []
        self.partitions: list[Partition] = []
        """Those that are led here, under the epoch that the replica knows."""
        self.has_news = False
        """True if there are records or errors, or partitions of which the replica knows nothing: readers wait there."""

    def read(self) -> None:
        """Read what is there now, and note what the replica has."""
        request = self._request
        self.tails, self.partitions, self.has_news = [], [], False
        held: dict[int, Held] = {}
        bytes_left = request.bytes_max - PARTITION_BYTES * len(request.partitions)
        is_first = True
        for wanted in request.partitions:
            try:
                partition = self._partition(wanted)
                tail = self._tail(partition, wanted, bytes_left, is_first=is_first)
            except (KafkaError, OffsetOutOfRange) as error:
                code = error.code if isinstance(error, KafkaError) else ErrorCode.OFFSET_OUT_OF_RANGE
                self.tails.append(PartitionTail(error_code=code))
                self.has_news = True
                continue
            self.tails.append(tail)
            self.partitions.append(partition)
            if wanted.window_offset >= 0:
                held[partition.stream_id] = Held(wanted.window_offset, wanted.offset)
            else:
                self.has_news = True
            bytes_left -= _size_bytes(tail)
            if tail.records:
                partition.note_sent(len(tail.records))
                self.has_news, is_first = True, False
        self._serving.replicas.followers.note(request.node_id, held, asyncio.get_running_loop().time())

    def _partition(self, wanted: FollowedPartition) -> Partition:
        """Return a partition that is led here under the replica's epoch. Raises KafkaError."""
        partition = self._serving.topics.partition(wanted.topic_id, wanted.index)
        partition.check_leader_epoch(wanted.leader_epoch)
        return partition

    def _tail(
        self, partition: Partition, wanted: FollowedPartition, bytes_left: int, *, is_first: bool
    ) -> PartitionTail:
        """Return what follows in a partition. Raises KafkaError, OffsetOutOfRange."""
        found = partition.stream.read_cached(wanted.offset, max(bytes_left, 1))
        if found is None:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "it is in objects only")
        batches = found.batches
        if sum(len(batch.payload) for batch in batches) > bytes_left:
            if is_first:
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, "a batch that does not fit into an answer")
            batches = ()
        # Without batches, too: what was open in those that the replica has may have been aborted since.
        end_offset = batches[-1].end_offset if batches else wanted.offset
        among = partition.transactions.aborted_between(wanted.offset, end_offset)
        aborted = list(islice(among, ABORTED_MAX + 1))
        if len(aborted) > ABORTED_MAX:
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, f"more than {ABORTED_MAX} transactions were aborted")
        tail = PartitionTail(
            high_watermark=partition.high_watermark,
            last_stable_offset=partition.last_stable_offset,
            log_start_offset=partition.log_start_offset,
            aborted=[AbortedRange(**entry._asdict()) for entry in aborted],
            records=b"".join(batch.payload for batch in batches),
        )
        if _size_bytes(tail) > bytes_left + EXCESS_BYTES:  # an answer that no link takes would end all tails
            raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "no room for its aborted transactions")
        return tail

    def refuse_all(self) -> None:
        """Answer that nothing is known to be led here."""
        self.tails = [PartitionTail(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER) for _ in self.tails]

    def respond(self) -> FollowTailResponse:
        """Return the response, and count its records."""
        self._serving.replicas.followers.sent_bytes += sum(len(tail.records) for tail in self.tails)
        return FollowTailResponse(partitions=self.tails)


def _size_bytes(tail: PartitionTail) -> int:
    return len(tail.records) + ABORTED_BYTES * len(tail.aborted)


FOLLOW_TAIL: Final = declare(FollowTailRequest, _follow_tail, guard=open_to_all, reads=True, relayed=True)
INVITE_FOLLOWER: Final = declare(InviteFollowerRequest, _invite_follower, guard=open_to_all, relayed=True)
