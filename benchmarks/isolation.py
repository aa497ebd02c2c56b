"""Tail latency during a read of all history: this node and Apache Kafka on one disk, driven by the same client.

    python -m benchmarks.isolation [--quick] [--json FILE] [--home DIR]

A client repeatedly writes a record of 1 KiB (acks=all) and reads it back, alone and while a separate process fetches
another partition from first to last offset, at a limited rate that is the same for both brokers. The history is several
times the size of the node's caches, so it comes from objects. Only one broker works at a time.
"""

import argparse
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from anabranch.client.connection import Connection
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.errors import CorruptBatch
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from benchmarks.lab.processes import Anabranch, ApacheKafka, Broker, MissingError
from benchmarks.support import Report, middle, p99, parser

KIB, MIB = 1 << 10, 1 << 20
RECORD_BYTES = 1 * KIB
HISTORY_BATCH_BYTES = 64 * KIB
FETCH_BYTES = 1 * MIB
CATCH_UP_BYTES_PER_S = 250 * MIB
PAUSE_S = 0.0005
NODE_FLAGS = (
    *("--storage-log-cache-bytes", "96MiB"),
    *("--storage-block-cache-bytes", "64MiB"),
)


@dataclass(frozen=True)
class Sizes:
    """Amount of work."""

    history_bytes: int
    rounds: int
    records: int


QUICK = Sizes(512 * MIB, 3, 1_500)
FULL = Sizes(2048 * MIB, 7, 8_000)


class Partition:
    """Partition 0 of a topic, through a separate connection."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        (found,) = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
        self._name, self._id = topic, found.topic_id

    def append(self, batch: bytes | bytearray) -> int:
        """Write a batch. Returns its offset."""
        data = [PartitionProduceData(index=0, records=batch)]
        topics = [TopicProduceData(name=self._name, topic_id=self._id, partition_data=data)]
        answer = self._connection.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics))
        result = answer.responses[0].partition_responses[0]
        assert not result.error_code, answer
        return int(result.base_offset)

    def fetch(self, offset: int) -> tuple[int, int]:
        """Read up to 1 MiB from an offset on. Returns the next offset and the bytes read."""
        wanted = [FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)]
        topics = [FetchTopic(topic=self._name, topic_id=self._id, partitions=wanted)]
        request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, topics=topics)
        answer: FetchResponse = self._connection.call(request)
        part = answer.responses[0].partitions[0]
        assert not part.error_code, answer
        records = memoryview(b"") if part.records is None else part.records
        assert isinstance(records, memoryview)
        return end_of(records, offset), len(records)


def end_of(records: memoryview, offset: int) -> int:
    """Return the offset after the complete batches of a records field. Apache Kafka cuts the last one short."""
    try:
        for header, _ in iterate_batches(records):
            offset = header.next_offset
    except CorruptBatch:
        pass
    return offset


# the reader of history


def catch_up(port: int, topic: str, history_end: int) -> None:
    """Read history repeatedly until standard input ends; then print the bytes a second."""
    with Connection("127.0.0.1", port) as connection:
        partition = Partition(connection, topic)
        offset = total = 0
        began = time.perf_counter()
        print("reading", flush=True)
        while True:
            due_s = began + total / CATCH_UP_BYTES_PER_S - time.perf_counter()
            if select.select([sys.stdin], [], [], max(0.0, due_s))[0]:
                print(total / (time.perf_counter() - began))
                return
            offset, size = partition.fetch(offset if offset < history_end else 0)
            total += size


class CatchUp:
    """The process that runs `catch_up`."""

    def __init__(self, broker: Broker, topic: str, history_end: int) -> None:
        options = ["--catch-up", str(broker.port), topic, str(history_end)]
        self._command = [sys.executable, "-m", "benchmarks.isolation", *options]
        self.bytes_per_s = 0.0

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        rate = self._process.communicate()[0]
        self.bytes_per_s = float(rate or "nan")


# the tail


def tail_latencies(partition: Partition, count: int) -> list[float]:
    """Return the seconds from sending a record to having read it back."""
    found = []
    for _ in range(count):
        batch = one_record(bytes(RECORD_BYTES))
        began = time.perf_counter()
        offset = partition.append(batch)
        partition.fetch(offset)
        found.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)
    return found


def write_history(partition: Partition, total_bytes: int) -> int:
    """Write that many bytes. Returns the end offset."""
    end = 0
    for _ in range(total_bytes // HISTORY_BATCH_BYTES):
        end = partition.append(one_record(os.urandom(HISTORY_BATCH_BYTES))) + 1
    return end


def one_record(value: bytes) -> bytearray:
    """Return a batch of one record with the current time."""
    return build_batch([Record(key=None, value=value, timestamp_ms=time.time_ns() // 1_000_000)])


@dataclass
class Samples:
    """A broker's p99s in seconds, one for each round."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    bytes_per_s: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios."""
        return middle([beside / alone for alone, beside in zip(self.alone, self.beside, strict=True)])


def measure(brokers: Sequence[Broker], sizes: Sizes) -> dict[str, Samples]:
    """Write history to both brokers, then alternate between them."""
    ends = {}
    for broker in brokers:
        for topic in ("history", "tail"):
            broker.create_topic(topic, 1)
        with broker.connect() as connection:
            ends[broker.name] = write_history(Partition(connection, "history"), sizes.history_bytes)
            tail_latencies(Partition(connection, "tail"), sizes.records)  # warms up
    found = {broker.name: Samples() for broker in brokers}
    for _ in range(sizes.rounds):
        for broker in brokers:
            samples = found[broker.name]
            with broker.connect() as connection:
                tail = Partition(connection, "tail")
                samples.alone.append(p99(tail_latencies(tail, sizes.records)))
                with CatchUp(broker, "history", ends[broker.name]) as reader:
                    samples.beside.append(p99(tail_latencies(tail, sizes.records)))
                samples.bytes_per_s.append(reader.bytes_per_s)
    return found


def main() -> None:
    """Run the benchmark, or the reader of history."""
    options_of = parser("The tail beside a reader of history, this node and Apache Kafka.")
    options_of.add_argument("--home", type=Path, help="folder for both brokers' data  [default: a new temporary one]")
    options_of.add_argument("--catch-up", nargs=3, help=argparse.SUPPRESS)
    options = options_of.parse_args()
    if options.catch_up:
        port, topic, history_end = options.catch_up
        catch_up(int(port), topic, int(history_end))
        return
    home = options.home or Path(tempfile.mkdtemp(prefix="anabranch-bench-"))
    report = Report("Isolation of the tail")
    try:
        with Anabranch(home / "anabranch", NODE_FLAGS) as node, ApacheKafka(home / "kafka") as kafka:
            found = measure((node, kafka), QUICK if options.quick else FULL)
    except MissingError as error:
        sys.exit(str(error))
    finally:
        if options.home is None:
            shutil.rmtree(home)
    for name, samples in found.items():
        report.add(f"{name}: p99 of produce and fetch alone", middle(samples.alone) * 1e3, "ms")
        report.add(f"{name}: p99 beside a catch-up reader", middle(samples.beside) * 1e3, "ms")
        report.add(f"{name}: the catch-up reader's rate", middle(samples.bytes_per_s) / MIB, "MiB/s")
        goal = "<= 1.5" if name == Anabranch.name else None
        report.add(f"{name}: p99 beside a catch-up reader over alone", samples.ratio, "ratio", goal)
    report.finish(options)


if __name__ == "__main__":
    main()
