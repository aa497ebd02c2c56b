"""The reader of snapshots against the node's own encoding of them."""

import struct

import pytest

from anabranch.broker.kafka.partitions.leader_epochs import LeaderEpochs
from anabranch.broker.kafka.partitions.producers import ProducerStates
from anabranch.broker.kafka.partitions.snapshot import SNAPSHOT_VERSION
from anabranch.broker.kafka.partitions.transactions import PartitionTransactions
from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.model import StreamInfo
from anabranch.tables.ranges import AbortedTransaction
from anabranch.tables.transactions import SnapshotTransactions, read_transactions


def stream(snapshot: bytes, start: int = 0, end: int = 100) -> StreamInfo:
    return StreamInfo(7, 1, 1, start, end, snapshot)


def encode(transactions: PartitionTransactions, version: int = SNAPSHOT_VERSION) -> bytes:
    epochs = LeaderEpochs()
    for epoch in range(3):
        epochs.assign(epoch, epoch * 10)
    head = struct.pack(">Bqqq", version, 5, 6, 7) if version > 2 else struct.pack(">Bqq", version, 5, 6)
    return head + epochs.encode() + transactions.encode() + ProducerStates().encode()


@pytest.mark.parametrize("version", [2, SNAPSHOT_VERSION])
def test_open_and_aborted_transactions(version: int) -> None:
    state = PartitionTransactions()
    state.write(1, 10, 0)
    state.write(2, 12, 0)
    state.end(1, 20, 0, aborted=True)
    state.write(3, 25, 0)
    state.end(3, 30, 0, aborted=False)
    found = read_transactions(stream(encode(state, version)))
    assert found == SnapshotTransactions(12, [AbortedTransaction(1, 10, 21)])
    assert found.aborted_between(21, 50) == ()
    assert found.aborted_between(20, 50) == found.aborted_between(0, 11) == (AbortedTransaction(1, 10, 21),)
    state.end(2, 40, 0, aborted=True)
    assert read_transactions(stream(encode(state, version))).stable_offset == 100


def test_a_stream_without_transactions_is_stable_to_its_end() -> None:
    assert read_transactions(stream(b"")) == SnapshotTransactions(100, ())
    assert read_transactions(stream(encode(PartitionTransactions()))) == SnapshotTransactions(100, [])


def test_the_stable_offset_is_not_before_the_start() -> None:
    state = PartitionTransactions()
    state.write(1, 10, 0)
    assert read_transactions(stream(encode(state), start=50)).stable_offset == 50


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(CorruptObject, match="version 99"):
        read_transactions(stream(b"\x63"))
    state = PartitionTransactions()
    state.write(1, 10, 0)
    with pytest.raises(CorruptObject, match="cut short"):
        read_transactions(stream(encode(state)[:60]))
