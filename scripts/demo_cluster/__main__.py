"""Run the demo of a cluster: `make demo-cluster`, or `python -m scripts.demo_cluster` after `make tools`.

Three nodes on PostgreSQL and an S3 server, all on free ports of this machine, which needs Go, Maven and PostgreSQL.
While librdkafka and Java produce, a group reads and Spark fills a table, one node is killed, one is added, and one is
stopped cleanly. Then every count is checked, and the timeline is drawn. Everything that was started is stopped, however
the demo ends.
"""

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from anabranch.spark.jars import SparkVersionError
from anabranch.spark.java import JavaNotFoundError, SparkNotFoundError
from scripts.demo.__main__ import WIDTH, prepare
from scripts.demo.clients import DemoError, create_topic
from scripts.demo.flights import Tally, read_flights
from scripts.demo.node import NodeProcess, verify_storage
from scripts.demo.report import Check, check_table
from scripts.demo_cluster.clients import FlightSender, JavaSender, Reader, Watch, end_offsets
from scripts.demo_cluster.picture import Timeline
from scripts.tools import TOOLS
from tests.support.postgres import postgres_server
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Bucket, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FLIGHTS, JAVA = "flights", "java"
PARTITIONS = 6
FLIGHTS_A_SECOND, JAVA_A_SECOND = 1_500, 500
SECONDS = 60
"""Time for which the producers work, without what the cluster makes them wait."""
QUIET_S = 10
"""Time before the first event, and between two."""
SETTLED_S = 120
KILLED, STOPPED, ADDED = 1, 2, 4
NODE_FLAGS = ["--wal-capacity-bytes=64MiB", "--storage-upload-age-ms=2000"]
SPARK_INTERVAL = "2 seconds"
NEEDED = frozenset({"kafka", "s3", "postgres"})
"""Tools without which there is no cluster, or nobody who uses it. Spark may be missing."""
NEEDS = "Go (it builds the S3 server), Maven (it fetches Kafka's Java client) and PostgreSQL"


