"""A node with TLS: handshakes, certificates of clients, limits, the wire path, and certificates that change."""

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.tls_acceptor import TlsAcceptor
from anabranch.broker.node.net.tls_connection import PIECE_BYTES
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import ProduceRequest
from tests.support.certificates import Authority, Issued
from tests.support.metrics import metrics_of
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, produce_request, raw_client
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ASK = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
LISTENERS = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"


@asynccontextmanager
async def tls_node(tmp_path: Path, authority: Authority, **wanted: Any) -> AsyncIterator[Node]:
    issued = authority.issue("node")
    files = {"ssl_certificate_file": issued.certificate, "ssl_key_file": issued.key}
    async with running_node(tmp_path, listeners=LISTENERS, **{**files, **wanted}) as node:
        yield node


def address(node: Node, listener: str = "SSL") -> str:
    return f"127.0.0.1:{node.ports.clients.ports[listener]}"


def reasons(logs: list[Any], event: str = "TLS handshake failed") -> list[str]:
    return [line["reason"] for line in logs if line["event"] == event]


async def fails(bootstrap: str, context: ssl.SSLContext | None) -> bool:
    """Return True if the node does not answer a client."""
    try:
        async with raw_client(bootstrap, context=context) as client:
            await client.call(ASK, 9)
    except (OSError, asyncio.IncompleteReadError):
        return True
    return False


# answers


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
async def test_a_client_is_served_with_tls_and_told_the_addresses_of_its_listener(
    tmp_path: Path, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = authority.client_context(versions=[version])
    async with tls_node(tmp_path, authority) as node:
        async with raw_client(address(node), context=context) as client, raw_client(node.bootstrap) as plain:
            for connected, name in ((client, "SSL"), (plain, "PLAINTEXT")):
                answer = await connected.call(ASK, 9)
                assert [each.port for each in answer.brokers] == [node.ports.clients.ports[name]]
            await client.produce("t", [batch_of(b"x" * 200_000), batch_of(b"y")])
        await until(lambda: not node.ports.clients.connections)
        assert (node.ports.clients.stats.accepted, node.ports.clients.stats.failed_handshakes) == (2, 0)
        assert (node.ports.clients.handshakes, node.ports.clients.bytes_held) == (0, 0)


async def test_versions_and_suites_are_those_that_are_enabled(tmp_path: Path, authority: Authority) -> None:
    suite = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority, ssl_enabled_protocols="TLSv1.2", ssl_cipher_suites=suite) as node:
            assert await fails(address(node), authority.client_context(versions=[TLS_1_3]))
            other = authority.client_context(versions=[TLS_1_2])
            other.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
            assert await fails(address(node), other)
            assert not await fails(address(node), authority.client_context(versions=[TLS_1_2]))
    assert reasons(logs) == [
        "the client offers no version of TLS that is enabled (ssl.enabled_protocols)",
        "the client offers no cipher suite that is enabled (ssl.cipher_suites)",
    ]


# certificates of clients


SHOWN = ("nothing", "valid", "of another authority", "expired", "revoked")


@pytest.mark.parametrize(
    ("client_auth", "shown"),
    [
        *(("none", shown) for shown in SHOWN[:2]),  # no certificate is looked at
        *(("requested", shown) for shown in SHOWN),
        *(("required", shown) for shown in (*SHOWN[:2], "revoked")),
    ],
)
async def test_certificates_of_clients(tmp_path: Path, authority: Authority, client_auth: str, shown: str) -> None:
    stranger = Authority(tmp_path / "other", "other")
    certificates: dict[str, Issued | None] = {
        "nothing": None,
        "valid": authority.issue("client", organization="Org"),
        "of another authority": stranger.issue("client"),
        "expired": authority.issue("old", days=(-5, -1)),
        "revoked": authority.issue("bad"),
    }
    revoked = certificates["revoked"]
    assert revoked is not None
    trusted = {"ssl_ca_file": authority.file, "ssl_crl_file": authority.revoke(revoked)}
    settings = {"ssl_client_auth": client_auth, **(trusted if client_auth != "none" else {})}
    context = authority.client_context(certificates[shown])
    accepted = client_auth == "none" or shown == "valid" or (shown == "nothing" and client_auth == "requested")
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority, **settings) as node:
            if accepted:
                async with raw_client(address(node), context=context) as client:
                    await client.call(ASK, 9)
                    (connection,) = node.ports.clients.connections
                    named = client_auth != "none" and shown == "valid"
                    assert connection.principal == ("User:CN=client,O=Org" if named else "User:ANONYMOUS")
            else:
                assert await fails(address(node), context)
            await until(lambda: not node.ports.clients.handshakes)
    expected = {
        "nothing": "the client has sent no certificate, and ssl.client_auth is 'required'",
        "of another authority": "the client's certificate is not accepted: unable to get local issuer certificate",
        "expired": "the client's certificate is not accepted: certificate has expired",
        "revoked": "the client's certificate is not accepted: certificate revoked",
    }
    assert reasons(logs) == ([] if accepted else [expected[shown]])
    if accepted:
        (line,) = [each for each in logs if each["event"] == "connected"]
        assert (line["listener"], line["protocol"]) == ("SSL", "TLSv1.3")


