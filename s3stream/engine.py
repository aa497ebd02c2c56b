"""The storage engine: streams over a WAL, a log cache, a catalog and object stores.

What it keeps true: an append is acked (its `Durable` completes) only by the WAL; nothing leaves the log cache before
its object is committed, and the WAL is trimmed only after that (invariant 2); objects, ends and snapshots of an upload
become visible in one commit (invariant 3). The steps of an upload are in `upload.py`, of a cold read in `cold_read.py`;
this module wires them, decides when to seal, and opens, recovers and closes.

Every background task lives in the engine's TaskGroup. A failure that can't heal stops appends and says why; reads go
on.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self

import structlog

from s3stream.append.journal import Journal
from s3stream.append.log_cache import LogCache, ReadResult
from s3stream.append.recovery import RecoveryPlan, StoppedStream, plan_recovery
from s3stream.append.stream import Stream
from s3stream.append.wal_record import decode_record, encode_reset
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import OpenStream
from s3stream.errors import (
    Discontinuity,
    OffsetOutOfRange,
    StorageError,
    StorageStopped,
    StreamFenced,
)
from s3stream.model import StreamBatch, StreamInfo
from s3stream.outages import Outages
from s3stream.read.cold_read import ColdReader
from s3stream.read.damage import DamagedObjects
from s3stream.read.size_lookup import find_size_cut
from s3stream.read.time_lookup import IsUntimed, find_untimed
from s3stream.settings import StorageSettings
from s3stream.stats import StorageStats
from s3stream.store.interface import ObjectStore
from s3stream.tasks import end_tasks
from s3stream.upload.pipeline import UploadPipeline
from s3stream.upload.uploader import StreamOwner, Uploader, WriterIdentity
from wal.interface import WalError, WriteAheadLog

log = structlog.get_logger(__name__)

LOOKUP_STREAMS = 1000
"""Streams per catalog look-up at recovery."""


class S3Stream:
    """The engine of one node. Use as `async with`; then `recover`, `open_streams`, and at the end `close`.

    WAL, catalog and stores are handed in open (the WAL not yet recovered) and stay open: their owner closes them after
    the engine. Leaving the `async with` block without `close` stops everything where it is, as a crash would: what was
    acked is in the WAL.
    """

    def __init__(
        self,
        *,
        wal: WriteAheadLog,
        catalog: Catalog,
        stores: Mapping[str, ObjectStore],
        default_store: str,
        settings: StorageSettings,
        cluster: str,
        node_id: int,
        node_epoch: int,
        now_ms: Callable[[], int],
        new_writer_id: Callable[[], str],
    ) -> None:
        """`stores` by name; uploads go to `default_store` unless a stream's `store` says otherwise."""
        if default_store not in stores:
            raise StorageError(f"default store {default_store!r} is not one of {sorted(stores)}")
        self.stats = StorageStats()
        self.damaged = DamagedObjects(now_ms)
        """Committed objects that reads have met corrupt or missing."""
        self.outages = Outages(now_ms)
        """What uploads wait for, and whatever else the node's owner notes."""
        self._wal = wal
        self._catalog = catalog
        self._stores = stores
        self._default_store = default_store
        self._settings = settings
        self._node_id = node_id
        self._node_epoch = node_epoch
        self._now_ms = now_ms
        threshold = settings.threshold_bytes(wal.capacity_bytes)
        self._cache = LogCache(settings.log_cache_bytes, headroom_bytes=threshold)
        self._wal_full_bytes = int(wal.capacity_bytes * settings.wal_full_ratio)
        uploader = Uploader(
            catalog=catalog,
            stores=stores,
            settings=settings,
            stats=self.stats,
            outages=self.outages,
            identity=WriterIdentity(cluster, node_id, node_epoch, new_writer_id),
            now_ms=now_ms,
            owner_of=self._owner_of,
            on_fenced=self._fenced,
        )
        self._streams: dict[int, Stream] = {}
        self._pipeline = UploadPipeline(
            wal=wal,
            cache=self._cache,
            catalog=catalog,
            uploader=uploader,
            uploads_in_flight=settings.uploads_in_flight,
            stats=self.stats,
            streams=self._streams,
            on_failure=self._fail,
            on_progress=self._wake_writers,
            on_gone=self._drop,
        )
        self._journal = Journal(
            wal,
            self._cache,
            threshold_bytes=threshold,
            current_bytes_max=settings.log_cache_bytes + threshold,
            pressure_bytes=int(wal.capacity_bytes * settings.wal_pressure_ratio),
            age_s=settings.upload_age_ms / 1000,
            on_due=self._pipeline.wake,
            on_failure=lambda error: self._fail(StorageStopped(f"the WAL failed: {error}")),
            on_taken_up=self._pipeline.taken_up,
            on_room=self._wake_writers,
        )
        self._reader = ColdReader(
            catalog=catalog,
            stores=stores,
            settings=settings,
            stats=self.stats,
            cluster=cluster,
            spawn=self._spawn,
            appends_wait=lambda: self._journal.appends_wait,
            damaged=self.damaged,
        )
        self._fenced_records: set[int] = set()
        self._writable_waiters: list[asyncio.Future[None]] = []
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped_event = asyncio.Event()
        self._recovered = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._spawn(self._pipeline.run(self._spawn))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close(upload=False)
        # The group's own exit is not told of the body's error: it would wrap it in a group of one.
        await self._group.__aexit__(None, None, None)

    # state

    @property
    def error(self) -> StorageError | None:
        """Why the engine takes no more appends: the WAL failed, the node was fenced, closing; None while it does."""
        return self._pipeline.failure or self._journal.error

    @property
    def writable(self) -> bool:
        """Whether more appends are welcome. While False, stop reading from clients and await `wait_writable`."""
        return next(self._obstacles(), None) is None

    def obstacles(self) -> Sequence[str]:
        """Why more appends are not welcome; nothing while they are."""
        return list(self._obstacles())

    def _obstacles(self) -> Iterator[str]:
        journal, cache, used_bytes = self._journal, self._cache, self._wal.used_bytes
        if journal.error is not None:
            yield str(journal.error)
        if journal.full:
            yield "the log had no room for an append, and nothing was written out or uploaded since"
        if cache.uncommitted_bytes > (limit_bytes := self._settings.log_cache_bytes):
            yield (
                f"the log cache is full: {cache.uncommitted_bytes} bytes are not in objects yet, and {limit_bytes} is "
                "the limit"
            )
        if used_bytes > self._wal_full_bytes:
            yield (
                f"the log is full: {used_bytes} of its {self._wal.capacity_bytes} bytes hold what is not in objects yet"
            )

    async def wait_writable(self) -> None:
        """Return when appends are welcome again. Raises StorageStopped when they never will be."""
        while not self.writable:
            if self._journal.error is not None:
                raise StorageStopped(str(self._journal.error))
            if not self._journal.full:
                self._journal.request_seal()
            waiter = asyncio.get_running_loop().create_future()
            self._writable_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                # In an outage clients give up and come again for as long as it lasts: nothing of them may stay.
                if waiter in self._writable_waiters:
                    self._writable_waiters.remove(waiter)
                raise

    async def wait_stopped(self) -> StorageError:
        """Return the reason once the engine takes no more appends."""
        await self._stopped_event.wait()
        assert self.error is not None
        return self.error

    @property
    def log_cache_bytes(self) -> int:
        """Bytes the log cache holds."""
        return self._cache.size_bytes

    @property
    def uncommitted_bytes(self) -> int:
        """Bytes of the log cache that are not in objects yet."""
        return self._cache.uncommitted_bytes

    @property
    def block_cache_bytes(self) -> int:
        """Bytes the block cache holds."""
        return self._reader.loader.cache.size_bytes

    @property
    def stopped_streams(self) -> Mapping[int, StoppedStream]:
        """Streams stopped at recovery: why, and what of them is in the WAL, which is not trimmed meanwhile."""
        return dict(self._pipeline.stopped)

    # opening

    async def recover(self) -> None:
        """Scan the WAL and rebuild the log cache. Once, before `open_streams`.

        Raises UnknownStreams when the WAL and the catalog do not belong together: nothing is trimmed then.
        """
        assert not self._recovered, "recover() runs once"
        records = [decode_record(record.offset, record.body) async for record in self._wal.recover()]
        ids = sorted({record.batch.stream_id for record in records})
        infos: dict[int, StreamInfo] = {}
        for at in range(0, len(ids), LOOKUP_STREAMS):
            infos.update(await self._catalog.get_streams(ids[at : at + LOOKUP_STREAMS]))
        # After the look-ups, so that a stream made meanwhile counts as known.
        next_stream_id = await self._catalog.next_stream_id()
        plan = plan_recovery(records, infos, self._node_id, next_stream_id=next_stream_id)
        self._adopt(plan)
        if plan.last_wal_offset >= 0 and not plan.live:
            await self._pipeline.trim_wal(plan.last_wal_offset)
        self._recovered = True

    def _adopt(self, plan: RecoveryPlan) -> None:
        """Put live records into the current block: it is sealed once their owners have replayed them."""
        self._pipeline.stopped = dict(plan.stopped)
        self._fenced_records = set(plan.fenced)
        stats = self.stats
        for stream_id, stopped in plan.stopped.items():
            log.error("stream stopped at recovery", stream_id=stream_id, reason=str(stopped.error))
        for stream_id in plan.fenced:
            log.error("records of a stream that another node has taken over are void", stream_id=stream_id)
        block = self._cache.current
        for stream_id, batches in plan.live.items():
            run = self._journal.start_run(stream_id, batches[0].base_offset)
            for batch in batches:
                run.add(batch)
            self._cache.grow(run)
            self._pipeline.untaken.add(stream_id)
            stats.recovered_records += len(batches)
            stats.recovered_bytes += run.size_bytes
        block.wal_offset = plan.last_wal_offset
        stats.skipped_records = plan.skipped_records
        stats.stopped_streams = len(plan.stopped)
        if block.size_bytes >= self._journal.threshold_bytes:
            self._journal.request_seal()

    async def open_streams(self, stream_ids: Sequence[int]) -> list[Stream]:
        """Take streams over, in one transaction: their epochs grow. Raises StreamNotFound, NodeFenced, StorageError."""
        assert self._recovered, "recover() comes first"
        if again := [stream_id for stream_id in stream_ids if stream_id in self._streams]:
            raise StorageError(f"streams {again} are open already")
        opened = await self._catalog.open_streams(stream_ids, node_id=self._node_id, node_epoch=self._node_epoch)
        await self._void_records([item for item in opened if item.info.stream_id in self._fenced_records])
        return [self._opened(item) for item in opened]

    async def _void_records(self, opened: Sequence[OpenStream]) -> None:
        """Streams that come back to this node: their old records in the WAL must not be taken for live later on."""
        for item in opened:
            await self._append_reset(item.info)
            self._fenced_records.discard(item.info.stream_id)

    async def _append_reset(self, info: StreamInfo) -> None:
        """Void the stream's records that are in the WAL."""
        try:
            appended = self._wal.append((encode_reset(info.stream_id, info.epoch, info.end_offset),))
            await appended.durable
        except WalError as error:
            raise StorageStopped(f"old records of stream {info.stream_id} cannot be voided: {error}") from error

    def _opened(self, item: OpenStream) -> Stream:
        info = item.info
        stream_id = info.stream_id
        error: StorageError | None = None
        if stream_id in self._pipeline.stopped:
            error = self._pipeline.stopped[stream_id].error
        runs = self._cache.runs_of(stream_id)
        recovered: Sequence[StreamBatch] = ()
        if stream_id in self._pipeline.untaken:
            recovered = runs.runs[-1].batches
            if recovered[0].base_offset != info.end_offset:
                error = Discontinuity(
                    f"stream {stream_id}: recovered from {recovered[0].base_offset}, committed up to {info.end_offset}"
                )
                log.error("stream stopped when it was opened", stream_id=stream_id, reason=str(error))
                # Its records stay in the WAL, for a person to decide; uploads of the other streams do not wait for it.
                stopped = StoppedStream(error, 0)
                for batch in recovered:
                    stopped = stopped.add(batch, self._cache.current.wal_offset)
                self._pipeline.stopped[stream_id] = stopped
                self.stats.stopped_streams += 1
                self._drop(stream_id)
                runs = self._cache.runs_of(stream_id)
                recovered = ()
        elif runs.runs:
            # Another node may have had it meanwhile: the stream may have other records by now, and another end.
            self._cache.drop(stream_id)
            runs = self._cache.runs_of(stream_id)
        runs.is_open = True
        stream = Stream(
            self,
            self._journal,
            runs,
            item,
            recovered=recovered,
            store=self._default_store,
        )
        stream.error = error
        self._streams[stream_id] = stream
        return stream

    async def close_stream(self, stream: Stream, *, discard: bool = False) -> None:
        """Take no more appends and let the stream go, its data uploaded; with `discard` (deleted) it is forgotten."""
        stream_id = stream.stream_id
        if stream.error is None:
            stream.error = StorageStopped(f"stream {stream_id} is closed")
        if discard:
            self._drop(stream_id)
        elif stream.next_offset > stream.committed_offset and stream_id not in self._pipeline.untaken:
            await self.flush()
        if self._streams.pop(stream_id, None) is stream:
            self._cache.close(stream_id)
            self._reader.loader.invalidate((stream_id,))

    # uploads

    async def flush(self) -> None:
        """Upload everything appended so far and trim the WAL. Raises StorageError when that can't be done."""
        await self._pipeline.flush()

    def request_upload(self) -> None:
        """Have everything appended so far uploaded soon, without waiting for it."""
        self._journal.request_seal()

    def waiting_ms(self, stream_id: int) -> int:
        """How long data of the stream has waited for an upload to begin, or -1; up to the age of what waits longest."""
        block = self._cache.current
        if block.due or stream_id not in block.runs:
            return -1
        return int((asyncio.get_running_loop().time() - block.began_s) * 1000)

    async def discard_recovered(self, stream_id: int) -> None:
        """Give up the WAL records of a stream stopped at recovery: a person's decision, for good.

        The stream takes appends again, from its committed end. Raises StorageError when there is no such stream, or
        the WAL takes nothing.
        """
        stopped = self._pipeline.stopped.get(stream_id)
        if stopped is None:
            raise StorageError(f"stream {stream_id} is not stopped")
        info = (await self._catalog.get_streams((stream_id,))).get(stream_id)
        if info is not None and not self._pipeline.frees(stream_id, stopped.last_wal_offset):
            # They stay in the WAL until what lies before them is uploaded, or given up: a restart must not find them.
            await self._append_reset(info)
        log.warning("records given up", stream_id=stream_id, records=stopped.record_count, bytes=stopped.size_bytes)
        await self._pipeline.discard(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None and stream.error is stopped.error:
            stream.error = None  # not before: a crash would find what is appended behind what is given up

    def stream(self, stream_id: int) -> Stream | None:
        """The stream, if it is open."""
        return self._streams.get(stream_id)

    def store_of(self, stream_id: int) -> str | None:
        """Name of the store that an open stream's data goes to."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.store

    def _owner_of(self, stream_id: int) -> StreamOwner:
        stream = self._streams[stream_id]
        return StreamOwner(stream.epoch, stream.store, stream.uploads_alone)

    def _drop(self, stream_id: int) -> None:
        before = self._cache.size_bytes
        self._cache.drop(stream_id)
        self.stats.dropped_bytes += before - self._cache.size_bytes
        self._pipeline.taken_up(stream_id)
        self._reader.loader.invalidate((stream_id,))

    def _fenced(self, stream_id: int, error: StreamFenced) -> None:
        log.error("stream fenced", stream_id=stream_id, reason=str(error))
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.error = StreamFenced(str(error))
        self._fenced_records.add(stream_id)
        self._drop(stream_id)

    # reads

    async def read_cold(self, stream: Stream, offset: int, bytes_max: int, end_offset: int | None) -> ReadResult:
        """Read what the log cache does not hold, and go on into it. For `Stream.read`."""
        self.stats.cold_reads += 1
        end = stream.committed_offset if end_offset is None else min(end_offset, stream.committed_offset)
        try:
            with self.damaged.noting(stream.label):
                batches = await self._reader.read(stream.stream_id, offset, bytes_max, end, stream.committed_offset)
        except OffsetOutOfRange:
            # A trim took effect whose answer never came: learn of it, or the start would be offered again and again.
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

    async def offset_for_time(self, stream: Stream, timestamp_ms: int, from_offset: int) -> StreamBatch | None:
        """The first confirmed batch at or after a time. For `Stream.offset_for_time`."""
        start = max(stream.start_offset, from_offset)
        # What is committed while the objects are searched was not searched, and may have left the log cache since.
        while stream.cached_start() > start and (searched_end := stream.committed_offset) > start:
            with self.damaged.noting(stream.label):
                found = await self._reader.find_time(stream.stream_id, timestamp_ms, start, searched_end)
            if found is not None:
                return found
            start = searched_end
        return stream.cached_for_time(timestamp_ms, start)

    async def offset_for_age(self, stream: Stream, since_ms: int, untimed_end: int, is_untimed: IsUntimed) -> int:
        """Where the stream must begin to hold nothing older. For `Stream.offset_for_age`."""
        at, end = stream.start_offset, stream.confirmed_offset
        young = await self.offset_for_time(stream, since_ms, 0)
        cut = end if young is None else min(young.base_offset, end)
        limit = min(cut, untimed_end)
        # As for times: what is committed meanwhile was not searched. What is left then is in no object, and young.
        while at < (searched_end := min(limit, stream.committed_offset)):
            found = await find_untimed(
                self._catalog, self._reader, stream.stream_id, since_ms, at, searched_end, is_untimed
            )
            if found is not None:
                return found
            at = searched_end
        found = stream.cached_untimed(at, limit, is_untimed) if at < limit else None
        return cut if found is None else found

    async def offset_for_size(self, stream: Stream, bytes_max: int) -> int:
        """Where the stream must begin to be cut to a size. For `Stream.offset_for_size`."""
        with self.damaged.noting(stream.label):
            return await find_size_cut(
                self._catalog,
                self._reader,
                stream.stream_id,
                bytes_max,
                uncommitted_bytes=stream.uncommitted_bytes,
                start_offset=stream.start_offset,
                end_offset=stream.committed_offset,
            )

    async def trim(self, stream: Stream, new_start: int) -> None:
        """Move a stream's start. For `Stream.trim`."""
        if new_start > stream.confirmed_offset:
            raise OffsetOutOfRange(
                f"stream {stream.stream_id}: cannot trim to {new_start}, past the end {stream.confirmed_offset}"
            )
        if new_start <= stream.start_offset:
            return
        if new_start > stream.committed_offset:
            await self.flush()
        now_ms = self._now_ms()
        info = await self._catalog.trim_stream(
            stream.stream_id,
            stream.epoch,
            new_start,
            now_ms=now_ms,
            delete_after_ms=now_ms + self._settings.delete_delay_ms,
        )
        stream.start_offset = max(stream.start_offset, info.start_offset)
        self._reader.loader.invalidate((stream.stream_id,))

    async def loads_done(self) -> None:
        """Return when no read from objects is under way, those of readers that gave up included."""
        await self._reader.loader.loads_done()

    def invalidate(self, stream_ids: Sequence[int]) -> None:
        """Forget where the streams' data lies: compaction has replaced objects. Reads find out by themselves, later."""
        self._reader.loader.invalidate(stream_ids)

    def supersede(self, stream_id: int, end_offset: int) -> None:
        """Log compaction has removed records before `end_offset` from objects: no read from now on finds them.

        A read under way may still return them.
        """
        self._cache.supersede(stream_id, end_offset)
        self._reader.loader.invalidate((stream_id,))

    # stopping

    async def close(self, *, upload: bool = True) -> None:
        """Take no more appends; with `upload`, upload everything and trim the WAL first. Then end all tasks.

        While the store is away the upload does not end: cancel this call and close with `upload=False`; nothing is
        lost.
        """
        if self._closed:
            return
        if self._journal.error is None:
            self._journal.error = StorageStopped("the engine is closing")
            self._stopped_event.set()
            self._wake_writers()
        if upload and self._recovered:
            try:
                await self.flush()
            except StorageError as error:
                log.warning("not everything was uploaded at close; the WAL has it", reason=str(error))
        self._closed = True
        timer = self._cache.current.age_timer
        if timer is not None:
            timer.cancel()
        await end_tasks(self._tasks)
        self._reader.loader.close(StorageStopped("the engine is closed"))
        self._pipeline.settle_current(StorageStopped("the engine is closed"))

    def _fail(self, error: StorageError) -> None:
        if self._pipeline.failure is not None:
            return
        log.error("storage stopped", reason=str(error))
        self._journal.error = StorageStopped(str(error))
        self._stopped_event.set()
        self._pipeline.fail(error)
        self._wake_writers()

    def _wake_writers(self) -> None:
        self._journal.full = False
        waiters, self._writable_waiters = self._writable_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        """Start a task of the engine's own. Raises StorageStopped when the engine is closed."""
        if self._closed:
            work.close()
            raise StorageStopped("the engine is closed")
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
