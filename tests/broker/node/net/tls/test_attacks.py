"""Attacks on a port with TLS: half-done handshakes by the thousand, renegotiation, and stops meanwhile."""

import asyncio
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from structlog.testing import capture_logs

from tests.broker.node.net.tls.test_node import ASK, TLS_1_2, address, fails, reasons, tls_node
from tests.support.certificates import Authority
from tests.support.raw_client import raw_client
from tests.support.tools import openssl
from tests.support.waiting import until

HANDSHAKES = 1000
TIMEOUT_S = 3599.5
"""Time for a handshake that no test waits for, and that nothing else in a node has."""
HANDSHAKE_BYTES_MAX = {True: 128 << 10, False: 384 << 10}
"""Memory that a handshake may take, with uvloop and without. It is some 50 KiB, and asyncio's buffer of 256 KiB."""


def client_hello(authority: Authority) -> bytes:
    """The first message of a client."""
    outgoing = ssl.MemoryBIO()
    client = authority.client_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@contextmanager
def half_done(bootstrap: str, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections that have sent the first message, and send nothing more."""
    host, port = bootstrap.split(":")
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            connections.append(stack.enter_context(socket.create_connection((host, int(port)))))
            connections[-1].sendall(sent)
        yield connections


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def has_answer(connection: socket.socket) -> bool:
    """Return whether the node has answered, or closed the connection."""
    with suppress(BlockingIOError):
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return True
    return False


@pytest.mark.slow
async def test_a_thousand_half_done_handshakes_are_bounded_and_end(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has made the node compute its part, and waits. Their time ends when the test says so."""
    timeouts: list[asyncio.Timeout] = []
    real = asyncio.timeout

    def noted(delay_s: float | None) -> asyncio.Timeout:
        made = real(delay_s)
        if delay_s == TIMEOUT_S:
            timeouts.append(made)
        return made

    monkeypatch.setattr(asyncio, "timeout", noted)
    settings = {"ssl_handshake_timeout_ms": int(TIMEOUT_S * 1000), "network_connections_max": 2 * HANDSHAKES}
    context, hello = authority.client_context(), client_hello(authority)
    with capture_logs() as logs:
        async with (
            tls_node(tmp_path, authority, **settings) as node,
            raw_client(address(node), context=context) as client,
        ):
            await client.call(ASK, 9)
            timeouts.clear()
            before, is_uvloop = resident_bytes(), isinstance(asyncio.get_running_loop(), uvloop.Loop)
            with half_done(address(node), HANDSHAKES // 10, hello) as first, ExitStack() as stack:
                rest = [
                    each
                    for _ in range(9)
                    for each in stack.enter_context(half_done(address(node), HANDSHAKES // 10, hello))
                    if await client.call(ASK, 9)
                ]
                await until(lambda: all(has_answer(each) for each in (*first, *rest)), timeout_s=60)
                assert node.ports.clients.handshakes == HANDSHAKES
                assert (resident_bytes() - before) / HANDSHAKES < HANDSHAKE_BYTES_MAX[is_uvloop]
                assert not await fails(address(node), context)
                now_s = asyncio.get_running_loop().time()
                for each in timeouts:
                    with suppress(RuntimeError):  # the handshake is complete
                        each.reschedule(now_s)
                await until(lambda: not node.ports.clients.handshakes, timeout_s=60)
                await client.call(ASK, 9)
                assert not await fails(address(node), context)
            assert len(node.ports.clients.connections) == 1
            assert node.ports.clients.bytes_held == 0
            assert node.ports.clients.stats.failed_handshakes == HANDSHAKES
    assert set(reasons(logs)) == {f"it took longer than {TIMEOUT_S:g} s (ssl.handshake_timeout_ms)"}


async def test_a_stop_aborts_handshakes_that_are_half_done(tmp_path: Path, authority: Authority) -> None:
    unexpected: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
    with capture_logs() as logs, ExitStack() as stack:
        async with tls_node(tmp_path, authority) as node:
            asked = stack.enter_context(half_done(address(node), 20, client_hello(authority)))
            await until(lambda: all(has_answer(each) for each in asked))
            stack.enter_context(half_done(address(node), 20, client_hello(authority)))  # some of them have not begun
            await until(lambda: node.ports.clients.handshakes >= 21)
        for each in asked:
            each.settimeout(10)
            with suppress(ConnectionError):
                while each.recv(10_000):
                    pass
    assert not unexpected
    assert not [line for line in logs if line["log_level"] in {"error", "critical"}]
    assert not node.ports.clients.handshakes


async def test_renegotiation_is_refused(tmp_path: Path, authority: Authority) -> None:
    """By a client of OpenSSL, which begins one for the line R. TLS 1.3 does not have it."""
    async with (
        tls_node(tmp_path, authority) as node,
        raw_client(address(node), context=authority.client_context(versions=[TLS_1_2])) as other,
    ):
        await other.call(ASK, 9)
        client = await asyncio.create_subprocess_exec(
            openssl(), "s_client", "-tls1_2", "-connect", address(node), "-CAfile", authority.file,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert client.stdin
        try:
            await until(lambda: len(node.ports.clients.connections) == 2)
            client.stdin.write(b"R\n")
            assert client.stdout
            async with asyncio.timeout(30):
                said = await client.stdout.read()
            assert b"RENEGOTIATING" in said
            assert b"no renegotiation" in said
        finally:
            with suppress(ProcessLookupError):
                client.kill()
            await client.wait()
        await until(lambda: len(node.ports.clients.connections) == 1)
        await other.call(ASK, 9)
