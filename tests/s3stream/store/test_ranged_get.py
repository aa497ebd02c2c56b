"""The client for ranged GETs against a server that answers in every possible way."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from anabranch.s3stream.store.ranged_get import RangedGets

CLOSE = b""
"""In a script: close the connection."""


@contextlib.asynccontextmanager
async def scripted(*scripts: Sequence[bytes]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server: each connection plays one script, whose entries answer one request each; then it stays silent."""
    requests: list[bytes] = []
    left = list(scripts)
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            for answer in left.pop(0):
                requests.append(await reader.readuntil(b"\r\n\r\n"))
                if answer == CLOSE:
                    break
                for piece in answer.split(b"|"):
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
            else:
                await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/b/k?signed=1", requests
        over.set()


def gets(*, read_timeout_s: float = 30) -> RangedGets:
    return RangedGets(connect_timeout_s=30, read_timeout_s=read_timeout_s, connections_max=4, tls=None)


def allocate(size: int) -> memoryview:
    return memoryview(bytearray(size))


async def told(client: RangedGets, url: str) -> tuple[int, bytes]:
    """Status and body of an answer."""
    answer = await client.get(url, "bytes=0-5", allocate)
    return answer.status, bytes(answer.body)


PART = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 6\r\nContent-Range: bytes 0-5/9\r\n\r\n"


@pytest.mark.parametrize("answer", [PART + b"abcdef", PART + b"|abc|def", PART[:20] + b"|" + PART[20:] + b"abc|def"])
async def test_bodies_arrive_however_they_are_cut_and_connections_are_kept(answer: bytes) -> None:
    client = gets()
    async with scripted([answer, answer]) as (url, requests):
        for _ in range(2):
            found = await client.get(url, "bytes=0-5", allocate)
            assert (found.status, bytes(found.body), found.headers["content-range"]) == (206, b"abcdef", "bytes 0-5/9")
        assert requests[0].startswith(b"GET /b/k?signed=1 HTTP/1.1\r\nHost: 127.0.0.1:")
        assert b"\r\nRange: bytes=0-5\r\n" in requests[1]
        client.close()


async def test_refusals_are_told_with_their_bodies() -> None:
    client = gets()
    refused = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 5\r\n\r\nbusy!"
    chunked = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\nxxxx"
    async with scripted([refused, chunked], [whole], [PART + b"abcdef"]) as (url, requests):
        assert await told(client, url) == (503, b"busy!")
        assert await told(client, url) == (404, b"")
        # An answer of unknown length ends its connection, and so does one that ignored the range.
        assert await told(client, url) == (200, b"")
        assert (await client.get(url, "bytes=0-5", allocate)).status == 206
        assert len(requests) == 4
        client.close()


async def test_a_kept_connection_that_is_closed_is_replaced_once() -> None:
    client = gets()
    async with scripted([PART + b"abcdef", CLOSE], [PART + b"ghijkl"], [CLOSE]) as (url, requests):
        await client.get(url, "bytes=0-5", allocate)
        assert bytes((await client.get(url, "bytes=0-5", allocate)).body) == b"ghijkl"
        assert len(requests) == 3
        client.close()
        with pytest.raises(ConnectionError, match="closed without an answer"):
            await client.get(url, "bytes=0-5", allocate)


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (PART[:30], "bytes of an answer's head"),
        (PART + b"abc", "3 bytes of a body of 6"),
    ],
)
async def test_an_answer_cut_short_is_an_error(answer: bytes, what: str) -> None:
    client = gets()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(EOFError, match=what):
            await client.get(f"http://127.0.0.1:{port}/k", "bytes=0-5", allocate)


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"x" * 33_000])
async def test_nonsense_is_an_error(answer: bytes) -> None:
    client = gets()
    async with scripted([answer]) as (url, _):
        with pytest.raises(ConnectionError, match="bad answer"):
            await client.get(url, "bytes=0-5", allocate)


async def test_silence_ends_and_a_cancelled_get_leaves_nothing() -> None:
    client = gets(read_timeout_s=0.05)
    async with scripted([], [PART + b"abc"], [PART + b"abcdef"]) as (url, _):
        with pytest.raises(TimeoutError, match="silent"):
            await client.get(url, "bytes=0-5", allocate)
        with pytest.raises(TimeoutError):
            await client.get(url, "bytes=0-5", allocate)
        patient = gets()
        assert (await patient.get(url, "bytes=0-5", allocate)).status == 206
        waiting = asyncio.create_task(patient.get(url, "bytes=0-5", allocate))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        patient.close()


async def test_closing_ends_what_is_under_way() -> None:
    client = gets()
    async with scripted([PART + b"abc"]) as (url, _):
        begun = asyncio.Event()

        def allocate_body(size: int) -> memoryview:
            begun.set()
            return allocate(size)

        waiting = asyncio.create_task(client.get(url, "bytes=0-5", allocate_body))
        await begun.wait()
        client.close()
        with pytest.raises(ConnectionError, match="store is closed"):
            await waiting
