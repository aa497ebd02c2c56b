"""The state of a transactional id, and pure steps from one durable state to the next.

Each step takes the state as it is in the log and returns the one to write; nothing changes until that is durable.
Rules and error codes are Apache Kafka's (`TransactionMetadata` and `TransactionCoordinator` of 4.x).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from broker.coordination.topic_partition import TopicPartition
from broker.partitions.producers import Producer
from broker.transactions.state_table import TABLE, TransactionAction, TransactionEvent, TransactionStatus
from protocol.errors import ErrorCode, KafkaError

NO_PRODUCER_ID = -1
NO_EPOCH = -1
EPOCH_MAX = 2**15 - 1
EPOCH_LAST = EPOCH_MAX - 1
"""The last epoch a client sees. One above is left for fencing its holder; then comes a new producer id."""
VERSION_1 = 0
"""Clients of before KIP-890; Kafka's log calls them 0."""
VERSION_2 = 2


@dataclass(frozen=True, slots=True)
class Transaction:
    """All that is known of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    last_epoch: int = NO_EPOCH
    """The epoch before, as far as a client may still show it in a retried InitProducerId. Not in the log."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """Taken when the transaction is complete, because the epochs of this producer id are used up."""
    client_version: int = VERSION_1

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no more epochs to give."""
        return self.epoch >= EPOCH_LAST

    @property
    def producer(self) -> Producer:
        """Who may write now, or will be when the transaction is complete."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.epoch)

    @property
    def is_committed(self) -> bool:
        """Whether the decision is to commit."""
        return self.status is TransactionStatus.PREPARE_COMMIT


class ProducerIdNeeded(Exception):
    """The step takes a new producer id, and was given none: the caller gets one and asks again."""


def begin(transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A transactional id nobody has used before; `init` gives it its first epoch."""
    return Transaction(transactional_id, producer_id, NO_EPOCH, timeout_ms, update_ms=now_ms)


def init(
    state: Transaction, expected: Producer | None, timeout_ms: int, now_ms: int, new_producer_id: int | None = None
) -> Transaction:
    """A producer's new life, or (with `expected`) one that recovers from an error (KIP-360).

    The result is Empty, or PrepareAbort when a transaction was open: then the client has to ask again. Raises
    KafkaError or ProducerIdNeeded.
    """
    if expected is not None and not _may_be(state, expected):
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    action = TABLE[TransactionEvent.INIT].get(state.status)
    if action is TransactionAction.FENCE:
        return fence(state, now_ms)
    if action is not TransactionAction.NEW_EPOCH:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    emptied = replace(
        state,
        status=TransactionStatus.EMPTY,
        partitions=frozenset(),
        start_ms=-1,
        update_ms=now_ms,
        timeout_ms=timeout_ms,
        next_producer_id=NO_PRODUCER_ID,
        client_version=VERSION_1,
    )
    if state.is_exhausted and (expected is None or expected.epoch == state.epoch):
        if new_producer_id is None:
            raise ProducerIdNeeded
        last_epoch = NO_EPOCH if expected is None else state.epoch
        return replace(
            emptied,
            producer_id=new_producer_id,
            previous_producer_id=state.producer_id,
            epoch=0,
            last_epoch=last_epoch,
        )
    if expected is None or state.epoch == NO_EPOCH:
        return replace(emptied, epoch=state.epoch + 1, last_epoch=NO_EPOCH)
    if expected.epoch == state.epoch:
        return replace(emptied, epoch=state.epoch + 1, last_epoch=state.epoch)
    if expected.epoch == state.last_epoch:
        return emptied  # its answer was lost
    raise KafkaError(ErrorCode.PRODUCER_FENCED)


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
    if producer.epoch != state.epoch or producer.epoch == EPOCH_MAX:  # the last one is nobody's: it only fences
        raise KafkaError(ErrorCode.PRODUCER_FENCED)


def add(
    state: Transaction, producer: Producer, partitions: Iterable[TopicPartition], version: int, now_ms: int
) -> Transaction | None:
    """Add partitions, beginning a transaction if none is open; None if all are in it. Raises KafkaError."""
    check_producer(state, producer)
    if TABLE[TransactionEvent.ADD].get(state.status) is not TransactionAction.GROW:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    ongoing = state.status is TransactionStatus.ONGOING
    grown = state.partitions.union(partitions) if ongoing else frozenset(partitions)
    if ongoing and grown == state.partitions:
        return None
    return replace(
        state,
        status=TransactionStatus.ONGOING,
        partitions=grown,
        start_ms=state.start_ms if ongoing else now_ms,
        update_ms=now_ms,
        client_version=version,
    )


