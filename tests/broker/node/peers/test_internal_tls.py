"""TLS between nodes: moves and transactions over it, the change to it while nodes run, and peers that do not fit."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from structlog.testing import capture_logs

from anabranch.broker.app import StartError
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.tls_connection import TlsConnection
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.settings.errors import SettingsError
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest
from tests.broker.cluster.handover.test_moves import Writer, move_all, read_all
from tests.support.certificates import Authority
from tests.support.node import NodeProcess, running_node, running_nodes, settings_for
from tests.support.node_processes import wait_for_brokers
from tests.support.waiting import until

pytestmark = pytest.mark.slow

TIMEOUT_S = 60
CLOSED = "TLS handshake failed the client has closed the connection"
"""asyncio closes a connection to a port whose certificate it refuses without an alert."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_settings(authority: Authority, stage: str = "required", **issue: Any) -> dict[str, object]:
    """Settings of a node with a certificate of its own."""
    issued = authority.issue("node", **issue)
    return {
        "cluster_internal_tls": stage,
        "cluster_internal_ssl_certificate_file": issued.certificate,
        "cluster_internal_ssl_key_file": issued.key,
        "cluster_internal_ssl_ca_file": authority.file,
        "cluster_internal_ssl_client_auth": "required",
    }


@asynccontextmanager
async def two_nodes(
    folder: Path, first: dict[str, object], second: dict[str, object]
) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes of one cluster with different settings, of which each knows that the other lives."""
    shared = {
        "catalog_url": f"sqlite:///{folder}/catalog.db",
        "objects_path": folder / "objects",
        "cluster_internal_port": 0,
    }
    async with (
        running_node(folder / "1", node_id=1, **shared, **first) as one,
        running_node(folder / "2", node_id=2, **shared, **second) as two,
    ):
        await until(
            lambda: len(one.serving.members.living()) == len(two.serving.members.living()) == 2,
            timeout_s=60,
            pause_s=0.01,
        )
        yield one, two


async def ask(node: Node, other_id: int) -> None:
    """Send a request to another node. Raises PeerUnavailable."""
    assert node.serving.links is not None
    await node.serving.links.call(other_id, DescribeQuorumRequest(topics=()), 2)


def of_event(logs: Sequence[Any], event: str) -> list[Any]:
    return [each for each in logs if each["event"] == event]


def told_by_port(logs: Sequence[Any]) -> list[Any]:
    return of_event(logs, "TLS handshake failed") + of_event(logs, "connection closed")


async def test_partitions_move_while_transactions_are_written(tmp_path: Path, authority: Authority) -> None:
    settings: dict[str, Any] = tls_settings(authority) | {
        "group_offsets_partitions": 2,
        "transaction_state_partitions": 2,
    }
    with capture_logs() as logs:
        async with running_nodes(tmp_path, 2, **settings) as nodes:
            await nodes[0].serving.topic_commands.create("t", partitions=4, configs={})
            writer = Writer(nodes, "w")
            async with asyncio.TaskGroup() as group:
                group.create_task(writer.run())
                for _ in range(2):
                    written = len(writer.sent[0])
                    await until(lambda: len(writer.sent[0]) > written, timeout_s=60, pause_s=0.01)  # noqa: B023
                    await move_all(nodes)
                writer.stop()
            assert await read_all(nodes, writer.sent) == writer.sent
            links = [each for node in nodes for each in node.ports.nodes.connections]
            assert {type(each) for each in links} == {TlsConnection}
            assert {each.principal for each in links} == {"User:CN=node"}
    assert not of_event(logs, "no connection to a node")
    assert not of_event(logs, "TLS handshake failed")


async def test_a_certificate_is_renewed_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    settings = tls_settings(authority)
    async with two_nodes(tmp_path, settings, settings) as (one, two):
        await ask(one, 2)
        tls = two.ports.nodes_tls
        assert tls is not None
        before = tls.files
        renewed = authority.issue("node", days=(-1, 10))
        assert renewed.certificate == settings["cluster_internal_ssl_certificate_file"]
        await until(lambda: tls.files is not before, timeout_s=30, pause_s=0.05)
        await ask(one, 2)  # the connection that is open
        assert one.serving.links is not None
        assert await one.serving.links.reaches(two.serving.members.own), "a new connection"
        assert tls.files.expires_ms < before.expires_ms


@pytest.mark.parametrize(
    ("case", "seen_by_caller", "seen_by_port"),
    [
        ("other authority", "its certificate is not accepted: self-signed certificate in", CLOSED),
        ("expired", "its certificate is not accepted: certificate has expired", CLOSED),
        ("other name", "its certificate is not accepted: IP address mismatch", CLOSED),
        ("plaintext port", "it ends the TLS handshake", "connection closed"),
        ("plaintext caller", "it refuses the connection, and its log says why", "this listener expects TLS"),
        ("no certificate", "and its log says why", "cluster.internal_ssl_client_auth is 'required'"),
    ],
)
async def test_who_does_not_fit_is_one_line(
    tmp_path: Path,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    seen_by_caller: str,
    seen_by_port: str,
) -> None:
    caller, port = tls_settings(authority), tls_settings(authority)
    match case:
        case "other authority":
            stranger = Authority(tmp_path / "other", "other")
            port = tls_settings(stranger)
        case "expired":
            monkeypatch.setattr(
                "anabranch.broker.node.net.tls._check_dates", lambda *_: None
            )  # it expires while the node runs
            port = tls_settings(authority, file_name="expired", days=(-20, -1))
        case "other name":
            port["cluster_internal_advertised_host"] = "127.0.0.2"
            port["cluster_internal_host"] = "127.0.0.2"
        case "plaintext port":
            port = {}
        case "plaintext caller":
            caller = {}
        case "no certificate":
            monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", _for_servers(ssl.SSLContext.load_cert_chain))
    with capture_logs() as logs:
        async with two_nodes(tmp_path, caller, port) as (one, two):
            for _ in range(20):  # further calls wait for the pause, and log nothing
                with pytest.raises(PeerUnavailable) as refused:
                    await ask(one, 2)
                assert seen_by_caller in str(refused.value)
            assert one.serving.links is not None
            await until(lambda: bool(told_by_port(logs)), timeout_s=30, pause_s=0.01)
            assert len(told_by_port(logs)) < 10, "no busy loop"
            internal = two.ports.nodes
            assert internal is not None
            await until(lambda: not internal.handshakes, timeout_s=30, pause_s=0.01)
            said = list(logs)  # without what the stops may add
    (line,) = of_event(said, "no connection to a node")
    assert seen_by_caller in line["reason"]
    for each in told_by_port(said):
        assert seen_by_port in f"{each['event']} {each['reason']}"


def _for_servers(load: Any) -> Any:
    def only_for_servers(context: ssl.SSLContext, *arguments: Any) -> None:
        if context.verify_mode != ssl.CERT_REQUIRED:
            load(context, *arguments)

    return only_for_servers


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"cluster_internal_tls": "required"}, "cluster.internal_ssl_certificate_file: unset"),
        ({"cluster_internal_ssl_ca_file": None}, "cluster.internal_ssl_ca_file: unset"),
        ({"cluster_internal_ssl_ca_file": Path("/nowhere")}, "cluster.internal_ssl_ca_file: /nowhere: No such file"),
    ],
)
async def test_missing_files_are_named(
    tmp_path: Path, authority: Authority, wanted: dict[str, object], text: str
) -> None:
    settings = wanted if "cluster_internal_tls" in wanted else tls_settings(authority) | wanted
    with pytest.raises((SettingsError, StartError), match=text):
        async with running_node(tmp_path, cluster_internal_port=0, **settings):
            pass


def test_the_certificate_of_the_listeners_serves_as_well(tmp_path: Path, authority: Authority) -> None:
    issued = authority.issue("node")
    files = {"ssl_certificate_file": issued.certificate, "ssl_key_file": issued.key}
    tls = {"cluster_internal_tls": "required", "cluster_internal_ssl_ca_file": authority.file}
    area = settings_for(tmp_path, **files, **tls).internal_ssl
    assert area is not None
    assert (area.certificate_file, area.key_file) == (issued.certificate, issued.key)
    assert settings_for(tmp_path).internal_ssl is None


@pytest.mark.parametrize(("stage", "warns"), [("off", True), ("preferred", True), ("required", False)])
async def test_a_port_that_others_reach_warns_without_tls(
    tmp_path: Path, authority: Authority, *, stage: str, warns: bool
) -> None:
    settings = tls_settings(authority, stage)
    with capture_logs() as logs:
        async with running_node(tmp_path, cluster_internal_port=0, cluster_internal_host="0.0.0.0", **settings):
            pass
    found = [each for each in logs if each.get("setting") == "cluster.internal_tls"]
    assert len(found) == warns


def test_processes_change_to_tls_one_after_the_other(tmp_path: Path, authority: Authority) -> None:
    """Transactions over both nodes succeed at every step from plaintext to TLS."""
    shared = {
        "catalog_url": f"sqlite:///{tmp_path}/catalog.db",
        "objects_path": tmp_path / "objects",
        "cluster_internal_port": 0,
        "log_format": "json",
        "group_offsets_partitions": 2,
        "transaction_state_partitions": 2,
        "topic_num_partitions": 4,
    }
    with ExitStack() as stack:
        nodes = [NodeProcess(tmp_path / str(number), node_id=number, **shared) for number in (1, 2)]
        for node in nodes:
            stack.push(node)
            node.data_dir.parent.mkdir(parents=True)
            node.spawn()
        for node in nodes:
            node.wait_ready(TIMEOUT_S)
        for node in nodes:
            wait_for_brokers(node.host, node.port, 2)
        producer = Producer({"bootstrap.servers": nodes[0].bootstrap, "transactional.id": "w"})
        producer.init_transactions(TIMEOUT_S)
        written = 0
        for stage in ("accepted", "preferred", "required"):
            for node in nodes:
                node.settings |= tls_settings(authority, stage)
                assert node.terminate() == 0
                node.start()
                for each in nodes:
                    wait_for_brokers(each.host, each.port, 2)
                producer.begin_transaction()
                for partition in range(4):
                    producer.produce("t", b"%d" % written, partition=partition)
                producer.commit_transaction(TIMEOUT_S)
                written += 1
        consumer = Consumer(
            {"bootstrap.servers": nodes[0].bootstrap, "group.id": "g", "isolation.level": "read_committed"}
        )
        consumer.assign([TopicPartition("t", partition, 0) for partition in range(4)])
        found: list[int] = []
        while len(found) < 4 * written:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            found.append(int(message.value() or b""))
        consumer.close()
        assert sorted(found) == sorted(list(range(written)) * 4)
        lines = "\n".join(line for node in nodes for line in node.lines)
        assert "TLS handshake failed" not in lines
        assert "expects TLS" not in lines
