"""Streams of JSON lines. They are few; one whose client does not read ends (`broker.operator.admin.connections`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Final

from aiohttp import web
from pydantic import BaseModel

from anabranch.broker.operator.admin.api.endpoints import ApiError, Call, Model

HEARTBEAT_S: Final = 3.0
"""Interval of lines that say that the stream lives."""


class Heartbeat(Model):
    """Line of a stream without news."""

    heartbeat_ms: int
    errors: list[str]
    """Failures since the last line, with partition and reason."""


class StreamEnd(Model):
    """Last line of a stream that ends by itself."""

    error: str


class Watchers:
    """Counts the open streams of a kind."""

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self.count = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a stream while it is open. Raises ApiError if there are too many."""
        if self.count >= self._most:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{self._what}: {self._most} are open already; close one of them"
            )
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class LineStream:
    """A response that is sent line by line."""

    def __init__(self, call: Call) -> None:
        self._request = call.request
        self._is_allowed = call.is_allowed
        self._response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})

    async def begin(self) -> None:
        """Send the head."""
        await self._response.prepare(self._request)
        await self._response.write(b"\n")  # so that the client sees at once that the stream is open

    async def may_go_on(self) -> bool:
        """Return whether the client may still see the stream. If not, send the last line."""
        if self._is_allowed():
            return True
        await self.send(StreamEnd(error="the token or the right to see this was revoked"))
        return False

    async def send(self, line: BaseModel) -> None:
        """Send a line, and wait until the client has taken it."""
        await self._response.write(line.model_dump_json().encode() + b"\n")
        await self._request.writer.drain()

    async def end(self) -> web.StreamResponse:
        """End the stream."""
        await self._response.write_eof()
        return self._response
