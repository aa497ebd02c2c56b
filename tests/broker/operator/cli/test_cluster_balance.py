"""`anabranch cluster balance` on three nodes, the third of which has just joined and leads nothing of a topic."""

import asyncio
import json
import re
from typing import Any

from click.testing import CliRunner

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.cli.cluster import cluster
from tests.broker.cluster.balancer import test_balancer
from tests.broker.cluster.balancer.test_balancer import led_by
from tests.support.admin_api import api_client
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

nodes = test_balancer.nodes


async def run(node: Node, *arguments: str) -> str:
    """The output of a command on a wide terminal, without what the nodes of this process log meanwhile."""
    full = [*arguments, "--admin", node.ports.admin_address]
    done = await asyncio.to_thread(CliRunner().invoke, cluster, full, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("20"))


async def read(node: Node, *arguments: str) -> Any:
    return json.loads(await run(node, "balance", *arguments, "--output", "json"))


async def test_a_pause_stops_moves_and_the_plan_says_what_would_move(nodes: list[Node]) -> None:
    first, second, _ = nodes
    assert "balancing is on; it waits: nothing is measured yet" in await run(second, "balance")
    assert "has ordered no moves" in await run(second, "balance", "--history")
    assert await run(second, "balance", "--pause") == (
        "balancing is paused, until anabranch cluster balance --resume\n"
    )
    await until(lambda: not first.upkeep.balancer.is_on, timeout_s=60, pause_s=0.01)
    await first.upkeep.balancer.balance()
    found = await read(second, "--dry-run")
    assert (found["controller"], found["is_on"], {each["to"] for each in found["plan"]}) == (1, False, {3})
    shown = await run(second, "balance", "--dry-run")
    assert "fill: " in shown
    assert f"after {len(found['plan'])} moves" in shown
    assert "balancing is paused" in await run(second, "status")
    assert led_by(first) == {1: 6, 2: 6}
    refused = await asyncio.to_thread(CliRunner().invoke, cluster, ["balance", "--dry-run", "--resume"])
    assert (refused.exit_code, "give one of --dry-run" in refused.stderr) == (2, True)

    assert await run(second, "balance", "--resume") == "balancing goes on\n"
    await until(lambda: first.upkeep.balancer.is_on, timeout_s=60, pause_s=0.01)
    await first.upkeep.balancer.balance()
    assert led_by(first) == {1: 4, 2: 4, 3: 4}
    history = await read(second, "--history")
    assert [(each["to"], each["done"], each["rule"]) for each in history["history"]] == [(3, True, "fill")] * 4
    assert "result" in await run(second, "balance", "--history")
    state = json.loads(await run(second, "status", "--output", "json"))["balance"]
    assert (state["is_on"], state["planned"]) == (True, 0)


async def test_loads_are_shown_by_node_and_by_partition(nodes: list[Node]) -> None:
    first = nodes[0]
    await first.upkeep.meter.sample()
    async with raw_client(first.bootstrap) as client:
        await client.produce("t", [batch_of(b"x" * 1000)])
    await first.upkeep.meter.sample()
    await first.upkeep.balancer.balance()
    found = await read(nodes[2])
    assert [each["node"] for each in found["nodes"]] == [1, 2, 3]
    assert found["nodes"][0]["received_bytes"] > 0
    costliest = found["partitions"][0]
    assert (costliest["topic"], costliest["partition"], costliest["leader"]) == ("t", 0, 1)
    shown = await run(nodes[2], "balance")
    assert "t-0" in shown
    assert "of mean" in shown
    assert "as replica" not in shown
    assert re.search(r"times the mean; .*; planned \d+\.\d s ago$", shown.rstrip())
    async with api_client(nodes[1]) as api:
        assert (await api.get("/cluster/balance", partitions=0))["partitions"] == []
        assert (await api.failure("GET", "/cluster/balance", partitions=-1))[0] == 400
    nodes[1].serving.replicas.object_bytes += 10**12
    await nodes[1].upkeep.meter.sample()
    await first.upkeep.balancer.balance()
    assert "as replica" in await run(nodes[2], "balance")
    shares = [each["replica_cores"] / each["cores"] for each in (await read(nodes[2]))["nodes"] if each["cores"]]
    assert [round(each) for each in shares] == [0, 1]
