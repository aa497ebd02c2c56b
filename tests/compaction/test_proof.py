"""The proof before the commit refuses every commit that loses, duplicates or invents data."""

import pytest

from anabranch.compaction.proof import BlockTotals, CoverageError, prove_coverage, prove_totals
from anabranch.s3stream.model import NewObject, ObjectKind, StreamRange


def span(stream: int, start: int, end: int) -> StreamRange:
    return StreamRange(stream, start, end, end - start, end - start, 0)


def output(*ranges: StreamRange) -> NewObject:
    return NewObject(1, ObjectKind.SSO, 100, list(ranges))


LIVE = [span(1, 0, 10), span(1, 10, 20), span(1, 50, 60), span(2, 5, 9)]
STARTS = {1: 0, 2: 5}


@pytest.mark.parametrize(
    "outputs",
    [
        [output(span(1, 0, 20), span(1, 50, 60), span(2, 5, 9))],
        [output(span(2, 5, 9)), output(span(1, 50, 60)), output(span(1, 0, 13)), output(span(1, 13, 20))],
        [output(span(1, 0, 20), span(1, 50, 60), span(2, 0, 9)), output(span(3, 0, 1))],  # before the start, gone
    ],
)
def test_complete_outputs_pass(outputs: list[NewObject]) -> None:
    prove_coverage(LIVE, outputs, STARTS)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([output(span(1, 0, 20), span(2, 5, 9))], r"stream 1: expected \[\(0, 20\), \(50, 60\)\]"),
        ([output(span(1, 0, 20), span(1, 50, 60))], "stream 2"),
        ([output(span(1, 0, 20), span(1, 50, 59), span(2, 5, 9))], "stream 1"),
        ([output(span(1, 1, 20), span(1, 50, 60), span(2, 5, 9))], "stream 1"),
        ([output(span(1, 0, 20), span(1, 50, 61), span(2, 5, 9))], "stream 1"),
        ([output(span(1, 0, 60), span(2, 5, 9))], "stream 1"),
        ([output(span(1, 0, 20), span(1, 19, 20), span(1, 50, 60), span(2, 5, 9))], "twice"),
        ([output(span(1, 0, 20), span(1, 50, 60), span(2, 5, 9)), output(span(2, 5, 9))], "twice"),
    ],
)
def test_incomplete_outputs_are_refused(outputs: list[NewObject], message: str) -> None:
    with pytest.raises(CoverageError, match=message):
        prove_coverage(LIVE, outputs, STARTS)


def test_inputs_that_overlap_are_refused() -> None:
    with pytest.raises(CoverageError, match="inputs hold offsets"):
        prove_coverage([*LIVE, span(1, 15, 16)], [output(span(1, 0, 20))], STARTS)


def test_offsets_beyond_31_bits() -> None:
    far = span(1, 1 << 40, 1 << 62)
    prove_coverage([far], [output(span(1, 1 << 40, 1 << 41), span(1, 1 << 41, 1 << 62))], {1: 0})
    with pytest.raises(CoverageError):
        prove_coverage([far], [output(span(1, 1 << 40, (1 << 62) - 1))], {1: 0})


def test_totals() -> None:
    prove_totals(BlockTotals(10, 100, 1000), BlockTotals(10, 100, 1000), 16)
    prove_totals(BlockTotals(10, 100, 1000), BlockTotals(7, 100, 952), 16)
    for wrong in (
        BlockTotals(10, 99, 1000),
        BlockTotals(7, 100, 1000),
        BlockTotals(10, 100, 984),
        BlockTotals(11, 100, 1016),
    ):
        with pytest.raises(CoverageError, match="in the outputs, found"):
            prove_totals(BlockTotals(10, 100, 1000), wrong, 16)
