"""Makes what a new catalog holds out of the object store alone: looks, plans, reads everything, changes nothing.

All records are read, because the state of a stream's owner (who wrote last, which transactions were aborted) is in them
and nowhere else: without it a reader of committed records would be shown aborted ones. `rebuild_plan` says which
objects count; `catalog.fill` writes the result.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

from s3stream.catalog.fill import FilledRange, FilledStream, FilledTopic, Filling
from s3stream.catalog.values import WalInfo, WalState
from s3stream.errors import CorruptObject, StorageError
from s3stream.maintain.manifest import Manifest
from s3stream.maintain.rebuild_plan import (
    Chain,
    FoundObject,
    Piece,
    RebuildPlan,
    Step,
    Unreadable,
    read_order,
    wanted_objects,
)
from s3stream.maintain.verify import parse_object_key
from s3stream.model import (
    ObjectInfo,
    ObjectKind,
    ObjectState,
    StreamBatch,
    StreamRange,
    object_key,
)
from s3stream.object.format import IndexEntry, decode_block, merge_ranges
from s3stream.object.reader import expect_object, index_tail_bytes, read_index
from s3stream.object.writer_id import parse_compaction_writer, parse_upload_writer
from s3stream.store.interface import ObjectStore, StoredObject
from s3stream.tasks import side_by_side

T = TypeVar("T")

OBJECTS_IN_FLIGHT: Final = 32
"""Objects looked at at the same time."""
READS_IN_FLIGHT: Final = 4
READ_BYTES_MAX: Final = 8 << 20
"""Of one read of data; a block may be larger."""
EPOCHS_SKIPPED: Final = 1_000
"""How far epochs go beyond what the manifest says: nodes may have started, and streams been opened, after it."""
OBJECT_IDS_SKIPPED: Final = 100_000
"""Object ids that may have been handed out, without a trace in the store."""
PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""Producer ids that may have been handed out, without a trace in the records."""


class StreamReplay(Protocol):
    """The state of a stream's owner, brought forward batch by batch."""

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch met, or -1."""
        ...

    @property
    def producer_id(self) -> int:
        """The largest producer id met, or -1."""
        ...

    def add(self, batch: StreamBatch) -> None:
        """Take the next batch. Raises CorruptObject for what the owner cannot have written."""
        ...

    def encode(self, start_offset: int) -> bytes:
        """The snapshot as of the last batch."""
        ...


class Stored(NamedTuple):
    """What the stores have of a cluster."""

    objects: Mapping[int, FoundObject]
    unreadable: Sequence[Unreadable]
    id_max: int
    """Largest object id that is used, 0 if there is none."""


@dataclass(slots=True)
class ReadReport:
    """How far the reading has come."""

    bytes_done: int = 0
    bytes_total: int = 0
    damaged: list[str] = field(default_factory=list)
    """Blocks that could not be read; their streams have them in their ranges."""


async def look_at_stores(
    stores: Mapping[str, ObjectStore],
    manifest: Manifest,
    *,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Stored:
    """List all stores, and read writer and index of each object. `on_progress` is told objects done and all.

    Raises StorageError when a store cannot be read, or two of them have the same object.
    """
    listed: dict[int, tuple[ObjectStore, StoredObject]] = {}
    for store in stores.values():
        async for item in store.list():
            parsed = parse_object_key(item.key)
            if parsed is None or parsed[0] != manifest.cluster:
                continue
            if parsed[1] in listed:
                raise StorageError(
                    f"object {parsed[1]} is in the store {listed[parsed[1]][0].name!r} and in {store.name!r}"
                )
            listed[parsed[1]] = (store, item)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        on_progress(done, 2 * len(listed))

    async def writer_of(store: ObjectStore, item: StoredObject) -> str:
        writer_id = await store.writer_id(item.key) or ""
        step()
        return writer_id

    ids = sorted(listed)
    writers = dict(zip(ids, await _in_turn(writer_of(*listed[key]) for key in ids), strict=True))
    counted, later = wanted_objects(manifest.state, writers)

    async def look(object_id: int) -> FoundObject | Unreadable:
        store, item = listed[object_id]
        writer_id = writers[object_id]
        facts = (object_id, store.name, item.size_bytes, item.modified_ms, writer_id)
        try:
            if object_id not in counted and object_id not in later:
                return FoundObject(*facts, ObjectKind.SSO)
            index = await read_index(store, item.key, index_tail_bytes(item.size_bytes))
            expect_object(index, object_id)
            return FoundObject(*facts, index.kind, merge_ranges(list(index)))
        except CorruptObject as error:
            return Unreadable(*facts, str(error))
        finally:
            step()

    looked = await _in_turn(look(key) for key in ids)
    return Stored(
        {each.object_id: each for each in looked if isinstance(each, FoundObject)},
        [each for each in looked if isinstance(each, Unreadable)],
        max(ids, default=0),
    )


async def _in_turn(works: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Results of all, some at a time."""
    slots = asyncio.Semaphore(OBJECTS_IN_FLIGHT)

    async def one(work: Coroutine[object, object, T]) -> T:
        async with slots:
            return await work

    return await side_by_side(one(work) for work in works)


