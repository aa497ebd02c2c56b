"""Planned moves in a cluster of two or three nodes in this process, with real clients under way."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.s3stream.catalog.values import MoveReason, PartitionInfo
from tests.support.node import running_nodes
from tests.support.waiting import until

PARTITIONS = 4
ROUNDS = 4


@asynccontextmanager
async def cluster(folder: Path, count: int = 2) -> AsyncIterator[list[Node]]:
    async with running_nodes(folder, count, group_offsets_partitions=2, transaction_state_partitions=2) as nodes:
        await nodes[0].serving.topic_commands.create("t", partitions=PARTITIONS, configs={})
        yield nodes


def partitions_of(node: Node, topic: str = "t") -> list[PartitionInfo]:
    found = node.serving.topics.get(topic)
    return [] if found is None else list(found.info.partitions)


def bootstrap(nodes: list[Node]) -> list[str]:
    return [node.bootstrap for node in nodes]


async def move_all(nodes: list[Node], topic: str = "t") -> None:
    """Move each partition of a topic to the node after its leader, and wait until it is there."""
    ids = [node.serving.node_id for node in nodes]
    wanted = {each.stream_id: ids[(ids.index(each.leader) + 1) % len(ids)] for each in partitions_of(nodes[0], topic)}
    await nodes[0].serving.catalog.request_moves(wanted, reason=MoveReason.OPERATOR, now_ms=nodes[0].serving.now_ms())

    def is_done() -> bool:
        places = [(each.stream_id, each.leader, each.owner) for each in partitions_of(nodes[0], topic)]
        serving = {
            partition.stream.stream_id: node.serving.node_id
            for node in nodes
            for partition in node.serving.topics.led_partitions()
            if partition.topic == topic
        }
        return serving == wanted and all(wanted[key] == leader == owner for key, leader, owner in places)

    await until(is_done, timeout_s=60, pause_s=0.005)
    assert await nodes[0].serving.catalog.list_moves() == []


class Writer:
    """Sends numbered records to all partitions, with an idempotent producer, until it is stopped."""

    def __init__(self, nodes: list[Node], transactional_id: str | None = None) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap(nodes),
            enable_idempotence=True,
            transactional_id=transactional_id,
            request_timeout_ms=30_000,
            retry_backoff_ms=20,
        )
        self._transactional = transactional_id is not None
        self._stopped = False
        self.sent: dict[int, list[int]] = defaultdict(list)
        """Acknowledged (committed) numbers by partition."""

    async def run(self) -> None:
        async with self._producer:
            number = 0
            while not self._stopped:
                if self._transactional:
                    async with self._producer.transaction():
                        await self._send(number)
                else:
                    await self._send(number)
                for index in range(PARTITIONS):
                    self.sent[index].append(number)
                number += 1

    async def _send(self, number: int) -> None:
        waiting = [await self._producer.send("t", b"%d" % number, partition=index) for index in range(PARTITIONS)]
        for each in waiting:
            await each

    def stop(self) -> None:
        self._stopped = True


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts the assignments of a consumer."""

    def __init__(self) -> None:
        self.count = 0

    def on_partitions_revoked(self, revoked: object) -> None:
        pass

    def on_partitions_assigned(self, assigned: object) -> None:
        self.count += 1


async def read_all(nodes: list[Node], counts: dict[int, list[int]]) -> dict[int, list[int]]:
    """Read as many records of each partition as were written."""
    assert counts, "nothing was written; aiokafka's stop fails for a consumer that has just started and read nothing"
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap(nodes), auto_offset_reset="earliest", isolation_level="read_committed"
    )
    found: dict[int, list[int]] = defaultdict(list)
    async with consumer:
        consumer.assign([TopicPartition("t", index) for index in range(PARTITIONS)])
        async with asyncio.timeout(60):
            while any(len(found[index]) < len(counts[index]) for index in range(PARTITIONS)):
                for where, records in (await consumer.getmany(timeout_ms=200)).items():
                    found[where.partition] += [int(record.value) for record in records]
    return found


async def test_an_idempotent_producer_loses_and_repeats_nothing_while_partitions_move(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, asyncio.TaskGroup() as tasks:
        writer = Writer(nodes)
        running = tasks.create_task(writer.run())
        await until(lambda: bool(writer.sent), timeout_s=60, pause_s=0.01)
        for _ in range(ROUNDS):
            await move_all(nodes)
        writer.stop()
        await running
        assert await read_all(nodes, writer.sent) == writer.sent


async def test_transactions_go_on_while_their_partitions_and_their_coordinators_move(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, asyncio.TaskGroup() as tasks:
        writer = Writer(nodes, "writer")
        running = tasks.create_task(writer.run())
        await until(lambda: len(writer.sent[0]) > 1, timeout_s=60, pause_s=0.01)
        for _ in range(ROUNDS):
            await move_all(nodes)
            await move_all(nodes, TRANSACTION_TOPIC)
        writer.stop()
        await running
        assert await read_all(nodes, writer.sent) == writer.sent


async def test_a_group_keeps_its_members_and_offsets_while_its_coordinator_moves(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, asyncio.TaskGroup() as tasks:
        writer = Writer(nodes)
        running = tasks.create_task(writer.run())
        consumer = AIOKafkaConsumer(
            bootstrap_servers=bootstrap(nodes),
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=60_000,
        )
        rebalances = Rebalances()
        consumer.subscribe(["t"], listener=rebalances)
        found: dict[int, list[int]] = defaultdict(list)

        async def read_some() -> None:
            for where, records in (await consumer.getmany(timeout_ms=200)).items():
                found[where.partition] += [int(record.value) for record in records]
            await consumer.commit()

        async with consumer:
            await until(lambda: bool(writer.sent) and bool(consumer.assignment()), timeout_s=60, pause_s=0.01)
            for _ in range(ROUNDS):
                await read_some()
                await move_all(nodes, OFFSETS_TOPIC)
                await read_some()
                await move_all(nodes)
            writer.stop()
            await running
            async with asyncio.timeout(60):
                while any(len(found[index]) < len(writer.sent[index]) for index in range(PARTITIONS)):
                    await read_some()
            assert rebalances.count == 1
        assert found == writer.sent
