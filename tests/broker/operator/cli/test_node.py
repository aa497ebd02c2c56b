"""`anabranch node` and `anabranch cluster status`, run against real processes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.cluster import UNAVAILABLE, cluster
from anabranch.broker.operator.cli.node import node
from anabranch.times import age_text
from tests.broker.cluster.membership.test_failover import cluster as nodes_of_a_cluster
from tests.broker.cluster.membership.test_failover import create_topic, read
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until


def run(group: Any, *arguments: str, answer: str = "") -> Result:
    """Run a subcommand on a wide terminal."""
    return CliRunner().invoke(group, [*arguments], input=answer, env={"COLUMNS": "300"})


def asked(process: NodeProcess) -> list[str]:
    return ["--admin", process.admin]


def states(process: NodeProcess) -> dict[int, str]:
    found = run(node, "list", "--output", "json", *asked(process))
    assert found.exit_code == 0, found.output
    return {row["id"]: row["state"] for row in json.loads(found.output)}


def status(process: NodeProcess) -> tuple[int, dict[str, Any]]:
    found = run(cluster, "status", "--output", "json", *asked(process))
    return found.exit_code, json.loads(found.output)


def test_a_dead_node_is_shown_its_log_given_up_and_the_node_removed(tmp_path: Path) -> None:
    first, second = nodes_of_a_cluster(tmp_path, 2, wal_takeover="none")
    with first, second:
        create_topic(first)
        wait_until(lambda: states(first) == states(second) == {1: "UP", 2: "UP"}, "both are up")
        assert "every partition has a leader" in run(cluster, "status", *asked(second)).output
        assert status(second)[0] == 0
        refused = run(node, "fail", "1", "--yes", *asked(second))
        assert refused.exit_code == 1
        assert "only node 1 may open its log" in refused.output
        first.kill9()
        wait_until(lambda: states(second)[1] == "FAILED", "the dead node is known to be dead")
        wait_until(lambda: status(second)[1]["silent"][0]["reason"] != "", "the reason is known")
        code, found = status(second)
        assert (code, [each["partition"] for each in found["unavailable"]]) == (UNAVAILABLE, [0])
        assert [log["node"] for log in found["logs_not_drained"]] == [1]
        shown = run(cluster, "status", *asked(second))
        assert shown.exit_code == UNAVAILABLE
        for expected in (
            "1 partition has no leader",
            "only node 1 may open its log",
            "file or device",
            "node 1 only",
            "dead",
        ):
            assert expected in shown.output
        assert "`anabranch node give-up 1`" in run(node, "remove", "1", *asked(second)).output
        plan = run(node, "give-up", "1", *asked(second), answer="n\n")
        assert plan.exit_code == 1
        assert "Acknowledged records of 1 partition that were only in it will be lost for good" in plan.output
        assert "t-0" in plan.output
        given_up = run(node, "give-up", "1", "--yes", *asked(second))
        assert given_up.exit_code == 0, given_up.output
        wait_until(lambda: bool(second.events("records given up with the log")), "its log line is read")
        assert [line["from_offset"] for line in second.events("records given up with the log")] == [0]
        wait_until(lambda: status(second)[0] == 0, "every partition has a leader")
        assert read(second, 0) == []
        assert run(node, "remove", "1", *asked(second)).output == "removed node 1\n"
        assert states(second) == {2: "UP"}


def test_a_node_is_declared_dead_while_it_lives(tmp_path: Path) -> None:
    first, second = nodes_of_a_cluster(tmp_path, 2, wal_kind="object")
    with first, second:
        create_topic(first)
        wait_until(lambda: states(first) == states(second) == {1: "UP", 2: "UP"}, "both are up")
        assert run(node, "fail", "1", *asked(second), answer="n\n").exit_code == 1
        failed = run(node, "fail", "1", *asked(second), answer="y\n")
        assert failed.exit_code == 0, failed.output
        assert "node 1 is fenced; its log, local:wal/anabranch/1/, was recovered" in failed.output
        assert first.wait() != 0, "it ends"
        assert states(second) == {1: "FAILED", 2: "UP"}
        assert "DRAINED by 2" in run(node, "list", *asked(second)).output


def test_a_node_that_runs_is_removed_in_one_step(tmp_path: Path) -> None:
    first, second = nodes_of_a_cluster(tmp_path, 2)
    with first, second:
        create_topic(first)
        wait_until(lambda: states(first) == states(second) == {1: "UP", 2: "UP"}, "both are up")
        assert "name another node" in run(node, "remove", "1", "--drain", *asked(first)).output
        assert states(second) == {1: "UP", 2: "UP"}, "nothing has begun"
        removed = run(node, "remove", "1", "--drain", "--output", "json", *asked(second))
        assert json.loads(removed.stdout)["node"] == 1, removed.output
        assert first.wait() == 0, "whatever restarts failed processes does not restart it"
        assert states(second) == {2: "UP"}
        assert status(second)[0] == 0, "the second one leads its partition"
        assert "node 1 is not registered" in run(node, "remove", "1", "--drain", *asked(second)).output
        first.start()
        wait_until(lambda: states(second) == {1: "UP", 2: "UP"}, "it joins anew")


def test_a_stopped_cluster_is_described_from_its_catalog(tmp_path: Path) -> None:
    first, second = nodes_of_a_cluster(tmp_path, 2)
    where = ["--catalog-url", str(first.settings["catalog_url"])]
    with first, second:
        create_topic(first)
        wait_until(lambda: states(first) == states(second) == {1: "UP", 2: "UP"}, "both are up")
        assert first.terminate() == 0
        wait_until(lambda: states(second) == {1: "LEFT", 2: "UP"}, "the first one has left")
        wait_until(lambda: status(second)[0] == 0, "the second one leads")
        assert second.terminate() == 0
    found = run(cluster, "status", *where)
    assert found.exit_code == UNAVAILABLE
    assert "2 nodes (2 LEFT), 1 partition, from the catalog" in found.output
    assert "a running node is needed" in run(node, "fail", "1", "--yes", *where).output
    assert "no log that may hold records" in run(node, "give-up", "1", "--yes", *where).output
    assert run(node, "remove", "1", *where).output == "removed node 1\n"
    assert "node 1 is not registered" in run(node, "remove", "1", *where).output
    assert "node 2 is the only one" in run(node, "remove", "2", *where).output
    assert run(node, "list", *where, "--admin", "127.0.0.1:1").exit_code == 2


@pytest.mark.parametrize(
    ("age_ms", "text"), [(None, "-"), (0, "0.0 s"), (119_900, "119.9 s"), (120_000, "2 min"), (7_200_000, "2 h")]
)
def test_ages_are_short(age_ms: int | None, text: str) -> None:
    assert age_text(age_ms) == text
