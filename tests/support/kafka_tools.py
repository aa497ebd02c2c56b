"""Apache Kafka's tools, started quickly.

A tool spends most of its second of processor time on loading classes, and the tests start some two hundred. So the
classes of five tools are archived once for each Java and Apache Kafka, in the folder of tools (class data sharing,
JEP 310).
"""

import fcntl
import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from anabranch.spark.java import cache_folder, find_java_home
from tests.support.node import NodeProcess
from tests.support.tools import KAFKA_VERSION, java, kafka_class_path

QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")
"""For a JVM that lives for seconds: what its better compiler would save, it would cost."""
TOOLS: Final = "org.apache.kafka.tools"
TOPICS: Final = f"{TOOLS}.TopicCommand"
GROUPS: Final = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
PRODUCER: Final = f"{TOOLS}.ConsoleProducer"
CONSUMER: Final = f"{TOOLS}.consumer.ConsoleConsumer"
OFFSETS: Final = f"{TOOLS}.GetOffsetShell"
CONFIGS: Final = "kafka.admin.ConfigCommand"
TIMEOUT_S: Final = 120


def kafka_tool(class_name: str) -> list[str]:
    """Return the command that runs a tool; its arguments follow."""
    return _command(archive_options(), (class_name,))


def archive_options() -> tuple[str, ...]:
    """Return the options that let a JVM with `kafka_class_path` take classes from the archive."""
    return (f"-XX:SharedArchiveFile={_archive()}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def _command(options: Sequence[str], arguments: Sequence[str]) -> list[str]:
    return [str(java()), *QUICK_JVM, *options, "-cp", kafka_class_path(), *arguments]


@functools.cache
def _archive() -> Path:
    kafka_class_path()  # skips the test, or fails it, where Apache Kafka is missing
    release = (find_java_home() / "release").read_bytes()
    version = hashlib.sha256(release).hexdigest()[:12]
    target = cache_folder() / f"kafka-{KAFKA_VERSION}-{version}.jsa"
    with Path(f"{target}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
                _make_archive(Path(folder)).rename(target)
    return target


def _make_archive(folder: Path) -> Path:
    """Run tools against a node, and archive the classes that they loaded."""
    classes: set[str] = set()
    with NodeProcess(folder) as node:
        here = ("--bootstrap-server", node.bootstrap)
        uses = (
            (TOPICS, *here, "--create", "--topic", "t"),
            (PRODUCER, *here, "--topic", "t"),
            (CONSUMER, *here, "--topic", "t", "--from-beginning", "--max-messages", "1", "--group", "g"),
            (GROUPS, *here, "--describe", "--all-groups"),
            (CONFIGS, *here, "--describe", "--entity-type", "topics"),
        )
        for tool, *arguments in uses:
            listed = folder / "classes"
            _run((f"-XX:DumpLoadedClassList={listed}",), (tool, *arguments), stdin="a record\n")
            classes |= set(listed.read_text().splitlines())
    merged, archive = folder / "all", folder / "archive.jsa"
    merged.write_text("\n".join(sorted(line for line in classes if not line.startswith(("#", "@")))))
    _run(("-Xshare:dump", f"-XX:SharedClassListFile={merged}", f"-XX:SharedArchiveFile={archive}"), ())
    return archive


def _run(options: Sequence[str], arguments: Sequence[str], *, stdin: str = "") -> None:
    command = _command(options, arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
