"""One open stream: the append path, and reads from memory. Other reads and trims go to the reader and the trimmer.

Offsets of a stream, in order: `start_offset` <= `committed_offset` (end of the data in objects) <= `confirmed_offset`
(end of the durable data; no read goes past it) <= `next_offset` (end of the appended data).
"""

import asyncio
from collections.abc import Callable, Sequence

from anabranch.s3stream.append.admission import StreamAdmission
from anabranch.s3stream.append.journal import Journal
from anabranch.s3stream.append.log_cache import StreamRuns, UploadRun
from anabranch.s3stream.append.stream_trim import StreamTrimmer
from anabranch.s3stream.append.wal_record import RECORD_HEADER, RECORD_VERSION, RecordKind
from anabranch.s3stream.catalog.values import OpenStream
from anabranch.s3stream.errors import (
    AppendTooLarge,
    OffsetOutOfRange,
    StorageError,
    StorageFull,
    StorageStopped,
    StreamFenced,
    StreamSealed,
)
from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES, CachedRun, ReadResult, StreamBatch
from anabranch.s3stream.read.stream_reader import StreamReader
from anabranch.s3stream.read.time_lookup import IsUntimed, first_untimed
from anabranch.wal.interface import Durable, OverCapacity, RecordTooLarge, WalError

_BATCH = int(RecordKind.BATCH)


