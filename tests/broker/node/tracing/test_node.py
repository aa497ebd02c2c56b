"""A record's way through a real node, as a collector sees it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.collector import CLIENT, SERVER, ReceivedSpan, TraceCollector, otel_collector
from tests.support.node import NodeProcess
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.interop

CLIENT_SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-0af7651916cd43dd8448eb211c80319c-{CLIENT_SPAN}-01"
SECRETS = (b"secret-key", b"secret-value", b"secret-header")
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
"""Variables of a node that sends its spans at once."""


def send(node: NodeProcess, client_id: str, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap, "client.id": client_id, **settings})
    key, value, header = SECRETS
    producer.produce("orders", value, key, headers=[("traceparent", TRACEPARENT.encode()), ("other", header)])
    assert producer.flush(WAIT_S) == 0


def receive(node: NodeProcess, client_id: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "client.id": client_id, "group.id": "unused"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    try:
        found = [consumer.poll(WAIT_S) for _ in range(count)]
        assert all(each is not None and each.error() is None and each.value() == SECRETS[1] for each in found)
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceCollector]:
    """All spans of a node that has received, uploaded and compacted records, and has sent them from three places."""
    with pytest.MonkeyPatch.context() as patch, TraceCollector() as collector:
        for name, value in SOON.items():
            patch.setenv(name, value)
        with NodeProcess(
            tmp_path_factory.mktemp("traced"),
            node_id=7,
            storage_upload_age_ms=50,
            tracing_enabled=True,
            tracing_endpoint=collector.url,
            tracing_sample_ratio=1,
            tracing_service_name="shop",
        ) as node:
            send(node, "first")
            node.wait_uploaded()
            send(node, "second", **{"compression.type": "zstd"})
            send(node, "unanswered", acks=0)
            receive(node, "from-log-cache", 3)
            node.wait_uploaded()
            assert node.compact()["commits"]
            assert node.terminate() == 0
            node.start()
            receive(node, "from-store", 3)
            receive(node, "from-block-cache", 3)
            assert node.terminate() == 0
        yield collector


def request(collector: TraceCollector, client_id: str) -> ReceivedSpan:
    """The first request about records of a client."""
    spans = [*collector.named("Produce orders"), *collector.named("Fetch orders")]
    return next(
        span
        for span in spans
        if span.attributes["messaging.client.id"] == client_id and span.attributes["anabranch.size_bytes"]
    )


def test_a_produce_request_and_its_steps(collector: TraceCollector) -> None:
    span = request(collector, "first")
    assert (span.kind, span.parent_id, span.is_failed) == (SERVER, "", False)
    about = {name: value for name, value in span.attributes.items() if name != "anabranch.size_bytes"}
    assert isinstance(about.pop("anabranch.correlation_id"), int)
    assert about.pop("anabranch.api_version") >= 3
    assert about == {
        "messaging.system": "kafka",
        "messaging.operation.name": "Produce",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.client.id": "first",
        "anabranch.topics": ["orders"],
        "anabranch.batches": ["orders-0@0"],
        "anabranch.acks": -1,
    }
    steps = collector.children(span)
    assert [step.name for step in steps] == ["decode", "append", "wait for the log"]
    moments = [moment for step in steps for moment in (step.start_ns, step.end_ns)]
    assert moments == sorted(moments)
    assert (moments[0], moments[-1]) == (span.start_ns, span.end_ns)
    assert span.resource["service.name"] == "shop"
    assert span.resource["service.instance.id"] == "anabranch-7"


@pytest.mark.parametrize("client_id", ["first", "second", "unanswered"])
def test_a_produce_request_links_to_the_span_that_its_record_names(collector: TraceCollector, client_id: str) -> None:
    assert request(collector, client_id).links == (CLIENT_SPAN,)


def test_a_request_that_expects_no_answer_waits_for_nothing(collector: TraceCollector) -> None:
    span = request(collector, "unanswered")
    assert span.attributes["anabranch.acks"] == 0
    assert [step.name for step in collector.children(span)] == ["decode", "append"]


def test_uploads_link_to_the_requests_whose_records_they_carry(collector: TraceCollector) -> None:
    uploads = collector.named("upload")
    first, second = (request(collector, name) for name in ("first", "second"))
    assert first.span_id in uploads[0].links
    assert [second.span_id in upload.links for upload in uploads].count(True) == 1
    assert second.span_id not in uploads[0].links
    write, commit = collector.children(uploads[0])
    assert (write.name, commit.name) == ("write objects", "commit")
    (put,) = collector.children(write)
    assert (put.name, put.kind) == ("PUT", CLIENT)
    assert put.attributes["anabranch.store"] == "local"
    assert put.attributes["anabranch.object_key"]


def test_a_compaction_links_to_the_uploads_that_wrote_its_inputs(collector: TraceCollector) -> None:
    uploads = {upload.span_id for upload in collector.named("upload")}
    span = collector.named("compaction sets")[0]
    assert span.links
    assert set(span.links) <= uploads
    names = [child.name for child in collector.children(span)]
    assert {"GET", "PUT", "commit"} <= set(names)
    assert span.attributes["anabranch.objects_in"] >= len(span.links)
    assert span.attributes["anabranch.objects_out"] >= 1


def test_fetches_say_where_the_bytes_came_from(collector: TraceCollector) -> None:
    found = {
        name: request(collector, name).attributes["anabranch.source"]
        for name in ("from-log-cache", "from-store", "from-block-cache")
    }
    assert found == {"from-log-cache": "log cache", "from-store": "object store", "from-block-cache": "block cache"}
    children = collector.children(request(collector, "from-store"))
    assert "load" in [child.name for child in children]
    assert "GET" in [child.name for child in children if child.kind == CLIENT]


def test_nothing_of_a_record_is_sent(collector: TraceCollector) -> None:
    everything = b"".join(collector.bodies)
    assert b"orders" in everything
    assert not [secret for secret in SECRETS if secret in everything]


def test_the_opentelemetry_collector_takes_the_spans(tmp_path: Path) -> None:
    with (
        TraceCollector() as behind,
        otel_collector(behind.url) as url,
        NodeProcess(tmp_path, tracing_enabled=True, tracing_endpoint=url, tracing_sample_ratio=1) as node,
    ):
        send(node, "any")
        assert node.terminate() == 0
        (span,) = behind.named("Produce orders")
        assert span.links == (CLIENT_SPAN,)
        assert [step.name for step in behind.children(span)] == ["decode", "append", "wait for the log"]
        assert span.resource["service.instance.id"] == "anabranch-1"


def test_a_ratio_of_zero_traces_nothing(tmp_path: Path) -> None:
    with (
        TraceCollector() as collector,
        NodeProcess(
            tmp_path,
            storage_upload_age_ms=50,
            tracing_enabled=True,
            tracing_endpoint=collector.url,
            tracing_sample_ratio=0,
        ) as node,
    ):
        send(node, "any")
        receive(node, "any", 1)
        node.wait_uploaded()
        assert traced(node)["spans"] == 0
        assert node.terminate() == 0
        assert not collector.bodies


def traced(node: NodeProcess) -> dict[str, int]:
    """The node's counters of spans."""
    prefix, found = "anabranch_tracing_", {}
    for line in node.ask("/metrics").decode().splitlines():
        if line.startswith(prefix):
            name, value = line.removeprefix(prefix).split()
            found[name.removesuffix("_total").removesuffix("_spans")] = int(float(value))
    return found


