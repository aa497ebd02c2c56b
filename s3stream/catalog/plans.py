"""Plans the changes of a commit, or refuses it: data in, plan out, no database.

`plan_upload` checks invariant 3 (a range begins exactly where its stream ends) and the stream fence; `plan_compaction`
proves that no live offset of the inputs is lost, duplicated or added. Data that died meanwhile (a deleted stream,
offsets before a trimmed start) is left out of the plan without an error; an object without live data is destroyed.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from anabranch.s3stream.catalog.values import CompactionCommit, UploadCommit
from anabranch.s3stream.errors import CatalogError, NotFound, StreamFenced, StreamNotFound
from anabranch.s3stream.model import NewObject, ObjectInfo, ObjectKind, ObjectState, StreamRange

Interval: TypeAlias = tuple[int, int]


class CommittedStream(NamedTuple):
    """The facts about a stream that a plan needs."""

    epoch: int
    start_offset: int
    end_offset: int
    peak_timestamp_ms: int


class NewRange(NamedTuple):
    """A row to insert: a live range, its object, and the largest timestamp of the stream up to its end."""

    object_id: int
    kind: ObjectKind
    range: StreamRange
    peak_timestamp_ms: int


class LiveRange(NamedTuple):
    """A live range that the catalog has."""

    object_id: int
    range: StreamRange
    peak_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """Rows that a commit inserts, and its objects without live data. Sizes of objects are in the commit itself."""

    ranges: Sequence[NewRange]
    dead_objects: frozenset[int]
    ends: Mapping[int, CommittedStream]
    """Streams that grow, with their state after the commit."""
    snapshots: Mapping[int, bytes]


def is_repeat(objects: Iterable[NewObject], found: Mapping[int, ObjectInfo]) -> bool:
    """Return whether every object was committed before. `committed_ms` is kept when an object is destroyed."""
    ids = [item.object_id for item in objects]
    return bool(ids) and all(key in found and found[key].committed_ms > 0 for key in ids)


def check_repeat(commit: UploadCommit, held: Mapping[int, Sequence[StreamRange]]) -> None:
    """Raise CatalogError unless a repeated upload has the same ranges as before, or fewer (trimmed, compacted).

    Ranges of clones that refer to its objects are ignored.
    """
    for item in commit.objects:
        own = {span.stream_id for span in item.ranges}
        if not {span for span in held.get(item.object_id, ()) if span.stream_id in own} <= set(item.ranges):
            raise CatalogError(f"object {item.object_id} was committed before with other ranges")


def plan_upload(
    commit: UploadCommit,
    found: Mapping[int, ObjectInfo],
    streams: Mapping[int, CommittedStream],
    next_stream_id: int,
) -> CommitPlan:
    """Check an upload against the catalog and list its changes.

    `streams` has those of the commit's streams that exist; ids below `next_stream_id` that are missing were deleted.
    """
    states = dict(streams)
    rows: list[NewRange] = []
    for stream_id in {*commit.snapshots, *(r.stream_id for item in commit.objects for r in item.ranges)}:
        if stream_id in streams:
            _check_stream_epoch(stream_id, streams[stream_id].epoch, commit.stream_epochs)
        elif stream_id >= next_stream_id:
            raise StreamNotFound(f"stream {stream_id} never existed: the newest is {next_stream_id - 1}")
    for item in commit.objects:
        _check_object(item, found, commit.node.node_id)
        for span in item.ranges:
            state = states.get(span.stream_id)
            if state is None:
                continue
            if span.start_offset != state.end_offset:
                raise CatalogError(
                    f"stream {span.stream_id}: a range of object {item.object_id} must begin at the stream's end "
                    f"{state.end_offset}, found [{span.start_offset}, {span.end_offset})"
                )
            peak = max(state.peak_timestamp_ms, span.max_timestamp_ms)
            states[span.stream_id] = state._replace(end_offset=span.end_offset, peak_timestamp_ms=peak)
            rows.append(NewRange(item.object_id, item.kind, span, peak))
    return CommitPlan(
        ranges=rows,
        dead_objects=_without_rows(commit.objects, rows),
        ends={key: state for key, state in states.items() if state != streams[key]},
        snapshots={key: value for key, value in commit.snapshots.items() if key in streams},
    )


def plan_compaction(
    commit: CompactionCommit,
    found: Mapping[int, ObjectInfo],
    held: Sequence[LiveRange],
    streams: Mapping[int, CommittedStream],
    next_stream_id: int,
) -> CommitPlan:
    """Prove that the outputs hold every live offset of the inputs once, and list the ranges to insert.

    `found` has inputs and outputs, `held` the live ranges of the inputs by stream and offset. Offsets before a stream's
    start are ignored on both sides: the start may have moved since the compaction read it. For the same reason an input
    may be gone, and then has no live ranges; outputs that still hold its offsets are refused.
    """
    gone = [key for key in commit.inputs if key not in found or found[key].state is ObjectState.DESTROYED]
    for input_id in commit.inputs:
        if input_id not in gone and found[input_id].state is not ObjectState.COMMITTED:
            raise CatalogError(f"compaction: input object {input_id} was never committed")
    inputs: dict[int, list[LiveRange]] = defaultdict(list)
    for row in held:
        inputs[row.range.stream_id].append(row)
    outputs: dict[int, list[tuple[NewObject, StreamRange]]] = defaultdict(list)
    for item in commit.outputs:
        _check_object(item, found, commit.node.node_id)
        for span in item.ranges:
            if commit.streams is not None and span.stream_id not in commit.streams:
                raise CatalogError(f"compaction: stream {span.stream_id} is in an output, but not to be swapped")
            if span.stream_id in streams:
                if span.end_offset > streams[span.stream_id].start_offset:
                    outputs[span.stream_id].append((item, span))
            elif span.stream_id >= next_stream_id:
                raise StreamNotFound(f"stream {span.stream_id} never existed: the newest is {next_stream_id - 1}")
    rows: list[NewRange] = []
    for stream_id in sorted({*inputs, *outputs}):
        spans = sorted(outputs[stream_id], key=lambda pair: pair[1].start_offset)
        start = streams[stream_id].start_offset
        _check_coverage(stream_id, start, inputs[stream_id], [span for _, span in spans], gone)
        rows += [
            NewRange(item.object_id, item.kind, span, _peak_at(span.end_offset, inputs[stream_id]))
            for item, span in spans
        ]
    return CommitPlan(ranges=rows, dead_objects=_without_rows(commit.outputs, rows), ends={}, snapshots={})


def _check_stream_epoch(stream_id: int, epoch: int, shown: Mapping[int, int]) -> None:
    if stream_id not in shown:
        raise CatalogError(f"stream {stream_id}: the commit names no epoch for it")
    if shown[stream_id] != epoch:
        raise StreamFenced(f"stream {stream_id}: the commit's epoch {shown[stream_id]} is not the stream's {epoch}")


def _check_object(item: NewObject, found: Mapping[int, ObjectInfo], node_id: int) -> None:
    """Check that the commit's node prepared the object and that it was not reaped since."""
    info = found.get(item.object_id)
    if info is None:
        raise NotFound(f"object {item.object_id} is unknown: never prepared, or reaped after its deadline")
    if info.state is not ObjectState.PREPARED:
        reaped = info.state is ObjectState.DESTROYED and not info.committed_ms  # expired: it will be unknown soon
        kind = NotFound if reaped else CatalogError
        raise kind(f"object {item.object_id} must be PREPARED to be committed, found {info.state.name}")
    if info.node_id != node_id:
        raise CatalogError(f"object {item.object_id} was prepared by node {info.node_id}, not by node {node_id}")
    if item.size_bytes <= 0 or not item.ranges:
        raise CatalogError(f"object {item.object_id} is empty: {item.size_bytes} bytes, {len(item.ranges)} ranges")
    if item.kind is ObjectKind.SO and len({span.stream_id for span in item.ranges}) != 1:
        raise CatalogError(f"object {item.object_id} is a stream object, but holds several streams")
    for span in item.ranges:
        if not 0 <= span.start_offset < span.end_offset:
            raise CatalogError(
                f"object {item.object_id}: stream {span.stream_id} has the empty range "
                f"[{span.start_offset}, {span.end_offset})"
            )


