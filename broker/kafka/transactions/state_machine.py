"""The state machine of a transactional id: its state, and pure steps from one durable state to the next.

Each step takes the durable state and returns the next one, which takes effect when it is durable. Rules and error codes
are Apache Kafka's (`TransactionMetadata` and `TransactionCoordinator` of 4.x). `broker.kafka.transactions.state_table`
has the theory and the table of actions.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.state_table import (
    TABLE,
    TransactionAction,
    TransactionEvent,
    TransactionStatus,
)
from anabranch.protocol.errors import ErrorCode, KafkaError

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_MAX = 2**15 - 1
EPOCH_LAST = EPOCH_MAX - 1
"""Last epoch that a client gets. The one above fences its producer; after that a new producer id is needed."""
VERSION_1 = 0
"""Clients from before KIP-890; 0 in Kafka's log."""
VERSION_2 = 2


@dataclass(frozen=True, slots=True)
class Transaction:
    """State of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    last_epoch: int = NO_EPOCH
    """Previous epoch, if a client may still send it in a repeated InitProducerId. Not in the log."""
    previous_producer_id: int = NO_PRODUCER_ID
    """Producer id before the last step."""
    next_producer_id: int = NO_PRODUCER_ID
    """Producer id from the end of the transaction on, as the epochs of the current one are used up."""
    client_version: int = VERSION_1

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no further epochs."""
        return self.epoch >= EPOCH_LAST

    @property
    def producer(self) -> Producer:
        """The producer that may write now, or when the transaction is complete."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.epoch)

    @property
    def is_committed(self) -> bool:
        """True if the decision is to commit."""
        return self.status is TransactionStatus.PREPARE_COMMIT


class ProducerIdNeeded(Exception):
    """The step needs a new producer id. The caller gets one and repeats the step with it."""


def begin(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Return the state of a new transactional id. `init` gives it its first epoch."""
    return Transaction(transactional_id, producer_id, NO_EPOCH, timeout_ms, update_ms=now_ms)


def init(
    state: Transaction, expected: Producer | None, timeout_ms: int, now_ms: int, new_producer_id: int | None = None
) -> Transaction:
    """Return the state after InitProducerId, of a restarted producer or (with `expected`) after an error (KIP-360).

    The result is Empty, or PrepareAbort if a transaction was open: the client then repeats the request. Raises
    KafkaError or ProducerIdNeeded.
    """
    action = _action(TransactionEvent.INIT, state)
    if expected is not None and not _may_be(state, expected):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    if action is TransactionAction.FENCE:
        return fence(state, now_ms, new_producer_id)
    emptied = _next(
        state,
        status=TransactionStatus.EMPTY,
        partitions=frozenset(),
        start_ms=-1,
        update_ms=now_ms,
        timeout_ms=timeout_ms,
        next_producer_id=NO_PRODUCER_ID,
    )
    if state.is_exhausted and (expected is None or expected.epoch == state.epoch):
        if new_producer_id is None:
            raise ProducerIdNeeded
        last_epoch = NO_EPOCH if expected is None else state.epoch
        return replace(emptied, producer_id=new_producer_id, epoch=0, last_epoch=last_epoch)
    if expected is None or state.epoch == NO_EPOCH:
        return replace(emptied, epoch=state.epoch + 1, last_epoch=NO_EPOCH)
    if expected.epoch == state.epoch:
        return replace(emptied, epoch=state.epoch + 1, last_epoch=state.epoch)
    if expected.epoch == state.last_epoch:
        return emptied  # a retry: the first response was lost
    raise KafkaError(ErrorCode.PRODUCER_FENCED)


def _action(event: TransactionEvent, state: Transaction) -> TransactionAction:
    """Return the action on an event. Raises CONCURRENT_TRANSACTIONS to any producer while a decision is carried out.

    The producer is checked afterwards: only then are the next producer id and epoch certain.
    """
    action = TABLE[event].get(state.status, TransactionAction.WAIT)
    if action is TransactionAction.WAIT:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    return action


def _next(state: Transaction, **changes: Any) -> Transaction:
    """Return the state after a step. As in Kafka, the previous producer id is that of one step before."""
    return replace(state, previous_producer_id=state.producer_id, **changes)


def _may_be(state: Transaction, expected: Producer) -> bool:
    return (
        state.epoch == NO_EPOCH
        or expected.producer_id == state.producer_id
        or (expected.producer_id == state.previous_producer_id and expected.epoch >= EPOCH_LAST)
    )


def check_producer(state: Transaction, producer: Producer) -> None:
    """Raise INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED unless the producer is the current one."""
    if producer.producer_id != state.producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if (
        producer.epoch != state.epoch or producer.epoch == EPOCH_MAX
    ):  # no producer has the last epoch, which only fences
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def add(
    state: Transaction, producer: Producer, partitions: Iterable[TopicPartition], version: int, now_ms: int
) -> Transaction | None:
    """Return the state with partitions added, after beginning a transaction if none is open; None if all are in it.

    Raises KafkaError.
    """
    _action(TransactionEvent.ADD, state)
    check_producer(state, producer)
    ongoing = state.status is TransactionStatus.ONGOING
    grown = state.partitions.union(partitions) if ongoing else frozenset(partitions)
    if ongoing and grown == state.partitions:
        return None
    return _next(
        state,
        status=TransactionStatus.ONGOING,
        partitions=grown,
        start_ms=state.start_ms if ongoing else now_ms,
        update_ms=now_ms,
        client_version=version,
    )


