"""Reads all records for the rebuild of a catalog and replays them into the state of each stream's owner."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.maintain.rebuild_plan import FoundObject, ObjectVisit, StoredRun, StreamChain, read_order
from anabranch.s3stream.model import StreamBatch, StreamRange, object_key
from anabranch.s3stream.object.format import IndexEntry, decode_block
from anabranch.s3stream.object.reader import index_tail_bytes, read_index
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tasks import side_by_side

READS_IN_FLIGHT: Final = 4
READ_BYTES_MAX: Final = 8 << 20
"""Size of one read of data; a single block may be larger."""


class StreamReplay(Protocol):
    """The state of a stream's owner, replayed batch by batch."""

    @property
    def leader_epoch(self) -> int:
        """Newest leader epoch so far, or -1."""
        ...

    @property
    def producer_id(self) -> int:
        """Largest producer id so far, or -1."""
        ...

    def add(self, batch: StreamBatch) -> None:
        """Apply the next batch. Raises CorruptObject for a batch that the owner cannot have written."""
        ...

    def encode(self, start_offset: int) -> bytes:
        """Encode the snapshot as of the last batch."""
        ...


@dataclass(slots=True)
class ReadReport:
    """Progress of the reading."""

    bytes_done: int = 0
    bytes_total: int = 0
    damaged: list[str] = field(default_factory=list)
    """Errors of blocks that could not be read; the ranges of their streams include them."""


class RebuildReader:
    """Reads all runs of a plan, each stream from its start to its end, into the replays of the streams' owners."""

    def __init__(
        self,
        *,
        stores: Mapping[str, ObjectStore],
        cluster: str,
        objects: Mapping[int, FoundObject],
        new_replay: Callable[[int], StreamReplay],
        replayed: Mapping[int, int] = MappingProxyType({}),
        accept_loss: bool,
        on_progress: Callable[[ReadReport], None] = lambda _: None,
    ) -> None:
        """Create a reader. With `accept_loss` damaged blocks are reported and skipped; otherwise they are an error.

        `replayed` has, by stream id, the offset up to which a new replay has the state already: nothing before it is
        read.
        """
        self._stores = stores
        self._cluster = cluster
        self._objects = objects
        self._new_replay = new_replay
        self._replayed = replayed
        self._accept_loss = accept_loss
        self._on_progress = on_progress
        self.report = ReadReport()
        self.replays: dict[int, StreamReplay] = {}
        """Replays by stream id."""
        self.spans: dict[int, list[tuple[StoredRun, StreamRange]]] = {}
        """By stream id, in order: each run, and its range from the object's index."""

    async def read(self, chains: Iterable[StreamChain]) -> None:
        """Read all chains. Raises CorruptObject, StoreError."""
        chains = list(chains)
        for chain in chains:
            self.replays[chain.stream_id] = self._new_replay(chain.stream_id)
            self.spans[chain.stream_id] = []
        steps = read_order(chains)
        self.report.bytes_total = sum(
            span.size_bytes
            for object_id in {step.object_id for step in steps}
            for span in self._objects[object_id].ranges
            if span.end_offset > self._replayed.get(span.stream_id, 0)
        )
        for step in steps:
            await self._visit(step)

    async def _visit(self, step: ObjectVisit) -> None:
        found = self._objects[step.object_id]
        store, key = self._stores[found.store], object_key(self._cluster, step.object_id)
        index = await read_index(store, key, index_tail_bytes(found.size_bytes), object_bytes=found.size_bytes)
        readers: dict[IndexEntry, list[StoredRun]] = {}
        for piece in step.pieces:
            entries = index.find(piece.stored_stream_id, piece.start_offset, piece.end_offset)
            self.spans[piece.stream_id].append((piece, _span_of(piece, entries)))
            for entry in entries:
                if entry.end_offset > self._replayed.get(piece.stream_id, 0):
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

    def _replay(self, block: memoryview, entry: IndexEntry, readers: Sequence[StoredRun], where: str) -> None:
        try:
            batches = decode_block(block, entry, where=where)
            for piece in readers:
                replay = self.replays[piece.stream_id]
                begin = max(piece.start_offset, self._replayed.get(piece.stream_id, 0))
                for batch in batches:
                    if begin < batch.end_offset and batch.base_offset < piece.end_offset:
                        replay.add(batch)
        except CorruptObject as error:
            if not self._accept_loss:
                raise
            self.report.damaged.append(str(error))


def _span_of(piece: StoredRun, entries: Sequence[IndexEntry]) -> StreamRange:
    return StreamRange(
        piece.stream_id,
        piece.start_offset,
        piece.end_offset,
        sum(entry.record_count for entry in entries),
        sum(entry.size_bytes for entry in entries),
        max((entry.max_timestamp_ms for entry in entries), default=-1),
    )


def _runs(entries: Sequence[IndexEntry]) -> list[list[IndexEntry]]:
    """Group adjacent blocks into reads of bounded size."""
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
