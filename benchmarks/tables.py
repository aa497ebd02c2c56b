"""A table after a thousand micro-batches: what its metadata, its files and a plan of it cost, as they add up.

A node, Spark (`local[*]`) and a pipeline with a micro-batch for ten records each. After fifty micro-batches it
ends, as under a timer, and the table is measured: the newest file of metadata (Delta: all that a reader of its log
reads), all files in the table's folder, and the median time of five plans of a scan, with the loading of the table.
The intervals of `[maintenance]` are shrunk to the length of the run, and fifty snapshots of Iceberg stay. Delta drops
its log by days, so its files are then dated a day back.
`--unmaintained` turns `[maintenance]` and `[compaction]` off, to see what they are for.

    python -m benchmarks.tables [--quick] [--format FORMAT] [--unmaintained] [--pictures FOLDER] [--json FILE]
"""

import argparse
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import LakehouseTable, open_tables
from anabranch.spark.session import build_session
from benchmarks.lab.curves import Curve, Figures
from benchmarks.lab.processes import Anabranch
from benchmarks.support import CONSOLE, parser

TOPIC = "events"
RECORDS = 10
"""Records of a micro-batch."""
CHUNK = 50
"""Micro-batches between two measurements."""
BATCHES, QUICK_BATCHES = 1_000, 150
PLANS = 5
DAY_S = 86_400
MAINTENANCE = {
    "interval": "5 seconds",
    "snapshots_max": CHUNK,
    "orphan_interval": "1 minute",
    "orphan_age": "2 minutes",
}


def settings_of(home: Path, port: int, table_format: str, *, maintained: bool) -> PipelineSettings:
    """Return the pipeline. Its table is not partitioned: each micro-batch writes one file."""
    (home / "values.ddl").write_text("n BIGINT, name STRING")
    place = {"name": "lake.db.events"} if table_format == "iceberg" else {"location": str(home / "table")}
    values: dict[str, Any] = {
        "checkpoint": str(home / "checkpoint"),
        "source": {"bootstrap_servers": f"127.0.0.1:{port}", "topics": [TOPIC], "offsets_per_batch_max": RECORDS},
        "decode": {"format": "json", "schema_file": str(home / "values.ddl")},
        "table": {"format": table_format, "partition_by": "none", **place},
        "compaction": {"batches": CHUNK if maintained else 0},
        "maintenance": MAINTENANCE if maintained else {"enabled": False},
    }
    if table_format == "iceberg":
        values["catalog"] = {"warehouse": str(home / "lake")}
    elif maintained:
        own = {"interval": MAINTENANCE["interval"], "orphan_interval": MAINTENANCE["orphan_interval"]}
        values["maintenance"] = {**own, "snapshot_age": "1 minute"}
    return PipelineSettings.model_validate(values)


def send(port: int, numbers: Sequence[int]) -> None:
    """Send records, and wait until they are acknowledged."""
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}", "enable.idempotence": True, "linger.ms": 20})
    for n in numbers:
        producer.produce(TOPIC, json.dumps({"n": n, "name": f"name {n}"}).encode(), partition=0)
    assert not producer.flush(60)


def run(spark: SparkSession, pipeline: PipelineSettings) -> float:
    """Run the pipeline to its end. Returns the median time of its micro-batches, in seconds."""
    running = start_pipeline(spark, pipeline)
    try:
        assert running.query.awaitTermination(3_600)
        found = [each["batchDuration"] for each in running.query.recentProgress if each["numInputRows"]]
    finally:
        running.stop()
    running.finish()
    assert running.batches is not None
    assert running.batches.maintenance_failure is None, running.batches.maintenance_failure
    assert running.batches.compaction_failure is None, running.batches.compaction_failure
    return float(median(found)) / 1_000


def folder_of(home: Path, table_format: str) -> Path:
    """Return the folder of the table."""
    return home / "lake" / "db" / "events" if table_format == "iceberg" else home / "table"


