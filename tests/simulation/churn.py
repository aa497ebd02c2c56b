"""Topics that come, grow and go under faults: a topic made again under its name has nothing of the old one."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.parking import PARKED_S
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.s3stream.errors import StorageError
from tests.simulation.consumers import Reader
from tests.simulation.history import History, Violation
from tests.simulation.node import SimNode
from tests.simulation.producers import Producer
from tests.simulation.routing import Client, Lost
from tests.simulation.world import World

MOVE_TIMEOUT_S = 60.0
REFUSED_MAX = 60
"""Refusals of a move after which it is given up."""
NOT_SERVED = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


class Churn:
    """Owns one name: creates the topic, writes, reads, grows and deletes it, again and again."""

    def __init__(self, world: World, name: str) -> None:
        self.client = Client(world, name)
        self.world = world
        self.name = name
        self.rounds = 0
        self.home = self.client.any_node()
        """Node that leads all partitions of a topic that is moved."""
        self.topic_ids = self.client.topic_ids
        self.gone: set[bytes] = set()
        """Ids of topics that were deleted."""
        self.configs: Mapping[str, str] = {}
        """Those of the next topic."""

    async def run(self) -> None:
        while not self.world.faults_over.is_set():
            self.rounds += 1
            await self._round()
            await asyncio.sleep(self.client.random.uniform(0, 3))

    async def _round(self) -> None:
        random = self.client.random
        count = random.randint(1, 3)
        several = len(self.world.nodes) > 1
        self.home = self.client.any_node()
        at_home = several and random.random() < 0.5
        await self._create(count, at_home=at_home)
        await self._learn_id(self.name)
        history = History(self.world.note, self.world.now_ms, first_offset=self.world.first_offset)
        producer = Producer(self.world, history, f"{self.name}.{self.rounds}", {self.name: count}, idempotent=True)
        producer.client.topic_ids = self.topic_ids
        for _ in range(random.randint(1, 4)):
            await producer.flight()
        if random.random() < 0.3:
            count = await self._grow(count, at_home=at_home)
        await self._check_leaders(count)
        moves = at_home or not several
        if moves and random.random() < 0.3:
            await self._detach_and_attach()
        clone = f"{self.name}-clone"
        cloned = moves and random.random() < 0.3
        cloned = cloned and await self._until_moved(
            lambda node: node.moves.clone(self.name, clone), if_done=ErrorCode.TOPIC_ALREADY_EXISTS
        )
        if cloned:
            await self._learn_id(clone)
            self.world.count("cloned")
        await self._check_contents(self.name, count, history)
        await producer.client.drop()
        await self._delete(self.name)
        if cloned:  # its objects are shared with a topic that is gone
            await self._check_contents(clone, count, history.of_clone(self.name, clone))
            await self._delete(clone)

    async def _check_contents(self, topic: str, count: int, history: History) -> None:
        """Read all of a topic, and compare it with its history."""
        for index in range(count):
            where = (topic, index)
            reader = Reader(self.world, history, f"{topic}.{self.rounds}-{index}", where, committed=False)
            reader.client.topic_ids = self.topic_ids
            await reader.read_all()
            history.check_final(where, reader.start, reader.high_watermark, reader.found, reader.found)
            if reader.start != self.world.first_offset:
                raise Violation(f"{where}: a new topic begins at offset {reader.start}")
            await reader.client.drop()

    async def _learn_id(self, topic: str) -> None:
        """Learn the id of a new topic, to know it from the one before it that some node may still show.

        Its leaders must show it, too: one that has not heard of the deletion acknowledges into the old topic.
        """
        while len(self.world.nodes) > 1:
            with suppress(Lost):
                request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
                found = (await self.client.call(request, 12)).topics[0]
                leaders = {partition.leader_id for partition in found.partitions}
                shown = [
                    (await self.client.call_node(node, request, 12)).topics[0].topic_id == found.topic_id
                    for node in self.world.nodes
                    if node.node_id in leaders
                ]
                if (
                    not found.error_code
                    and found.topic_id not in self.gone
                    and len(shown) == len(leaders)
                    and all(shown)
                ):
                    self.topic_ids[topic] = found.topic_id
                    return
            await self.client.pause()

    async def _create(self, count: int, *, at_home: bool) -> None:
        configs = [CreatableTopicConfig(name=name, value=value) for name, value in self.configs.items()]
        wanted = CreatableTopic(name=self.name, num_partitions=count, replication_factor=1, configs=configs)
        if at_home:
            leaders = [
                CreatableReplicaAssignment(partition_index=index, broker_ids=[self.home.node_id])
                for index in range(count)
            ]
            wanted = replace(wanted, num_partitions=-1, replication_factor=-1, assignments=leaders)
        tried = False
        while True:
            try:
                answer = await self.client.call(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 5)
            except Lost:
                tried = True
                await self.client.pause()
                continue
            code = answer.topics[0].error_code
            if not code or (tried and code == ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            if code == ErrorCode.TOPIC_ALREADY_EXISTS:
                raise Violation(f"{self.name} exists, and was deleted")
            tried = True  # an error may hide a success
            await self.client.pause()

    async def _grow(self, count: int, *, at_home: bool) -> int:
        leaders = [CreatePartitionsAssignment(broker_ids=[self.home.node_id])] if at_home else None
        wanted = CreatePartitionsTopic(name=self.name, count=count + 1, assignments=leaders)
        tried = False
        while True:
            try:
                answer = await self.client.call(CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000), 3)
            except Lost:
                tried = True
                await self.client.pause()
                continue
            code = answer.results[0].error_code
            if not code or (tried and code == ErrorCode.INVALID_PARTITIONS):
                return count + 1
            tried = True
            await self.client.pause()

    async def _check_leaders(self, count: int) -> None:
        """Check that the topic has its partitions, and that a leader that is named serves."""
        led = 0
        while led < count:
            led = 0
            node = self.client.any_node()
            try:
                request = MetadataRequest(topics=[MetadataRequestTopic(name=self.name)])
                topic = (await self.client.call_node(node, request, 12)).topics[0]
                found = len(topic.partitions)
                known = found == count or bool(topic.error_code)
                if not known and not self._may_be_behind(topic.topic_id, is_smaller=found < count):
                    raise Violation(f"{self.name} has {found} partitions, expected {count}")
                for partition in topic.partitions if known else ():
                    asks = partition.leader_id == node.node_id and not self._may_be_behind(topic.topic_id)
                    if partition.leader_id >= 0 and (
                        not asks or await self._is_served(node, partition.partition_index)
                    ):
                        led += 1
            except Lost:
                led = 0
            await self.client.pause()

    def _may_be_behind(self, topic_id: bytes, *, is_smaller: bool = False) -> bool:
        """Return whether a node may show a topic as it was, with an id, and at times with fewer partitions."""
        if self.world.strict or self.world.moves:
            return True  # a fenced process shows what it has seen until it knows, and any leader may change
        return len(self.world.nodes) > 1 and (is_smaller or topic_id != self.topic_ids[self.name])

    async def _is_served(self, node: SimNode, index: int) -> bool:
        """Ask a node that has just named itself as the leader for an offset. Raises Lost.

        Returns False if it has kept the request for as long as it may, since the catalog does not let it open the
        partition. A refusal before that is a Violation.
        """
        began_s = self.world.now_s
        wanted = ListOffsetsPartition(partition_index=index, timestamp=-1)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=self.name, partitions=[wanted])])
        answer = await self.client.call_node(node, request, 5)
        code = answer.topics[0].partitions[0].error_code
        if code not in NOT_SERVED:
            return True
        waited_s = self.world.now_s - began_s
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER and waited_s >= PARKED_S:
            self.world.count("refused by a leader that waits for the catalog")
            return False
        raise Violation(f"{self.name}-{index}: the leader that was named answers {ErrorCode(code).name}")

    async def _detach_and_attach(self) -> None:
        """Detach the topic from the cluster and attach it again, as an operator does."""
        if await self._until_moved(
            lambda node: node.moves.detach(self.name), if_done=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ):
            self.world.count("detached and attached")
            await self._until_moved(
                lambda node: node.moves.attach(self.name), if_done=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            )

    async def _until_moved(self, move: Callable[[Node], Coroutine[Any, Any, object]], *, if_done: ErrorCode) -> bool:
        """Repeat a command of an operator until it has succeeded; `if_done` is its error when it was done before.

        Returns False when no node takes it: after a takeover the partitions may have several leaders.
        """
        tried = False
        refused = 0
        while True:
            try:
                await self.home.ask(move, MOVE_TIMEOUT_S)
            except (OSError, StorageError):
                tried = True
            except KafkaError as error:
                if tried and error.code == if_done:
                    return True  # an attempt that seemed to fail has done it
                if not error.code.retriable and "is being drained" not in str(
                    error
                ):  # which is said to ask another one
                    raise Violation(f"{self.name} is not moved: {error}") from error
                if len(self.world.nodes) > 1:
                    refused += 1
                    self.home = self.client.any_node()
                    if refused == REFUSED_MAX:
                        return False
            else:
                return True
            await self.client.pause()

    async def _delete(self, topic: str) -> None:
        tried = False
        while True:
            try:
                answer = await self.client.call(
                    DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000), 6
                )
            except Lost:
                tried = True
                await self.client.pause()
                continue
            code = answer.responses[0].error_code
            if not code or (tried and code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                self.gone.add(self.topic_ids.pop(topic, b""))
                return
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise Violation(f"{topic} is unknown, and was never deleted")
            tried = True
            await self.client.pause()
