"""A partition this node leads: Kafka's rules for appending a record batch, over a stream that knows nothing of Kafka.

The append path does a fixed amount of work per batch, none per record (but for compacted topics, whose records must
have keys). The batch stays the memoryview of the frame it came in; base offset and leader epoch, which lie outside the
CRC, are patched in place. What is checked, in Kafka's order: framing, magic, size, CRC, counts, timestamps, sequence.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker.configs import TopicConfig
from broker.producers import NO_PRODUCER_ID, ProducerStates
from protocol.errors import CorruptBatch, ErrorCode, InvalidRecord, KafkaError
from protocol.records import (
    BATCH_HEADER_BYTES,
    BatchHeader,
    Compression,
    check_crc,
    decode_records,
    parse_batch,
    patch,
    set_log_append_time,
)
from s3stream.errors import StorageFull
from s3stream.model import StreamBatch
from s3stream.stream import Stream
from wal.interface import Buffer, Durable, WalError

MAGIC = 2
_MAGIC_AT = 16
_LOG_OVERHEAD_BYTES = 12
Waiter = Callable[["Partition", int], None]
"""Called with how many bytes became readable."""


class Appended(NamedTuple):
    """Outcome of an append. `durable` is None when a duplicate's original is durable already."""

    base_offset: int
    end_offset: int
    append_time_ms: int
    durable: Durable | None


