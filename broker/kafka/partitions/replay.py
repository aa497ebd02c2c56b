"""Replay of logged batches into a partition's state: producers, transactions, leader epochs.

A partition replays the batches that recovery found past its snapshot. A rebuild of the catalog replays all batches.
Batches may have been through log compaction: offsets have gaps, and a batch may have lost some or all of its records.
"""

from collections.abc import Callable

from anabranch.broker.kafka.partitions.producers import PRODUCERS_MAX, ProducerStates
from anabranch.broker.kafka.partitions.snapshot import MaxTimestamp, SnapshotState, decode_snapshot, encode_snapshot
from anabranch.broker.kafka.partitions.transactions import PartitionTransactions
from anabranch.protocol.batch import NO_PRODUCER_ID, NO_SEQUENCE, BatchHeader, parse_batch
from anabranch.protocol.records import ControlType, control_record
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.model import StreamBatch
from anabranch.s3stream.tasks import Turns
from anabranch.wal.interface import Buffer


class PartitionReplay:
    """The state as of the end of the last batch added."""

    def __init__(self, stream_id: int, snapshot: bytes = b"", snapshot_end: int = 0) -> None:
        """Begin with a snapshot as of `snapshot_end`; by default with the empty state of a new log.

        Raises CorruptObject.
        """
        state = decode_snapshot(stream_id, snapshot)
        self.max_timestamp, self.epochs, self.transactions, self.producers, untimed_end = state
        self.untimed_end = snapshot_end if untimed_end is None else untimed_end
        """No batch from here on has records without a timestamp."""
        self.producers.pinned = self.transactions.open
        self._newest_ms = 0

    def add(self, batch: StreamBatch, now_ms: int | None = None) -> None:
        """Replay the next batch, which is durable. Without `now_ms` its newest timestamp is the time of the append.

        Raises KafkaError if the payload is not a batch.
        """
        header = parse_batch(batch.payload)
        if now_ms is None:
            # From the header, which compaction keeps even when it removes all records.
            now_ms = self._newest_ms = max(self._newest_ms, header.max_timestamp)
        if batch.max_timestamp_ms > self.max_timestamp.timestamp_ms:
            self.max_timestamp = MaxTimestamp(batch.max_timestamp_ms, batch.base_offset)
        if header.has_untimed:
            self.untimed_end = batch.end_offset
        self.epochs.assign(header.partition_leader_epoch, batch.base_offset)
        if header.producer_id == NO_PRODUCER_ID:
            return
        if header.base_sequence == NO_SEQUENCE:
            apply_unsequenced(self.transactions, self.producers, batch.payload, header, batch.base_offset, now_ms)
            self.transactions.forget_durable_markers(batch.end_offset)
            return
        if header.is_transactional and header.record_count:
            self.transactions.write(header.producer_id, batch.base_offset, now_ms)
        self.producers.update(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_offset_delta + 1,  # compaction removes records, not sequence numbers
            base_offset=header.base_offset,
            end_offset=batch.end_offset,
            append_time_ms=header.max_timestamp if header.is_log_append_time else -1,
            now_ms=now_ms,
        )

    def encode(self, start_offset: int, *, unused_since_ms: int) -> bytes:
        """Encode the snapshot of a log that begins at `start_offset`. Producers unused since `unused_since_ms` go."""
        self.producers.expire(unused_since_ms)
        self.transactions.keep_producers(self.producers.entries)
        state = SnapshotState(self.max_timestamp, self.epochs, self.transactions, self.producers, self.untimed_end)
        return encode_snapshot(state, start_offset)

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch of any batch, or -1."""
        return self.epochs.latest

    @property
    def producer_id(self) -> int:
        """The largest known producer id, or -1."""
        return max(self.producers.entries, default=-1)


async def replay_recovered(stream: Stream, turns: Turns, now_ms: Callable[[], int]) -> PartitionReplay:
    """Return the state as of the end of a stream that was just opened. Yields to other tasks."""
    state = PartitionReplay(stream.stream_id, stream.snapshot, stream.committed_offset)
    async for some in turns.pieces(stream.recovered):
        for batch in some:
            state.add(batch, now_ms())
    return state


def apply_unsequenced(
    transactions: PartitionTransactions,
    producers: ProducerStates,
    view: Buffer,
    header: BatchHeader,
    base_offset: int,
    now_ms: int,
) -> None:
    """Apply a batch without sequence numbers to the state: a marker, or offsets of a transaction."""
    producers.note_epoch(header.producer_id, header.producer_epoch, now_ms)
    if not header.is_transactional or not header.record_count:
        return
    if not header.is_control:
        transactions.write(header.producer_id, base_offset, now_ms)
        return
    kind, coordinator_epoch = control_record(view)
    if kind in {ControlType.ABORT, ControlType.COMMIT}:
        if transactions.coordinator_epoch_count > PRODUCERS_MAX:
            transactions.keep_producers(producers.entries)
        transactions.end(header.producer_id, base_offset, coordinator_epoch, aborted=kind == ControlType.ABORT)
