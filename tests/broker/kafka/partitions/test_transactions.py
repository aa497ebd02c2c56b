"""Transactions of one partition, compared with a model that reads the whole log."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.partitions import transactions as in_partition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.partitions.transactions import PartitionTransactions
from anabranch.protocol.errors import ErrorCode, KafkaError

BEGINNINGS = (0, 2**31 - 3, 2**32 - 3, 2**33)
"""First offsets of a log: offsets are 64 bit."""


@dataclass(frozen=True)
class Entry:
    """One batch of the log: data or a marker."""

    producer_id: int
    base_offset: int
    end_offset: int
    verdict: bool | None = None
    """Of a marker: whether it commits."""


class TransactionsModel:
    """The log itself."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.log: list[Entry] = []

    @property
    def end_offset(self) -> int:
        return self.log[-1].end_offset if self.log else self.begin

    def transactions(self) -> list[tuple[Entry, Entry | None]]:
        """The first batch of each transaction with its marker."""
        found: list[tuple[Entry, Entry | None]] = []
        for at, entry in enumerate(self.log):
            before = [other for other in self.log[:at] if other.producer_id == entry.producer_id]
            if entry.verdict is None and (not before or before[-1].verdict is not None):
                after = [other for other in self.log[at:] if other.producer_id == entry.producer_id]
                found.append((entry, next((other for other in after if other.verdict is not None), None)))
        return found

    def stable(self, high_watermark: int) -> int:
        undecided = [
            first.base_offset
            for first, marker in self.transactions()
            if marker is None or marker.end_offset > high_watermark
        ]
        return min([high_watermark, *undecided])

    def aborted(self, start: int, end: int) -> set[tuple[int, int]]:
        return {
            (first.producer_id, first.base_offset)
            for first, marker in self.transactions()
            if marker is not None
            and marker.verdict is False
            and marker.base_offset >= start
            and first.base_offset < end
        }


def follow(state: PartitionTransactions, entry: Entry) -> None:
    if entry.verdict is None:
        state.write(entry.producer_id, entry.base_offset, 0)
    else:
        state.end(entry.producer_id, entry.base_offset, 0, aborted=not entry.verdict)


steps = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.sampled_from([None, None, True, False])), max_size=30
)


@given(steps, st.sampled_from(BEGINNINGS), st.integers(0, 30), st.data())
def test_it_agrees_with_the_log(
    steps: list[tuple[int, int, bool | None]], begin: int, restart: int, data: st.DataObject
) -> None:
    model, state = TransactionsModel(begin), PartitionTransactions()
    durable = begin
    for at, (producer_id, count, verdict) in enumerate(steps):
        base = model.end_offset
        entry = Entry(producer_id, base, base + (count if verdict is None else 1), verdict)
        model.log.append(entry)
        follow(state, entry)
        if at == restart:  # all there is was uploaded
            durable = model.end_offset
            before = state
            state, end = PartitionTransactions.decode(b"ahead" + before.encode(), 5)
            assert (state.open, state.aborted) == (before.open, before.aborted)
            assert end == 5 + len(state.encode())
        durable = data.draw(st.sampled_from(sorted({durable, model.end_offset})))
        assert state.last_stable_offset(durable) == model.stable(durable)
        start = data.draw(st.integers(begin, model.end_offset))
        end = data.draw(st.integers(start, model.end_offset))
        found = {(aborted.producer_id, aborted.first_offset) for aborted in state.aborted_between(start, end)}
        assert found == model.aborted(start, end)


def test_aborted_transactions_go_with_the_records() -> None:
    state = PartitionTransactions()
    for producer_id in range(3):
        state.write(producer_id, producer_id * 10, 0)
        state.end(producer_id, producer_id * 10 + 5, 0, aborted=True)
    state.trim(15)
    assert [entry.producer_id for entry in state.aborted_between(0, 100)] == [1, 2]
    state.trim(16)
    assert [entry.producer_id for entry in state.aborted_between(0, 100)] == [2]


def test_a_replaced_coordinator_is_fenced() -> None:
    state = PartitionTransactions()
    state.end(7, 0, 5, aborted=False)
    state.check_marker(7, 5)
    state.check_marker(8, 0)
    with pytest.raises(KafkaError) as refused:
        state.check_marker(7, 4)
    assert refused.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED
    state.keep_producers({8: None})
    state.check_marker(7, 4)


def test_a_marker_ends_the_verifications_of_its_producer() -> None:
    state = PartitionTransactions()
    first, second, of_other = (state.begin_verification(Producer(number, 0)) for number in (7, 7, 8))
    state.end_verification(second)
    assert [state.is_valid(each) for each in (first, second, of_other)] == [True, False, True]
    state.end(7, 0, 0, aborted=False)
    later = state.begin_verification(Producer(7, 0))
    assert [state.is_valid(each) for each in (first, later, of_other)] == [False, True, True]
    assert not PartitionTransactions().is_valid(later), "another leader has not seen it begin"
    for each in (first, later, of_other):
        state.end_verification(each)
        assert not state.is_valid(each)


def test_a_plain_batch_amid_a_transaction_is_refused() -> None:
    state = PartitionTransactions()
    assert not state.check_data(7, transactional=True)
    state.write(7, 0, 0)
    assert state.check_data(7, transactional=True)
    with pytest.raises(KafkaError) as refused:
        state.check_data(7, transactional=False)
    assert refused.value.code is ErrorCode.INVALID_TXN_STATE


def test_too_many_aborted_transactions_stop_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_partition, "ABORTED_MAX", 2)
    state = PartitionTransactions()
    for offset in (0, 2):
        state.write(7, offset, 0)
        state.end(7, offset + 1, 0, aborted=True)
    with pytest.raises(KafkaError) as refused:
        state.check_data(7, transactional=True)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    assert not state.check_data(7, transactional=False)
    state.trim(2)
    assert not state.check_data(7, transactional=True)
