"""A partition that this node leads: Kafka's rules for appending a record batch, over a stream of opaque batches.

An append takes a fixed amount of work per batch. Work per record is only needed in compacted topics, whose records must
have keys, and in topics with a codec other than the batch's (`record_checks`). The batch stays the memoryview of the
frame it came in; base offset and leader epoch, which are outside the CRC, are patched in place.

The parts of a partition: `batch_checks` validates a batch, `producers` checks sequence numbers (idempotence),
`transactions` keeps open and aborted transactions, and with them the last stable offset. `leader_epochs` keeps the
epochs. `snapshot` and `replay` restore all of these.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

import structlog

from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.batch_checks import check_batch
from anabranch.broker.kafka.partitions.leader_epochs import check_leader_epoch
from anabranch.broker.kafka.partitions.producers import BatchEntry, Producer
from anabranch.broker.kafka.partitions.record_checks import PreparedBatch, RequiredWork, inspection_of
from anabranch.broker.kafka.partitions.record_work import LoopBudgetExceeded, RecordWork
from anabranch.broker.kafka.partitions.replay import PartitionReplay, apply_unsequenced
from anabranch.broker.kafka.partitions.snapshot import MaxTimestamp, SnapshotState, encode_snapshot
from anabranch.broker.kafka.partitions.transactions import AbortedEntry
from anabranch.protocol.batch import (
    NO_PRODUCER_ID,
    BatchHeader,
    parse_batch,
    patch,
    stamp_append_time,
)
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.record_scan import scan_records
from anabranch.protocol.records import ControlType, build_marker
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.errors import StorageError, StorageFull
from anabranch.s3stream.model import StreamBatch
from anabranch.wal.interface import Buffer, Durable, WalError

log = structlog.get_logger("storage")

VACATED_KEPT_MS = 60 * 60_000
"""Longest time that a read which began before a compaction may take."""
ADDS_TO_TRANSACTION_SINCE = 12
"""First version of Produce in which a transactional batch adds its partition to the transaction (KIP-890, part 2). Each
transaction has an epoch of its own, and begins with sequence 0 in each partition."""
TransactionCheck = Callable[["Partition", Producer], bool]
"""Called before a producer's transaction opens in the partition. False: the coordinator must be asked first. Raises
KafkaError to refuse it."""
ChangeListener = Callable[["Partition"], None]
"""Called with the partition when records became readable, or when it changed in another way."""


class AppendResult(NamedTuple):
    """Result of an append. `durable` is None if the batch is a duplicate whose original is durable already."""

    base_offset: int
    end_offset: int
    append_time_ms: int
    durable: Durable | None


class InspectionWait(NamedTuple):
    """An append that waits until the records are inspected in the thread, and is repeated with the result."""

    partition: "Partition"
    inspect: Callable[[], Awaitable[PreparedBatch]]
    """Raises KafkaError. If cancelled before its turn comes, it does nothing."""


class VerificationWait(NamedTuple):
    """An append that waits until the coordinator has agreed that the producer's transaction includes the partition."""

    partition: "Partition"
    producer: Producer


