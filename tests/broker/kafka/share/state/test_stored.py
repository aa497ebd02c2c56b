"""The state of one share partition: fences, snapshots, and what never falls."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.share.interface import DeliveryState, InitialState, ShareSummary, StateBatch
from anabranch.broker.kafka.share.state import stored
from anabranch.broker.kafka.share.state.stored import Change, StateWrite, StoredState, Update
from anabranch.protocol.errors import ErrorCode, KafkaError

LIMIT = 3
NOW_MS = 1_700_000_000_000


def changed(change: Change | None) -> StoredState:
    assert change is not None
    return change.state


def begun(state_epoch: int = 5, start_offset: int = 10, leader_epoch: int = 2) -> StoredState:
    """A state that a leader has read."""
    state = changed(stored.initialize(None, InitialState(state_epoch, start_offset), LIMIT, NOW_MS))
    return changed(stored.read(state, leader_epoch, LIMIT, NOW_MS))


def a_write(
    start_offset: int = 10, count: int = 0, *batches: StateBatch, state_epoch: int = 5, leader_epoch: int = 2
) -> StateWrite:
    return StateWrite(state_epoch, leader_epoch, start_offset, count, batches)


def test_a_state_begins_with_a_snapshot() -> None:
    change = stored.initialize(None, InitialState(5, -1), LIMIT, NOW_MS)
    assert change is not None
    assert isinstance(change.record, StoredState)
    assert change.state.summary == ShareSummary(5, 0, -1, -1)
    assert stored.initialize(None, InitialState(5, 7), LIMIT, NOW_MS).state.summary.delivery_complete_count == 0  # type: ignore[union-attr]


def test_a_state_epoch_begins_once() -> None:
    state = changed(stored.write(begun(), a_write(20), LIMIT, NOW_MS))
    assert stored.initialize(state, InitialState(5, 10), LIMIT, NOW_MS) is None, "the delayed copy of a request"
    with pytest.raises(KafkaError) as refused:
        stored.initialize(state, InitialState(4, 10), LIMIT, NOW_MS)
    assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH
    anew = changed(stored.initialize(state, InitialState(6, 3), LIMIT, NOW_MS))
    assert (anew.summary, anew.batches) == (ShareSummary(6, 0, 3, 0), ())
    assert anew.snapshot_epoch == state.snapshot_epoch + 1


@pytest.mark.parametrize("anew", [False, True])
def test_a_leader_that_has_read_shuts_out_earlier_ones(*, anew: bool) -> None:
    state = begun(leader_epoch=2)
    if anew:
        state = changed(stored.initialize(state, InitialState(5 + 1, 0), LIMIT, NOW_MS))
    with pytest.raises(KafkaError, match="FENCED_LEADER_EPOCH"):
        stored.write(state, a_write(state_epoch=6, leader_epoch=1), LIMIT, NOW_MS)
    with pytest.raises(KafkaError, match="FENCED_LEADER_EPOCH"):
        stored.read(state, 1, LIMIT, NOW_MS)
    assert stored.read(state, 2, LIMIT, NOW_MS) is None, "nothing to record"
    later = changed(stored.read(state, 7, LIMIT, NOW_MS))
    assert (later.leader_epoch, later.as_read) == (7, state.as_read)


def test_a_write_of_an_earlier_state_epoch_is_refused() -> None:
    with pytest.raises(KafkaError) as refused:
        stored.write(begun(), a_write(state_epoch=4), LIMIT, NOW_MS)
    assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH


@pytest.mark.parametrize(
    ("start_offset", "count", "expected"),
    [(10, 2, (10, 4)), (10, 6, (10, 6)), (5, 9, (10, 4)), (20, 1, (20, 1)), (10, -1, (10, 4)), (-1, 9, (10, 4))],
)
def test_the_start_offset_and_its_count_never_fall(start_offset: int, count: int, expected: tuple[int, int]) -> None:
    state = changed(stored.write(begun(), a_write(10, 4), LIMIT, NOW_MS))
    for limit in (LIMIT, 0):
        after = changed(stored.write(state, a_write(start_offset, count), limit, NOW_MS))
        assert (after.start_offset, after.delivery_complete_count) == expected


def test_a_write_does_not_change_the_leader_epoch() -> None:
    assert changed(stored.write(begun(leader_epoch=2), a_write(leader_epoch=9), LIMIT, NOW_MS)).leader_epoch == 2


def test_every_few_updates_there_is_a_snapshot() -> None:
    state = begun()  # the read was the first update
    kinds = []
    for offset in range(10, 20):
        batch = StateBatch(offset, offset, DeliveryState.ACKNOWLEDGED, 1)
        change = stored.write(state, a_write(10, 0, batch), LIMIT, NOW_MS + offset)
        kinds.append(type(change.record))
        state = change.state
        assert state.batches == (StateBatch(10, offset, DeliveryState.ACKNOWLEDGED, 1),)
    update, snapshot = Update, StoredState
    assert kinds == [update, update, snapshot, update, update, update, snapshot, update, update, update]
    assert (state.snapshot_epoch, state.write_ms) == (2, NOW_MS + 16)


requests = st.lists(
    st.one_of(
        st.builds(InitialState, st.integers(0, 6), st.integers(-1, 30)),
        st.integers(0, 5),
        st.builds(
            lambda epoch, leader, start, count, first, length, state: StateWrite(
                epoch, leader, start, count, [StateBatch(first, first + length, state, 1)]
            ),
            st.integers(0, 6),
            st.integers(0, 5),
            st.integers(-1, 30),
            st.integers(-1, 9),
            st.integers(0, 30),
            st.integers(0, 5),
            st.sampled_from([0, 2, 4]),
        ),
    ),
    max_size=20,
)


@given(requests, st.integers(0, 3))
def test_replay_of_the_records_gives_the_state(wanted: list[object], limit: int) -> None:
    state: StoredState | None = None
    replayed: StoredState | None = None
    for each in wanted:
        try:
            match each:
                case InitialState():
                    change = stored.initialize(state, each, limit, NOW_MS)
                case StateWrite() if state is not None:
                    change = stored.write(state, each, limit, NOW_MS)
                case int() if state is not None:
                    change = stored.read(state, each, limit, NOW_MS)
                case _:
                    continue
        except KafkaError:
            continue
        if change is None:
            continue
        before, state = state, change.state
        if isinstance(change.record, Update):
            replayed = stored.with_update(replayed, change.record)
        else:
            bare = replace(change.record, leader_fence=0, updates=0)  # as records have it
            replayed = stored.with_snapshot(replayed, bare, limit)
        assert replayed == state
        if before is not None:
            assert state.leader_fence >= before.leader_fence
            assert (state.state_epoch, state.start_offset) >= (before.state_epoch, before.start_offset)


def test_a_rewritten_log_keeps_the_fence() -> None:
    state = changed(stored.initialize(begun(leader_epoch=2), InitialState(6, 0), LIMIT, NOW_MS))
    assert stored.with_snapshot(None, replace(state.kept, leader_fence=0), LIMIT).leader_fence == 2
