"""Finds offsets by time in committed data: from the catalog's ranges and the objects' index entries, and one block.

Ranges, index entries and batches each carry the largest timestamp in them, so the search goes through all three, from
the coarse to the fine. Producers' timestamps come in any order, so what is found is the first item that reaches the
time: everything before it is older.

A caller that can decode batches refines it inside the one batch that is found. The largest timestamp of a range may
belong to a batch that was trimmed: then the search continues behind the range. That is the only case in which more than
one block is read.

Records without a timestamp are as old as the commit of the object that holds them. Those of a clone are as old as the
original's. Those that compaction rewrites look younger, and so are kept longer. The timestamps of ranges and index
entries reveal such records only where there are no others, so where both kinds may be, blocks are read.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.model import ObjectInfo, RangeLocation, StreamBatch
from anabranch.s3stream.object.format import IndexEntry
from anabranch.s3stream.object.reader import ObjectIndex
from anabranch.wal.interface import Buffer

RANGES_PER_LOOKUP: Final = 32
"""Ranges that one catalog look-up returns at most."""


class Timed(Protocol):
    """A range, an index entry or a batch."""

    @property
    def max_timestamp_ms(self) -> int:
        """Largest timestamp in it, or -1."""
        ...


class BlockSource(Protocol):
    """Source of indexes and blocks: a node's caches, or plain reads."""

    async def index(self, info: ObjectInfo) -> ObjectIndex:
        """Return the index of an object."""
        ...

    async def batches(self, info: ObjectInfo, entry: IndexEntry, from_offset: int) -> Iterable[StreamBatch]:
        """Return the batches of a block that end past `from_offset`."""
        ...


IsUntimed: TypeAlias = Callable[[Buffer], bool]
"""Returns whether a payload holds records without a timestamp."""

Item = TypeVar("Item", bound=Timed)


def first_at_or_after(items: Iterable[Item], timestamp_ms: int) -> Item | None:
    """Return the first item, in the order of offsets, that reaches the time."""
    return next((item for item in items if item.max_timestamp_ms >= timestamp_ms), None)


async def find_first(
    catalog: Catalog, source: BlockSource, stream_id: int, timestamp_ms: int, start_offset: int, end_offset: int
) -> StreamBatch | None:
    """Return the first committed batch past `start_offset` whose largest timestamp is at or after `timestamp_ms`.

    `end_offset` is the committed end. Raises CatalogError, StoreError, CorruptObject.
    """
    first = await catalog.find_time(stream_id, timestamp_ms)
    locations: Sequence[RangeLocation] = () if first is None else (first,)
    while locations:
        for location in locations:
            if location.range.max_timestamp_ms >= timestamp_ms:
                found = await _find_in(source, location, timestamp_ms, start_offset)
                if found is not None:
                    return found
        # The batch with the range's largest timestamp lies before the stream's start: search behind the range.
        behind = locations[-1].range.end_offset
        locations = await catalog.find_ranges(stream_id, behind, end_offset, limit=RANGES_PER_LOOKUP)
    return None


async def _find_in(
    source: BlockSource, location: RangeLocation, timestamp_ms: int, start_offset: int
) -> StreamBatch | None:
    span = location.range
    index = await source.index(location.object)
    begin = max(start_offset, span.start_offset)
    for entry in index.find(location.stored_stream_id, begin, span.end_offset):
        if entry.max_timestamp_ms >= timestamp_ms:
            batches = await source.batches(location.object, entry, start_offset)
            found = first_at_or_after(batches, timestamp_ms)
            if found is not None:
                return found
    return None


async def find_untimed(
    catalog: Catalog,
    source: BlockSource,
    stream_id: int,
    since_ms: int,
    start_offset: int,
    end_offset: int,
    is_untimed: IsUntimed,
) -> int | None:
    """Return the offset of the first batch without timestamps in [start, end) committed since `since_ms`, or None.

    `end_offset` is at most the committed end. Raises CatalogError, StoreError, CorruptObject.
    """
    at = start_offset
    while at < end_offset:
        locations = await catalog.find_ranges(stream_id, at, end_offset, limit=RANGES_PER_LOOKUP)
        if not locations:
            break
        for location in locations:
            if location.range.record_count and location.object.committed_ms >= since_ms:
                found = await _find_untimed_in(source, location, at, end_offset, is_untimed)
                if found is not None:
                    return found
            at = location.range.end_offset
    return None


def first_untimed(
    batches: Iterable[StreamBatch], start_offset: int, end_offset: int, is_untimed: IsUntimed
) -> int | None:
    """Return the first offset in [start, end) of a batch with records without a timestamp."""
    for batch in batches:
        if batch.base_offset >= end_offset:
            break
        is_wanted = batch.record_count and batch.end_offset > start_offset
        if is_wanted and (batch.max_timestamp_ms < 0 or is_untimed(batch.payload)):
            return max(batch.base_offset, start_offset)
    return None


async def _find_untimed_in(
    source: BlockSource, location: RangeLocation, start_offset: int, end_offset: int, is_untimed: IsUntimed
) -> int | None:
    span = location.range
    start = max(start_offset, span.start_offset)
    if span.max_timestamp_ms < 0:
        return start
    index = await source.index(location.object)
    for entry in index.find(location.stored_stream_id, start, min(end_offset, span.end_offset)):
        if entry.record_count:
            batches = await source.batches(location.object, entry, start)
            found = first_untimed(batches, start, end_offset, is_untimed)
            if found is not None:
                return found
    return None
