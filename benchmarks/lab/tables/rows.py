"""The part `rows`: CPU from a topic with a backlog to its table, beside a Spark pipeline of the same topic."""

import argparse
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from benchmarks.lab.tables.node import Cpu, TableNode
from benchmarks.lab.tables.records import Kind, batches_of, enable, fill, small_kind, wide_kind
from benchmarks.spark import session, spark_cpu_s
from benchmarks.support import CONSOLE, Report, middle

PARTITIONS = 4
GOALS = {("small", "raw"): ">= 300000", ("small", "typed"): ">= 150000"}
PIPELINE_GOAL = "<= 0.3"
DDL = "id BIGINT, user STRING, item STRING, price DOUBLE, count BIGINT, ok BOOLEAN, at STRING, note STRING"
"""Columns of the small records for the pipeline."""


@dataclass(frozen=True)
class Plan:
    """Amount of work: rows of a partition by kind, and rounds."""

    small: int
    wide: int
    rounds: int
    idle_s: float


QUICK = Plan(50_000, 10_000, 1, 3)
FULL = Plan(200_000, 50_000, 3, 10)


@dataclass
class Samples:
    """CPU of one kind of table, for each round; CPU of the pipeline of the same rows, if there is one."""

    table: list[Cpu] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    pipeline_s: list[float] = field(default_factory=list)
    first_pipeline_s: float = 0.0
    """CPU of the pipeline before the rounds, whose code the JVM then compiles."""


def measure(report: Report, home: Path, options: argparse.Namespace) -> None:
    """Fill topics, and let each become a table, by a node and by a pipeline, in turn."""
    plan = QUICK if options.quick else FULL
    kinds = [small_kind(plan.small), wide_kind(plan.wide)]
    batches = {kind.name: batches_of(kind.values) for kind in kinds}
    ways = [(kind, way) for kind in kinds for way in ("raw", "typed")]
    found = {(kind.name, way): Samples() for kind, way in ways}
    with TableNode(home / "rows") as node, session(home) as spark:
        for kind in kinds:
            node.create_topic(kind.name, PARTITIONS)
            fill(node, kind.name, batches[kind.name], PARTITIONS)
        start = first_table(node, batches["small"][0])
        idle = idle_rate(node, plan.idle_s)
        for round_ in range(plan.rounds):
            for kind, way in ways if round_ % 2 == 0 else ways[::-1]:
                samples = found[kind.name, way]
                make_table(node, kind, way, round_, batches[kind.name], idle, samples)
                if kind.name == "small":
                    if not round_:
                        samples.first_pipeline_s = run_pipeline(spark, node, home, kind, way, -1)
                    samples.pipeline_s.append(run_pipeline(spark, node, home, kind, way, round_))
    report.add("first table of a node: start of the process that makes columns", start.all_s, "CPU s")
    report.add("node at rest", idle.all_s * 100, "% of a core")
    for kind, way in ways:
        add_figures(report, kind, way, len(kind.values) * PARTITIONS, found[kind.name, way])


def first_table(node: TableNode, batch: bytes) -> Cpu:
    """Make a table of one batch, which starts the process; return what it took."""
    node.create_topic("first", 1)
    fill(node, "first", [batch], 1)
    before = node.cpu()
    enable(node, "first", {"table.enable": "true"})
    return node.cpu() - before


def idle_rate(node: TableNode, seconds: float) -> Cpu:
    """Return CPU a second of a node whose process for columns runs, but has no table to write."""
    before = node.cpu()
    time.sleep(seconds)
    after = node.cpu() - before
    return Cpu(after.node_s / seconds, after.worker_s / seconds)


def make_table(
    node: TableNode, kind: Kind, way: str, round_: int, batches: Sequence[bytes], idle: Cpu, samples: Samples
) -> None:
    """Fill a topic, and measure how it becomes a table."""
    topic = f"{kind.name}-{way}-{round_}"
    node.create_topic(topic, PARTITIONS)
    fill(node, topic, batches, PARTITIONS)
    workers = node.workers()
    before, began_s = node.cpu(), time.perf_counter()
    enable(node, topic, kind.configs(typed=way == "typed"))
    seconds, used = time.perf_counter() - began_s, node.cpu() - before
    assert node.workers() == workers, "a process ended"
    assert node.pointer.totals(topic).records == len(kind.values) * PARTITIONS
    samples.seconds.append(seconds)
    samples.table.append(Cpu(used.node_s - idle.node_s * seconds, used.worker_s - idle.worker_s * seconds))
    node.delete_topic(topic)
    CONSOLE.print(f"{topic}: {samples.table[-1]}, {seconds:.1f} s", highlight=False)


def run_pipeline(spark: SparkSession, node: TableNode, home: Path, kind: Kind, way: str, round_: int) -> float:
    """Ingest the topic into an Iceberg table; return the CPU seconds of Spark and the node."""
    folder = home / f"pipeline-{way}-{round_}"
    folder.mkdir()
    (folder / "values.ddl").write_text(DDL)
    decode = {"format": "json", "schema_file": str(folder / "values.ddl")} if way == "typed" else {}
    pipeline = PipelineSettings.model_validate({
        "checkpoint": str(folder / "checkpoint"),
        "source": {"bootstrap_servers": f"127.0.0.1:{node.port}", "topics": [kind.name]},
        "decode": decode,
        # A separate catalog: a session keeps the first warehouse of a catalog.
        "table": {"name": f"{way}{round_ + 1}.db.rows", "partition_by": "none"},
        "catalog": {"warehouse": str(folder / "lake")},
    })  # fmt: skip
    before, node_before = spark_cpu_s(spark), node.cpu_s()
    running = start_pipeline(spark, pipeline)
    running.query.awaitTermination()
    used = spark_cpu_s(spark) - before + node.cpu_s() - node_before
    assert spark.table(pipeline.table.name or "").count() == len(kind.values) * PARTITIONS
    shutil.rmtree(folder)
    CONSOLE.print(f"pipeline, {kind.name}, {way}: {used:.2f} CPU s", highlight=False)
    return used


def add_figures(report: Report, kind: Kind, way: str, rows: int, samples: Samples) -> None:
    """Add the figures of one kind of table."""
    name = f"{kind.name}, {kind.value_bytes:.0f} B, {way}"
    used = [each.all_s for each in samples.table]
    report.add(f"{name}: rows", rows / middle(used), "rows/CPU s", GOALS.get((kind.name, way)))
    report.add(f"{name}: of the node", middle([each.node_s for each in samples.table]) / rows * 1e6, "CPU s/M rows")
    report.add(f"{name}: of the worker", middle([each.worker_s for each in samples.table]) / rows * 1e6, "CPU s/M rows")
    report.add(f"{name}: rate", rows / middle(samples.seconds), "rows/s")
    if samples.pipeline_s:
        report.add(f"{name}: pipeline", rows / middle(samples.pipeline_s), "rows/CPU s")
        report.add(f"{name}: pipeline, its first run", rows / samples.first_pipeline_s, "rows/CPU s")
        ratio = middle([mine / its for mine, its in zip(used, samples.pipeline_s, strict=True)])
        report.add(f"{name}: CPU over the pipeline's", ratio, "x", PIPELINE_GOAL)
