"""`anabranch cluster cost`, and the endpoint behind it, on two nodes in different racks."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from anabranch.broker.api.handlers.local import LocalRefusal
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.broker.node.net.traffic import DELETED
from anabranch.broker.operator.admin.api.cost import NodeRates
from anabranch.broker.operator.admin.prices import DEFAULT, DEFAULT_PRICES
from anabranch.broker.operator.cli.cluster import cluster
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.internal.describe_usage import (
    DescribeUsageResponse,
    LinkUsage,
    RackUsage,
    StoreUsage,
    StreamUsage,
)
from tests.support.admin_api import api_client
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

BATCH = batch_of(b"x" * 10_000)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    shared = {"catalog_url": f"sqlite:///{tmp_path}/catalog.db", "objects_path": tmp_path / "objects"}
    async with (
        running_node(tmp_path / "1", node_id=1, rack="a", **shared) as first,
        running_node(tmp_path / "2", node_id=2, rack="b", **shared) as second,
    ):
        both = [first, second]
        await until(lambda: all(len(each.serving.members.living()) == 2 for each in both), pause_s=0.01)
        await first.serving.topic_commands.create_all([TopicSpec("t", 2, {}, leaders=[1, 2])])
        await until(lambda: second.serving.topics.has_partition("t", 1), pause_s=0.01)
        await until(lambda: second.serving.topics.require("t").partitions[1] is not None, pause_s=0.01)
        yield both


async def produce(node: Node, client_id: str, partition: int, times: int) -> None:
    async with raw_client(node.bootstrap, client_id) as client:
        await client.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)
        for _ in range(times):
            answer = await client.produce("t", [BATCH], partition=partition)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer


async def run(node: Node, *arguments: str) -> str:
    """The output of the command, without what the nodes of this process log meanwhile."""
    full = ["cost", *arguments, "--admin", node.ports.admin_address]
    done = await asyncio.to_thread(CliRunner().invoke, cluster, full, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith("20"))


async def read(node: Node, *arguments: str) -> Any:
    return json.loads(await run(node, *arguments, "--output", "json"))


async def test_bytes_across_zones_are_those_of_other_racks(nodes: list[Node], tmp_path: Path) -> None:
    first, second = nodes
    await produce(first, "orders,rack=a", 0, 2)
    await produce(second, "orders,rack=a", 1, 3)
    await produce(first, "orders", 0, 5)
    await first.serving.storage.flush()
    async with api_client(second) as api:
        await api.get("/cluster/cost")  # a call between the nodes, which counts as well
        found = await api.get("/cluster/cost")
    use = found["use"]
    assert use["zones"] == ["a", "b"]
    [topic] = [each for each in use["topics"] if each["topic"] == "t"]
    received = topic["received"]
    assert received["far"] > 0
    assert received["unknown"] / received["near"] == pytest.approx(2.5)
    assert topic["stored_bytes"] >= 7 * len(BATCH)
    assert {(each["clients"], each["nodes"]) for each in found["racks"] if each["received"]} == {
        ("", "a"),
        ("a", "a"),
        ("a", "b"),
    }
    assert use["peers"]["far"] > 0
    assert use["peers"]["near"] == 0
    assert use["object_writes"] > 0
    assert use["log_disk_bytes"] == sum(each.wal.capacity_bytes for each in nodes)
    assert found["unreachable"] == []

    async with api_client(second) as api:
        refused = await api.failure("GET", "/cluster/cost", prices="zone = 1")
    assert refused[0] == 400
    assert refused[1].startswith("prices: zone is unknown, expected one of name, ")

    prices = tmp_path / "prices.toml"
    prices.write_text('currency = "EUR"\nzone_gb = 1000000\n')
    own = await read(second, "--prices", str(prices))
    lines = {each["item"]: each for each in own["cost"]["lines"]}
    across = lines["producers across zones"]
    assert across["cost"] == pytest.approx(across["amount"] * 1_000_000)
    assert own["cost"]["prices"]["currency"] == "EUR"
    shown = await run(second, "--prices", str(prices))
    assert "2 zones (a, b); prices in EUR: AWS us-east-1" in shown
    assert "producers across zones" in shown
    assert "Apache Kafka: 3 replicas in 3 zones" in shown


async def test_a_measurement_leaves_out_what_was_before(nodes: list[Node]) -> None:
    first = nodes[0]
    await produce(first, "rack=b", 0, 3)
    found = await read(first, "--for", "1s")
    assert 1 <= found["use"]["measured_s"] < 60
    [topic] = [each for each in found["use"]["topics"] if each["topic"] == "t"]
    assert topic["received"] == {"near": 0, "far": 0, "unknown": 0}
    assert topic["stored_bytes"] == 0


async def test_a_node_that_does_not_know_the_request_is_named(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise LocalRefusal("API key 32015 in version 0 is not relayed")

    first, second = nodes
    monkeypatch.setattr("anabranch.broker.app.node.describe_usage", refuse)
    found = await read(first)
    assert found["unreachable"] == [1, 2]
    assert found["cost"]["cost"] == 0
    assert "not counted, as they do not tell their use: nodes 1, 2" in await run(second)


def test_the_default_prices_can_be_printed_without_a_node() -> None:
    done = CliRunner().invoke(cluster, ["cost", "--print-prices"])
    assert (done.exit_code, done.stdout) == (0, DEFAULT_PRICES)
    assert DEFAULT.name in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--for", "soon"], 2, "'soon' is no duration from a second to a day, such as 60s or 10m"),
        (["--for", "25h"], 2, "'25h' is no duration from a second to a day, such as 60s or 10m"),
        (["--for", "10ms"], 2, "'10ms' is no duration from a second to a day, such as 60s or 10m"),
        (["--prices", "PRICES"], 1, "zone is unknown, expected one of name"),
    ],
)
def test_what_is_wrong_is_said_before_a_node_is_asked(
    arguments: list[str], code: int, reason: str, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("zone = 1")
    given = [str(prices) if each == "PRICES" else each for each in arguments]
    done = CliRunner().invoke(cluster, ["cost", *given, "--admin", "127.0.0.1:1"])
    assert done.exit_code == code
    assert reason in done.stderr


def usage(up_ms: int, received: int, links: int, writes: int, epoch: int = 7) -> DescribeUsageResponse:
    streams = [StreamUsage(stream_id=1, received_bytes=received, sent_bytes=2 * received)]
    return DescribeUsageResponse(
        epoch=epoch,
        up_ms=up_ms,
        racks=[RackUsage(rack="a", streams=streams)],
        links=[LinkUsage(node_id=2, exchanged_bytes=links)],
        stores=[StoreUsage(store="main", writes=writes, reads=3 * writes)],
    )


@pytest.mark.parametrize(
    ("before", "rates"),
    [
        (None, (50, 100, 5, 0.5, 1.5)),
        (usage(10_000, 400, 60, 8), (60, 120, 4, 0.2, 0.6)),
        (usage(20_000, 9_000, 900, 90, epoch=6), (50, 100, 5, 0.5, 1.5)),  # the node has been restarted since
        (usage(10_000, 9_000, 900, 90, epoch=6), (50, 100, 5, 0.5, 1.5)),  # and has run for longer than before
    ],
)
def test_rates_are_those_between_two_answers(before: DescribeUsageResponse | None, rates: tuple[float, ...]) -> None:
    found = NodeRates(usage(20_000, 1_000, 100, 10), before, "b")
    assert (*found.streams["a", 1], found.links[2], found.writes, found.reads) == pytest.approx(rates)


def test_what_a_deleted_topic_had_before_is_no_traffic_of_now() -> None:
    before = counted(10_000, {1: 5_000, 2: 1_000})
    found = NodeRates(counted(20_000, {1: 6_000, DELETED: 1_200}), before, "b")
    assert found.streams == {("a", 1): (100, 0), ("a", DELETED): (20, 0)}


def counted(up_ms: int, received: Mapping[int, int]) -> DescribeUsageResponse:
    streams = [StreamUsage(stream_id=key, received_bytes=size, sent_bytes=0) for key, size in received.items()]
    return DescribeUsageResponse(up_ms=up_ms, racks=[RackUsage(rack="a", streams=streams)])
