"""Sealing: when the log cache's current block is closed for its upload, and who waits for that upload.

`Stream` (size), `Journal` (age, WAL pressure) and `flush` request seals. A seal waits until the owners of all recovered
streams have replayed them: the catalog must never hold an end offset without the owner's state at that offset.
`UploadPipeline` waits for requests, seals, and uploads.
"""

import asyncio
from contextlib import suppress

import structlog

from anabranch.s3stream.append.admission import Admission
from anabranch.s3stream.append.log_cache import LogCache, UploadBlock
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogUnavailable, StorageError, StorageStopped
from anabranch.s3stream.stats import StorageStats

log = structlog.get_logger(__name__)

REPLAY_RECHECK_S = 5
"""Interval at which a held-up seal looks for recovered streams that were deleted meanwhile."""


class Sealer:
    """Seal requests for the current block, and the recovered streams that hold them up."""

    def __init__(self, cache: LogCache, catalog: Catalog, admission: Admission, stats: StorageStats) -> None:
        self.cache = cache
        self.not_replayed: set[int] = set()
        """Streams recovered from the WAL whose owners have not replayed them yet."""
        self.last_upload: asyncio.Future[None] | None = None
        """Completion of the block sealed last; not the block itself, whose memory may have been evicted."""
        self._catalog = catalog
        self._admission = admission
        self._stats = stats
        self.flushes = 0
        """Callers of `flush` that wait for an upload, which hurries then."""
        self._requested = asyncio.Event()
        """Set when the current block became due, or when what held it up may be gone."""

    def request(self) -> None:
        """Request a seal. It never happens inside this call: owners may be half-way through an append."""
        block = self.cache.current
        if not block.due and (block.runs or block.wal_offset >= 0):
            block.due = True
            self._requested.set()

    async def wait_due(self) -> None:
        """Return when a seal is requested and every recovered stream is replayed."""
        is_held_up = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REPLAY_RECHECK_S if is_held_up else None):
                    await self._requested.wait()
            self._requested.clear()
            if self.cache.current.due:
                is_held_up = bool(self.not_replayed) and bool(await self.find_not_replayed())
                if not is_held_up:
                    return
            else:
                is_held_up = False

    def seal(self) -> UploadBlock:
        """Close the current block and begin another."""
        self.stop_timer()
        block = self.cache.rotate()
        self.last_upload = block.completion()
        return block

    async def flush(self) -> None:
        """Wait until everything appended so far is uploaded and the WAL is trimmed.

        Raises StorageError if that is impossible, or the error of the upload.
        """
        block = self.cache.current
        upload = self.last_upload
        if block.runs or block.wal_offset >= 0:  # records of streams that are gone are trimmed, too
            if self.not_replayed and (waiting := await self.find_not_replayed()):
                raise StorageError(
                    f"streams {sorted(waiting)[:10]} were recovered and not replayed by their owners yet"
                )
            if not self._admission.uploads:
                raise StorageStopped(str(self._admission.error))
            upload = block.completion()
            block.due = True
            self._requested.set()
        if upload is not None:
            self.flushes += 1
            try:
                await asyncio.shield(upload)
            finally:
                self.flushes -= 1

    def waiting_ms(self, stream_id: int) -> int:
        """Return the age of the current block if it holds data of the stream and no seal is requested, else -1."""
        block = self.cache.current
        if block.due or stream_id not in block.runs:
            return -1
        return int((asyncio.get_running_loop().time() - block.began_s) * 1000)

    def stop_timer(self) -> None:
        """Stop requesting seals because of the current block's age."""
        if self.cache.current.age_timer is not None:
            self.cache.current.age_timer.cancel()

    def abandon_current(self, error: StorageError) -> None:
        """Answer the callers that wait for the current block with `error`: it will not be uploaded."""
        self.cache.current.abandon_upload(error)

    def abandon_all(self, error: StorageError) -> None:
        """Answer all callers that wait for an upload with `error`: no task of an upload is left."""
        self.abandon_current(error)
        # A task that is cancelled before its first step answers no callers. That can only be the newest one.
        if self.last_upload is not None and not self.last_upload.done():
            self.last_upload.set_exception(error)
            self.last_upload.exception()  # marks it as retrieved: there may be no caller

    # recovered streams

    def mark_replayed(self, stream_id: int) -> None:
        """Note that the owner has replayed the stream's recovered batches."""
        self.not_replayed.discard(stream_id)
        if not self.not_replayed:
            self._requested.set()

    def drop(self, stream_id: int) -> None:
        """Discard the batches of a deleted or fenced stream: they are not uploaded and hold up no seal."""
        before = self.cache.size_bytes
        self.cache.drop(stream_id)
        self._stats.dropped_bytes += before - self.cache.size_bytes
        self.mark_replayed(stream_id)

    async def find_not_replayed(self) -> set[int]:
        """Return the recovered streams that are not replayed, having dropped those that were deleted meanwhile."""
        try:
            alive = await self._catalog.get_streams(list(self.not_replayed))
        except CatalogUnavailable as error:
            log.warning("recovered streams could not be looked up in the catalog", reason=str(error))
            return set(self.not_replayed)
        for stream_id in self.not_replayed - alive.keys():
            self.drop(stream_id)
        return set(self.not_replayed)
