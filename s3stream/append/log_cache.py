"""The log cache: recent appends, by reference to the memory they were received in.

It is a sequence of upload blocks. Appends go into the current block; a seal closes the block, which is then uploaded as
a unit; after the commit it is only a cache, evicted oldest first above the byte bound. Uncommitted data is never
evicted (invariant 2). Committed data is removed at once when log compaction has removed records of it from objects.

Eviction goes batch by batch, in the order of the appends, as new ones arrive. So its cost is spread like theirs, and
the memory of the oldest requests is free for the next ones. (A whole block at a time takes up to 0.3 s.)

Inside a block each stream has one run: its batches in offset order, contiguous. A stream's runs over all blocks are
contiguous too, and end where the stream ends, so a read that finds its offset here never meets a gap.

Each run keeps lists of the batches' ends and cumulative sizes, so that a read is two bisections and one slice, however
small the batches are.
"""

from asyncio import Future, TimerHandle, get_running_loop
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final

from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES, StreamBatch
from anabranch.s3stream.stats import StorageStats
from anabranch.wal.interface import Durable

EVICT_BATCHES_MAX: Final = 512
"""Batches evicted at a time: half a millisecond."""
_EVICTED: Final = StreamBatch(0, 0, 0, 0, 0, b"")
"""Stands in a run's list for a batch that was evicted, until the list is shortened."""
_SHORTEN_BATCHES: Final = 1024
"""Evicted batches of a run that make it worth shortening its lists."""


class UploadRun:
    """The batches of one stream in one upload block, contiguous. Eviction takes them from the front."""

    __slots__ = (
        "_batches",
        "_cumulative_bytes",
        "_ends",
        "_evicted_bytes",
        "_first",
        "block",
        "start_offset",
        "stream_id",
    )

    def __init__(self, block: "UploadBlock", stream_id: int, start_offset: int) -> None:
        self.block = block
        self.stream_id = stream_id
        self.start_offset = start_offset
        """Offset of the first batch that is not evicted."""
        self._batches: list[StreamBatch] = []
        self._ends: list[int] = []
        """End offset of each batch."""
        self._cumulative_bytes: list[int] = []
        """Payload bytes up to and including each batch, evicted ones included."""
        self._first = 0
        """Index of the first batch that is not evicted."""
        self._evicted_bytes = 0

    @property
    def batches(self) -> list[StreamBatch]:
        """The batches that are not evicted, oldest first."""
        if self._first:
            self._shorten()
        return self._batches

    @property
    def end_offset(self) -> int:
        """End of the last batch."""
        return self._ends[-1] if self._ends else self.start_offset

    @property
    def size_bytes(self) -> int:
        """Payload bytes."""
        return self._cumulative_bytes[-1] - self._evicted_bytes if self._cumulative_bytes else 0

    @property
    def is_empty(self) -> bool:
        """True if all batches are evicted or released."""
        return self._first == len(self._batches)

    def add(self, batch: StreamBatch) -> None:
        """Add the next batch; the caller has checked that it begins at the end."""
        cumulative = self._cumulative_bytes
        cumulative.append((cumulative[-1] if cumulative else 0) + len(batch.payload))
        self._batches.append(batch)
        self._ends.append(batch.end_offset)
        self.block.order.append(self.stream_id)

    def evict_first(self) -> int:
        """Release the first batch; return its bytes, overhead included."""
        first = self._first
        batch, self._batches[first] = self._batches[first], _EVICTED
        self._first = first + 1
        self.start_offset = batch.end_offset
        size_bytes = len(batch.payload)
        self._evicted_bytes += size_bytes
        if first >= _SHORTEN_BATCHES and 2 * first >= len(self._batches):
            self._shorten()
        return size_bytes + BATCH_OVERHEAD_BYTES

    def clear(self) -> None:
        """Release the batches: a stream keeps its last run for its next append, which may never come."""
        self._batches, self._ends, self._cumulative_bytes = [], [], []
        self._first = self._evicted_bytes = 0

    def slice(self, offset: int, end_offset: int, bytes_max: int) -> list[StreamBatch]:
        """Return batches from the one that holds `offset`, up to `bytes_max` but at least one, all before the end.

        `offset` lies in [start, end) of the run, and before `end_offset`.
        """
        ends = self._ends
        first = bisect_right(ends, offset, self._first)
        cumulative = self._cumulative_bytes
        before = cumulative[first - 1] if first else 0
        last = max(first + 1, bisect_right(cumulative, before + bytes_max, first))
        if end_offset < ends[last - 1]:
            last = bisect_left(ends, end_offset, first, last) + 1
            if self._batches[last - 1].base_offset >= end_offset:
                last -= 1
        return self._batches[first:last]

    def _shorten(self) -> None:
        """Remove the evicted batches from the lists."""
        first = self._first
        del self._batches[:first], self._ends[:first], self._cumulative_bytes[:first]
        evicted_bytes = self._evicted_bytes
        self._cumulative_bytes = [size - evicted_bytes for size in self._cumulative_bytes]
        self._first = self._evicted_bytes = 0


