"""Monitoring of a running query: Prometheus metrics, and its offsets as those of a consumer group.

Spark's Kafka source stores its offsets in its checkpoint and commits none, so Kafka's lag tools see nothing. This
listener receives each micro-batch's progress after Spark has committed it, and writes the offsets to a group. A failed
metric or commit never fails the query: failures are counted, and the last one is printed.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from anabranch.spark.freshness import Freshness, Offsets, parse_offsets
from anabranch.spark.pipeline.errors import reason_of
from anabranch.spark.pipeline.topic_ids import open_admin

COMMIT_TIMEOUT_S = 10
Commit = Callable[[Offsets], None]
Family = Callable[[str, str, str, Sequence[tuple[str, float]]], None]
"""Adds a family of metrics: name, kind, help, and samples by their labels."""


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """Progress of a query: a finished micro-batch, or an idle trigger."""

    query: str
    batch_id: int
    rows: int
    input_rows_per_s: float
    processed_rows_per_s: float
    batch_ms: int
    phases_ms: Mapping[str, int]
    consumed: Offsets
    """Next offset of each partition."""
    latest: Offsets
    """End of each partition when the micro-batch was planned."""

    @property
    def lag(self) -> dict[tuple[str, int], int]:
        """Records that exist and are not consumed, by partition."""
        return {place: max(0, self.latest.get(place, offset) - offset) for place, offset in self.consumed.items()}


def parse_progress(text: str) -> QueryProgress:
    """Parse Spark's JSON of a progress."""
    values = json.loads(text)
    consumed: dict[tuple[str, int], int] = {}
    latest: dict[tuple[str, int], int] = {}
    for source in values.get("sources", ()):
        consumed |= parse_offsets(source.get("endOffset"))
        latest |= parse_offsets(source.get("latestOffset"))
    return QueryProgress(
        query=values.get("name") or values["id"],
        batch_id=values["batchId"],
        rows=values.get("numInputRows") or 0,
        input_rows_per_s=values.get("inputRowsPerSecond") or 0.0,
        processed_rows_per_s=values.get("processedRowsPerSecond") or 0.0,
        batch_ms=values.get("batchDuration") or 0,
        phases_ms=values.get("durationMs") or {},
        consumed=consumed,
        latest=latest,
    )


@dataclass(slots=True)
class QueryMetrics:
    """Sums and newest progress of one query."""

    progress: QueryProgress
    rows: int = 0
    batches: int = 0
    busy_ms: int = 0


@dataclass(slots=True)
class PipelineMetrics:
    """Metrics of all queries of a pipeline."""

    queries: dict[str, QueryMetrics] = field(default_factory=dict)
    commits: int = 0
    commit_failures: int = 0
    last_failure: str | None = None

    def add(self, progress: QueryProgress) -> None:
        """Count a progress."""
        metrics = self.queries.setdefault(progress.query, QueryMetrics(progress))
        metrics.progress = progress
        if progress.rows:
            metrics.rows += progress.rows
            metrics.batches += 1
            metrics.busy_ms += progress.batch_ms


def prometheus_text(metrics: PipelineMetrics, freshness: Freshness | None = None, now_ms: int = 0) -> str:
    """Return the metrics in Prometheus's text format. `freshness` is that of the pipeline's query, at `now_ms`."""
    lines: list[str] = []

    def family(name: str, kind: str, about: str, samples: Sequence[tuple[str, float]]) -> None:
        lines.extend((f"# HELP {name} {about}", f"# TYPE {name} {kind}"))
        lines.extend(f"{name}{labels} {value}" for labels, value in samples)

    queries = list(metrics.queries.items())

    def per_query(name: str, kind: str, about: str, value: Callable[[QueryMetrics], float]) -> None:
        samples = [(_labels(query=query), value(metrics)) for query, metrics in queries]
        family(f"anabranch_pipeline_{name}", kind, about, samples)

    def per_partition(name: str, about: str, value: Callable[[QueryProgress], Offsets]) -> None:
        samples: list[tuple[str, float]] = [
            (_labels(query=query, topic=topic, partition=str(partition)), offset)
            for query, metrics in queries
            for (topic, partition), offset in sorted(value(metrics.progress).items())
        ]
        family(f"anabranch_pipeline_{name}", "gauge", about, samples)

    per_query("rows_total", "counter", "Rows taken from the source.", lambda m: m.rows)
    per_query("batches_total", "counter", "Micro-batches that had rows.", lambda m: m.batches)
    per_query("busy_seconds_total", "counter", "Time in micro-batches that had rows.", lambda m: m.busy_ms / 1000)
    per_query("batch_id", "gauge", "Number of the newest micro-batch.", lambda m: m.progress.batch_id)
    per_query("batch_seconds", "gauge", "Time of the newest micro-batch.", lambda m: m.progress.batch_ms / 1000)
    per_query("input_rows_per_second", "gauge", "Rate of arrival.", lambda m: m.progress.input_rows_per_s)
    per_query("processed_rows_per_second", "gauge", "Rate of processing.", lambda m: m.progress.processed_rows_per_s)
    phases: list[tuple[str, float]] = [
        (_labels(query=query, phase=phase), spent / 1000)
        for query, metrics in queries
        for phase, spent in sorted(metrics.progress.phases_ms.items())
    ]
    family("anabranch_pipeline_phase_seconds", "gauge", "Phases of the newest micro-batch.", phases)
    per_partition("offset", "Next offset that will be consumed.", lambda p: p.consumed)
    per_partition("latest_offset", "End of the partition at the newest micro-batch.", lambda p: p.latest)
    per_partition("lag", "Records that exist and are not consumed.", lambda p: p.lag)
    if freshness is not None:
        _add_freshness(family, metrics, freshness, now_ms)
    family(
        "anabranch_pipeline_group_commits_total", "counter", "Offsets written to the group.", [("", metrics.commits)]
    )
    family("anabranch_pipeline_group_commit_failures_total", "counter", "Commits to the group that failed.",
           [("", metrics.commit_failures)])  # fmt: skip
    return "\n".join(lines) + "\n"


