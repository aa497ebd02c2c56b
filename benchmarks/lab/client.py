"""Loads by clients in a warm process of their own: Apache Kafka's in a JVM (PerfClient.java), Python's in Python."""

import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TypeAlias

from benchmarks.lab.processes import cpu_s_of, java_in, kafka_class_path

DRIVER = Path(__file__).with_name("PerfClient.java")
PYTHON_DRIVER = Path(__file__).with_name("python_client.py")
LONG_S = 3600
ANSWER_TIMEOUT_S = 300.0
"""Longest wait for an answer, beyond the duration of the load."""
Options: TypeAlias = Mapping[str, str | float]


class Meter(Protocol):
    """Measures a broker from the moment the clients are connected until the load ends."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True)
class Latency:
    """Percentiles in ms."""

    p50_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float


@dataclass(frozen=True)
class Outcome:
    """Figures of a load. `ack` is the latency until the ack, `read` until a consumer has the record."""

    seconds: float
    sent_records: int
    requests: int
    read_records: int
    read_bytes: int
    history_bytes: int
    ack: Latency | None
    read: Latency | None


class PerfClient:
    """The process with the clients. A load that does not answer in time ends it; the next load starts another."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def command(self) -> Sequence[str]:
        """Return the command that starts it."""
        # Quiet clients: only the driver's own lines are parsed.
        options = ["-Xms2g", "-Xmx2g", "-Dlog4j2.level=ERROR"]
        return [*java_in(self._log.parent), *options, "-cp", kafka_class_path(), str(DRIVER)]

    def __enter__(self) -> Self:
        self._errors = self._log.open("wb")
        self._start()
        return self

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(kill=kind is not None)
        self._errors.close()

    def _stop(self, *, kill: bool) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if kill:
            self._process.kill()
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def cpu_s(self) -> float:
        """Return the CPU seconds that the process has used so far."""
        return cpu_s_of(self._process.pid)

    def load(self, port: int, topic: str, *, options: Options, meter: Meter | None = None) -> Outcome:
        """Send records, with consumers beside or without; the driver lists the options. In the JVM acks is all.

        Records that were not acknowledged, or not read by the consumers, make it fail.
        """
        found = self.run("load", {"port": port, "topic": topic, **options}, meter)
        sent, acked, read = (int(found[f"{name}.records"]) for name in ("sent", "acked", "read"))
        if acked != sent or (options.get("consumers") and read != sent):
            raise RuntimeError(f"{topic}: {sent} records sent, {acked} acknowledged, {read} read")
        return outcome(found)

    def read(self, port: int, topic: str, *, partitions: int, passes: int, meter: Meter | None = None) -> Outcome:
        """Read a topic from its beginning to its end, `passes` times, without a group."""
        options: Options = {"port": port, "topic": topic, "partitions": partitions, "passes": passes}
        return outcome(self.run("read", options, meter))

    def produce(self, port: int, topic: str, *, records: int, record_bytes: int, batch_bytes: int) -> Outcome:
        """Send that many records as fast as possible."""
        options = {"records": records, "record.bytes": record_bytes, "producer.batch.size": batch_bytes}
        found = self.load(port, topic, options={**options, "seconds": LONG_S})
        if found.sent_records != records:
            raise RuntimeError(f"{topic}: {found.sent_records} of {records} records sent")
        return found

    def run(self, command: str, options: Options, meter: Meter | None) -> dict[str, float]:
        """Run a command of the driver. Returns the figures of its result."""
        if self._process.poll() is not None:
            self._stop(kill=True)
            self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        found: dict[str, float] | None = None
        lines: list[str] = []
        watch = threading.Timer(ANSWER_TIMEOUT_S + float(options.get("seconds", 0)), self._process.kill)
        watch.start()
        try:
            self._say("\t".join((command, *(f"{name}={value}" for name, value in options.items()))))
            for line in self._process.stdout:
                if line == "== ready\n":
                    if meter is not None:
                        meter.start()
                    self._say("go")
                elif line.startswith("== result "):
                    if meter is not None:
                        meter.stop()
                    found = parse(line)
                elif line == "== done\n" and found is not None:
                    return found
                else:
                    lines.append(line.rstrip())
                    if line.startswith("== "):
                        break
        finally:
            watch.cancel()
        raise RuntimeError(f"{command} failed:\n" + "\n".join(lines[-20:]) + f"\n(see {self._log})")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


class PythonClient(PerfClient):
    """The process with Python's producers (python_client.py), which takes loads alone."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-P", str(PYTHON_DRIVER)]  # without the driver's folder in the path of imports


def parse(line: str) -> dict[str, float]:
    """Parse a line `== result NAME=VALUE ...`."""
    pairs = (word.split("=") for word in line.split()[2:])
    return {name: float(value) for name, value in pairs}


def outcome(found: Mapping[str, float]) -> Outcome:
    """Return the figures of a result line. Missing counts are 0, missing latencies None."""
    return Outcome(
        seconds=found["seconds"],
        sent_records=int(found.get("sent.records", 0)),
        requests=int(found.get("requests", 0)),
        read_records=int(found.get("read.records", 0)),
        read_bytes=int(found.get("read.bytes", 0)),
        history_bytes=int(found.get("history.bytes", 0)),
        ack=latency(found, "ack"),
        read=latency(found, "read"),
    )


def latency(found: Mapping[str, float], name: str) -> Latency | None:
    """Return the latency of that name, if it was measured."""
    if f"{name}.p50_us" not in found:
        return None
    return Latency(*(found[f"{name}.{label}_us"] / 1e3 for label in ("p50", "p99", "p999", "max")))
