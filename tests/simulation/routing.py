"""Clients of the simulation: each request goes to the node that it is for, as clients of Kafka route.

Leaders are learned from Metadata, and coordinators from FindCoordinator, from any node; other requests may go to any.
What was learned is forgotten when a node does not answer, or answers that another one is to be asked.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final, TypeAlias

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.delete_records import DeleteRecordsRequest
from anabranch.protocol.messages.end_txn import EndTxnRequest
from anabranch.protocol.messages.fetch import FetchRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest
from anabranch.protocol.messages.leave_group import LeaveGroupRequest
from anabranch.protocol.messages.list_offsets import ListOffsetsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from anabranch.protocol.messages.offset_commit import OffsetCommitRequest
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest
from anabranch.protocol.messages.produce import ProduceRequest
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from anabranch.protocol.messages.sync_group import SyncGroupRequest
from anabranch.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from tests.simulation.history import TopicPartition, Violation
from tests.simulation.node import SimNode
from tests.simulation.world import World
from tests.support.raw_client import RawClient

TIMEOUT_S = 15.0
RETRY_S = (0.02, 0.5)
GROUP, TRANSACTION = 0, 1
"""Types of coordinators."""
Place: TypeAlias = TopicPartition | tuple[int, str]
"""A partition, or the type and the key of a coordinator."""
ELSEWHERE: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors after which a client looks up again where to send a request."""


class Lost(Exception):
    """The connection broke or nobody answered: the request may have taken effect."""


class NoRoute(Lost):
    """The request was not sent: at the moment nobody knows the node that it is for."""


class Refused(Exception):
    """The broker answered with an error."""

    def __init__(self, code: int, where: str) -> None:
        super().__init__(f"{where}: {ErrorCode(code).name}")
        self.code = ErrorCode(code)


def check(code: int, where: str) -> None:
    """Raise Refused for an error code."""
    if code:
        raise Refused(code, where)


