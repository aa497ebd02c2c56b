"""Properties of the read plan, and the classes' turns."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.read.io_plan import (
    FAIR_TURN,
    ByteRange,
    Priority,
    choose_priority,
    plan_gets,
    slots_by_priority,
)

blocks = st.lists(st.integers(1, 40), min_size=1, max_size=40).flatmap(
    lambda sizes: st.lists(st.integers(0, len(sizes) - 1), min_size=1, max_size=40).map(
        lambda wanted: [ByteRange(sum(sizes[:at]), sum(sizes[: at + 1])) for at in wanted]
    )
)


@given(blocks, st.integers(0, 30), st.integers(1, 200), st.integers(1, 50), st.integers(0, 8))
def test_pieces_bring_every_span_once_within_the_limits(
    spans: list[ByteRange], gap: int, read_max: int, split_min: int, idle: int
) -> None:
    gets = plan_gets(spans, gap_bytes_max=gap, read_bytes_max=read_max, split_bytes_min=split_min, idle=idle)
    assert sorted(at for piece in gets for at in piece.members) == list(range(len(spans)))
    for piece in gets:
        members = [spans[at] for at in piece.members]
        assert piece.start == min(span.start for span in members)
        assert piece.end == max(span.end for span in members)
        assert piece.end - piece.start <= read_max or len(set(members)) == 1
        covered = sorted(members)
        assert all(
            after.start - max(span.end for span in covered[:at]) <= gap for at, after in enumerate(covered) if at
        )
    ordered = sorted(gets)
    assert all(before.end <= after.start for before, after in pairwise(ordered))


def test_a_run_is_one_get_while_other_work_waits_and_several_when_connections_idle() -> None:
    spans = [ByteRange(at * 100, at * 100 + 100) for at in range(16)]

    def lengths(idle: int) -> list[int]:
        gets = plan_gets(spans, gap_bytes_max=0, read_bytes_max=1600, split_bytes_min=200, idle=idle)
        return [piece.end - piece.start for piece in gets]

    assert lengths(1) == [1600]
    assert lengths(4) == [400] * 4
    assert lengths(100) == [200] * 8


def test_tail_goes_first_lower_classes_leave_slots_free_and_nobody_starves() -> None:
    limits = slots_by_priority(16)
    everyone = set(Priority)
    turns = [choose_priority(everyone, {}, limits, turn) for turn in range(FAIR_TURN)]
    assert turns == [Priority.TAIL] * (FAIR_TURN - 1) + [Priority.COMPACTION]
    assert choose_priority({Priority.CATCH_UP}, {Priority.CATCH_UP: limits[Priority.CATCH_UP]}, limits, 0) is None
    assert limits[Priority.CATCH_UP] < limits[Priority.TAIL] == 16
    assert choose_priority(set(), {}, limits, 0) is None
