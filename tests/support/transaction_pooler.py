"""A pooler between clients and PostgreSQL that has one session, and gives it to one transaction after the other.

It does what PgBouncer does with `pool_mode = transaction`, and knows of the protocol only where a transaction ends.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit, urlunsplit

STARTUP: Final = struct.Struct(">ii")
VERSION_3: Final = 3 << 16
READY: Final = b"Z"
IDLE: Final = b"I"


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return the type of a message, and the whole of it."""
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


class _Pooler:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turns = asyncio.Lock()
        self._greeting = b""

    async def begin(self, user: str, database: str) -> None:
        """Open the session; remember what the server says, for the clients."""
        body = f"user\0{user}\0database\0{database}\0\0".encode()
        self._writer.write(STARTUP.pack(8 + len(body), VERSION_3) + body)
        kind = b""
        while kind != READY:
            kind, message = await _message(self._reader)
            self._greeting += message

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it is gone."""
        try:
            while True:
                size, code = STARTUP.unpack(await reader.readexactly(STARTUP.size))
                await reader.readexactly(size - STARTUP.size)
                if code >> 16 == VERSION_3 >> 16:
                    break
                writer.write(b"N")  # neither TLS nor GSSAPI
            writer.write(self._greeting)
            while True:
                kind, message = await _message(reader)
                if kind == b"X":
                    return
                async with self._turns:
                    await self._transact(message, reader, writer)
        except (EOFError, OSError):
            return
        finally:
            writer.close()

    async def _transact(self, message: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay until the end of the transaction that begins with a message."""
        while True:
            self._writer.write(message)
            while message[:1] not in {b"Q", b"S"}:  # what is answered with READY
                _, message = await _message(reader)
                self._writer.write(message)
            kind, answer = b"", b""
            while kind != READY:
                kind, answer = await _message(self._reader)
                writer.write(answer)
            if answer[-1:] == IDLE:
                return
            _, message = await _message(reader)


@asynccontextmanager
async def transaction_pooler(url: str) -> AsyncIterator[str]:
    """Put a pooler in front of a database, on a free loopback port; return its URL."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    pooler = _Pooler(reader, writer)
    await pooler.begin(at.username or "", at.path[1:])
    server = await asyncio.start_server(pooler.serve, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield urlunsplit(at._replace(netloc=f"{at.username}@127.0.0.1:{port}"))
    finally:
        server.close()
        writer.close()
