"""A whole node in this process, without sockets and without a disk under its log.

Requests pass through everything that a node does with them, from received bytes to written bytes, on the event loop
that a node uses. The log is the real one, over a device that completes each request on the next turn of the loop.
"""

import asyncio
import mmap
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from anabranch.broker.app import run_node
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.node.settings.sources import load
from anabranch.wal.format import RING_POSITION
from anabranch.wal.interface import Buffer
from anabranch.wal.requests import IoKind, IoRequest
from anabranch.wal.settings import WalSettings
from benchmarks.lab.frames import decode_response, request_frame

_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
MIB: Final = 1 << 20
UPLOAD_AT_BYTES: Final = 96 * MIB
"""Uncommitted bytes from which `InProcessNode.relax` uploads."""
SETTINGS: Final[Mapping[str, str]] = {
    "listener.port": "0",
    "admin.enabled": "false",
    # Nothing happens by itself: no upload, no renewal of the lease, no compaction.
    "wal.capacity_bytes": "4GiB",
    "storage.upload_bytes": "512MiB",
    "storage.upload_age_ms": "86400000",
    "storage.gc_period_ms": "86400000",
    "storage.log_cache_bytes": "256MiB",
    "storage.block_cache_bytes": "64MiB",
    "network.node_bytes_max": "256MiB",
    "catalog.lease_ms": "86400000",
    "compaction.enabled": "false",
    "topic.partitions_max": "20000",
    "group.initial_rebalance_delay_ms": "0",
    "group.consumer_session_timeout_ms": "86400000",
    "group.consumer_session_timeout_max_ms": "86400000",
    "log.level": "error",
}


class NullDevice:
    """A device that keeps the header and forgets the records: a disk's controller copies, not the processor."""

    name = "null"
    description = "benchmark: nothing is stored"
    shared = False

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._header = memoryview(mmap.mmap(-1, RING_POSITION))
        self._waiting: list[IoRequest] = []

    async def unwritten(self) -> Sequence[tuple[int, int]]:
        """Return no ranges, as a block device does."""
        return []

    def submit(self, request: IoRequest) -> None:
        """Complete the request on the next turn of the loop."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._complete)
        self._waiting.append(request)

    def _complete(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            for position, data in request.segments:
                end = min(position + len(data), RING_POSITION)
                if request.kind is IoKind.WRITE and position < RING_POSITION:
                    self._header[position:end] = data[: end - position]
                elif request.kind is IoKind.READ:
                    data[:] = bytes(len(data))
                    if position < RING_POSITION:
                        data[: end - position] = self._header[position:end]
            if request.check_header:
                request.header = bytes(self._header)
            request.done(request)

    async def close(self) -> None:
        """Do nothing."""


class _Transport(asyncio.Transport):
    """The client's end: counts the answers, and keeps the last one."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self._protocol = protocol
        self.answers = 0
        self.last: list[Buffer] = []
        self._left = 0
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None

    async def wait_for(self, answers: int) -> None:
        """Return when there are so many answers in total."""
        if self.answers < answers:
            self._wanted = answers
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def writelines(self, parts: Any) -> None:
        """Receive answers. Each begins with a part of its own."""
        for part in parts:
            if not self._left:
                self._left = 4 + int.from_bytes(part[:4])
                self.last = []
            self.last.append(part)
            self._left -= len(part)
            if not self._left:
                self.answers += 1
        if self._waiter is not None and self.answers >= self._wanted:
            self._waiter.set_result(None)
            self._waiter = None

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        if self._waiter is not None:
            self._waiter.set_exception(ConnectionAbortedError("the node has closed the connection"))
        self._protocol.connection_lost(None)

    close = abort


class InProcessClient:
    """One connection to the node."""

    def __init__(self, node: Node) -> None:
        self._connection = Connection(node.ports.clients, 0)
        self._transport = _Transport(self._connection)
        self._connection.connection_made(self._transport)

    async def exchange(self, frames: Sequence[bytes]) -> None:
        """Send requests at once, and wait for all answers."""
        wanted = self._transport.answers + len(frames)
        for frame in frames:
            self.send(frame)
        await self._transport.wait_for(wanted)

    def send(self, frame: bytes) -> None:
        """Send a request; the connection receives as much at a time as it asks for."""
        connection, view, at = self._connection, memoryview(frame), 0
        while at < len(view):
            space = connection.get_buffer(-1)
            count = min(len(space), len(view) - at)
            space[:count] = view[at : at + count]
            at += count
            connection.buffer_updated(count)

    async def call(self, request: object, version: int | None = None) -> Any:
        """Send a request and return the answer, decoded."""
        await self.exchange([request_frame(request, version)])
        return self.answer_to(type(request), version)

    def answer_to(self, request_type: type, version: int | None = None) -> Any:
        """Return the last answer, decoded as one to a request of this type."""
        return decode_response(request_type, b"".join(self._transport.last)[4:], version)


class InProcessNode:
    """The node, and its first client."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = InProcessClient(node)

    async def relax(self) -> None:
        """Upload what was appended, if there is much of it: between measurements, so that none happens during one."""
        if self.node.serving.storage.uncommitted_bytes > UPLOAD_AT_BYTES:
            await self.node.serving.storage.flush()


class _NullLogFiles:
    """A place in which no log has been yet, and which gives each a null device."""

    def exists(self, _path: Path) -> bool:
        return False

    def open(self, _path: Path, settings: WalSettings, *, create: bool, exclusive: bool = True) -> NullDevice:  # noqa: ARG002
        return NullDevice(settings.capacity_bytes)


@asynccontextmanager
async def in_process_node(**more: str) -> AsyncIterator[InProcessNode]:
    """Start a node with all files in memory, and stop it. `more` are settings, with `__` for the dot in their names."""
    with tempfile.TemporaryDirectory(prefix="anabranch-guard-", dir=_MEMORY) as folder:
        changed = {name.replace("__", "."): value for name, value in more.items()}
        settings = load({**SETTINGS, "node.data_dir": folder, **changed}, {}, None)
        async with run_node(settings, environment=Environment(logs=_NullLogFiles())) as node:
            yield InProcessNode(node)
