"""Runs the walk-through of docs/spark.md, prints its output, and draws its picture.

    python -m scripts.flights_walk --folder DIRECTORY [--picture docs/flights-delays.svg]

It starts a node, sends the flights of 2013 and a few invalid records to a topic, runs the pipeline of docs/flights.toml
twice, and queries the Iceberg table. The document shows what it prints.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession

from anabranch.spark.pipeline.iceberg import catalog_settings
from anabranch.spark.pipeline.toml_file import read_pipeline
from anabranch.spark.session import build_session
from scripts.demo.clients import create_topic, send
from scripts.demo.delays import departure_delays
from scripts.demo.flights import read_flights
from scripts.demo.node import NodeProcess

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 6
POISON = (b"not a flight", b'{"carrier": "AA", "dep_delay": "late"}', b"")
CELL, LEFT, TOP = 26, 60, 46
FONT = 'font-family="sans-serif" font-size="12"'
MINUTES_MAX = 40


def send_poison(servers: str) -> None:
    """Send records that are not flights."""
    producer = Producer({"bootstrap.servers": servers, "log_level": 0, "enable.metrics.push": False})
    for value in POISON:
        producer.produce("flights", value, partition=0)
    producer.flush(30)


def ingest(folder: Path) -> None:
    """Run the pipeline once, as a user does."""
    command = [sys.executable, "-m", "anabranch.spark", "ingest", str(folder / "flights.toml")]
    print("$ anabranch spark ingest flights.toml", flush=True)
    subprocess.run(command, check=True)


def show(title: str, frame: DataFrame, rows: int = 12) -> None:
    """Print a query and Spark's answer."""
    print(f">>> {title}")
    frame.show(rows, truncate=60)


def picture(rows: Sequence[Row]) -> str:
    """Draw the mean delay by carrier and hour as an SVG heat map, carriers with the most flights on top."""
    flights: dict[str, int] = {}
    for row in rows:
        flights[row["carrier"]] = flights.get(row["carrier"], 0) + row["flights"]
    carriers = sorted(flights, key=lambda carrier: -flights[carrier])
    hours = sorted({row["hour"] for row in rows})
    cells = []
    for row in rows:
        if row["delay_mean"] is None:
            continue
        x = LEFT + hours.index(row["hour"]) * CELL
        y = TOP + carriers.index(row["carrier"]) * CELL
        share = min(1.0, max(0.0, row["delay_mean"] / MINUTES_MAX))
        red, green, blue = (round(a + (b - a) * share) for a, b in ((247, 165), (251, 15), (255, 21)))
        cells.append(
            f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" fill="rgb({red},{green},{blue})">'
            f"<title>{row['carrier']} at {row['hour']}: {row['delay_mean']:.1f} minutes, {row['flights']:,} flights"
            "</title></rect>"
        )
    labels = [
        f'<text x="{LEFT - 30}" y="{TOP + index * CELL + 17}" {FONT}>{carrier}</text>'
        for index, carrier in enumerate(carriers)
    ]
    labels += [
        f'<text x="{LEFT + index * CELL + 4}" y="{TOP - 8}" {FONT}>{hour}</text>' for index, hour in enumerate(hours)
    ]
    width, height = LEFT + len(hours) * CELL + 20, TOP + len(carriers) * CELL + 34
    legend = f"Mean departure delay by carrier and scheduled hour: white 0, dark {MINUTES_MAX} minutes and more"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{LEFT - 30}" y="18" {FONT}>{legend}</text>',
            *labels,
            *cells,
            "</svg>",
            "",
        ]
    )


def questions(spark: SparkSession, place: Path | None) -> None:
    """Run the document's queries of the table."""
    flights = spark.table("lake.air.flights")
    show(
        "the table",
        flights.selectExpr("topic", "partition", "offset", "event_time", "data.carrier", "data.dep_delay"),
        4,
    )
    show("rows, and distinct places in the topic", flights.selectExpr(
        "count(*) AS rows", "count(DISTINCT partition, offset) AS places"))  # fmt: skip
    show("dead letters", spark.table("lake.air.flights_dead_letters").selectExpr(
        "partition", "offset", "CAST(value AS STRING) AS value", "error"))  # fmt: skip
    snapshots = spark.table("lake.air.flights.snapshots").orderBy("committed_at")
    show("snapshots", snapshots.selectExpr(
        "operation", "summary['anabranch.batch-id'] AS batch", "summary['added-records'] AS records",
        "summary['added-data-files'] AS files", "summary['total-data-files'] AS total_files"))  # fmt: skip
    delays = departure_delays(flights.select("data.*"))
    show(
        "delays, of those with a hundred flights",
        delays.filter("flights >= 100").orderBy(delays["delay_mean"].desc()).limit(5),
    )
    if place is not None:
        place.write_text(picture(delays.collect()))
        print(f"{place} drawn")


def walk(folder: Path, place: Path | None, say: Callable[[str], None] = print) -> None:
    """Run the whole walk-through."""
    folder.mkdir(parents=True, exist_ok=True)
    text = (ROOT / "docs" / "flights.toml").read_text()
    shutil.copy(ROOT / "docs" / "flights.ddl", folder)
    node = NodeProcess(folder, ["--wal-capacity-bytes=128MiB"])
    node.start()
    try:
        (folder / "flights.toml").write_text(text.replace("127.0.0.1:9092", node.servers))
        create_topic(node.servers, "flights", PARTITIONS)
        sent = send(node.servers, "flights", read_flights(), lambda _done: None)
        say(f"{sent.tally.rows:,} flights sent")
        ingest(folder)
        send_poison(node.servers)
        ingest(folder)
    finally:
        node.stop()
    pipeline = read_pipeline(folder / "flights.toml")
    spark = build_session("walk", table_formats=["iceberg"], settings=catalog_settings(pipeline))
    try:
        questions(spark, place)
    finally:
        spark.stop()


def main(arguments: Sequence[str]) -> None:
    """Parse the command line and walk."""
    options = argparse.ArgumentParser(description="The walk-through of docs/spark.md.")
    options.add_argument("--folder", type=Path, required=True, help="folder for all data and files")
    options.add_argument("--picture", type=Path, help="path of the SVG to draw")
    given = options.parse_args(arguments)
    walk(given.folder, given.picture)


if __name__ == "__main__":
    main(sys.argv[1:])
