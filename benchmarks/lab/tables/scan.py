"""The part `scan`: Spark reads a topic by two sources, and as a table."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from benchmarks.direct import Scan
from benchmarks.direct import measure as scan
from benchmarks.lab.tables.node import TableNode
from benchmarks.lab.tables.records import batches_of, enable, fill, kib_kind
from benchmarks.spark import TUNED, session
from benchmarks.support import CONSOLE, Report, middle

PARTITIONS = 4
CATALOG = "anabranch"
THREE = ("id", "number_1", "measure_1")
GOALS = {"raw table": (">= 5", "<= 0.3"), "typed table, three columns": (">= 5", "<= 0.3")}
"""Of rows/s and of CPU, over the Kafka source."""


@dataclass(frozen=True)
class Plan:
    """Amount of work: rows of a partition, scans of each kind that warm up, and measured ones."""

    rows: int
    passes: int
    """Times that a partition has the same rows, which are made once."""
    warm: int
    rounds: int


QUICK = Plan(16_000, 2, 2, 3)
FULL = Plan(32_000, 4, 4, 7)


def measure(report: Report, home: Path, options: argparse.Namespace) -> None:
    """Make topics of the same records into tables, and scan them in turn."""
    plan = QUICK if options.quick else FULL
    kind = kib_kind(plan.rows)
    batches = batches_of(kind.values) * plan.passes
    rows = plan.rows * plan.passes * PARTITIONS
    with TableNode(home / "scan") as node:
        for way, codec in (("raw", "zstd"), ("raw-lz4", "lz4"), ("typed", "zstd")):
            node.create_topic(way, PARTITIONS)
            fill(node, way, batches, PARTITIONS)
            enable(node, way, {**kind.configs(typed=way == "typed"), "table.compression.type": codec})
        with session(home) as spark:
            for name, value in {
                "": "org.apache.iceberg.spark.SparkCatalog",
                ".type": "rest",
                ".uri": f"http://127.0.0.1:{node.admin_port}/iceberg",
            }.items():
                spark.conf.set(f"spark.sql.catalog.{CATALOG}{name}", value)
            kafka = {"kafka.bootstrap.servers": f"127.0.0.1:{node.port}", "subscribe": "raw", **TUNED}
            direct = {"dataDir": str(node.home / "data"), "subscribe": "raw"}
            ways: dict[str, Callable[[], DataFrame]] = {
                "Kafka source": lambda: spark.read.format("kafka").options(**kafka).load(),
                "direct source": lambda: spark.read.format("anabranch").options(**direct).load(),
                # Iceberg's vectorised reader has no structs: with `_kafka` rows are read one by one.
                "raw table": lambda: spark.table(f"{CATALOG}.default.raw"),
                "raw table, value": lambda: spark.table(f"{CATALOG}.default.raw").select("value"),
                "raw table in lz4": lambda: spark.table(f"{CATALOG}.default.`raw-lz4`"),
                "raw table in lz4, value": lambda: spark.table(f"{CATALOG}.default.`raw-lz4`").select("value"),
                "typed table": lambda: spark.table(f"{CATALOG}.default.typed"),
                "typed table, without _kafka": lambda: spark.table(f"{CATALOG}.default.typed").drop("_kafka"),
                "typed table, three columns": lambda: spark.table(f"{CATALOG}.default.typed").select(*THREE),
            }
            found: dict[str, list[Scan]] = {name: [] for name in ways}
            for name, frame in ways.items():
                assert frame().count() == rows, name
            for round_ in range(-plan.warm, plan.rounds):
                for name in list(ways) if round_ % 2 == 0 else list(ways)[::-1]:
                    each = scan(spark, node, ways[name]())
                    CONSOLE.print(f"{round_}, {name}: {each.seconds:.2f} s, {each.cpu_s:.2f} CPU s", highlight=False)
                    if round_ >= 0:
                        found[name].append(each)
    add_figures(report, rows, found)


def add_figures(report: Report, rows: int, found: dict[str, list[Scan]]) -> None:
    """Add the figures of each way, and the ratios of scans of one round."""
    for name, scans in found.items():
        report.add(f"{name}: rows", rows / middle([each.seconds for each in scans]), "rows/s")
        report.add(f"{name}: CPU of Spark and node", middle([each.cpu_s for each in scans]) / rows * 1e6, "s/M rows")
    for table in [name for name in found if "table" in name]:
        for source in ("Kafka source", "direct source"):
            pairs = list(zip(found[table], found[source], strict=True))
            goals = GOALS.get(table, (None, None)) if source == "Kafka source" else (None, None)
            rate = middle([its.seconds / mine.seconds for mine, its in pairs])
            report.add(f"{table} over {source}: rows", rate, "x", goals[0])
            report.add(f"{table} over {source}: CPU", middle([m.cpu_s / i.cpu_s for m, i in pairs]), "x", goals[1])
