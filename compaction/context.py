"""Components and counters of one node's compaction, and the commit."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from anabranch.compaction.execution import ExecutionContext, UnreadableInput
from anabranch.compaction.interface import CleaningHooks
from anabranch.compaction.settings import CompactionSettings
from anabranch.compaction.throttle import Throttle
from anabranch.s3stream.background import Pace
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import CompactionCommit
from anabranch.s3stream.errors import CatalogUnavailable, ObjectDamage, StorageError
from anabranch.s3stream.model import NewObject, NodeIdentity, ObjectInfo, ObjectState, object_key
from anabranch.s3stream.object.reader import ObjectIndex
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tracing import NO_TRACING, Tracing

log = structlog.get_logger(__name__)
COMMIT_ATTEMPTS = 5
COMMIT_PAUSE_SECONDS = 1.0


class CompactionProgress(NamedTuple):
    """Progress of a run."""

    stage: str
    done_bytes: int
    total_bytes: int


ReportProgress = Callable[[CompactionProgress], None]


@dataclass(slots=True)
class CompactionStats:
    """Counters since the node started."""

    contiguous_runs: int = 0
    runs_failed: int = 0
    commits: int = 0
    iterations: int = 0
    objects_in: int = 0
    objects_out: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    streams_cleaned: int = 0
    """Cleanings of a stream by key."""
    records_removed: int = 0
    """Records removed by log compaction."""
    batches_too_large: int = 0
    """Batches that log compaction kept unchanged because decoding them would take too much memory."""
    bytes_copied: int = 0
    """Bytes copied by the store without passing through the node."""
    objects_left_alone: int = 0
    """Inputs that could not be read."""
    iteration_bytes_peak: int = 0
    pauses: int = 0
    """Pauses of a run because uploads were under pressure."""


@dataclass(frozen=True, slots=True)
class CompactionContext:
    """Components, settings and counters of a node's compaction."""

    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    settings: CompactionSettings
    cluster: str
    identity: NodeIdentity
    now_ms: Callable[[], int]
    new_writer_id: Callable[[], str]
    cleaning: CleaningHooks | None = None
    """Interface to the streams' owner for log compaction; None: no stream is compacted by key."""
    placement: Callable[[int], str | None] = lambda _: None
    """Returns the name of the store for a stream's data; None: it stays where it is."""
    on_replaced: Callable[[Sequence[int]], None] = lambda _: None
    """Called with the streams whose data has moved, so that readers drop cached locations."""
    on_damaged: Callable[[ObjectDamage], None] = lambda _: None
    """Called with the damage of an input that is corrupt or missing."""
    pace: Pace | None = None
    """Pace of what timed runs write, after appends and uploads; None: no limit."""
    tracing: Tracing = NO_TRACING
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    stats: CompactionStats = field(default_factory=CompactionStats)
    left_alone: set[int] = field(default_factory=set)
    """Objects that could not be read."""

    def key(self, object_id: int) -> str:
        """Return the key of an object in its store."""
        return object_key(self.cluster, object_id)

    async def any_replaced(self, object_ids: Sequence[int]) -> bool:
        """Return whether some of these inputs are no longer in use, so that their files may be gone.

        Raises CatalogError.
        """
        found = await self.catalog.get_objects(object_ids)
        return any(each not in found or found[each].state is not ObjectState.COMMITTED for each in object_ids)

    def store_of(self, info: ObjectInfo) -> ObjectStore:
        """Return the store of an object. Raises UnreadableInput if the store is not configured."""
        store = self.stores.get(info.store)
        if store is None:
            raise UnreadableInput(info.object_id, StorageError(f"its object store {info.store!r} is not configured"))
        return store

    def store_for(self, stream_id: int, store: ObjectStore) -> ObjectStore:
        """Return the store to rewrite a stream's objects to, given the store that they are in."""
        name = self.placement(stream_id)
        return store if name is None else self.stores.get(name, store)

    def execution_context(
        self, store: ObjectStore, throttle: Throttle | None = None, *, target: ObjectStore | None = None
    ) -> ExecutionContext:
        """Return the context to read from `store` and write to `target`, or to `store` without one."""

        def count(size_bytes: int) -> None:
            self.stats.bytes_read += size_bytes

        throttle = throttle or Throttle(0)
        return ExecutionContext(
            store,
            self.cluster,
            self.settings,
            throttle,
            self.catalog.note_multipart,
            count,
            None if target is store else target,
            self.pace if throttle.is_limited else None,
        )

    async def read_index(self, info: ObjectInfo) -> ObjectIndex:
        """Read the index of an input. Raises UnreadableInput and StoreError."""
        return await self.execution_context(self.store_of(info)).read_index(info)

    async def commit(
        self, inputs: Sequence[int], outputs: Sequence[NewObject], streams: Collection[int] | None = None
    ) -> None:
        """Swap inputs for outputs in one transaction; with `streams`, only these streams' ranges of the inputs.

        Retries while the catalog is unavailable. Raises CatalogError.
        """
        with self.tracing.step("commit"):
            await self._commit_until_answered(inputs, outputs, streams)
        self.tracing.committed(output.object_id for output in outputs)
        self.on_replaced(sorted({each.stream_id for output in outputs for each in output.ranges}))
        self.stats.commits += 1
        self.stats.objects_in += len(inputs)
        self.stats.objects_out += len(outputs)

    async def _commit_until_answered(
        self, inputs: Sequence[int], outputs: Sequence[NewObject], streams: Collection[int] | None
    ) -> None:
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            now_ms = self.now_ms()  # readers find the inputs until the attempt that succeeds
            commit = CompactionCommit(
                node=self.identity,
                inputs=inputs,
                outputs=outputs,
                now_ms=now_ms,
                delete_after_ms=now_ms + self.settings.delete_delay_ms,
                streams=streams,
            )
            try:
                await self.catalog.commit_compaction(commit)
            except CatalogUnavailable:
                if attempt == COMMIT_ATTEMPTS:
                    raise
                await self.sleep(COMMIT_PAUSE_SECONDS)
            else:
                return
