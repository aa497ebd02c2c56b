"""The tail of a partition on the way to another node. Pure.

    per batch: u32 size of the record, record

The record is a batch as the log has it (`s3stream/append/WAL_RECORD.md`); the size is little-endian, like the record's
own fields. There is no checksum: the batches have their own, and so has TCP. The pieces are cut anywhere.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from anabranch.s3stream.append.wal_record import (
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_VERSION,
    RecordKind,
    WalRecordError,
    decode_record,
)
from anabranch.s3stream.model import StreamBatch
from anabranch.wal.interface import Buffer

TAIL_BYTES_MAX: Final = 32 << 20
"""Largest tail that is handed over."""
PIECE_BYTES: Final = 512 << 10
"""Size of a piece; well below the largest request between nodes."""
_SIZE: Final = Struct("<I")


class InvalidTail(Exception):
    """The tail does not have the batches that the sender names."""


def encode_tail(batches: Sequence[StreamBatch], epoch: int) -> bytes:
    """Encode batches that were appended under a stream epoch."""
    parts: list[Buffer] = []
    for stream_id, base, end, count, timestamp, payload in batches:
        header = RECORD_HEADER.pack(RECORD_VERSION, RecordKind.BATCH, 0, count, stream_id, epoch, base, end, timestamp)
        parts += (_SIZE.pack(len(header) + len(payload)), header, payload)
    return b"".join(parts)


def pieces(tail: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces of a tail with their positions; one without contents for an empty tail."""
    for position in range(0, max(len(tail), 1), PIECE_BYTES):
        yield position, tail[position : position + PIECE_BYTES]


def decode_tail(tail: memoryview, stream_id: int, end_offset: int, next_offset: int) -> Sequence[StreamBatch]:
    """Decode the batches of a stream from `end_offset` to `next_offset`; payloads are slices. Raises InvalidTail."""
    batches: list[StreamBatch] = []
    expected, at = end_offset, 0
    while at < len(tail):
        begin = at + _SIZE.size
        size = _SIZE.unpack_from(tail, at)[0] if begin <= len(tail) else 0
        at = begin + size
        if size < RECORD_HEADER_BYTES or at > len(tail):
            raise InvalidTail(f"a record of {size} bytes ends at {at}, and the tail at {len(tail)}")
        try:
            record = decode_record(-1, tail[begin:at])
        except WalRecordError as error:
            raise InvalidTail(str(error)) from error
        batch = record.batch
        if record.kind is not RecordKind.BATCH or (batch.stream_id, batch.base_offset) != (stream_id, expected):
            raise InvalidTail(f"expected stream {stream_id} from {expected}, found {batch[:3]}")
        expected = batch.end_offset
        batches.append(batch)
    if expected != next_offset:
        raise InvalidTail(f"the tail ends at {expected}, expected {next_offset}")
    return batches
