"""Brokers as child processes, with their CPU time."""

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from anabranch.client.connection import Connection
from anabranch.client.errors import ClientError
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.spark.java import cache_folder, find_java_home
from scripts.tools import KAFKA_VERSION

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 120.0
PORTS = range(10_000, 32_768)
"""Ports that systems do not give to sockets that ask for any port."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# What kafka-server-start.sh and kafka-run-class.sh give a broker when nothing is set.
KAFKA_JVM = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port}{other_listeners},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{other_listeners}
controller.listener.names=CONTROLLER
log.dirs={home}/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
KAFKA_TLS_PROPERTIES = """\
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={certificate}
"""
DELETE_SOON: Mapping[str, str] = {"log.segment.delete.delay.ms": "1000"}


class MissingError(Exception):
    """The benchmark needs something that is not installed. The text says what, and how to get it."""


def kafka_class_path() -> str:
    """Return the class path of Apache Kafka's jars."""
    folder = cache_folder() / f"kafka-{KAFKA_VERSION}"
    if not folder.is_dir():
        raise MissingError(f"Apache Kafka {KAFKA_VERSION} is not in {folder}: run `make tools`")
    return f"{folder}/*"


def java() -> str:
    """Return the `java` program."""
    return str(find_java_home() / "bin" / "java")


def java_in(folder: Path) -> list[str]:
    """Return the command of a JVM whose temporary files, which are left when it is killed, are in a folder."""
    files = folder.resolve() / "java"
    files.mkdir(exist_ok=True)
    return [java(), f"-Djava.io.tmpdir={files}"]


def free_port() -> int:
    """Return a free loopback port. Nobody gets it by chance before it is used, or while its server restarts."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def cpu_s_of(pid: int) -> float:
    """Return the CPU seconds that a process has used so far, user and system, all threads."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat[stat.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_bytes_of(pid: int) -> int:
    """Return the memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) * 1024 if found else 0


class Broker:
    """A broker process. `session_cpu_s` is set when it has stopped."""

    name = ""

    def __init__(self, home: Path, certificate: Path | None = None) -> None:
        """Describe a broker; with a certificate (a PEM file with its key) it has a listener with TLS, too."""
        self.home = home
        self.port = free_port()
        self.certificate = certificate
        self.tls_port = free_port()
        self.session_cpu_s = 0.0
        self.spawned_s = 0.0
        """Time of `time.perf_counter` at which its process was started."""
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        """Return the command that starts it."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True)
        self.start()
        return self

    def start(self) -> None:
        """Start it, and wait until it answers. Raises RuntimeError."""
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        """Start it without waiting."""
        command = self.command()
        with self._log.open("wb") as output:
            self.spawned_s = time.perf_counter()
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until it answers. Raises RuntimeError."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise RuntimeError(f"{self.name} did not start:\n{self.output[-2000:]}")
            time.sleep(0.05)

    @property
    def output(self) -> str:
        """Text that it wrote."""
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self.home / "output.log"

    def kill(self) -> None:
        """End it as a crash does; `start` starts it again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def send_signal(self, number: signal.Signals) -> None:
        """Stop it for a while (SIGSTOP), or let it go on (SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(number)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except ClientError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.home / "data", ignore_errors=True)
        shutil.rmtree(self.home / "logs", ignore_errors=True)

    def stop(self) -> float:
        """Stop it cleanly, unless it has ended; return the CPU seconds of its whole life, shutdown included."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while time.monotonic() < deadline:
                # wait4 returns the CPU time of the whole life, including shutdown.
                found, status, usage = os.wait4(self._process.pid, os.WNOHANG)
                if found:
                    self._process.returncode = os.waitstatus_to_exitcode(status)
                    self.session_cpu_s = usage.ru_utime + usage.ru_stime
                    break
                time.sleep(0.02)
            else:
                self._process.kill()
                self._process.wait()
        return self.session_cpu_s

    def connect(self) -> Connection:
        """Open a connection to it."""
        return Connection("127.0.0.1", self.port)

    @property
    def pid(self) -> int:
        """Id of the running process."""
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the CPU seconds it has used so far, user and system, all threads."""
        return cpu_s_of(self.pid)

    def rss_bytes(self) -> int:
        """Return its memory."""
        return rss_bytes_of(self.pid)

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        """Create a topic, and wait until each of its partitions is served.

        Apache Kafka responds earlier. Its idempotent producer, started at once, then mixes up sequences between
        partitions that are served and those that are not yet, and retries until its batches expire.
        """
        wanted = [CreatableTopicConfig(name=each, value=value) for each, value in (configs or {}).items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=wanted)
        asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(partitions)]
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])
        with self.connect() as connection:
            answer = connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
            assert all(not result.error_code for result in answer.topics), answer
            deadline = time.monotonic() + START_TIMEOUT_S
            while time.monotonic() < deadline:
                found = connection.call(request).topics[0].partitions
                if len(found) == partitions and not any(partition.error_code for partition in found):
                    return
                time.sleep(0.05)
        raise RuntimeError(f"{self.name}: topic {name} does not serve")

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        with self.connect() as connection:
            connection.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000))


