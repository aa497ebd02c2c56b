"""Orders to move partitions to other nodes, asked for through this node. The partitions' leaders carry them out."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.turns import ChangeTurns
from anabranch.broker.node.peers.members import Members
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import MoveReason, PartitionInfo


class Place(NamedTuple):
    """A partition by the name of its topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class MoveProgress:
    """Progress of the moves of some partitions."""

    done: Sequence[Place]
    """Partitions that their targets lead and have open."""
    moving: Sequence[Place]
    failed: Mapping[Place, str]
    """Reasons for which others will not be moved: their orders have failed, or were cancelled or replaced."""


class MoveRequests:
    """Asks for moves, and waits for them. Raises KafkaError for partitions that do not exist, and StorageError."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        topics: TopicManager,
        turns: ChangeTurns,
        members: Members,
        now_ms: Callable[[], int],
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._turns = turns
        self._members = members
        self._now_ms = now_ms

    async def request(
        self,
        wanted: Mapping[Place, int],
        reason: MoveReason,
        replicas: Mapping[Place, Sequence[int]] = MappingProxyType({}),
        leaders: Mapping[Place, int] = MappingProxyType({}),
    ) -> None:
        """Order that nodes lead partitions, given by partition. This node has seen the orders when it returns.

        `replicas` are those that partitions get then. Partitions that are given `leaders`, and have others by now, are
        left out.
        """
        async with self._turns.changing(see_outcome=True):
            found = {place: self.info(place) for place in wanted}
            left_out = {place for place, leader in leaders.items() if found[place].leader != leader}
            targets = {found[place].stream_id: wanted[place] for place in wanted if place not in left_out}
            given = {self.info(place).stream_id: node_ids for place, node_ids in replicas.items()}
            await self._catalog.request_moves(targets, reason=reason, now_ms=self._now_ms(), replicas=given)

    async def cancel(self, places: Collection[Place]) -> None:
        """Remove the orders of partitions. One that is being carried out may still succeed."""
        async with self._turns.changing(see_outcome=True):
            await self._catalog.cancel_moves([self.info(place).stream_id for place in places])

    async def set_draining(self, node_id: int, *, draining: bool) -> bool:
        """Let a node get no partitions, or let it get them again. Returns whether that is new. Raises NotFound."""
        async with self._turns.changing(see_outcome=True):
            is_new = draining != (node_id in self._members.draining)
            await self._catalog.drain_node(node_id, draining=draining)
        return is_new

    def info(self, place: Place) -> PartitionInfo:
        """Return a partition as this node has seen it last. Raises UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self._topics.get(place.topic)
        if topic is None or not 0 <= place.partition < len(topic.info.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {place}.")
        return topic.info.partitions[place.partition]

    def led_by(self, node_id: int) -> Mapping[Place, PartitionInfo]:
        """Return the partitions that the node leads, or still has open."""
        return {
            Place(topic.name, each.index): each
            for topic in self._topics
            for each in topic.info.partitions
            if node_id in {each.leader, each.owner}
        }

    def progress(self, wanted: Mapping[Place, int]) -> MoveProgress:
        """Return how far moves are that were ordered before, given as targets by partition."""
        done: list[Place] = []
        moving: list[Place] = []
        failed: dict[Place, str] = {}
        for place, node_id in wanted.items():
            try:
                info = self.info(place)
            except KafkaError as error:
                failed[place] = error.message
                continue
            if info.leader == node_id == info.owner:
                done.append(place)
            elif info.leader != node_id and (info.order is None or info.order.to_node != node_id):
                failed[place] = "the order was cancelled or replaced"
            elif info.order is not None and info.order.failure:
                failed[place] = info.order.failure
            else:
                moving.append(place)
        return MoveProgress(done, moving, failed)

    async def wait(self, wanted: Mapping[Place, int], timeout_s: float) -> MoveProgress:
        """Wait until none of the moves is under way, for a limited time. Returns how far they are then."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.progress(wanted).moving:
                    await self._topics.changed()
        return self.progress(wanted)
