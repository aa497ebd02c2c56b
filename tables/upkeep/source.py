"""Copies the blocks of a range of a partition from objects to a file of this machine, from which rows are made.

Only the catalog and the stores are asked, so the partition may be led by any node. Objects may be replaced by
compaction between the two: then the range is looked up again. Every block's CRC32C is checked.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import BinaryIO, Final

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import OffsetBounds
from anabranch.s3stream.errors import ObjectNotFound, StorageError
from anabranch.s3stream.model import ObjectInfo, RangeLocation, object_key
from anabranch.s3stream.object.format import IndexEntry, check_block
from anabranch.s3stream.object.reader import ObjectIndex, expect_object, index_tail_bytes, read_index
from anabranch.s3stream.read.io_plan import ByteRange, plan_gets
from anabranch.s3stream.store.interface import ObjectStore

RANGES_PAGE: Final = 200
READ_BYTES_MAX: Final = 8 << 20
"""Largest GET, unless a single block is larger."""
GAP_BYTES_MAX: Final = 64 << 10
ATTEMPTS: Final = 5
"""Times that a range is looked up, while compaction replaces its objects."""
INDEXES_MAX: Final = 16
"""Indexes of objects that are kept: the shares of a commit often come from the same ones."""
INDEX_BYTES_MAX: Final = 4 << 20
"""Largest index that is kept."""


class RowsGone(StorageError):
    """The topic has lost a part of the range since it was planned: plan again."""


@dataclass(frozen=True, slots=True)
class CopiedBlocks:
    """Blocks in a file, in the order of offsets, and the offsets [start, end) that they have all batches of."""

    entries: Sequence[IndexEntry]
    """At their positions in the file."""
    start_offset: int
    end_offset: int
    size_bytes: int
    cleaned: Mapping[int, OffsetBounds]
    """Ranges that log compaction has rewritten, among those that they are from, by object id. All that is here of
    one is from it."""


@dataclass(frozen=True, slots=True)
class _Block:
    location: RangeLocation
    entry: IndexEntry

    @property
    def object(self) -> ObjectInfo:
        return self.location.object

    @property
    def bounds(self) -> OffsetBounds:
        """Offsets of the range that it is part of."""
        return OffsetBounds(self.location.range.start_offset, self.location.range.end_offset)


class BlockSource:
    """Reads blocks for the tables of a node."""

    def __init__(self, catalog: Catalog, stores: Mapping[str, ObjectStore], cluster: str) -> None:
        self._catalog = catalog
        self._stores = stores
        self._cluster = cluster
        self._indexes: OrderedDict[int, ObjectIndex] = OrderedDict()
        """By object id, the least recently used first."""

    async def copy(self, stream_id: int, start: int, end: int, target: Path, *, bytes_max: int) -> CopiedBlocks:
        """Copy the blocks from `start` on, until they have `end`, or about `bytes_max` bytes.

        Raises RowsGone if the topic no longer has `start`, StorageError, and OSError for the file.
        """
        for attempt in range(ATTEMPTS):
            blocks = await self._find_blocks(stream_id, start, end, bytes_max)
            try:
                with target.open("wb") as file:
                    entries = await self._copy(blocks, file)
            except ObjectNotFound:
                if attempt == ATTEMPTS - 1:
                    raise
                for each in blocks:
                    self._indexes.pop(each.object.object_id, None)
                continue
            return CopiedBlocks(
                entries,
                start,
                min(end, entries[-1].end_offset),
                sum(each.size_bytes for each in entries),
                {
                    each.object.object_id: each.bounds
                    for each in blocks
                    # One that has replaced others between two pages has only what follows.
                    if each.object.cleaned and each.entry.start_offset <= max(start, each.bounds.start_offset)
                },
            )
        raise AssertionError("the last attempt returns or raises")

    async def end_of_share(self, stream_id: int, start: int, end: int, *, bytes_max: int) -> int:
        """Return where the blocks end that `copy` would copy. Raises RowsGone, other StorageErrors."""
        for attempt in range(ATTEMPTS):
            try:
                blocks = await self._find_blocks(stream_id, start, end, bytes_max)
            except ObjectNotFound:
                if attempt == ATTEMPTS - 1:
                    raise
            else:
                return min(end, blocks[-1].entry.end_offset)
        raise AssertionError("the last attempt returns or raises")

    async def _find_blocks(self, stream_id: int, start: int, end: int, bytes_max: int) -> Sequence[_Block]:
        blocks: list[_Block] = []
        size, at = 0, start
        while at < end and size < bytes_max:
            page = await self._catalog.find_ranges(stream_id, at, end, limit=RANGES_PAGE)
            if not page or page[0].range.start_offset > at:
                raise RowsGone(f"stream {stream_id}: offset {at} of [{start}, {end}) is in no object any more")
            for location in page:
                low, high = max(at, location.range.start_offset), min(end, location.range.end_offset)
                if low >= high:
                    continue  # replaced between two pages
                for entry in await self._entries(location, low, high):
                    blocks.append(_Block(location, entry))
                    size += entry.size_bytes
                    at = entry.end_offset
                    if size >= bytes_max:
                        break
                if size >= bytes_max or at >= end:
                    break
        for one, other in pairwise(blocks):
            if one.entry.end_offset != other.entry.start_offset:
                raise StorageError(
                    f"stream {stream_id}: the block that ends at {one.entry.end_offset}, of object "
                    f"{one.object.object_id}, is followed by one at {other.entry.start_offset}, of object "
                    f"{other.object.object_id}"
                )
        return blocks

    async def _entries(self, location: RangeLocation, low: int, high: int) -> Sequence[IndexEntry]:
        """Return the blocks of a range that have [low, high)."""
        index = await self._index(location.object)
        entries = index.find(location.stored_stream_id, low, high)
        if not entries or entries[0].start_offset > low or entries[-1].end_offset < high:
            raise StorageError(
                f"object {index.key}: expected offsets [{low}, {high}) of stream {location.stored_stream_id} as the "
                f"catalog has them, found {len(entries)} blocks that do not hold them"
            )
        return entries

    async def _index(self, info: ObjectInfo) -> ObjectIndex:
        found = self._indexes.get(info.object_id)
        if found is not None:
            self._indexes.move_to_end(info.object_id)
            return found
        key = object_key(self._cluster, info.object_id)
        index = await read_index(
            self._store(info), key, index_tail_bytes(info.size_bytes), object_bytes=info.size_bytes
        )
        expect_object(index, info.object_id)
        if index.size_bytes <= INDEX_BYTES_MAX:
            self._indexes[info.object_id] = index
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
        return index

    async def _copy(self, blocks: Sequence[_Block], file: BinaryIO) -> Sequence[IndexEntry]:
        entries: list[IndexEntry] = []
        position = 0
        for _, group in groupby(blocks, key=lambda each: each.object.object_id):
            some = list(group)
            info = some[0].object
            store, key = self._store(info), object_key(self._cluster, info.object_id)
            gets = plan_gets(
                [ByteRange(each.entry.position, each.entry.end_position) for each in some],
                gap_bytes_max=GAP_BYTES_MAX,
                read_bytes_max=READ_BYTES_MAX,
                split_bytes_min=READ_BYTES_MAX,
                idle=1,
            )
            for get in gets:
                data = await store.get(key, get.start, get.end)
                found = [(some[at].entry, data[some[at].entry.position - get.start :]) for at in get.members]
                pieces = [(entry, rest[: entry.size_bytes]) for entry, rest in found]
                await asyncio.to_thread(_write, file, pieces, f"{store.name}:{key}")
                for entry, _ in pieces:
                    entries.append(entry._replace(position=position))
                    position += entry.size_bytes
        return entries

    def _store(self, info: ObjectInfo) -> ObjectStore:
        store = self._stores.get(info.store)
        if store is None:
            raise StorageError(f"object {info.object_id} is in the store {info.store!r}, which is not configured")
        return store


def _write(file: BinaryIO, pieces: Sequence[tuple[IndexEntry, memoryview]], where: str) -> None:
    for entry, data in pieces:
        check_block(data, entry, where=where)
        file.write(data)
