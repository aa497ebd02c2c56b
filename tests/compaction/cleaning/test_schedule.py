"""The time at which streams are cleaned by key: it follows from objects, policies and the clock."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.compaction.cleaning.plan import plan_cleaning
from anabranch.compaction.cleaning.schedule import (
    CleaningNeed,
    CleaningState,
    ClockReadings,
    DueWork,
    assess_stream,
    next_due,
)
from anabranch.compaction.interface import NEVER_MS, CleanPolicy, History, StreamTail
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.model import ObjectInfo, ObjectKind, ObjectState, RangeLocation, StreamInfo, StreamRange

SETTINGS = CompactionSettings()
POLICY = CleanPolicy(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=NEVER_MS, delete_retention_ms=0)
DAY_MS = 86_400_000


def located(
    number: int,
    size_bytes: int = 100,
    *,
    kind: ObjectKind = ObjectKind.SO,
    cleaned: bool = False,
    committed_ms: int = 0,
    newest_ms: int = -1,
) -> RangeLocation:
    """The stream's object with that number: offsets [10 n, 10 n + 10)."""
    span = StreamRange(1, 10 * number, 10 * number + 10, 10, size_bytes, newest_ms)
    state = ObjectState.COMMITTED
    info = ObjectInfo(number, kind, state, "m", size_bytes, 1, "w", 0, committed_ms, committed_ms, cleaned)
    return RangeLocation(span, info)


some_objects = st.lists(
    st.tuples(st.booleans(), st.integers(1, 50), st.integers(0, 60), st.integers(-1, 60), st.booleans()), max_size=6
)
some_policies = st.builds(
    CleanPolicy,
    dirty_ratio_min=st.sampled_from([0.0, 0.01, 0.3, 0.5, 1.0]),
    lag_ms_min=st.integers(0, 30),
    lag_ms_max=st.one_of(st.integers(1, 40), st.just(NEVER_MS)),
    delete_retention_ms=st.just(0),
)


@given(some_objects, some_policies, st.integers(0, 150), st.sets(st.integers(0, 5), max_size=1))
def test_what_is_due_is_what_can_be_planned(
    objects: Sequence[tuple[bool, int, int, int, bool]], policy: CleanPolicy, now_ms: int, missing: set[int]
) -> None:
    locations = [
        located(number, size, cleaned=cleaned, committed_ms=committed_ms, newest_ms=newest_ms)
        for number, (cleaned, size, committed_ms, newest_ms, _) in enumerate(objects)
        if number not in missing
    ]
    info = StreamInfo(1, 1, 1, 0, 1_000, b"")
    plan = plan_cleaning(info, locations, policy, History(1_000), now_ms)
    assert (plan is not None) == (assess_stream(locations, policy, start_offset=0).clean_due_ms <= now_ms)


def test_bytes_and_the_last_cleaning_are_told() -> None:
    ranges = [
        located(0, 70, cleaned=True, committed_ms=5),
        located(1, 20, cleaned=True, committed_ms=9),
        located(2, 10),
        located(3, 20, kind=ObjectKind.SSO, committed_ms=7),
        located(4, 5),
    ]
    policy = replace(POLICY, lag_ms_max=1_000)
    dirt = assess_stream(ranges, policy, start_offset=0)
    assert dirt == CleaningNeed(90, 35, 9, clean_due_ms=1_000, split_due_ms=1_007, shared={3})
    assert dirt.ratio == pytest.approx(0.28)
    assert assess_stream(ranges, policy, start_offset=0, unreadable={3})[4:] == (NEVER_MS, frozenset())
    assert assess_stream(ranges, policy, start_offset=0, unreadable={4}).clean_due_ms == NEVER_MS
    assert assess_stream([], policy, start_offset=0) == CleaningNeed(0, 0, -1, NEVER_MS, NEVER_MS)


@pytest.mark.parametrize(
    ("lag_min", "lag_max", "segment", "ripe"),
    [
        (0, NEVER_MS, 7 * DAY_MS, 7 * DAY_MS),
        (0, 100, 7 * DAY_MS, 100),
        (0, NEVER_MS, 100, 100),
        (500, NEVER_MS, 100, 500),
    ],
)
def test_data_ripens_by_the_first_of_lag_and_segment_but_not_before_it_may_be_cleaned(
    lag_min: int, lag_max: int, segment: int, ripe: int
) -> None:
    assert replace(POLICY, lag_ms_min=lag_min, lag_ms_max=lag_max, segment_ms=segment).cleanable_age_ms == ripe


def agenda(
    policies: Mapping[int, CleanPolicy],
    tails: Mapping[int, StreamTail],
    states: Mapping[int, CleaningState],
    *,
    wall_ms: int = 0,
    steady_ms: int = 0,
    upload_from_ms: int = 0,
) -> DueWork:
    now = ClockReadings(wall_ms, steady_ms)
    return next_due(policies, tails.get, states, now, SETTINGS, upload_from_ms=upload_from_ms)