@pytest.fixture(params=["refused", "silent"])
def away(request: pytest.FixtureRequest) -> Iterator[str]:
    """A port that refuses connections, or one that accepts them and never answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        if request.param == "silent":
            bound.listen()
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def test_a_node_serves_and_ends_while_its_collector_is_away(
    tmp_path: Path, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SOON, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.1"}.items():
        monkeypatch.setenv(name, value)
    with NodeProcess(tmp_path, tracing_enabled=True, tracing_endpoint=away, tracing_sample_ratio=1) as node:
        for _ in range(3):
            before = traced(node)["undelivered"]
            send(node, "any")
            wait_until(lambda before=before: traced(node)["undelivered"] > before, "spans are dropped")  # type: ignore[misc]
        receive(node, "any", 3)
        assert traced(node)["delivered"] == 0
        assert node.terminate() == 0
        (line,) = [line for line in node.lines if "trace" in line or "opentelemetry" in line]
        assert (
            json.loads(line)["event"]
            == "traces cannot be delivered: spans are dropped until the collector accepts them"
        )
        assert json.loads(line)["collector"] == away


OFF = """
import asyncio, sys
from pathlib import Path
from confluent_kafka import Producer
from anabranch.broker.app import run_node
from tests.support.node import settings_for

async def main() -> None:
    async with run_node(settings_for(Path(sys.argv[1]))) as node:
        await asyncio.to_thread(work, node.bootstrap)
        await node.serving.storage.flush()
        await node.upkeep.compaction.run_once()

def work(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("t", b"x")
    assert producer.flush(60) == 0

asyncio.run(main())
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_a_node_without_traces_does_not_load_opentelemetry(tmp_path: Path) -> None:
    assert python(OFF, str(tmp_path)).stdout.splitlines()[-1] == "[]"


MISSING = """
import sys
sys.modules["opentelemetry"] = None
from anabranch.__main__ import main
sys.argv[0] = "anabranch"
main()
"""


def test_a_missing_package_is_one_line(tmp_path: Path) -> None:
    arguments = ["serve", "--data-dir", str(tmp_path / "data"), "--port", "0", "--admin-port", "0"]
    ended = python(MISSING, *arguments, "--tracing-enabled", "true", code=1)
    assert ended.stderr == (
        "Error: setting tracing.enabled needs opentelemetry, which is missing or too old: "
        "pip install 'anabranch[otel]', or set tracing.enabled to false\n"
    )


def python(program: str, *arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own, to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_")}
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=Path(__file__).parents[4],
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    return ended
