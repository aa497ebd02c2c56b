"""The records of `__share_group_state`, the log that a share coordinator recovers from (KIP-932).

Each key and value begins with an int16 (`codec.encode_versioned`). That of a key identifies the record: 0 a snapshot, 1
an update, which applies on top of what came before. That of a value is its version. A null value deletes.
"""

from collections.abc import Sequence

from anabranch.protocol import wire
from anabranch.protocol.wire import message


@message(versions="0", flexible=None)
class ShareSnapshotKey:
    """Key of a `ShareSnapshotValue`."""

    group_id: str = wire.string("0")
    topic_id: bytes = wire.uuid("0")
    partition: int = wire.int32("0")


@message
class StateBatch:
    first_offset: int = wire.int64("0+")
    last_offset: int = wire.int64("0+")
    delivery_state: int = wire.int8("0+")
    delivery_count: int = wire.int16("0+")


@message(versions="0", flexible="0+")
class ShareSnapshotValue:
    """The whole state of a share partition. The count is of Apache Kafka 4.2 (KIP-1226)."""

    snapshot_epoch: int = wire.int32("0+")
    state_epoch: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")
    delivery_complete_count: int = wire.int32("0+", tag=0, default=-1)
    create_timestamp: int = wire.int64("0+")
    write_timestamp: int = wire.int64("0+")
    state_batches: Sequence[StateBatch] = wire.array(StateBatch, "0+")


@message(versions="1", flexible=None)
class ShareUpdateKey:
    """Key of a `ShareUpdateValue`."""

    group_id: str = wire.string("1")
    topic_id: bytes = wire.uuid("1")
    partition: int = wire.int32("1")


@message(versions="0", flexible="0+")
class ShareUpdateValue:
    """Changes that apply on top of the snapshot of the same epoch."""

    snapshot_epoch: int = wire.int32("0+")
    leader_epoch: int = wire.int32("0+")
    start_offset: int = wire.int64("0+")
    delivery_complete_count: int = wire.int32("0+", tag=0, default=-1)
    state_batches: Sequence[StateBatch] = wire.array(StateBatch, "0+")
