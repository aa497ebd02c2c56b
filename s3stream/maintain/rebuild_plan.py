"""Plans a rebuilt catalog: the newest manifest and the objects of the stores in, ranges of streams out. Pure.

The selection of objects, and why it is exact:

- The collector deletes committed objects only after a newer manifest was written. So all objects that the newest
  manifest lists as committed are in the store, and so is every upload that was committed later. These are selected.
- **Listed objects** hold each stream from its start to the committed end in the manifest. Where two of them hold an
  offset (a clone keeps an object that compaction has replaced for the original) the newer one is selected.
- **Other uploads** count if they continue exactly at that end, one after the other, as a commit requires it. It does
  not matter whether the manifest is older, or of a catalog that had gone back and forgotten them. An upload that was
  never committed holds records that are in the node's log as well, because nothing is uploaded before it is durable:
  they were acknowledged, or about to be. The offsets belong to other records only if that log was given up, or if an
  earlier rebuild has left the upload out.
- **No upload is deleted** unless its records are dead: trimmed, of a deleted stream, or in an output of compaction that
  is used. Another one that continues no stream stays in the store, without a row in the catalog.
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
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from anabranch.s3stream.catalog.manifest_state import CatalogState
from anabranch.s3stream.catalog.topics import NOBODY
from anabranch.s3stream.catalog.values import WalState
from anabranch.s3stream.model import ObjectKind, StreamRange
from anabranch.s3stream.object.writer_id import UploadWriter, parse_upload_writer

EPOCHS_SKIPPED: Final = 1_000
"""Increment of epochs over those of the manifest: nodes may have started, and streams been opened, after it."""


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
    """Stream id under which the object stores it."""


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
    UNCOMMITTED = "an upload that continues no stream: it stays in the store"


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
    """Select from the stored objects (writer id by object id): those listed as committed, and all other uploads.

    Uploads of a log that was given up since, and those before an earlier rebuild, are left out. An empty writer id
    could not be read; it may be that of an upload.
    """
    listed = {object_id for ids in state.committed.values() for object_id in ids}
    prepared = frozenset(state.prepared)
    given_up = [wal for wal in state.wals if wal.state is WalState.GIVEN_UP]

    def is_later(object_id: int, writer_id: str) -> bool:
        writer = parse_upload_writer(writer_id)
        if writer is None:
            return not writer_id and (object_id >= state.counters["object"] or object_id in prepared)
        if writer.node_epoch + EPOCHS_SKIPPED <= state.nodes.get(writer.node_id, 0):
            return False
        return not any(wal.node_id == writer.node_id and wal.node_epoch >= writer.node_epoch for wal in given_up)

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


def select_uploads(writers: Mapping[int, str]) -> set[int]:
    """Select all uploads: one that is not used is looked at, so that none is deleted whose records are not dead."""
    return {object_id for object_id, writer_id in writers.items() if parse_upload_writer(writer_id) is not None}


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
        self._prepared = frozenset(state.prepared)
        self._plan = RebuildPlan()

    def plan(self, streams_in_log: Iterable[int]) -> RebuildPlan:
        plan = self._plan
        listed = {object_id for ids in self._state.committed.values() for object_id in ids}
        plan.missing = sorted(listed - self._listed)
        wanted = self._listed | {key for key in self._later if self._is_recent(key)}
        plan.damaged = [each for each in self._unreadable if each.object_id in wanted]
        committed = self._committed_pieces()
        uploads = self._pieces_of(self._later)
        for info in self._state.streams:
            self._add(info.stream_id, info.start_offset, info.end_offset, committed, uploads, info.node_id)
        known = {info.stream_id for info in self._state.streams}
        fresh = {key for key in (*uploads, *streams_in_log) if key >= self._state.counters["stream"]} - known
        for stream_id in sorted(fresh):
            first = min((piece.start_offset for piece in uploads.get(stream_id, ())), default=0)
            plan.new_streams.append(stream_id)
            self._add(stream_id, first, first, committed, uploads)
        self._note_skipped()
        self._note_replaced()
        return plan

    def _pieces_of(self, object_ids: AbstractSet[int]) -> dict[int, list[StoredRun]]:
        """Return the runs in objects, by stream."""
        pieces: dict[int, list[StoredRun]] = defaultdict(list)
        for object_id in object_ids & self._objects.keys():
            for span in self._objects[object_id].ranges:
                pieces[span.stream_id].append(_piece_of(span, object_id))
        return pieces

    def _committed_pieces(self) -> dict[int, list[StoredRun]]:
        pieces = self._pieces_of(self._listed)
        for each in self._state.borrowed:
            if each.object_id in self._objects:
                pieces[each.stream_id].append(
                    StoredRun(each.stream_id, each.start_offset, each.end_offset, each.object_id, each.source_stream_id)
                )
        return pieces

    def _add(
        self,
        stream_id: int,
        start_offset: int,
        end_offset: int,
        committed: Mapping[int, Sequence[StoredRun]],
        uploads: Mapping[int, Sequence[StoredRun]],
        owner: int = NOBODY,
    ) -> None:
        pieces, gaps = cover(committed.get(stream_id, ()), start_offset, end_offset)
        self._plan.gaps += [Gap(stream_id, *gap) for gap in gaps]
        if gaps:
            # The data past the gap is newer, and the log continues it.
            start_offset = gaps[-1][1]
            pieces = [piece for piece in pieces if piece.start_offset >= start_offset]
        later = [each for each in uploads.get(stream_id, ()) if not self._is_given_up(each, owner)]
        pieces += self._continue(later, end_offset)
        end_offset = pieces[-1].end_offset if pieces else end_offset
        self._plan.chains[stream_id] = StreamChain(stream_id, start_offset, end_offset, pieces)

    def _is_given_up(self, piece: StoredRun, owner: int) -> bool:
        """Return whether the stream was taken from the node that has uploaded this, and not from its log.

        An earlier life of the node wrote it, without a commit, and another node has the stream. From a log that was
        recovered all is committed, and the tail of a stream that moved is in the log of its owner.
        """
        writer = self._writer(piece.object_id)
        is_of_before = writer.node_epoch < self._state.nodes.get(writer.node_id, 0)
        return is_of_before and owner not in (NOBODY, writer.node_id)

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
        for object_id in self._objects.keys() - used:
            why = SkipReason.DEAD
            if parse_upload_writer(self._objects[object_id].writer_id) is not None:
                if object_id not in self._listed and not self._is_dead(object_id):
                    why = SkipReason.UNCOMMITTED
            elif self._is_recent(object_id):
                why = SkipReason.COMPACTED
            self._plan.skipped[object_id] = why

    def _is_recent(self, object_id: int) -> bool:
        """Return whether an object was not committed yet when the manifest was written."""
        return object_id >= self._state.counters["object"] or object_id in self._prepared

    def _is_dead(self, object_id: int) -> bool:
        """Return whether all records of an upload are trimmed, deleted, or in outputs of compaction that are used."""
        for span in self._objects[object_id].ranges:
            chain = self._plan.chains.get(span.stream_id)
            if chain is None:
                if span.stream_id >= self._state.counters["stream"]:
                    return False  # of a stream that the manifest does not know
                continue
            outputs = [
                piece for piece in chain.pieces if parse_upload_writer(self._objects[piece.object_id].writer_id) is None
            ]
            start = max(span.start_offset, chain.start_offset)
            if start < span.end_offset and cover(outputs, start, span.end_offset)[1]:
                return False
        return True

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
