"""Uploads one sealed block: waits until it is durable, writes its objects, and commits them in the order of the blocks.

`plan_split` decides which objects a block becomes. Calls that may succeed later are repeated forever, with growing
pauses: while the store or the catalog is unavailable the data stays in the WAL and in the log cache, both bounded. A
permanent error (a fence, a range that does not begin at its stream's end) is raised, never retried. A commit that was
not answered is repeated until the catalog shows its outcome; it is never undone here.

No objects are left behind: they are written within half the time after which the collector reaps them, and one that
arrives in the store later (a machine that slept in the middle of a PUT) is deleted here.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from anabranch.s3stream.append.log_cache import UploadBlock, UploadRun
from anabranch.s3stream.append.registry import StreamRegistry
from anabranch.s3stream.background import Pace
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import UploadCommit
from anabranch.s3stream.errors import CatalogUnavailable, NotFound, ObjectExists, StorageError, StoreError, StreamFenced
from anabranch.s3stream.model import (
    BATCH_OVERHEAD_BYTES,
    NewObject,
    NodeIdentity,
    ObjectKind,
    ObjectState,
    object_key,
)
from anabranch.s3stream.object.hedge import PartHedge
from anabranch.s3stream.object.marks import MarkWriter
from anabranch.s3stream.object.writer import ObjectWriter, PartLimits
from anabranch.s3stream.object.writer_id import UploadWriter, upload_writer_id
from anabranch.s3stream.outages import CATALOG, Outages, object_store
from anabranch.s3stream.settings import StorageSettings
from anabranch.s3stream.stats import StorageStats
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tasks import side_by_side
from anabranch.s3stream.tracing import Tracing
from anabranch.s3stream.upload.backoff import Backoff
from anabranch.s3stream.upload.split import ObjectPlan, RunSize, plan_split

log = structlog.get_logger(__name__)

BYTES_PER_TURN = 256 * 1024
"""Bytes of batches, overhead included, that are written before other tasks get a turn."""
OBJECT_OVERHEAD_BYTES = 128
"""Upper bound of a batch's framing in an object, its share of block header and index entry included."""


class _PrepareExpired(StorageError):
    """The objects were prepared so long ago that they may be reaped before the commit: prepare others."""


@dataclass(frozen=True, slots=True)
class _UploadAttempt:
    """One attempt at writing the objects of a block."""

    writer_id: str
    give_up_ms: int
    """Wall clock at which to start over with other objects, long before these may be reaped."""
    prepared: dict[int, str]
    """Store name by object id."""


class WriterIdentity(NamedTuple):
    """Cluster, node and epoch of the writer of uploaded objects."""

    cluster: str
    node: NodeIdentity
    new_writer_id: Callable[[], str]
    """Returns a fresh id for each upload: a rollback deletes only objects with that id."""

    def writer_id(self) -> str:
        """Return the writer id of one upload."""
        return upload_writer_id(self.new_writer_id(), UploadWriter(*self.node))