async def test_rules_name_the_principal_or_refuse_the_client(tmp_path: Path, authority: Authority) -> None:
    settings = {
        "ssl_client_auth": "required",
        "ssl_ca_file": authority.file,
        "ssl_principal_mapping_rules": "RULE:^CN=([a-z]+),O=Org$/$1/U",
    }
    named = authority.client_context(authority.issue("duke", organization="Org"))
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority, **settings) as node:
            async with raw_client(address(node), context=named) as client:
                await client.call(ASK, 9)
                assert [each.principal for each in node.ports.clients.connections] == ["User:DUKE"]
            assert await fails(address(node), authority.client_context(authority.issue("x\ny")))
            await until(lambda: not node.ports.clients.connections)
    (reason,) = reasons(logs, "connection closed")
    assert reason == r"no rule of ssl.principal_mapping_rules applies to 'CN=x\ny'"


# strangers


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\0\0\0\x20\0\x12\0\3", "a client that does not use TLS, but this listener expects TLS"),
        (b"GET / HTTP/1.1\r\n", "an HTTP request, but this listener expects TLS"),
        (b"SSH-2.0-x\r\n", "an SSH client, but this listener expects TLS"),
        (b"\x16\3\1\0\4abcd", "OpenSSL: "),
        (b"\x16\3\1\0\x10" + b"\xff" * 40, "OpenSSL: "),
        (b"\x16\3\1\xff\xff" + b"a" * 20_000, "OpenSSL: "),
    ],
)
async def test_a_stranger_on_a_port_with_tls_is_closed_with_one_line(
    tmp_path: Path, authority: Authority, sent: bytes, expected: str
) -> None:
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority) as node:
            async with raw_client(address(node)) as client:
                client.send_bytes(sent)
                with suppress(ConnectionError):
                    while await client._reader.read(100):  # noqa: SLF001 - the node may send an alert first
                        pass
            await until(lambda: node.ports.clients.stats.failed_handshakes == 1)
            assert not node.ports.clients.handshakes
            assert not await fails(address(node), authority.client_context())
    (reason,) = reasons(logs)
    assert reason.startswith(expected)


async def test_a_tls_client_on_a_port_without_is_closed_with_one_line(tmp_path: Path, authority: Authority) -> None:
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority) as node:
            assert await fails(node.bootstrap, authority.client_context())
    (reason,) = reasons(logs, "connection closed")
    assert reason == "a TLS handshake, but this port expects Kafka's protocol without TLS"


async def test_a_check_by_a_load_balancer_is_no_failure(tmp_path: Path, authority: Authority) -> None:
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority) as node:
            async with raw_client(address(node)):
                pass
            await until(lambda: any(line["event"] == "closed before the TLS handshake" for line in logs))
            assert (node.ports.clients.handshakes, node.ports.clients.stats.failed_handshakes) == (0, 0)
    assert not reasons(logs)


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\3\1\1\0abc"])
async def test_a_handshake_that_stalls_is_closed_in_time(tmp_path: Path, authority: Authority, sent: bytes) -> None:
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority, ssl_handshake_timeout_ms=200) as node:
            async with raw_client(address(node)) as client:
                client.send_bytes(sent)
                assert await client.closed()
            await until(lambda: not node.ports.clients.handshakes)
    assert reasons(logs) == ["it took longer than 0.2 s (ssl.handshake_timeout_ms)"]


async def test_a_handshake_that_stalls_in_the_middle_is_closed_in_time(tmp_path: Path, authority: Authority) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority, ssl_handshake_timeout_ms=300) as node:
            async with raw_client(address(node)) as client:
                client.send_bytes(outgoing.read())
                with suppress(ConnectionError):
                    while await client._reader.read(10_000):  # noqa: SLF001 - the node's part of the handshake
                        pass
            await until(lambda: not node.ports.clients.handshakes)
    assert reasons(logs) == ["it took longer than 0.3 s (ssl.handshake_timeout_ms)"]


