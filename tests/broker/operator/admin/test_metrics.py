"""The metrics page: formats, agreement with the components' counters, limits, and what clients may write into it."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from anabranch.broker.cluster.node import Node
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.share.interface import InitialState, ShareKey
from anabranch.broker.kafka.telemetry.otlp import Point
from anabranch.broker.node.net.server import Latency
from anabranch.broker.operator.admin.metrics import cluster, exposition, storage, tables
from anabranch.broker.operator.admin.metrics import node as node_area
from anabranch.broker.operator.admin.metrics.definitions import (
    SAMPLES_PER_PIECE,
    Definition,
    counter,
    histogram,
)
from anabranch.broker.operator.admin.metrics.exposition import DEFINITIONS, scrape
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.support.metrics import Samples, metrics_of
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PARTITIONS = 3 * SAMPLES_PER_PIECE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """A node with a topic of many partitions, three records in one of them, and two groups."""
    async with (
        running_node(tmp_path_factory.mktemp("node")) as running,
        raw_client(running.bootstrap) as client,
    ):
        await running.serving.topic_commands.create("many", partitions=PARTITIONS, configs={})
        await running.serving.topic_commands.create("t", partitions=2, configs={})
        for _ in range(3):
            await client.produce("t", [batch_of(b"x")], partition=1)
        await client.call(FindCoordinatorRequest(coordinator_keys=["any"]))
        yield running


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("table", "stats"), [*node_area.OF_STATS, *storage.OF_STATS, *tables.OF_STATS], ids=lambda each: type(each).__name__
)
async def test_each_counter_of_a_component_has_a_metric(table: Mapping[str, Definition], stats: Any) -> None:
    numbers = {field.name for field in fields(stats) if isinstance(getattr(stats, field.name), int)}
    assert numbers == table.keys()


async def test_names_are_unique_and_described() -> None:
    names = [each.name for each in DEFINITIONS]
    assert len(names) == len(set(names))
    assert all(each.help.endswith(".") for each in DEFINITIONS)


async def test_both_formats_have_the_same_samples_under_one_header_each(node: Node) -> None:
    text, openmetrics = await scrape(node), await scrape(node, OPENMETRICS)
    assert text.content_type.startswith("text/plain; version=0.0.4")
    assert openmetrics.content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.body.endswith(b"\n# EOF\n")
    assert openmetrics.body.count(b"# EOF") == 1
    found = []
    for parse, body in ((parse_text, text.body), (parse_openmetrics, openmetrics.body)):
        families = list(parse(body.decode()))
        assert len(families) == len({each.name for each in families})
        found.append([(each.name, each.labels) for family in families for each in family.samples])
    assert found[0] == found[1]
    headers = [line for line in text.body.decode().splitlines() if line.startswith("# TYPE")]
    assert len(headers) == len(set(headers))


@pytest.mark.parametrize(
    "accept",
    ["", "*/*", "text/html", "application/openmetrics-text;version=abc", "application/openmetrics-text;version=0.0.1"],
)
async def test_other_formats_get_the_text_format(node: Node, accept: str) -> None:
    assert (await scrape(node, accept)).content_type == "text/plain; version=0.0.4; charset=utf-8"


async def test_the_loop_goes_on_between_the_pieces_of_a_scrape(node: Node) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    samples = (await scrape(node)).body.count(b"\nkafka_topic_partition_")
    counting.cancel()
    assert samples > 3 * PARTITIONS
    assert turns >= samples // SAMPLES_PER_PIECE


async def test_the_walk_over_all_partitions_pauses_between_topics(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "WALKED_MAX", 1)
    monkeypatch.setattr(exposition, "PIECE_S", 0)
    pauses: list[int] = []

    async def sleep(_delay: float) -> None:
        pauses.append(len(walked))

    walked: list[Metric] = []
    collect = cluster.collect

    def collecting(serving: Serving) -> Iterator[Metric]:
        for metric in collect(serving):
            walked.append(metric)
            yield metric

    monkeypatch.setattr(cluster, "collect", collecting)
    monkeypatch.setattr(exposition, "asyncio", SimpleNamespace(sleep=sleep))
    assert b"anabranch_partitions_leaderless 0.0" in (await scrape(node)).body
    empty = [number for number, metric in enumerate(walked, 1) if metric.name == cluster.LEADERLESS.name][:-1]
    assert len(empty) == len(list(node.serving.topics))
    assert set(empty) <= set(pauses)


async def test_partitions_have_their_offsets_under_the_names_of_kafkas_exporter(node: Node) -> None:
    found = await metrics_of(node)
    where = {"topic": "t", "partition": "1"}
    assert found.value("kafka_topic_partition_current_offset", **where) == 3
    assert found.value("kafka_topic_partition_oldest_offset", **where) == 0
    assert found.value("kafka_topic_partition_leader", **where) == node.serving.node_id
    assert found.value("anabranch_partition_appended_bytes_total", **where) > 0
    assert found.value("kafka_topic_partitions", topic="t") == 2
    assert found.value("kafka_brokers") == 1
    assert found.value("anabranch_cluster_nodes", state="up") == 1
    assert found.value("anabranch_partitions_led") == found.value("anabranch_partitions")
    assert (
        found.value("anabranch_partitions") == sum(len(topic.partitions) for topic in node.serving.topics) > PARTITIONS
    )
    assert found.value("anabranch_partitions_leaderless") == 0


async def test_latencies_are_cumulative_buckets_of_the_histogram_that_the_node_keeps(node: Node) -> None:
    found = await metrics_of(node)
    latency = node.ports.clients.latency[0]
    buckets = [
        value for labels, value in found.of("anabranch_request_seconds_bucket").items() if ("api", "Produce") in labels
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == latency.count == found.value("anabranch_request_seconds_count", api="Produce") == 3
    assert found.value("anabranch_request_seconds_sum", api="Produce") == latency.seconds
    appended = found.of("anabranch_wal_append_seconds_bucket")
    assert appended[("le", "+Inf"),] == sum(node.wal.stats.append_latency_us) > 0
    assert found.value("anabranch_wal_append_seconds_count") == appended[("le", "+Inf"),]
    total = found.value("anabranch_wal_append_seconds_sum")
    assert 0 < total == node.wal.stats.append_latency_s


async def test_a_bucket_has_the_durations_up_to_its_bound() -> None:
    latency = Latency()
    for seconds in (0.000_001, 0.000_127, 0.000_128, 0.001, 16.0, 17.0, 1000.0):
        latency.observe(seconds)
    metric = histogram("t_seconds", "T.", "api").buckets([(("x",), latency.buckets, latency.seconds)])
    buckets = {each.labels["le"]: each.value for each in metric.samples if "le" in each.labels}
    assert (buckets["0.000128"], buckets["0.000256"], buckets["0.001024"], buckets["16.777216"]) == (2, 3, 4, 5)
    assert buckets["+Inf"] == 7


@pytest.mark.parametrize("limit", [0, 5])
async def test_partitions_and_groups_beyond_the_limit_are_left_out_and_counted(tmp_path: Path, limit: int) -> None:
    async with running_node(
        tmp_path, admin_metrics_partitions_max=limit, admin_metrics_offsets_max=2 * limit
    ) as running:
        await running.serving.topic_commands.create("a", partitions=4, configs={})
        await running.serving.topic_commands.create("b", partitions=4, configs={})
        async with raw_client(running.bootstrap) as client:
            await client.call(FindCoordinatorRequest(coordinator_keys=["any"]))
            for number in range(6):
                await client.commit_offset(f"g{number}", "b", 3, number)
        partition = running.serving.topics.partition("b", 0)
        keys = [ShareKey(f"s{number}", partition.topic_id, 0) for number in range(12)]
        await running.serving.share_persister.initialize(dict.fromkeys(keys, InitialState(0, 0)))
        shares = [running.serving.share_partitions.open(key.group_id, partition) for key in keys]
        await until(lambda: all(each.is_loaded for each in shares))
        found = await metrics_of(running)
        assert len(found.of("anabranch_share_lag")) == 2 * limit
        assert found.value("anabranch_metrics_left_out", what="share_partitions") == 12 - 2 * limit
        assert found.value("anabranch_share_states") == 12
        assert found.value("anabranch_share_state_writes_total", record="snapshot") == 12
        assert found.value("anabranch_share_state_writes_total", record="update") == 12  # by the leaders that read them
        assert found.value("anabranch_share_state_writes_pending") == 0
        assert found.of("anabranch_groups") == {(("state", "Empty"), ("type", "classic")): 6}
        assert len(found.of("kafka_topic_partition_current_offset")) == limit
        assert len(found.of("kafka_consumergroup_current_offset")) == limit
        led = found.value("anabranch_partitions_led")
        assert found.value("anabranch_metrics_left_out", what="partitions") == led - limit
        assert found.value("anabranch_metrics_left_out", what="groups") == 6 - limit
        if limit:
            assert found.get("kafka_topic_partition_current_offset", topic="a", partition="3") is not None


async def test_what_clients_name_cannot_forge_samples(node: Node) -> None:
    forged = 'x"} 1\nanabranch_writable 0\n\\'
    async with raw_client(node.bootstrap) as client:
        await client.commit_offset(forged, "t", 1, 1)
    point = Point(
        "writable", 7.0, is_sum=False, is_delta=False, attributes={"__name__": "anabranch_writable", "le": "1"}
    )
    node.serving.telemetry.series.put(
        b"1", {"client_id": forged}, [point], now_ms=node.serving.now_ms(), interval_ms=1000
    )
    for accept, parse in (("", parse_text), (OPENMETRICS, parse_openmetrics)):
        body = (await scrape(node, accept)).body.decode()
        families = {each.name: each for each in parse(body)}
        assert [each.value for each in families["anabranch_writable"].samples] == [1.0]
        (pushed,) = families["anabranch_client_writable"].samples
        assert (pushed.value, pushed.labels["_name__"], pushed.labels["le"]) == (7.0, "anabranch_writable", "1")
        groups = {each.labels["consumergroup"] for each in families["kafka_consumergroup_lag"].samples}
        assert forged in groups


async def test_a_lag_is_the_distance_to_the_end(node: Node) -> None:
    await node.serving.topic_commands.create("gone", partitions=1, configs={})
    async with raw_client(node.bootstrap) as client:
        await client.commit_offset("reader", "t", 1, 1)
        await client.commit_offset("ahead", "t", 1, 9)
        await client.commit_offset("reader", "gone", 0, 1)
    await node.serving.topic_commands.delete("gone")
    found: Samples = await metrics_of(node)
    where = {"topic": "t", "partition": "1"}
    assert found.value("kafka_consumergroup_lag", consumergroup="reader", **where) == 2
    assert found.value("kafka_consumergroup_lag", consumergroup="ahead", **where) == 0
    assert found.value("kafka_consumergroup_current_offset", consumergroup="reader", **where) == 1
    assert found.value("kafka_consumergroup_members", consumergroup="reader") == 0


async def test_a_counter_is_named_as_one() -> None:
    with pytest.raises(AssertionError):
        counter("anabranch_things", "Things.")
