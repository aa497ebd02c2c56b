"""The two brokers, each started once in a test run, when the first script needs it."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from anabranch.broker.kafka.sasl.plain import hash_password
from benchmarks.lab.processes import ApacheKafka, free_port
from tests.differential.peer import Peer
from tests.differential.script import ScriptFunction, Step, run_script
from tests.differential.scripts.sasl import PASSWORD
from tests.support import tools
from tests.support.kafka_tools import archive_options
from tests.support.node import NodeProcess

MODULES = "listener.name.sasl_plaintext"
TOKEN_KEY = "key-of-the-delegation-tokens-0123456789"
LOGIN = "org.apache.kafka.common.security"
KAFKA_SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",  # otherwise an assignment may follow its trigger after a delay
    "group.share.assignment.interval.ms": "0",
    "group.share.min.record.lock.duration.ms": "1000",
    "share.coordinator.snapshot.update.records.per.snapshot": "5",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "log.initial.task.delay.ms": "3600000",  # otherwise it deletes records to which scripts gave an old timestamp
}
KAFKA_SASL_SETTINGS = {
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.server.max.receive.size": "32768",
    "connections.max.reauth.ms": "3600000",
    "delegation.token.secret.key": TOKEN_KEY,
    f"{MODULES}.plain.sasl.jaas.config": f"{LOGIN}.plain.PlainLoginModule required "
    f'user_alice="{PASSWORD}" user_bob="of bob";',
    f"{MODULES}.scram-sha-256.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
    f"{MODULES}.scram-sha-512.sasl.jaas.config": f"{LOGIN}.scram.ScramLoginModule required;",
}
OUR_SETTINGS: dict[str, object] = {
    "group_offsets_partitions": 1,
    "share_state_partitions": 1,
    "group_share_record_lock_duration_min_ms": 1000,
    "share_updates_per_snapshot": 5,
    "wal_capacity_bytes": 64 << 20,
    "telemetry_enabled": True,
    "topic_retention_ms": 604_800_000,  # the default, which Apache Kafka has, too
}
OUR_SASL_SETTINGS: dict[str, object] = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl_max_reauth_ms": 3_600_000,
}


def quick_jvm() -> Sequence[str]:
    """Return options for a broker that lives for minutes."""
    return ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *archive_options())


TELEMETRY_PLUGIN = Path(__file__).with_name("TelemetryPlugin.java")


def _compiler() -> Path:
    return Path(tools.java()).with_name("javac")


def has_compiler() -> bool:
    """True if a Java compiler exists for the plug-in that Apache Kafka needs to accept client metrics."""
    return _compiler().exists()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """Apache Kafka, broker and controller in one process."""
    class_path = tools.kafka_class_path()
    folder = tmp_path_factory.mktemp("apache-kafka")
    settings, plugins = {**KAFKA_SETTINGS, **KAFKA_SASL_SETTINGS}, []
    if has_compiler():
        plugins = [folder / "plugin"]
        command: list[str | Path] = [_compiler(), "-cp", class_path, "-d", plugins[0], TELEMETRY_PLUGIN]
        subprocess.run(command, check=True, capture_output=True)
        settings = {**settings, "metric.reporters": TELEMETRY_PLUGIN.stem}
    port = free_port()
    with ApacheKafka(
        folder / "home",
        properties=settings,
        jvm=quick_jvm(),
        plugins=plugins,
        other_listeners=f",SASL_PLAINTEXT://127.0.0.1:{port}",
    ) as broker:
        yield Peer("Apache Kafka", "127.0.0.1", broker.port, port)


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """A node."""
    folder = tmp_path_factory.mktemp("node")
    users = folder / "users"
    users.write_text(
        "\n".join(f"{name}:{hash_password(f'of {name}', bytes(16)).to_text()}" for name in ("alice", "bob"))
    )
    key = folder / "token-key"
    key.write_text(TOKEN_KEY)
    files = {"sasl_plain_users_file": users, "delegation_token_secret_key_file": key}
    with NodeProcess(folder, **OUR_SETTINGS, **OUR_SASL_SETTINGS, **files) as node:
        sasl_port = int(str(node.events("serving")[-1]["listeners"]).rpartition(":")[2])
        yield Peer("anabranch", node.host, node.port, sasl_port)
        assert node.terminate() == 0


Transcripts = dict[str, tuple[Sequence[Step], Sequence[Step]]]


class Runner:
    """Runs each script once against both brokers."""

    def __init__(self, kafka: Peer, ours: Peer) -> None:
        self._peers = (kafka, ours)
        self._done: Transcripts = {}

    def run(self, function: ScriptFunction) -> tuple[Sequence[Step], Sequence[Step]]:
        """Both transcripts: Apache Kafka's and the node's."""
        name = function.__name__
        if name not in self._done:
            kafka, ours = self._peers
            self._done[name] = (run_script(function, kafka), run_script(function, ours))
        return self._done[name]


@pytest.fixture(scope="session")
def runner(kafka: Peer, ours: Peer) -> Runner:
    """Both brokers, with the transcripts recorded so far."""
    return Runner(kafka, ours)
