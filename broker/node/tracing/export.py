"""Delivery of spans to a collector: a bounded queue, a thread of the SDK, OTLP over HTTP.

A collector that is slow or away costs spans, never time: a full queue drops new spans, and what could not be delivered
is dropped as well. Both are counted. The log has one line when deliveries begin to fail, and one when they succeed
again.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import (
    OTEL_BSP_MAX_EXPORT_BATCH_SIZE,
    OTEL_BSP_MAX_QUEUE_SIZE,
    OTEL_EXPORTER_OTLP_ENDPOINT,
    OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
)
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from anabranch.broker.node.tracing.stats import TracingStats

DELIVERY_S: Final = 3.0
"""Limit of one delivery, repetitions included, unless a variable of the SDK says otherwise. A stop may wait for it."""
FLUSH_S: Final = 2.0
"""Time of a stop in which deliveries may begin, or be repeated."""
QUEUE_SPANS_MAX: Final = 2048
BATCH_SPANS_MAX: Final = 256
"""Spans of one delivery, unless a variable says otherwise: they are encoded at once, which holds the interpreter."""
TRACES_PATH: Final = "/v1/traces"
DEFAULT_ENDPOINT: Final = "http://localhost:4318"


class SpanDelivery(SpanExporter):
    """Delivers spans, and counts them. The thread of the SDK calls `export`."""

    def __init__(self, endpoint: str, stats: TracingStats) -> None:
        is_limited = os.environ.get(OTEL_EXPORTER_OTLP_TRACES_TIMEOUT) or os.environ.get(OTEL_EXPORTER_OTLP_TIMEOUT)
        self._inner = OTLPSpanExporter(endpoint or None, timeout=None if is_limited else DELIVERY_S)
        self._stats = stats
        self._where = shown_endpoint(endpoint)
        self._fails = False
        self._is_closed = False
        self.taken = 0
        """Spans taken out of the queue."""
        self._log = structlog.get_logger("node")
        # What the SDK says of each failed delivery is counted here, and logged once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Deliver spans; drop those that fail."""
        self.taken += len(spans)
        result = SpanExportResult.FAILURE if self._is_closed else self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._stats.delivered += len(spans)
            if self._fails:
                self._log.info(
                    "traces are delivered again", collector=self._where, dropped_spans=self._stats.undelivered
                )
        else:
            self._stats.undelivered += len(spans)
            if not self._fails and not self._is_closed:
                self._log.warning(
                    "traces cannot be delivered: spans are dropped until the collector accepts them",
                    collector=self._where,
                )
        self._fails = result is not SpanExportResult.SUCCESS
        return result

    def close(self) -> None:
        """Begin no more deliveries if the last one failed, else continue until `shutdown`. For any thread."""
        if self._fails:
            self.shutdown()

    def shutdown(self) -> None:
        """Begin no more deliveries, and end a pause before a retry. For any thread."""
        if not self._is_closed:
            self._is_closed = True
            self._inner.shutdown()  # type: ignore[no-untyped-call]


class SpanQueue(SpanProcessor):
    """The queue in front of a delivery. It drops spans when it is full."""

    def __init__(self, delivery: SpanDelivery, stats: TracingStats) -> None:
        """Start the thread. Raises ValueError if a variable of the SDK is invalid."""
        self._delivery = delivery
        self._stats = stats
        self._spans_max = _queue_spans_max()
        is_set = os.environ.get(OTEL_BSP_MAX_EXPORT_BATCH_SIZE)
        self._batches = BatchSpanProcessor(
            delivery,
            max_queue_size=self._spans_max,
            max_export_batch_size=None if is_set else min(BATCH_SPANS_MAX, self._spans_max),
        )

    def on_end(self, span: ReadableSpan) -> None:
        """Queue a span."""
        stats = self._stats
        stats.spans += 1
        if stats.spans - stats.overflowed - self._delivery.taken > self._spans_max:
            stats.overflowed += 1
        else:
            self._batches.on_end(span)

    def shutdown(self) -> None:
        """Deliver what is queued, or drop it once the delivery is shut down. Blocks."""
        self._delivery.close()
        self._batches.shutdown()  # type: ignore[no-untyped-call]


def _queue_spans_max() -> int:
    text = os.environ.get(OTEL_BSP_MAX_QUEUE_SIZE) or str(QUEUE_SPANS_MAX)
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{OTEL_BSP_MAX_QUEUE_SIZE}: expected a number of spans above 0, found {text!r}")
    return int(text)


def endpoint_of(setting: str) -> str:
    """Return the URL to send traces to; empty if variables of the SDK, or its default, decide."""
    if not setting:
        return ""
    parts = urlsplit(setting)
    return parts._replace(path=TRACES_PATH).geturl() if parts.path in {"", "/"} else setting


def shown_endpoint(endpoint: str) -> str:
    """Return scheme, host and port of the collector, for the log. A URL in a variable may hold credentials."""
    variables = (OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT)
    from_variables = next((value for each in variables if (value := os.environ.get(each))), DEFAULT_ENDPOINT)
    parts = urlsplit(endpoint or from_variables)
    port = ""
    with suppress(ValueError):
        port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}"
