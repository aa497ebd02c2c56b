"""`anabranch topic elect` on a node that knows others, living and dead. Elections that move: see `test_drain`."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.cli.topic import topic
from tests.support.many_nodes import OF_THE_DEAD, node_of_many


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_of_many(tmp_path) as node:
        yield node


async def elect(node: Node, *arguments: str, answer: str = "") -> Result:
    full = ["elect", *arguments, "--bootstrap-server", node.bootstrap]
    return await asyncio.to_thread(CliRunner().invoke, topic, full, input=answer)


async def test_what_cannot_be_elected_is_told_with_its_reason(node: Node) -> None:
    done = await elect(node, "t", "--output", "json")
    found = json.loads("".join(line for line in done.stdout.splitlines() if not line.startswith("20")))
    assert (done.exit_code, found["elected"], found["not_needed"]) == (1, 0, 4)
    assert [*found["failed"]] == [f"t-{OF_THE_DEAD}"]
    refused = await elect(node, "t:0,9")
    assert (refused.exit_code, refused.stderr) == (1, "Error: topic t has no partition 9\n")
    refused = await elect(node, "x")
    assert (refused.exit_code, refused.stderr) == (1, "Error: topic x does not exist\n")
    for arguments in ([], ["t", "--all"]):
        refused = await elect(node, *arguments)
        assert refused.exit_code == 2
        assert "name topics, or give --all" in refused.stderr


async def test_an_unclean_election_asks_first_and_names_who_may_have_the_records(node: Node) -> None:
    asked = await elect(node, "t", "--unclean", answer="n\n")
    assert f"Let other nodes lead t-{OF_THE_DEAD}? Acknowledged records" in asked.stderr
    assert asked.stderr.endswith("nothing was changed\n")
    done = await elect(node, "--all", "--unclean", "--yes")
    assert done.exit_code == 1
    assert f"t-{OF_THE_DEAD} was not elected: ELIGIBLE_LEADERS_NOT_AVAILABLE: node 4" in done.stderr
    needless = await elect(node, "t:0", "--unclean")
    assert (needless.exit_code, needless.stderr) == (0, ""), "nothing is asked"
