"""Two nodes on one catalog (a real PostgreSQL): each follows changes made through the other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.broker import ALL_NODES
from anabranch.broker.kafka.configs.cluster import BROKER, GROUP
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.s3stream.catalog.catalog import Catalog
from tests.support.node import running_node
from tests.support.postgres import PostgresServer
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
        topic = await leader.serving.topic_commands.create("t", partitions=1, configs={})
        (partition,) = leader.serving.topics.led_partitions()
        async with running_node(tmp_path / "2", node_id=2, **shared) as other:
            # As a client would: any node takes the change, and the one that leads has to act on it.
            await other.serving.topic_commands.alter("t", lambda own: own | {RETENTION: "5000"})
            await other.serving.cluster_configs.alter(GROUP, "g", set_configs={SESSION_TIMEOUT: "50000"}, unset=())
            await until(lambda: partition.config.retention_ms == 5_000, timeout_s=60, pause_s=0.01)
            await until(
                lambda: leader.serving.cluster_configs.get(GROUP, "g") == {SESSION_TIMEOUT: "50000"},
                timeout_s=60,
                pause_s=0.01,
            )
            await other.serving.cluster_configs.alter(
                BROKER, ALL_NODES, set_configs={"message.max.bytes": "777"}, unset=()
            )
            await other.serving.cluster_configs.alter(BROKER, "2", set_configs={"log.retention.bytes": "7"}, unset=())
            await until(lambda: partition.config.max_message_bytes == 777, timeout_s=60, pause_s=0.01)
            assert partition.config.retention_bytes == -1, "a config set for one node does not apply to another"
            assert topic.info.configs == {RETENTION: "5000"}

            followed = other.serving.topics.get("t")
            assert followed is not None
            with capture_logs() as said:
                await leader.serving.topic_commands.alter("t", lambda _: {"storage.policy": "cold"})
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
        topic = await leader.serving.topic_commands.create("t", partitions=1, configs={})
        await other.serving.topics.open_existing("t")
        yield leader, other, topic


async def test_configs_that_come_with_new_partitions_hold_for_the_old_ones(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    async with two_nodes(tmp_path, postgres) as (leader, other, topic):
        await other.serving.topic_commands.alter("t", lambda own: own | {RETENTION: "5000"})
        await leader.serving.topic_commands.grow("t", 2)

        def retentions() -> list[int]:
            """Of the partitions that nodes lead: the new one may be at the other node, which opens it by itself."""
            return [
                each.config.retention_ms for node in (leader, other) for each in node.serving.topics.led_partitions()
            ]

        await until(lambda: len(retentions()) == 2, timeout_s=60, pause_s=0.01)
        assert retentions() == [5_000, 5_000]
        assert topic.config.retention_ms == 5_000


async def test_two_nodes_may_begin_a_new_cluster_at_once(
    tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one finds the catalog empty, and then an object, which the first one has written meanwhile."""
    shared = {"catalog_url": postgres.new_database(), "objects_path": tmp_path / "objects"}
    async with running_node(tmp_path / "1", node_id=1, **shared) as first:
        await first.upkeep.manifests.ensure_current()
        answers = [True]
        is_blank = Catalog.is_blank

        async def was_blank(catalog: Catalog) -> bool:
            return answers.pop() if answers else await is_blank(catalog)

        monkeypatch.setattr(Catalog, "is_blank", was_blank)
        async with running_node(tmp_path / "2", node_id=2, **shared) as second:
            assert second.serving.catalog.identity() == first.serving.catalog.identity()
