"""Reading of the ring for the scan: large reads, several ahead of the scan, without a separate task."""

from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from mmap import mmap
from typing import Final

from anabranch.wal.block import aligned_memory
from anabranch.wal.format import Header
from anabranch.wal.interface import Durable, RecoveredRecord, WalFailed
from anabranch.wal.recovery import Scan
from anabranch.wal.requests import Device, IoKind, IoRequest

CHUNK_BYTES: Final = 4 << 20
READ_AHEAD: Final = 3
_HEADROOM_BYTES: Final = 1 << 20
"""Space before each chunk, for the partial record that the previous chunk ended with."""
_BUFFER_BYTES: Final = _HEADROOM_BYTES + CHUNK_BYTES
BUFFERS_KEPT: Final = READ_AHEAD + 5
"""Buffers read ahead, being scanned, and handed to the caller."""


class ChunkBuffers:
    """Buffers for chunks. One without views of its records is reused: fresh pages cost more than the read."""

    def __init__(self) -> None:
        self.kept: list[mmap] = []

    def take(self) -> memoryview:
        """Return a buffer for one chunk that no view refers to."""
        for memory in self.kept:
            with suppress(BufferError, OSError, SystemError):
                memory.resize(_BUFFER_BYTES)  # to its current size: refused while a view of it exists
                return memoryview(memory)
        memory = aligned_memory(_BUFFER_BYTES, huge_pages=True)
        if len(self.kept) < BUFFERS_KEPT:
            self.kept.append(memory)
        return memoryview(memory)


class _ChunkRead:
    """A read in flight: a buffer with headroom, and its completion."""

    __slots__ = ("buffer", "done", "length", "offset", "request")

    def __init__(self, device: Device, header: Header, memory: ChunkBuffers, offset: int, length: int) -> None:
        self.offset = offset
        self.length = length
        self.buffer = memory.take()[: _HEADROOM_BYTES + length]
        self.done = Durable()
        segments = []
        begin = _HEADROOM_BYTES
        for position, size_bytes in header.segments(offset, length):
            segments.append((position, self.buffer[begin : begin + size_bytes]))
            begin += size_bytes
        done = self.done
        # Not a method of the chunk: the reference cycle would keep the buffer until a garbage collection.
        self.request = IoRequest(IoKind.READ, segments, lambda _: done.complete())
        device.submit(self.request)

    def with_carry(self, carry: memoryview) -> memoryview:
        """Return `carry` followed by the chunk, contiguous."""
        if len(carry) <= _HEADROOM_BYTES:
            begin = _HEADROOM_BYTES - len(carry)
            self.buffer[begin:_HEADROOM_BYTES] = carry
            return self.buffer[begin:]
        joined = bytearray(len(carry) + self.length)
        joined[: len(carry)] = carry
        joined[len(carry) :] = self.buffer[_HEADROOM_BYTES:]
        return memoryview(joined)


async def read_ring(device: Device, header: Header, scan: Scan) -> AsyncIterator[list[RecoveredRecord]]:
    """Feed `scan` from its offset until it has reached its end; yield the records of each chunk. Raises WalFailed."""
    ahead: deque[_ChunkRead] = deque()
    memory = ChunkBuffers()
    offset = scan.at
    carry = memoryview(b"")
    while True:
        while len(ahead) < READ_AHEAD and offset < scan.limit:
            length = min(CHUNK_BYTES, scan.limit - offset)
            ahead.append(_ChunkRead(device, header, memory, offset, length))
            offset += length
        if not ahead:
            # An empty range, or the scan has read the whole ring.
            yield scan.feed(carry, scan.at)
            break
        chunk = ahead.popleft()
        await chunk.done
        if chunk.request.error is not None:
            raise WalFailed(
                f"{device.name}: read of {chunk.length} bytes at offset {chunk.offset} failed: {chunk.request.error}"
            ) from chunk.request.error
        data = chunk.with_carry(carry)
        base = chunk.offset - len(carry)
        end = chunk.offset + chunk.length
        if scan.at < end:
            yield scan.feed(data, base)
            if scan.end is not None:
                break
        carry = data[scan.at - base :] if scan.at < end else memoryview(b"")
    for chunk in ahead:
        await chunk.done
