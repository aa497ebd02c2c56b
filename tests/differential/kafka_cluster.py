"""Three brokers of Apache Kafka, each combined with a controller of their quorum."""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.lab.processes import START_TIMEOUT_S, ApacheKafka, Broker, free_port, java_in, kafka_class_path
from tests.support.kafka_tools import archive_options
from tests.support.node_processes import wait_for_brokers

PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.bootstrap.servers={controllers}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={home}/logs
"""
DEFAULTS: Mapping[str, str] = {
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
JVM = ("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ClusterBroker(Broker):
    """One of the brokers. Its storage has been formatted."""

    name = ApacheKafka.name

    def __init__(self, home: Path, node_id: int, properties: Mapping[str, str]) -> None:
        super().__init__(home)
        self.node_id = node_id
        self.controller_port = free_port()
        self.controllers = ""
        self.properties = dict(properties)

    @property
    def settings(self) -> Path:
        """Its properties, written."""
        file = self.home / "server.properties"
        head = PROPERTIES.format(
            node_id=self.node_id,
            controllers=self.controllers,
            port=self.port,
            controller_port=self.controller_port,
            home=self.home.resolve(),
        )
        file.write_text(head + "".join(f"{name}={value}\n" for name, value in self.properties.items()))
        return file

    def command(self) -> Sequence[str]:
        jvm = [*java_in(self.home), *JVM, *archive_options()]
        return [*jvm, "-cp", kafka_class_path(), "kafka.Kafka", str(self.settings)]


@contextmanager
def kafka_cluster(
    folder: Path,
    count: int,
    properties: Mapping[str, str],
    own: Callable[["ClusterBroker"], Mapping[str, str]] = lambda _: {},
) -> Iterator[Mapping[int, Broker]]:
    """Run brokers 1, 2, ... which start side by side. Each knows all others when the block begins.

    `own` returns further properties of a broker, and may set its ports.
    """
    brokers = [
        ClusterBroker(folder / str(node_id), node_id, {**DEFAULTS, **properties}) for node_id in range(1, count + 1)
    ]
    for broker in brokers:
        broker.properties |= own(broker)
    controllers = ",".join(f"127.0.0.1:{broker.controller_port}" for broker in brokers)
    for broker in brokers:
        broker.home.mkdir(parents=True)
        broker.controllers = controllers
    _format(brokers)
    with ExitStack() as stack:
        for broker in brokers:
            broker.spawn()
            stack.push(broker)
        for broker in brokers:
            broker.wait_ready(START_TIMEOUT_S * count)  # they start side by side
        for broker in brokers:
            wait_for_brokers("127.0.0.1", broker.port, count)
        yield {broker.node_id: broker for broker in brokers}
        for broker in brokers:
            broker.kill()  # the last ones would wait in vain for their quorum


def _format(brokers: Sequence[ClusterBroker]) -> None:
    """Format the first broker's storage, and copy it to the others: each run of the tool takes seconds."""
    first, *others = brokers
    directory_ids = {broker.node_id: _uuid() for broker in brokers}
    voters = ",".join(
        f"{broker.node_id}@127.0.0.1:{broker.controller_port}:{directory_ids[broker.node_id]}" for broker in brokers
    )
    command = [*java_in(first.home), *JVM, *archive_options(), "-cp", kafka_class_path(), "kafka.tools.StorageTool"]
    arguments = ["format", "-t", _uuid(), "-c", str(first.settings), "--initial-controllers", voters]
    subprocess.run([*command, *arguments], check=True, capture_output=True)
    for broker in others:
        shutil.copytree(first.home / "logs", broker.home / "logs")
        meta = broker.home / "logs" / "meta.properties"
        meta.write_text(
            meta.read_text()
            .replace(f"node.id={first.node_id}", f"node.id={broker.node_id}")
            .replace(directory_ids[first.node_id], directory_ids[broker.node_id])
        )


def _uuid() -> str:
    """A random id in Kafka's form. One that begins with a dash would be taken for a flag."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return _uuid() if text.startswith("-") else text