class UploadBlock:
    """The batches of one upload: all that was appended from one seal to the next."""

    __slots__ = (
        "_uploaded",
        "age_timer",
        "began_s",
        "committed",
        "due",
        "durable",
        "evicted_batches",
        "holds",
        "order",
        "runs",
        "size_bytes",
        "snapshots",
        "wal_offset",
    )

    def __init__(self) -> None:
        self.runs: dict[int, UploadRun] = {}
        self.order: list[int] = []
        """Stream of each batch, in the order of the appends. Batches of removed runs are included."""
        self.evicted_batches = 0
        """Number of batches in that order, from the first on, that are evicted."""
        self.size_bytes = 0
        """Bytes of payloads and their overhead."""
        self.wal_offset = -1
        """WAL offset of the last record: trimming to it frees the block's records."""
        self.durable: Durable | None = None
        """WAL completion of the last record, and so of all."""
        self.snapshots: dict[int, bytes] = {}
        """Owners' states by stream, taken at the seal, as of the end of the stream's run."""
        self.due = False
        """True if a seal is requested."""
        self.committed = False
        self.holds: list[object] = []
        """Holds on the WAL (`WalTrimmer.hold`) that end with the commit: records of the block may be older than those
        of blocks before it."""
        self._uploaded: Future[None] | None = None
        """Done when the block is committed and the WAL trimmed, or with the error that stopped the upload."""
        self.age_timer: TimerHandle | None = None
        self.began_s = 0.0
        """Loop time of the first append."""

    def completion(self) -> "Future[None]":
        """Return the future of the block's upload."""
        if self._uploaded is None:
            self._uploaded = get_running_loop().create_future()
        return self._uploaded

    def mark_uploaded(self) -> None:
        """Answer the callers that wait for the block's upload: it is committed and the WAL trimmed."""
        if self._uploaded is not None and not self._uploaded.done():
            self._uploaded.set_result(None)

    def abandon_upload(self, error: StorageError) -> None:
        """Answer the callers that wait for the block's upload with an error, unless they were answered before."""
        if self._uploaded is not None and not self._uploaded.done():
            self._uploaded.set_exception(error)
            self._uploaded.exception()  # marks it as retrieved: there may be no caller


class StreamRuns:
    """The runs of one stream over all blocks, oldest first."""

    __slots__ = ("is_open", "runs", "superseded_end")

    def __init__(self) -> None:
        self.runs: list[UploadRun] = []
        self.superseded_end = 0
        """Log compaction removed records before this offset: a run that begins before it is removed once committed."""
        self.is_open = False
        """True if the stream is open, so that this object is kept when the last run is evicted."""

    @property
    def start_offset(self) -> int:
        """First cached offset, or -1 when nothing is cached."""
        return self.runs[0].start_offset if self.runs else -1

    def read(self, offset: int, end_offset: int, bytes_max: int) -> list[StreamBatch] | None:
        """Return contiguous batches from the one that holds `offset`; None when the cache does not hold it.

        `offset` lies before `end_offset`, which lies at or before the end of the last run.
        """
        runs = self.runs
        if not runs or offset < runs[0].start_offset:
            return None
        index = len(runs) - 1
        if offset < runs[index].start_offset:
            index = bisect_right(runs, offset, key=_run_end)
        batches = runs[index].slice(offset, end_offset, bytes_max)
        while batches[-1].end_offset < end_offset and index + 1 < len(runs):
            index += 1
            if batches[-1].end_offset != runs[index].start_offset:
                break  # the byte bound ended the slice inside its run
            bytes_left = bytes_max - sum(len(batch.payload) for batch in batches)
            more = runs[index].slice(runs[index].start_offset, end_offset, bytes_left)
            if len(more[0].payload) > bytes_left:
                break
            batches += more
        return batches


def _run_end(run: UploadRun) -> int:
    return run.end_offset