class Uploader:
    """Uploads sealed blocks as committed objects."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        stores: Mapping[str, ObjectStore],
        settings: StorageSettings,
        stats: StorageStats,
        outages: Outages,
        identity: WriterIdentity,
        now_ms: Callable[[], int],
        streams: StreamRegistry,
        marks: MarkWriter,
        tracing: Tracing,
    ) -> None:
        self._catalog = catalog
        self._stores = stores
        self._settings = settings
        self._stats = stats
        self._outages = outages
        self._identity = identity
        self._now_ms = now_ms
        self._streams = streams
        self._marks = marks
        self._tracing = tracing
        self._writes = asyncio.Semaphore(settings.object_writes_in_flight)
        self._hedges = {
            name: PartHedge(
                ratio=settings.part_hedge_ratio,
                delay_ms_min=settings.part_hedge_ms_min,
                counts=stats,
                clock=lambda: asyncio.get_running_loop().time(),
            )
            for name in stores
        }

    async def upload(self, block: UploadBlock, previous: asyncio.Future[None] | None, pace: Pace) -> None:
        """Return when the block is committed, which is after `previous`. Raises WalError, final StorageErrors.

        All objects of the block are written at `pace`.
        """
        if block.durable is not None:
            await block.durable
        with self._tracing.upload(block.runs.values(), block.size_bytes):
            await self._upload_durable(block, previous, pace)

    async def _upload_durable(self, block: UploadBlock, previous: asyncio.Future[None] | None, pace: Pace) -> None:
        backoff = Backoff(self._settings)
        while True:
            give_up_ms = self._now_ms() + self._settings.prepare_ttl_ms // 2
            attempt = _UploadAttempt(self._identity.writer_id(), give_up_ms, {})
            try:
                with self._tracing.step("write objects"):
                    objects = await self._write_objects(block, attempt, pace)
                if previous is not None:
                    await asyncio.shield(previous)
                with self._tracing.step("commit"):
                    await self._commit(block, objects)
            except (NotFound, ObjectExists, _PrepareExpired) as error:
                # The objects were reaped, or their time is over: start over with new ones.
                self._stats.upload_retries += 1
                log.warning("upload starts over with new objects", reason=str(error))
                await self._remove_reaped(attempt)
                await backoff.pause()
            else:
                return

    async def _write_objects(self, block: UploadBlock, attempt: _UploadAttempt, pace: Pace) -> list[NewObject]:
        runs = []
        for stream_id, run in block.runs.items():
            stream = self._streams[stream_id]
            runs.append(RunSize(stream_id, run.size_bytes, stream.store, stream.uploads_alone))
        plans = plan_split(runs, self._settings.split_bytes)
        object_ids: dict[str, list[int]] = {}
        for store in {plan.store for plan in plans}:
            count = sum(plan.store == store for plan in plans)
            object_ids[store] = list(await self._prepare(count, store, attempt.writer_id))
            attempt.prepared.update(dict.fromkeys(object_ids[store], store))
        left_s = (attempt.give_up_ms - self._now_ms()) / 1000
        try:
            async with asyncio.timeout(left_s):
                written = await side_by_side(
                    self._write_object(block, plan, object_ids[plan.store].pop(0), attempt, pace) for plan in plans
                )
        except TimeoutError:
            raise _PrepareExpired(f"objects {sorted(attempt.prepared)} could not be written in time") from None
        return [item for item in written if item is not None]

    async def _prepare(self, count: int, store: str, writer_id: str) -> Sequence[int]:
        backoff = Backoff(self._settings)
        while True:
            now_ms = self._now_ms()
            try:
                object_ids = await self._catalog.prepare_objects(
                    count,
                    node=self._identity.node,
                    writer_id=writer_id,
                    store=store,
                    now_ms=now_ms,
                    deadline_ms=now_ms + self._settings.prepare_ttl_ms,
                )
            except CatalogUnavailable as error:
                await self._pause(backoff, "prepare", CATALOG, error)
            else:
                self._outages.over(CATALOG)
                return object_ids

    async def _write_object(
        self, block: UploadBlock, plan: ObjectPlan, object_id: int, attempt: _UploadAttempt, pace: Pace
    ) -> NewObject | None:
        """Write one object, repeating until it succeeds; return None when all its streams were dropped meanwhile."""
        # Each attempt writes the same bytes, whatever happens to the streams: the store treats a repeated PUT of one
        # writer as the earlier one.
        runs = [block.runs[stream_id] for stream_id in plan.stream_ids if stream_id in block.runs]
        if not runs:
            return None
        backoff = Backoff(self._settings)
        while True:
            try:
                async with self._writes, self._writer(plan, runs, object_id, attempt.writer_id, pace) as writer:
                    written = 0
                    for run in runs:
                        for batch in run.batches:
                            await writer.write(batch)
                            written += len(batch.payload) + BATCH_OVERHEAD_BYTES
                            if written >= BYTES_PER_TURN:
                                written = 0
                                await asyncio.sleep(0)
                    new_object = await writer.finish()
            except (ObjectExists, NotFound):
                raise
            except (StoreError, CatalogUnavailable) as error:
                if self._now_ms() >= attempt.give_up_ms:
                    raise _PrepareExpired(f"object {object_id} could not be written in time: {error}") from error
                where = CATALOG if isinstance(error, CatalogUnavailable) else object_store(plan.store)
                await self._pause(backoff, f"object {object_id}", where, error)
            else:
                self._outages.over(object_store(plan.store))
                return new_object

    def _writer(
        self, plan: ObjectPlan, runs: Sequence[UploadRun], object_id: int, writer_id: str, pace: Pace
    ) -> ObjectWriter:
        settings = self._settings
        parts = PartLimits(settings.object_part_bytes)
        if plan.kind is ObjectKind.SO:
            # Many stream objects are written at a time; the number of their parts is their cost in calls.
            size_bytes = sum(run.size_bytes + OBJECT_OVERHEAD_BYTES * len(run.batches) for run in runs)
            alone = size_bytes + OBJECT_OVERHEAD_BYTES <= settings.so_put_bytes_max
            parts = PartLimits(settings.so_put_bytes_max if alone else settings.so_put_bytes_max // 2, in_flight=2)

        async def note(upload_id: str) -> None:
            await self._catalog.note_multipart(object_id, upload_id)

        return ObjectWriter(
            self._stores[plan.store],
            object_key(self._identity.cluster, object_id),
            object_id=object_id,
            kind=plan.kind,
            writer_id=writer_id,
            block_bytes=settings.object_block_bytes,
            parts=parts,
            on_multipart=note,
            hedge=self._hedges[plan.store],
            pace=pace,
        )

    async def _commit(self, block: UploadBlock, written: Sequence[NewObject]) -> None:
        """Commit the ranges that deletions and fences left of the objects, if any."""
        backoff = Backoff(self._settings)
        unanswered = False
        while commit := self._plan_commit(block, written):
            try:
                if not unanswered or not await self._took_effect(block, commit):
                    await self._catalog.commit_upload(commit)
            except CatalogUnavailable as error:
                unanswered = True
                await self._pause(backoff, "commit", CATALOG, error)
            except StreamFenced as error:
                await self._drop_fenced(block, commit.stream_epochs, error)
            else:
                self._outages.over(CATALOG)
                self._count(commit.objects)
                self._tracing.committed(item.object_id for item in commit.objects)
                await self._mark()
                return

    async def _mark(self) -> None:
        """Keep in the store what the catalog has: it may forget it, and the log is trimmed after this."""
        backoff, where = Backoff(self._settings), object_store(self._marks.place.store.name)
        while True:
            try:
                await self._marks.write(self._catalog.seen)
            except StoreError as error:
                await self._pause(backoff, "mark", where, error)
            else:
                self._outages.over(where)
                return

    def _plan_commit(self, block: UploadBlock, written: Sequence[NewObject]) -> UploadCommit | None:
        objects = []
        for item in written:
            ranges = [span for span in item.ranges if span.stream_id in block.runs]
            if ranges:
                objects.append(replace(item, ranges=ranges))
        if not objects:
            return None
        return UploadCommit(
            node=self._identity.node,
            objects=objects,
            stream_epochs={key: self._streams[key].epoch for key in block.runs},
            snapshots={key: block.snapshots[key] for key in block.runs if key in block.snapshots},
            now_ms=self._now_ms(),
        )

    async def _took_effect(self, block: UploadBlock, commit: UploadCommit) -> bool:
        """Return whether a commit that was not answered was applied. Raises CatalogUnavailable.

        The ends of the streams show it, even when compaction has replaced the objects since: under its epoch only this
        node moves a stream's end, and a commit moves all ends or none.
        """
        ends = {key: run.end_offset for key, run in block.runs.items()}
        infos = await self._catalog.get_uploaded_streams(commit.node.node_id, list(ends))
        own = [info for key, info in infos.items() if info.epoch == commit.stream_epochs[key]]
        return any(info.end_offset >= ends[info.stream_id] for info in own)

    async def _remove_reaped(self, attempt: _UploadAttempt) -> None:
        """Delete objects that arrived in the store after the collector had reaped them: nothing else deletes them.

        Objects that are still prepared are left to the collector. Committed ones, whose commit was not answered, stay.
        """
        try:
            known = await self._catalog.get_objects(list(attempt.prepared))
            for object_id, store_name in attempt.prepared.items():
                info = known.get(object_id)
                if info is None or (info.state is ObjectState.DESTROYED and not info.committed_ms):
                    store, key = self._stores[store_name], object_key(self._identity.cluster, object_id)
                    if await store.writer_id(key) == attempt.writer_id:
                        failures = await store.delete([key])
                        if failures:
                            raise failures[key]
        except (StoreError, CatalogUnavailable) as error:
            log.warning(
                "objects of a late upload may be left in the store", objects=sorted(attempt.prepared), reason=str(error)
            )

    async def _drop_fenced(self, block: UploadBlock, epochs: Mapping[int, int], error: StreamFenced) -> None:
        """Drop the streams that other nodes have taken over; the rest of the block is committed without them."""
        try:
            infos = await self._catalog.get_streams(list(block.runs))
        except CatalogUnavailable:
            return  # the caller repeats the commit and calls this again
        fenced = [key for key, info in infos.items() if info.epoch != epochs.get(key)]
        if not fenced:
            raise error
        for stream_id in fenced:
            self._streams.fence(stream_id, error)

    async def _pause(self, backoff: Backoff, what: str, where: str, error: StorageError) -> None:
        self._stats.upload_retries += 1
        self._outages.note(where, error)
        log.warning("upload waits", step=what, reason=str(error))
        await backoff.pause()

    def _count(self, objects: Sequence[NewObject]) -> None:
        stats = self._stats
        stats.uploads += 1
        stats.upload_bytes += sum(item.size_bytes for item in objects)
        stats.objects_so += sum(item.kind is ObjectKind.SO for item in objects)
        stats.objects_sso += sum(item.kind is ObjectKind.SSO for item in objects)
