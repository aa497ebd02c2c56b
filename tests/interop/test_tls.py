"""Real clients over TLS, with certificates of their own, and certificates that change while they work."""

import asyncio
import logging
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.interop.test_java import TIMEOUT_S
from tests.interop.values import (
    read_with_confluent,
    send_and_read_with_aiokafka,
    send_and_read_with_kafka_python,
    send_with_confluent,
    value_of,
)
from tests.support.certificates import Authority, Issued
from tests.support.kafka_tools import CONFIGS, CONSUMER, PRODUCER, TOPICS, run_tool
from tests.support.node import NodeProcess
from tests.support.tools import kcat
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

RECORDS = [f"record {number}" for number in range(300)]


class TlsNode:
    """A node process with a listener without TLS and one with, which requires certificates of clients."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.authority = Authority(folder / "ca")
        self.certificate = self.authority.issue("node")
        self.client = self.authority.issue("client", organization="Org")
        self.revoked = self.authority.issue("revoked")
        self.process = NodeProcess(
            folder,
            listeners="PLAINTEXT://127.0.0.1:0,SECURE://127.0.0.1:0",
            security_protocol_map="SECURE:SSL",
            ssl_certificate_file=self.certificate.both,
            ssl_ca_file=self.authority.file,
            ssl_crl_file=self.authority.revoke(self.revoked),
            ssl_client_auth="required",
            ssl_principal_mapping_rules="RULE:^CN=([a-z]+),.*$/$1/,DEFAULT",
            wal_capacity_bytes=64 << 20,
            log_level="debug",
        )

    @property
    def servers(self) -> str:
        """Address of the listener with TLS."""
        return next(each for each in self.listeners if each.startswith("SECURE")).split("://")[1]

    @property
    def listeners(self) -> list[str]:
        listeners: str = self.process.events("serving")[-1]["listeners"]
        return listeners.split(",")

    def confluent(self, certificate: Issued | None = None, authority: Authority | None = None) -> dict[str, Any]:
        """Settings of librdkafka."""
        shown = certificate or self.client
        return {
            "bootstrap.servers": self.servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str((authority or self.authority).file),
            "ssl.certificate.location": str(shown.certificate),
            "ssl.key.location": str(shown.key),
            "log_level": 0,
        }

    def java(self, **more: str) -> Path:
        """A file with settings of Java's clients."""
        properties: Mapping[str, object] = {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority.file,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.client.both,
            **more,
        }
        path = self.folder / "client.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsNode]:
    made = TlsNode(tmp_path_factory.mktemp("tls"))
    with made.process as process:
        yield made
        assert process.terminate() == 0


def produce(node: TlsNode, topic: str) -> None:
    send_with_confluent(node.confluent(), topic, RECORDS)


def consume(node: TlsNode, topic: str) -> list[str]:
    """Read a topic with a group, so that its coordinator is found over TLS, too."""
    return read_with_confluent(node.confluent(), topic, len(RECORDS))


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_java(node: TlsNode, version: str) -> None:
    topic = f"java-{version}"
    settings = str(node.java(**{"ssl.enabled.protocols": version}))
    config = ["--bootstrap-server", node.servers, "--command-config", settings]

    def run(tool: str, *arguments: str, stdin: str = "") -> str:
        done = run_tool(tool, [*config, *arguments], stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(TOPICS, "--create", "--topic", topic)
    run(PRODUCER, "--topic", topic, stdin="\n".join(RECORDS))
    limits = ["--max-messages", str(len(RECORDS)), "--timeout-ms", "30000"]
    read = run(CONSUMER, "--topic", topic, "--from-beginning", "--group", f"{topic}-group", *limits)
    assert read.splitlines() == RECORDS == consume(node, topic)
    described = run(CONFIGS, "--describe", "--all", "--entity-type", "brokers", "--entity-name", "1")
    assert f"advertised.listeners={','.join(node.listeners)}" in described
    connected = [line for line in node.process.events("connected") if line["protocol"] == version]
    assert {(line["listener"], line["principal"]) for line in connected} == {("SECURE", "User:client")}


def test_librdkafka(node: TlsNode) -> None:
    produce(node, "confluent")
    assert sorted(consume(node, "confluent")) == sorted(RECORDS)
    admin = AdminClient(node.confluent())
    brokers = admin.list_topics(timeout=30).brokers.values()
    assert [f"{broker.host}:{broker.port}" for broker in brokers] == [node.servers]


async def test_aiokafka(node: TlsNode) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": node.servers,
        "security_protocol": "SSL",
        "ssl_context": node.authority.client_context(node.client),
    }
    assert await send_and_read_with_aiokafka(settings, "aiokafka", RECORDS) == RECORDS


def test_kafka_python(node: TlsNode) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": node.servers,
        "security_protocol": "SSL",
        "ssl_cafile": str(node.authority.file),
        "ssl_certfile": str(node.client.certificate),
        "ssl_keyfile": str(node.client.key),
    }
    assert send_and_read_with_kafka_python(settings, "kafka-python", RECORDS) == RECORDS


