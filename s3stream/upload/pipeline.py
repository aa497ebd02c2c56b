"""The upload pipeline: seals the current block, keeps uploads in flight in order, and trims the WAL behind them.

A block is sealed when somebody asked for it (size, age, WAL pressure, flush), an upload slot is free, and the owners of
recovered streams have taken them up: the catalog must never hold an end offset without the owner's state at it. While
every slot is taken the current block grows instead, so an outage of the store makes larger objects, not more of them.
The WAL is trimmed only past what is committed (invariant 2), and not at all while a stream that was stopped at recovery
has records in it (invariant 11).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress

import structlog

from s3stream.append.log_cache import Block, LogCache
from s3stream.append.recovery import StoppedStream
from s3stream.append.stream import Stream
from s3stream.catalog.catalog import Catalog
from s3stream.errors import CatalogUnavailable, StorageError, StorageStopped
from s3stream.stats import StorageStats
from s3stream.upload.uploader import Uploader
from wal.interface import WalError, WriteAheadLog

log = structlog.get_logger(__name__)

HELD_UP_RECHECK_S = 5
"""How often to look whether recovered streams that hold up an upload were deleted meanwhile."""


class UploadPipeline:
    """Blocks of one engine on their way from the log cache to the catalog."""

    def __init__(
        self,
        *,
        wal: WriteAheadLog,
        cache: LogCache,
        catalog: Catalog,
        uploader: Uploader,
        uploads_in_flight: int,
        stats: StorageStats,
        streams: Mapping[int, Stream],
        on_failure: Callable[[StorageError], None],
        on_progress: Callable[[], None],
        on_gone: Callable[[int], None],
    ) -> None:
        """`on_gone(stream_id)` must drop a recovered stream that is deleted; `on_failure` must end in `fail`."""
        self.untaken: set[int] = set()
        """Streams recovered from the WAL whose owners have not replayed them yet."""
        self.stopped: dict[int, StoppedStream] = {}
        """Streams stopped at recovery: the WAL is not trimmed while there are any."""
        self.failure: StorageError | None = None
        self._wal = wal
        self._cache = cache
        self._catalog = catalog
        self._uploader = uploader
        self._stats = stats
        self._streams = streams
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._on_gone = on_gone
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(uploads_in_flight)
        self._last_settled: asyncio.Future[None] | None = None
        """Of the block sealed last; not the block, whose memory may be evicted by now."""
        self._trimmable_wal_offset = -1

    def wake(self) -> None:
        """The current block is due, or what held it up may be gone."""
        self._wake.set()

    def taken_up(self, stream_id: int) -> None:
        """The owner has replayed the stream's recovered batches."""
        self.untaken.discard(stream_id)
        if not self.untaken:
            self._wake.set()

    async def flush(self) -> None:
        """Upload everything appended so far and trim the WAL. Raises StorageError when that can't be done."""
        block = self._cache.current
        if block.runs:
            if self.untaken and (waiting := await self.untaken_alive()):
                raise StorageError(f"streams {sorted(waiting)[:10]} were recovered, but nobody has taken them up")
            if self.failure is not None:
                raise StorageStopped(str(self.failure))
            if block.settled is None:
                block.settled = asyncio.get_running_loop().create_future()
            block.due = True
            self._wake.set()
        settled = block.settled if block.runs else self._last_settled
        if settled is not None:
            await asyncio.shield(settled)

    def fail(self, error: StorageError) -> None:
        """Seal nothing any more. What is sealed and durable is still uploaded, if it can be."""
        self.failure = error
        self.settle_current(error)

    def settle_current(self, error: StorageError) -> None:
        """Tell whoever waits for the current block that it will not be uploaded."""
        _settle(self._cache.current, error)

    async def run(self, spawn: Callable[[Coroutine[object, object, None]], None]) -> None:
        """Seal the current block when it is due, an upload slot is free, and every recovered stream is taken up."""
        held_up = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(HELD_UP_RECHECK_S if held_up else None):
                    await self._wake.wait()
            self._wake.clear()
            due = self._cache.current.due
            held_up = due and bool(self.untaken) and bool(await self.untaken_alive())
            if not due or held_up:
                continue
            await self._slots.acquire()
            if self.failure is not None:
                _settle(self._cache.current, self.failure)
                return
            previous = self._last_settled
            spawn(self._upload(self._seal(), previous))

    def _seal(self) -> Block:
        """Close the current block, each stream's owner telling its state as of the end of its run."""
        block = self._cache.seal()
        if block.age_timer is not None:
            block.age_timer.cancel()
        if block.settled is None:
            block.settled = asyncio.get_running_loop().create_future()
        for stream_id, run in block.runs.items():
            stream = self._streams.get(stream_id)
            if stream is not None and stream.snapshot_source is not None:
                assert stream.next_offset == run.end_offset, "a stream's last run ends where the stream does"
                block.snapshots[stream_id] = stream.snapshot_source()
            self._stats.appends += len(run.batches)
            self._stats.append_bytes += run.size_bytes
        self._last_settled = block.settled
        return block

    async def _upload(self, block: Block, previous: "asyncio.Future[None] | None") -> None:
        try:
            await self._uploader.upload(block, previous)
            for stream_id, run in block.runs.items():
                stream = self._streams.get(stream_id)
                if stream is not None:
                    stream.committed_offset = run.end_offset
            self._cache.commit(block)
            self._stats.log_cache_evicted_bytes = self._cache.evicted_bytes
            await self.trim_wal(block.wal_offset)
        except (StorageError, WalError) as error:
            self._on_failure(StorageStopped(f"an upload failed: {error}"))
            _settle(block, self.failure)
        except asyncio.CancelledError:
            _settle(block, StorageStopped("the engine was closed before the upload ended"))
            raise
        except BaseException as error:
            self._on_failure(StorageStopped(f"an upload failed by a bug: {error!r}"))
            _settle(block, self.failure)
            raise
        else:
            _settle(block, None)
        finally:
            self._slots.release()
            self._on_progress()

    async def trim_wal(self, wal_offset: int) -> None:
        """Free the WAL up to a record before which all is committed; not while a stopped stream has records in it."""
        self._trimmable_wal_offset = max(self._trimmable_wal_offset, wal_offset)
        if self.stopped:
            try:
                await self._release_deleted()
            except CatalogUnavailable as error:
                log.warning("stopped streams could not be looked up", reason=str(error))
        if not self.stopped and wal_offset >= 0:
            await self._wal.trim(self._trimmable_wal_offset)

    async def _release_deleted(self) -> None:
        """A stopped stream that is deleted needs its records no more."""
        alive = await self._catalog.get_streams(list(self.stopped))
        for stream_id in self.stopped.keys() - alive.keys():
            del self.stopped[stream_id]

    def frees(self, stream_id: int, wal_offset: int) -> bool:
        """Whether the record is freed at once when the stream is given up, or was given up meanwhile."""
        if stream_id not in self.stopped:
            return True
        return len(self.stopped) == 1 and wal_offset <= self._trimmable_wal_offset

    async def discard(self, stream_id: int) -> None:
        """Give up the WAL records of a stopped stream."""
        if self.stopped.pop(stream_id, None) is not None and self._trimmable_wal_offset >= 0:
            await self.trim_wal(self._trimmable_wal_offset)

    async def untaken_alive(self) -> set[int]:
        """Recovered streams nobody has taken up; what was deleted meanwhile is dropped, so that it holds up nothing."""
        try:
            alive = await self._catalog.get_streams(list(self.untaken))
        except CatalogUnavailable as error:
            log.warning("recovered streams could not be looked up", reason=str(error))
            return set(self.untaken)
        for stream_id in self.untaken - alive.keys():
            self._on_gone(stream_id)
        return set(self.untaken)


def _settle(block: Block, error: StorageError | None) -> None:
    if block.settled is None or block.settled.done():
        return
    if error is None:
        block.settled.set_result(None)
    else:
        block.settled.set_exception(error)
        block.settled.exception()  # nobody may be waiting; it is no surprise then
