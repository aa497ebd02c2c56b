"""Finds the offset at which to cut a stream for retention by size.

As Kafka does with segments: the oldest data is removed as long as the rest is at least the limit, so a stream is never
cut below it. The unit is a block (about 512 KiB of batches) of an object instead of a segment. The size of a stream is
that of its blocks in objects plus that of the batches that are not in objects yet. The latter always stay.
"""

from typing import Final

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.model import RangeLocation
from anabranch.s3stream.object.format import IndexEntry
from anabranch.s3stream.read.time_lookup import RANGES_PER_LOOKUP, BlockSource

SLACK_BYTES_MAX: Final = 512 << 10
SLACK_SHARE: Final = 16
"""An excess below the limit divided by this is ignored: finding the block would cost a read for little."""


async def find_size_cut(
    catalog: Catalog,
    source: BlockSource,
    stream_id: int,
    bytes_max: int,
    *,
    uncommitted_bytes: int,
    start_offset: int,
    end_offset: int,
) -> int:
    """Return the start offset in [start, end] that leaves the stream closest to `bytes_max`, not below it.

    `end_offset` is the committed end, and `uncommitted_bytes` the size of what lies past it. Nothing is cut when an
    upload or a compaction was committed during the search, because the count is outdated then. Raises CatalogError,
    StoreError, CorruptObject.
    """
    committed_bytes = (await catalog.stream_bytes([stream_id]))[stream_id]
    excess = committed_bytes + uncommitted_bytes - bytes_max
    if excess <= min(SLACK_BYTES_MAX, bytes_max // SLACK_SHARE):
        return start_offset
    at = await _find_cut(catalog, source, stream_id, excess, start_offset, end_offset)
    info = (await catalog.get_streams([stream_id])).get(stream_id)
    is_same = info is not None and info.end_offset == end_offset
    if not is_same or (await catalog.stream_bytes([stream_id]))[stream_id] != committed_bytes:
        return start_offset
    return at


async def _find_cut(
    catalog: Catalog, source: BlockSource, stream_id: int, excess: int, start_offset: int, end_offset: int
) -> int:
    """Return the offset up to which whole blocks take no more than `excess`."""
    at = start_offset
    while at < end_offset:
        locations = await catalog.find_ranges(stream_id, at, end_offset, limit=RANGES_PER_LOOKUP)
        if not locations:
            break
        for location in locations:
            span = location.range
            if span.start_offset >= at and span.size_bytes <= excess:
                excess -= span.size_bytes
                at = span.end_offset
                continue
            entries = await _entries(source, location)
            excess -= sum(entry.size_bytes for entry in entries if entry.end_offset <= at)  # deleted, though counted
            for entry in entries:
                if entry.end_offset > at:
                    if entry.size_bytes > excess:
                        return at
                    excess -= entry.size_bytes
                    at = entry.end_offset
    return at


async def _entries(source: BlockSource, location: RangeLocation) -> list[IndexEntry]:
    index = await source.index(location.object)
    return index.find(location.stored_stream_id, location.range.start_offset, location.range.end_offset)
