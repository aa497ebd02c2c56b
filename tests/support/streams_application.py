"""Instances of a Kafka Streams application that counts (`StreamsCounts.java`), and a reader of the counts.

    with StreamsApplication(tmp_path, servers) as instance:
        instance.wait_running()
        instance.kill9()
        instance.start()

Its topics are `words`, whose values it counts, and `counts`; in between it repartitions, and keeps a changelog.
"""

import functools
import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import Consumer, TopicPartition

from scripts.tools import KAFKA_VERSION
from tests.support.kafka_tools import QUICK_JVM, archive_options
from tests.support.made_once import made_once
from tests.support.tools import java, javac, kafka_streams_class_path
from tests.support.waiting import wait_until

TIMEOUT_S = 120
PROGRAM = Path(__file__).with_name("StreamsCounts.java")
SETTINGS = {
    "application.id": "app",
    "group.protocol": "streams",
    "processing.guarantee": "exactly_once_v2",
    "commit.interval.ms": "200",
    "linger.ms": "0",  # otherwise most records are sent as they are committed, and a kill finds none in between
    "transaction.timeout.ms": "3000",
    "statestore.cache.max.bytes": "0",  # every count is sent
    "reconnect.backoff.max.ms": "200",
}


class StreamsApplication:
    """One instance, a process; it starts with its context. `folder` keeps its settings, state and output."""

    def __init__(self, folder: Path, servers: str, **settings: str) -> None:
        folder.mkdir(parents=True)
        self._settings = folder / "settings"
        self._output = folder / "output"
        values = {**SETTINGS, "bootstrap.servers": servers, "state.dir": str(folder / "state"), **settings}
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def output(self) -> str:
        """Output since its last start: changes of its state, and errors."""
        return self._output.read_text(errors="replace")

    def start(self) -> None:
        """Start it without waiting."""
        class_path = f"{kafka_streams_class_path()}:{_classes()}"
        command: list[str | Path] = [
            java(),
            *QUICK_JVM,
            *archive_options(),
            "-cp",
            class_path,
            PROGRAM.stem,
            self._settings,
        ]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def check(self) -> None:
        """Fail the test if it has ended by itself."""
        ended = self._process is not None and self._process.poll() is not None
        assert not ended, f"the application has ended: {self.output}"

    def wait_running(self) -> None:
        """Wait until it works on its tasks."""

        def running() -> bool:
            self.check()
            return "-> RUNNING" in self.output

        wait_until(running, "the application runs", timeout_s=TIMEOUT_S)

    def kill9(self) -> None:
        """Kill it: its transactions stay open, and its members stay in the group until their session ends."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
            self._process = None

    def stop(self) -> None:
        """Tell it to stop, which commits and leaves the group."""
        assert self._process is not None, "not started"
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stdout.write(f"the application wrote\n{self.output}")
        self.kill9()


class CountReader:
    """Reads the committed counts that an application sends, over kills of nodes."""

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self.said: list[tuple[bytes, int]] = []
        """Words with their counts, in order for each word."""
        self._consumer = Consumer({
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
            "log_level": 2,
        })  # fmt: skip
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])

    def read_until(self, count: int, check: Callable[[], None]) -> None:
        """Read until there are that many. `check` is called while it waits."""
        for _ in range(TIMEOUT_S * 5):
            if len(self.said) >= count:
                return
            check()
            for message in self._consumer.consume(500, 0.2):
                assert message.error() is None, message.error()
                key, value = message.key(), message.value()
                assert isinstance(key, bytes)
                assert isinstance(value, bytes)
                self.said.append((key, int.from_bytes(value, "big")))
        pytest.fail(f"Timeout: the application has said {len(self.said)} of {count} counts")

    def close(self) -> None:
        """Close its client."""
        self._consumer.close()


@functools.cache
def _classes() -> Path:
    version = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()[:12]
    return made_once(f"streams-counts-{KAFKA_VERSION}-{version}", _compile)


def _compile(folder: Path) -> Path:
    made = folder / "classes"
    subprocess.run([javac(), "--release", "17", "-cp", kafka_streams_class_path(), "-d", made, PROGRAM], check=True)
    return made
