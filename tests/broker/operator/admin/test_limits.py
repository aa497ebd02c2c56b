"""Strangers at the admin port: too many bytes, too slow, too many connections. The others are answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.admin import connections
from tests.broker.operator.admin.test_access import tls_settings
from tests.support.admin_api import READ, TOKENS
from tests.support.certificates import Authority
from tests.support.node import running_node
from tests.support.raw_client import raw_client
from tests.support.waiting import until

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


async def connect(node: Node, stack: AsyncExitStack) -> Streams:
    host, port = node.ports.admin_address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    stack.push_async_callback(leave, writer)
    return reader, writer


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Everything until the node closes."""
    data = b""
    with suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            data += piece
    return data


METRICS = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def answer(node: Node, request: bytes) -> bytes:
    async with AsyncExitStack() as stack:
        reader, writer = await connect(node, stack)
        writer.write(request)
        return await all_of(reader)


async def assert_served(node: Node) -> None:
    assert (await answer(node, METRICS)).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * (3 * connections.LINE_BYTES_MAX) + b"\r\n\r\n",
        b"GET /" + b"x" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
        b"\0" * (1 << 20),
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * (connections.HEADERS_MAX + 1) + b"\r\n",
        b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"f" * (8 << 20),
    ],
    ids=["huge header", "huge path", "zeros", "many headers", "endless chunk size"],
)
async def test_a_request_that_is_too_large_is_refused_and_cut_off(node: Node, request_: bytes) -> None:
    answered = await answer(node, request_)
    assert answered == b"" or answered.startswith(b"HTTP/1.0 400 ")
    await assert_served(node)


async def test_a_connection_is_kept_alive(node: Node) -> None:
    async with AsyncExitStack() as stack:
        reader, writer = await connect(node, stack)
        for _ in range(3):
            writer.write(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP/1.1 200 OK\r\n" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(3) == b"ok\n"
        writer.write(METRICS)
        assert (await all_of(reader)).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_who_does_not_read_is_cut_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.2)
    async with AsyncExitStack() as stack:
        reader, writer = await connect(node, stack)
        reader._transport.pause_reading()  # type: ignore[attr-defined]  # noqa: SLF001
        with suppress(ConnectionError):
            for _ in range(100_000):
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
                await writer.drain()
        assert writer.transport.is_closing(), "it would send for ever"
    monkeypatch.undo()
    await assert_served(node)


async def test_requests_behind_one_under_way_are_limited_in_bytes(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(type(node.upkeep.compaction), "run_once", lambda _: wait_for_ever())
    async with AsyncExitStack() as stack:
        reader, writer = await connect(node, stack)
        writer.write(b"POST /api/v1/compaction HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await begun.wait()
        with suppress(ConnectionError):
            for _ in range(30):
                writer.write(
                    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + b"X: %s\r\n" % (b"x" * 8000) * 50 + b"\r\n"
                )
                await writer.drain()
        assert await all_of(reader) == b""
    await assert_served(node)


async def test_a_body_is_not_read(node: Node) -> None:
    async with AsyncExitStack() as stack:
        reader, writer = await connect(node, stack)
        writer.write(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        assert (await all_of(reader)).startswith(b"HTTP/1.1 404 Not Found\r\n")


@pytest.mark.parametrize(
    "request_",
    [
        b"hello\r\n\r\n",
        b"\xff\xfe \xff \xff\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET //[x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n\r\n",
        b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /console/../../admin/http.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /console/%2e%2e%2f%2e%2e%2fadmin%2fhttp.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /console/%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
async def test_what_is_no_request_is_answered_with_an_error(node: Node, request_: bytes) -> None:
    assert (await answer(node, request_)).startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 404 "))
    await assert_served(node)


async def test_who_is_slow_is_cut_off_and_others_are_answered(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncExitStack() as stack:
        slow = [await connect(node, stack) for _ in range(20)]
        for _, writer in slow:
            writer.write(b"GET /metrics HT")
        await assert_served(node)
        monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.05)
        reader, writer = await connect(node, stack)
        writer.write(b"GET ")
        assert await all_of(reader) == b""
        monkeypatch.undo()
        await assert_served(node)


KEPT = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def kept(node: Node, stack: AsyncExitStack, token: str = "") -> Streams:
    """A connection that has been answered, and stays open."""
    reader, writer = await connect(node, stack)
    path, wanted = (
        (b"/api/v1/session", b"Authorization: Bearer %s\r\n" % token.encode()) if token else (b"/health/live", b"")
    )
    writer.write(b"GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % (path, wanted))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split()[0])
    await reader.readexactly(size)
    return reader, writer


async def test_strangers_give_way_to_others_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 5)
    async with running_node(tmp_path, **TOKENS) as node, AsyncExitStack() as crowd:
        known = await kept(node, crowd, READ)
        strangers = [await kept(node, crowd) for _ in range(3)]
        strangers.append(await connect(node, crowd))  # without a request
        probe = await kept(node, crowd)
        assert await all_of(strangers[0][0]) == b"", "the oldest stranger is closed"
        for left in (*strangers[1:3], probe):
            left[1].write(KEPT)
            assert (await left[0].readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        known[1].write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n" % READ.encode())
        assert (await known[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        async with raw_client(node.bootstrap):
            await until(lambda: len(node.ports.clients.connections) == 1)
        for _ in range(10):
            await kept(node, crowd, READ)
        assert (await answer(node, KEPT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).endswith(b"ok\n")


async def test_a_hundred_strangers_leave_room_for_probes(node: Node) -> None:
    async with AsyncExitStack() as crowd:
        for _ in range(connections.CONNECTIONS_MAX + 5):
            await kept(node, crowd)
        await assert_served(node)


async def test_handshakes_give_way_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    async with running_node(tmp_path, **tls_settings(Authority(tmp_path))) as node, AsyncExitStack() as crowd:
        silent = [await connect(node, crowd) for _ in range(3)]
        await connect(node, crowd)
        assert await all_of(silent[0][0]) == b""


async def test_who_shows_no_token_may_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 0.5)
    async with running_node(tmp_path, **TOKENS) as node, AsyncExitStack() as stack:
        reader, writer = await connect(node, stack)
        writer.write(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await all_of(reader)).startswith(b"HTTP/1.1 401 ")
        reader, _ = await kept(node, stack)
        assert await all_of(reader) == b""
