"""Reads and look-ups of one open stream that the log cache alone cannot answer.

Committed data is in objects. The log cache has the newest committed data and all uncommitted data. A read or look-up
begins in the objects and ends in the cache. The offsets of the stream move meanwhile, so they are read again after
each wait.
"""

from typing import Protocol

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import OffsetOutOfRange
from anabranch.s3stream.model import ReadResult, StreamBatch
from anabranch.s3stream.read.cold_read import ColdReader
from anabranch.s3stream.read.damage import DamagedObjects
from anabranch.s3stream.read.loader import ObjectLoader
from anabranch.s3stream.read.size_lookup import find_size_cut
from anabranch.s3stream.read.time_lookup import IsUntimed, find_untimed
from anabranch.s3stream.stats import StorageStats


class CachedStream(Protocol):
    """An open stream as its reader sees it: its offsets, and the batches that it has in memory.

    In order: start, committed end (of what is in objects), confirmed end (of what may be read).
    """

    stream_id: int
    label: str
    start_offset: int
    committed_offset: int
    confirmed_offset: int

    @property
    def uncommitted_bytes(self) -> int:
        """Payload bytes past the committed end."""
        ...

    def cached_start(self) -> int:
        """Return the first offset in memory, or the end when there is none."""
        ...

    def read_cached(self, offset: int, bytes_max: int, *, end_offset: int | None = None) -> ReadResult | None:
        """Return confirmed batches from `offset` in memory; None when it is not there."""
        ...

    def cached_for_time(self, timestamp_ms: int, from_offset: int) -> StreamBatch | None:
        """Return the first confirmed batch in memory at or after a time that ends past `from_offset`."""
        ...

    def cached_untimed(self, start_offset: int, end_offset: int, is_untimed: IsUntimed) -> int | None:
        """Return the first offset in [start, end) of a batch in memory with records without a timestamp."""
        ...


class StreamReader:
    """Reads of all open streams of an engine."""

    def __init__(self, catalog: Catalog, cold: ColdReader, damaged: DamagedObjects, stats: StorageStats) -> None:
        self.stats = stats
        self._catalog = catalog
        self._cold = cold
        self._damaged = damaged

    @property
    def loader(self) -> ObjectLoader:
        """Caches of locations, indexes and blocks."""
        return self._cold.loader

    async def read(self, stream: CachedStream, offset: int, bytes_max: int, end_offset: int | None) -> ReadResult:
        """Read what is committed from `offset` on, and continue into the cached batches.

        Raises OffsetOutOfRange, CorruptObject, StoreError.
        """
        self.stats.cold_reads += 1
        end = stream.committed_offset if end_offset is None else min(end_offset, stream.committed_offset)
        try:
            with self._damaged.noting(stream.label):
                batches = await self._cold.read(stream.stream_id, offset, bytes_max, end, stream.committed_offset)
        except OffsetOutOfRange:
            # A trim whose answer was lost took effect. Adopt its start, or it would be offered again and again.
            info = (await self._catalog.get_streams((stream.stream_id,))).get(stream.stream_id)
            if info is not None:
                stream.start_offset = max(stream.start_offset, info.start_offset)
            raise
        next_offset = batches[-1].end_offset
        bytes_left = bytes_max - sum(len(batch.payload) for batch in batches)
        if bytes_left > 0 and next_offset >= stream.start_offset:
            more = stream.read_cached(next_offset, bytes_left, end_offset=end_offset)
            if more is not None and more.batches and len(more.batches[0].payload) <= bytes_left:
                batches += more.batches
                next_offset = more.next_offset
        return ReadResult(batches, next_offset)

    async def offset_for_time(self, stream: CachedStream, timestamp_ms: int, from_offset: int) -> StreamBatch | None:
        """Return the first confirmed batch at or after a time that ends past `from_offset`."""
        start = max(stream.start_offset, from_offset)
        # What is committed during the search was not searched, and may have left the log cache since.
        while stream.cached_start() > start and (searched_end := stream.committed_offset) > start:
            with self._damaged.noting(stream.label):
                found = await self._cold.find_time(stream.stream_id, timestamp_ms, start, searched_end)
            if found is not None:
                return found
            start = searched_end
        return stream.cached_for_time(timestamp_ms, start)

    async def offset_for_age(self, stream: CachedStream, since_ms: int, untimed_end: int, is_untimed: IsUntimed) -> int:
        """Return the offset before which everything is older than `since_ms`; see `Stream.offset_for_age`."""
        at, end = stream.start_offset, stream.confirmed_offset
        young = await self.offset_for_time(stream, since_ms, 0)
        cut = end if young is None else min(young.base_offset, end)
        limit = min(cut, untimed_end)
        # As for times: records committed in the meantime were not searched. The rest is in no object, and young.
        while at < (searched_end := min(limit, stream.committed_offset)):
            found = await find_untimed(
                self._catalog, self._cold, stream.stream_id, since_ms, at, searched_end, is_untimed
            )
            if found is not None:
                return found
            at = searched_end
        found = stream.cached_untimed(at, limit, is_untimed) if at < limit else None
        return cut if found is None else found

    async def offset_for_size(self, stream: CachedStream, bytes_max: int) -> int:
        """Return the offset from which the stream holds at least `bytes_max`; see `Stream.offset_for_size`."""
        with self._damaged.noting(stream.label):
            return await find_size_cut(
                self._catalog,
                self._cold,
                stream.stream_id,
                bytes_max,
                uncommitted_bytes=stream.uncommitted_bytes,
                start_offset=stream.start_offset,
                end_offset=stream.committed_offset,
            )
