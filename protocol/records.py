"""Single records: decoding them from batches and building batches of them.

For internal topics, tools, compaction by key and other uses that need keys or timestamps. Produce and Fetch do not
decode records.

A record is: length, attributes (unused), timestamp delta, offset delta, key, value, headers; lengths, deltas and
counts are zigzag varints and a length of -1 is null (KIP-98).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from struct import error as struct_error
from typing import Final

from anabranch.protocol.batch import (
    CONTROL_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_MASK,
    BatchHeader,
    parse_batch,
    write_crc,
)
from anabranch.protocol.compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from anabranch.protocol.errors import InvalidRecord, MalformedMessage
from anabranch.protocol.varint import read_varlong, varlong
from anabranch.protocol.wire import Buffer

RECORD_BYTES_MIN: Final = 7
_NULL: Final = varlong(-1)
_CONTROL_KEY: Final = Struct(">hh")
_MARKER_VALUE: Final = Struct(">hi")


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `offset` is -1 for a record without an offset: `build_batch` assigns one.

    Names of headers may be any bytes: those that are not UTF-8 are lone surrogates here (see `header_name_bytes`).
    """

    key: bytes | None
    value: bytes | None
    timestamp_ms: int = NO_TIMESTAMP
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = -1


class ControlType(IntEnum):
    """Outcome of a transaction, as its marker states it."""

    ABORT = 0
    COMMIT = 1