class Anabranch(Broker):
    """A node of this project with its defaults, all data in one directory."""

    name = "anabranch"

    def __init__(self, home: Path, flags: Sequence[str] = (), certificate: Path | None = None) -> None:
        super().__init__(home, certificate)
        self._flags = flags

    def command(self) -> Sequence[str]:
        flags = {
            "--port": str(self.port),
            "--data-dir": str(self.home / "data"),
            "--admin-enabled": "false",
            "--wal-allow-volatile": "true",
            "--group-initial-rebalance-delay-ms": "0",
            "--log-format": "json",
            "--storage-delete-delay-ms": "1000",  # as DELETE_SOON: a long run would fill the disk
        }
        if self.certificate is not None:
            flags["--listeners"] = f"PLAINTEXT://127.0.0.1:{self.port},SSL://127.0.0.1:{self.tls_port}"
            flags["--ssl-certificate-file"] = str(self.certificate)
        return [sys.executable, "-m", "anabranch", "serve", *(w for pair in flags.items() for w in pair), *self._flags]

    def native(self) -> str:
        """Return the version of the native part that it uses, or why it uses none. Its log says so when it serves."""
        lines = (json.loads(line) for line in self.output.splitlines() if '"native"' in line)
        return next((str(line["native"]) for line in lines if "native" in line), "unknown")


class ApacheKafka(Broker):
    """One Apache Kafka broker, combined with its controller, with its defaults (it does not wait for the disk)."""

    name = "Apache Kafka"

    def __init__(
        self,
        home: Path,
        *,
        properties: Mapping[str, str] = DELETE_SOON,
        jvm: Sequence[str] = KAFKA_JVM,
        plugins: Sequence[Path] = (),
        other_listeners: str = "",
        certificate: Path | None = None,
    ) -> None:
        """Describe a broker; `other_listeners` are in Kafka's format, each after a comma."""
        super().__init__(home, certificate)
        self._other_listeners = other_listeners
        self._plugins = plugins
        self._properties = properties
        self._jvm = jvm

    def command(self) -> Sequence[str]:
        properties = self.home / "server.properties"
        tls_listener, tls_properties = "", ""
        if self.certificate is not None:
            tls_listener = f",SSL://127.0.0.1:{self.tls_port}"
            tls_properties = KAFKA_TLS_PROPERTIES.format(certificate=self.certificate.resolve())
        properties.write_text(
            KAFKA_PROPERTIES.format(
                port=self.port,
                other_listeners=self._other_listeners + tls_listener,
                controller_port=free_port(),
                home=self.home.resolve(),
            )
            + tls_properties
            + "".join(f"{name}={value}\n" for name, value in self._properties.items())
        )
        class_path = ":".join([kafka_class_path(), *map(str, self._plugins)])
        format_storage = ["kafka.tools.StorageTool", "format", "--standalone", "-t", str(uuid.uuid4())]
        subprocess.run(
            [*java_in(self.home), *self._jvm, "-cp", class_path, *format_storage, "-c", str(properties)],
            check=True,
            capture_output=True,
        )
        return [*java_in(self.home), *self._jvm, "-cp", class_path, "kafka.Kafka", str(properties)]
