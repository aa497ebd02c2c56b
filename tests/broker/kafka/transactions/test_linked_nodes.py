"""Transactions over real nodes: the coordinator, the partitions and the offsets of a group are on different ones."""

import asyncio
from asyncio import to_thread
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.server import Server
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from anabranch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.wal.log import DeltaWal
from tests.support.metrics import metrics_of
from tests.support.node import NodeProcess, running_nodes
from tests.support.postgres import PostgresServer
from tests.support.raw_client import connect, raw_client
from tests.support.waiting import until, wait_until

GROUP, TRANSACTION = 0, 1
"""Kinds of coordinators."""
NAMES = [f"name-{at}" for at in range(30)]
TIMEOUT_S = 60
SHARDS = {"group_offsets_partitions": 6, "transaction_state_partitions": 6}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.server)])
def catalog_url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.new_database()


async def coordinated_by(node_id: int, kind: int, bootstrap: str) -> str:
    """A name whose coordinator is the node."""
    client = await connect(bootstrap)
    found: list[str] = []
    try:
        while not found:
            answer = await client.call(FindCoordinatorRequest(key_type=kind, coordinator_keys=NAMES), 4)
            if not any(each.error_code for each in answer.coordinators):
                found = [each.key for each in answer.coordinators if each.node_id == node_id]
    finally:
        await client.close()
    return found[0]


def consumer_of(bootstrap: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )


class Writer:
    """A transactional producer and the group whose offsets it commits. All methods block."""

    def __init__(self, bootstrap: str, name: str, group: str) -> None:
        self.consumer = consumer_of(bootstrap, group)
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": name, "transaction.timeout.ms": 60_000}
        )

    def open(self) -> None:
        self.producer.init_transactions(TIMEOUT_S)

    def write(self, value: str, partitions: Sequence[int], offset: int) -> None:
        """Write the value to the partitions, and commit an offset, in a new transaction."""
        self.producer.begin_transaction()
        for partition in partitions:
            self.producer.produce("t", value.encode(), partition=partition)
        assert self.producer.flush(TIMEOUT_S) == 0
        offsets = [TopicPartition("t", 0, offset)]
        self.producer.send_offsets_to_transaction(offsets, self.consumer.consumer_group_metadata(), TIMEOUT_S)

    def committed_offset(self) -> int:
        (found,) = self.consumer.committed([TopicPartition("t", 0)], TIMEOUT_S)
        return int(found.offset)

    def read(self, partitions: Sequence[int], count: int) -> list[str]:
        """The first `count` committed values of each partition together, sorted."""
        self.consumer.assign([TopicPartition("t", partition, 0) for partition in partitions])
        found: list[str] = []
        while len(found) < count:
            message = self.consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            found.append((message.value() or b"").decode())
        return sorted(found)

    def close(self) -> None:
        self.consumer.close()
        del self.producer


def is_settled(nodes: Sequence[Node]) -> bool:
    """Return whether no partition has an open transaction."""
    led = [partition for node in nodes for partition in node.serving.topics.led_partitions()]
    return all(partition.last_stable_offset == partition.high_watermark for partition in led)


