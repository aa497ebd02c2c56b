"""Encoding of a partition's state, which the catalog stores with the end offset of the data in objects."""

import struct
from typing import Final, NamedTuple

from anabranch.broker.kafka.partitions.leader_epochs import LeaderEpochs
from anabranch.broker.kafka.partitions.producers import ProducerStates
from anabranch.broker.kafka.partitions.transactions import PartitionTransactions
from anabranch.s3stream.errors import CorruptObject

SNAPSHOT_VERSION: Final = 3
_HEAD: Final = struct.Struct(">Bqq")
_UNTIMED_END: Final = struct.Struct(">q")


class MaxTimestamp(NamedTuple):
    """The largest timestamp of the log, and the base offset of the first batch that has it; -1 if unknown."""

    timestamp_ms: int
    base_offset: int


class SnapshotState(NamedTuple):
    """The state of a partition in a snapshot."""

    max_timestamp: MaxTimestamp
    epochs: LeaderEpochs
    transactions: PartitionTransactions
    producers: ProducerStates
    untimed_end: int | None
    """No batch from this offset on has records without a timestamp; None: unknown."""


def encode_snapshot(state: SnapshotState, start_offset: int) -> bytes:
    """Encode the state of a log that begins at `start_offset`. Removes older entries from `state`."""
    assert state.untimed_end is not None, "a state that is encoded has it"
    state.epochs.trim(start_offset)
    state.transactions.trim(start_offset)
    head = _HEAD.pack(SNAPSHOT_VERSION, *state.max_timestamp) + _UNTIMED_END.pack(state.untimed_end)
    return head + state.epochs.encode() + state.transactions.encode() + state.producers.encode()


def decode_snapshot(stream_id: int, data: bytes) -> SnapshotState:
    """Decode the output of `encode_snapshot`. Raises CorruptObject.

    Version, newest timestamp, end of records without one (since v3), leader epochs, transactions (since v2), producers.
    A new stream has an empty snapshot.
    """
    if not data:
        return SnapshotState(MaxTimestamp(-1, -1), LeaderEpochs(), PartitionTransactions(), ProducerStates(), None)
    try:
        head, epochs, transactions, position = _decode_head(stream_id, data)
        producers = ProducerStates.decode(data, position)
    except struct.error as error:
        raise _cut_short(stream_id, data, error) from None
    return SnapshotState(MaxTimestamp(*head[:2]), epochs, transactions, producers, head[2])


def decode_transactions(stream_id: int, data: bytes) -> PartitionTransactions:
    """Decode what readers need of the output of `encode_snapshot`: open and aborted ones. Raises CorruptObject."""
    if not data:
        return PartitionTransactions()
    try:
        _, _, transactions, _ = _decode_head(stream_id, data)
    except struct.error as error:
        raise _cut_short(stream_id, data, error) from None
    transactions.keep_producers({})
    return transactions


def _cut_short(stream_id: int, data: bytes, error: struct.error) -> CorruptObject:
    return CorruptObject(f"stream {stream_id}: snapshot of {len(data)} bytes is cut short: {error}")


def _decode_head(
    stream_id: int, data: bytes
) -> tuple[tuple[int, int, int | None], LeaderEpochs, PartitionTransactions, int]:
    """Decode all but the producers, which begin at the last value returned. Raises CorruptObject, struct.error."""
    if not 1 <= data[0] <= SNAPSHOT_VERSION:
        raise CorruptObject(f"stream {stream_id}: snapshot of version {data[0]}, expected 1 to {SNAPSHOT_VERSION}")
    version, timestamp_ms, base_offset = _HEAD.unpack_from(data)
    position, untimed_end = _HEAD.size, None
    if version > 2:
        (untimed_end,) = _UNTIMED_END.unpack_from(data, position)
        position += _UNTIMED_END.size
    epochs, position = LeaderEpochs.decode(data, position)
    transactions = PartitionTransactions()
    if version > 1:
        transactions, position = PartitionTransactions.decode(data, position)
    return (timestamp_ms, base_offset, untimed_end), epochs, transactions, position