async def test_damaged_handshakes_leave_nothing_behind(tmp_path: Path, authority: Authority) -> None:
    chance = Random(16)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = authority.client_context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    whole = outgoing.read()
    async with (
        tls_node(tmp_path, authority, ssl_handshake_timeout_ms=2_000) as node,
        raw_client(address(node), context=authority.client_context()) as other,
    ):
        for _ in range(150):
            damaged = bytearray(whole[: chance.randrange(1, len(whole) + 1)])
            for _ in range(chance.choice((0, 1, 20))):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            async with raw_client(address(node)) as client:
                client.send_bytes(bytes(damaged) + chance.randbytes(chance.choice((0, 5, 40_000))))
        await other.call(ASK, 9)
        await until(lambda: not node.ports.clients.handshakes)
        assert [each.principal for each in node.ports.clients.connections] == ["User:ANONYMOUS"]
        assert node.ports.clients.stats.accepted == 1
        assert node.ports.clients.bytes_held == 0


async def test_a_shortage_of_descriptors_ends(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.node.net.tls_acceptor.PAUSE_S", 0.01)
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority) as node:
            (acceptor,) = [each for each in node.ports.clients._listeners if isinstance(each, TlsAcceptor)]  # noqa: SLF001
            bound = acceptor._bound  # noqa: SLF001
            answers = iter([OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()])

            def accept() -> Any:
                error = next(answers, None)
                if error is not None:
                    raise error
                return bound.accept()

            short = SimpleNamespace(accept=accept, fileno=bound.fileno, close=bound.close)
            monkeypatch.setattr(acceptor, "_bound", short)
            assert not await fails(address(node), authority.client_context())
    (line,) = [each for each in logs if each["event"] == "no connection can be accepted; trying again"]
    assert line["reason"] == "[Errno 24] Too many open files"


async def test_a_thousand_slow_handshakes_hold_up_nobody(tmp_path: Path, authority: Authority) -> None:
    async with tls_node(tmp_path, authority) as node:
        host, port = address(node).split(":")
        async with raw_client(address(node), context=authority.client_context()) as client:
            await client.call(ASK, 9)
            with ExitStack() as stack:
                for number in range(1000):
                    slow = stack.enter_context(socket.create_connection((host, int(port))))
                    slow.send(b"\x16\3\1\1\0"[: number % 6])
                    if number % 100 == 0:
                        await client.call(ASK, 9)
                await until(lambda: node.ports.clients.handshakes == 1000)
                await client.call(ASK, 9)
                assert not await fails(address(node), authority.client_context())
            await until(lambda: not node.ports.clients.handshakes)


@pytest.mark.parametrize("limit", ["network_connections_max", "network_connections_per_address_max"])
async def test_handshakes_count_against_the_limits_of_connections(
    tmp_path: Path, authority: Authority, limit: str
) -> None:
    context = authority.client_context()
    async with tls_node(tmp_path, authority, **{limit: 2}) as node:
        async with raw_client(address(node)), raw_client(address(node), context=context) as client:
            await client.call(ASK, 9)
            assert await fails(address(node), context)
            assert await fails(node.bootstrap, None)
            await client.call(ASK, 9)
        await until(lambda: not node.ports.clients.connections and not node.ports.clients.handshakes)
        assert node.ports.clients.stats.refused_limit == 2
        assert not await fails(address(node), context)


async def test_an_address_that_connects_too_often_gets_no_handshake(tmp_path: Path, authority: Authority) -> None:
    context = authority.client_context()
    async with tls_node(tmp_path, authority) as node, raw_client(address(node), context=context) as client:
        delays = iter([0.01])
        node.ports.clients.connection_delay_s = lambda _: next(delays, 0.0)
        assert await fails(address(node), context)
        assert node.ports.clients.stats.throttled == 1
        await until(lambda: not node.ports.clients.handshakes)
        assert node.ports.clients.stats.failed_handshakes == 0
        assert not await fails(address(node), context)
        await client.call(ASK, 9)


# the wire path


async def test_a_client_that_sends_no_frames_after_its_handshake_is_closed(
    tmp_path: Path, authority: Authority
) -> None:
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority) as node:
            async with raw_client(address(node), context=authority.client_context()) as client:
                client.send_bytes(b"\xff\xff\xff\xff" + bytes(100_000))
                assert await client.closed()
            await until(lambda: not node.ports.clients.connections)
            assert node.ports.clients.bytes_held == 0
    (reason,) = reasons(logs, "connection closed")
    assert reason.startswith("frame of -1 bytes, allowed are 8 to ")


