"""The state machine: its table, Kafka's rules step by step, and random histories of a producer with zombies."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions import state_machine
from anabranch.broker.kafka.transactions.records import parse_record, transaction_record
from anabranch.broker.kafka.transactions.state_machine import (
    EPOCH_LAST,
    EPOCH_MAX,
    VERSION_1,
    VERSION_2,
    ProducerIdNeeded,
    Transaction,
)
from anabranch.broker.kafka.transactions.state_table import BY_LABEL, TABLE, TransactionEvent, TransactionStatus
from anabranch.protocol.errors import ErrorCode, KafkaError, MalformedMessage

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
S = TransactionStatus
LIVE = [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_COMMIT, S.COMPLETE_ABORT]


def state_in(status: TransactionStatus, *, epoch: int = 5, version: int = VERSION_1) -> Transaction:
    partitions = frozenset({T0}) if status in {S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT} else frozenset()
    return Transaction("id", 7, epoch, 1000, status, partitions, 100, 100, client_version=version)


def code(refused: "pytest.ExceptionInfo[KafkaError]") -> ErrorCode:
    return refused.value.code


def end(state: Transaction, *, commit: bool, version: int, epoch: int | None = None) -> str:
    """The next status, "done" or the error."""
    producer = Producer(state.producer_id, state.epoch if epoch is None else epoch)
    try:
        after = state_machine.end(state, producer, commit=commit, version=version, now_ms=200)
    except KafkaError as error:
        return error.code.name
    return "done" if after is None else after.status.name


def test_labels_are_kafkas() -> None:
    assert set(BY_LABEL) == {
        "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead",
        "PrepareEpochFence",
    }  # fmt: skip


def test_the_table_knows_every_live_state_for_what_clients_ask() -> None:
    for event in (TransactionEvent.INIT, TransactionEvent.ADD, TransactionEvent.COMMIT, TransactionEvent.ABORT):
        assert set(TABLE[event]) == set(LIVE)


@pytest.mark.parametrize(
    ("status", "commit", "abort"),
    [
        (S.EMPTY, "INVALID_TXN_STATE", "INVALID_TXN_STATE"),
        (S.ONGOING, "PREPARE_COMMIT", "PREPARE_ABORT"),
        (S.PREPARE_COMMIT, "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
        (S.PREPARE_ABORT, "CONCURRENT_TRANSACTIONS", "CONCURRENT_TRANSACTIONS"),
        (S.COMPLETE_COMMIT, "done", "INVALID_TXN_STATE"),
        (S.COMPLETE_ABORT, "INVALID_TXN_STATE", "done"),
    ],
)
def test_ending_in_version_1(status: TransactionStatus, commit: str, abort: str) -> None:
    state = state_in(status)
    assert end(state, commit=True, version=VERSION_1) == commit
    assert end(state, commit=False, version=VERSION_1) == abort
    assert end(state, commit=True, version=VERSION_1, epoch=4) == "PRODUCER_FENCED"
    assert end(state, commit=True, version=VERSION_1, epoch=6) == "PRODUCER_FENCED"


@pytest.mark.parametrize(
    ("status", "commit", "abort", "retried_commit", "retried_abort"),
    [
        (S.EMPTY, "INVALID_TXN_STATE", "PREPARE_ABORT", "PRODUCER_FENCED", "PRODUCER_FENCED"),
        (S.ONGOING, "PREPARE_COMMIT", "PREPARE_ABORT", "PRODUCER_FENCED", "PRODUCER_FENCED"),
        (S.COMPLETE_COMMIT, "INVALID_TXN_STATE", "PREPARE_ABORT", "done", "INVALID_TXN_STATE"),
        (S.COMPLETE_ABORT, "INVALID_TXN_STATE", "PREPARE_ABORT", "INVALID_TXN_STATE", "done"),
    ],
)
def test_ending_in_version_2(
    status: TransactionStatus, commit: str, abort: str, retried_commit: str, retried_abort: str
) -> None:
    state = state_in(status, version=VERSION_2)
    assert end(state, commit=True, version=VERSION_2) == commit
    assert end(state, commit=False, version=VERSION_2) == abort
    assert end(state, commit=True, version=VERSION_2, epoch=4) == retried_commit
    assert end(state, commit=False, version=VERSION_2, epoch=4) == retried_abort
    assert end(state, commit=True, version=VERSION_2, epoch=3) == "PRODUCER_FENCED"


@pytest.mark.parametrize("status", [S.PREPARE_COMMIT, S.PREPARE_ABORT])
@pytest.mark.parametrize("asking", [Producer(7, 5), Producer(7, 4), Producer(7, 6), Producer(8, 0), Producer(9, 9)])
def test_nobody_is_judged_while_a_decision_is_carried_out(status: TransactionStatus, asking: Producer) -> None:
    """Whoever has the answer to EndTxn has the next epoch, or the next producer id, which the state does not show."""
    state = replace(state_in(status, version=VERSION_2), next_producer_id=8)
    steps: list[Callable[[], object]] = [
        lambda: state_machine.init(state, asking, 1000, 0),
        lambda: state_machine.add(state, asking, [T1], VERSION_1, 0),
        lambda: state_machine.add(state, asking, [T1], VERSION_2, 0),
        lambda: state_machine.end(state, asking, commit=True, version=VERSION_2, now_ms=0),
        lambda: state_machine.end(state, asking, commit=False, version=VERSION_2, now_ms=0),
    ]
    for step in steps:
        with pytest.raises(KafkaError) as refused:
            step()
        assert code(refused) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_another_producer_id_is_no_match() -> None:
    for version in (VERSION_1, VERSION_2):
        with pytest.raises(KafkaError) as refused:
            state_machine.end(state_in(S.ONGOING), Producer(8, 5), commit=True, version=version, now_ms=0)
        assert code(refused) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_version_2_raises_the_epoch_with_each_end() -> None:
    prepared = state_machine.end(state_in(S.ONGOING), Producer(7, 5), commit=True, version=VERSION_2, now_ms=200)
    assert prepared is not None
    assert (prepared.epoch, prepared.producer, prepared.partitions) == (6, Producer(7, 6), frozenset({T0}))
    done = state_machine.complete(prepared, 300)
    assert (done.status, done.epoch, done.partitions, done.update_ms) == (S.COMPLETE_COMMIT, 6, frozenset(), 300)


def test_version_2_takes_a_new_producer_id_when_the_epochs_are_used_up() -> None:
    last = state_in(S.ONGOING, epoch=EPOCH_LAST, version=VERSION_2)
    producer = Producer(7, EPOCH_LAST)
    with pytest.raises(ProducerIdNeeded):
        state_machine.end(last, producer, commit=True, version=VERSION_2, now_ms=0)
    prepared = state_machine.end(last, producer, commit=True, version=VERSION_2, now_ms=0, new_producer_id=9)
    assert prepared is not None
    assert (prepared.producer_id, prepared.epoch, prepared.producer) == (7, EPOCH_MAX, Producer(9, 0))
    done = state_machine.complete(prepared, 0)
    assert (done.producer, done.previous_producer_id) == (Producer(9, 0), 7)
    assert state_machine.end(done, producer, commit=True, version=VERSION_2, now_ms=0) is None, "a retry"


def test_a_new_life_gets_the_next_epoch_and_at_the_end_a_new_id() -> None:
    state = state_machine.begin("id", 7, 1000, 0)
    state = state_machine.init(state, None, 2000, 10)
    assert (state.producer, state.timeout_ms, state.status) == (Producer(7, 0), 2000, S.EMPTY)
    assert state_machine.init(state, None, 1000, 20).producer == Producer(7, 1)
    last = state_in(S.COMPLETE_ABORT, epoch=EPOCH_LAST)
    with pytest.raises(ProducerIdNeeded):
        state_machine.init(last, None, 1000, 0)
    assert state_machine.init(last, None, 1000, 0, 9).producer == Producer(9, 0)
    for status in (S.PREPARE_COMMIT, S.PREPARE_ABORT):
        with pytest.raises(KafkaError) as refused:
            state_machine.init(state_in(status), None, 1000, 0)
        assert code(refused) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_a_producer_that_recovers_keeps_its_place_and_a_zombie_does_not() -> None:
    state = state_in(S.COMPLETE_ABORT)
    bumped = state_machine.init(state, Producer(7, 5), 1000, 0)
    assert bumped.producer == Producer(7, 6)
    assert state_machine.init(bumped, Producer(7, 5), 1000, 0).producer == Producer(7, 6), "its answer was lost"
    for zombie in (Producer(7, 4), Producer(8, 6)):
        with pytest.raises(KafkaError) as refused:
            state_machine.init(bumped, zombie, 1000, 0)
        assert code(refused) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
def test_a_producer_whose_transaction_the_coordinator_aborted_goes_on(version: int) -> None:
    fenced = state_machine.fence(state_in(S.ONGOING, version=version), 0)
    assert fenced == state_machine.init(state_in(S.ONGOING, version=version), None, 1000, 0)
    assert (fenced.producer, fenced.status, fenced.client_version) == (Producer(7, 6), S.PREPARE_ABORT, VERSION_2)
    done = state_machine.complete(fenced, 0)
    assert end(done, commit=False, version=VERSION_2, epoch=5) == "done", "a late abort"
    assert end(done, commit=True, version=VERSION_2, epoch=5) == "INVALID_TXN_STATE", "a late commit"
    assert end(done, commit=False, version=VERSION_1, epoch=5) == "PRODUCER_FENCED"
    assert state_machine.init(done, Producer(7, 5), 1000, 0).producer == Producer(7, 6), "the recovery of KIP-360"
    for status in (S.COMPLETE_ABORT, S.EMPTY, S.ONGOING):  # and whatever comes next
        with pytest.raises(KafkaError) as refused:
            state_machine.add(replace(done, status=status), Producer(7, 5), [T0], version, 0)
        assert code(refused) is ErrorCode.PRODUCER_FENCED, "what it still writes to the aborted transaction"


def test_a_successor_fences_the_producer_whose_transaction_it_aborted() -> None:
    aborted = state_machine.complete(state_machine.init(state_in(S.ONGOING, version=VERSION_2), None, 1000, 0), 0)
    after = state_machine.init(aborted, None, 1000, 0)
    assert after.producer == Producer(7, 7)
    for zombie in (5, 6):  # 6 if it has aborted before its successor got an epoch
        assert end(after, commit=False, version=VERSION_2, epoch=zombie) == "PRODUCER_FENCED"
        with pytest.raises(KafkaError) as refused:
            state_machine.init(after, Producer(7, zombie), 1000, 0)
        assert code(refused) is ErrorCode.PRODUCER_FENCED


def test_the_coordinators_abort_takes_a_new_producer_id_when_the_epochs_are_used_up() -> None:
    last = state_in(S.ONGOING, epoch=EPOCH_LAST, version=VERSION_2)
    with pytest.raises(ProducerIdNeeded):
        state_machine.fence(last, 0)
    done = state_machine.complete(state_machine.fence(last, 0, 9), 0)
    assert (done.producer, done.previous_producer_id) == (Producer(9, 0), 7)
    late = state_machine.end(done, Producer(7, EPOCH_LAST), commit=False, version=VERSION_2, now_ms=0)
    assert late is None, "a retry"
    ongoing = state_machine.add(done, Producer(9, 0), [T0], VERSION_2, 0)
    assert ongoing is not None
    forgotten: list[Callable[[], object]] = [
        lambda: state_machine.init(ongoing, Producer(7, EPOCH_LAST), 1000, 0),
        lambda: state_machine.end(ongoing, Producer(7, EPOCH_LAST), commit=False, version=VERSION_2, now_ms=0),
    ]
    for step in forgotten:
        with pytest.raises(KafkaError):
            step()  # the id before is forgotten with the next transaction


def test_no_transaction_begins_with_the_epoch_that_only_fences() -> None:
    """No marker could end it. Logs of older nodes may contain the epoch."""
    with pytest.raises(KafkaError) as refused:
        state_machine.add(state_in(S.COMPLETE_ABORT, epoch=EPOCH_MAX), Producer(7, EPOCH_MAX), [T0], VERSION_2, 0)
    assert code(refused) is ErrorCode.PRODUCER_FENCED


def test_adding() -> None:
    state = state_in(S.EMPTY)
    ongoing = state_machine.add(state, Producer(7, 5), [T0], VERSION_2, 500)
    assert ongoing is not None
    assert (ongoing.status, ongoing.partitions, ongoing.start_ms) == (S.ONGOING, frozenset({T0}), 500)
    assert state_machine.add(ongoing, Producer(7, 5), [T0], VERSION_2, 600) is None
    grown = state_machine.add(ongoing, Producer(7, 5), [T1], VERSION_2, 600)
    assert grown is not None
    assert (grown.partitions, grown.start_ms) == (frozenset({T0, T1}), 500)
    state_machine.verify(grown, Producer(7, 5), T1)
    for producer, where, expected in (
        (Producer(7, 5), TopicPartition("t", 9), ErrorCode.TRANSACTION_ABORTABLE),
        (Producer(7, 4), T0, ErrorCode.PRODUCER_FENCED),
        (Producer(8, 5), T0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ):
        with pytest.raises(KafkaError) as refused:
            state_machine.verify(grown, producer, where)
        assert code(refused) is expected
    with pytest.raises(KafkaError) as refused:
        state_machine.verify(state_in(S.PREPARE_COMMIT), Producer(7, 5), T0)
    assert code(refused) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_time() -> None:
    state = state_in(S.ONGOING)
    assert not state_machine.is_timed_out(state, 1100)
    assert state_machine.is_timed_out(state, 1101)
    assert not state_machine.is_timed_out(state_in(S.PREPARE_COMMIT), 10_000)
    assert state_machine.is_expired(state_in(S.COMPLETE_ABORT), 100 + 50, 50)
    assert not state_machine.is_expired(state_in(S.COMPLETE_ABORT), 100 + 49, 50)
    assert not state_machine.is_expired(state, 10**9, 50)


@pytest.mark.parametrize("status", LIVE)
def test_records_bring_the_state_back(status: TransactionStatus) -> None:
    state = replace(state_in(status, version=VERSION_2), previous_producer_id=3, next_producer_id=9)
    assert parse_record(transaction_record("id", state)) == ("id", state)
    assert parse_record(transaction_record("id", None)) == ("id", None)


def test_damaged_records_are_told() -> None:
    record = transaction_record("id", state_in(S.EMPTY))
    with pytest.raises(MalformedMessage, match="version 1, expected 0"):
        parse_record(KeyValue(b"\0\1" + record.key[2:], record.value))
    assert record.value is not None
    # version, producer id, epoch, timeout; then the status
    with pytest.raises(MalformedMessage, match="status 77"):
        parse_record(KeyValue(record.key, record.value[:16] + b"\x4d" + record.value[17:]))


ASKED = st.sampled_from(["init", "add", "commit", "abort", "marked", "timeout", "zombie"])


@given(st.lists(ASKED, max_size=60), st.sampled_from([VERSION_1, VERSION_2]), st.integers(0, EPOCH_LAST))
def test_a_decision_stands_and_zombies_never_decide(asked: list[str], version: int, epoch: int) -> None:
    """For any input, Prepare is followed only by its own Complete, and (id, epoch) never goes back."""
    state = state_machine.init(state_machine.begin("id", 1, 1000, 0), None, 1000, 0)
    state = replace(state, epoch=epoch)
    producer = state.producer
    zombies: list[Producer] = []
    ids = iter(range(2, 1000))
    for what in asked:
        before = state
        try:
            if what == "init":
                state = state_machine.init(state, None, 1000, 0, next(ids))
                if state.status is S.EMPTY:
                    zombies.append(producer)
                    producer = state.producer
            elif what == "add":
                state = state_machine.add(state, producer, [T0], version, 0) or state
            elif what in {"commit", "abort"}:
                commit = what == "commit"
                after = state_machine.end(
                    state, producer, commit=commit, version=version, now_ms=0, new_producer_id=next(ids)
                )
                state = after or state
                producer = state.producer
            elif what == "marked" and state.status in {S.PREPARE_COMMIT, S.PREPARE_ABORT}:
                state = state_machine.complete(state, 0)
            elif what == "timeout" and state_machine.is_timed_out(state, 10_000):
                zombies.append(producer)
                state = state_machine.fence(state, 0, next(ids))
            elif what == "zombie" and zombies:
                zombie = zombies[-1]
                with pytest.raises(KafkaError):
                    state_machine.add(state, zombie, [T1], version, 0)
                if zombie != producer:
                    with pytest.raises(KafkaError):
                        state_machine.end(
                            state, zombie, commit=True, version=version, now_ms=0, new_producer_id=next(ids)
                        )
        except KafkaError:
            assert state is before, "a refusal changes nothing"
        if before.status in {S.PREPARE_COMMIT, S.PREPARE_ABORT} and state is not before:
            committed = before.status is S.PREPARE_COMMIT
            assert state.status is (S.COMPLETE_COMMIT if committed else S.COMPLETE_ABORT)
        assert (state.producer_id, state.epoch) >= (before.producer_id, before.epoch)
        assert state.epoch <= EPOCH_MAX
        assert parse_record(transaction_record("id", state)).state == replace(state, last_epoch=-1)
