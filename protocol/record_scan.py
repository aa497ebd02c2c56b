"""Iteration over keys, offsets and timestamps of a batch's records, without decoding the rest.

Decompressed records may be far larger than their batch, or in memory that is unmapped afterwards. So only a window is
copied at a time, and the results do not refer to the input.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from anabranch.protocol.batch import RECORD_BYTES_MIN, BatchHeader
from anabranch.protocol.errors import InvalidRecord, MalformedMessage
from anabranch.protocol.varint import VARLONG_BYTES_MAX, read_varlong

WINDOW_BYTES: Final = 64 * 1024
RECORD_BYTES_MAX: Final = 2147483639
"""Size of a record that no topic limits: that of Java's largest array."""
TIMESTAMP_LIMIT_MS: Final = 1 << 62
"""Bound of timestamps that a rewritten record may have: the difference between any two then fits into 64 bits."""


class RecordHead(NamedTuple):
    """Offset, key and timestamp of a record."""

    offset: int
    key: bytes | None
    is_tombstone: bool
    timestamp_ms: int


def scan_records(data: memoryview, header: BatchHeader, size_max: int = RECORD_BYTES_MAX) -> Iterator[RecordHead]:
    """Yield the records in `data`, which is decompressed.

    Raises InvalidRecord if they do not fill it exactly, or the body of one has more than `size_max` bytes.
    """
    count = header.record_count
    if not 0 <= count <= len(data) // RECORD_BYTES_MIN:
        raise InvalidRecord(f"record batch of {count} records has room for {len(data)} bytes of them")
    window, start, position = b"", 0, 0
    at = 0
    try:
        while at < count:
            if len(window) - position < VARLONG_BYTES_MAX:
                window, start, position = _window(data, start + position, WINDOW_BYTES)
            size, body = _record_size(window, position, len(data) - start)
            if size > size_max:
                raise InvalidRecord(
                    f"Invalid record size: {size} exceeds the configured maximum record size of {size_max}."
                )
            if body + size > len(window):
                window, start, position = _window(data, start + position, size + WINDOW_BYTES)
                size, body = _record_size(window, position, len(data) - start)
            yield _head(window, body, body + size, header)
            position = body + size
            at += 1
    except (IndexError, MalformedMessage) as error:
        raise InvalidRecord(f"record {at} of {count} at byte {start + position}: {error}") from error
    if start + position != len(data):
        raise InvalidRecord(f"record batch: {len(data) - start - position} bytes after its {count} records")


def fits_batch(offset: int, timestamp_ms: int, header: BatchHeader) -> bool:
    """Return whether a record's offset is in its batch, and its timestamp can be stored in any rewritten batch.

    Records are stored as deltas to their batch, so a record that decodes may not fit into a rewritten batch.
    """
    in_range = header.base_offset <= offset <= header.last_offset
    return in_range and -TIMESTAMP_LIMIT_MS < timestamp_ms < TIMESTAMP_LIMIT_MS


def _record_size(window: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the length of a record and the position of its body. `end` is the position where the data ends."""
    size, body = read_varlong(window, position)
    if size < 0 or body + size > end:
        raise MalformedMessage(f"length {size}, found {end - body} bytes")
    return size, body


def _window(data: memoryview, start: int, size: int) -> tuple[bytes, int, int]:
    return bytes(data[start : start + size]), start, 0


def _head(window: bytes, position: int, end: int, header: BatchHeader) -> RecordHead:
    timestamp_delta, position = read_varlong(window, position + 1)
    offset_delta, position = read_varlong(window, position)
    size, position = _size(window, position, end)
    key = None if size < 0 else window[position : position + size]
    size, position = _size(window, max(position, position + size), end)
    is_tombstone = size < 0
    position = max(position, position + size)
    count = window[position]
    position += 1
    if count:
        position = _skip_headers(window, position - 1, end)
    if position != end:
        raise MalformedMessage(f"length ends {end - position} bytes from where its fields do")
    timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
    return RecordHead(header.base_offset + offset_delta, key, is_tombstone, timestamp)


def _skip_headers(window: bytes, position: int, end: int) -> int:
    count, position = read_varlong(window, position)
    if not 0 <= count <= (end - position) // 2:
        raise MalformedMessage(f"{count} headers in {end - position} bytes")
    for _ in range(count):
        size, position = _size(window, position, end)
        if size < 0:
            raise MalformedMessage("a header without a key")
        size, position = _size(window, position + size, end)
        position = max(position, position + size)
    return position


def _size(window: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the length of a field, -1 for null, and the position of its bytes."""
    size = window[position]
    position += 1
    if size > 127:
        size, position = read_varlong(window, position - 1)
    else:
        size = size >> 1 ^ -(size & 1)
    if size < -1 or position + size > end:
        raise MalformedMessage(f"a field of {size} bytes, found {end - position}")
    return size, position
