"""The spans of a node: of requests, uploads, compactions and calls to object stores, and the links between them.

A record's way crosses many requests and much background work, so it is not one trace but several that are linked: an
upload links to the requests whose records it carries, and a compaction to the work that wrote its inputs. Which those
are is found by offsets and object ids, of which a bounded number is remembered.

The decision to trace is made once, at the beginning: by chance for a request, and for background work also if it links
to something that is traced. No spans are created for untraced work.
"""

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from typing import Final, NamedTuple

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from anabranch.broker.node.settings.model import NodeSettings
from anabranch.broker.node.settings.tracing_area import TracingSettings
from anabranch.broker.node.tracing.export import FLUSH_S, SpanDelivery, SpanQueue, endpoint_of
from anabranch.broker.node.tracing.stats import TracingStats
from anabranch.broker.node.tracing.store import TracedStore
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tracing import OffsetRange

Attribute = str | int | bool | Sequence[str]
Attributes = Mapping[str, Attribute]

LINKS_MAX: Final = 32
"""Links of one span."""
BATCHES_REMEMBERED: Final = 1024
"""Batches of traced requests that may wait for their upload."""
OBJECTS_REMEMBERED: Final = 4096
"""Objects written by traced work that may wait for their compaction."""
CALLS_MAX: Final = 64
"""Calls to object stores that one piece of work shows. A compaction may make thousands."""
DEFAULT_SERVICE: Final = "anabranch"


class Step(NamedTuple):
    """A part of a request that is over. Times are in ns since 1970."""

    name: str
    start_ns: int
    end_ns: int


class _Batch(NamedTuple):
    """A batch of a traced request."""

    stream_id: int
    offset: int
    context: SpanContext


@dataclass(slots=True, eq=False)
class Work:
    """Work under way that is traced: a cold read of a request, an upload, a compaction."""

    span: Span
    calls: int = 0
    """Calls to object stores."""


class _Place(NamedTuple):
    """The place in a trace at which the current context is."""

    work: Work
    parent: Context


_place: ContextVar[_Place | None] = ContextVar("place in a trace", default=None)


