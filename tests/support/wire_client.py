"""A client that sends one typed request at a time and returns the typed answer, for tests of what is on the wire."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from protocol.codec import decode_exact, encode
from protocol.header import response_header
from protocol.registry import APIS


class WireClient:
    """One connection. Requests may be pipelined: `send` returns the correlation id, `receive` the next answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client_id: str) -> None:
        self._reader = reader
        self._writer = writer
        self._client_id = client_id.encode()
        self._sent: list[tuple[int, int, int]] = []
        self._next_id = 0

    async def request(self, message: Any, version: int | None = None) -> Any:
        """Send a request, by default in its newest version, and return the answer."""
        self.send(message, version)
        return await self.receive()

    def send(self, message: Any, version: int | None = None) -> None:
        """Send a request."""
        api = next(api for api in APIS.values() if api.request is type(message))
        version = api.max_version if version is None else version
        self._next_id += 1
        header = api.key.to_bytes(2, "big") + version.to_bytes(2, "big") + self._next_id.to_bytes(4, "big")
        header += len(self._client_id).to_bytes(2, "big") + self._client_id
        if api.flexible_since is not None and version >= api.flexible_since:
            header += b"\0"
        frame = header + encode(message, version)
        self._sent.append((api.key, version, self._next_id))
        self._writer.write(len(frame).to_bytes(4, "big") + frame)

    async def receive(self) -> Any:
        """Return the next answer."""
        size = int.from_bytes(await self._reader.readexactly(4), "big")
        frame = await self._reader.readexactly(size)
        key, version, correlation_id = self._sent.pop(0)
        header = response_header(key, version, correlation_id)
        assert frame.startswith(header), "answers come in the order of requests"
        return decode_exact(APIS[key].response, frame, version, len(header))


@asynccontextmanager
async def connect(bootstrap: str, client_id: str = "wire") -> AsyncIterator[WireClient]:
    """Connect to `host:port`."""
    host, port = bootstrap.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield WireClient(reader, writer, client_id)
    finally:
        writer.close()
        await writer.wait_closed()
