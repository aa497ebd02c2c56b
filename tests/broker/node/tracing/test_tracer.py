"""Spans, their links and their delivery, with a real collector."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.broker.node.settings.errors import SettingsError
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.tracing_area import TracingSettings
from anabranch.broker.node.tracing.export import SpanDelivery, endpoint_of, shown_endpoint
from anabranch.broker.node.tracing.start import TracingError, open_tracer
from anabranch.broker.node.tracing.tracer import CALLS_MAX, LINKS_MAX, NodeTracer, Step
from anabranch.s3stream.model import StreamRange
from tests.support.collector import TraceCollector
from tests.support.memory_store import MemoryStore
from tests.support.node import settings_for
from tests.support.waiting import until

NOW_NS = 1_700_000_000_000_000_000


@pytest.fixture
def collector() -> Iterator[TraceCollector]:
    with TraceCollector() as collector:
        yield collector


@asynccontextmanager
async def tracer(endpoint: str, *, ratio: float = 1.0, chance: float = 0.5, **more: str) -> AsyncIterator[NodeTracer]:
    """A tracer whose spans are delivered at the end. `chance` is each of its random numbers."""
    area = TracingSettings(enabled=True, endpoint=endpoint, sample_ratio=ratio, **more)
    moments = iter(range(NOW_NS, NOW_NS + 10_000_000))
    async with AsyncExitStack() as stack:
        opened = open_tracer(Settings(tracing=area), stack, lambda: chance, lambda: next(moments))
        assert opened is not None
        yield opened


def produce(tracer: NodeTracer, stream_id: int, offset: int) -> str:
    """Trace a request that appends a batch; returns the id of its span."""
    span = tracer.begin_request("Produce t", tracer.now_ns())
    tracer.appended(stream_id, offset, span)
    tracer.end_request(span, tracer.now_ns(), {}, ())
    return format(span.get_span_context().span_id, "016x")


def run(stream_id: int, start: int, end: int) -> StreamRange:
    return StreamRange(stream_id, start, end, end - start, 1, 0)


async def test_spans_arrive_with_times_attributes_and_steps(collector: TraceCollector) -> None:
    async with tracer(collector.url) as made:
        span = made.begin_request("Produce t", 1_000)
        made.end_request(span, 9_000, {"anabranch.topics": ["t"]}, [Step("append", 2_000, 3_000)])
    (received,) = collector.named("Produce t")
    (step,) = collector.children(received)
    assert (received.start_ns, received.end_ns, received.attributes) == (1_000, 9_000, {"anabranch.topics": ["t"]})
    assert (step.name, step.start_ns, step.end_ns) == ("append", 2_000, 3_000)
    assert received.resource["service.name"] == "anabranch"
    assert (made.stats.spans, made.stats.delivered) == (2, 2)


async def test_an_upload_links_to_the_batches_in_its_runs_alone(collector: TraceCollector) -> None:
    async with tracer(collector.url, ratio=0.0) as made:
        before, carried, later, other = (produce(made, *at) for at in ((1, 4), (1, 5), (1, 10), (2, 5)))
        with made.upload([run(1, 5, 10)], 100):
            pass
        with made.upload([run(1, 10, 20), run(2, 0, 10)], 100):
            pass
        with made.upload([run(1, 20, 30)], 100):
            pass
    first, second = collector.named("upload")
    assert first.links == (carried,)
    assert second.links == (later, other)
    assert before not in {*first.links, *second.links}


async def test_a_compaction_links_to_what_wrote_its_inputs(collector: TraceCollector) -> None:
    async with tracer(collector.url, ratio=0.0) as made:
        produce(made, 1, 0)
        with made.upload([run(1, 0, 1)], 100), made.step("commit"):
            made.committed([11, 12])
        with made.compaction("sets", [11, 12, 13]):
            made.committed([14])
        with made.compaction("join", [14]):
            made.committed([15])
        with made.compaction("join", [13]):
            made.committed([16])
        with made.compaction("join", [16]):
            pass
    (upload,), (sets,), (join,) = (collector.named(name) for name in ("upload", "compaction sets", "compaction join"))
    assert (sets.links, join.links) == ((upload.span_id,), (sets.span_id,))


async def test_background_work_is_sampled_too(collector: TraceCollector) -> None:
    for ratio in (0.4, 0.6):
        async with tracer(collector.url, ratio=ratio, chance=0.5) as made:
            assert made.is_sampled() is (ratio > 0.5)
            with made.upload([run(1, 0, 1)], 100), made.step("commit"):
                pass
        assert [span.name for span in collector.spans] == ([] if ratio < 0.5 else ["commit", "upload"])


async def test_links_are_limited(collector: TraceCollector) -> None:
    async with tracer(collector.url) as made:
        for offset in range(LINKS_MAX + 1):
            produce(made, 1, offset)
        with made.upload([run(1, 0, LINKS_MAX + 1)], 100):
            pass
    (upload,) = collector.named("upload")
    assert len(upload.links) == LINKS_MAX


async def test_calls_to_stores_belong_to_the_step_that_makes_them_and_are_limited(collector: TraceCollector) -> None:
    async with tracer(collector.url) as made:
        store = made.wrap_stores({"main": MemoryStore("main")})["main"]
        await store.put("a", [b"before"], writer_id="w")
        with made.upload([run(1, 0, 1)], 100):
            with made.step("write objects"):
                await asyncio.create_task(store.put("b", [b"x", b"yz"], writer_id="w"))
            for _ in range(CALLS_MAX):
                await store.get("b", 0, 1)
    (upload,) = collector.named("upload")
    (write, *gets) = collector.children(upload)
    (put,) = collector.children(write)
    assert put.attributes == {"anabranch.store": "main", "anabranch.object_key": "b", "anabranch.size_bytes": 3}
    assert len(gets) == CALLS_MAX - 1
    assert upload.attributes["anabranch.store_calls"] == CALLS_MAX + 1


async def test_what_fails_says_so_without_the_message(collector: TraceCollector) -> None:
    async with tracer(collector.url) as made:
        with pytest.raises(LookupError), made.upload([run(1, 0, 1)], 100), made.step("commit"):
            raise LookupError("secret")
    for span in collector.spans:
        assert span.is_failed
        assert span.attributes["error.type"] == "LookupError"
    assert b"secret" not in b"".join(collector.bodies)


@pytest.mark.parametrize(
    ("traceparent", "is_valid"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("nonsense", False),
        ("\ufffd" * 100_000, False),
    ],
)
async def test_trace_contexts_of_clients(collector: TraceCollector, traceparent: str, is_valid: bool) -> None:
    async with tracer(collector.url) as made:
        assert (made.link_to(traceparent, "vendor=1") is not None) is is_valid


async def test_variables_of_the_sdk(collector: TraceCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20token")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "from the environment")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "zone=a")
    async with tracer("") as made:
        produce(made, 1, 0)
    async with tracer("", service_name="from the settings") as made:
        produce(made, 1, 0)
    first, second = collector.spans
    assert (first.resource["service.name"], first.resource["zone"]) == ("from the environment", "a")
    assert second.resource["service.name"] == "from the settings"
    assert {headers["authorization"] for headers in collector.headers} == {"Bearer token"}


async def test_a_full_queue_drops_spans_and_counts_them(
    collector: TraceCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1000000")
    taken, hold = threading.Event(), threading.Event()
    export = SpanDelivery.export

    def export_later(self: SpanDelivery, spans: object) -> object:
        taken.set()
        hold.wait()
        return export(self, spans)  # type: ignore[arg-type]

    monkeypatch.setattr(SpanDelivery, "export", export_later)
    async with tracer(collector.url) as made:
        for _ in range(10):
            produce(made, 1, 0)
        assert await asyncio.to_thread(taken.wait, 60)  # a batch of ten: the queue is empty, but they count as queued
        for _ in range(5):
            produce(made, 1, 0)
        assert (made.stats.spans, made.stats.overflowed) == (15, 5)
        hold.set()
    assert (made.stats.delivered, made.stats.undelivered) == (10, 0)
    assert len(collector.spans) == 10


async def test_a_collector_that_refuses_is_logged_once_and_once_more_when_it_accepts(
    collector: TraceCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    with capture_logs() as logs:
        async with tracer(f"{collector.url}/v1/traces") as made:
            for refuses, count in ((True, 3), (False, 2)):
                collector.refuses = refuses
                for _ in range(count):
                    before = made.stats.delivered + made.stats.undelivered
                    produce(made, 1, 0)
                    await until(lambda before=before: made.stats.delivered + made.stats.undelivered > before)  # type: ignore[misc]
    assert (made.stats.delivered, made.stats.undelivered) == (2, 3)
    assert [(line["log_level"], line["event"].partition(":")[0]) for line in logs] == [
        ("warning", "traces cannot be delivered"),
        ("info", "traces are delivered again"),
    ]
    assert logs[0]["collector"] == collector.url


async def test_the_end_does_not_wait_for_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens at the address: a delivery is repeated after growing pauses, for an hour."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3600")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr("anabranch.broker.node.tracing.tracer.FLUSH_S", 0.01)
    async with tracer("http://127.0.0.1:1") as made:
        produce(made, 1, 0)
        closing = asyncio.create_task(made.close())
        await until(lambda: not [each for each in threading.enumerate() if each.name.startswith("Otel")], pause_s=0.01)
        await closing
    assert (made.stats.spans, made.stats.undelivered) == (1, 1)


async def test_an_invalid_variable_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    with pytest.raises(TracingError, match="OTEL_BSP_MAX_QUEUE_SIZE: expected a number of spans above 0, found 'many'"):
        async with tracer(""):
            pass


def test_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        endpoint_of("http://collector:4318")
        == endpoint_of("http://collector:4318/")
        == ("http://collector:4318/v1/traces")
    )
    assert endpoint_of("https://collector/otlp") == "https://collector/otlp"
    assert shown_endpoint("") == "http://localhost:4318"
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:secret@collector:99999/x")
    assert shown_endpoint("") == "https://collector"


@pytest.mark.parametrize("endpoint", ["collector:4318", "grpc://collector", "http://user:secret@collector", "http://"])
def test_an_endpoint_that_is_none(tmp_path: Path, endpoint: str) -> None:
    with pytest.raises(SettingsError, match=r"tracing\.endpoint"):
        settings_for(tmp_path, tracing_endpoint=endpoint)
