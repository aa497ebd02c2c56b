"""A partition's state, rebuilt from all kinds of batches that an object may hold."""

import pytest

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.broker.kafka.partitions.replay import PartitionReplay
from anabranch.broker.kafka.partitions.snapshot import SnapshotState, decode_snapshot
from anabranch.protocol.batch import TRANSACTIONAL_MASK, parse_batch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.records import ControlType, Record, build_batch, build_marker
from anabranch.s3stream.model import StreamBatch

STREAM = 7
NOW = 1_700_000_000_000


def data(
    base: int,
    count: int = 3,
    *,
    producer_id: int = -1,
    sequence: int = -1,
    transactional: bool = False,
    epoch: int = 0,
    leader_epoch: int = 0,
    timestamp_ms: int = NOW,
) -> StreamBatch:
    records = [Record(b"k", b"v", timestamp_ms, offset=base + at) for at in range(count)]
    payload = build_batch(
        records,
        base_offset=base,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL_MASK if transactional else 0,
    )
    return StreamBatch(STREAM, base, base + count, count, timestamp_ms, memoryview(payload))


def marker(base: int, control: ControlType, producer_id: int, epoch: int = 0) -> StreamBatch:
    payload = build_marker(
        control, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=5, timestamp_ms=NOW, base_offset=base
    )
    return StreamBatch(STREAM, base, base + 1, 1, NOW, memoryview(payload))


def emptied(batch: StreamBatch) -> StreamBatch:
    """The empty batch that log compaction leaves when it removes all records of `batch`."""
    payload = KafkaBatches().rewrite(batch.payload, frozenset(), -1)
    return batch._replace(payload=memoryview(payload), record_count=0, max_timestamp_ms=-1)


def replayed(*batches: StreamBatch, start: int = 0, unused_since_ms: int = 0) -> SnapshotState:
    state = PartitionReplay(STREAM)
    for batch in batches:
        state.add(batch)
    return decode_snapshot(STREAM, state.encode(start, unused_since_ms=unused_since_ms))


def aborted(state: SnapshotState) -> list[tuple[int, int, int]]:
    return [entry[:3] for entry in state.transactions.aborted]


def test_transactions_are_told_by_their_markers() -> None:
    state = replayed(
        data(0, producer_id=1, sequence=0, transactional=True),
        data(3, producer_id=2, sequence=0, transactional=True),
        marker(6, ControlType.ABORT, 1),
        data(7),
        marker(10, ControlType.COMMIT, 2),
        data(11, producer_id=1, sequence=3, transactional=True),
    )
    assert aborted(state) == [(1, 0, 6)]
    assert state.transactions.aborted[0].last_stable_offset == 3
    assert dict(state.transactions.open).keys() == {1}
    assert state.transactions.open[1].first_offset == 11
    assert state.transactions.coordinator_epoch(2) == 5


def test_a_log_that_begins_amid_a_transaction_knows_what_is_left_of_it() -> None:
    """The records before the start are deleted; those after it remain aborted."""
    state = replayed(
        data(50, producer_id=1, sequence=9, transactional=True), marker(53, ControlType.ABORT, 1), start=51
    )
    assert aborted(state) == [(1, 50, 53)]
    assert aborted(replayed(marker(53, ControlType.ABORT, 1), start=53)) == []


def test_the_newest_epoch_of_each_producer_is_told_by_data_and_by_markers() -> None:
    state = replayed(
        data(0, producer_id=1, sequence=0, epoch=3),
        data(3, producer_id=2, sequence=0, epoch=6),
        data(6, producer_id=2, sequence=0, epoch=7),
        data(9, producer_id=3, sequence=0, epoch=8, transactional=True),
        marker(12, ControlType.ABORT, 3, epoch=9),
        emptied(marker(13, ControlType.COMMIT, 4, epoch=5)),
    )
    assert [state.producers.epoch(producer_id) for producer_id in range(1, 6)] == [3, 7, 9, 5, -1]
    for producer_id, older in ((1, 2), (2, 6), (3, 8), (4, 4)):
        with pytest.raises(KafkaError) as refused:
            state.producers.check(producer_id, older, 0, 1)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert [len(state.producers.entries[producer_id].batches) for producer_id in range(1, 5)] == [1, 1, 0, 0]


def test_what_compaction_has_emptied_opens_nothing_and_ends_nothing() -> None:
    transaction = data(0, producer_id=1, sequence=0, transactional=True)
    state = replayed(
        emptied(transaction), emptied(marker(3, ControlType.COMMIT, 1)), data(4, producer_id=2, sequence=0)
    )
    assert not state.transactions.open
    assert aborted(state) == []
    (entry,) = state.producers.entries[1].batches
    assert (entry.first_sequence, entry.last_sequence, entry.base_offset, entry.end_offset) == (0, 2, 0, 3)


def test_a_batch_that_lost_records_keeps_its_sequence() -> None:
    whole = data(10, 5, producer_id=1, sequence=20)
    payload = KafkaBatches().rewrite(whole.payload, {12}, -1)
    # The batches before are gone, and this one has taken over their offsets.
    kept = whole._replace(base_offset=4, record_count=1, payload=memoryview(payload))
    assert parse_batch(kept.payload).record_count == 1
    state = replayed(kept)
    (entry,) = state.producers.entries[1].batches
    assert (entry.first_sequence, entry.last_sequence, entry.base_offset, entry.end_offset) == (20, 24, 10, 15)
    assert state.max_timestamp == (NOW, 4)


def test_leader_epochs_and_their_starts_are_found() -> None:
    state = replayed(data(0, leader_epoch=3), data(3, leader_epoch=3), data(6, leader_epoch=8), start=4)
    assert state.epochs.latest == 8
    assert (state.epochs.epoch_of(5), state.epochs.epoch_of(6)) == (3, 8)
    replay = PartitionReplay(STREAM)
    assert (replay.leader_epoch, replay.producer_id) == (-1, -1)
    replay.add(data(0, producer_id=44, sequence=0, leader_epoch=6))
    assert (replay.leader_epoch, replay.producer_id) == (6, 44)


def test_producers_are_remembered_by_the_time_of_their_batches() -> None:
    day_ms = 86_400_000
    state = replayed(
        data(0, producer_id=1, sequence=0),
        emptied(data(3, producer_id=2, sequence=0, timestamp_ms=NOW + 2 * day_ms)),
        unused_since_ms=NOW + day_ms,
    )
    assert state.producers.entries.keys() == {2}


def test_an_open_transactions_producer_is_never_forgotten() -> None:
    state = replayed(data(0, producer_id=1, sequence=0, transactional=True), unused_since_ms=NOW + 1)
    assert state.producers.entries.keys() == {1}


def test_a_replay_goes_on_from_a_snapshot() -> None:
    first = [data(0, producer_id=1, sequence=0, transactional=True), data(3, leader_epoch=2)]
    rest = [marker(6, ControlType.ABORT, 1), data(7, producer_id=3, sequence=0, leader_epoch=4)]
    half = PartitionReplay(STREAM)
    for batch in first:
        half.add(batch)
    resumed = PartitionReplay(STREAM, half.encode(0, unused_since_ms=0), 6)
    for batch in rest:
        resumed.add(batch)
    whole = PartitionReplay(STREAM)
    for batch in (*first, *rest):
        whole.add(batch)
    assert resumed.encode(0, unused_since_ms=0) == whole.encode(0, unused_since_ms=0)
