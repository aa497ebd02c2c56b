"""Apache Kafka's ProducerPerformance and ConsumerPerformance, run repeatedly in one warm JVM."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.lab.processes import java, kafka_class_path

TOOLS = "org.apache.kafka.tools."
DRIVER = Path(__file__).with_name("PerfClient.java")
SENT = re.compile(
    r"(?P<records>\d+) records sent, (?P<rate>[\d.]+) records/sec \((?P<mb>[\d.]+) MB/sec\), "
    r"(?P<avg>[\d.]+) ms avg latency, (?P<max>[\d.]+) ms max latency, "
    r"(?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th"
)


@dataclass(frozen=True)
class Produced:
    """Report of ProducerPerformance. MB are 2^20 bytes, latencies in ms."""

    records: int
    mb_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class Consumed:
    """Report of ConsumerPerformance. The rate excludes the group's rebalance."""

    records: int
    mb_per_s: float


class PerfClient:
    """The JVM with the tools."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> Self:
        self._errors = self._log.open("wb")
        # Quiet clients: only the tools' own lines are parsed.
        command = [java(), "-Xms1g", "-Xmx1g", "-Dlog4j2.level=ERROR", "-cp", kafka_class_path(), str(DRIVER)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if kind is not None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _run(self, tool: str, *arguments: str) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join((TOOLS + tool, *arguments)) + "\n")
        self._process.stdin.flush()
        lines: list[str] = []
        for line in self._process.stdout:
            if line == "== done\n":
                return lines
            lines.append(line.rstrip())
            if line.startswith("== "):
                break
        raise RuntimeError(f"{tool} failed:\n" + "\n".join(lines[-20:]) + f"\n(see {self._log})")

    def produce(
        self, port: int, topic: str, *, records: int, record_bytes: int, batch_bytes: int, records_per_s: int = -1
    ) -> Produced:
        """Send records of random bytes with acks=all."""
        lines = self._run(
            "ProducerPerformance",
            "--bootstrap-server",
            f"127.0.0.1:{port}",
            "--topic",
            topic,
            "--num-records",
            str(records),
            "--record-size",
            str(record_bytes),
            "--throughput",
            str(records_per_s),
            "--command-property",
            "acks=all",
            f"batch.size={batch_bytes}",
        )
        found = next((match for line in reversed(lines) if (match := SENT.match(line))), None)
        if found is None or int(found["records"]) != records:
            raise RuntimeError(f"expected {records} records sent, found:\n" + "\n".join(lines[-20:]))
        return Produced(records, float(found["mb"]), float(found["p50"]), float(found["p99"]))

    def consume(self, port: int, topic: str, *, records: int) -> Consumed:
        """Read records from the earliest offset on, in a group of one."""
        lines = self._run(
            "ConsumerPerformance",
            "--bootstrap-server",
            f"127.0.0.1:{port}",
            "--topic",
            topic,
            "--num-records",
            str(records),
            "--timeout",
            "60000",
        )
        header = next((number for number, line in enumerate(lines) if line.startswith("start.time")), None)
        if header is None or header + 1 >= len(lines):
            raise RuntimeError("ConsumerPerformance printed no result:\n" + "\n".join(lines[-20:]))
        names, values = ([word.strip() for word in line.split(",")] for line in lines[header : header + 2])
        row = dict(zip(names, values, strict=True))
        found = int(row["data.consumed.in.nMsg"])
        if found < records:
            raise RuntimeError(f"expected {records} records read, found {found}")
        return Consumed(found, float(row["fetch.MB.sec"]))