def _without_rows(objects: Iterable[NewObject], rows: Iterable[NewRange]) -> frozenset[int]:
    return frozenset(item.object_id for item in objects) - {row.object_id for row in rows}


def _check_coverage(
    stream_id: int, start: int, inputs: Sequence[LiveRange], outputs: Sequence[StreamRange], gone: Sequence[int]
) -> None:
    for before, after in pairwise(outputs):
        if after.start_offset < before.end_offset:
            raise CatalogError(
                f"compaction: stream {stream_id}: offsets [{after.start_offset}, {before.end_offset}) "
                "are in two outputs"
            )
    expected = _union(start, (row.range for row in inputs))
    covered = _union(start, outputs)
    if expected != covered:
        lost = f"; input objects {list(gone)} were destroyed meanwhile" if gone else ""
        raise CatalogError(
            f"compaction: stream {stream_id}: live in the inputs {expected}, in the outputs {covered}{lost}"
        )


def _union(start: int, spans: Iterable[StreamRange]) -> list[Interval]:
    """Merge spans, sorted by offset, into maximal intervals, without the offsets before `start`."""
    union: list[Interval] = []
    for span in spans:
        low = max(span.start_offset, start)
        if union and low <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], span.end_offset))
        elif low < span.end_offset:
            union.append((low, span.end_offset))
    return union


def _peak_at(end_offset: int, inputs: Sequence[LiveRange]) -> int:
    """Return the peak of the last input that begins before `end_offset`: a bound that never falls along the stream."""
    return max(row.peak_timestamp_ms for row in inputs if row.range.start_offset < end_offset)
