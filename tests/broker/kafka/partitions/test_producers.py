"""Idempotent producers as pure state, compared with a model that keeps everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.partitions import producers
from anabranch.broker.kafka.partitions.producers import (
    PRODUCERS_MAX,
    SEQUENCE_MAX,
    WINDOW_BATCHES,
    ProducerStates,
    add_sequence,
)
from anabranch.protocol.errors import ErrorCode, KafkaError


def append(states: ProducerStates, sequence: int, count: int, base_offset: int, *, epoch: int = 0) -> None:
    states.update(
        7,
        epoch,
        sequence,
        count,
        base_offset=base_offset,
        end_offset=base_offset + count,
        append_time_ms=-1,
        now_ms=base_offset,
    )


def judge(states: ProducerStates, sequence: int, count: int, *, epoch: int = 0) -> int | str:
    try:
        entry = states.check(7, epoch, sequence, count)
    except KafkaError as error:
        return error.code.name
    return "append" if entry is None else entry.base_offset


def test_an_unknown_producer_may_begin_anywhere() -> None:
    assert judge(ProducerStates(), 41, 3, epoch=9) == "append"


def test_sequences_wrap() -> None:
    states = ProducerStates()
    append(states, SEQUENCE_MAX - 1, 4, 0)
    assert judge(states, 2, 1) == "append"
    assert judge(states, SEQUENCE_MAX - 1, 4) == 0
    assert add_sequence(SEQUENCE_MAX, 1) == 0


def test_same_start_other_length_is_no_duplicate() -> None:
    states = ProducerStates()
    append(states, 0, 4, 0)
    assert judge(states, 0, 3) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.name


def test_a_new_epoch_forgets_the_old_window() -> None:
    states = ProducerStates()
    append(states, 0, 1, 0)
    append(states, 0, 1, 1, epoch=1)
    assert judge(states, 0, 1, epoch=1) == 1
    assert judge(states, 0, 1, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH.name


def test_idle_producers_are_forgotten() -> None:
    states = ProducerStates()
    append(states, 0, 1, 10)
    assert states.expire(10) == 0
    assert states.expire(11) == 1
    assert len(states) == 0


def test_the_number_of_producers_is_bounded() -> None:
    states = ProducerStates()
    for producer_id in range(PRODUCERS_MAX + 1):
        states.update(producer_id, 0, 0, 1, base_offset=0, end_offset=1, append_time_ms=-1, now_ms=producer_id)
    assert len(states) == PRODUCERS_MAX * 9 // 10 + 1
    assert PRODUCERS_MAX // 10 - 1 not in states.entries, "the longest unused are gone"
    assert PRODUCERS_MAX // 10 in states.entries
    assert PRODUCERS_MAX in states.entries


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=30),
    st.integers(0, SEQUENCE_MAX),
    st.sampled_from([0, 2**31 - 3, 2**32 - 3, 2**33]),
)
def test_exactly_the_last_five_are_duplicates(counts: list[int], start: int, begin: int) -> None:
    states = ProducerStates()
    sequence, offset = start, begin
    sent = []
    for count in counts:
        assert judge(states, sequence, count) == "append"
        append(states, sequence, count, offset)
        sent.append((sequence, count, offset))
        sequence, offset = add_sequence(sequence, count), offset + count
    before = states.entries
    states = ProducerStates.decode(b"ahead" + states.encode(), 5)
    assert states.entries == before
    for at, (first, count, base) in enumerate(sent):
        remembered = at >= len(sent) - WINDOW_BATCHES
        assert judge(states, first, count) == (base if remembered else "OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert judge(states, add_sequence(sequence, 1), 1) == "OUT_OF_ORDER_SEQUENCE_NUMBER"


def test_producers_with_an_open_transaction_are_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 10)
    states = ProducerStates()
    states.pinned = {1}
    for producer_id in range(1, 12):
        states.note_epoch(producer_id, 0, producer_id)
    assert 1 in states.entries
    assert 2 not in states.entries
    states.expire(100)
    assert list(states.entries) == [1]