def verify(state: Transaction, producer: Producer, partition: TopicPartition) -> None:
    """Raise KafkaError unless the producer may write to the partition now.

    Raises TRANSACTION_ABORTABLE if the partition is not in the transaction.
    """
    check_producer(state, producer)
    if state.status in {TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT}:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if state.status is not TransactionStatus.ONGOING or partition not in state.partitions:
        raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE)


def end(
    state: Transaction,
    producer: Producer,
    *,
    commit: bool,
    version: int,
    now_ms: int,
    new_producer_id: int | None = None,
) -> Transaction | None:
    """Return the state after EndTxn; None if the request repeats one that has succeeded.

    Raises KafkaError or ProducerIdNeeded.
    """
    if version < VERSION_2:
        check_producer(state, producer)
    action = _action(TransactionEvent.COMMIT if commit else TransactionEvent.ABORT, state)
    retry = version >= VERSION_2 and _check_end(state, producer)
    match action:
        case TransactionAction.PREPARE:
            return _prepare(state, commit=commit, version=version, now_ms=now_ms, new_producer_id=new_producer_id)
        case TransactionAction.REPEATED | TransactionAction.REPEATED_ABORT if version < VERSION_2 or retry:
            return None
        case TransactionAction.PREPARE_NOTHING | TransactionAction.REPEATED_ABORT if version >= VERSION_2 and not retry:
            nothing = replace(state, partitions=frozenset(), start_ms=now_ms)
            return _prepare(nothing, commit=False, version=version, now_ms=now_ms, new_producer_id=new_producer_id)
        case _:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)


def _check_end(state: Transaction, producer: Producer) -> bool:
    """Return whether a version 2 EndTxn is a retry, whose producer still has the epoch from before the first attempt.

    Raises KafkaError.
    """
    after_overflow = (
        state.previous_producer_id == producer.producer_id and producer.epoch == EPOCH_LAST and state.epoch == 0
    )
    if producer.producer_id != state.producer_id and not after_overflow:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    after_bump = producer.producer_id == state.producer_id and state.epoch == producer.epoch + 1
    same = producer.producer_id == state.producer_id and state.epoch == producer.epoch
    complete = state.status in {TransactionStatus.COMPLETE_COMMIT, TransactionStatus.COMPLETE_ABORT}
    if not same and not (complete and (after_bump or after_overflow)):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return after_bump or after_overflow


def _prepare(
    state: Transaction, *, commit: bool, version: int, now_ms: int, new_producer_id: int | None
) -> Transaction:
    """Return the prepared state. In version 2 the markers already have the next epoch."""
    epoch, last_epoch, next_producer_id = state.epoch, state.last_epoch, NO_PRODUCER_ID
    if version >= VERSION_2:
        if state.is_exhausted:
            if new_producer_id is None:
                raise ProducerIdNeeded
            next_producer_id = new_producer_id
        epoch, last_epoch = min(state.epoch + 1, EPOCH_MAX), state.epoch
    return _next(
        state,
        status=TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
        epoch=epoch,
        last_epoch=last_epoch,
        next_producer_id=next_producer_id,
        update_ms=now_ms,
        client_version=version,
    )


def fence(state: Transaction, now_ms: int, new_producer_id: int | None = None) -> Transaction:
    """Return the state in which the coordinator aborts an open transaction, whatever its client's version is.

    The step is the same as the client's own abort in version 2: its late abort is a retry, and gets the next epoch. Its
    late commit is refused, and so is what it still writes with the epoch of the aborted transaction. Raises
    ProducerIdNeeded.
    """
    assert state.status is TransactionStatus.ONGOING, "only an open transaction is fenced"
    return _prepare(state, commit=False, version=VERSION_2, now_ms=now_ms, new_producer_id=new_producer_id)


def complete(state: Transaction, now_ms: int) -> Transaction:
    """Return the state after all markers are durable."""
    assert TABLE[TransactionEvent.MARKED].get(state.status) is TransactionAction.COMPLETE, (
        "only what was prepared is completed"
    )
    done = _next(
        state,
        status=TransactionStatus.COMPLETE_COMMIT if state.is_committed else TransactionStatus.COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
    )
    if state.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(done, producer_id=state.next_producer_id, next_producer_id=NO_PRODUCER_ID, epoch=0)


def is_timed_out(state: Transaction, now_ms: int) -> bool:
    """Return whether an open transaction has exceeded its timeout."""
    return (
        TABLE[TransactionEvent.TIMEOUT].get(state.status) is TransactionAction.FENCE
        and state.start_ms + state.timeout_ms < now_ms
    )


def is_expired(state: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Return whether a transactional id has not been used for the expiration time."""
    return (
        TABLE[TransactionEvent.EXPIRE].get(state.status) is TransactionAction.FORGET
        and now_ms - state.update_ms >= expiration_ms
    )