def metadata_bytes(folder: Path, table_format: str) -> int:
    """Return the size of what each reader of the table begins with."""
    if table_format == "iceberg":
        return max((folder / "metadata").glob("*.metadata.json"), key=lambda path: path.stat().st_mtime).stat().st_size
    log = folder / "_delta_log"
    checkpoint = max((path.name for path in log.glob("*.checkpoint*.parquet")), default="")
    read = [path for path in log.glob("*.json") if path.name[:20] > checkpoint[:20]]
    return sum(
        path.stat().st_size for path in (*read, *log.glob(f"{checkpoint[:20]}.checkpoint*" if checkpoint else "-"))
    )


def let_a_day_pass(folder: Path) -> None:
    """Date the files of Delta's log a day back."""
    for path in (folder / "_delta_log").glob("*.*"):
        found = path.stat()
        os.utime(path, (found.st_atime - DAY_S, found.st_mtime - DAY_S))


def plan_s(table: LakehouseTable) -> float:
    """Return the time that Spark takes to load a table and to list the files of a scan."""
    began = time.perf_counter()
    table.read().inputFiles()
    return time.perf_counter() - began


def measure(spark: SparkSession, pipeline: PipelineSettings, home: Path, rows: int, seconds: float) -> Figures:
    """Return the figures of the table, and check the number of its rows."""
    table, _ = open_tables(spark, pipeline)
    assert table.read().count() == rows
    folder = folder_of(home, pipeline.table.format)
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".crc")]
    return {
        "metadata KB": metadata_bytes(folder, pipeline.table.format) / 1e3,
        "files": len(files),
        "plan ms": median(plan_s(table) for _ in range(PLANS)) * 1e3,
        "micro-batch s": seconds,
    }


def curve_of(options: argparse.Namespace, home: Path) -> Curve:
    """Run all micro-batches, and return the curve."""
    how = "unmaintained" if options.unmaintained else "maintained"
    key = f"table-{options.format}-{how}"
    drawn = ("metadata KB", "files", "plan ms", "micro-batch s")
    curve = Curve(key, f"A {how} {options.format} table", "micro-batches", drawn)
    numbers = itertools.count()
    with Anabranch(home / "node", []) as node:
        node.create_topic(TOPIC, 1)
        settings = {"spark.local.dir": str(home / "spark"), "spark.sql.warehouse.dir": str(home / "warehouse")}
        spark = build_session("anabranch benchmark", settings=settings, table_formats=[options.format])
        try:
            pipeline = settings_of(home, node.port, options.format, maintained=not options.unmaintained)
            for done in range(CHUNK, options.batches + 1, CHUNK):
                send(node.port, list(itertools.islice(numbers, CHUNK * RECORDS)))
                seconds = run(spark, pipeline)
                curve.add(done, measure(spark, pipeline, home, done * RECORDS, seconds))
                CONSOLE.print(curve.last(done), highlight=False)
                store(curve, options)
                if options.format == "delta":
                    let_a_day_pass(folder_of(home, options.format))
        finally:
            spark.stop()
    return curve


def store(curve: Curve, options: argparse.Namespace) -> None:
    """Write what there is of the curve to the files that are asked for."""
    if options.pictures is not None:
        (options.pictures / f"{curve.key}.svg").write_text(curve.svg())
    if options.json is not None:
        options.json.write_text(json.dumps(curve.as_rows(), indent=1) + "\n")


def main() -> None:
    """Run the benchmark."""
    made = parser("A table after a thousand micro-batches.")
    made.add_argument("--format", choices=["iceberg", "delta"], default="iceberg")
    made.add_argument("--batches", type=int, metavar="N", help=f"micro-batches; default {BATCHES:,}")
    made.add_argument("--unmaintained", action="store_true", help="without [maintenance] and [compaction]")
    made.add_argument("--pictures", type=Path, metavar="FOLDER", help="also draw the curve into this folder")
    options = made.parse_args()
    options.batches = options.batches or (QUICK_BATCHES if options.quick else BATCHES)
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        curve = curve_of(options, home)
    finally:
        shutil.rmtree(home)
    CONSOLE.print(curve.markdown(), highlight=False)


if __name__ == "__main__":
    main()
