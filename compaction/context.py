"""What both levels of compaction work with: components, counters, indexes, prepared ids, and the commit."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from compaction.execution import ExecutionContext, UnreadableInput
from compaction.interface import CleaningHooks
from compaction.settings import CompactionSettings
from compaction.throttle import Throttle
from s3stream.catalog.catalog import Catalog
from s3stream.catalog.values import CompactionCommit
from s3stream.errors import CatalogUnavailable, ObjectDamage, StorageError
from s3stream.model import NewObject, ObjectInfo, object_key
from s3stream.object.reader import ObjectIndex
from s3stream.store.interface import ObjectStore

log = structlog.get_logger(__name__)
COMMIT_ATTEMPTS = 5
COMMIT_PAUSE_SECONDS = 1.0


class CompactionProgress(NamedTuple):
    """How far a run is."""

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
    """Cleanings by key."""
    records_removed: int = 0
    """Records that log compaction removed."""
    batches_too_large: int = 0
    """Kept as they are by compaction by key: looking into them would take too much memory."""
    bytes_copied: int = 0
    """Joined by the store, without passing through the node."""
    objects_left_alone: int = 0
    """Inputs that could not be read."""
    iteration_bytes_peak: int = 0
    pauses: int = 0
    """Times a run waited because uploads were under pressure."""


@dataclass(frozen=True, slots=True)
class CompactionContext:
    """Components, handed in once."""

    catalog: Catalog
    stores: Mapping[str, ObjectStore]
    settings: CompactionSettings
    cluster: str
    node_id: int
    node_epoch: int
    now_ms: Callable[[], int]
    new_writer_id: Callable[[], str]
    cleaning: CleaningHooks | None = None
    """Log compaction by key; None: no stream has it."""
    placement: Callable[[int], str | None] = lambda _: None
    """Name of the store that a stream's data goes to; None: it stays where it lies."""
    on_replaced: Callable[[Sequence[int]], None] = lambda _: None
    """Told the streams whose data lies elsewhere now: readers need not find out by themselves."""
    on_damaged: Callable[[ObjectDamage], None] = lambda _: None
    """Told of an input that is corrupt or missing."""
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    stats: CompactionStats = field(default_factory=CompactionStats)
    left_alone: set[int] = field(default_factory=set)
    """Objects that could not be read."""

    def key(self, object_id: int) -> str:
        """Key of an object in its store."""
        return object_key(self.cluster, object_id)

    def store_of(self, info: ObjectInfo) -> ObjectStore:
        """Where an object lies."""
        store = self.stores.get(info.store)
        if store is None:
            raise UnreadableInput(info.object_id, StorageError(f"there is no object store named {info.store!r}"))
        return store

    def store_for(self, stream_id: int, store: ObjectStore) -> ObjectStore:
        """Where to write a stream's objects anew that lie in `store`."""
        name = self.placement(stream_id)
        return store if name is None else self.stores.get(name, store)

    def execution_context(
        self, store: ObjectStore, throttle: Throttle | None = None, *, target: ObjectStore | None = None
    ) -> ExecutionContext:
        """What carries out a plan in `store`, and writes to `target` if it is another."""

        def count(size_bytes: int) -> None:
            self.stats.bytes_read += size_bytes

        return ExecutionContext(
            store,
            self.cluster,
            self.settings,
            throttle or Throttle(0),
            self.catalog.note_multipart,
            count,
            None if target is store else target,
        )

    async def read_index(self, info: ObjectInfo) -> ObjectIndex:
        """The index of an input, checked against what the catalog knows."""
        return await self.execution_context(self.store_of(info)).read_index(info)

    async def commit(
        self, inputs: Sequence[int], outputs: Sequence[NewObject], streams: Collection[int] | None = None
    ) -> None:
        """Swap inputs for outputs (`streams`: only what these have in the inputs), in one transaction.

        Repeated while the catalog cannot be reached.
        """
        now_ms = self.now_ms()
        commit = CompactionCommit(
            node_id=self.node_id,
            node_epoch=self.node_epoch,
            inputs=inputs,
            outputs=outputs,
            now_ms=now_ms,
            delete_after_ms=now_ms + self.settings.delete_delay_ms,
            streams=streams,
        )
        for attempt in range(1, COMMIT_ATTEMPTS + 1):
            try:
                await self.catalog.commit_compaction(commit)
                break
            except CatalogUnavailable:
                if attempt == COMMIT_ATTEMPTS:
                    raise
                await self.sleep(COMMIT_PAUSE_SECONDS)
        self.on_replaced(sorted({each.stream_id for output in outputs for each in output.ranges}))
        self.stats.commits += 1
        self.stats.objects_in += len(inputs)
        self.stats.objects_out += len(outputs)