class Client:
    """Connections to the nodes, one to each; they are opened again after failures."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = world.random(name)
        self.topic_ids: dict[str, bytes] = {}
        """Ids of topics that have followed others of the same name: a node may not have heard of it yet."""
        self._raws: dict[int, RawClient] = {}
        self._routes: dict[Place, int] = {}
        """Ids of the nodes that leaders and coordinators were last known to be on."""
        self._epochs: dict[tuple[bytes, int], int] = {}
        """Newest leader epoch known of each partition, by topic id and index."""
        self._told: dict[tuple[int, bytes, int], int] = {}
        """The same by node that told it."""
        self._leader_epochs: dict[TopicPartition, int] = {}
        """Epochs of the leaders in `_routes`."""

    async def raw(self, node: SimNode) -> RawClient:
        """Return an open connection to a node. Raises Lost."""
        raw = self._raws.get(node.node_id)
        if raw is None:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    reader, writer = await self.world.network.connect(f"client-{self.name}", node.address)
            except (OSError, TimeoutError) as error:
                self._forget_node(node)
                raise Lost(str(error)) from error
            raw = self._raws[node.node_id] = RawClient(reader, writer, self.name)
        return raw

    async def call(self, message: object, version: int | None = None) -> Any:
        """Send a request to the node that it is for, and return the response. Raises Lost."""
        place = place_of(message)
        answer = await self.call_node(await self.node_for(place), message, version)
        if place is not None:
            self.hear(place, *error_codes(answer))
        return answer

    async def call_node(self, node: SimNode, message: object, version: int | None = None) -> Any:
        """Send a request to a node and return the response. Raises Lost."""
        raw = await self.raw(node)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await raw.call(message, version)
        except (OSError, EOFError, TimeoutError) as error:
            await self.lose(node)
            raise Lost(repr(error)) from error

    def any_node(self) -> SimNode:
        """Choose a node for a request that each of them answers."""
        nodes = self.world.nodes
        return nodes[0] if len(nodes) == 1 else self.random.choice(nodes)

    async def node_for(self, place: Place | None) -> SimNode:
        """Return the node that serves a partition or coordinates a key, or any node. Raises Lost."""
        if place is None or len(self.world.nodes) == 1:
            return self.any_node()
        if place not in self._routes:
            if isinstance(place[0], str):
                await self._find_leaders(place[0])
            else:
                await self._find_coordinator(place)
        if place not in self._routes:
            raise NoRoute(f"nobody is known to serve {place}")
        return self.world.node(self._routes[place])

    def leader_epoch(self, where: TopicPartition) -> int:
        """Return the epoch of the leader that is known; -1: a client without one."""
        return self._leader_epochs.get(where, -1)

    def hear(self, place: Place, *codes: int) -> None:
        """Take in the error codes of an answer."""
        if any(code in ELSEWHERE for code in codes):
            self._routes.pop(place, None)

    async def _find_leaders(self, topic: str) -> None:
        asked = self.any_node()
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        found: MetadataResponseTopic = (await self.call_node(asked, request, 12)).topics[0]
        expected = self.topic_ids.get(topic, found.topic_id)
        if not found.error_code and found.topic_id == expected:
            self._learn(asked, topic, found)

    def _learn(self, asked: SimNode, topic: str, found: MetadataResponseTopic) -> None:
        """Take in leaders, except those that are older than what is known. Raises Violation if a node went back."""
        for each in found.partitions:
            key = found.topic_id, each.partition_index
            told = self._told.get((asked.node_id, *key), -1)
            if each.leader_epoch < told:
                raise Violation(
                    f"{topic}-{each.partition_index}: {asked.host} tells leader epoch {each.leader_epoch}, after {told}"
                )
            self._told[asked.node_id, *key] = each.leader_epoch
            if each.leader_id >= 0 and each.leader_epoch >= self._epochs.get(key, -1):
                self._epochs[key] = each.leader_epoch
                self._routes[topic, each.partition_index] = each.leader_id
                self._leader_epochs[topic, each.partition_index] = each.leader_epoch

    async def _find_coordinator(self, place: Place) -> None:
        kind, key = place
        request = FindCoordinatorRequest(key_type=int(kind), coordinator_keys=[str(key)])
        (found,) = (await self.call_node(self.any_node(), request, 4)).coordinators
        if not found.error_code:
            self._routes[place] = found.node_id

    async def lose(self, node: SimNode) -> None:
        """Close the connection to a node that does not answer, and forget what it was known to serve."""
        self._forget_node(node)
        raw = self._raws.pop(node.node_id, None)
        if raw is not None:
            await raw.abort()

    def _forget_node(self, node: SimNode) -> None:
        self._routes = {place: node_id for place, node_id in self._routes.items() if node_id != node.node_id}

    async def drop(self) -> None:
        """Close all connections."""
        for node in self.world.nodes:
            await self.lose(node)

    async def pause(self) -> None:
        """Wait before a retry."""
        await asyncio.sleep(self.random.uniform(*RETRY_S))


def place_of(message: object) -> Place | None:
    """Return what a request is for: its only partition, or its coordinator's key. None: any node answers it."""
    match message:
        case ProduceRequest(topic_data=[topic]):
            return topic.name, topic.partition_data[0].index
        case FetchRequest(topics=[topic]):
            return topic.topic, topic.partitions[0].partition
        case ListOffsetsRequest(topics=[topic]) | DeleteRecordsRequest(topics=[topic]):
            return topic.name, topic.partitions[0].partition_index
        case AddPartitionsToTxnRequest():
            return TRANSACTION, message.v3_and_below_transactional_id
        case InitProducerIdRequest(transactional_id=str(key)):
            return TRANSACTION, key
        case AddOffsetsToTxnRequest() | EndTxnRequest():
            return TRANSACTION, message.transactional_id
        case OffsetFetchRequest(groups=[group]):
            return GROUP, group.group_id
        case (
            JoinGroupRequest()
            | SyncGroupRequest()
            | HeartbeatRequest()
            | LeaveGroupRequest()
            | ConsumerGroupHeartbeatRequest()
            | ShareGroupHeartbeatRequest()
            | OffsetCommitRequest()
            | TxnOffsetCommitRequest()
        ):
            return GROUP, message.group_id
    return None


def error_codes(message: Any) -> Iterator[int]:
    """Yield all error codes in a response."""
    for field in fields(message):
        value = getattr(message, field.name)
        if field.name.endswith("error_code"):
            yield value
        for each in value if isinstance(value, (list, tuple)) else (value,):
            if is_dataclass(each):
                yield from error_codes(each)