def test_kcat(node: TlsNode) -> None:
    produce(node, "kcat")
    shown = {name: value for name, value in node.confluent().items() if name.startswith(("ssl", "security"))}
    options = [option for name, value in shown.items() for option in ("-X", f"{name}={value}")]
    done = subprocess.run(
        [kcat(), "-b", node.servers, "-q", *options, "-C", "-t", "kcat", "-o", "beginning", "-e"],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert sorted(done.stdout.decode().splitlines()) == sorted(RECORDS)


@pytest.mark.parametrize("wrong", ["authority of the node", "authority of the client", "revoked", "expired"])
def test_librdkafka_is_refused_with_one_line(node: TlsNode, tmp_path: Path, wrong: str) -> None:
    stranger = Authority(tmp_path / "other", "other")
    settings = {
        "authority of the node": node.confluent(authority=stranger),
        "authority of the client": node.confluent(stranger.issue("client")),
        "revoked": node.confluent(node.revoked),
        "expired": node.confluent(node.authority.issue("old", days=(-5, -1))),
    }[wrong]
    expected = {
        "authority of the node": "the client does not trust the authority of this node's certificate",
        "authority of the client": "the client's certificate is not accepted: unable to get local issuer certificate",
        "revoked": "the client's certificate is not accepted: certificate revoked",
        "expired": "the client's certificate is not accepted: certificate has expired",
    }[wrong]
    before = len(node.process.events("TLS handshake failed"))
    client = AdminClient(settings)  # it goes on trying to connect
    with pytest.raises(KafkaException):
        client.list_topics(timeout=0.5)

    def is_told() -> bool:
        """Look for its line; the client of the test before may have caused the first one."""
        return any(line["reason"] == expected for line in node.process.events("TLS handshake failed")[before:])

    wait_until(is_told, "the node says why")


async def test_aiokafka_without_tls_is_refused_with_one_line(node: TlsNode, caplog: pytest.LogCaptureFixture) -> None:
    before = len(node.process.events("TLS handshake failed"))
    # Clients of earlier tests may have used up the lines of this kind that a node logs in a moment.
    async with asyncio.timeout(60):
        while len(lines := node.process.events("TLS handshake failed")[before:]) == 0:
            producer = AIOKafkaProducer(bootstrap_servers=node.servers)
            with caplog.at_level(logging.CRITICAL), pytest.raises(KafkaConnectionError):
                await producer.start()
            await producer.stop()
    assert {line["reason"] for line in lines} == {"a client that does not use TLS, but this listener expects TLS"}


def renew(node: TlsNode, name: str, acked: list[str]) -> None:
    """Replace the node's certificate while records are acknowledged, and connect with the new one."""
    known = len(acked)
    wait_until(lambda: len(acked) > known, "records are acknowledged")
    node.authority.issue(name, file_name="node")
    wait_until(lambda: node.process.status()["tls"]["certificate"] == f"CN={name}", "it is in use")
    AdminClient(node.confluent()).list_topics(timeout=30)


def test_clients_work_on_while_certificates_change(tmp_path: Path) -> None:
    node = TlsNode(tmp_path / "rotation")
    acked: list[str] = []
    failures: list[KafkaError] = []
    stop = threading.Event()

    def delivered(error: KafkaError | None, message: Message) -> None:
        failures.append(error) if error is not None else acked.append(value_of(message))

    with node.process as process:
        producer = Producer({**node.confluent(), "linger.ms": 2})

        def send() -> None:
            number = 0
            while not stop.is_set():
                producer.produce("rotation", f"record {number}", on_delivery=delivered)
                producer.poll(0.002)
                number += 1

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for number in range(3):
                renew(node, f"renewed-{number}", acked)
        finally:
            stop.set()
            sender.join()
        assert producer.flush(30) == 0
        assert not failures
        connections = process.status()["listeners"][1]["connections"]
        assert connections >= 1
        end = Consumer({**node.confluent(), "group.id": "end"})
        assert end.get_watermark_offsets(TopicPartition("rotation", 0), timeout=30)[1] == len(acked)
        end.close()
        assert process.terminate() == 0


def await_brokers(admin: AdminClient, expected: set[str]) -> None:
    """Wait until a client is told exactly these addresses."""
    wait_until(
        lambda: {f"{each.host}:{each.port}" for each in admin.list_topics(timeout=30).brokers.values()} == expected,
        "all nodes are listed",
    )


def test_a_cluster_is_reached_at_the_addresses_of_each_listener(tmp_path: Path) -> None:
    """Partitions and coordinators of two nodes. Clients inside use no TLS and other ports than those outside."""
    first = TlsNode(tmp_path / "1")
    shared: dict[str, object] = {
        "catalog_url": f"sqlite:///{tmp_path}/catalog.db",
        "objects_path": tmp_path / "objects",
        "cluster_internal_port": 0,
        "topic_num_partitions": 4,
    }
    first.process.settings |= {"node_id": 1, **shared}
    second = TlsNode(tmp_path / "2")
    second.process.settings |= {
        "node_id": 2,
        **shared,
        "ssl_ca_file": first.authority.file,
        "ssl_crl_file": first.authority.revoke(first.revoked),
        "ssl_certificate_file": first.authority.issue("second").both,
    }
    with first.process, second.process:
        inside: dict[str, Any] = {"bootstrap.servers": first.listeners[0].split("://")[1], "log_level": 0}
        for settings, listener in ((inside, 0), (first.confluent(), 1)):
            expected = {node.listeners[listener].split("://")[1] for node in (first, second)}
            await_brokers(AdminClient(settings), expected)
        produce(first, "spread")
        leaders = AdminClient(first.confluent()).list_topics("spread", timeout=30).topics["spread"].partitions.values()
        assert {each.leader for each in leaders} == {1, 2}
        assert sorted(consume(first, "spread")) == sorted(RECORDS)
        for node in (first, second):
            assert {line["listener"] for line in node.process.events("connected")} == {"SECURE"}
        assert second.process.terminate() == 0
        assert first.process.terminate() == 0
