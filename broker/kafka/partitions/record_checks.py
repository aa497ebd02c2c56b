"""Checks of the single records of a batch, where the topic's configs or the batch's header require them.

Errors name each record at fault, as in Kafka (KIP-467), so that a client can drop these records. The check ends at the
number of errors that an answer can name.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.record_work import Inspection, RecordWork
from anabranch.protocol.batch import BatchHeader
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.record_scan import RECORD_BYTES_MAX, RecordHead, fits_batch, scan_records
from anabranch.protocol.records import recompress
from anabranch.wal.interface import Buffer

RECORD_ERRORS_MAX: Final = 1000
"""Records at fault that an answer names. The whole batch is refused."""
_SHOWN_MAX: Final = 3

RecordError = tuple[int, str]
"""Index of a record in its batch, and the error message."""


class RecordsRefused(KafkaError):
    """The batch is refused because of some of its records."""

    def __init__(self, code: ErrorCode, message: str, errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.errors: Final = errors


class PreparedBatch(NamedTuple):
    """A batch whose records were checked under `config`, ready to be appended."""

    config: TopicConfig
    view: memoryview


class RequiredWork(NamedTuple):
    """Reasons why the records of a batch must be inspected."""

    timestamps: bool
    """The header shows timestamps out of range."""
    keys: bool
    """The topic is compacted: every record needs a key."""
    recompression: bool
    """The topic's codec differs from that of the batch."""
    sizes: bool
    """The batch is compressed, and the topic limits the size of a record."""


def inspection_of(
    view: memoryview,
    header: BatchHeader,
    config: TopicConfig,
    required: RequiredWork,
    now_ms: int,
    where: object,
    work: RecordWork,
) -> Inspection[PreparedBatch]:
    """Return the inspection that checks the records of a batch, and recompresses them if required.

    It raises KafkaError.
    """
    size_max = config.record_bytes_max if required.sizes else RECORD_BYTES_MAX

    def records(data: memoryview) -> Iterator[RecordHead]:
        return check_frame(work.interruptible(scan_records(data, header, size_max)), header, where)

    def inspect(data: memoryview) -> PreparedBatch:
        if required.timestamps:
            check_timestamps(records(data), header, config, now_ms)
        if required.keys:
            check_keys(records(data), where)
        if not (required.timestamps or required.keys):
            deque(records(data), maxlen=0)
        return PreparedBatch(config, _recompressed(view, header, data, config) if required.recompression else view)

    return inspect


def check_frame(records: Iterable[RecordHead], header: BatchHeader, where: object) -> Iterator[RecordHead]:
    """Yield the same records. Raises INVALID_RECORD at the first that compaction could not rewrite."""
    for at, record in enumerate(records):
        if not fits_batch(record.offset, record.timestamp_ms, header):
            problem = (
                f"Record {at} with offset {record.offset} and timestamp {record.timestamp_ms} does not fit its batch "
                f"in topic partition {where}"
            )
            raise RecordsRefused(ErrorCode.INVALID_RECORD, problem, [(at, problem)])
        yield record


def check_keys(records: Iterable[RecordHead], where: object) -> None:
    """Raise INVALID_RECORD for records without a key: compaction could never remove them."""
    problem = f"Compacted topic cannot accept message without key in topic partition {where}"
    errors = _first_errors((at, problem) for at, record in enumerate(records) if record.key is None)
    if errors:
        shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in errors[:_SHOWN_MAX])
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {len(errors)} record errors in total, and only showing the "
            f"first three errors at most: [{shown}]",
            errors,
        )


def check_timestamps(records: Iterable[RecordHead], header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Raise INVALID_TIMESTAMP for records out of the allowed range. Records without a timestamp are accepted."""
    earliest, latest = time_range(config, now_ms)
    rule = f"is out of range. The timestamp should be within [{earliest}, {latest}]"
    errors = _first_errors(
        (at, f"Timestamp {record.timestamp_ms} of message with offset {record.offset} {rule}")
        for at, record in enumerate(records)
        if record.timestamp_ms >= 0 and not earliest <= record.timestamp_ms <= latest
    )
    if errors or header.max_timestamp > latest:
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            errors,
        )


def time_range(config: TopicConfig, now_ms: int) -> tuple[int, int]:
    """Return the earliest and latest timestamp that a record may have, in ms."""
    return now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms


def _first_errors(errors: Iterator[RecordError]) -> Sequence[RecordError]:
    return list(islice(errors, RECORD_ERRORS_MAX))


def _recompressed(view: Buffer, header: BatchHeader, data: memoryview, config: TopicConfig) -> memoryview:
    """Recompress the batch with the topic's codec. Raises MESSAGE_TOO_LARGE if that makes it too large."""
    assert config.compression is not None, "only a topic with a codec recompresses"
    batch = recompress(view, header, data, config.compression, level=config.compression_level)
    if len(batch) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"record batch of {len(batch)} bytes as {config.compression.name.lower()}, the maximum is "
            f"{config.max_message_bytes}",
        )
    return memoryview(batch)