def verify(state: Transaction, producer: Producer, partition: TopicPartition) -> None:
    """Raise KafkaError unless the producer may write to the partition now.

    TRANSACTION_ABORTABLE stands for a partition that is not in the transaction.
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
    """A client's EndTxn; None when the outcome asked for is there already. Raises KafkaError or ProducerIdNeeded."""
    retry = version >= VERSION_2 and _check_end(state, producer)
    if version < VERSION_2:
        check_producer(state, producer)
    match TABLE[TransactionEvent.COMMIT if commit else TransactionEvent.ABORT].get(state.status):
        case TransactionAction.PREPARE:
            return _prepare(state, commit=commit, version=version, now_ms=now_ms, new_producer_id=new_producer_id)
        case TransactionAction.REPEATED | TransactionAction.REPEATED_ABORT if version < VERSION_2 or retry:
            return None
        case TransactionAction.PREPARE_NOTHING | TransactionAction.REPEATED_ABORT if version >= VERSION_2 and not retry:
            nothing = replace(state, partitions=frozenset(), start_ms=now_ms)
            return _prepare(nothing, commit=False, version=version, now_ms=now_ms, new_producer_id=new_producer_id)
        case TransactionAction.WAIT:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        case _:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE)


def _check_end(state: Transaction, producer: Producer) -> bool:
    """Whether a version 2 EndTxn is a retry: its producer still has the epoch of before the first try."""
    after_overflow = (
        state.previous_producer_id == producer.producer_id and producer.epoch == EPOCH_LAST and state.epoch == 0
    )
    if producer.producer_id != state.producer_id and not after_overflow:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    after_bump = producer.producer_id == state.producer_id and state.epoch == producer.epoch + 1
    same = producer.producer_id == state.producer_id and state.epoch == producer.epoch
    match state.status:
        case TransactionStatus.PREPARE_COMMIT | TransactionStatus.PREPARE_ABORT:
            valid = after_bump
        case TransactionStatus.COMPLETE_COMMIT | TransactionStatus.COMPLETE_ABORT:
            valid = after_bump or after_overflow or same
        case _:
            valid = same
    if not valid:
        raise KafkaError(ErrorCode.PRODUCER_FENCED)
    return after_bump or after_overflow


def _prepare(
    state: Transaction, *, commit: bool, version: int, now_ms: int, new_producer_id: int | None
) -> Transaction:
    """The decision. In version 2 the markers carry the next epoch already."""
    epoch, last_epoch, next_producer_id = state.epoch, state.last_epoch, NO_PRODUCER_ID
    if version >= VERSION_2:
        if state.is_exhausted:
            if new_producer_id is None:
                raise ProducerIdNeeded
            next_producer_id = new_producer_id
        epoch, last_epoch = min(state.epoch + 1, EPOCH_MAX), state.epoch
    return replace(
        state,
        status=TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
        epoch=epoch,
        last_epoch=last_epoch,
        next_producer_id=next_producer_id,
        update_ms=now_ms,
        client_version=version,
    )


def fence(state: Transaction, now_ms: int) -> Transaction:
    """Abort an open transaction with an epoch that its producer does not have.

    In version 2 that is two above, as one above is what the producer's own EndTxn would make: the producer would take
    itself for the author of this abort.
    """
    assert state.status is TransactionStatus.ONGOING, "only an open transaction is fenced"
    step = 2 if state.client_version >= VERSION_2 else 1
    return replace(
        state,
        status=TransactionStatus.PREPARE_ABORT,
        epoch=min(state.epoch + step, EPOCH_MAX),
        last_epoch=NO_EPOCH,
        update_ms=now_ms,
    )


def complete(state: Transaction, now_ms: int) -> Transaction:
    """All markers are durable."""
    assert TABLE[TransactionEvent.MARKED].get(state.status) is TransactionAction.COMPLETE, (
        "only what was prepared is completed"
    )
    done = replace(
        state,
        status=TransactionStatus.COMPLETE_COMMIT if state.is_committed else TransactionStatus.COMPLETE_ABORT,
        partitions=frozenset(),
        update_ms=now_ms,
    )
    if state.next_producer_id == NO_PRODUCER_ID:
        return done
    return replace(
        done,
        producer_id=state.next_producer_id,
        previous_producer_id=state.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        epoch=0,
    )


def is_timed_out(state: Transaction, now_ms: int) -> bool:
    """Whether an open transaction has had its time."""
    return (
        TABLE[TransactionEvent.TIMEOUT].get(state.status) is TransactionAction.FENCE
        and state.start_ms + state.timeout_ms < now_ms
    )


def is_expired(state: Transaction, now_ms: int, expiration_ms: int) -> bool:
    """Whether a transactional id has not been used for so long that it is forgotten."""
    return (
        TABLE[TransactionEvent.EXPIRE].get(state.status) is TransactionAction.FORGET
        and now_ms - state.update_ms >= expiration_ms
    )