class ClusterDemo:
    """One run. Each step prints what it did and adds to `checks`."""

    def __init__(self, folder: Path, console: Console, catalog_url: str, bucket: S3Bucket) -> None:
        self.folder = folder
        self.console = console
        self.flags = [f"--catalog-url={catalog_url}", "--cluster-internal-port=0", *NODE_FLAGS]
        self.flags += [f"--{name.replace('_', '-')}={value}" for name, value in bucket.node_settings().items()]
        self.nodes: dict[int, NodeProcess] = {}
        self.timeline = Timeline()
        self.checks: list[Check] = []
        self.began = time.monotonic()
        self.served: dict[int, float] = {}
        """Time since which each running node serves."""

    @property
    def servers(self) -> str:
        """Bootstrap servers of clients: all nodes of the start."""
        return ",".join(node.servers for node in self.nodes.values())

    @property
    def now_s(self) -> float:
        """Seconds since the clients started."""
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        """Print a line about a finished step."""
        self.console.print(f"[dim]{self.now_s:5.1f} s[/dim]  {text}", highlight=False)

    def check(self, what: str, expected: object, found: object) -> None:
        """Add a check of two values that must be equal."""
        self.checks.append(Check(what, expected, found))

    def start_node(self, node_id: int) -> float:
        """Start a node; returns the seconds it took."""
        home = self.folder / f"node-{node_id}"
        home.mkdir()
        node = self.nodes[node_id] = NodeProcess(home, [f"--node-id={node_id}", *self.flags])
        seconds = node.start()
        self.served[node_id] = self.now_s
        return seconds

    def note_end(self, node_id: int) -> None:
        """Add the life of a node that does not serve any more to the timeline."""
        self.timeline.lives.setdefault(node_id, []).append((self.served.pop(node_id), self.now_s))

    def end(self) -> None:
        """Make sure that all nodes have ended."""
        for node in self.nodes.values():
            node.end()

    def kill(self, node_id: int, watch: Watch) -> None:
        """Kill a node with SIGKILL, and wait until others lead its partitions."""
        led = watch.leaders()[node_id]
        began = time.monotonic()
        self.nodes[node_id].kill()
        self.note_end(node_id)
        self.timeline.events.append((self.now_s, f"kill -9 node {node_id}"))
        wait(lambda: sum(watch.leaders().values()) == 2 * PARTITIONS and not watch.leaders()[node_id], "new leaders")
        seconds = time.monotonic() - began
        self.say(f"node {node_id} killed with SIGKILL; others lead its {led} partitions {seconds:.1f} s later")

    def add(self, node_id: int) -> None:
        """Start one more node."""
        seconds = self.start_node(node_id)
        self.timeline.events.append((self.now_s, f"node {node_id} added"))
        self.say(f"node {node_id} added: it serves after {seconds:.1f} s")

    def stop_cleanly(self, node_id: int, watch: Watch) -> None:
        """Let a node go: its data is in objects and its partitions have other leaders before it ends."""
        led = watch.leaders()[node_id]
        self.timeline.events.append((self.now_s, f"node {node_id} stopped"))
        seconds = self.nodes[node_id].stop()
        self.note_end(node_id)
        self.say(f"node {node_id}, which led {led} partitions, stopped on SIGTERM in {seconds:.1f} s")

    def work(self, spark: "SparkSession | None") -> None:
        """Run the clients through all events, and compare what they saw."""
        for topic in (FLIGHTS, JAVA):
            create_topic(self.servers, topic, PARTITIONS)
        query = start_query(spark, self.servers, self.folder) if spark is not None else None
        self.began = time.monotonic()
        self.served = dict.fromkeys(self.served, 0.0)
        sender = FlightSender(self.servers, FLIGHTS, read_flights(), SECONDS * FLIGHTS_A_SECOND, FLIGHTS_A_SECOND)
        reader = Reader(self.servers, [FLIGHTS, JAVA], FLIGHTS)
        watch = Watch(self.servers, sender, reader, [FLIGHTS, JAVA], self.began)
        java = JavaSender(self.folder, self.servers, JAVA, SECONDS * JAVA_A_SECOND, JAVA_A_SECOND)
        try:
            for each in (sender, reader, watch):
                each.start()
            self.say(
                f"librdkafka sends {FLIGHTS_A_SECOND:,} flights a second, Java {JAVA_A_SECOND:,} records; a group reads"
                + (", Spark fills a table" if query is not None else "")
            )
            self.through_events(watch)
            self.check_producers(sender, java)
            self.check_reader(sender, reader)
            watch.stopping.set()
            if query is not None and spark is not None:
                self.check_table(spark, query, sender.tally)
        finally:
            java.end()
            for stopping in (reader.stopping, watch.stopping):
                stopping.set()
            for thread in (reader, watch):
                thread.join()
            self.timeline.samples = watch.samples

    def through_events(self, watch: Watch) -> None:
        """Bring the events, with time between them."""
        time.sleep(QUIET_S)
        self.kill(KILLED, watch)
        time.sleep(QUIET_S)
        self.add(ADDED)
        time.sleep(QUIET_S)
        self.stop_cleanly(STOPPED, watch)

    def check_producers(self, sender: FlightSender, java: JavaSender) -> None:
        """Wait for the producers, and check that each record was acknowledged once."""
        sender.join()
        told = java.wait(SETTLED_S)
        self.say(f"all producers have ended; Java's says: {told}")
        self.check("librdkafka: records refused", [], sender.failures[:1])
        self.check("librdkafka: flights acknowledged", SECONDS * FLIGHTS_A_SECOND, sender.acked)
        ends = {topic: sum(end_offsets(self.servers, topic, PARTITIONS)) for topic in (FLIGHTS, JAVA)}
        self.check("flights: offsets of all partitions", SECONDS * FLIGHTS_A_SECOND, ends[FLIGHTS])
        self.check("Java: records sent", True, told.startswith(f"{SECONDS * JAVA_A_SECOND} records sent"))
        self.check("java: offsets of all partitions", SECONDS * JAVA_A_SECOND, ends[JAVA])

    def check_reader(self, sender: FlightSender, reader: Reader) -> None:
        """Wait until the group has read everything, and check that nothing is missing or out of order."""
        wanted = {FLIGHTS: SECONDS * FLIGHTS_A_SECOND, JAVA: SECONDS * JAVA_A_SECOND}
        wait(lambda: all(reader.count(topic) >= count for topic, count in wanted.items()), "the group has read all")
        for topic, count in wanted.items():
            self.check(f"group: different records of {topic}", count, reader.count(topic))
        self.check("group: records out of order", 0, reader.disordered)
        self.check("group: flights as sent", True, reader.tally == sender.tally)
        acked = {partition: len(offsets) for partition, offsets in sender.offsets.items()}
        read = {partition: len(offsets) for partition, offsets in reader.seen[FLIGHTS].items()}
        self.check("group: flights of each partition", Counter(acked), Counter(read))
        self.say(f"the group has read {sum(wanted.values()):,} records")

    def check_table(self, spark: "SparkSession", query: "StreamingQuery", sent: Tally) -> None:
        """Let Spark finish, and compare its table with what was sent."""
        from scripts.demo_cluster.table import examine

        query.processAllAvailable()
        self.timeline.batches = batches_of(query, self.began)
        query.stop()
        found = examine(spark, self.folder)
        self.check("Spark's table: flights as sent", True, found.tally == sent)
        self.check("Spark's table: rows", sent.rows, found.tally.rows)
        self.check("Spark's table: distinct offsets", sent.rows, found.distinct_offsets)
        self.say(f"Spark {spark.version} has filled a table of {found.tally.rows:,} rows in {found.files} files")

    def verify(self) -> None:
        """Stop the nodes that are left, and have every object read and compared with the catalog."""
        for node_id in list(self.served):
            self.note_end(node_id)
        for node in self.nodes.values():
            if node.running:
                node.stop()
        last = self.nodes[ADDED]
        storage = [flag for flag in last.flags if flag.startswith(("--catalog-url", "--objects", "--data-dir"))]
        config = self.folder / "verify.toml"
        config.write_text(toml_of(storage))
        words, code = verify_storage("--config", str(config))
        self.say(f"anabranch storage verify --deep: {words}")
        self.check("storage verify: exit code", 0, code)

    def summary(self, picture: Path) -> bool:
        """Draw the timeline and print the results. Returns whether all checks are exact."""
        picture.write_text(self.timeline.svg())
        self.console.print(check_table(self.checks))
        exact = all(check.holds for check in self.checks)
        verdict = "[green]every count is exact[/green]" if exact else "[bold red]COUNTS DIFFER[/bold red]"
        self.console.print(f"{verdict}: {sum(c.holds for c in self.checks)} of {len(self.checks)} checks")
        self.console.print(f"the timeline: {picture}", highlight=False)
        return exact


