"""Spark over topics: its Kafka source on this node and on Apache Kafka, compaction as a job, and a pipeline.

Everything runs on this machine at the same time: both brokers with their defaults, one Spark session (`local[*]`). Each
scan reads all columns of a topic into nothing (`format("noop")`); CPU is user and system of Spark (its JVM and Python
workers together) and of the broker. The Kafka source is the tuned one, `kafka.max.poll.records=10000`. Ratios are of
medians of one run, scans of the sources taken in turn.

    python -m benchmarks.spark [--quick] [--json FILE] [--only PART] [--record-bytes N] [--mib N] [--rounds N]
        [--master M]
"""

import argparse
import asyncio
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from anabranch.compaction.blocks import BLOCK_COST_BYTES
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import UploadCommit
from anabranch.s3stream.model import NodeIdentity, ObjectKind, StreamBatch, StreamOwner, object_key
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.s3stream.store.config import StoreConfig
from anabranch.spark.compact import SparkCompaction
from anabranch.spark.direct import register
from anabranch.spark.pipeline.run import start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.session import build_session
from anabranch.spark.storage import StorageLocation, opened_stores
from benchmarks.lab.client import PerfClient
from benchmarks.lab.processes import Anabranch, ApacheKafka, Broker, MissingError
from benchmarks.support import CONSOLE, Report, middle, parser
from scripts.demo.clients import send
from scripts.demo.delays import FLIGHT_SCHEMA
from scripts.demo.flights import read_flights
from tests.support.fault_proxy import Fault, fault_proxy_thread
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Server, s3_server

MIB = 1 << 20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PARTITIONS = 4
BATCH_BYTES = 256 * 1024
TUNED = {"kafka.max.poll.records": "10000"}
COMMIT_TIMEOUT_S = 60.0
BACKLOG_OBJECTS = 32
LATE_MS = 100
"""Time that the late store adds to each call."""
LATE_BYTES = 32 * MIB
"""Size of a backlog in it."""


@dataclass(frozen=True)
class Plan:
    """Amount of work."""

    rounds: int
    topic_bytes: dict[int, int]
    """Bytes of a topic by record size."""
    compact_bytes: int


QUICK = Plan(2, {100: 24 * MIB, 1024: 128 * MIB, 10 * 1024: 128 * MIB}, 128 * MIB)
FULL = Plan(5, {100: 128 * MIB, 1024: 512 * MIB, 10 * 1024: 512 * MIB}, 512 * MIB)


@dataclass
class Samples:
    """Figures of one way to read one topic."""

    seconds: list[float] = field(default_factory=list)
    spark_cpu_s: list[float] = field(default_factory=list)
    broker_cpu_s: list[float] = field(default_factory=list)


class Lab:
    """Brokers, Spark, and the measurements."""

    def __init__(self, spark: SparkSession, ours: Anabranch, peer: ApacheKafka, client: PerfClient, plan: Plan) -> None:
        self.spark = spark
        self.ours = ours
        self.peer = peer
        self.client = client
        self.plan = plan
        self.report = Report("Spark over topics")

    def kafka(self, broker: Broker, topic: str) -> DataFrame:
        """Scan with Spark's Kafka source."""
        options = {"kafka.bootstrap.servers": f"127.0.0.1:{broker.port}", "subscribe": topic, **TUNED}
        return self.spark.read.format("kafka").options(**options).load()

    def measure(self, samples: Samples | None, broker: Broker, scan: Callable[[], DataFrame]) -> None:
        """Measure one scan."""
        spark_cpu, broker_cpu, begin = spark_cpu_s(self.spark), broker.cpu_s(), time.perf_counter()
        scan().write.format("noop").mode("overwrite").save()
        if samples is not None:
            samples.seconds.append(time.perf_counter() - begin)
            samples.spark_cpu_s.append(spark_cpu_s(self.spark) - spark_cpu)
            samples.broker_cpu_s.append(broker.cpu_s() - broker_cpu)