class Partition:
    """State and rules of one partition; its stream carries the bytes."""

    __slots__ = (
        "_last_durable",
        "_waiters",
        "appended_bytes",
        "config",
        "index",
        "leader_epoch",
        "now_ms",
        "producers",
        "stream",
        "topic",
        "topic_id",
    )

    def __init__(
        self, topic: str, topic_id: bytes, index: int, stream: Stream, config: TopicConfig, now_ms: Callable[[], int]
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.index = index
        self.stream = stream
        self.leader_epoch = stream.leader_epoch
        self.config = config
        self.now_ms = now_ms
        self.appended_bytes = 0
        self._last_durable: Durable | None = None
        self._waiters: dict[Waiter, None] = {}
        self.producers = ProducerStates.decode(stream.snapshot)
        for batch in stream.recovered:
            self._replay(batch)
        stream.snapshot_source = self.producers.encode

    def __repr__(self) -> str:
        return f"{self.topic}-{self.index}"

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return self.stream.start_offset

    @property
    def high_watermark(self) -> int:
        """End of what is durable."""
        return self.stream.confirmed_offset

    @property
    def last_stable_offset(self) -> int:
        """End of what a reader of committed data may see; the high watermark as long as there are no transactions."""
        return self.stream.confirmed_offset

    # appending

    def append(self, records: Buffer | None, api_version: int = 9) -> Appended:
        """Append the one batch a client sent. Raises KafkaError, or the stream's StorageFull and StorageStopped."""
        view, header = self._parse(records, api_version)
        now_ms = self.now_ms()
        self._check_batch(view, header)
        self._check_timestamps(header, now_ms)
        if self.config.compacted:
            _check_keys(view)
        count = header.record_count
        if header.producer_id != NO_PRODUCER_ID:
            duplicate = self.producers.check(
                header.producer_id, header.producer_epoch, header.base_sequence, count
            )
            if duplicate is not None:
                pending = None if duplicate.end_offset <= self.stream.confirmed_offset else self._last_durable
                return Appended(duplicate.base_offset, duplicate.end_offset, duplicate.append_time_ms, pending)
        append_time_ms = -1
        max_timestamp_ms = header.max_timestamp
        if self.config.log_append_time:
            append_time_ms = max_timestamp_ms = now_ms
            set_log_append_time(view, now_ms)
        base_offset = self.stream.next_offset
        end_offset = base_offset + count
        patch(view, base_offset, self.leader_epoch)
        batch = StreamBatch(self.stream.stream_id, base_offset, end_offset, count, max_timestamp_ms, view)
        try:
            durable = self._append_to_stream(batch)
        except StorageFull:
            patch(view, 0, -1)  # as it came: the caller waits and appends it again
            raise
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
        return Appended(base_offset, end_offset, append_time_ms, durable)

    def append_internal(self, batch: bytearray) -> Appended:
        """Append a batch the node itself has built (`protocol.records.build_batch`): offsets are set, nothing checked."""
        view = memoryview(batch)
        header = parse_batch(view, 0)
        base_offset = self.stream.next_offset
        end_offset = base_offset + header.record_count
        patch(view, base_offset, self.leader_epoch)
        durable = self._append_to_stream(
            StreamBatch(
                self.stream.stream_id, base_offset, end_offset, header.record_count, header.max_timestamp, view
            )
        )
        return Appended(base_offset, end_offset, -1, durable)

    def _append_to_stream(self, batch: StreamBatch) -> Durable:
        durable = self.stream.append(batch)
        self.appended_bytes += len(batch.payload)
        if self._waiters and durable is not self._last_durable:
            durable.add_done_callback(self._wake)
        self._last_durable = durable
        return durable

    def _parse(self, records: Buffer | None, api_version: int) -> tuple[memoryview, BatchHeader]:
        """The one batch in `records`, framed by its own length."""
        if records is None or len(records) < _MAGIC_AT + 1:
            raise InvalidRecord("Produce requests must have at least one record batch per partition")
        view = memoryview(records)
        if view[_MAGIC_AT] != MAGIC:
            raise InvalidRecord(
                f"Produce requests with version {api_version} are only allowed to contain record batches "
                f"with magic version {MAGIC}, found {view[_MAGIC_AT]}"
            )
        size = int.from_bytes(view[8:12], "big", signed=True) + _LOG_OVERHEAD_BYTES
        if size < BATCH_HEADER_BYTES:
            raise CorruptBatch(f"record batch of {size} bytes, less than its header of {BATCH_HEADER_BYTES}")
        if size > len(view):
            raise InvalidRecord(f"record batch cut short: its length says {size} bytes, found {len(view)}")
        if len(view) - size > _LOG_OVERHEAD_BYTES:
            following = int.from_bytes(view[size + 8 : size + 12], "big", signed=True) + _LOG_OVERHEAD_BYTES
            if following <= len(view) - size:
                raise InvalidRecord(
                    f"Produce requests with version {api_version} are only allowed to contain exactly one record batch "
                    "per partition"
                )
        view = view[:size]
        header = parse_batch(view, 0)
        if header.compression == Compression.ZSTD and api_version < 7:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"Produce requests with version {api_version} are not allowed to use ZStandard compression",
            )
        return view, header

    def _check_batch(self, view: memoryview, header: BatchHeader) -> None:
        if header.base_offset != 0:
            raise InvalidRecord(f"base offset of the record batch for {self} should be 0, but it is {header.base_offset}")
        if len(view) > self.config.max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"record batch of {len(view)} bytes for {self}, the maximum is {self.config.max_message_bytes}",
            )
        check_crc(view, header)
        count = header.record_count
        if count <= 0 or header.last_offset_delta + 1 != count:
            raise InvalidRecord(f"record batch for {self} reports {count} records, its last offset delta is "
                                f"{header.last_offset_delta}")
        if header.is_control:
            raise InvalidRecord("Clients are not allowed to write control records")
        if header.is_transactional:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "this node does not serve transactions yet")
        if header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
            raise InvalidRecord(f"invalid sequence number {header.base_sequence} of producer {header.producer_id}")

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        config = self.config
        if config.log_append_time:
            return
        if header.is_log_append_time:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the timestamp type to log append time"
            )
        if header.max_timestamp > now_ms + config.timestamp_after_max_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {header.max_timestamp} is more than {config.timestamp_after_max_ms} ms after {now_ms}",
            )
        if 0 <= header.base_timestamp < now_ms - config.timestamp_before_max_ms:
            raise KafkaError(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamp {header.base_timestamp} is more than {config.timestamp_before_max_ms} ms before {now_ms}",
            )

    def _replay(self, batch: StreamBatch) -> None:
        """Bring the producer state forward over a batch found in the WAL."""
        header = parse_batch(memoryview(batch.payload), 0)
        if header.producer_id == NO_PRODUCER_ID:
            return
        self.producers.update(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.record_count,
            base_offset=batch.base_offset,
            end_offset=batch.end_offset,
            append_time_ms=header.max_timestamp if header.is_log_append_time else -1,
            now_ms=self.now_ms(),
        )

    # waiting readers

    def add_waiter(self, waiter: Waiter) -> None:
        """Have `waiter` called whenever something becomes readable, until it is removed."""
        if not self._waiters and self._last_durable is not None and not self._last_durable.done:
            self._last_durable.add_done_callback(self._wake)
        self._waiters[waiter] = None

    def remove_waiter(self, waiter: Waiter) -> None:
        """Stop calling `waiter`; no error when it is not there."""
        self._waiters.pop(waiter, None)

    def wake_all(self) -> None:
        """Have all waiters look again: the partition has changed in another way than by an append."""
        for waiter in list(self._waiters):
            waiter(self, self.appended_bytes)

    def _wake(self, _: WalError | None) -> None:
        for waiter in list(self._waiters):
            waiter(self, self.appended_bytes)


def _check_keys(view: memoryview) -> None:
    keyless: Sequence[int] = [at for at, record in enumerate(decode_records(view)) if record.key is None]
    if keyless:
        raise InvalidRecord("Compacted topic cannot accept message without key")
