"""Run the demo: `make demo`, or `python -m scripts.demo` in a checkout that `make setup` has prepared.

It starts its own node on free ports with its own data directory, and stops everything that it started, however it ends.
The data is kept so that you can look at it; the next run deletes it.
"""

import argparse
import json
import logging
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.spark.jars import SparkVersionError
from anabranch.spark.java import JavaNotFoundError, SparkNotFoundError
from scripts.demo.clients import DemoError, Sent, read_back, send
from scripts.demo.flights import Tally, read_flights
from scripts.demo.node import NodeProcess, verify_storage
from scripts.demo.report import Check, check_table, delay_table, moments_table, request_line, size, storage_figures
from scripts.demo.table import SCHEMA, Departures, anabranch, ask_duckdb, ask_spark, start_session, tally_of

TOPIC = "flights"
PARTITIONS = 6
ROWS = 336_776
"""Number of flights in the data set."""
WIDTH = 110
"""Columns when the output is not a terminal."""
MARKER = ".anabranch-demo"
NODE_FLAGS = [
    # Small, so that a year of flights fills several objects and gives compaction work.
    "--wal-capacity-bytes=128MiB",
    "--storage-upload-bytes=4MiB",
    # Only when the demo asks for it.
    "--compaction-enabled=false",
]


class Demo:
    """One run. Each step prints what it did and adds to `checks`."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder
        self.console = console
        self.node = NodeProcess(folder, NODE_FLAGS)
        self.checks: list[Check] = []
        self.moments: dict[str, dict[str, str]] = {}
        self.status: dict[str, Any] = {}
        self.started = time.monotonic()

    def run(self) -> None:
        """Run all steps in order. Raises DemoError."""
        seconds = self.node.start()
        self.say(
            f"node started in {seconds:.1f} s on {self.node.servers}: objects in a directory, WAL in a file, SQLite"
        )
        self.create_topic()
        sent = self.send_all()
        self.look("after sending")
        self.compact()
        self.restart()
        self.read_all(sent)
        self.query_table(sent)

    def say(self, text: str) -> None:
        """Print a line about a finished step."""
        self.console.print(f"[dim]{time.monotonic() - self.started:5.1f} s[/dim]  {text}", highlight=False)

    def check(self, what: str, expected: object, found: object) -> None:
        """Add a check of two values that must be equal."""
        self.checks.append(Check(what, expected, found))

    def check_tally(self, where: str, expected: Tally, found: Tally) -> None:
        """Check the counts that every stage must agree on."""
        self.check(f"{where}: rows", expected.rows, found.rows)
        self.check(f"{where}: rows of each carrier", expected.by_carrier, found.by_carrier)
        self.check(f"{where}: miles flown", expected.distance, found.distance)
        self.check(f"{where}: minutes of delay", expected.delay_minutes, found.delay_minutes)
        self.check(f"{where}: cancelled flights", expected.cancelled, found.cancelled)
        self.check(f"{where}: sum of timestamps", expected.timestamps_ms, found.timestamps_ms)

    @contextmanager
    def bar(self, text: str, total: int) -> Iterator[Progress]:
        """Return a progress bar with one task."""
        columns = (TextColumn("         {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(text, total=total)
            yield progress

    def create_topic(self) -> None:
        """Create the topic as a table. The records are of 2013, so its retention is unlimited."""
        schema = self.folder / "flights.json"
        schema.write_text(json.dumps(SCHEMA, indent=2))
        command = f"topic create {TOPIC} --partitions {PARTITIONS} --table json --schema {schema} --set retention.ms=-1"
        anabranch(*command.split(), "--bootstrap-server", self.node.servers)
        self.say(f"anabranch {command}: the topic is a table")

    def send_all(self) -> Sent:
        """Send the flights to the topic with librdkafka."""
        started = time.monotonic()
        with self.bar("sending", ROWS) as progress:
            task = progress.task_ids[0]
            sent = send(self.node.servers, TOPIC, read_flights(), lambda done: progress.update(task, completed=done))
        seconds = time.monotonic() - started
        self.say(
            f"sent {sent.tally.rows:,} flights ({size(sent.value_bytes)} of JSON) to {PARTITIONS} partitions, all "
            f"acknowledged, in {seconds:.1f} s: {sent.tally.rows / seconds:,.0f} a second"
        )
        self.check("producer: flights in the data set", ROWS, sent.tally.rows)
        self.check("producer: acknowledged offsets", ROWS, sent.end_offsets.total())
        return sent

    def compact(self) -> None:
        """Run compaction on demand."""
        started = time.monotonic()
        self.node.admin("POST", "/compaction")
        self.say(f"compacted in {time.monotonic() - started:.1f} s")
        self.look("after compaction")

    def restart(self) -> None:
        """Stop the node in an orderly way, and start it on the same data."""
        self.say(f"Kafka requests served (median time): {request_line(self.status['requests'])}")
        stopped, started = self.node.stop(), self.node.start()
        self.say(f"node stopped on SIGTERM in {stopped:.1f} s (the rest uploaded), started again in {started:.1f} s")
        self.look("after restart")
        self.check("restart: bytes left in the WAL", 0, self.status["wal"]["used_bytes"])
        ends = [partition["high_watermark"] for partition in self.status["topics"][TOPIC]["partitions"]]
        self.check("restart: offsets of all partitions", ROWS, sum(ends))

    def read_all(self, sent: Sent) -> None:
        """Read everything back from objects, with a new consumer group."""
        started = time.monotonic()
        with self.bar("reading back", ROWS) as progress:
            task = progress.task_ids[0]
            tally = read_back(
                self.node.servers, TOPIC, "demo", sent.end_offsets, lambda done: progress.update(task, completed=done)
            )
        seconds = time.monotonic() - started
        self.say(
            f"a new consumer group read {tally.rows:,} flights back from objects in {seconds:.1f} s: "
            f"{tally.rows / seconds:,.0f} a second"
        )
        self.check_tally("consumer", sent.tally, tally)
        self.look("after reading back")
        self.check("consumer: served from objects, not from memory", True, self.status["store_calls"]["get"] > 0)

    def query_table(self, sent: Sent) -> None:
        """Query the topic as a table, which nothing has ingested, by two engines."""
        started = time.monotonic()
        anabranch("table", "commit", TOPIC, "--admin", self.node.admin_address)
        found = self.node.admin("GET", f"/tables/{TOPIC}")
        self.say(
            f"the node has kept the topic as an Iceberg table: {found['rows']:,} rows in {found['files']} Parquet "
            f"files ({size(found['bytes'])}); the last of them committed in {time.monotonic() - started:.1f} s"
        )
        self.check("table: rows with errors", 0, found["error_rows"])
        started = time.monotonic()
        rows = ask_duckdb(self.node.admin_address, TOPIC)
        self.say(f"DuckDB read it in {time.monotonic() - started:.1f} s, from the files, past the node")
        self.check_tally("table by DuckDB", sent.tally, tally_of(rows))
        self.check("table by DuckDB: different offsets", ROWS, sum(each.places for each in rows))
        try:
            by_spark = self.ask_spark()
        except (JavaNotFoundError, SparkNotFoundError, SparkVersionError) as reason:
            self.say(f"[yellow]Spark skipped[/yellow]: {reason}")
        else:
            self.check("table by Spark: the same rows of the query", rows, by_spark)
        self.console.print(delay_table(rows))

    def ask_spark(self) -> list[Departures]:
        """Query the table with Spark. Raises DemoError, and the errors of a missing Java or Spark."""
        # Only here: everything else of the demo runs without Spark.
        from pyspark.errors import PySparkException

        from anabranch.spark.jobs import silence_shutdown

        started = time.monotonic()
        with self.console.status("starting Spark"):
            spark = start_session(self.node.admin_address)
        try:
            ready = time.monotonic()
            with self.console.status("Spark reads the table"):
                rows = ask_spark(spark, TOPIC)
        except PySparkException as error:
            raise DemoError(f"Spark: {error}") from error
        except KeyboardInterrupt:
            silence_shutdown(spark)
            raise
        finally:
            spark.stop()
        self.say(
            f"Spark {spark.version} read it by the node's Iceberg catalog in {time.monotonic() - ready:.1f} s, "
            f"after a start of {ready - started:.1f} s"
        )
        return rows

    def verify(self) -> None:
        """Stop the node for good, and have every object read and compared with the catalog."""
        self.node.stop()
        words, code = verify_storage("--data-dir", str(self.folder / "node"))
        self.say(f"anabranch storage verify --deep: {words}")
        self.check("storage verify: exit code", 0, code)

    def look(self, moment: str) -> None:
        """Record the node's storage figures."""
        self.status = self.node.admin("GET", "/status")
        self.moments[moment] = storage_figures(self.status)

    def summary(self) -> bool:
        """Print the results. Returns whether all checks are exact."""
        self.console.print(moments_table("Storage (calls and bytes: since the node's start)", self.moments))
        self.console.print(check_table(self.checks))
        exact = all(check.holds for check in self.checks)
        seconds = time.monotonic() - self.started
        verdict = "[green]every count is exact[/green]" if exact else "[bold red]COUNTS DIFFER[/bold red]"
        self.console.print(
            f"{verdict}: {sum(c.holds for c in self.checks)} of {len(self.checks)} checks, {seconds:.0f} s"
        )
        return exact