def spark_cpu_s(spark: SparkSession) -> float:
    """Return CPU seconds of Spark's JVM and all its children, dead ones included."""
    return sum(spark_cpus_s(spark))


def spark_cpus_s(spark: SparkSession) -> tuple[float, float]:
    """Return CPU seconds of Spark's JVM, and those of all its children, dead ones included."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - there is no other way to it
    assert gateway is not None
    root = gateway.proc.pid
    parents: dict[int, list[int]] = {}
    own: dict[int, int] = {}
    buried: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text[text.rindex(")") + 2 :].split()
        pid = int(stat.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        own[pid], buried[pid] = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    ticks, todo = buried[root], list(parents.get(root, []))
    while todo:
        pid = todo.pop()
        ticks += own[pid] + buried[pid]
        todo += parents.get(pid, [])
    return own[root] / TICKS_PER_S, ticks / TICKS_PER_S


def wait_committed(node: Anabranch, topic: str, records: int) -> None:
    """Wait until the topic's records are in objects."""

    async def count() -> int:
        catalog = Catalog(f"sqlite:///{node.home / 'data' / 'catalog.db'}")
        await catalog.open(cluster="anabranch")
        try:
            (found,) = [each for each in await catalog.list_topics() if each.name == topic]
            infos = await catalog.get_streams([each.stream_id for each in found.partitions])
            return sum(info.end_offset for info in infos.values())
        finally:
            await catalog.close()

    deadline = time.monotonic() + COMMIT_TIMEOUT_S
    while asyncio.run(count()) < records:
        if time.monotonic() > deadline:
            raise RuntimeError(f"topic {topic} is not in objects after {COMMIT_TIMEOUT_S} s")
        time.sleep(0.1)


def sources(lab: Lab, record_bytes: int) -> None:
    """Measure both brokers with the Kafka source."""
    topic = f"records-{record_bytes}"
    records = lab.plan.topic_bytes[record_bytes] // record_bytes
    brokers: tuple[Broker, ...] = (lab.ours, lab.peer)
    for broker in brokers:
        broker.create_topic(topic, PARTITIONS)
        lab.client.produce(broker.port, topic, records=records, record_bytes=record_bytes, batch_bytes=BATCH_BYTES)
    wait_committed(lab.ours, topic, records)
    ways: dict[str, tuple[Broker, Callable[[], DataFrame]]] = {
        "kafka-source": (lab.ours, lambda: lab.kafka(lab.ours, topic)),
        "kafka-source.apache": (lab.peer, lambda: lab.kafka(lab.peer, topic)),
    }
    found = {name: Samples() for name in ways}
    assert lab.kafka(lab.ours, topic).count() == records
    for broker, scan in ways.values():
        lab.measure(None, broker, scan)
    for round_ in range(lab.plan.rounds):
        order = list(ways) if round_ % 2 == 0 else list(ways)[::-1]
        for name in order:
            lab.measure(found[name], *ways[name])
    size = "100 B" if record_bytes == 100 else f"{record_bytes // 1024} KiB"
    add_sources(lab.report, size, records, found)


def all_sources(lab: Lab, _home: Path) -> None:
    """Measure the sources for each size of records."""
    for record_bytes in lab.plan.topic_bytes:
        sources(lab, record_bytes)


def add_sources(report: Report, size: str, records: int, found: dict[str, Samples]) -> None:
    """Add the figures of one record size."""
    rates = {}
    for name, samples in found.items():
        rates[name] = report.add(f"{name}.{size}.rows", records / middle(samples.seconds), "rows/s")
        report.add(f"{name}.{size}.spark-cpu", middle(samples.spark_cpu_s) / records * 1e6, "s/M rows")
        report.add(f"{name}.{size}.broker-cpu", middle(samples.broker_cpu_s) / records * 1e6, "s/M rows")
    report.add(f"kafka-source.{size}.rows.ratio", rates["kafka-source"] / rates["kafka-source.apache"], "x", ">= 1")


