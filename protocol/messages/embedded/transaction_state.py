"""The records of `__transaction_state`, the log a transaction coordinator recovers from.

Each key and value begins with an int16 version (`codec.encode_versioned`). A null value deletes.
    v1  transaction_log_value adds previous_producer_id (tagged), next_producer_id (tagged), client_transaction_version
        (tagged), next_producer_epoch (tagged)
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message


@message(versions="0", flexible=None)
class TransactionLogKey:
    """Key of a `TransactionLogValue`."""

    transactional_id: str = wire.string("0")


@message
class PartitionsSchema:
    topic: str = wire.string("0+")
    partition_ids: Sequence[int] = wire.array(wire.Kind.INT32, "0+")


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    """The state of a transactional id: its producer, and the ongoing transaction."""

    producer_id: int = wire.int64("0+")
    previous_producer_id: int = wire.int64("1+", tag=0, default=-1)
    next_producer_id: int = wire.int64("1+", tag=1, default=-1)
    producer_epoch: int = wire.int16("0+")
    transaction_timeout_ms: int = wire.int32("0+")
    transaction_status: int = wire.int8("0+")
    transaction_partitions: Sequence[PartitionsSchema] | None = wire.array(PartitionsSchema, "0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = wire.int64("0+")
    transaction_start_timestamp_ms: int = wire.int64("0+")
    client_transaction_version: int = wire.int16("1+", tag=2)
    next_producer_epoch: int = wire.int16("1+", tag=3, default=-1)
