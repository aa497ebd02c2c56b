"""Two nodes on one catalog (a real PostgreSQL): each follows changes made through the other."""

import asyncio
from collections.abc import AsyncIterator, MutableMapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.configs.broker import ALL_NODES
from broker.configs.cluster import BROKER, GROUP
from broker.membership.other_nodes import RemoteCoordinatorWarning, other_nodes
from broker.node import Node
from broker.topics.topic import Topic
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import FindCoordinatorRequest
from s3stream.catalog.values import NodeInfo, PartitionInfo, TopicInfo
from tests.support.node import running_node
from tests.support.postgres import PostgresServer
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

RETENTION = "retention.ms"
SESSION_TIMEOUT = "consumer.session.timeout.ms"


async def test_configs_set_through_one_node_reach_the_other(tmp_path: Path, postgres: PostgresServer) -> None:
    shared = {
        "catalog_url": postgres.new_database(),
        "catalog_lease_ms": 1_000,  # followed three times a lease
        "objects_path": tmp_path / "objects",
    }
    cold = ["cold.type=local", f"cold.path={tmp_path / 'cold'}"]
    async with running_node(tmp_path / "1", node_id=1, stores=cold, **shared) as leader:
        topic = await leader.topics.create("t", partitions=1, configs={})
        (partition,) = leader.topics.led_partitions()
        version = leader.topics.version
        async with running_node(tmp_path / "2", node_id=2, **shared) as other:
            # As a client would: any node takes the change, and the one that leads has to act on it.
            await other.topics.alter("t", set_configs={RETENTION: "5000"}, unset=())
            await other.cluster_configs.alter(GROUP, "g", set_configs={SESSION_TIMEOUT: "50000"}, unset=())
            await until(lambda: partition.config.retention_ms == 5_000, timeout_s=60, pause_s=0.01)
            await until(
                lambda: leader.cluster_configs.get(GROUP, "g") == {SESSION_TIMEOUT: "50000"},
                timeout_s=60,
                pause_s=0.01,
            )
            await other.cluster_configs.alter(BROKER, ALL_NODES, set_configs={"message.max.bytes": "777"}, unset=())
            await other.cluster_configs.alter(BROKER, "2", set_configs={"log.retention.bytes": "7"}, unset=())
            await until(lambda: partition.config.max_message_bytes == 777, timeout_s=60, pause_s=0.01)
            assert partition.config.retention_bytes == -1, "a config set for one node does not apply to another"
            assert topic.info.configs == {RETENTION: "5000"}
            assert leader.topics.version == version, "no topic or partition has come or gone"

            followed = other.topics.get("t")
            assert followed is not None
            with capture_logs() as said:
                await leader.topics.alter("t", set_configs={"storage.policy": "cold"}, unset=[RETENTION])
                await until(lambda: followed.info.configs == {"storage.policy": "cold"}, timeout_s=60, pause_s=0.01)
            assert partition.stream.store == "cold"
            assert followed.config.store == "local", "the other node has no store of that name, and says so"
            assert [line["policy"] for line in said if line["log_level"] == "error"] == ["cold"]


@asynccontextmanager
async def two_nodes(folder: Path, postgres: PostgresServer) -> AsyncIterator[tuple[Node, Node, Topic]]:
    """Two nodes that know the topic `t`, whose only partition the first one leads; its topic comes third."""
    shared = {"catalog_url": postgres.new_database(), "objects_path": folder / "objects"}
    async with (
        running_node(folder / "1", node_id=1, **shared) as leader,
        running_node(folder / "2", node_id=2, **shared) as other,
    ):
        topic = await leader.topics.create("t", partitions=1, configs={})
        await other.topics.open_existing("t")
        yield leader, other, topic


async def test_partitions_added_through_one_node_are_not_taken_by_another(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with two_nodes(tmp_path, postgres) as (leader, other, topic):
        await leader.topics.grow("t", 2)
        async with raw_client(leader.bootstrap) as client:
            answer = await client.produce("t", [batch_of(b"acked")], partition=1)
            assert answer.responses[0].partition_responses[0].error_code == 0
        grown = await other.topics.grow("t", 3)  # it did not know of the second one
        assert [partition is not None for partition in grown.partitions] == [False, False, True]
        await leader.storage.flush()
        (partition, stream) = (grown.info.partitions[1], topic.streams[1])
        assert stream.error is None
        ends = await other.catalog.get_streams([partition.stream_id])
        assert ends[partition.stream_id].end_offset == 1, "the record has been uploaded by who has it"


async def test_configs_that_come_with_new_partitions_hold_for_the_old_ones(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with two_nodes(tmp_path, postgres) as (leader, other, topic):
        await other.topics.alter("t", set_configs={RETENTION: "5000"}, unset=())
        await leader.topics.grow("t", 2)
        assert [partition.config.retention_ms for partition in leader.topics.led_partitions()] == [5_000, 5_000]
        assert topic.config.retention_ms == 5_000


async def test_what_does_not_work_across_nodes_is_said(tmp_path: Path, postgres: PostgresServer) -> None:
    shared = {"catalog_url": postgres.new_database(), "objects_path": tmp_path / "objects"}
    with capture_logs() as alone:
        async with running_node(tmp_path / "1", node_id=1, **shared) as first:
            await first.groups.ensure_topic()
            await first.transactions.ensure_topic()
            assert not warnings(alone)
            with capture_logs() as said:
                async with running_node(tmp_path / "2", node_id=2, **shared) as second:
                    (line,) = warnings(said)
                    assert line["event"] == "other nodes share this catalog"
                    assert line["nodes"] == [1]
                    assert "consumer groups work only through the node that leads __consumer_offsets" in line["limits"]
                    async with raw_client(second.bootstrap) as client:
                        for key_type in (0, 1, 0, 1):
                            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["k", "other"])
                            answer = await client.call(request, 4)
                            codes = {found.error_code for found in answer.coordinators}
                            assert codes == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
                    told = warnings(said)[1:]
                    assert [line["topic"] for line in told] == ["__consumer_offsets", "__transaction_state"], (
                        "once each"
                    )
                    assert {(line["key"], line["leader"]) for line in told} == {("k", 1)}


def warnings(lines: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in lines if line["log_level"] == "warning"]


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (NodeInfo(2, 1, "h", 1, 1_001), [2]),
        (NodeInfo(2, 1, "h", 1, 999), []),
        (NodeInfo(2, 1, "h", 1, 0), []),
        (NodeInfo(1, 1, "h", 1, 1_001), []),
    ],
)
def test_other_nodes_are_those_that_live_or_lead(node: NodeInfo, expected: list[int]) -> None:
    topics = [TopicInfo("t", bytes(16), {}, [PartitionInfo(0, 7, leader, 1) for leader in (-1, 1)])]
    assert other_nodes([node], topics, 1, 1_000) == expected
    led = TopicInfo("u", bytes(16), {}, [PartitionInfo(0, 8, 3, 1)])
    assert other_nodes([node], [*topics, led], 1, 1_000) == [*expected, 3]


async def test_a_notice_comes_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    notice = RemoteCoordinatorWarning()
    topic = TopicInfo("t", bytes(16), {}, [PartitionInfo(0, 7, 3, 1)])
    now = [5.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    with capture_logs() as said:
        for at in (5.0, 64.9, 65.0, 66.0):
            now[0] = at
            notice.warn(topic, 0, f"{at}")
    assert [line["key"] for line in said] == ["5.0", "65.0"]
