"""Checks of a batch that a client sends, in Kafka's order and words: framing, magic, size, CRC, counts, timestamps.

A batch that breaks no rule is looked at once, with a fixed amount of work for all of its records. What looks at single
records is in `record_checks`.
"""

import struct

from crc32c import crc32c

from broker.configs.topic import TopicConfig
from broker.partitions.record_checks import time_range
from protocol.batch import (
    CHECKED_POSITION,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    BatchHeader,
    check_client_batch,
    check_crc,
    parse_batch,
    records_fit,
)
from protocol.compression import Compression
from protocol.errors import CorruptBatch, ErrorCode, InvalidRecord, KafkaError
from wal.interface import Buffer

_PLAIN_ATTRIBUTES_END = Compression.ZSTD.value
"""Attributes below are a codec that every version may use, and nothing else."""
_LENGTH_POSITION = 8
_LENGTH = struct.Struct(">i")
_MAGIC = struct.Struct(">b")
_RECORD_BYTES_MIN = 14
"""What even the oldest format of a record takes; Kafka takes nothing shorter for one."""


def check_batch(
    records: Buffer | None, config: TopicConfig, api_version: int, now_ms: int, where: object
) -> tuple[memoryview, BatchHeader, bool]:
    """The one batch in `records`, for the partition that `where` shows. Raises KafkaError.

    The flag says that by its header some of its records lie out of the range of times: `record_checks` finds which.
    Every rule is looked at once; what breaks one goes the long way, which knows the error.
    """
    if records is not None and len(records) > HEADER_BYTES:
        view = records if type(records) is memoryview else memoryview(records)
        header = BatchHeader._make(HEADER.unpack_from(view))
        (
            base_offset,
            length,
            _,
            magic,
            crc,
            attributes,
            last_delta,
            _,
            max_timestamp,
            producer,
            _,
            sequence,
            count,
        ) = header
        if (
            magic == MAGIC
            and base_offset == 0
            and length + LOG_OVERHEAD_BYTES == len(view) <= config.max_message_bytes
            and 0 < count == last_delta + 1
            and 0 <= attributes < _PLAIN_ATTRIBUTES_END
            and (producer == NO_PRODUCER_ID or sequence >= 0)
            and crc32c(view[CHECKED_POSITION:]) == crc
            and max_timestamp <= now_ms + config.timestamp_after_max_ms
            and config.timestamp_before_max_ms > now_ms
            and records_fit(view, attributes, count)
        ):
            return view, header, False
    view, header = _parse(records, api_version)
    _check_rules(view, header, config, where)
    return view, header, not config.log_append_time and _lies_out_of_range(header, config, now_ms)


def _parse(records: Buffer | None, api_version: int) -> tuple[memoryview, BatchHeader]:
    """The one batch in `records`, framed by its own length."""
    if records is None or len(records) < MAGIC_POSITION + 1:
        raise InvalidRecord("Produce requests must have at least one record batch per partition")
    view = memoryview(records)
    _check_head(view, api_version)
    size = int.from_bytes(view[8:12], "big", signed=True) + LOG_OVERHEAD_BYTES
    if size < HEADER_BYTES:
        raise CorruptBatch(f"record batch of {size} bytes, less than its header of {HEADER_BYTES}")
    if size > len(view):
        raise InvalidRecord(f"record batch cut short: its length says {size} bytes, found {len(view)}")
    if len(view) - size > LOG_OVERHEAD_BYTES:
        following = int.from_bytes(view[size + 8 : size + 12], "big", signed=True) + LOG_OVERHEAD_BYTES
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


def _check_rules(view: memoryview, header: BatchHeader, config: TopicConfig, where: object) -> None:
    if header.base_offset != 0:
        raise InvalidRecord(f"base offset of the record batch for {where} should be 0, but it is {header.base_offset}")
    if len(view) > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"record batch of {len(view)} bytes for {where}, the maximum is {config.max_message_bytes}",
        )
    check_crc(view, header)
    check_client_batch(header)
    if not records_fit(view, header.attributes, header.record_count):
        raise InvalidRecord(
            f"{len(view) - HEADER_BYTES} bytes that are not {header.record_count} records "
            f"({header.compression.name.lower()})"
        )
    if header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a producer id")


def _lies_out_of_range(header: BatchHeader, config: TopicConfig, now_ms: int) -> bool:
    if header.is_log_append_time:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the timestamp type to log append time")
    earliest, latest = time_range(config, now_ms)
    return header.max_timestamp > latest or 0 <= header.base_timestamp < earliest


def _check_head(view: memoryview, api_version: int) -> None:
    """What Kafka looks at before it takes bytes for a batch: the length, then the magic."""
    (length,), (magic,) = _LENGTH.unpack_from(view, _LENGTH_POSITION), _MAGIC.unpack_from(view, MAGIC_POSITION)
    if length < _RECORD_BYTES_MIN:
        raise CorruptBatch(f"Record size {length} is less than the minimum record overhead ({_RECORD_BYTES_MIN})")
    if not 0 <= magic <= MAGIC:
        raise CorruptBatch(f"Invalid magic found in record: {magic}")
    if magic != MAGIC:
        raise InvalidRecord(
            f"Produce requests with version {api_version} are only allowed to contain record batches "
            f"with magic version {MAGIC}, found {magic}"
        )