class Partition:
    """State and rules of one partition. Its stream stores the bytes."""

    __slots__ = (
        "_last_durable",
        "_listeners",
        "_read_failure",
        "_stable_ends",
        "appended_bytes",
        "config",
        "epochs",
        "index",
        "leader_epoch",
        "loaded_bytes",
        "max_timestamp",
        "now_ms",
        "producers",
        "requests",
        "sent_bytes",
        "stream",
        "topic",
        "topic_id",
        "transactions",
        "untimed_end",
        "work",
    )

    def __init__(
        self,
        topic: str,
        topic_id: bytes,
        index: int,
        stream: Stream,
        config: TopicConfig,
        work: RecordWork,
        now_ms: Callable[[], int],
        state: PartitionReplay | None = None,
    ) -> None:
        """Begin with the state of `replay_recovered`; without one, replay here what was recovered."""
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.stream = stream
        stream.label = f"{topic}-{index}"
        self.leader_epoch = stream.leader_epoch
        self.config = config
        self.work = work
        self.now_ms = now_ms
        self.appended_bytes = 0
        """Bytes appended since the start of the node; waiters compare it with the value that they saw before."""
        self.sent_bytes = 0
        """Bytes of records sent to readers, and to replicas that follow, since then."""
        self.loaded_bytes = 0
        """Bytes of records that readers waited for since then: they were not in the log cache."""
        self.requests = 0
        """Number of batches appended and of answers with records since then."""
        self._last_durable: Durable | None = None
        self._read_failure = ""
        self._listeners: dict[ChangeListener, None] = {}
        if state is None:
            state = PartitionReplay(stream.stream_id, stream.snapshot, stream.committed_offset)
            for batch in stream.recovered:
                state.add(batch, now_ms())
        self.max_timestamp, self.epochs = state.max_timestamp, state.epochs
        self.transactions, self.producers = state.transactions, state.producers
        self.untimed_end = state.untimed_end
        """No batch from here on has records without a timestamp."""
        self.epochs.assign(stream.leader_epoch, stream.next_offset)
        self._stable_ends: list[tuple[int, int]] = []
        """Ends of the log at seals, with the first offset of a transaction that was open then, or the end."""
        if stream.next_offset == stream.committed_offset:
            self._note_stable_end()
        stream.snapshot_source = self._encode_snapshot

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def stream_id(self) -> int:
        """Id of the stream."""
        return self.stream.stream_id

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self.stream.start_offset

    @property
    def high_watermark(self) -> int:
        """End of the durable records."""
        return self.stream.confirmed_offset

    @property
    def last_stable_offset(self) -> int:
        """End of the data that READ_COMMITTED readers see: the high watermark or an open transaction's first offset."""
        stable = self.transactions.last_stable_offset(self.stream.confirmed_offset)
        return max(stable, self.stream.start_offset)  # records of an open transaction can be deleted, too

    @property
    def has_failed(self) -> bool:
        """True if it refuses appends."""
        return self.stream.error is not None

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Compare the client's epoch (-1: none) with ours. Raises FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH."""
        check_leader_epoch(current_leader_epoch, self.leader_epoch)

    def readable_in_objects(self, *, committed: bool) -> int:
        """Return the end of what replicas can read; `committed`: that of READ_COMMITTED readers, as far as it is known.

        The marker of a transaction may be here only: without it a replica takes the transaction for open.
        """
        if not committed:
            return self.stream.committed_offset
        ends = self._stable_ends
        self._forget_stable_ends()
        return ends[0][1] if ends and ends[0][0] <= self.stream.committed_offset else self.stream.start_offset

    def _forget_stable_ends(self) -> None:
        """Keep the last entry at or before the committed end, and all after it."""
        ends, committed_offset = self._stable_ends, self.stream.committed_offset
        while len(ends) > 1 and ends[1][0] <= committed_offset:
            del ends[0]

    def is_vacated(self, entry: AbortedEntry) -> bool:
        """Return whether compaction has removed the data of an aborted transaction: see `PartitionTransactions`."""
        return self.transactions.is_vacated(entry)

    # look-ups

    async def offset_for_time(self, timestamp_ms: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after a time, or None. Raises StorageError."""
        batch = await self.stream.offset_for_time(timestamp_ms)
        while batch is not None:
            start_offset = self.log_start_offset
            found = await self.first_record_at(batch, timestamp_ms)
            if found[0] >= self.log_start_offset:
                return found
            if start_offset == self.log_start_offset:  # otherwise the batch may hold another record, past the new start
                batch = await self.stream.offset_for_time(timestamp_ms, batch.end_offset)
        return None

    async def offset_of_max_timestamp(self) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record with the largest timestamp, or None. Raises StorageError."""
        timestamp_ms, base_offset = self.max_timestamp
        if base_offset < 0 or self.log_start_offset >= self.high_watermark:
            return None
        found = await self.offset_for_time(timestamp_ms) if base_offset >= self.log_start_offset else None
        if found is None:
            found = await self.offset_for_time(await self._search_max_timestamp(timestamp_ms))
        return found

    async def _search_max_timestamp(self, upper_ms: int) -> int:
        """Find the largest timestamp left, by bisection, after the record that had it was trimmed or cleaned."""
        low, high = -1, upper_ms
        while low < high:
            middle = (low + high + 1) // 2
            batch = await self.stream.offset_for_time(middle)
            if batch is None:
                high = middle - 1
            else:
                low = max(middle, batch.max_timestamp_ms)
        return low

    async def first_record_at(self, batch: StreamBatch, timestamp_ms: int) -> tuple[int, int]:
        """Return offset and timestamp of a batch's first record at or after a time that is not deleted.

        The batch's base offset and largest timestamp if there is none, or the records cannot be decoded.
        """
        header = parse_batch(batch.payload)
        start = self.log_start_offset

        def inspect(data: memoryview) -> tuple[int, int] | None:
            for record in self.work.interruptible(scan_records(data, header)):
                if record.timestamp_ms >= timestamp_ms and record.offset >= start:
                    return record.offset, record.timestamp_ms
            return None

        found = None
        try:
            try:
                found = self.work.inspect_on_loop(batch.payload, header, inspect)
            except LoopBudgetExceeded:
                found = await self.work.inspect_in_thread(batch.payload, header, inspect)
        except KafkaError:
            pass  # the records cannot be decoded, or are too large: answer with the batch's own offset
        return (batch.base_offset, batch.max_timestamp_ms) if found is None else found

    # appending

    def append(
        self,
        records: Buffer | None,
        api_version: int = 9,
        verify: TransactionCheck | None = None,
        prepared: PreparedBatch | None = None,
        *,
        is_behind: bool = False,
    ) -> AppendResult | InspectionWait | VerificationWait:
        """Append the one batch that a client sent; `verify` is called before it opens a transaction here.

        `is_behind`: the client may have sent it behind a refused one, so a new producer must begin with sequence 0.

        Returns a wait if nothing was appended yet: append again afterwards, with the result of an inspection as
        `prepared`. Raises KafkaError, and the stream's StorageFull and StorageStopped.
        """
        now_ms = self.now_ms()
        config = self.config
        view, header, out_of_range, odd_frame = check_batch(records, config, api_version, now_ms, self)
        recompression = config.compression is not None and config.compression != header.compression
        oversize = config.limits_records and header.compression != Compression.NONE
        if out_of_range or recompression or config.compacted or odd_frame or oversize:
            if prepared is None or prepared.config is not config:
                required = RequiredWork(out_of_range, config.compacted, recompression, oversize)
                found = self._inspect(view, header, required, now_ms)
                if isinstance(found, InspectionWait):
                    return found
                prepared = found
            view = prepared.view
        count = header.record_count
        if header.producer_id != NO_PRODUCER_ID:
            instead = self._check_producer(header, verify, api_version, is_behind=is_behind)
            if instead is not None:
                return instead
        append_time_ms = -1
        max_timestamp_ms = header.max_timestamp
        if config.log_append_time:
            append_time_ms = max_timestamp_ms = now_ms
            stamp_append_time(view, now_ms)
        base_offset = self.stream.next_offset
        end_offset = base_offset + count
        patch(view, base_offset, self.leader_epoch)
        batch = StreamBatch(self.stream.stream_id, base_offset, end_offset, count, max_timestamp_ms, view)
        try:
            durable = self._append_to_stream(batch)
        except StorageFull:
            patch(view, 0, -1)  # as it arrived: the caller waits and appends it again
            raise
        if append_time_ms < 0 and header.has_untimed:
            self.untimed_end = end_offset
        if header.producer_id != NO_PRODUCER_ID:
            self.producers.update(
                header.producer_id,
                header.producer_epoch,
                header.base_sequence,
                count,
                base_offset=base_offset,
                end_offset=end_offset,
                append_time_ms=append_time_ms,
                now_ms=now_ms,
            )
            if header.is_transactional:
                self.transactions.write(header.producer_id, base_offset, now_ms)
        return AppendResult(base_offset, end_offset, append_time_ms, durable)

    def _inspect(
        self, view: memoryview, header: BatchHeader, required: RequiredWork, now_ms: int
    ) -> PreparedBatch | InspectionWait:
        """Inspect the records now, unless they are too many for the event loop. Raises KafkaError."""
        inspection = inspection_of(view, header, self.config, required, now_ms, self, self.work)
        try:
            return self.work.inspect_on_loop(view, header, inspection)
        except LoopBudgetExceeded:
            return InspectionWait(self, partial(self.work.inspect_in_thread, view, header, inspection))

    def _check_producer(
        self, header: BatchHeader, verify: TransactionCheck | None, api_version: int, *, is_behind: bool
    ) -> AppendResult | VerificationWait | None:
        """Check the batch of a producer against its other batches. Raises KafkaError.

        Returns what `append` returns without appending: the result of the batch that it repeats, or a wait.
        """
        try:
            if is_behind:
                self.producers.check_first(header.producer_id, header.base_sequence)
            duplicate = self._find_duplicate(header)
        except KafkaError as error:
            if error.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                # Behind a batch that was refused, the reason is the same. Told that it is out of order, clients begin
                # a new epoch, and send again in it what is durable without their knowledge.
                self.stream.check_accepts()
            raise
        if duplicate is not None:
            pending = None if duplicate.end_offset <= self.stream.confirmed_offset else self.stream.last_durable
            return AppendResult(duplicate.base_offset, duplicate.end_offset, duplicate.append_time_ms, pending)
        if header.is_transactional or self.transactions.open:
            return self._check_transaction(header, verify, api_version)
        return None

    def _find_duplicate(self, header: BatchHeader) -> BatchEntry | None:
        """Return what a producer's batch repeats; None if it is new. Raises KafkaError.

        No client repeats a batch when it has ended its transaction. But librdkafka gives the sequence number of a
        record whose ack was lost, and which an abort has dropped, to another record. Taken for a duplicate, as by
        Apache Kafka, that one would be lost. With UNKNOWN_PRODUCER_ID clients abort, and go on with a new epoch.
        """
        producer_id, sequence = header.producer_id, header.base_sequence
        found = self.producers.check(producer_id, header.producer_epoch, sequence, header.record_count)
        if found is None or not header.is_transactional:
            return found
        if not self.transactions.includes(producer_id, found.base_offset):
            raise KafkaError(
                ErrorCode.UNKNOWN_PRODUCER_ID,
                f"producer {producer_id} sent sequence {sequence} again, of a transaction that has ended",
            )
        return found

    def _check_transaction(
        self, header: BatchHeader, verify: TransactionCheck | None, api_version: int
    ) -> VerificationWait | None:
        """Check the batch against the open transactions. Raises KafkaError."""
        transactional = header.is_transactional
        known = self.transactions.check_data(header.producer_id, transactional=transactional)
        # An epoch other than that of the open transaction has to be verified like a new transaction. Otherwise the
        # transaction's marker would look out of date, and READ_COMMITTED readers would wait forever.
        known = known and header.producer_epoch == self.producers.epoch(header.producer_id)
        if transactional and verify is None:
            raise KafkaError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a transactional id"
            )
        if transactional and not known:
            assert verify is not None, "checked above"
            producer = Producer(header.producer_id, header.producer_epoch)
            if not verify(self, producer):
                return VerificationWait(self, producer)
            if api_version >= ADDS_TO_TRANSACTION_SINCE:
                self.producers.check_first(header.producer_id, header.base_sequence)
        return None

    def append_marker(
        self,
        control: ControlType,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        bumped: bool = False,
    ) -> Durable | None:
        """Append a marker that ends a producer's transaction; None if the marker is durable already.

        `bumped` is True if the end of the transaction raised the epoch (transaction.version 2). The epoch then shows
        whether the marker was written before. Raises KafkaError, StorageFull, StorageStopped.
        """
        self.producers.check_epoch(producer_id, producer_epoch)
        self.transactions.check_marker(producer_id, coordinator_epoch)
        if bumped and producer_epoch == self.producers.epoch(producer_id):
            if producer_id in self.transactions.open:
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"marker for producer {producer_id} with epoch {producer_epoch}, the open transaction's own",
                )
            last = self._last_durable
            return None if last is None or last.done else last
        marker = build_marker(
            control,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=self.now_ms(),
        )
        return self.append_internal(marker).durable

    def append_internal(self, batch: bytearray) -> AppendResult:
        """Append a batch that the node has built (`build_batch`): set its offsets, check nothing."""
        view = memoryview(batch)
        header = parse_batch(view, 0)
        base_offset = self.stream.next_offset
        end_offset = base_offset + header.record_count
        patch(view, base_offset, self.leader_epoch)
        durable = self._append_to_stream(
            StreamBatch(self.stream.stream_id, base_offset, end_offset, header.record_count, header.max_timestamp, view)
        )
        if header.has_untimed:
            self.untimed_end = end_offset
        if header.is_transactional:
            self.transactions.forget_durable_markers(self.stream.confirmed_offset)
            apply_unsequenced(self.transactions, self.producers, view, header, base_offset, self.now_ms())
        return AppendResult(base_offset, end_offset, -1, durable)

    def _append_to_stream(self, batch: StreamBatch) -> Durable:
        durable = self.stream.append(batch)
        if batch.max_timestamp_ms > self.max_timestamp.timestamp_ms:
            self.max_timestamp = MaxTimestamp(batch.max_timestamp_ms, batch.base_offset)
        self.appended_bytes += len(batch.payload)
        self.requests += 1
        if self._listeners and durable is not self._last_durable:
            durable.add_done_callback(self._on_durable)
        self._last_durable = durable
        return durable

    def _note_stable_end(self) -> None:
        self._forget_stable_ends()
        end_offset = self.stream.next_offset
        stable = next((each.first_offset for each in self.transactions.open.values()), end_offset)
        self._stable_ends.append((end_offset, stable))

    def _encode_snapshot(self) -> bytes:
        self._note_stable_end()
        state = SnapshotState(self.max_timestamp, self.epochs, self.transactions, self.producers, self.untimed_end)
        return encode_snapshot(state, self.stream.start_offset)

    def vacate(self, vacated: Sequence[tuple[int, int, int]]) -> None:
        """Note the aborted transactions of which compaction has left only the markers.

        Each is a triple of producer id, first offset and offset of the marker. Snapshots leave them out, and they are
        removed once no cache can hold their data.
        """
        now_ms = self.now_ms()
        self.transactions.vacate(vacated, now_ms)
        self.transactions.forget_vacated(now_ms - VACATED_KEPT_MS, self._is_cached)

    def _is_cached(self, offset: int) -> bool:
        return offset >= self.stream.start_offset and self.stream.read_cached(offset, 1) is not None

    def expire_producers(self, before_ms: int) -> None:
        """Remove producers not used since `before_ms`, except those with an open transaction."""
        self.producers.expire(before_ms)
        self.transactions.keep_producers(self.producers.entries)

    def note_read(self, failure: StorageError | None) -> None:
        """Log a failed read, once for repeated failures with one reason; None notes a read that succeeded."""
        reason = "" if failure is None else str(failure)
        if reason and reason != self._read_failure:
            log.error("records cannot be read", partition=str(self), reason=reason)
        self._read_failure = reason

    def note_loaded(self, batches: Sequence[StreamBatch]) -> None:
        """Count records that a reader waited for."""
        self.loaded_bytes += sum(len(batch.payload) for batch in batches)

    def note_sent(self, size_bytes: int) -> None:
        """Count an answer with records."""
        self.sent_bytes += size_bytes
        self.requests += 1

    # waiting readers

    def add_listener(self, listener: ChangeListener) -> None:
        """Call `listener` whenever records become readable, until it is removed."""
        if not self._listeners and self._last_durable is not None and not self._last_durable.done:
            self._last_durable.add_done_callback(self._on_durable)
        self._listeners[listener] = None

    @property
    def has_listeners(self) -> bool:
        """True while a reader waits for the partition to change."""
        return bool(self._listeners)

    def remove_listener(self, listener: ChangeListener) -> None:
        """Stop calling `listener`, if it is registered."""
        self._listeners.pop(listener, None)

    def notify_listeners(self) -> None:
        """Call all listeners: the partition has changed in another way than by an append."""
        for listener in list(self._listeners):
            listener(self)

    def _on_durable(self, _: WalError | None) -> None:
        for listener in list(self._listeners):
            listener(self)
