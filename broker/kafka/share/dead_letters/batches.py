"""Record batches of dead letters, as Apache Kafka 4.4 writes them.

A dead letter has headers that name the record and tell why it was given up. With copies it has the key and the value of
the record, too. Headers of the record are not copied. Its timestamp is the time at which it is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from anabranch.broker.kafka.share.partition.machine import DeadLetter
from anabranch.protocol.batch import HEADER_BYTES
from anabranch.protocol.records import Record, build_batch

TOPIC_HEADER: Final = "__dlq.errors.topic"
PARTITION_HEADER: Final = "__dlq.errors.partition"
OFFSET_HEADER: Final = "__dlq.errors.offset"
GROUP_HEADER: Final = "__dlq.errors.group"
DELIVERY_COUNT_HEADER: Final = "__dlq.errors.delivery.count"
MESSAGE_HEADER: Final = "__dlq.errors.message"
REJECTED: Final = "Offset rejected by client."
USED_UP: Final = "Offset delivery count exceeded the threshold."
FIELD_BYTES_MAX: Final = 5
"""Bytes of the length of a key, a value or a header's part, at most."""
RECORD_FRAME_BYTES_MAX: Final = 26
"""Bytes of a record without key, value and headers, at most."""


class Source(NamedTuple):
    """The share partition whose records are given up."""

    group_id: str
    topic: str
    partition: int


class DeadBatch(NamedTuple):
    """One batch of dead letters."""

    records: bytearray
    """The batch as Produce takes it."""
    size: int
    """Number of dead letters."""


def build_dead_batch(
    source: Source, letters: Sequence[DeadLetter], copies: Mapping[int, Record], now_ms: int, *, bytes_max: int
) -> DeadBatch:
    """Build a batch of the first dead letters: as many as `bytes_max` has room for, and at least one.

    `copies` has the records to be copied, by offset. One that is too large for a batch of its own is not copied.
    """
    records: list[Record] = []
    room_bytes = bytes_max - HEADER_BYTES
    for offset, letter in _offsets(letters):
        headers = _headers(source, offset, letter)
        copy = copies.get(offset)
        record = Record(None if copy is None else copy.key, None if copy is None else copy.value, now_ms, headers)
        size_bytes = _size_bytes_max(record)
        if size_bytes > bytes_max - HEADER_BYTES:
            record = Record(None, None, now_ms, headers)
            size_bytes = _size_bytes_max(record)
        if records and size_bytes > room_bytes:
            break
        room_bytes -= size_bytes
        records.append(record)
    return DeadBatch(build_batch(records), len(records))


def _offsets(letters: Sequence[DeadLetter]) -> Iterator[tuple[int, DeadLetter]]:
    for letter in letters:
        for offset in range(letter.first_offset, letter.last_offset + 1):
            yield offset, letter


def _headers(source: Source, offset: int, letter: DeadLetter) -> tuple[tuple[str, bytes | None], ...]:
    return (
        (TOPIC_HEADER, source.topic.encode()),
        (PARTITION_HEADER, b"%d" % source.partition),
        (OFFSET_HEADER, b"%d" % offset),
        (GROUP_HEADER, source.group_id.encode()),
        (DELIVERY_COUNT_HEADER, b"%d" % letter.delivery_count),
        (MESSAGE_HEADER, (REJECTED if letter.is_rejected else USED_UP).encode()),
    )


def _size_bytes_max(record: Record) -> int:
    """Return the size of a record in a batch, or a little more."""
    fields = [record.key, record.value, *(part for name, value in record.headers for part in (name.encode(), value))]
    return RECORD_FRAME_BYTES_MAX + sum(FIELD_BYTES_MAX + len(field or b"") for field in fields)


def split_letters(letters: Sequence[DeadLetter], size: int) -> tuple[Sequence[DeadLetter], Sequence[DeadLetter]]:
    """Return the dead letters of the first `size` offsets, and the others."""
    for index, letter in enumerate(letters):
        if size < letter.size:
            if not size:
                return letters[:index], letters[index:]
            middle = letter.first_offset + size
            first, second = letter._replace(last_offset=middle - 1), letter._replace(first_offset=middle)
            return [*letters[:index], first], [second, *letters[index + 1 :]]
        size -= letter.size
    return letters, ()
