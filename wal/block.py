"""Blocks: the records of one write, gathered in recycled page-aligned memory.

Fresh memory costs as much as the copy into it, so buffers are anonymous private mappings that return to a pool when
their write is complete. A block belongs to one log and passes through it once: current, pending, writing, done.
"""

from collections.abc import Sequence
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import Final

from crc32c import crc32c

from anabranch.platform import use_huge_pages
from anabranch.wal.format import (
    PADDING_BYTES_MIN,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    encode_padding_into,
    pack_into_record,
    pack_record_start,
)
from anabranch.wal.interface import Buffer, Durable


def aligned_buffer(size_bytes: int) -> memoryview:
    """Return new zeroed memory that begins on a page boundary, as O_DIRECT requires."""
    return memoryview(aligned_memory(size_bytes))


def aligned_memory(size_bytes: int, *, huge_pages: bool = False) -> mmap:
    """Return a new anonymous mapping.

    `huge_pages` saves time for large buffers that are filled once (a third of the system time of a recovery read),
    and costs time for recycled buffers.
    """
    memory = mmap(-1, size_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    if huge_pages:
        use_huge_pages(memory)
    return memory


class BlockBufferPool:
    """Recycled aligned buffers of `block_bytes` and of powers of two above; keeps at most `kept_bytes_max` idle."""

    def __init__(self, block_bytes: int, kept_bytes_max: int) -> None:
        self._block_bytes: Final = block_bytes
        self._kept_bytes_max: Final = kept_bytes_max
        self._kept_bytes = 0
        self._idle: dict[int, list[memoryview]] = {}

    def take(self, size_bytes: int) -> memoryview:
        """Return a buffer of at least `size_bytes`, with arbitrary old content."""
        size_bytes = self._block_bytes if size_bytes <= self._block_bytes else 1 << (size_bytes - 1).bit_length()
        idle = self._idle.get(size_bytes)
        if idle:
            self._kept_bytes -= size_bytes
            return idle.pop()
        return aligned_buffer(size_bytes)

    def give(self, buffer: memoryview) -> None:
        """Return a buffer to the pool. It must not be in use any more."""
        size_bytes = len(buffer)
        if self._kept_bytes + size_bytes <= self._kept_bytes_max:
            self._kept_bytes += size_bytes
            self._idle.setdefault(size_bytes, []).append(buffer)


class WalBlock:
    """Records from one page boundary on, in the order of their offsets, sharing one completion."""

    __slots__ = ("buffer", "durable", "last_offset", "length", "offset", "opened_at", "records", "room_bytes", "salt")

    def __init__(self, offset: int, buffer: memoryview, room_bytes: int, salt: int, opened_at: float) -> None:
        self.offset = offset
        self.buffer = buffer
        self.room_bytes = room_bytes - PADDING_BYTES_MIN
        """Bytes available for records: the rest holds the padding record."""
        self.salt = salt
        self.opened_at = opened_at
        self.length = 0
        self.records = 0
        self.last_offset = offset
        self.durable = Durable()

    @property
    def end(self) -> int:
        """Offset just past the last byte written so far; after `seal`, the start of the next block."""
        return self.offset + self.length

    def add(self, parts: Sequence[Buffer], body_bytes: int) -> int:
        """Copy one record, which must fit, into the block; return its offset."""
        at = self.length
        buffer = self.buffer
        body = end = at + RECORD_HEADER_BYTES
        for part in parts:
            begin = end
            end += len(part)
            buffer[begin:end] = part
        start = pack_record_start(RECORD_MAGIC, body_bytes, self.offset + body, crc32c(buffer[body:end]))
        pack_into_record(buffer, at, start, crc32c(start, self.salt))
        self.length = end
        self.records += 1
        self.last_offset = offset = self.offset + at
        return offset

    def seal(self, durable_offset: int) -> None:
        """End the block with its padding record, which carries the offset that was durable at this time."""
        self.length = encode_padding_into(self.buffer, self.length, self.end, durable_offset, self.salt)
