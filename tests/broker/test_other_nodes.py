"""Two nodes on one catalog: each follows what was set through the other. On a real PostgreSQL."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.cluster_configs import GROUP
from tests.support.node import running_node
from tests.support.postgres import PostgresServer, postgres_server
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