def state(*, clean_due_ms: int = NEVER_MS, split_due_ms: int = NEVER_MS, dirty_bytes: int = 10) -> CleaningState:
    return CleaningState(POLICY, 100, CleaningNeed(10, dirty_bytes, -1, clean_due_ms, split_due_ms), looked_ms=0)


IDLE = StreamTail(0, 100, -1)


def test_nothing_is_asked_of_streams_that_are_not_open_or_have_not_changed() -> None:
    found = agenda({1: POLICY, 2: POLICY}, {1: IDLE}, {1: state()})
    assert found == DueWork([], [], [], upload=False, wait_ms=SETTINGS.clean_look_ms)


def test_streams_are_looked_at_when_end_or_policy_has_changed_so_many_at_a_time() -> None:
    other = replace(POLICY, dirty_ratio_min=0.1)
    states = {1: state(), 2: state(), 3: state()}
    found = agenda(
        {1: POLICY, 2: other, 3: POLICY, 4: POLICY}, {1: IDLE, 2: IDLE, 3: StreamTail(0, 101, -1), 4: IDLE}, states
    )
    assert found.look == [4, 2, 3]
    count = SETTINGS.clean_looks_max + 50
    looked = {number: replace(state(), committed_offset=-1, looked_ms=number) for number in range(50, count)}
    found = agenda(dict.fromkeys(range(count), POLICY), dict.fromkeys(range(count), IDLE), looked)
    assert found.look == list(range(SETTINGS.clean_looks_max)), "those never looked at first, then the longest ago"


def test_what_is_due_is_done_and_what_will_be_is_waited_for() -> None:
    states = {
        1: state(clean_due_ms=1_000),
        2: state(clean_due_ms=1_000, dirty_bytes=90),
        3: state(split_due_ms=1_000),
        4: state(clean_due_ms=3_500),
    }
    policies, tails = dict.fromkeys(states, POLICY), dict.fromkeys(states, IDLE)
    assert agenda(policies, tails, states, wall_ms=999)[:3] == ([], [], [])
    found = agenda(policies, tails, states, wall_ms=1_000)
    assert found.clean == [2, 1], "the dirtiest first"
    assert found.split == [3]
    assert found.wait_ms == 2_500
    assert agenda(policies, tails, states, wall_ms=3_499).wait_ms == SETTINGS.clean_poll_ms


def test_data_is_uploaded_when_it_has_waited_for_too_long_and_not_too_often() -> None:
    soon = replace(POLICY, lag_ms_max=2_000)
    seen = {1: replace(state(), policy=soon)}
    assert not agenda({1: soon}, {1: StreamTail(0, 100, 1_999)}, seen).upload
    assert agenda({1: soon}, {1: StreamTail(0, 100, 2_000)}, seen).upload
    assert not agenda({1: soon}, {1: StreamTail(0, 100, 2_000)}, seen, steady_ms=499, upload_from_ms=500).upload
    assert agenda({1: soon}, {1: StreamTail(0, 100, 2_000)}, seen, steady_ms=500, upload_from_ms=500).upload
    assert not agenda({1: POLICY}, {1: StreamTail(0, 100, DAY_MS)}, {1: state()}).upload
    assert agenda({1: soon}, {1: IDLE}, seen).wait_ms == 2_000


def test_a_stream_rests_as_long_as_its_cleaning_took() -> None:
    due = state(clean_due_ms=0)
    short = due.after_cleaning(SETTINGS, began_ms=1_000, ended_ms=1_500)
    assert (short.rest_until_ms, short.committed_offset) == (1_000 + SETTINGS.clean_backoff_ms, -1)
    assert due.after_cleaning(SETTINGS, began_ms=0, ended_ms=DAY_MS).rest_until_ms == 2 * DAY_MS
    again = short.seen(POLICY, 100, due.need, 2_000)
    found = agenda({1: POLICY}, {1: IDLE}, {1: again}, steady_ms=15_000)
    assert (found.clean, found.wait_ms) == ([], 1_000)
    assert agenda({1: POLICY}, {1: IDLE}, {1: again}, steady_ms=16_000).clean == [1]


def test_attempts_that_change_nothing_come_less_and_less_often() -> None:
    now_ms, failed, pauses = 0, state(clean_due_ms=0), []
    for _ in range(30):
        failed = failed.after_failure(SETTINGS, ended_ms=now_ms)
        pauses.append(failed.rest_until_ms - now_ms)
        now_ms = failed.rest_until_ms
    assert pauses[:4] == [15_000, 30_000, 60_000, 120_000]
    assert set(pauses[7:]) == {SETTINGS.period_ms}
    assert failed.after_split().failures == failed.after_cleaning(SETTINGS, began_ms=0, ended_ms=0).failures == 0


def test_a_clock_that_is_set_back_holds_up_no_rest() -> None:
    rested = (
        state(clean_due_ms=0)
        .after_cleaning(SETTINGS, began_ms=0, ended_ms=0)
        .seen(POLICY, 100, state(clean_due_ms=0).need, 0)
    )
    found = agenda({1: POLICY}, {1: IDLE}, {1: rested}, wall_ms=5, steady_ms=SETTINGS.clean_backoff_ms)
    assert found.clean == [1]