class StreamReader:
    """Reads all pieces of a plan, each stream from its start to its end, and feeds the replays of their owners."""

    def __init__(
        self,
        *,
        stores: Mapping[str, ObjectStore],
        cluster: str,
        objects: Mapping[int, FoundObject],
        new_replay: Callable[[int], StreamReplay],
        accept_loss: bool,
        on_progress: Callable[[ReadReport], None] = lambda _: None,
    ) -> None:
        """With `accept_loss` a damaged block is noted and stepped over; it is an error otherwise."""
        self._stores = stores
        self._cluster = cluster
        self._objects = objects
        self._new_replay = new_replay
        self._accept_loss = accept_loss
        self._on_progress = on_progress
        self.report = ReadReport()
        self.replays: dict[int, StreamReplay] = {}
        """By stream."""
        self.spans: dict[int, list[tuple[Piece, StreamRange]]] = {}
        """By stream, in order: each piece, and what it holds by its object's index."""

    async def read(self, chains: Iterable[Chain]) -> None:
        """Read it all. Raises CorruptObject, StoreError."""
        chains = list(chains)
        for chain in chains:
            self.replays[chain.stream_id] = self._new_replay(chain.stream_id)
            self.spans[chain.stream_id] = []
        steps = read_order(chains)
        self.report.bytes_total = sum(
            span.size_bytes
            for object_id in {step.object_id for step in steps}
            for span in self._objects[object_id].ranges
        )
        for step in steps:
            await self._visit(step)

    async def _visit(self, step: Step) -> None:
        found = self._objects[step.object_id]
        store, key = self._stores[found.store], object_key(self._cluster, step.object_id)
        index = await read_index(store, key, index_tail_bytes(found.size_bytes), object_bytes=found.size_bytes)
        readers: dict[IndexEntry, list[Piece]] = {}
        for piece in step.pieces:
            entries = index.find(piece.stored_stream_id, piece.start_offset, piece.end_offset)
            self.spans[piece.stream_id].append((piece, _span_of(piece, entries)))
            for entry in entries:
                readers.setdefault(entry, []).append(piece)
        runs = _runs(sorted(readers, key=lambda entry: entry.position))
        where = f"{store.name}:{key}"
        for at in range(0, len(runs), READS_IN_FLIGHT):
            some = runs[at : at + READS_IN_FLIGHT]
            read = await side_by_side(store.get(key, run[0].position, run[-1].end_position) for run in some)
            for run, data in zip(some, read, strict=True):
                for entry in run:
                    block = data[entry.position - run[0].position : entry.end_position - run[0].position]
                    self._replay(block, entry, readers[entry], where)
                self.report.bytes_done += len(data)
            self._on_progress(self.report)

    def _replay(self, block: memoryview, entry: IndexEntry, readers: Sequence[Piece], where: str) -> None:
        try:
            batches = decode_block(block, entry, where=where)
            for piece in readers:
                replay = self.replays[piece.stream_id]
                for batch in batches:
                    if piece.start_offset < batch.end_offset and batch.base_offset < piece.end_offset:
                        replay.add(batch)
        except CorruptObject as error:
            if not self._accept_loss:
                raise
            self.report.damaged.append(str(error))


def _span_of(piece: Piece, entries: Sequence[IndexEntry]) -> StreamRange:
    return StreamRange(
        piece.stream_id,
        piece.start_offset,
        piece.end_offset,
        sum(entry.record_count for entry in entries),
        sum(entry.size_bytes for entry in entries),
        max((entry.max_timestamp_ms for entry in entries), default=-1),
    )


def _runs(entries: Sequence[IndexEntry]) -> list[list[IndexEntry]]:
    """Neighbouring blocks, to be read at once, up to a size."""
    runs: list[list[IndexEntry]] = []
    for entry in entries:
        last = runs[-1] if runs else None
        if (
            last is not None
            and last[-1].end_position == entry.position
            and entry.end_position - last[0].position <= READ_BYTES_MAX
        ):
            last.append(entry)
        else:
            runs.append([entry])
    return runs


class LogFound(NamedTuple):
    """The log of the node that is at hand."""

    wal: WalInfo
    stream_ids: frozenset[int]
    """Streams that it has records of."""