# compaction


@dataclass(frozen=True)
class Backlog:
    """Stream set objects, each with a block of every stream. Every stream becomes an object of its own."""

    streams: int
    size_bytes: int

    def memory_for(self, tasks: int) -> int:
        """Return the memory of a task for which the plan has that many."""
        calls = self.streams * CompactionSettings().call_cost_bytes
        cost = self.size_bytes + self.streams * BACKLOG_OBJECTS * BLOCK_COST_BYTES + calls
        return cost * 21 // 20 // tasks


def backlogs(size_bytes: int) -> dict[str, Backlog]:
    """Return backlogs of that size by name."""
    return {"small": Backlog(1024, size_bytes), "large": Backlog(16, size_bytes)}


class Storage:
    """Places for the storage of a run: local folders, or buckets of an S3 server that answers late."""

    def __init__(self, home: Path, server: S3Server | None = None, endpoint: str = "") -> None:
        self._home = home
        self._server = server
        self._endpoint = endpoint
        self._numbers = itertools.count()

    def new(self) -> tuple[StorageLocation, Path]:
        """Return a new location and the folder of its objects."""
        folder = self._home / f"storage-{next(self._numbers)}"
        if self._server is None:
            store, objects = StoreConfig("local", "local", path=folder / "objects"), folder / "objects"
        else:
            bucket = self._server.new_bucket()
            store = StoreConfig("s3", "s3", bucket=bucket.name, endpoint=self._endpoint)
            objects = bucket.folder
        folder.mkdir(parents=True)
        objects.mkdir(exist_ok=True)
        return StorageLocation("anabranch", f"sqlite:///{folder / 'catalog.db'}", (store,)), objects

    def copy(self, location: StorageLocation, objects: Path) -> tuple[StorageLocation, Path]:
        """Return a copy of storage that is not in use."""
        fresh, folder = self.new()
        shutil.copytree(objects, folder, dirs_exist_ok=True)
        shutil.copy(location.catalog_url.removeprefix("sqlite:///"), fresh.catalog_url.removeprefix("sqlite:///"))
        return fresh, folder