async def test_a_transaction_over_three_nodes_is_committed_or_aborted_as_a_whole(
    tmp_path: Path, catalog_url: str
) -> None:
    partitions = range(3)
    async with running_nodes(tmp_path, 3, catalog_url, **SHARDS) as nodes:
        await nodes[0].serving.topic_commands.create("t", partitions=3, configs={})
        await until(lambda: all(list(node.serving.topics.led_partitions()) for node in nodes), timeout_s=TIMEOUT_S)
        bootstrap = nodes[2].bootstrap
        name = await coordinated_by(1, TRANSACTION, bootstrap)
        group = await coordinated_by(2, GROUP, bootstrap)
        writer = Writer(bootstrap, name, group)
        try:
            await to_thread(writer.open)
            expected: list[str] = []
            for at, commit in enumerate((True, False, True)):
                await to_thread(writer.write, f"v{at}", partitions, at + 1)
                await to_thread(
                    writer.producer.commit_transaction if commit else writer.producer.abort_transaction, TIMEOUT_S
                )
                expected += [f"v{at}"] * 3 * commit
            await until(lambda: is_settled(nodes), timeout_s=TIMEOUT_S, pause_s=0.01)
            assert await to_thread(writer.committed_offset) == 3
            assert await to_thread(writer.read, partitions, len(expected)) == expected
        finally:
            await to_thread(writer.close)
        internal = [node.ports.nodes for node in nodes]
        assert all(server.stats.accepted for server in internal)
    assert not any(server.connections for server in internal)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_node_on_postgresql_listens_for_others(tmp_path: Path, postgres: PostgresServer) -> None:
    wanted = {"cluster_internal_port": None, "cluster_internal_advertised_host": "localhost"}
    async with running_nodes(tmp_path, 1, postgres.new_database(), **wanted) as (node,):
        (found,) = await node.serving.catalog.list_nodes()
        assert found.internal_host == "localhost"
        assert node.internal_address == f"localhost:{found.internal_port}"
        assert (await metrics_of(node)).value("anabranch_internal_connections") == 0
        async with raw_client(node.internal_address) as stranger:
            stranger.send(FindCoordinatorRequest(), 4)
            assert await stranger.closed()


async def test_a_stopping_node_serves_others_until_its_clients_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_nodes(tmp_path, 2) as (first, second):
        links = first.serving.links
        assert links is not None
        steps: list[str] = []
        drain, close = Server.drain, DeltaWal.close

        async def call() -> None:
            await links.call(2, AddPartitionsToTxnRequest(), 5)

        async def draining(server: Server, timeout_ms: int) -> int:
            if server is second.ports.clients:
                await call()
            steps.append("clients" if server is second.ports.clients else "nodes")
            return await drain(server, timeout_ms)

        async def closing(wal: DeltaWal) -> None:
            steps.append("log")
            with pytest.raises(PeerUnavailable):
                await call()
            await close(wal)

        with monkeypatch.context() as patch:
            patch.setattr(Server, "drain", draining)
            patch.setattr(DeltaWal, "close", closing)
            await second.stop()
        assert steps == ["clients", "nodes", "log"]


@pytest.mark.slow
async def test_transactions_survive_the_death_of_the_node_of_a_partition(tmp_path: Path) -> None:
    shared = {
        "catalog_url": f"sqlite:///{tmp_path}/catalog.db",
        "objects_path": tmp_path / "objects",
        "cluster_internal_port": 0,
        **SHARDS,
    }
    with ExitStack() as stack:
        first, second = (NodeProcess(tmp_path / str(node_id), node_id=node_id, **shared) for node_id in (1, 2))
        for node in (first, second):
            await to_thread(stack.enter_context, node)
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        await to_thread(wait_until, lambda: len(admin.list_topics().brokers) == 2, "both nodes are known")
        assignments = [CreatableReplicaAssignment(partition_index=index, broker_ids=[index + 1]) for index in range(2)]
        topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assignments)
        async with raw_client(first.bootstrap) as client:
            created = await client.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
        assert created.topics[0].error_code == 0
        name = await coordinated_by(1, TRANSACTION, first.bootstrap)
        group = await coordinated_by(2, GROUP, first.bootstrap)
        writer = Writer(first.bootstrap, name, group)
        try:
            await to_thread(writer.open)
            await to_thread(writer.write, "a", [0, 1], 1)
            second.kill9()
            committing = asyncio.create_task(to_thread(writer.producer.commit_transaction, TIMEOUT_S))
            await to_thread(second.start)
            await committing
            assert await to_thread(writer.read, [0, 1], 2) == ["a", "a"]
            await to_thread(writer.write, "b", [0, 1], 2)
            await to_thread(writer.producer.abort_transaction, TIMEOUT_S)
            await to_thread(writer.write, "c", [0, 1], 3)
            await to_thread(writer.producer.commit_transaction, TIMEOUT_S)
            assert await to_thread(writer.read, [0, 1], 4) == ["a", "a", "c", "c"]
            assert await to_thread(writer.committed_offset) == 3
        finally:
            await to_thread(writer.close)
        assert [await to_thread(node.terminate) for node in (first, second)] == [0, 0]
