"""Offsets of partitions, asked of their leaders: one request to each node for all the partitions that it leads."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from anabranch.broker.api.handlers.list_offsets import EARLIEST, LATEST, READ_COMMITTED
from anabranch.broker.api.handlers.local import User
from anabranch.broker.operator.admin.api.calls import PIECE_PARTITIONS, Calls, Partition
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

READ_UNCOMMITTED: Final = 0


class Found(NamedTuple):
    """Offsets by partition, and the nodes that have not answered. Partitions without an answer are left out."""

    offsets: Mapping[Partition, int]
    unreachable: frozenset[int]


class Ends(NamedTuple):
    """Start and ends of a partition."""

    start: int
    high_watermark: int
    last_stable: int


class Offsets:
    """Asks the leaders of partitions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def at(
        self, partitions: Iterable[Partition], timestamp: int, user: User, isolation_level: int = READ_UNCOMMITTED
    ) -> Found:
        """Return the offset of each partition at a timestamp, which may be a special one of ListOffsets."""
        answers, unreachable = await self._calls.ask_in_pieces(
            self._calls.by_leader(partitions),
            lambda piece: _request(piece, timestamp, isolation_level),
            PIECE_PARTITIONS,
            user,
        )
        found = {
            (topic.name, each.partition_index): each.offset
            for answer in answers
            for topic in answer.topics
            for each in topic.partitions
            if not each.error_code
        }
        return Found(found, unreachable)

    async def ends(
        self, partitions: Iterable[Partition], user: User
    ) -> tuple[Mapping[Partition, Ends], frozenset[int]]:
        """Return start and ends of each partition whose leader has answered, and the nodes that have not."""
        asked = list(partitions)
        starts = await self.at(asked, EARLIEST, user)
        ends = await self.at(asked, LATEST, user)
        stable = await self.at(asked, LATEST, user, READ_COMMITTED)
        known = starts.offsets.keys() & ends.offsets.keys() & stable.offsets.keys()
        found = {key: Ends(starts.offsets[key], ends.offsets[key], stable.offsets[key]) for key in known}
        return found, starts.unreachable | ends.unreachable | stable.unreachable


def _request(partitions: Sequence[Partition], timestamp: int, isolation_level: int) -> ListOffsetsRequest:
    by_topic: dict[str, list[ListOffsetsPartition]] = {}
    for topic, index in partitions:
        partition = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        by_topic.setdefault(topic, []).append(partition)
    topics = [ListOffsetsTopic(name=name, partitions=found) for name, found in by_topic.items()]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