class NodeTracer:
    """Creates the spans of one node. All methods are called by the loop's thread."""

    def __init__(
        self, settings: TracingSettings, node: NodeSettings, random: Callable[[], float], now_ns: Callable[[], int]
    ) -> None:
        """Start the delivery. Raises ValueError if a variable of the SDK is invalid."""
        self.stats = TracingStats()
        self.now_ns = now_ns
        self._random = random
        self._ratio = settings.sample_ratio
        self._delivery = SpanDelivery(endpoint_of(settings.endpoint), self.stats)
        self._queue = SpanQueue(self._delivery, self.stats)
        provider = TracerProvider(ALWAYS_ON, _resource(settings, node), shutdown_on_exit=False)
        provider.add_span_processor(self._queue)
        self._spans = provider.get_tracer("anabranch", version("anabranch"))
        self._propagator = TraceContextTextMapPropagator()
        self._batches: deque[_Batch] = deque(maxlen=BATCHES_REMEMBERED)
        self._writers: OrderedDict[int, SpanContext] = OrderedDict()
        """Span of the work that has written an object, by its id."""
        self._has_failed = False

    async def close(self) -> None:
        """Deliver the remaining spans, for a limited time."""
        give_up = asyncio.get_running_loop().call_later(FLUSH_S, self._delivery.shutdown)
        try:
            await asyncio.to_thread(self._queue.shutdown)
        finally:
            give_up.cancel()

    def failed(self, error: Exception) -> None:
        """Log a bug in tracing, once: the traced work must not fail with it."""
        if not self._has_failed:
            self._has_failed = True
            structlog.get_logger("node").error("tracing failed; only the first failure is logged", exc_info=error)

    # requests

    def is_sampled(self) -> bool:
        """Decide by chance whether to trace."""
        return self._random() < self._ratio

    def begin_request(self, name: str, start_ns: int, links: Sequence[Link] = ()) -> Span:
        """Begin the span of a request. `end_request` ends it."""
        return self._spans.start_span(name, Context(), SpanKind.SERVER, start_time=start_ns, links=links)

    def end_request(self, span: Span, end_ns: int, attributes: Attributes, steps: Iterable[Step]) -> None:
        """End the span of a request, with its steps as children."""
        parent = set_span_in_context(span, Context())
        for step in steps:
            self._spans.start_span(step.name, parent, start_time=step.start_ns).end(step.end_ns)
        span.set_attributes(attributes)
        span.end(end_ns)

    def link_to(self, traceparent: str, tracestate: str) -> Link | None:
        """Return a link to the span that a W3C trace context names; None if it is invalid."""
        carrier = {"traceparent": traceparent, "tracestate": tracestate}
        context = get_current_span(self._propagator.extract(carrier, Context())).get_span_context()
        return Link(context) if context.is_valid else None

    def appended(self, stream_id: int, offset: int, span: Span) -> None:
        """Remember a batch of a traced request, for the upload that will carry it."""
        self._batches.append(_Batch(stream_id, offset, span.get_span_context()))

    @contextmanager
    def inside(self, work: Work) -> Iterator[None]:
        """Make the calls to stores that begin here, or in tasks started here, children of the work's span."""
        token = _place.set(_Place(work, set_span_in_context(work.span, Context())))
        try:
            yield
        finally:
            _place.reset(token)

    # background work: the interface of s3stream and compaction

    @contextmanager
    def upload(self, runs: Iterable[OffsetRange], size_bytes: int) -> Iterator[None]:
        """Trace an upload if it carries batches of traced requests, or by chance."""
        links = self._take_batches(runs)
        with self._work("upload", links, {"anabranch.size_bytes": size_bytes}):
            yield

    @contextmanager
    def compaction(self, stage: str, inputs: Iterable[int]) -> Iterator[None]:
        """Trace a compaction if it replaces objects that traced work has written, or by chance."""
        object_ids = list(inputs)
        links = _links(self._writers[each] for each in object_ids if each in self._writers)
        with self._work(f"compaction {stage}", links, {"anabranch.objects_in": len(object_ids)}):
            yield

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Trace a step of the current work, if that is traced."""
        place = _place.get()
        if place is None:
            yield
            return
        span = self._spans.start_span(name, place.parent, start_time=self.now_ns())
        token = _place.set(place._replace(parent=set_span_in_context(span, Context())))
        try:
            with self._ending(span):
                yield
        finally:
            _place.reset(token)

    def committed(self, object_ids: Iterable[int]) -> None:
        """Remember the objects that the current work has written, for the compaction that will replace them."""
        place = _place.get()
        if place is None:
            return
        written = list(object_ids)
        span, writers = place.work.span, self._writers
        span.set_attribute("anabranch.objects_out", len(written))
        for object_id in written:
            writers[object_id] = span.get_span_context()
        while len(writers) > OBJECTS_REMEMBERED:
            writers.popitem(last=False)

    @contextmanager
    def _work(self, name: str, links: Sequence[Link], attributes: Attributes) -> Iterator[None]:
        if not links and not self.is_sampled():
            yield
            return
        span = self._spans.start_span(name, Context(), links=links, attributes=attributes, start_time=self.now_ns())
        work = Work(span)
        with self._ending(span), self.inside(work):
            try:
                yield
            finally:
                span.set_attribute("anabranch.store_calls", work.calls)

    def _take_batches(self, runs: Iterable[OffsetRange]) -> list[Link]:
        """Return links to the requests whose batches are in the runs, and forget these batches."""
        if not self._batches:
            return []
        by_stream = {run.stream_id: run for run in runs}
        carried = []
        left = []
        for batch in self._batches:
            run = by_stream.get(batch.stream_id)
            if run is None or batch.offset >= run.end_offset:
                left.append(batch)
            elif batch.offset >= run.start_offset:
                carried.append(batch.context)
        self._batches.clear()
        self._batches.extend(left)
        return _links(carried)

    @contextmanager
    def _ending(self, span: Span) -> Iterator[None]:
        """End a span with the body, as failed if the body fails. Messages of errors may name anything: not traced."""
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            span.end(self.now_ns())

    # object stores

    def wrap_stores(self, stores: Mapping[str, ObjectStore]) -> Mapping[str, ObjectStore]:
        """Return stores whose calls are traced if the calling work is traced."""
        return {name: TracedStore(store, self._call) for name, store in stores.items()}

    @contextmanager
    def _call(self, name: str, store: str, key: str, size_bytes: int) -> Iterator[None]:
        place = _place.get()
        if place is None:
            yield
            return
        place.work.calls += 1
        if place.work.calls > CALLS_MAX:
            yield
            return
        attributes: Attributes = {
            "anabranch.store": store,
            "anabranch.object_key": key,
            "anabranch.size_bytes": size_bytes,
        }
        span = self._spans.start_span(name, place.parent, SpanKind.CLIENT, attributes, start_time=self.now_ns())
        with self._ending(span):
            yield


def _links(contexts: Iterable[SpanContext]) -> list[Link]:
    """Return links to different spans, a limited number."""
    by_span = {each.span_id: each for each in contexts}
    return [Link(each) for each in islice(by_span.values(), LINKS_MAX)]


def _resource(settings: TracingSettings, node: NodeSettings) -> Resource:
    """Return the description of this node that is sent with its spans."""
    names_service = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    described: dict[str, str] = {
        SERVICE_INSTANCE_ID: f"{node.cluster}-{node.node_id}",
        SERVICE_VERSION: version("anabranch"),
        "anabranch.cluster": node.cluster,
        "anabranch.node_id": str(node.node_id),
    }
    if settings.service_name or not (os.environ.get("OTEL_SERVICE_NAME") or names_service):
        described[SERVICE_NAME] = settings.service_name or DEFAULT_SERVICE
    return Resource.create(described)