async def fill(client: RawClient, megabytes: int) -> None:
    await client.call(ASK, 9)
    for _ in range(megabytes):
        await client.produce("t", [batch_of(b"x" * 1_000_000)])


def fetch(bytes_max: int = 10 << 20) -> FetchRequest:
    partition = FetchPartition(partition=0, partition_max_bytes=bytes_max)
    return FetchRequest(max_bytes=bytes_max, topics=[FetchTopic(topic="t", partitions=[partition])])


async def test_a_slow_reader_does_not_hold_up_others_and_gets_everything(tmp_path: Path, authority: Authority) -> None:
    context = authority.client_context()
    async with tls_node(tmp_path, authority, wal_capacity_bytes=64 << 20) as node:
        async with raw_client(address(node), context=context) as client:
            await fill(client, 10)
        async with (
            raw_client(address(node), context=context) as slow,
            raw_client(address(node), context=context) as other,
        ):
            for _ in range(50):
                slow.send(fetch(), 12)
            await until(lambda: any(each.transfer is not None for each in node.ports.clients.connections))
            (held,) = [each for each in node.ports.clients.connections if each.transfer is not None]
            assert held._tls_transport._inner.get_write_buffer_size() <= 2 * PIECE_BYTES  # type: ignore[attr-defined] # noqa: SLF001
            response = await other.call(fetch(), 12)
            assert len(response.responses[0].partitions[0].records) > 9_000_000
            for _ in range(50):
                _, response = await slow.receive(FetchRequest, 12)
                assert len(response.responses[0].partitions[0].records) > 9_000_000


async def test_requests_share_the_memory_under_tls(tmp_path: Path, authority: Authority) -> None:
    context = authority.client_context()
    limits = {"network_request_bytes_max": 1 << 20, "network_node_bytes_max": 1 << 20}
    async with tls_node(tmp_path, authority, **limits) as node:
        async with raw_client(address(node), context=context) as client:
            await client.call(ASK, 9)

        async def work() -> None:
            async with raw_client(address(node), context=context) as client:
                for _ in range(10):
                    client.send(produce_request("t", [batch_of(b"x" * 300_000)]), 9)
                for _ in range(10):
                    _, response = await client.receive(ProduceRequest, 9)
                    assert not response.responses[0].partition_responses[0].error_code

        async with asyncio.TaskGroup() as group:
            for _ in range(6):
                group.create_task(work())
        assert node.serving.topics.partition("t", 0).high_watermark == 60
        await until(lambda: not node.ports.clients.connections)
        assert node.ports.clients.bytes_held == 0


async def test_an_abandoned_connection_is_found_while_it_is_not_read(tmp_path: Path, authority: Authority) -> None:
    context = authority.client_context()
    limits = {"network_requests_in_flight_max": 1, "wal_capacity_bytes": 64 << 20}
    waiting = FetchRequest(max_bytes=1, min_bytes=1 << 20, max_wait_ms=600_000, topics=fetch().topics)
    async with tls_node(tmp_path, authority, **limits) as node:
        async with raw_client(address(node), context=context) as client:
            await client.call(ASK, 9)
            client.send(waiting, 12)
            await until(lambda: any(not each.idle for each in node.ports.clients.connections))
            await client.abort()
        await until(lambda: not node.ports.clients.connections, timeout_s=20)
        assert node.ports.clients.bytes_held == 0


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SSL"])
async def test_what_a_client_sends_before_it_closes_is_served(
    tmp_path: Path, authority: Authority, listener: str
) -> None:
    async with tls_node(tmp_path, authority, wal_capacity_bytes=64 << 20) as node:
        context = authority.client_context() if listener == "SSL" else None
        async with raw_client(address(node, listener), context=context) as client:
            await client.call(ASK, 9)
            for _ in range(40):
                client.send(produce_request("t", [batch_of(b"x" * 100_000)], acks=0), 9)
        await until(lambda: node.serving.topics.partition("t", 0).high_watermark == 40)


async def test_a_stop_answers_and_closes(tmp_path: Path, authority: Authority) -> None:
    context = authority.client_context()
    async with tls_node(tmp_path, authority) as node:
        client = await asyncio.open_connection(*address(node).split(":"), ssl=context)
        idle = await asyncio.open_connection(*address(node).split(":"))
        await until(lambda: len(node.ports.clients.connections) == 1 and node.ports.clients.handshakes == 1)
    assert await client[0].read() == b""
    with suppress(ConnectionError):
        assert await idle[0].read() == b""
    for _, writer in (client, idle):
        writer.close()


