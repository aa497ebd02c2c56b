"""Reads an object's index and blocks. Every byte is checked before it is used.

An `ObjectIndex` keeps the index block in its stored form (56 bytes per entry) and decodes entries on demand: thousands
of indexes can be cached, and compaction plans over millions of entries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct

from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.model import ObjectKind
from anabranch.s3stream.object.format import (
    FOOTER_BYTES,
    INDEX_ENTRY,
    INDEX_HEADER,
    INT64_MAX,
    Footer,
    IndexEntry,
    check_index,
    corrupt,
    decode_footer,
    entry_at,
    iter_entries,
)
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import Buffer

TAIL_BYTES_DEFAULT = 64 * 1024
TAIL_BYTES_MAX = 1024 * 1024
_KEY = Struct("<qqq")  # stream id, start and end offset: the head of an entry


@dataclass(frozen=True, slots=True)
class ObjectIndex:
    """The index of one object. Entries are in the order of (stream id, start offset), and of position."""

    key: str
    footer: Footer
    data: memoryview
    """The index block, already checked."""
    object_bytes: int

    def __len__(self) -> int:
        return self.footer.entry_count

    def __iter__(self) -> Iterator[IndexEntry]:
        return iter_entries(self.data)

    def __getitem__(self, number: int) -> IndexEntry:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return entry_at(self.data, number)

    @property
    def object_id(self) -> int:
        """Id that the object was written under."""
        return self.footer.object_id

    @property
    def kind(self) -> ObjectKind:
        """Kind: stream set object or stream object."""
        return self.footer.kind

    @property
    def size_bytes(self) -> int:
        """Size of the index in memory."""
        return len(self.data)

    def find(
        self, stream_id: int, start_offset: int = 0, end_offset: int = INT64_MAX, *, bytes_max: int = INT64_MAX
    ) -> list[IndexEntry]:
        """Return the stream's entries that overlap [start, end), in offset order, in O(log n + entries returned).

        With `bytes_max`, no more entries than are needed for that many bytes.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            stream, _, end = _KEY.unpack_from(self.data, INDEX_HEADER.size + middle * INDEX_ENTRY.size)
            if (stream, end) <= (stream_id, start_offset):
                low = middle + 1
            else:
                high = middle
        found = []
        while low < len(self):
            entry = entry_at(self.data, low)
            if entry.stream_id != stream_id or entry.start_offset >= end_offset:
                break
            found.append(entry)
            bytes_max -= entry.size_bytes
            if bytes_max <= 0:
                break
            low += 1
        return found


def index_tail_bytes(object_bytes: int) -> int:
    """Return the tail size that includes the index of most objects: a block is about 512 KiB, in SSOs smaller."""
    return min(TAIL_BYTES_MAX, max(TAIL_BYTES_DEFAULT, object_bytes // 256))


async def read_index(
    store: ObjectStore, key: str, size_hint: int = TAIL_BYTES_DEFAULT, *, object_bytes: int | None = None
) -> ObjectIndex:
    """Read and check footer and index: one GET if both are in the last `size_hint` bytes, else two.

    `object_bytes` is the size in the catalog; a different size is corruption. Raises CorruptObject, StoreError.
    """
    tail = await store.get_tail(key, min(max(size_hint, FOOTER_BYTES), TAIL_BYTES_MAX))
    where = f"{store.name}:{key}"
    if object_bytes is not None and tail.size_bytes != object_bytes:
        raise corrupt(where, 0, "object size", expected=object_bytes, found=tail.size_bytes)
    footer = decode_footer(tail.data[-FOOTER_BYTES:], object_bytes=tail.size_bytes, where=where)
    tail_start = tail.size_bytes - len(tail.data)
    index_end = footer.index_position + footer.index_bytes
    if footer.index_position >= tail_start:
        # A copy, so that a cached index does not keep the whole tail in memory.
        data = memoryview(bytes(tail.data[footer.index_position - tail_start : index_end - tail_start]))
    else:
        data = await store.get(key, footer.index_position, index_end)
    check_index(data, footer, where=where)
    return ObjectIndex(key, footer, data, tail.size_bytes)


def decode_index(data: Buffer, *, where: str) -> ObjectIndex:
    """Return the index of an object, given all of its bytes. Raises CorruptObject."""
    view = memoryview(data)
    footer = decode_footer(view[-FOOTER_BYTES:], object_bytes=len(view), where=where)
    index = view[footer.index_position : footer.index_position + footer.index_bytes]
    check_index(index, footer, where=where)
    return ObjectIndex(where, footer, index, len(view))


def expect_object(index: ObjectIndex, object_id: int) -> None:
    """Raise CorruptObject unless the object was written under this id."""
    if index.object_id != object_id:
        raise CorruptObject(f"object {index.key}: footer names object {index.object_id}, expected {object_id}")
