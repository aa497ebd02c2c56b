"""The body of a WAL record as the engine writes it, described in `s3stream/append/WAL_RECORD.md`.

The WAL checks a CRC over the whole body, so the body has none. Integers are little-endian.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import StreamBatch

RECORD_VERSION = 1
RECORD_HEADER = Struct("<BBHIqqqqq")  # version, kind, 0, record count, stream, epoch, base, end, max timestamp
RECORD_HEADER_BYTES = RECORD_HEADER.size

assert RECORD_HEADER_BYTES == 48, "the header has a fixed size"


class RecordKind(IntEnum):
    """Kind of a WAL record."""

    BATCH = 0
    """An append: the payload follows the header."""
    RESET = 1
    """Voids the earlier records of a stream that was taken over from another node, or given up. No payload."""


class WalRecordError(StorageError):
    """A WAL record whose checksum is right but whose content is invalid for this version."""


class WalRecord(NamedTuple):
    """A decoded record."""

    wal_offset: int
    kind: RecordKind
    epoch: int
    """Stream epoch under which the record was written."""
    batch: StreamBatch


def encode_reset(stream_id: int, epoch: int, offset: int) -> bytes:
    """Encode a record that voids the stream's earlier ones; appends under `epoch` begin at `offset`."""
    return RECORD_HEADER.pack(RECORD_VERSION, RecordKind.RESET, 0, 0, stream_id, epoch, offset, offset, -1)


def decode_record(wal_offset: int, body: memoryview) -> WalRecord:
    """Decode a record; the payload is a slice of `body`. Raises WalRecordError."""
    if len(body) < RECORD_HEADER_BYTES:
        raise WalRecordError(
            f"WAL record at offset {wal_offset}: expected at least {RECORD_HEADER_BYTES} bytes, found {len(body)}"
        )
    version, kind, _, count, stream_id, epoch, base, end, timestamp = RECORD_HEADER.unpack_from(body)
    if version != RECORD_VERSION:
        raise WalRecordError(f"WAL record at offset {wal_offset}: expected version {RECORD_VERSION}, found {version}")
    if kind == RecordKind.BATCH:
        if not 0 <= base < end:
            raise WalRecordError(f"WAL record at offset {wal_offset}: stream {stream_id} has the range [{base}, {end})")
    elif kind != RecordKind.RESET:
        raise WalRecordError(f"WAL record at offset {wal_offset}: expected kind 0 or 1, found {kind}")
    batch = StreamBatch(stream_id, base, end, count, timestamp, body[RECORD_HEADER_BYTES:])
    return WalRecord(wal_offset, RecordKind(kind), epoch, batch)
