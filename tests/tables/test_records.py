"""The vectorised decoder gives the same records as the record-by-record decoder of `protocol.records`."""

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol.batch import HEADER_BYTES, parse_batch
from anabranch.protocol.errors import InvalidRecord, KafkaError
from anabranch.protocol.records import Record, build_batch
from anabranch.protocol.records import decode_records as decode_singly
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.tables.blocks import COLUMN_TYPES
from anabranch.tables.records import (
    BatchBodies,
    decode_records,
    gather,
    gather_headers,
    read_varints,
    timestamps,
)

Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def bodies_of(batches: Sequence[bytes]) -> BatchBodies:
    heads = [parse_batch(batch) for batch in batches]
    ends = np.cumsum([len(batch) for batch in batches])
    return BatchBodies(
        start=ends - [len(batch) - HEADER_BYTES for batch in batches],
        end=ends,
        records=np.array([head.record_count for head in heads]),
        base_offset=np.array([head.base_offset for head in heads]),
        base_timestamp=np.array([head.base_timestamp for head in heads]),
        append_time=np.full(len(heads), -1),
        source=np.zeros(len(heads), np.int64),
        last_offset=np.array([head.base_offset + head.last_offset_delta for head in heads]),
    )


def decode(batches: Sequence[bytes]) -> list[Row]:
    data, memory = b"".join(batches), ReadBufferPool()
    bodies = bodies_of(batches)
    found = decode_records(np.frombuffer(data, np.uint8), bodies)
    keys = gather(data, found.key_start, found.key_bytes, pa.binary(), memory).to_pylist()
    values = gather(data, found.value_start, found.value_bytes, pa.binary(), memory).to_pylist()
    headers = gather_headers(found, bodies, COLUMN_TYPES["headers"], memory)
    headers.validate(full=True)
    rows = zip(found.offset.tolist(), found.timestamp_ms.tolist(), keys, values, headers.to_pylist(), strict=True)
    return [
        (offset, time, key, value, [(each["key"], each["value"]) for each in items or ()])
        for offset, time, key, value, items in rows
    ]


def expected(batches: Sequence[bytes]) -> list[Row]:
    """Records as the protocol reads them; names of headers that are not UTF-8 are shown with replacements."""

    def shown(name: str) -> str:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    return [
        (each.offset, each.timestamp_ms, each.key, each.value, [(shown(name), value) for name, value in each.headers])
        for batch in batches
        for each in decode_singly(batch)
    ]


content = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=5), content), max_size=3).map(tuple)
record_lists = st.lists(
    st.builds(Record, content, content, st.integers(0, 2**41), header_lists), min_size=1, max_size=30
)


@given(st.lists(record_lists, min_size=1, max_size=5))
@settings(max_examples=60)
def test_any_batches(lists: list[list[Record]]) -> None:
    batches, offset = [], 0
    for records in lists:
        batches.append(bytes(build_batch(records, base_offset=offset)))
        offset += len(records)
    assert decode(batches) == expected(batches)


