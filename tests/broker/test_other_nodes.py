"""Two nodes on one catalog: each follows what was set through the other. On a real PostgreSQL."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.app import RunningNode
from broker.broker_configs import ALL_NODES
from broker.cluster_configs import BROKER, GROUP
from broker.topics import Topic
from tests.support.node import running_node
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

RETENTION = "retention.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


async def test_configs_set_through_one_node_reach_the_other(tmp_path: Path, postgres: PostgresServer) -> None:
    shared = {
        "catalog_url": postgres.new_database(),
        "catalog_lease_ms": 1_000,  # followed three times a lease
        "objects_path": tmp_path / "objects",
    }
    cold = ["cold.type=local", f"cold.path={tmp_path / 'cold'}"]
    async with running_node(tmp_path / "1", node_id=1, stores=cold, **shared) as leader:
        topic = await leader.node.topics.create("t", partitions=1, configs={})
        (partition,) = leader.node.topics.led_partitions()
        version = leader.node.topics.version
        async with running_node(tmp_path / "2", node_id=2, **shared) as other:
            # As a client would: any node takes the change, and the one that leads has to act on it.
            await other.node.topics.alter("t", set_configs={RETENTION: "5000"}, unset=())
            await other.node.cluster_configs.alter(GROUP, "g", set_configs={SESSION_TIMEOUT: "50000"}, unset=())
            await until(lambda: partition.config.retention_ms == 5_000, timeout_s=60, pause_s=0.01)
            await until(
                lambda: leader.node.cluster_configs.get(GROUP, "g") == {SESSION_TIMEOUT: "50000"},
                timeout_s=60,
                pause_s=0.01,
            )
            await other.node.cluster_configs.alter(
                BROKER, ALL_NODES, set_configs={"message.max.bytes": "777"}, unset=()
            )
            await other.node.cluster_configs.alter(BROKER, "2", set_configs={"log.retention.bytes": "7"}, unset=())
            await until(lambda: partition.config.max_message_bytes == 777, timeout_s=60, pause_s=0.01)
            assert partition.config.retention_bytes == -1, "what is set for one node is no other's"
            assert topic.info.configs == {RETENTION: "5000"}
            assert leader.node.topics.version == version, "no topic or partition has come or gone"

            followed = other.node.topics.get("t")
            assert followed is not None
            with capture_logs() as said:
                await leader.node.topics.alter("t", set_configs={"storage.policy": "cold"}, unset=[RETENTION])
                await until(lambda: followed.info.configs == {"storage.policy": "cold"}, timeout_s=60, pause_s=0.01)
            assert partition.stream.store == "cold"
            assert followed.config.store == "local", "the other node has no store of that name, and says so"
            assert [line["policy"] for line in said if line["log_level"] == "error"] == ["cold"]


@asynccontextmanager
async def two_nodes(folder: Path, postgres: PostgresServer) -> AsyncIterator[tuple[RunningNode, RunningNode, Topic]]:
    """Two nodes that know the topic `t`, whose only partition the first one leads; its topic comes third."""
    shared = {"catalog_url": postgres.new_database(), "objects_path": folder / "objects"}
    async with (
        running_node(folder / "1", node_id=1, **shared) as leader,
        running_node(folder / "2", node_id=2, **shared) as other,
    ):
        topic = await leader.node.topics.create("t", partitions=1, configs={})
        await other.node.topics.adopt("t")
        yield leader, other, topic


async def test_partitions_added_through_one_node_are_not_taken_by_another(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with two_nodes(tmp_path, postgres) as (leader, other, topic):
        await leader.node.topics.grow("t", 2)
        async with raw_client(leader.bootstrap) as client:
            answer = await client.produce("t", [batch_of(b"acked")], partition=1)
            assert answer.responses[0].partition_responses[0].error_code == 0
        grown = await other.node.topics.grow("t", 3)  # it did not know of the second one
        assert [partition is not None for partition in grown.partitions] == [False, False, True]
        await leader.node.storage.flush()
        (partition, stream) = (grown.info.partitions[1], topic.streams[1])
        assert stream.error is None
        ends = await other.node.catalog.get_streams([partition.stream_id])
        assert ends[partition.stream_id].end_offset == 1, "the record has been uploaded by who has it"


async def test_configs_that_come_with_new_partitions_hold_for_the_old_ones(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with two_nodes(tmp_path, postgres) as (leader, other, topic):
        await other.node.topics.alter("t", set_configs={RETENTION: "5000"}, unset=())
        await leader.node.topics.grow("t", 2)
        assert [partition.config.retention_ms for partition in leader.node.topics.led_partitions()] == [5_000, 5_000]
        assert topic.config.retention_ms == 5_000
