"""The storage engine: streams over a WAL, a log cache, a catalog and object stores.

Invariants: only the WAL acknowledges an append (completes its `Durable`); nothing leaves the log cache before its
object is committed, and the WAL is trimmed only after that (invariant 2); objects, ends and snapshots of an upload
become visible in one commit (invariant 3).

This module puts the parts together, starts and stops them. Each part refers only to parts before it in this list:
admission (are appends taken?), sealer (when is a block closed for upload?), journal (WAL and confirmation), registry
(open streams), all in `append/`; then uploader and pipeline in `upload/`.

Every background task lives in the engine's TaskGroup. A failure that cannot heal stops appends and is reported by
`error`; reads continue.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Self

import structlog

from anabranch.s3stream.append.admission import Admission, AdmissionState
from anabranch.s3stream.append.handover import StreamHandovers
from anabranch.s3stream.append.journal import Journal
from anabranch.s3stream.append.log_cache import LogCache
from anabranch.s3stream.append.log_watch import LogWatch
from anabranch.s3stream.append.recovery import StoppedStream
from anabranch.s3stream.append.registry import StreamRegistry
from anabranch.s3stream.append.sealer import Sealer
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.append.stream_trim import StreamTrimmer
from anabranch.s3stream.append.wal_scan import scan_wal
from anabranch.s3stream.append.wal_trim import WalTrimmer
from anabranch.s3stream.background import BackgroundIo
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import StorageError, StorageStopped
from anabranch.s3stream.model import NodeIdentity, ReadResult
from anabranch.s3stream.object.marks import MarkPlace, MarkWriter
from anabranch.s3stream.object.owner_marks import OwnerMarks
from anabranch.s3stream.outages import Outages
from anabranch.s3stream.read.cold_read import ColdReader
from anabranch.s3stream.read.damage import DamagedObjects
from anabranch.s3stream.read.loader import ObjectLoader
from anabranch.s3stream.read.stream_reader import StreamReader
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.stats import StorageStats
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tasks import end_tasks
from anabranch.s3stream.tracing import NO_TRACING, Tracing
from anabranch.s3stream.upload.pipeline import UploadPipeline
from anabranch.s3stream.upload.uploader import Uploader, WriterIdentity
from anabranch.wal.interface import WriteAheadLog

log = structlog.get_logger(__name__)


class S3Stream:
    """The engine of one node. Use as `async with`; then `recover`, `open_streams`, and at the end `close`.

    WAL, catalog and stores are handed in open (the WAL not yet recovered) and stay open: their owner closes them after
    the engine. Leaving the `async with` block without `close` stops everything at once, as a crash would: acked records
    are in the WAL.
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
        node: NodeIdentity,
        now_ms: Callable[[], int],
        new_writer_id: Callable[[], str],
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """`stores` by name; uploads go to `default_store` unless a stream's `store` says otherwise."""
        if default_store not in stores:
            raise StorageError(f"default store {default_store!r} is not one of {sorted(stores)}")
        self.stats = StorageStats()
        self.damaged = DamagedObjects(now_ms)
        """Committed objects that reads have found corrupt or missing."""
        self.outages = Outages(now_ms)
        """Outages that uploads wait for, and those that the node's owner notes."""
        self.settings = settings
        self._wal = wal
        self._catalog = catalog
        self._node = node
        threshold = settings.threshold_bytes(wal.capacity_bytes)
        self._cache = cache = LogCache(settings.log_cache_bytes, self.stats)
        self._admission = Admission(
            wal,
            cache,
            cache_bytes_max=settings.log_cache_bytes,
            wal_bytes_max=int(wal.capacity_bytes * settings.wal_full_ratio),
        )
        self._sealer = Sealer(cache, catalog, self._admission, self.stats)
        self.journal = journal = Journal(
            wal,
            cache,
            self._admission,
            self._sealer,
            LogWatch(self._admission, self.stats, stall_s=settings.stall_ms / 1000),
            threshold_bytes=threshold,
            current_bytes_max=settings.log_cache_bytes + threshold,
            pressure_bytes=int(wal.capacity_bytes * settings.wal_pressure_ratio),
            age_s=settings.upload_age_ms / 1000,
        )
        self.wal_trimmer = WalTrimmer(wal, catalog)
        self.background = BackgroundIo(lambda: journal.durable)
        """Turns of uploads and of all other work that can wait."""
        self._loader = loader = ObjectLoader(
            catalog=catalog,
            stores=stores,
            settings=settings,
            stats=self.stats,
            cluster=cluster,
            spawn=self._spawn,
            is_log_writing=lambda: journal.is_writing,
            damaged=self.damaged,
        )
        self._cold = cold = ColdReader(loader, catalog, settings, self.stats, self._spawn)
        place = MarkPlace(stores[default_store], cluster, catalog.identity())
        self.marks = MarkWriter(place, node.node_id, new_writer_id)
        """Writer of marks of the catalog's progress."""
        self.owner_marks = OwnerMarks(place, catalog, node.node_id, new_writer_id)
        """Marks of the owners of streams."""
        self._streams = StreamRegistry(
            journal=journal,
            wal_trimmer=self.wal_trimmer,
            reader=StreamReader(catalog, cold, self.damaged, self.stats),
            trimmer=StreamTrimmer(catalog, loader, now_ms=now_ms, delete_delay_ms=settings.delete_delay_ms),
            catalog=catalog,
            owner_marks=self.owner_marks,
            stats=self.stats,
            default_store=default_store,
        )
        self.handovers = StreamHandovers(journal, self.wal_trimmer, self._streams)
        """Streams on their way to and from other nodes."""
        self._pipeline = UploadPipeline(
            journal=journal,
            wal_trimmer=self.wal_trimmer,
            streams=self._streams,
            uploader=Uploader(
                catalog=catalog,
                stores=stores,
                settings=settings,
                stats=self.stats,
                outages=self.outages,
                identity=WriterIdentity(cluster, node, new_writer_id),
                now_ms=now_ms,
                streams=self._streams,
                marks=self.marks,
                tracing=tracing,
            ),
            background=self.background,
            uploads_in_flight=settings.uploads_in_flight,
            stats=self.stats,
        )
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recovered = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._spawn(self._pipeline.run(self._spawn))
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close(upload=False)
        # The body's error is kept from the group's own exit, which would wrap it in an exception group of one.
        await self._group.__aexit__(None, None, None)

    # state

    @property
    def error(self) -> StorageError | None:
        """Reason for which appends are refused (the WAL failed, the node was fenced, closing), or None."""
        return self._admission.error

    @property
    def writable(self) -> bool:
        """True while clients may send appends. While False, stop reading from them and await `wait_writable`."""
        return self._admission.is_writable

    def obstacles(self) -> Sequence[str]:
        """Return the reasons for which `writable` is False; empty while it is True."""
        return list(self._admission.obstacles())

    async def wait_writable(self) -> None:
        """Return when `writable` is True. Raises StorageStopped when it never will be, LogStalled until it may be."""
        await self.journal.wait_writable()

    async def wait_stopped(self) -> StorageError:
        """Return the reason once the engine refuses appends."""
        return await self._admission.wait_stopped()

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
        return self._loader.cache.size_bytes

    @property
    def stopped_streams(self) -> Mapping[int, StoppedStream]:
        """Streams stopped at recovery, with reason and extent of their records in the WAL, which is not trimmed."""
        return dict(self.wal_trimmer.stopped)

    # streams

    async def read_committed(
        self, stream_id: int, label: str, offset: int, bytes_max: int, *, end_offset: int, committed_end: int
    ) -> ReadResult:
        """Read a stream that any node may have open, as `Stream.read`: up to `end_offset`, at most its committed end.

        Raises OffsetOutOfRange, StreamNotFound, CorruptObject, StoreError.
        """
        assert offset < end_offset <= committed_end, "the caller knows what is committed"
        self.stats.cold_reads += 1
        with self.damaged.noting(label):
            batches = await self._cold.read(stream_id, offset, bytes_max, end_offset, committed_end)
        return ReadResult(batches, batches[-1].end_offset)

    async def recover(self) -> None:
        """Scan the WAL and rebuild the log cache. Once, before `open_streams`.

        Raises UnknownStreams when the WAL and the catalog do not belong together: nothing is trimmed then.
        """
        assert not self._recovered, "recover() runs once"
        owner, plan = await scan_wal(self._wal, self._catalog, self._node)
        await self._streams.adopt(owner, plan)
        if plan.last_wal_offset >= 0 and not plan.live:
            await self.wal_trimmer.trim(plan.last_wal_offset)
        self._recovered = True

    async def open_streams(self, stream_ids: Sequence[int]) -> list[Stream]:
        """Take streams over, in one transaction: their epochs grow.

        Raises StreamNotFound, StreamHeld, NodeFenced, StorageError.
        """
        assert self._recovered, "recover() comes first"
        return await self._streams.open(stream_ids)

    @property
    def recovered_streams(self) -> Collection[int]:
        """Streams with live records in the log that are not open yet. Discontinuous ones are in `stopped_streams`."""
        return frozenset(self._sealer.not_replayed)

    async def open_recovered(self) -> list[Stream]:
        """Open the streams that have live records, to upload them in the place of their owner, which is dead.

        They keep their epochs and leader epochs. Raises StorageError.
        """
        assert self._recovered, "recover() comes first"
        return await self._streams.open_recovered()

    async def close_stream(self, stream: Stream, *, discard: bool = False) -> None:
        """Refuse appends, upload the stream's data and forget it; with `discard` (deleted) do not upload."""
        await self._streams.close(stream, discard=discard)

    def stream(self, stream_id: int) -> Stream | None:
        """Return the stream, or None if it is not open."""
        return self._streams.get(stream_id)

    def store_of(self, stream_id: int) -> str | None:
        """Return the name of the store that an open stream's data goes to."""
        stream = self._streams.get(stream_id)
        return None if stream is None else stream.store

    async def discard_recovered(self, stream_id: int) -> None:
        """Give up the WAL records of a stream stopped at recovery, permanently: an operator's decision.

        The stream accepts appends again, from its committed end. Raises StorageError when it is not stopped.
        """
        await self._streams.give_up_recovered(stream_id)

    # uploads

    async def flush(self) -> None:
        """Upload everything appended so far and trim the WAL. Raises StorageError if that is impossible."""
        await self._sealer.flush()

    def limit_upload(self, bytes_max: int | None) -> None:
        """Start uploads at `bytes_max` or before; None: as the settings say, which also prevail if they name a size."""
        threshold = self.settings.threshold_bytes(self._wal.capacity_bytes)
        if bytes_max is not None and self.settings.upload_threshold_bytes is None:
            threshold = min(threshold, bytes_max)
        self.journal.threshold_bytes = threshold

    @property
    def upload_threshold_bytes(self) -> int:
        """Size at which an upload starts."""
        return self.journal.threshold_bytes

    def request_upload(self) -> None:
        """Request the upload of everything appended so far, without waiting for it."""
        self._sealer.request()

    def waiting_ms(self, stream_id: int) -> int:
        """Return how long data of the stream has waited for an upload to begin (at most so long), or -1."""
        return self._sealer.waiting_ms(stream_id)

    # reads

    async def loads_done(self) -> None:
        """Return when no read from objects is under way, including those whose readers gave up."""
        await self._loader.loads_done()

    def invalidate(self, stream_ids: Sequence[int]) -> None:
        """Forget where the streams' data lies: compaction has replaced objects. Else reads notice that later."""
        self._loader.invalidate(stream_ids)

    def supersede(self, stream_id: int, end_offset: int) -> None:
        """Hide records before `end_offset` that log compaction has removed; a read under way may still return them."""
        self._cache.supersede(stream_id, end_offset)
        self._loader.invalidate((stream_id,))

    # stopping

    async def close(self, *, upload: bool = True) -> None:
        """Refuse appends; with `upload`, upload everything and trim the WAL first. Then end all tasks.

        While the store is away the upload does not end: cancel this call and close with `upload=False`; nothing is
        lost.
        """
        if self._admission.state is AdmissionState.CLOSED:
            return
        self._admission.begin_close()
        if upload and self._recovered:
            try:
                await self.flush()
            except StorageError as error:
                log.warning("not everything was uploaded at close; the WAL has it", reason=str(error))
        self._admission.end_close()
        self._sealer.stop_timer()
        self.journal.watch.stop()
        await end_tasks(self._tasks)
        self._loader.abandon_all(StorageStopped("the engine is closed"))
        self._sealer.abandon_all(StorageStopped("the engine is closed"))

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        """Start a task of the engine's TaskGroup. Raises StorageStopped when the engine is closed."""
        if self._admission.state is AdmissionState.CLOSED:
            work.close()
            raise StorageStopped("the engine is closed")
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