def assemble(
    manifest: Manifest,
    plan: RebuildPlan,
    stored: Stored,
    reader: StreamReader,
    *,
    node_id: int,
    log: LogFound | None,
    newest_sequence: int,
    new_topic_id: Callable[[], bytes],
    now_ms: int,
    keep_ms: int,
) -> Filling:
    """All rows of the new catalog. What is left out is deleted by the collector after `keep_ms`.

    New streams are led by `node_id`, each as a topic of its own. `newest_sequence` is that of the newest manifest there
    is, another one than `manifest`, maybe.
    """
    state = manifest.state
    infos = {info.stream_id: info for info in state.streams}
    streams: list[FilledStream] = []
    for stream_id, chain in sorted(plan.chains.items()):
        info, replay = infos.get(stream_id), reader.replays[stream_id]
        streams.append(
            FilledStream(
                stream_id=stream_id,
                epoch=(0 if info is None else info.epoch) + EPOCHS_SKIPPED,
                node_id=node_id if info is None else info.node_id,
                leader=node_id if info is None else info.leader,
                leader_epoch=max(replay.leader_epoch, 0 if info is None else info.leader_epoch) + EPOCHS_SKIPPED,
                start_offset=chain.start_offset,
                end_offset=chain.end_offset,
                snapshot=replay.encode(chain.start_offset),
                ranges=[
                    FilledRange(
                        piece.object_id, span, 0 if piece.stored_stream_id == stream_id else piece.stored_stream_id
                    )
                    for piece, span in reader.spans[stream_id]
                ],
            )
        )
    counters = dict(state.counters)
    counters["stream"] = max(counters["stream"], *(stream_id + 1 for stream_id in (0, *plan.new_streams)))
    counters["object"] = max(counters["object"], stored.id_max + 1) + OBJECT_IDS_SKIPPED
    seen = max((replay.producer_id for replay in reader.replays.values()), default=-1)
    counters["producer"] = max(counters["producer"], seen + 1) + PRODUCER_IDS_SKIPPED
    return Filling(
        cluster=manifest.cluster,
        catalog_id=state.catalog_id,
        counters=counters,
        manifest=newest_sequence,
        nodes=_epochs(manifest, node_id, log, stored),
        wals=_wals(manifest, log),
        topics=state.topics,
        new_topics=[
            FilledTopic(_free_name(stream_id, {topic.name for topic in state.topics}), new_topic_id(), stream_id)
            for stream_id in plan.new_streams
        ],
        detached=state.detached,
        configs=state.configs,
        streams=streams,
        objects=_objects(manifest, plan, stored, now_ms, keep_ms),
    )


def _source_of(piece: Piece) -> int:
    return 0 if piece.stored_stream_id == piece.stream_id else piece.stored_stream_id


def _free_name(stream_id: int, taken: Collection[str]) -> str:
    name = f"recovered-stream-{stream_id}"
    while name in taken:
        name += "-"
    return name


def _epochs(manifest: Manifest, node_id: int, log: LogFound | None, stored: Stored) -> Mapping[int, int]:
    """Epochs of the nodes: no process that may still live has such a high one."""
    epochs = dict(manifest.state.nodes)
    epochs.setdefault(node_id, 0)
    if log is not None:
        epochs[node_id] = max(epochs[node_id], log.wal.node_epoch)
    for found in stored.objects.values():
        writer = parse_upload_writer(found.writer_id)
        if writer is not None:
            epochs[writer.node_id] = max(epochs.get(writer.node_id, 0), writer.node_epoch)
    return {key: epoch + EPOCHS_SKIPPED for key, epoch in epochs.items()}


def _wals(manifest: Manifest, log: LogFound | None) -> Sequence[WalInfo]:
    """The logs: the one that is at hand may hold records, unless it was given up."""
    wals = {wal.wal_id: wal for wal in manifest.state.wals}
    if log is not None:
        known = wals.get(log.wal.wal_id)
        if known is None or known.state is not WalState.GIVEN_UP:
            wals[log.wal.wal_id] = log.wal
    return list(wals.values())


def _objects(manifest: Manifest, plan: RebuildPlan, stored: Stored, now_ms: int, keep_ms: int) -> Sequence[ObjectInfo]:
    nodes = {object_id: node_id for node_id, ids in manifest.state.committed.items() for object_id in ids}
    used = {piece.object_id for chain in plan.chains.values() for piece in chain.pieces}
    rows: list[ObjectInfo] = []
    found: list[FoundObject | Unreadable] = [*stored.objects.values(), *stored.unreadable]
    for each in found:
        writer = parse_upload_writer(each.writer_id)
        node_id = nodes.get(each.object_id, manifest.node_id if writer is None else writer.node_id)
        taken = each.object_id in used
        committed_ms = max(1, each.modified_ms) if taken else 0
        compaction = parse_compaction_writer(each.writer_id)
        info = ObjectInfo(
            each.object_id,
            each.kind if isinstance(each, FoundObject) else ObjectKind.SSO,
            ObjectState.COMMITTED if taken else ObjectState.DESTROYED,
            each.store,
            each.size_bytes,
            node_id,
            each.writer_id,
            0 if taken else now_ms + keep_ms,
            committed_ms,
            compaction.oldest_data_ms or committed_ms,
            compaction.cleaned,
        )
        rows.append(info)
    return rows
