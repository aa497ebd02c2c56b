"""Records of `__transaction_state`, byte for byte as Apache Kafka writes them, so that its tools can read ours.

`TransactionLogKey` v0 -> `TransactionLogValue` v1; a null value deletes.
"""

from typing import NamedTuple

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.transactions.state_machine import Transaction
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.protocol.codec import decode_versioned, encode_versioned, read_version
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.messages.embedded.transaction_state import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

KEY_VERSION = 0
VALUE_VERSION = 1


class TransactionRecord(NamedTuple):
    """A transactional id's state, or its deletion."""

    transactional_id: str
    state: Transaction | None


def transaction_record(transactional_id: str, state: Transaction | None) -> KeyValue:
    """Encode a state, or its deletion."""
    key = encode_versioned(TransactionLogKey(transactional_id=transactional_id), KEY_VERSION)
    if state is None:
        return KeyValue(key, None)
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(state.partitions):
        topics.setdefault(topic, []).append(partition)
    partitions = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]
    value = TransactionLogValue(
        producer_id=state.producer_id,
        previous_producer_id=state.previous_producer_id,
        next_producer_id=state.next_producer_id,
        producer_epoch=state.epoch,
        transaction_timeout_ms=state.timeout_ms,
        transaction_status=state.status,
        transaction_partitions=None if state.status is TransactionStatus.EMPTY else partitions,
        transaction_last_update_timestamp_ms=state.update_ms,
        transaction_start_timestamp_ms=state.start_ms,
        client_transaction_version=state.client_version,
    )
    return KeyValue(key, encode_versioned(value, VALUE_VERSION))


def parse_record(record: KeyValue) -> TransactionRecord:
    """Read a record back. Raises MalformedMessage."""
    version = read_version(record.key)
    if version != KEY_VERSION:
        raise MalformedMessage(f"transaction log key of version {version}, expected {KEY_VERSION}")
    transactional_id = decode_versioned(TransactionLogKey, record.key).transactional_id
    if record.value is None:
        return TransactionRecord(transactional_id, None)
    value = decode_versioned(TransactionLogValue, record.value)
    try:
        status = TransactionStatus(value.transaction_status)
    except ValueError:
        raise MalformedMessage(f"transaction of {transactional_id!r}: status {value.transaction_status}") from None
    state = Transaction(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=status,
        partitions=frozenset(
            TopicPartition(topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )
    return TransactionRecord(transactional_id, state)