@pytest.mark.parametrize("size", [0, 3, 60, 64, 1000, 9000])
@pytest.mark.parametrize("count", [1, 23, 24, 200, 9000])
def test_equal_records_and_those_that_break_the_run(size: int, count: int) -> None:
    value = bytes(size)
    records = [
        Record(b"k" if at % 70 == 69 else None, value, 5_000 + at) for at in range(min(count, 400_000 // (size + 1)))
    ]
    batches = [bytes(build_batch(records, base_offset=10))]
    assert decode(batches) == expected(batches)


def spread(sizes: Sequence[int], gaps: Sequence[int]) -> tuple[list[bytes | None], pa.Array, ReadBufferPool]:
    """Gather values of these sizes, with a gap before each. Returns those expected, those found, and the memory."""
    start = np.cumsum(np.array(gaps)) + np.concatenate(([0], np.cumsum(np.maximum(sizes, 0))[:-1]))
    data = random.Random(7).randbytes(int(start[-1]) + max(sizes[-1], 0))
    wanted = [data[at : at + size] if size >= 0 else None for at, size in zip(start.tolist(), sizes, strict=True)]
    memory = ReadBufferPool()
    return wanted, gather(data, start, np.array(sizes), pa.binary(), memory), memory


@given(st.lists(st.tuples(st.sampled_from([-1, 0, 1, 700, 20_000]), st.integers(0, 3), st.integers(1, 40)), min_size=1))
@settings(max_examples=60)
def test_values_in_runs_and_singly(runs: list[tuple[int, int, int]]) -> None:
    sizes = [size for size, _, count in runs for _ in range(count)]
    gaps = [gap for _, gap, count in runs for _ in range(count)]
    wanted, found, _ = spread(sizes, gaps)
    found.validate(full=True)
    assert found.to_pylist() == wanted


def test_runs_of_equal_values_go_to_recycled_memory() -> None:
    sizes = [1000] * 200 + [-1] + [1000] * 200 + [0] + [1001] * 200
    wanted, found, memory = spread(sizes, [9] * len(sizes))
    assert found.to_pylist() == wanted
    assert found.null_count == 1
    assert memory.free_bytes < memory.mapped_bytes
    del found
    assert memory.free_bytes == memory.mapped_bytes > 0


def test_short_runs_are_left_to_arrow() -> None:
    wanted, found, memory = spread([1000, 1001] * 300, [9] * 600)
    assert found.to_pylist() == wanted
    assert not memory.mapped_bytes


def test_records_of_all_lengths_walked_singly() -> None:
    rng = random.Random(5)
    records = [Record(None, rng.randbytes(rng.choice((0, 40, 70, 9000, 70_000))), at) for at in range(300)]
    batches = [bytes(build_batch(records))]
    assert decode(batches) == expected(batches)


def test_many_short_batches_are_walked_side_by_side() -> None:
    rng = random.Random(6)
    batches, offset = [], 0
    for _ in range(300):
        records = [
            Record(rng.randbytes(rng.randrange(9)), rng.randbytes(rng.randrange(300)), at)
            for at in range(rng.randrange(1, 4))
        ]
        batches.append(bytes(build_batch(records, base_offset=offset)))
        offset += len(records)
    assert decode(batches) == expected(batches)


def test_offsets_beyond_32_bits_and_gaps() -> None:
    records = [Record(b"a", b"b", 7, (), 2**40 + delta) for delta in (0, 5, 2**31 - 1)]
    batches = [bytes(build_batch(records, base_offset=2**40))]
    assert decode(batches) == expected(batches)


def test_what_is_no_record_is_refused_wherever_it_is_broken() -> None:
    records = [Record(b"key", bytes(at), at, (("h", b"v"),)) for at in range(30)]
    whole = bytes(build_batch(records))
    for position in range(HEADER_BYTES, len(whole), 3):
        for value in (0, 1, 127, 128, 255):
            broken = bytearray(whole)
            broken[position] = value
            try:
                wanted = expected([bytes(broken)])
            except KafkaError:
                with pytest.raises((InvalidRecord, pa.ArrowInvalid)):
                    decode([bytes(broken)])
            else:
                assert decode([bytes(broken)]) == wanted


@pytest.mark.parametrize("part", ["record", "key", "value", "headers", "name", "content"])
@pytest.mark.parametrize("batches", [1, 200])
def test_a_length_of_64_bits_is_refused(part: str, batches: int) -> None:
    """A sum with it would wrap around, and pass for one before the end of the record."""
    data = framed() + framed(**{part: 2**63 - 1})
    start = len(data) * np.arange(batches)
    zero, two = np.zeros(batches, np.int64), np.full(batches, 2)
    bodies = BatchBodies(start, start + len(data), two, zero, zero, zero - 1, zero, two)
    array = np.frombuffer(data * batches, np.uint8)
    if part in {"name", "content"}:
        found = decode_records(array, bodies)
        with pytest.raises(InvalidRecord, match="offset 0"):
            gather_headers(found, bodies, COLUMN_TYPES["headers"], ReadBufferPool())
    else:
        with pytest.raises(InvalidRecord, match="offset 0"):
            decode_records(array, bodies)


def framed(**lengths: int) -> bytes:
    """Return a record with a header, some of whose lengths are others than they should be."""
    record = bytearray(b"\0\0\0")
    for part, content in (("key", b"k" * 9), ("value", b"v" * 9), ("headers", b""), ("name", b"n"), ("content", b"c")):
        record += varint(lengths.get(part, len(content) or 1)) + content
    return varint(lengths.get("record", len(record))) + bytes(record)


def varint(number: int) -> bytes:
    """Return a number that is not negative as a varint."""
    rest, found = number << 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    return bytes((*found, rest))


def test_broken_short_batches_side_by_side() -> None:
    whole = bytes(build_batch([Record(b"key", b"value", 1), Record(b"key", b"value", 2)]))
    batches = [whole] * 200
    broken = bytearray(whole)
    broken[HEADER_BYTES] = 120
    with pytest.raises(InvalidRecord, match="offset 0"):
        decode([*batches, bytes(broken), *batches])


def test_varints_at_the_limits() -> None:
    data = np.array([0, 1, 2, 0xFF, 1, *[0xFF] * 9, 1, *[0x80] * 10, 0], np.uint8)
    values, after = read_varints(data, np.array([0, 1, 2, 3, 5]))
    assert values.tolist() == [0, -1, 1, -128, -(2**63)]
    assert after.tolist() == [1, 2, 3, 5, 15]
    with pytest.raises(InvalidRecord):
        read_varints(data, np.array([15]))


def test_a_timestamp_beyond_microseconds_is_refused() -> None:
    batch = bytes(build_batch([Record(None, None, 2**60)]))
    found = decode_records(np.frombuffer(batch, np.uint8), bodies_of([batch]))
    with pytest.raises(InvalidRecord, match="timestamp"):
        timestamps(found, COLUMN_TYPES["timestamp"])


def test_a_header_name_that_is_no_text_is_shown_with_replacements() -> None:
    batch = bytes(build_batch([Record(None, None, 1, (("abc", b"1"),))])).replace(b"abc", b"a\xffc")
    assert decode([batch])[0][4] == [("a\ufffdc", b"1")]
