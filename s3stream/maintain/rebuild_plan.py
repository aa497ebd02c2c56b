"""Plans a rebuilt catalog: the newest manifest and the objects of the stores in, ranges of streams out. Pure.

The selection of objects, and why it is exact:

- The collector deletes committed objects only after a newer manifest was written. So all objects that the newest
  manifest lists as committed are in the store, and so is every upload that was committed later. These are selected.
- **Listed objects** hold each stream from its start to the committed end in the manifest. Where two of them hold an
  offset (a clone keeps an object that compaction has replaced for the original) the newer one is selected.
- **Later uploads** continue exactly at that end, one after the other: a commit requires it. An upload that does not was
  never committed. An upload that does, and was not committed either, holds records that are in the node's log as well,
  because nothing is uploaded before it is durable. They were acknowledged, or about to be.
- Where two uploads continue at the same offset, the newer one was written by a later process of the node, or again from
  the same records.
- **Later outputs of compaction are skipped**: all of their inputs are there. That holds for the newest manifest only.
  With an older state (an older manifest, or a backup), inputs may have been deleted, which shows: an output then holds
  offsets outside of the rebuilt stream. This is a loss, since outputs do not say what they replaced.
- A stream that is not in the manifest, with an id given out before it, was deleted. A stream with a later id belongs to
  a topic created since: its records are kept under a new topic name.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from s3stream.catalog.manifest_state import CatalogState
from s3stream.model import ObjectKind, StreamRange
from s3stream.object.writer_id import UploadWriter, parse_upload_writer


class FoundObject(NamedTuple):
    """An object in a store, with the contents of its index."""

    object_id: int
    store: str
    size_bytes: int
    modified_ms: int
    writer_id: str
    kind: ObjectKind
    ranges: Sequence[StreamRange] = ()
    """Contiguous runs, by stream and offset; empty for an object that cannot be selected."""


class UnreadableObject(NamedTuple):
    """A damaged object in a store."""

    object_id: int
    store: str
    size_bytes: int
    modified_ms: int
    writer_id: str
    reason: str


class StoredRun(NamedTuple):
    """A run of a stream and the object that holds it."""

    stream_id: int
    start_offset: int
    end_offset: int
    object_id: int
    stored_stream_id: int
    """Stream id that the object has it under."""


@dataclass(frozen=True, slots=True)
class StreamChain:
    """A rebuilt stream: runs without a gap; `start_offset` may be inside the first one."""

    stream_id: int
    start_offset: int
    end_offset: int
    pieces: Sequence[StoredRun]


class Gap(NamedTuple):
    """Committed offsets of a stream that no object holds."""

    stream_id: int
    start_offset: int
    end_offset: int


class SkipReason(Enum):
    """Reason to skip an object."""

    DEAD = "not committed when the manifest was written, and not later: replaced, trimmed, or never finished"
    COMPACTED = "written by compaction after the manifest: all of its inputs are there"
    UNCOMMITTED = "does not continue a stream: its upload was never committed"


@dataclass(slots=True)
class RebuildPlan:
    """Objects to use, objects to skip, and missing data."""

    chains: dict[int, StreamChain] = field(default_factory=dict)
    """Chains by stream id."""
    new_streams: list[int] = field(default_factory=list)
    """Streams of chains that are not in the manifest."""
    skipped: dict[int, SkipReason] = field(default_factory=dict)
    """Reasons by object id."""
    missing: list[int] = field(default_factory=list)
    """Objects that the manifest lists as committed, but no store has."""
    damaged: list[UnreadableObject] = field(default_factory=list)
    """Objects that are needed but cannot be read."""
    gaps: list[Gap] = field(default_factory=list)
    replaced: list[Gap] = field(default_factory=list)
    """Committed offsets outside of the chains, in outputs of compaction whose inputs are gone: the state is too old."""

    @property
    def has_loss(self) -> bool:
        """True if committed records are lost."""
        return bool(self.gaps or self.damaged or self.replaced)


def select_objects(state: CatalogState, writers: Mapping[int, str]) -> tuple[set[int], set[int]]:
    """Select from the stored objects (writer id by object id): those listed as committed, and the later uploads.

    An empty writer id could not be read; it may be an upload's.
    """
    listed = {object_id for ids in state.committed.values() for object_id in ids}
    prepared = frozenset(state.prepared)

    def is_later(object_id: int, writer_id: str) -> bool:
        writer = parse_upload_writer(writer_id)
        if object_id >= state.counters["object"]:
            return writer is not None or not writer_id
        if object_id not in prepared:
            return False
        # An older epoch of the node had ended by then: its commit would have been refused.
        return not writer_id or (writer is not None and writer.node_epoch >= state.nodes.get(writer.node_id, 0))

    later = {object_id for object_id, writer_id in writers.items() if is_later(object_id, writer_id)}
    return listed & writers.keys(), later - listed


def select_outputs(state: CatalogState, writers: Mapping[int, str]) -> set[int]:
    """Select from the stored objects those that compaction wrote after the state: they are skipped, but looked at."""
    recent = frozenset(state.prepared)
    return {
        object_id
        for object_id, writer_id in writers.items()
        if (object_id >= state.counters["object"] or object_id in recent)
        and writer_id
        and parse_upload_writer(writer_id) is None
    }


def plan_rebuild(
    state: CatalogState,
    objects: Iterable[FoundObject],
    unreadable: Iterable[UnreadableObject] = (),
    *,
    streams_in_log: Iterable[int] = (),
) -> RebuildPlan:
    """Plan over all objects of the cluster in all stores.

    `streams_in_log` are the streams with records in the node's log: new ones among them get an empty chain.
    """
    return _Planner(state, {each.object_id: each for each in objects}, list(unreadable)).plan(streams_in_log)


class _Planner:
    def __init__(
        self, state: CatalogState, objects: Mapping[int, FoundObject], unreadable: Sequence[UnreadableObject]
    ) -> None:
        self._state = state
        self._objects = objects
        self._unreadable = unreadable
        writers = {object_id: found.writer_id for object_id, found in objects.items()}
        writers |= {each.object_id: each.writer_id for each in unreadable}
        self._listed, self._later = select_objects(state, writers)
        self._plan = RebuildPlan()

    def plan(self, streams_in_log: Iterable[int]) -> RebuildPlan:
        plan = self._plan
        listed = {object_id for ids in self._state.committed.values() for object_id in ids}
        plan.missing = sorted(listed - self._listed)
        wanted = self._listed | self._later
        plan.damaged = [each for each in self._unreadable if each.object_id in wanted]
        committed = self._committed_pieces()
        uploads = self._later_pieces()
        for info in self._state.streams:
            self._add(info.stream_id, info.start_offset, info.end_offset, committed, uploads)
        known = {info.stream_id for info in self._state.streams}
        fresh = {key for key in (*uploads, *streams_in_log) if key >= self._state.counters["stream"]} - known
        for stream_id in sorted(fresh):
            first = min((piece.start_offset for piece in uploads.get(stream_id, ())), default=0)
            plan.new_streams.append(stream_id)
            self._add(stream_id, first, first, committed, uploads)
        self._note_skipped()
        self._note_replaced()
        return plan

    def _committed_pieces(self) -> dict[int, list[StoredRun]]:
        pieces: dict[int, list[StoredRun]] = defaultdict(list)
        for object_id in self._listed & self._objects.keys():
            for span in self._objects[object_id].ranges:
                pieces[span.stream_id].append(_piece_of(span, object_id))
        for each in self._state.borrowed:
            if each.object_id in self._objects:
                pieces[each.stream_id].append(
                    StoredRun(each.stream_id, each.start_offset, each.end_offset, each.object_id, each.source_stream_id)
                )
        return pieces

    def _later_pieces(self) -> dict[int, list[StoredRun]]:
        pieces: dict[int, list[StoredRun]] = defaultdict(list)
        for object_id in self._later & self._objects.keys():
            for span in self._objects[object_id].ranges:
                pieces[span.stream_id].append(_piece_of(span, object_id))
        return pieces

    def _add(
        self,
        stream_id: int,
        start_offset: int,
        end_offset: int,
        committed: Mapping[int, Sequence[StoredRun]],
        uploads: Mapping[int, Sequence[StoredRun]],
    ) -> None:
        pieces, gaps = cover(committed.get(stream_id, ()), start_offset, end_offset)
        self._plan.gaps += [Gap(stream_id, *gap) for gap in gaps]
        if gaps:
            # The data past the gap is newer, and the log continues it.
            start_offset = gaps[-1][1]
            pieces = [piece for piece in pieces if piece.start_offset >= start_offset]
        pieces += self._continue(uploads.get(stream_id, ()), end_offset)
        end_offset = pieces[-1].end_offset if pieces else end_offset
        self._plan.chains[stream_id] = StreamChain(stream_id, start_offset, end_offset, pieces)

    def _continue(self, uploads: Sequence[StoredRun], end_offset: int) -> list[StoredRun]:
        """Return the uploads that continue the stream from `end_offset` on."""
        at: dict[int, list[StoredRun]] = defaultdict(list)
        for piece in uploads:
            at[piece.start_offset].append(piece)
        taken: list[StoredRun] = []
        while candidates := [
            piece for piece in at.pop(end_offset, ()) if not taken or self._may_follow(piece, taken[-1])
        ]:
            taken.append(max(candidates, key=lambda piece: piece.object_id))
            end_offset = taken[-1].end_offset
        return taken

    def _may_follow(self, piece: StoredRun, before: StoredRun) -> bool:
        """Return whether an upload may follow another: epochs of one node do not fall, nor object ids of two nodes."""
        writer, last = self._writer(piece.object_id), self._writer(before.object_id)
        if writer.node_id == last.node_id:
            return writer.node_epoch >= last.node_epoch
        return piece.object_id > before.object_id

    def _writer(self, object_id: int) -> UploadWriter:
        writer = parse_upload_writer(self._objects[object_id].writer_id)
        assert writer is not None, "only uploads continue a stream"
        return writer

    def _note_skipped(self) -> None:
        used = {piece.object_id for chain in self._plan.chains.values() for piece in chain.pieces}
        recent = frozenset(self._state.prepared)
        for object_id in self._objects.keys() - used:
            why = SkipReason.DEAD
            if object_id in self._later:
                why = SkipReason.UNCOMMITTED
            elif object_id >= self._state.counters["object"] or object_id in recent:
                why = SkipReason.COMPACTED
            self._plan.skipped[object_id] = why

    def _note_replaced(self) -> None:
        """Find the offsets that only skipped outputs of compaction hold."""
        plan, fresh = self._plan, self._state.counters["stream"]
        beyond: dict[int, tuple[int, int]] = {}
        for object_id, why in plan.skipped.items():
            for span in self._objects[object_id].ranges if why is SkipReason.COMPACTED else ():
                if span.stream_id in plan.chains or span.stream_id >= fresh:
                    low, high = beyond.get(span.stream_id, (span.start_offset, span.end_offset))
                    beyond[span.stream_id] = min(low, span.start_offset), max(high, span.end_offset)
        for stream_id, (low, high) in sorted(beyond.items()):
            chain = plan.chains.get(stream_id)
            if chain is None:
                plan.replaced.append(Gap(stream_id, low, high))
                continue
            if stream_id >= fresh and low < chain.start_offset:
                plan.replaced.append(Gap(stream_id, low, chain.start_offset))
            if high > chain.end_offset:
                plan.replaced.append(Gap(stream_id, chain.end_offset, high))


def _piece_of(span: StreamRange, object_id: int) -> StoredRun:
    return StoredRun(span.stream_id, span.start_offset, span.end_offset, object_id, span.stream_id)


def cover(
    pieces: Sequence[StoredRun], start_offset: int, end_offset: int
) -> tuple[list[StoredRun], list[tuple[int, int]]]:
    """Cover [start, end) with runs, from the newest object at each offset; returns the runs and the gaps.

    The first run may begin before the start, as in a trimmed stream; each other run begins where the previous one ends.
    """
    left = sorted((piece for piece in pieces if piece.end_offset > start_offset), key=lambda piece: piece.start_offset)
    chosen: list[StoredRun] = []
    gaps: list[tuple[int, int]] = []
    cursor, at = start_offset, 0
    open_pieces: list[StoredRun] = []
    while cursor < end_offset:
        while at < len(left) and left[at].start_offset <= cursor:
            open_pieces.append(left[at])
            at += 1
        open_pieces = [piece for piece in open_pieces if piece.end_offset > cursor]
        if open_pieces:
            best = max(open_pieces, key=lambda piece: piece.object_id)
            chosen.append(best if cursor == start_offset else best._replace(start_offset=cursor))
            cursor = best.end_offset
        else:
            next_start = left[at].start_offset if at < len(left) else end_offset
            gaps.append((cursor, min(next_start, end_offset)))
            cursor = next_start
    return chosen, gaps


class ObjectVisit(NamedTuple):
    """One visit to an object: the runs to read from it."""

    object_id: int
    pieces: Sequence[StoredRun]


def read_order(chains: Iterable[StreamChain]) -> list[ObjectVisit]:
    """Order the visits to the objects so that each stream is read from its start to its end.

    Each object is visited once if possible: streams that share two objects in opposite orders need another visit.
    """
    waiting = {chain.stream_id: iter(chain.pieces) for chain in chains if chain.pieces}
    left: dict[int, int] = defaultdict(int)
    for chain in chains:
        for piece in chain.pieces:
            left[piece.object_id] += 1
    ready: dict[int, list[StoredRun]] = defaultdict(list)
    complete: list[int] = []

    def advance(stream_id: int) -> None:
        piece = next(waiting[stream_id], None)
        if piece is not None:
            ready[piece.object_id].append(piece)
            if len(ready[piece.object_id]) == left[piece.object_id]:
                complete.append(piece.object_id)

    for stream_id in waiting:
        advance(stream_id)
    steps: list[ObjectVisit] = []
    while ready:
        object_id = complete.pop() if complete else max(ready, key=lambda key: len(ready[key]))
        pieces = ready.pop(object_id)
        left[object_id] -= len(pieces)
        steps.append(
            ObjectVisit(object_id, sorted(pieces, key=lambda piece: (piece.stored_stream_id, piece.start_offset)))
        )
        for piece in pieces:
            advance(piece.stream_id)
    return steps
