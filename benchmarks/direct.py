"""The direct source beside the tuned Kafka source, in a session that is evenly warm.

One node with its defaults and one Spark session (`local[*]`) read topics of one size each, with records of 200 B, 1 KiB
and 10 KiB. First each source scans each topic several times, all in turn, so that the JVM has compiled what both need.
Then the same scans are measured in pairs, one of each source, whose order alternates. A scan reads all columns into
nothing (`format("noop")`). CPU is user and system of Spark's JVM, of its Python workers and of the node. Ratios are
medians over the pairs, with the quartiles beside them: other work on the machine slows down both scans of a pair.

With `--late-ms`, objects are in an S3 server that answers so much later. The Kafka source gets what fits in the node's
cache from there.

With `--compression`, records are hexadecimal digits, which any codec halves, in compressed batches; else they are equal
and not compressed.

    python -m benchmarks.direct [--quick] [--json FILE] [--record-bytes N] [--mib N] [--warm N] [--pairs N]
        [--late-ms N] [--compression CODEC]
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import quantiles

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from benchmarks.lab.client import PerfClient
from benchmarks.lab.processes import Anabranch, MissingError
from benchmarks.spark import BATCH_BYTES, MIB, PARTITIONS, TUNED, session, spark_cpus_s, wait_committed
from benchmarks.support import CONSOLE, Report, middle, parser
from tests.support.fault_proxy import Fault, fault_proxy_thread
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, s3_server

RECORD_BYTES = (200, 1024, 10 * 1024)
CPU_GOAL_BYTES_MIN = 1024
"""The goals are for records of this size and above."""


@dataclass(frozen=True)
class Scan:
    """Figures of one scan."""

    seconds: float
    jvm_cpu_s: float
    python_cpu_s: float
    node_cpu_s: float

    @property
    def cpu_s(self) -> float:
        """CPU seconds of Spark and the node."""
        return self.jvm_cpu_s + self.python_cpu_s + self.node_cpu_s


def measure(spark: SparkSession, node: Anabranch, frame: DataFrame) -> Scan:
    """Measure one scan."""
    (jvm, python), node_cpu, begin = spark_cpus_s(spark), node.cpu_s(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - begin
    jvm_after, python_after = spark_cpus_s(spark)
    return Scan(seconds, jvm_after - jvm, python_after - python, node.cpu_s() - node_cpu)


def topic_of(record_bytes: int) -> str:
    """Return the topic with records of a size."""
    return f"records-{record_bytes}"


def make_topics(node: Anabranch, client: PerfClient, counts: Mapping[int, int], codec: str | None) -> None:
    """Create the topics, and wait until all records are in objects."""
    for record_bytes, records in counts.items():
        topic = topic_of(record_bytes)
        node.create_topic(topic, PARTITIONS)
        if codec is None:
            client.produce(node.port, topic, records=records, record_bytes=record_bytes, batch_bytes=BATCH_BYTES)
        else:
            produce_compressed(node.port, topic, records, record_bytes, codec)
        wait_committed(node, topic, records)


def produce_compressed(port: int, topic: str, records: int, record_bytes: int, codec: str) -> None:
    """Send records of random hexadecimal digits."""
    random = Random(1)
    settings = {"bootstrap.servers": f"127.0.0.1:{port}", "compression.type": codec, "linger.ms": 50}
    producer = Producer({**settings, "batch.size": BATCH_BYTES})
    for number in range(records):
        value = random.randbytes(record_bytes // 2).hex()
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


@contextmanager
def storage(home: Path, late_ms: int) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
    """Yield flags of a node and options of the direct source that name where objects are."""
    if not late_ms:
        yield (), {"dataDir": str(home / "node" / "data")}
        return
    fault = Fault(delay_ms=late_ms)
    with s3_server(home) as server, fault_proxy_thread(server.endpoint, lambda _: fault) as endpoint:
        os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        bucket = server.new_bucket().name
        flags = {
            "--objects-store": "s3",
            "--objects-bucket": bucket,
            "--objects-endpoint": endpoint,
        }
        catalog = f"sqlite:///{home / 'node' / 'data' / 'catalog.db'}"
        options = {"catalog": catalog, "objects": f"s3://{bucket}", "endpoint": endpoint}
        yield [word for pair in flags.items() for word in pair], options


def scan_all(
    spark: SparkSession, node: Anabranch, direct: Mapping[str, str], counts: Mapping[int, int], rounds: int
) -> Iterator[tuple[int, str, Scan]]:
    """Scan every topic with both sources, `rounds` times. Yields record size, source and figures."""
    kafka = {"kafka.bootstrap.servers": f"127.0.0.1:{node.port}", **TUNED}
    ways: Mapping[str, Callable[[str], DataFrame]] = {
        "kafka-source": lambda topic: spark.read.format("kafka").options(**kafka, subscribe=topic).load(),
        "direct": lambda topic: spark.read.format("anabranch").options(**direct, subscribe=topic).load(),
    }
    for round_ in range(rounds):
        for record_bytes in counts:
            for name in list(ways) if round_ % 2 == 0 else list(ways)[::-1]:
                yield record_bytes, name, measure(spark, node, ways[name](topic_of(record_bytes)))


def add_figures(report: Report, record_bytes: int, records: int, kafka: list[Scan], direct: list[Scan]) -> None:
    """Add the figures of one record size."""
    size = f"{record_bytes} B" if record_bytes < 1024 else f"{record_bytes // 1024} KiB"
    for name, scans in {"kafka-source": kafka, "direct": direct}.items():
        report.add(f"{name}.{size}.rows", records / middle([scan.seconds for scan in scans]), "rows/s")
        report.add(f"{name}.{size}.jvm-cpu", middle([scan.jvm_cpu_s for scan in scans]), "s")
        report.add(f"{name}.{size}.python-cpu", middle([scan.python_cpu_s for scan in scans]), "s")
        report.add(f"{name}.{size}.node-cpu", middle([scan.node_cpu_s for scan in scans]), "s")
        report.add(f"{name}.{size}.cpu", middle([scan.cpu_s for scan in scans]), "s")
    has_goal = record_bytes >= CPU_GOAL_BYTES_MIN
    cpu = [mine.cpu_s / peer.cpu_s for mine, peer in zip(direct, kafka, strict=True)]
    rows = [peer.seconds / mine.seconds for mine, peer in zip(direct, kafka, strict=True)]
    for name, ratios, goal in (("cpu", cpu, "<= 0.7"), ("rows", rows, ">= 2.5")):
        low, median, high = quantiles(ratios, n=4, method="inclusive")
        report.add(f"{size}.{name}.ratio", median, "x", goal if has_goal else None)
        report.add(f"{size}.{name}.ratio.quartile-1", low, "x")
        report.add(f"{size}.{name}.ratio.quartile-3", high, "x")


def main() -> None:
    """Run the benchmark."""
    made = parser("The direct source beside the Kafka source.")
    made.add_argument("--record-bytes", type=int, action="append", help="only records of this size (200, 1024, 10240)")
    made.add_argument("--mib", type=int, help="size of each topic (512; 128 with --quick)")
    made.add_argument("--warm", type=int, help="scans of each source and topic before the measured ones (10; 4)")
    made.add_argument("--pairs", type=int, help="measured pairs of each topic (12; 5)")
    made.add_argument("--compression", choices=["gzip", "snappy", "lz4", "zstd"], help="codec of the batches")
    made.add_argument("--late-ms", type=int, default=0, help="objects in an S3 server that answers so much later")
    options = made.parse_args()
    size_bytes = (options.mib or (128 if options.quick else 512)) * MIB
    warm, pairs = options.warm or (4 if options.quick else 10), options.pairs or (5 if options.quick else 12)
    counts = {each: size_bytes // each for each in options.record_bytes or RECORD_BYTES}
    home = Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    report = Report("The direct source beside the Kafka source")
    try:
        with ExitStack() as stack:
            flags, direct_options = stack.enter_context(storage(home, options.late_ms))
            node = stack.enter_context(
                Anabranch(home / "node", ["--storage-upload-age-ms=500", "--compaction-enabled=false", *flags])
            )
            with PerfClient(home / "client.log") as client:
                make_topics(node, client, counts, options.compression)
            spark = stack.enter_context(session(home))
            found: dict[tuple[int, str], list[Scan]] = {}
            scans = scan_all(spark, node, direct_options, counts, warm + pairs)
            for number, (record_bytes, name, scan) in enumerate(scans):
                CONSOLE.print(
                    f"{'warm' if number < warm * len(counts) * 2 else 'pair'} {record_bytes:>6} {name:>12}: "
                    f"{scan.seconds:.2f} s, CPU {scan.jvm_cpu_s:.2f} + {scan.python_cpu_s:.2f} + {scan.node_cpu_s:.2f}"
                )
                found.setdefault((record_bytes, name), []).append(scan)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(home)
    for record_bytes, records in counts.items():
        kafka, direct = (found[record_bytes, name][warm:] for name in ("kafka-source", "direct"))
        add_figures(report, record_bytes, records, kafka, direct)
    report.finish(options)


if __name__ == "__main__":
    main()