async def fill_sets(location: StorageLocation, backlog: Backlog) -> None:
    """Write a backlog."""
    catalog = Catalog(location.catalog_url)
    await catalog.open(cluster="anabranch")
    try:
        async with opened_stores(location, read_only=False) as stores:
            ((name, store),) = stores.items()
            now_ms = time.time_ns() // 1_000_000
            node = await catalog.register_node(1, "127.0.0.1", 1, now_ms=now_ms, lease_ms=0)
            topic = await catalog.create_topic(
                "compact", bytes(16), partitions=backlog.streams, configs={}, leader=1, internal=False
            )
            ids = [partition.stream_id for partition in topic.partitions]
            opened = await catalog.open_streams(ids, StreamOwner(1, node.epoch, "bench"))
            epochs = {each.info.stream_id: each.info.epoch for each in opened}
            payload = os.urandom(backlog.size_bytes // BACKLOG_OBJECTS // backlog.streams - 64)
            for number in range(BACKLOG_OBJECTS):
                (object_id,) = await catalog.prepare_objects(
                    1, node=NodeIdentity(1, node.epoch), writer_id="bench", store=name, now_ms=now_ms,
                    deadline_ms=now_ms + 3_600_000,
                )  # fmt: skip
                writer = ObjectWriter(
                    store,
                    object_key("anabranch", object_id),
                    object_id=object_id,
                    kind=ObjectKind.SSO,
                    writer_id="bench",
                )
                async with writer:
                    for stream_id in ids:
                        await writer.write(StreamBatch(stream_id, number, number + 1, 1, now_ms, payload))
                    made = await writer.finish()
                await catalog.commit_upload(UploadCommit(NodeIdentity(1, node.epoch), [made], epochs, {}, now_ms))
    finally:
        await catalog.close()


def compaction(lab: Lab, home: Path) -> None:
    """Compact backlogs in 1, 2 and 4 tasks, in a local folder and in a store that answers late."""
    late = Fault(delay_ms=LATE_MS)
    with s3_server(home) as server, fault_proxy_thread(server.endpoint, lambda _: late) as endpoint:
        for name, backlog in backlogs(lab.plan.compact_bytes).items():
            measure_compaction(lab, f"compact.{name}", Storage(home / name), backlog)
        for name, backlog in backlogs(LATE_BYTES).items():
            storage = Storage(home / f"{name}-late", server, endpoint)
            measure_compaction(lab, f"compact.{name}.late", storage, backlog)


def measure_compaction(lab: Lab, name: str, storage: Storage, backlog: Backlog) -> None:
    """Compact copies of a backlog, with each number of tasks in turn."""
    original = storage.new()
    asyncio.run(fill_sets(original[0], backlog))
    found = {tasks: Samples() for tasks in (1, 2, 4)}
    for round_ in range(-1, lab.plan.rounds):
        order = list(found) if round_ % 2 == 0 else list(found)[::-1]
        for tasks in order:
            location, objects = storage.copy(*original)
            cpu, begin = spark_cpu_s(lab.spark), time.perf_counter()
            compact_once(lab, location, backlog, tasks)
            if round_ >= 0:
                found[tasks].seconds.append(time.perf_counter() - begin)
                found[tasks].spark_cpu_s.append(spark_cpu_s(lab.spark) - cpu)
            shutil.rmtree(objects)
    shutil.rmtree(original[1])
    for tasks, samples in found.items():
        lab.report.add(f"{name}.{tasks}.wall", middle(samples.seconds), "s")
        lab.report.add(f"{name}.{tasks}.spark-cpu", middle(samples.spark_cpu_s), "s")
    for tasks in (2, 4):
        speed_up = middle(found[1].seconds) / middle(found[tasks].seconds)
        lab.report.add(f"{name}.{tasks}.speed-up", speed_up, "x")


def compact_once(lab: Lab, location: StorageLocation, backlog: Backlog, tasks: int) -> None:
    """Compact a backlog with a number of tasks."""
    settings = replace(CompactionSettings(), memory_bytes=backlog.memory_for(tasks), split_bytes=1)
    numbers = itertools.count()
    run = SparkCompaction(
        lab.spark,
        location,
        settings,
        now_ms=lambda: time.time_ns() // 1_000_000,
        new_writer_id=lambda: f"bench-{next(numbers)}",
    )
    summary = asyncio.run(run.run())
    assert not summary.refused, summary.refused
    assert summary.tasks == tasks, f"{summary.tasks} tasks instead of {tasks}"


# ingest


def ingest(lab: Lab, home: Path) -> None:
    """Copy the flights of 2013 into a new Iceberg table with a pipeline, a query's start and end included."""
    topic, servers = "flights", f"127.0.0.1:{lab.ours.port}"
    lab.ours.create_topic(topic, PARTITIONS)
    flights = itertools.chain.from_iterable(read_flights() for _ in range(lab.plan.rounds))
    rows = send(servers, topic, flights, lambda _done: None).tally.rows
    schema = home / "flights.ddl"
    schema.write_text(FLIGHT_SCHEMA)
    ways = {"bytes": {}, "json": {"format": "json", "schema_file": str(schema)}}
    found = {name: Samples() for name in ways}
    for round_ in range(-1, lab.plan.rounds):
        for name, decode in ways.items():
            folder = home / f"ingest-{name}-{round_}"
            pipeline = PipelineSettings.model_validate(
                {
                    "checkpoint": str(folder / "checkpoint"),
                    "source": {"bootstrap_servers": servers, "topics": [topic]},
                    "decode": decode,
                    # A separate catalog: a session keeps the first warehouse of a catalog.
                    "table": {"name": f"{name}{round_ + 1}.air.flights", "partition_by": "month"},
                    "catalog": {"warehouse": str(folder / "lake")},
                }
            )
            spark_cpu, broker_cpu, begin = spark_cpu_s(lab.spark), lab.ours.cpu_s(), time.perf_counter()
            running = start_pipeline(lab.spark, pipeline)
            running.query.awaitTermination()
            if round_ >= 0:
                found[name].seconds.append(time.perf_counter() - begin)
                found[name].spark_cpu_s.append(spark_cpu_s(lab.spark) - spark_cpu)
                found[name].broker_cpu_s.append(lab.ours.cpu_s() - broker_cpu)
            assert lab.spark.table(pipeline.table.name or "").count() == rows
            shutil.rmtree(folder)
    for name, samples in found.items():
        lab.report.add(f"ingest.iceberg.{name}.rows", rows / middle(samples.seconds), "rows/s")
        lab.report.add(f"ingest.iceberg.{name}.spark-cpu", middle(samples.spark_cpu_s) / rows * 1e6, "s/M rows")
        lab.report.add(f"ingest.iceberg.{name}.broker-cpu", middle(samples.broker_cpu_s) / rows * 1e6, "s/M rows")


# all of it


@contextmanager
def session(home: Path, master: str | None = None) -> Iterator[SparkSession]:
    """Start Spark, on all cores by default, with its files under `home`."""
    spark = build_session(
        "anabranch benchmark",
        master=master,
        settings={
            "spark.driver.memory": "2g",
            "spark.local.dir": str(home / "spark"),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
        },
        table_formats=["iceberg"],
    )
    register(spark)
    try:
        yield spark
    finally:
        spark.stop()


def main() -> None:
    """Run the benchmark."""
    made = parser("Spark over topics, beside Apache Kafka.")
    made.add_argument("--only", choices=[name for name, _ in parts()], action="append", help="only this part")
    made.add_argument("--record-bytes", choices=list(FULL.topic_bytes), type=int, help="scan records of this size only")
    made.add_argument("--mib", type=int, help="size of each topic that is scanned and of what is compacted")
    made.add_argument("--rounds", type=int, help="how often each figure is measured")
    made.add_argument("--master", help="Spark's master; by default local[*]")
    options = made.parse_args()
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    try:
        measure(options, home)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(home)


def parts() -> Sequence[tuple[str, Callable[[Lab, Path], None]]]:
    """Return the parts, in order."""
    return (
        ("sources", all_sources),
        ("compaction", compaction),
        ("ingest", ingest),
    )


def measure(options: argparse.Namespace, home: Path) -> None:
    """Start everything, measure, report."""
    plan = QUICK if options.quick else FULL
    sizes = {options.record_bytes: plan.topic_bytes[options.record_bytes]} if options.record_bytes else plan.topic_bytes
    if options.mib:
        sizes = dict.fromkeys(sizes, options.mib * MIB)
        plan = replace(plan, compact_bytes=options.mib * MIB)
    plan = replace(plan, topic_bytes=sizes, rounds=options.rounds or plan.rounds)
    # Spark's processes inherit the keys of the S3 server from this one.
    os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    ours = Anabranch(home / "anabranch", ["--storage-upload-age-ms=500", "--compaction-enabled=false"])
    peer = ApacheKafka(home / "kafka")
    with ExitStack() as stack:
        for broker in (ours, peer):
            stack.enter_context(broker)
        client = stack.enter_context(PerfClient(home / "client.log"))
        lab = Lab(stack.enter_context(session(home, options.master)), ours, peer, client, plan)
        for name, part in parts():
            if not options.only or name in options.only:
                CONSOLE.print(f"{name} ...")
                part(lab, home)
    lab.report.finish(options)


if __name__ == "__main__":
    main()