class Stream(StreamAdmission):
    """Append-only log of one partition, opened by this node under a stream epoch.

    The owner sets `snapshot_source` once it has replayed `recovered` over `snapshot`. Until then (or until the first
    append) nothing recovered is uploaded, because the catalog must never hold an end offset without the state at it.
    """

    __slots__ = (
        "_admission",
        "_is_replayed",
        "_journal",
        "_reader",
        "_run",
        "_runs",
        "_snapshot_source",
        "_stats",
        "_trimmer",
        "_unsealed",
        "committed_offset",
        "confirmed_offset",
        "epoch",
        "label",
        "leader_epoch",
        "next_offset",
        "recovered",
        "requested_start",
        "snapshot",
        "start_offset",
        "store",
        "stream_id",
        "uploads_alone",
    )

    def __init__(
        self,
        opened: OpenStream,
        *,
        journal: Journal,
        runs: StreamRuns,
        recovered: Sequence[StreamBatch],
        reader: StreamReader,
        trimmer: StreamTrimmer,
        store: str,
    ) -> None:
        """`recovered` lies past the committed end, contiguous, and is in `runs` already."""
        super().__init__()
        info = opened.info
        self._journal = journal
        self._admission = journal.admission
        self._reader = reader
        self._stats = reader.stats
        self._trimmer = trimmer
        self._runs = runs
        self._run: UploadRun | None = None
        self._snapshot_source: Callable[[], bytes] | None = None
        self._is_replayed = not recovered
        self._unsealed: asyncio.Event | None = None
        """Set when the outcome of the handover is known; None unless the stream is sealed."""
        self.stream_id = info.stream_id
        self.epoch = info.epoch
        self.leader_epoch = opened.leader_epoch
        self.start_offset = info.start_offset
        self.requested_start = info.start_offset
        """Highest start that was asked for: the catalog may have it though its answer was lost."""
        self.committed_offset = info.end_offset
        self.next_offset = recovered[-1].end_offset if recovered else info.end_offset
        self.confirmed_offset = self.next_offset
        self.snapshot = info.snapshot
        """The owner's state as of the committed end when the stream was opened."""
        self.recovered = recovered
        """Batches past the snapshot, found in the WAL; released when the owner has replayed them."""
        self.label = f"stream {info.stream_id}"
        """The owner's name for the stream, for messages."""
        self.store = store
        """Name of the object store that this stream's uploads go to."""
        self.uploads_alone = False
        """True if this stream's runs become stream objects at any size, because they are soon to be compacted."""

    @property
    def snapshot_source(self) -> Callable[[], bytes] | None:
        """Function that returns the owner's state as of `next_offset`; called at a seal, never inside `append`."""
        return self._snapshot_source

    @snapshot_source.setter
    def snapshot_source(self, source: Callable[[], bytes] | None) -> None:
        self._snapshot_source = source
        self._mark_replayed()

    # being handed over to another node

    @property
    def is_sealed(self) -> bool:
        """True while the stream is being handed over to another node, and the outcome is not known."""
        return self._unsealed is not None

    def seal(self) -> None:
        """Refuse appends with StreamSealed until `unseal` or `release`. The stream refuses nothing yet."""
        assert self.error is None, "the caller has checked that"
        self.refuse(StreamSealed(f"{self.label} is being handed over to another node"))
        self._unsealed = asyncio.Event()

    def unseal(self, epoch: int) -> None:
        """Accept appends again, under `epoch`."""
        self.epoch = epoch
        self.accept(StreamSealed)
        self._end_seal()

    async def until_unsealed(self) -> None:
        """Return when the stream accepts appends again, or is this node's no more; at once if it is not sealed."""
        if self._unsealed is not None:
            await self._unsealed.wait()

    def _end_seal(self) -> None:
        if self._unsealed is not None:
            self._unsealed.set()
            self._unsealed = None

    @property
    def tail(self) -> Sequence[StreamBatch]:
        """The batches of the current block. For a sealed stream: all that is past the committed end."""
        run = self._runs.runs[-1] if self._runs.runs else None
        return run.batches if run is not None and run.block is self._journal.cache.current else ()

    async def until_committed(self) -> None:
        """Return when no block that is being uploaded has data of the stream. Raises StorageError."""
        sealer = self._journal.sealer
        sealer.flushes += 1  # the upload hurries
        try:
            while blocks := [
                run.block
                for run in self._runs.runs
                if not run.block.committed and run.block is not self._journal.cache.current
            ]:
                await asyncio.shield(blocks[-1].completion())
        finally:
            sealer.flushes -= 1

    @property
    def uncommitted_bytes(self) -> int:
        """Payload bytes that are not in objects yet, and not deleted."""
        begin, total = max(self.committed_offset, self.start_offset), 0
        for run in reversed(self._runs.runs):
            if run.end_offset <= begin:
                break
            if run.start_offset >= begin:
                total += run.size_bytes
            else:
                total += sum(len(batch.payload) for batch in run.batches if batch.end_offset > begin)
        return total

    @property
    def last_durable(self) -> Durable | None:
        """Completion of the newest append of all streams, which comes after those of all before it."""
        return self._journal.durable

    def check_accepts(self) -> None:
        """Raise what `append` raises whatever the batch is: StorageStopped, LogStalled, or the stream's own refusal."""
        if self.error is not None or self._admission.error is not None:
            raise self._refused()
        if self._admission.is_stalled:
            raise self._admission.stalled()

    def append(self, batch: StreamBatch) -> Durable:
        """Append the batch that begins at `next_offset`; its payload must not change until it is uploaded.

        Cheap and synchronous. When the completion's callbacks run, `confirmed_offset` has advanced. Raises
        OffsetOutOfRange, StorageFull (nothing appended; wait for `wait_writable` and repeat), LogStalled,
        AppendTooLarge, StorageStopped, or the stream's own refusal.
        """
        self.check_accepts()
        stream_id, base, end, count, timestamp, payload = batch
        if base != self.next_offset or end <= base or stream_id != self.stream_id:
            raise OffsetOutOfRange(
                f"stream {self.stream_id}: an append must begin at {self.next_offset}, found stream {stream_id} "
                f"[{base}, {end})"
            )
        journal = self._journal
        block = journal.cache.current
        if block.size_bytes >= journal.current_bytes_max:
            raise StorageFull(
                f"log cache: {block.size_bytes} bytes wait for the next upload, at most {journal.current_bytes_max} may"
            )
        header = RECORD_HEADER.pack(RECORD_VERSION, _BATCH, 0, count, stream_id, self.epoch, base, end, timestamp)
        try:
            offset, _, durable = journal.wal.append((header, payload))
        except OverCapacity as error:
            raise journal.no_room(error) from error
        except RecordTooLarge as error:
            raise AppendTooLarge(f"stream {self.stream_id}: {error}") from error
        except WalError as error:
            journal.wal_failed(error)
            raise self._refused() from error
        run = self._run
        if run is None or run.block is not block:
            run = self._run = journal.start_run(stream_id, base)
            if not self._is_replayed:
                self._mark_replayed()
        run.add(batch)
        self.next_offset = end
        size = block.size_bytes = block.size_bytes + len(payload) + BATCH_OVERHEAD_BYTES
        block.wal_offset = offset
        block.durable = durable
        if durable is journal.durable and not durable.done:
            journal.pending[self] = end
        else:
            journal.note(self, end, durable)
        if size >= journal.threshold_bytes:
            journal.sealer.request()
        return durable

    def read_cached(self, offset: int, bytes_max: int, *, end_offset: int | None = None) -> ReadResult | None:
        """Return confirmed batches from `offset` out of the log cache, at least one if any; None when it lacks them.

        `end_offset` stops before batches at or past it (the last stable offset, say). Raises OffsetOutOfRange when
        `offset` lies outside [start, confirmed].
        """
        end = self.confirmed_offset
        if not self.start_offset <= offset <= end:
            raise self._out_of_range(offset)
        if end_offset is not None and end_offset < end:
            end = end_offset
        if offset >= end:
            return ReadResult((), offset)
        batches = self._runs.read(offset, end, bytes_max)
        if batches is None:
            return None
        self._stats.log_cache_hits += 1
        return ReadResult(batches, batches[-1].end_offset)

    def cached_batch(self, offset: int) -> StreamBatch | None:
        """Return the confirmed batch with `offset` if the log cache has it. It does not count as a read."""
        end = self.confirmed_offset
        found = self._runs.read(offset, end, 1) if offset < end else None
        return found[0] if found else None

    async def read(self, offset: int, bytes_max: int, *, end_offset: int | None = None) -> ReadResult:
        """Read as `read_cached`, going to the block cache and the object store where needed.

        A cancelled read leaves its load running into the cache. Raises OffsetOutOfRange, CorruptObject, StoreError, and
        StreamFenced: another node may have appended other records since.
        """
        if isinstance(self.error, StreamFenced):
            raise self._refused()
        found = self.read_cached(offset, bytes_max, end_offset=end_offset)
        if found is not None:
            return found
        return await self._reader.read(self, offset, bytes_max, end_offset)

    async def offset_for_time(self, timestamp_ms: int, from_offset: int = 0) -> StreamBatch | None:
        """Return the first confirmed batch whose max timestamp is at or after `timestamp_ms`, or None.

        It ends past the stream's start and past `from_offset`, and may begin before either.
        """
        return await self._reader.offset_for_time(self, timestamp_ms, from_offset)

    async def offset_for_age(self, since_ms: int, untimed_end: int, is_untimed: IsUntimed) -> int:
        """Return the offset before which everything is older than `since_ms`; the first batch that is not stays.

        A batch is as old as its newest record; one with records without a timestamp is never older than the commit of
        its object. No such batch lies at or past `untimed_end`. Raises StorageError.
        """
        return await self._reader.offset_for_age(self, since_ms, untimed_end, is_untimed)

    async def offset_for_size(self, bytes_max: int) -> int:
        """Return the offset at which to cut the stream closest to `bytes_max`, not below; block by block.

        What is not in objects yet counts, and stays. Raises StorageError.
        """
        return await self._reader.offset_for_size(self, bytes_max)

    async def trim(self, new_start: int, *, asked: bool = False) -> None:
        """Move the start forward; never back. Raises OffsetOutOfRange past the confirmed offset, StorageError.

        Trimming past what is committed uploads first. `asked`: a client wants all before `new_start` deleted; the
        catalog notes it even if the start is past it.
        """
        if new_start > self.confirmed_offset:
            raise OffsetOutOfRange(
                f"stream {self.stream_id}: cannot trim to {new_start}, past the end {self.confirmed_offset}"
            )
        if new_start <= self.start_offset and not asked:
            return
        if self.is_sealed:
            raise self._refused()
        await self.commit(new_start)
        self.requested_start = max(self.requested_start, new_start)
        start = await self._trimmer.trim(self.stream_id, self.epoch, new_start, asked=asked)
        self.start_offset = max(self.start_offset, start)

    async def commit(self, end_offset: int) -> None:
        """Upload until all before a confirmed offset is in committed objects. Raises StorageError."""
        if end_offset > self.committed_offset:
            await self._journal.sealer.flush()

    def cached_start(self) -> int:
        """Return the first offset that the log cache holds; `next_offset` when it holds nothing."""
        start = self._runs.start_offset
        return self.next_offset if start < 0 else start

    def cached_runs(self) -> Sequence[CachedRun]:
        """Return what the log cache holds, in offset order: a run for each block that has data of the stream."""
        return [
            CachedRun(run.start_offset, run.end_offset, run.size_bytes, run.block.committed)
            for run in self._runs.runs
            if not run.is_empty
        ]

    def cached_for_time(self, timestamp_ms: int, from_offset: int) -> StreamBatch | None:
        """Return as `offset_for_time`, among the cached batches that end past `from_offset`."""
        for run in self._runs.runs:
            if run.end_offset > from_offset:
                for batch in run.batches:
                    if batch.end_offset > self.confirmed_offset:
                        return None
                    if batch.max_timestamp_ms >= timestamp_ms and batch.end_offset > from_offset:
                        return batch
        return None

    def cached_untimed(self, start_offset: int, end_offset: int, is_untimed: IsUntimed) -> int | None:
        """Return the first offset in [start, end) of a cached batch with records without a timestamp."""
        for run in self._runs.runs:
            if run.end_offset > start_offset:
                found = first_untimed(run.batches, start_offset, end_offset, is_untimed)
                if found is not None:
                    return found
        return None

    def release(self) -> None:
        """Release the memory of a deleted or fenced stream.

        The stream and its owner refer to each other, so that the garbage collector would release it much later.
        """
        self._run = None
        self._runs = StreamRuns()
        self.recovered = ()
        self._end_seal()

    def _mark_replayed(self) -> None:
        if not self._is_replayed:
            self._is_replayed = True
            self.recovered = ()
            self._journal.sealer.mark_replayed(self.stream_id)

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"stream {self.stream_id}: offset {offset} is outside [{self.start_offset}, {self.confirmed_offset}]"
        )

    def _refused(self) -> StorageError:
        """Return a fresh error to raise: one instance raised again and again would grow its traceback."""
        if self._admission.error is not None:
            return StorageStopped(str(self._admission.error))
        cause = self.error
        assert cause is not None
        return type(cause)(*cause.args)