def _add_freshness(family: Family, metrics: PipelineMetrics, freshness: Freshness, now_ms: int) -> None:
    query = freshness.query
    known = metrics.queries.get(query)
    ages = freshness.ages_ms(None if known is None else known.progress.consumed, now_ms)
    partitions: list[tuple[str, float]] = [
        (_labels(query=query, topic=topic, partition=str(partition)), age_ms / 1000)
        for (topic, partition), age_ms in sorted(ages.items())
    ]
    family("anabranch_pipeline_lag_seconds", "gauge",
           "Age of the first record that is not in the table; 0: none is missing.", partitions)  # fmt: skip
    largest = [(_labels(query=query), max(ages.values()) / 1000)] if ages else []
    family("anabranch_pipeline_table_lag_seconds", "gauge", "Largest lag of all partitions.", largest)
    family("anabranch_pipeline_lag_failures_total", "counter", "Look-ups of lags in seconds that failed.",
           [("", freshness.failures)])  # fmt: skip


def _labels(**labels: str) -> str:
    def escape(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escape(text)}"' for name, text in labels.items()) + "}"


class PipelineListener(StreamingQueryListener):
    """Listener of the queries. Spark calls it on a separate thread, in the order of the events."""

    def __init__(self, query: str, commit: Commit | None = None, counted: Mapping[int, int] | None = None) -> None:
        self.metrics = PipelineMetrics()
        self.terminated = threading.Event()
        """Set when the query has ended and all its progress was received."""
        self._query = query
        self._commit = commit
        self._counted = {} if counted is None else counted
        self._committed: Offsets = {}
        self._run_id: str | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Store the id of the run."""
        if event.name == self._query:
            self._run_id = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Count the progress, and write the offsets to the group."""
        if event.progress.name != self._query:
            return
        progress = parse_progress(event.progress.json)
        progress = replace(progress, rows=self._counted.get(progress.batch_id, progress.rows) if progress.rows else 0)
        self.metrics.add(progress)
        if self._commit is None or not progress.consumed or progress.consumed == self._committed:
            return
        try:
            self._commit(progress.consumed)
        except Exception as error:  # noqa: BLE001 - any error: the query continues
            self.metrics.commit_failures += 1
            self.metrics.last_failure = reason_of(error)
        else:
            self.metrics.commits += 1
            self._committed = progress.consumed

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: no progress was made."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Set `terminated`."""
        if str(event.runId) == self._run_id:
            self.terminated.set()


@contextmanager
def group_commit(spark: SparkSession, group: str, options: Mapping[str, str]) -> Iterator[Commit]:
    """Yield a function that commits offsets for a group with the source's Kafka client and its `options`."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the client is Java's
    admin = open_admin(spark, options, f"anabranch-spark-{group}")

    def commit(offsets: Offsets) -> None:
        wanted = jvm.java.util.HashMap()
        for (topic, partition), offset in offsets.items():
            place = jvm.org.apache.kafka.common.TopicPartition(topic, partition)
            wanted.put(place, jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset))
        seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
        admin.alterConsumerGroupOffsets(group, wanted).all().get(COMMIT_TIMEOUT_S, seconds)

    try:
        yield commit
    finally:
        admin.close(jvm.java.time.Duration.ofSeconds(COMMIT_TIMEOUT_S))


@contextmanager
def serve_metrics(host: str, port: int, metrics: PipelineMetrics, freshness: Freshness | None = None) -> Iterator[int]:
    """Serve `GET /metrics`. Yields the port, which is a free one for port 0. Raises OSError."""

    class MetricsHandler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"see /metrics\n"
            if self.path == "/metrics":
                body = prometheus_text(metrics, freshness, time.time_ns() // 1_000_000).encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((host, port), MetricsHandler) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever, 0.2)
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
