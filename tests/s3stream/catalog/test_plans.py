"""The pure half of a compaction's commit, over random histories."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.catalog.plans import CommittedStream, LiveRange, plan_compaction
from anabranch.s3stream.catalog.values import CompactionCommit
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import NewObject, NodeIdentity, ObjectInfo, ObjectKind, ObjectState, StreamRange

Bounds = list[tuple[int, int]]


def info(object_id: int, state: ObjectState) -> ObjectInfo:
    return ObjectInfo(object_id, ObjectKind.SO, state, "main", 1, 1, "w", 0, 0)


def spans(bounds: Bounds) -> list[StreamRange]:
    return [StreamRange(5, start, end, end - start, 1, start) for start, end in bounds]


def offsets(bounds: Bounds, start: int) -> list[int]:
    return sorted(offset for low, high in bounds for offset in range(max(low, start), high))


@st.composite
def disjoint(draw: st.DrawFn) -> Bounds:
    cuts = sorted(draw(st.sets(st.integers(0, 14), min_size=2, max_size=8)))
    pieces = list(pairwise(cuts))
    return [piece for piece in pieces if draw(st.booleans())]


def accepted(inputs: Bounds, outputs: Bounds, start: int) -> bool:
    held = [LiveRange(1, span, span.max_timestamp_ms) for span in spans(inputs) if span.end_offset > start]
    new = [NewObject(10 + i, ObjectKind.SO, 1, [span]) for i, span in enumerate(spans(outputs))]
    found = {1: info(1, ObjectState.COMMITTED)} | {o.object_id: info(o.object_id, ObjectState.PREPARED) for o in new}
    commit = CompactionCommit(NodeIdentity(1, 1), [1], new, 0, 0)
    try:
        plan = plan_compaction(commit, found, held, {5: CommittedStream(1, start, 99, 99)}, 6)
    except CatalogError:
        return False
    assert [row.range for row in plan.ranges] == [span for span in spans(outputs) if span.end_offset > start]
    peaks = [row.peak_timestamp_ms for row in plan.ranges]
    assert peaks == sorted(peaks)
    assert all(row.peak_timestamp_ms >= row.range.max_timestamp_ms for row in plan.ranges) or inputs != outputs
    return True


@given(disjoint(), disjoint(), st.integers(0, 12))
def test_a_compaction_is_accepted_exactly_when_live_offsets_are_kept_once(
    inputs: Bounds, outputs: Bounds, start: int
) -> None:
    assert accepted(inputs, outputs, start) == (offsets(inputs, start) == offsets(outputs, start))


@given(disjoint(), st.integers(0, 12), st.data())
def test_any_regrouping_of_adjacent_ranges_is_accepted(inputs: Bounds, start: int, data: st.DataObject) -> None:
    outputs: Bounds = []
    for low, high in inputs:
        if outputs and outputs[-1][1] == low and data.draw(st.booleans()):
            outputs[-1] = (outputs[-1][0], high)
        else:
            outputs.append((low, high))
    assert accepted(inputs, outputs, start)


@given(disjoint(), disjoint())
def test_overlapping_outputs_are_refused(inputs: Bounds, more: Bounds) -> None:
    overlap = set(offsets(inputs, 0)) & set(offsets(more, 0))
    if overlap:
        assert not accepted(inputs, inputs + more, 0)
