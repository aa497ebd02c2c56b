"""Checks that look at the single records of a batch, for topics whose configs ask for them or a batch that looks wrong.

What is wrong is told record by record, as Kafka does (KIP-467), so that a client can drop the records at fault.
"""

from collections.abc import Sequence
from typing import Final

from broker.topic_configs import TopicConfig
from protocol.batch import BatchHeader
from protocol.errors import ErrorCode, KafkaError
from protocol.records import decode_records
from wal.interface import Buffer

RECORD_ERRORS_MAX: Final = 1000
"""How many records of a batch are named; the batch is refused for all of them."""
_SHOWN_MAX: Final = 3

RecordError = tuple[int, str]
"""Index of a record in its batch, and what is wrong with it."""


class RecordsRefused(KafkaError):
    """A batch refused for some of its records."""

    def __init__(self, code: ErrorCode, message: str, errors: Sequence[RecordError]) -> None:
        super().__init__(code, message)
        self.errors: Final = errors[:RECORD_ERRORS_MAX]


def check_keys(batch: Buffer, where: object) -> None:
    """Raise INVALID_RECORD for records without a key: a compacted topic could never drop them."""
    problem = f"Compacted topic cannot accept message without key in topic partition {where}"
    errors = [(at, problem) for at, record in enumerate(decode_records(batch)) if record.key is None]
    if errors:
        shown = ", ".join(f"RecordError(batchIndex={at}, message='{text}')" for at, text in errors[:_SHOWN_MAX])
        raise RecordsRefused(
            ErrorCode.INVALID_RECORD,
            f"One or more records have been rejected due to {len(errors)} record errors in total, and only showing the "
            f"first three errors at most: [{shown}]",
            errors,
        )


def check_timestamps(batch: Buffer, header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    """Raise INVALID_TIMESTAMP for records that lie too far before or after the time; those without time may pass."""
    earliest, latest = now_ms - config.timestamp_before_max_ms, now_ms + config.timestamp_after_max_ms
    if header.max_timestamp <= latest and not 0 <= header.base_timestamp < earliest:
        return
    rule = f"is out of range. The timestamp should be within [{earliest}, {latest}]"
    errors = [
        (at, f"Timestamp {record.timestamp_ms} of message with offset {record.offset} {rule}")
        for at, record in enumerate(decode_records(batch))
        if record.timestamp_ms >= 0 and not earliest <= record.timestamp_ms <= latest
    ]
    if errors or header.max_timestamp > latest:
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP,
            "One or more records have been rejected due to invalid timestamp",
            errors,
        )
