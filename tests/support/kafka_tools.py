"""Apache Kafka's tools, run or started quickly.

A tool spends most of its second of processor time on loading and interpreting classes, and the tests run some two
hundred. So one JVM runs all (`run_tool`) but those that a test kills, or reads while they run, or that have work to do
as their JVM ends (`kafka_tool`). For both, and for brokers, the classes of a broker and of five tools are archived once
for each Java and Apache Kafka, in the folder of tools (class data sharing, JEP 310).
"""

import atexit
import functools
import hashlib
import struct
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from anabranch.spark.java import find_java_home
from benchmarks.lab.processes import ApacheKafka
from scripts.tools import KAFKA_VERSION
from tests.support.java_options import TEMPORARY_FILES
from tests.support.made_once import made_once
from tests.support.tools import java, javac, kafka_class_path

QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", *TEMPORARY_FILES)
"""For a JVM that lives for seconds: what its better compiler would save, it would cost."""
TOOLS: Final = "org.apache.kafka.tools"
TOPICS: Final = f"{TOOLS}.TopicCommand"
GROUPS: Final = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
PRODUCER: Final = f"{TOOLS}.ConsoleProducer"
CONSUMER: Final = f"{TOOLS}.consumer.ConsoleConsumer"
OFFSETS: Final = f"{TOOLS}.GetOffsetShell"
CONFIGS: Final = f"{TOOLS}.ConfigCommand"
TIMEOUT_S: Final = 120
RUNNER: Final = Path(__file__).with_name("KafkaTools.java")
NUMBER: Final = struct.Struct(">i")


def run_tool(
    class_name: str, arguments: Sequence[str], *, stdin: str = "", options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end, in the one JVM of this process. Options are `-Dname=value`."""
    return _runner().run([*options, class_name, *arguments], stdin)


class ToolRunner:
    """A JVM that runs one tool after the other, as `KafkaTools.java` says."""

    def __init__(self) -> None:
        command = _command(archive_options(), (RUNNER.stem,), f":{_classes()}")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._lock = threading.Lock()
        atexit.register(self._end)

    def run(self, words: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
        """Run a tool: options, its class, arguments. Fails the test if the tool hangs or ends the JVM."""
        with self._lock:
            watch = threading.Timer(TIMEOUT_S, self._process.kill)
            watch.start()
            try:
                self._send(stdin, words)
                return subprocess.CompletedProcess(words, self._number(), self._text(), self._text())
            except (OSError, struct.error):
                self._discard()
                pytest.fail(f"{words} took {TIMEOUT_S} s or has ended the JVM with {self._process.wait()}")
            except BaseException:  # the test has timed out: what the tool answers is not the answer of the next one
                self._discard()
                raise
            finally:
                watch.cancel()

    def _discard(self) -> None:
        """Let the next tool start another JVM."""
        _runner.cache_clear()
        self._process.kill()

    def _send(self, stdin: str, words: Sequence[str]) -> None:
        assert self._process.stdin is not None, "a pipe was asked for"
        first, *others = [NUMBER.pack(len(text)) + text for text in map(str.encode, (stdin, *words))]
        self._process.stdin.write(b"".join((first, NUMBER.pack(len(words)), *others)))
        self._process.stdin.flush()

    def _number(self) -> int:
        (number,) = NUMBER.unpack(self._read(NUMBER.size))
        return int(number)

    def _text(self) -> str:
        return self._read(self._number()).decode()

    def _read(self, count: int) -> bytes:
        assert self._process.stdout is not None, "a pipe was asked for"
        return self._process.stdout.read(count)

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


@functools.cache
def _runner() -> ToolRunner:
    return ToolRunner()


def kafka_tool(class_name: str) -> list[str]:
    """Return the command that runs a tool in a JVM of its own; its arguments follow."""
    return _command(archive_options(), (class_name,))


def archive_options() -> tuple[str, ...]:
    """Return the options that let a JVM with `kafka_class_path` take classes from the archive."""
    return (f"-XX:SharedArchiveFile={_archive()}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def _command(options: Sequence[str], arguments: Sequence[str], classes: str = "") -> list[str]:
    return [str(java()), *QUICK_JVM, *options, "-cp", kafka_class_path() + classes, *arguments]


@functools.cache
def _archive() -> Path:
    kafka_class_path()  # skips the test, or fails it, where Apache Kafka is missing
    release = (find_java_home() / "release").read_bytes()
    version = hashlib.sha256(release).hexdigest()[:12]
    return made_once(f"kafka-{KAFKA_VERSION}-programs-{version}.jsa", _make_archive)


def _classes() -> Path:
    """Return the folder of the runner's class."""
    version = hashlib.sha256(RUNNER.read_bytes()).hexdigest()[:12]
    return made_once(f"kafka-tools-{KAFKA_VERSION}-{version}", _compile)


def _compile(folder: Path) -> Path:
    made = folder / "classes"
    subprocess.run([javac(), "--release", "17", "-cp", kafka_class_path(), "-d", made, RUNNER], check=True)
    return made


def _make_archive(folder: Path) -> Path:
    """Run tools against a broker, and archive the classes that all of them loaded."""
    lists = [folder / "broker"]
    with ApacheKafka(folder / "home", jvm=(*QUICK_JVM, _recording(lists[0]))) as broker:
        here = ("--bootstrap-server", f"127.0.0.1:{broker.port}")
        uses = (
            (TOPICS, *here, "--create", "--topic", "t"),
            (PRODUCER, *here, "--topic", "t"),
            (CONSUMER, *here, "--topic", "t", "--from-beginning", "--max-messages", "1", "--group", "g"),
            (GROUPS, *here, "--describe", "--all-groups"),
            (CONFIGS, *here, "--describe", "--entity-type", "topics"),
        )
        for number, use in enumerate(uses):
            lists.append(folder / f"tool-{number}")
            _run((_recording(lists[-1]),), use, stdin="a record\n")
    classes = {line for each in lists for line in each.read_text().splitlines() if not line.startswith(("#", "@"))}
    merged, archive = folder / "all", folder / "archive.jsa"
    merged.write_text("\n".join(sorted(classes)))
    _run(("-Xshare:dump", f"-XX:SharedClassListFile={merged}", f"-XX:SharedArchiveFile={archive}"), ())
    return archive


def _recording(classes: Path) -> str:
    """Return the option that lets a JVM write down which classes it loads."""
    return f"-XX:DumpLoadedClassList={classes}"


def _run(options: Sequence[str], arguments: Sequence[str], *, stdin: str = "") -> None:
    command = _command(options, arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
