"""The upload pipeline: seals the current block, keeps uploads in flight in order, and trims the WAL behind them.

A block is sealed when a seal is due (see `Sealer`) and an upload slot is free. While every slot is taken the current
block grows instead, so an outage of the store makes larger objects, not more of them. The WAL is trimmed only past what
is committed (invariant 2).
"""

import asyncio
from collections.abc import Callable, Coroutine
from math import inf

from anabranch.s3stream.append.journal import Journal
from anabranch.s3stream.append.log_cache import UploadBlock
from anabranch.s3stream.append.registry import StreamRegistry
from anabranch.s3stream.append.wal_trim import WalTrimmer
from anabranch.s3stream.background import BackgroundIo
from anabranch.s3stream.errors import StorageError, StorageStopped
from anabranch.s3stream.stats import StorageStats
from anabranch.s3stream.upload.pace import UploadPace
from anabranch.s3stream.upload.uploader import Uploader
from anabranch.wal.interface import WalError

EVICT_PAUSE_S = 0.002
"""Pause between evictions while there are no appends."""


class UploadPipeline:
    """Blocks of one engine on their way from the log cache to the catalog."""

    def __init__(
        self,
        *,
        journal: Journal,
        wal_trimmer: WalTrimmer,
        streams: StreamRegistry,
        uploader: Uploader,
        background: BackgroundIo,
        uploads_in_flight: int,
        stats: StorageStats,
    ) -> None:
        self._journal = journal
        self._cache = journal.cache
        self._sealer = journal.sealer
        self._admission = journal.admission
        self._wal_trimmer = wal_trimmer
        self._streams = streams
        self._uploader = uploader
        self._background = background
        self._stats = stats
        self._slots = asyncio.Semaphore(uploads_in_flight)

    async def run(self, spawn: Callable[[Coroutine[object, object, None]], None]) -> None:
        """Seal and upload blocks until the engine fails; `spawn` starts the task of an upload."""
        while True:
            await self._sealer.wait_due()
            await self._slots.acquire()
            if not self._admission.uploads:
                assert self._admission.error is not None, "an engine that stopped uploading has a reason"
                self._sealer.abandon_current(self._admission.error)
                return
            previous = self._sealer.last_upload
            block = self._seal()
            spawn(self._upload(block, previous, self._pace(block)))

    def _seal(self) -> UploadBlock:
        """Close the current block, and take a snapshot of each of its streams' state as of the end of its run."""
        block = self._sealer.seal()
        try:
            self._take_snapshots(block)
        except BaseException as error:
            self._fail(block, StorageStopped(f"a snapshot failed by a bug: {error!r}"))
            raise
        return block

    def _take_snapshots(self, block: UploadBlock) -> None:
        for stream_id, run in block.runs.items():
            stream = self._streams.get(stream_id)
            if stream is not None and stream.snapshot_source is not None:
                assert stream.next_offset == run.end_offset, "a stream's last run ends where the stream does"
                block.snapshots[stream_id] = stream.snapshot_source()
            self._stats.appends += len(run.batches)
            self._stats.append_bytes += run.size_bytes

    def _pace(self, block: UploadBlock) -> UploadPace:
        """Return the pace of a block that was just sealed."""
        admission, cache, journal = self._admission, self._cache, self._journal
        next_block = cache.current
        cache_room, wal_room = admission.cache_room_bytes, admission.wal_room_bytes

        def level() -> float:
            """Share of the room at the seal that is taken."""
            is_awaited = self._sealer.flushes or admission.needs_upload or admission.error is not None
            if is_awaited or cache.current is not next_block or cache_room <= 0 or wal_room <= 0:
                return inf
            return max(
                next_block.size_bytes / journal.threshold_bytes,
                1 - admission.cache_room_bytes / cache_room,
                1 - admission.wal_room_bytes / wal_room,
            )

        fill_s = min(asyncio.get_running_loop().time() - block.began_s, journal.age_s)
        return UploadPace(self._background, size_bytes=block.size_bytes, fill_s=fill_s, level=level)

    async def _upload(self, block: UploadBlock, previous: asyncio.Future[None] | None, pace: UploadPace) -> None:
        made_room = True
        try:
            await self._uploader.upload(block, previous, pace)
            for stream_id, run in block.runs.items():
                stream = self._streams.get(stream_id)
                if stream is not None:
                    stream.committed_offset = run.end_offset
            self._cache.commit(block)
            for hold in block.holds:
                self._wal_trimmer.release(hold)
            frees = await self._wal_trimmer.trim(block.wal_offset)
            # While a handover holds the log, an empty block may free nothing. Whoever waits would only ask for another.
            made_room = frees or bool(block.runs) or self._admission.is_writable
        except (StorageError, WalError) as error:
            self._fail(block, StorageStopped(f"an upload failed: {error}"))
        except asyncio.CancelledError:
            block.abandon_upload(StorageStopped("the engine was closed before the upload ended"))
            raise
        except BaseException as error:
            self._fail(block, StorageStopped(f"an upload failed by a bug: {error!r}"))
            raise
        else:
            block.mark_uploaded()
        finally:
            self._slots.release()
            if made_room:
                self._admission.made_room()
        while self._cache.evict():  # noqa: ASYNC110 - work in slices, not a wait
            await asyncio.sleep(EVICT_PAUSE_S)

    def _fail(self, block: UploadBlock, error: StorageStopped) -> None:
        """Stop the engine; callers that wait for the block get the first failure, which may be another's."""
        self._journal.stop(error)
        block.abandon_upload(self._admission.error or error)
