"""Sizes of partitions, asked of their leaders: only a leader knows the bytes of its log that are in no object."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from anabranch.broker.api.handlers.local import User
from anabranch.broker.operator.admin.api.calls import PIECE_PARTITIONS, Calls, Partition
from anabranch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

TIMEOUT_S: Final = 5.0
"""Time limit for all sizes. Sizes of objects come from the catalog; without it none is known."""


class FoundSizes(NamedTuple):
    """Bytes by partition, and the nodes that have not answered. Partitions without an answer are left out."""

    bytes: Mapping[Partition, int]
    unreachable: frozenset[int]


class Sizes:
    """Asks the leaders of partitions."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def of(self, partitions: Iterable[Partition], user: User) -> FoundSizes:
        """Return the bytes of each partition in objects, and in the log as far as they are in no object yet."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answers, unreachable = await self._calls.ask_in_pieces(
                    self._calls.by_leader(partitions), _request, PIECE_PARTITIONS, user
                )
        except TimeoutError:
            return FoundSizes({}, frozenset())
        found = {
            (topic.name, each.partition_index): each.partition_size
            for answer in answers
            for result in answer.results
            for topic in result.topics
            for each in topic.partitions
        }
        return FoundSizes(found, unreachable)


def _request(partitions: Sequence[Partition]) -> DescribeLogDirsRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    return DescribeLogDirsRequest(
        topics=[DescribableLogDirTopic(topic=topic, partitions=indexes) for topic, indexes in by_topic.items()]
    )