def decode_records(batch: Buffer, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> list[Record]:
    """Return the records of one whole batch. Does not verify the checksum.

    Raises CorruptBatch or UnsupportedMagic like `parse_batch`, InvalidRecord or DecompressedTooLarge like
    `decompress`, InvalidRecord for records that do not fill the batch exactly.
    """
    header = parse_batch(batch)
    data = decompress(
        header.compression,
        memoryview(batch)[HEADER_BYTES : header.size_bytes],
        bytes_max=decompressed_bytes_max,
    )
    return records_of(header, bytes(data))


def records_of(header: BatchHeader, body: bytes) -> list[Record]:
    """Return the records of a batch whose decompressed records are `body`.

    Raises InvalidRecord for records that do not fill it exactly.
    """
    if not 0 <= header.record_count <= len(body) // RECORD_BYTES_MIN:
        raise InvalidRecord(f"record batch of {header.record_count} records has room for {len(body)} bytes of them")
    records: list[Record] = []
    position = 0
    try:
        for _ in range(header.record_count):
            record, position = _read_record(body, position, header)
            records.append(record)
    except (IndexError, MalformedMessage) as error:
        raise InvalidRecord(f"record {len(records)} of {header.record_count} at byte {position}: {error}") from error
    if position != len(body):
        raise InvalidRecord(f"record batch: {len(body) - position} bytes after its {header.record_count} records")
    return records


def first_records(batch: Buffer, count: int, *, bytes_max: int) -> list[Record]:
    """Return up to `count` records from the beginning of a batch, as far as they lie in its first `bytes_max` bytes.

    Raises CorruptBatch, InvalidRecord, and DecompressedTooLarge for a compressed batch of more bytes.
    """
    header = parse_batch(batch)
    packed = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    if header.compression is Compression.NONE:
        body = bytes(packed[:bytes_max])
    else:
        body = bytes(decompress(header.compression, packed, bytes_max=bytes_max))
    records: list[Record] = []
    position = 0
    try:
        while len(records) < min(count, header.record_count):
            record, position = _read_record(body, position, header)
            records.append(record)
    except (IndexError, MalformedMessage):
        pass  # the record is cut off, or invalid
    return records


def _read_record(body: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    size, position = read_varlong(body, position)
    end = position + size
    if size < 0 or end > len(body):
        raise MalformedMessage(f"length {size}, found {len(body) - position} bytes")
    timestamp_delta, position = read_varlong(body, position + 1)
    offset_delta, position = read_varlong(body, position)
    key, position = _read_bytes(body, position, end)
    value, position = _read_bytes(body, position, end)
    count, position = read_varlong(body, position)
    if not 0 <= count <= (end - position) // 2:
        raise MalformedMessage(f"{count} headers in {end - position} bytes")
    headers = []
    for _ in range(count):
        name, position = _read_bytes(body, position, end)
        if name is None:
            raise MalformedMessage("a header without a key")
        content, position = _read_bytes(body, position, end)
        headers.append((name.decode(errors="surrogateescape"), content))
    if position != end:
        raise MalformedMessage(f"length ends at byte {end}, its fields at byte {position}")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    return Record(key, value, timestamp, tuple(headers), header.base_offset + offset_delta), end


def _read_bytes(body: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varlong(body, position)
    if size == -1:
        return None, position
    if size < 0 or position + size > end:
        raise MalformedMessage(f"a field of {size} bytes, found {end - position}")
    return body[position : position + size], position + size


def header_name_bytes(name: str) -> bytes:
    """Return the bytes of a decoded header's name."""
    return name.encode(errors="surrogateescape")


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    compression: Compression = Compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
    base_timestamp: int | None = None,
) -> bytearray:
    """Return a batch of `records`, at least one. A record without an offset gets the one after its predecessor's.

    `attributes` adds to those of the compression: `TRANSACTIONAL_MASK`, `CONTROL_MASK`. Record timestamps are stored
    relative to `base_timestamp`, by default the first record's.
    """
    assert records, "a batch holds at least one record"
    if base_timestamp is None:
        base_timestamp = records[0].timestamp_ms
    body = bytearray()
    delta = -1
    for record in records:
        delta = delta + 1 if record.offset < 0 else record.offset - base_offset
        _write_record(body, record, record.timestamp_ms - base_timestamp, delta)
    payload = compress(compression, body) if compression else body
    batch = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes | compression,
        delta,
        base_timestamp,
        max(record.timestamp_ms for record in records),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += payload
    write_crc(batch)
    return batch


def _write_record(body: bytearray, record: Record, timestamp_delta: int, offset_delta: int) -> None:
    fields = bytearray(1)
    fields += varlong(timestamp_delta)
    fields += varlong(offset_delta)
    _write_bytes(fields, record.key)
    _write_bytes(fields, record.value)
    fields += varlong(len(record.headers))
    for name, content in record.headers:
        _write_bytes(fields, header_name_bytes(name))
        _write_bytes(fields, content)
    body += varlong(len(fields))
    body += fields


def _write_bytes(fields: bytearray, value: bytes | None) -> None:
    if value is None:
        fields += _NULL
    else:
        fields += varlong(len(value))
        fields += value


def recompress(
    batch: Buffer, header: BatchHeader, records: Buffer, compression: Compression, *, level: int | None = None
) -> bytearray:
    """Return the batch with its records compressed by another codec, for topics that set `compression.type`.

    `records` are the batch's own, decompressed.
    """
    payload = compress(compression, records, level=level)
    recompressed = bytearray(memoryview(batch)[:HEADER_BYTES])
    recompressed += payload
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    attributes = header.attributes & ~7 | compression
    HEADER.pack_into(recompressed, 0, *header._replace(length=length, attributes=attributes))
    write_crc(recompressed)
    return recompressed


def build_marker(
    control: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Return the control batch that ends a transaction in a partition."""
    record = Record(_CONTROL_KEY.pack(0, control), _MARKER_VALUE.pack(0, coordinator_epoch), timestamp_ms)
    return build_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
    )


def control_record(batch: Buffer) -> tuple[int, int]:
    """Return the type of a control batch, and the epoch of the coordinator that wrote it (-1 if it is not a marker).

    Raises like `decode_records`.
    """
    (record,) = decode_records(batch)[:1]
    kind = control_type(record.key)
    value = record.value or b""
    epoch = _MARKER_VALUE.unpack_from(value)[1] if len(value) >= _MARKER_VALUE.size else -1
    return kind, epoch


def control_type(key: bytes | None) -> int:
    """Return the type in a control record's key: a `ControlType`, or an unknown one to be ignored.

    Raises InvalidRecord.
    """
    try:
        version, kind = _CONTROL_KEY.unpack_from(key or b"")
    except struct_error as error:
        raise InvalidRecord(f"control record with a key of {len(key or b'')} bytes") from error
    if version < 0:
        raise InvalidRecord(f"control record of version {version}")
    return int(kind)