# rotation


async def test_changed_files_serve_the_next_clients_and_connections_live_on(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.node.net.tls.CHECK_S", 0.01)
    new = Authority(tmp_path / "new", "new")
    with capture_logs() as logs:
        async with tls_node(tmp_path, authority) as node:
            files = authority.folder / "node.key", authority.folder / "node.pem"
            async with raw_client(address(node), context=authority.client_context()) as client:
                await client.call(ASK, 9)
                assert node.ports.clients_tls is not None
                files[1].write_text("no certificate")
                await until(
                    lambda: bool(reasons(logs, "changed TLS files cannot be used; those of before remain in use"))
                )
                assert not await fails(address(node), authority.client_context())
                issued = new.issue("node")
                files[0].write_bytes(issued.key.read_bytes())
                files[1].write_bytes(issued.certificate.read_bytes())
                await until(lambda: node.ports.clients_tls is not None and node.ports.clients_tls.reloads == 1)
                assert await fails(address(node), authority.client_context())
                assert not await fails(address(node), new.client_context())
                await client.call(ASK, 9)
            assert reasons(logs, "changed TLS files cannot be used; those of before remain in use") == [
                f"setting ssl.certificate_file: {files[1]}: there is no valid certificate in PEM format in this file"
            ]
            assert (node.ports.clients_tls.reloads, node.ports.clients_tls.reload_failures) == (1, 1)
    assert len(reasons(logs)) == 1


async def test_a_revocation_takes_effect_without_a_restart(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.broker.node.net.tls.CHECK_S", 0.01)
    client = authority.issue("client")
    settings = {"ssl_client_auth": "required", "ssl_ca_file": authority.file, "ssl_crl_file": authority.revoke()}
    context = authority.client_context(client)
    async with tls_node(tmp_path, authority, **settings) as node:
        assert not await fails(address(node), context)
        authority.revoke(client)
        await until(lambda: node.ports.clients_tls is not None and node.ports.clients_tls.reloads == 1)
        assert await fails(address(node), context)
        assert await fails(address(node), context), "no session of before is resumed"


# status


async def test_the_status_shows_listeners_principals_and_the_certificate(tmp_path: Path, authority: Authority) -> None:
    from anabranch.broker.operator.admin.api.status import node_status

    settings = {"ssl_client_auth": "requested", "ssl_ca_file": authority.file}
    context = authority.client_context(authority.issue("client"))
    async with tls_node(tmp_path, authority, **settings) as node:
        async with raw_client(address(node), context=context) as client, raw_client(node.bootstrap) as plain:
            await client.call(ASK, 9)
            await plain.call(ASK, 9)
            found = await node_status(node)
        assert found.tls is not None
        expiry = found.tls.expires_ms // 1000
        assert found.principals == {"User:CN=client": 1, "User:ANONYMOUS": 1}
        assert [(each.name, each.protocol, each.address, each.connections) for each in found.listeners] == [
            ("PLAINTEXT", "PLAINTEXT", node.bootstrap, 1),
            ("SSL", "SSL", address(node), 1),
        ]
        assert found.tls.certificate == "CN=node"
        assert (await metrics_of(node)).value("anabranch_tls_certificate_expiry_timestamp_seconds") == expiry


# listeners that are open to everybody


@pytest.mark.parametrize(
    ("listener", "expected"),
    [("PLAINTEXT://0.0.0.0:0", ["0.0.0.0"]), ("PLAINTEXT://127.0.0.1:0", []), ("SSL://0.0.0.0:0", [])],
)
async def test_an_open_listener_warns_at_the_start(
    tmp_path: Path, authority: Authority, listener: str, expected: list[str]
) -> None:
    name = listener.split(":", maxsplit=1)[0]
    settings: dict[str, Any] = {"listeners": listener, "advertised_listeners": f"{name}://localhost:0"}
    if name == "SSL":
        settings["ssl_certificate_file"] = authority.issue("node").both
    with capture_logs() as logs:
        async with running_node(tmp_path, **settings):
            await asyncio.sleep(0)  # its tasks begin
    warned = [line for line in logs if line["event"].startswith("a listener has neither encryption")]
    assert [line["address"].split(":")[0] for line in warned] == expected
    assert all(line["listener"] == name for line in warned)