class LogCache:
    """All blocks, and for each stream its runs. Used from one thread."""

    def __init__(self, bytes_max: int, stats: StorageStats) -> None:
        """`evict` holds the cache to `bytes_max`."""
        self.bytes_max = bytes_max
        self._stats = stats
        self.current = UploadBlock()
        self.streams: dict[int, StreamRuns] = {}
        self.sealed_streams: set[int] = set()
        """Streams that are being handed over. Their runs stay in the current block, and are not uploaded."""
        self.sealed_bytes = 0
        """Bytes sealed and not committed."""
        self.committed_bytes = 0
        self._committed: deque[UploadBlock] = deque()

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes that cannot be evicted."""
        return self.sealed_bytes + self.current.size_bytes

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.committed_bytes + self.sealed_bytes + self.current.size_bytes

    def runs_of(self, stream_id: int) -> StreamRuns:
        """Return the stream's runs; empty ones are created for a new stream."""
        runs = self.streams.get(stream_id)
        if runs is None:
            runs = self.streams[stream_id] = StreamRuns()
        return runs

    def start_run(self, stream_id: int, start_offset: int) -> UploadRun:
        """Return the stream's run in the current block, creating it for the first batch since the seal."""
        block = self.current
        run = block.runs.get(stream_id)
        if run is None:
            run = block.runs[stream_id] = UploadRun(block, stream_id, start_offset)
            self.runs_of(stream_id).runs.append(run)
        return run

    def count_recovered(self, run: UploadRun) -> None:
        """Add the bytes of a recovered run to those of its block."""
        run.block.size_bytes += run.size_bytes + BATCH_OVERHEAD_BYTES * len(run.batches)

    def rotate(self) -> UploadBlock:
        """Close the current block and begin another, which takes over the runs of streams that are handed over."""
        block, self.current = self.current, UploadBlock()
        kept = self.sealed_streams.intersection(block.runs)
        if kept:
            self._carry_over(block, kept)
        self.sealed_bytes += block.size_bytes
        return block

    def _carry_over(self, block: UploadBlock, stream_ids: Iterable[int]) -> None:
        """Move runs from the block that was just closed to the new one. No batch of either is evicted."""
        current = self.current
        current.wal_offset, current.durable = block.wal_offset, block.durable
        for stream_id in stream_ids:
            run = current.runs[stream_id] = block.runs.pop(stream_id)
            run.block = current
            current.order += [stream_id] * len(run.batches)
            size_bytes = run.size_bytes + BATCH_OVERHEAD_BYTES * len(run.batches)
            current.size_bytes += size_bytes
            block.size_bytes -= size_bytes

    def commit(self, block: UploadBlock) -> None:
        """Mark a block as committed in the catalog: from now on `evict` may take it. Blocks are committed in order."""
        assert not block.committed
        block.committed = True
        block.snapshots.clear()
        self.sealed_bytes -= block.size_bytes
        self.committed_bytes += block.size_bytes
        self._committed.append(block)
        for stream_id, run in list(block.runs.items()):
            if run.start_offset < self.streams[stream_id].superseded_end:
                self._remove_superseded(stream_id)

    def supersede(self, stream_id: int, end_offset: int) -> None:
        """Remove every run that may hold records before `end_offset`, since log compaction removed some of them.

        A run that is not known to be committed stays until it is.
        """
        runs = self.streams.get(stream_id)
        if runs is not None:
            runs.superseded_end = max(runs.superseded_end, end_offset)
            self._remove_superseded(stream_id)

    def drop(self, stream_id: int) -> None:
        """Remove all runs of a stream that is deleted, fenced or opened again: they are not uploaded."""
        self.sealed_streams.discard(stream_id)
        runs = self.streams.pop(stream_id, None)
        if runs is None:
            return
        for run in runs.runs:
            self._remove(stream_id, run)

    def mark_closed(self, stream_id: int) -> None:
        """Note that the stream is closed; it is forgotten once nothing of it is cached."""
        runs = self.streams.get(stream_id)
        if runs is not None:
            runs.is_open = False
            if not runs.runs:
                del self.streams[stream_id]

    def _remove_superseded(self, stream_id: int) -> None:
        runs = self.streams[stream_id]
        while runs.runs and runs.runs[0].block.committed and runs.runs[0].start_offset < runs.superseded_end:
            run = runs.runs.pop(0)
            self._remove(stream_id, run)
            run.clear()
        if not runs.runs and not runs.is_open:
            del self.streams[stream_id]

    def _remove(self, stream_id: int, run: UploadRun) -> None:
        """Remove a run from its block."""
        block = run.block
        freed = run.size_bytes + BATCH_OVERHEAD_BYTES * len(run.batches)
        del block.runs[stream_id]
        block.snapshots.pop(stream_id, None)
        block.size_bytes -= freed
        if block.committed:
            self.committed_bytes -= freed
        elif block is not self.current:
            self.sealed_bytes -= freed

    def evict(self, batches_max: int = EVICT_BATCHES_MAX) -> bool:
        """Evict committed batches, oldest first, while the cache exceeds its bound. Returns True if some are left.

        Appends that call this each time keep the cache at its bound.
        """
        excess = self.size_bytes - self.bytes_max
        while excess > 0 and self._committed:
            if batches_max <= 0:
                return True
            batches_max -= 1
            block = self._committed[0]
            if block.evicted_batches == len(block.order):
                self._committed.popleft()
                block.order.clear()
                continue
            run = block.runs.get(block.order[block.evicted_batches])
            block.evicted_batches += 1
            if run is None:
                continue  # the run was removed
            freed = run.evict_first()
            excess -= freed
            block.size_bytes -= freed
            self.committed_bytes -= freed
            self._stats.log_cache_evicted_bytes += freed
            if run.is_empty:
                self._forget(run)
        return False

    def _forget(self, run: UploadRun) -> None:
        """Remove a run of which all batches are evicted."""
        stream_id = run.stream_id
        cached = self.streams[stream_id]
        assert cached.runs[0] is run, "runs of a stream are evicted in the order they were added"
        del cached.runs[0], run.block.runs[stream_id]
        run.clear()
        if not cached.runs and not cached.is_open:
            del self.streams[stream_id]
