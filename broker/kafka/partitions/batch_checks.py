"""Checks of a batch that a client sends: framing, magic, size, CRC, counts, timestamps.

Order and messages of the checks are Kafka's. A valid batch takes a fixed amount of work, whatever the number of its
records. Checks of single records are in `record_checks`.
"""

import struct

from crc32c import crc32c

from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.record_checks import time_range
from anabranch.protocol.batch import (
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
)
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import CorruptBatch, ErrorCode, InvalidRecord, KafkaError
from anabranch.protocol.record_shape import has_plain_frame, records_fit
from anabranch.wal.interface import Buffer

_PLAIN_ATTRIBUTES_END = Compression.ZSTD.value
"""Attributes below this value are a codec that every version may use, without any flag."""
_LENGTH_POSITION = 8
_LENGTH = struct.Struct(">i")
_MAGIC = struct.Struct(">b")
_RECORD_BYTES_MIN = 14
"""Smallest record of the oldest format. Kafka refuses anything shorter."""


def check_batch(
    records: Buffer | None, config: TopicConfig, api_version: int, now_ms: int, where: object
) -> tuple[memoryview, BatchHeader, bool, bool]:
    """Check the one batch in `records`; `where` names the partition in errors. Raises KafkaError.

    Returns the batch, its header, and two findings. The first: the header shows timestamps outside the allowed range,
    so that `record_checks` finds the records. The second: the records are compressed in an unusual way, and must be
    decompressed to be accepted. (A named tuple would cost a twentieth of a small batch.)

    All rules are checked in one expression first; a batch that fails it is checked rule by rule, to find the error.
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
            and (
                has_plain_frame(view, HEADER_BYTES, attributes, count)
                if attributes
                else records_fit(view, HEADER_BYTES, len(view) - HEADER_BYTES, count)
            )
        ):
            return view, header, False, False
    view, header = _parse(records, api_version)
    _check_rules(view, header, config, where)
    codec = header.compression
    out_of_range = not config.log_append_time and _lies_out_of_range(header, config, now_ms)
    odd_frame = bool(codec) and not has_plain_frame(view, HEADER_BYTES, codec, header.record_count)
    return view, header, out_of_range, odd_frame


def _parse(records: Buffer | None, api_version: int) -> tuple[memoryview, BatchHeader]:
    """Cut the one batch out of `records` by its length field."""
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
    size = len(view) - HEADER_BYTES
    if not header.compression and not records_fit(view, HEADER_BYTES, size, header.record_count):
        raise InvalidRecord(f"{size} bytes that are not {header.record_count} records")
    if header.is_transactional and header.producer_id == NO_PRODUCER_ID:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "a transactional batch without a producer id")


def _lies_out_of_range(header: BatchHeader, config: TopicConfig, now_ms: int) -> bool:
    if header.is_log_append_time:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer cannot set the timestamp type to log append time")
    earliest, latest = time_range(config, now_ms)
    return header.max_timestamp > latest or 0 <= header.base_timestamp < earliest


def _check_head(view: memoryview, api_version: int) -> None:
    """Check length and magic, which Kafka checks before it parses a batch."""
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
