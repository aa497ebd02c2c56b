"""Spans of Produce and Fetch requests to a real node: errors, waits, topic ids, and failures of the tracing itself."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.broker.api.handlers.traced import LINKED_RECORDS_MAX, base_offset, records_bytes, trace_contexts
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.tracing.tracer import NodeTracer
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from anabranch.protocol.wire import Records
from tests.support.collector import ReceivedSpan, TraceCollector
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333%d-01"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceCollector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1000000")  # spans arrive at the end
    with TraceCollector() as collector:
        yield collector


@pytest.fixture(params=["open", "guarded"])
async def node(tmp_path: Path, collector: TraceCollector, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """A node that traces all requests, with an authorizer and without."""
    async with running_node(
        tmp_path,
        authorizer_enabled=request.param == "guarded",
        authorizer_super_users="User:ANONYMOUS",
        tracing_enabled=True,
        tracing_endpoint=collector.url,
        tracing_sample_ratio=1,
    ) as running:
        yield running


async def stopped(node: Node, collector: TraceCollector, name: str) -> ReceivedSpan:
    """The only span of that name, after its delivery."""
    assert node.tracing is not None
    tracer = node.upkeep.compaction_context.tracing
    assert isinstance(tracer, NodeTracer)
    await tracer.close()
    (span,) = collector.named(name)
    return span


async def fetch(client: RawClient, offset: int, *, max_wait_ms: int) -> None:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic="t", partitions=[partition])]
    await client.call(FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=topics), 11)


async def test_a_refused_batch_is_an_error_and_has_no_offset(
    node: Node, client: RawClient, collector: TraceCollector
) -> None:
    damaged = batch_of(b"x")
    damaged[-1] ^= 1
    response = await client.produce("t", [damaged])
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.CORRUPT_MESSAGE
    span = await stopped(node, collector, "Produce t")
    assert span.attributes["error.type"] == str(int(ErrorCode.CORRUPT_MESSAGE))
    assert span.attributes["anabranch.batches"] == []
    assert [step.name for step in collector.children(span)] == ["decode", "append"]


async def test_several_batches_and_a_topic_that_is_named_by_its_id(
    node: Node, client: RawClient, collector: TraceCollector
) -> None:
    topic = node.serving.topics.get("t")
    assert topic is not None
    first = build_batch([Record(None, b"x", headers=(("traceparent", PARENT % at),)) for at in (1, 1, 2)])
    data = [PartitionProduceData(index=0, records=first), PartitionProduceData(index=7, records=batch_of(b"y"))]
    request = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic.topic_id, partition_data=data)]
    )
    await client.call(request, 13)
    span = await stopped(node, collector, "Produce t")
    assert span.attributes["anabranch.batches"] == ["t-0@0"]
    assert span.attributes["error.type"] == str(int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert span.links == ("b7ad6b7169203331", "b7ad6b7169203332")


async def test_a_fetch_that_waits_in_vain(node: Node, client: RawClient, collector: TraceCollector) -> None:
    await fetch(client, 0, max_wait_ms=1)
    span = await stopped(node, collector, "Fetch t")
    assert (span.attributes["anabranch.source"], span.attributes["anabranch.size_bytes"]) == ("none", 0)
    assert [step.name for step in collector.children(span)] == ["decode", "read", "wait"]


async def test_a_fetch_that_finds_records_does_not_wait(
    node: Node, client: RawClient, collector: TraceCollector
) -> None:
    for value in (b"a", b"b"):
        await client.produce("t", [batch_of(value)])
    await fetch(client, 1, max_wait_ms=1000)
    span = await stopped(node, collector, "Fetch t")
    assert span.attributes["anabranch.batches"] == ["t-0@1"]
    assert span.attributes["anabranch.source"] == "log cache"
    assert [step.name for step in collector.children(span)] == ["decode", "read"]


async def test_requests_do_not_fail_with_their_tracing(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(NodeTracer, "end_request", fail)
    with capture_logs() as logs:
        for _ in range(2):
            response = await client.produce("t", [batch_of(b"a")])
            assert response.responses[0].partition_responses[0].error_code == 0
        await fetch(client, 0, max_wait_ms=1)
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "tracing failed; only the first failure is logged"
    ]
    assert node.serving.request_failures == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_trace_contexts_are_looked_for_in_the_first_records(codec: Compression) -> None:
    headers = [
        (("traceparent", b"one"), ("tracestate", b"a=1")),
        (("other", b"x"),),
        (("traceparent", None),),
        (("traceparent", b"t\xffo"),),
        *[()] * (LINKED_RECORDS_MAX - 4),
        (("traceparent", b"too late"),),
    ]
    batch = build_batch([Record(None, None, headers=each) for each in headers], compression=codec)
    assert list(trace_contexts(batch)) == [("one", "a=1"), ("t\ufffdo", "")]


@pytest.mark.parametrize("batch", [None, b"", b"\0" * 200, bytes(batch_of(b"x"))[:-1]])
def test_trace_contexts_of_what_is_no_batch(batch: bytes | None) -> None:
    assert list(trace_contexts(batch)) == []


def test_sizes_and_offsets_of_records_in_a_response() -> None:
    batch = bytes(build_batch([Record(None, b"x")]))
    moved = (5).to_bytes(8, "big") + batch[8:]
    some: list[Records] = [moved, memoryview(moved), [moved], (memoryview(moved), batch)]
    assert [base_offset(records) for records in some] == [5] * 4
    none: list[Records | None] = [None, b"", [], ()]
    assert [base_offset(records) for records in none] == [None] * 4
    assert (records_bytes(None), records_bytes(batch), records_bytes([batch, batch])) == (0, len(batch), 2 * len(batch))