def prepare(folder: Path) -> None:
    """Create an empty folder for this run. Only a folder of an earlier run is emptied. Raises DemoError."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).is_file():
            raise DemoError(f"{folder} is not empty and was not made by the demo: name another with --folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()


def where_to_look(demo: Demo) -> str:
    """Return suggestions for what to look at next."""
    folder = demo.folder
    return (
        f"Where to look next:\n"
        f"  .venv/bin/anabranch storage ls --data-dir {folder / 'node'}: the objects\n"
        f"  {folder / 'node' / 'objects' / 'table'}: the table's files\n"
        f"  {demo.node.log}: what the node said\n"
        f"  the node again, with this data: .venv/bin/anabranch serve --data-dir {folder / 'node'}\n"
        f"  docs/architecture.md: the way of a record, with file names"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Returns 0 when every count is exact, 1 when not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo-data"), help="folder for its data (%(default)s)")
    options = parser.parse_args(arguments)
    # py4j logs an interrupt with a stack trace. The demo prints its own messages.
    logging.disable()
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)
    with ExitStack() as stack:
        try:
            prepare(options.folder)
            demo = Demo(options.folder, console)
            stack.callback(demo.node.end)
            demo.run()
            demo.verify()
        except DemoError as error:
            console.print(f"[bold red]the demo failed[/bold red]: {error}", highlight=False)
            return 1
        except KeyboardInterrupt:
            console.print("stopped", style="yellow")
            return 130
        exact = demo.summary()
        console.print(where_to_look(demo), highlight=False)
        return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