def toml_of(flags: Sequence[str]) -> str:
    """Return the settings file that says the same as flags of the form `--area-name=value`."""
    areas: dict[str, list[str]] = {}
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition("=")
        area, _, key = ("node", "", "data-dir") if name == "data-dir" else name.partition("-")
        areas.setdefault(area, []).append(f'{key.replace("-", "_")} = "{value}"')
    return "".join(f"[{area}]\n" + "\n".join(lines) + "\n" for area, lines in areas.items())


def wait(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds. Raises DemoError after a while."""
    end = time.monotonic() + SETTLED_S
    while not condition():
        if time.monotonic() > end:
            raise DemoError(f"waited {SETTLED_S} s in vain: {what}")
        time.sleep(0.05)


def start_query(spark: "SparkSession", servers: str, folder: Path) -> "StreamingQuery":
    """Start the project's ingest of the flights, which goes on until it is stopped."""
    from anabranch.spark.pipeline.run import start_pipeline
    from anabranch.spark.pipeline.settings import PipelineSettings
    from scripts.demo.delays import FLIGHT_SCHEMA

    schema = folder / "flights.ddl"
    schema.write_text(FLIGHT_SCHEMA)
    settings: dict[str, Any] = {
        "checkpoint": str(folder / "checkpoint"),
        "source": {"bootstrap_servers": servers, "topics": [FLIGHTS]},
        "decode": {"format": "json", "schema_file": str(schema)},
        "table": {"format": "parquet", "location": str(folder / "table"), "partition_by": "month"},
        "trigger": {"mode": "processing-time", "interval": SPARK_INTERVAL},
    }
    return start_pipeline(spark, PipelineSettings.model_validate(settings)).query


def batches_of(query: "StreamingQuery", began: float) -> list[tuple[float, int]]:
    """Return the time and the records of each micro-batch."""
    offset_s = time.time() - time.monotonic() + began
    return [
        (datetime.fromisoformat(each["timestamp"]).timestamp() - offset_s, each["numInputRows"])
        for each in query.recentProgress
    ]


@contextmanager
def session(console: Console) -> "Iterator[SparkSession | None]":
    """Start Spark, or print why it is left out."""
    # Only here: everything else of the demo runs without Spark.
    try:
        from scripts.demo.table import start_session

        with console.status("starting Spark"):
            spark = start_session("local[2]")
    except (ModuleNotFoundError, JavaNotFoundError, SparkNotFoundError, SparkVersionError) as reason:
        console.print(f"[yellow]Spark skipped[/yellow]: {reason}", highlight=False)
        yield None
        return
    try:
        yield spark
    finally:
        spark.stop()


def run(folder: Path, console: Console, picture: Path) -> bool:
    """Start the servers, run the demo, and stop everything. Returns whether all checks are exact."""
    if missing := [tool.purpose for tool in TOOLS if tool.name in NEEDED and tool.present() is None]:
        raise DemoError(f"it needs {NEEDS}; missing, see above: {', '.join(missing)}")
    with ExitStack() as stack:
        postgres = stack.enter_context(postgres_server())
        bucket = stack.enter_context(s3_server(folder / "store")).new_bucket()
        spark = stack.enter_context(session(console))
        demo = ClusterDemo(folder, console, postgres.new_database(), bucket)
        stack.callback(demo.end)
        for node_id in (1, 2, 3):
            seconds = demo.start_node(node_id)
            demo.say(f"node {node_id} serves on {demo.nodes[node_id].servers} after {seconds:.1f} s")
        demo.work(spark)
        demo.verify()
        return demo.summary(picture)


def main(arguments: Sequence[str]) -> int:
    """Run the demo. Returns 0 when every count is exact, 1 when not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make demo-cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("demo-data/cluster"), help="for its data (%(default)s)")
    parser.add_argument("--picture", type=Path, help="file of the timeline (default: cluster.svg in the folder)")
    options = parser.parse_args(arguments)
    logging.disable()  # py4j logs an interrupt with a stack trace
    console = Console(width=None if sys.stdout.isatty() else WIDTH, soft_wrap=False)
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    try:
        prepare(options.folder)
        exact = run(options.folder, console, options.picture or options.folder / "cluster.svg")
    except DemoError as error:
        console.print(f"[bold red]the demo failed[/bold red]: {error}", highlight=False)
        return 1
    except KeyboardInterrupt:
        console.print("stopped", style="yellow")
        return 130
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
