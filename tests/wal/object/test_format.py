"""Keys, headers and records of the object log: golden bytes, round trips, and every kind of damage."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.wal.object.batch import new_block
from anabranch.wal.object.format import (
    END_BYTES,
    HEADER_BYTES,
    EndedBy,
    Flags,
    LogName,
    ObjectHeader,
    Position,
    decode_body,
    decode_header,
    encode_end,
    encode_header,
    ended_by,
    new_end,
)
from tests.support.object_log import NAME

AT = Position(7, 1)
GOLDEN = bytes.fromhex(
    "41 4e 41 42 52 4f 4c 47 01 00 00 00 02 00 00 00 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"
    "03 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00"
    "01 00 00 00 00 00 00 00 ff ff ff ff ff ff ff ff 00 00 00 00 00 00 00 00 3b 00 00 00 00 00 00 00"
    "09 00 45 cb 49 5c ad 0c 41 42 57 52 05 00 00 00 18 00 00 00 00 00 00 00 4c bb 71 9a c9 75 01 3c"
    "68 65 6c 6c 6f 41 42 57 52 06 00 00 00 35 00 00 00 00 00 00 00 96 56 99 6d e9 82 18 51 77 6f 72"
    "6c 64 21"
)


def encoded(*bodies: bytes, position: Position = AT, first_offset: int = 0) -> bytes:
    size = sum(24 + len(body) for body in bodies)
    block = new_block(first_offset, memoryview(bytearray(size)), size, NAME.record_salt(position.epoch), 0.0)
    for body in bodies:
        block.add([body], len(body))
    content = bytes(block.buffer[: block.length])
    header = ObjectHeader(position, position, -1, first_offset, len(content), len(bodies))
    return encode_header(NAME, header, content) + content


def test_the_worked_example() -> None:
    assert encoded(b"hello", b"world!") == GOLDEN


def test_keys_sort_as_positions_do() -> None:
    positions = [Position(1, 2), Position(1, 10), Position(2, 0), Position(10, 9)]
    keys = [NAME.key(position) for position in positions]

    assert keys == sorted(keys)
    assert [NAME.parse_key(key) for key in keys] == positions


@pytest.mark.parametrize("key", ["wal/c/3/7/1", "wal/c/3/" + "0" * 20, "wal/d/3/" + "0" * 20 + "/" + "0" * 20, "x"])
def test_other_keys_are_no_positions(key: str) -> None:
    assert NAME.parse_key(key) is None


def test_the_id_of_a_log_differs_by_store_node_cluster_and_catalog() -> None:
    others = [LogName("d", 3, NAME.catalog_id), replace(NAME, node_id=4), replace(NAME, catalog_id=bytes(16))]
    ids = {NAME.wal_id("s"), NAME.wal_id("t"), *(other.wal_id("s") for other in others)}

    assert len(ids) == 5
    assert all(len(wal_id) == 16 for wal_id in ids)


@given(st.lists(st.binary(max_size=100), max_size=5), st.integers(0, 1 << 62), st.integers(0, 1 << 40))
def test_records_come_back(bodies: list[bytes], first_offset: int, sequence: int) -> None:
    position = Position(5, sequence)
    data = encoded(*bodies, position=position, first_offset=first_offset)

    header = decode_header(NAME, position, data)
    assert isinstance(header, ObjectHeader)
    records = decode_body(NAME, header, memoryview(data))

    assert not isinstance(records, str)
    assert [bytes(record.body) for record in records] == bodies
    assert header.end_offset == first_offset + len(data) - HEADER_BYTES


@pytest.mark.parametrize("at", range(len(GOLDEN)))
def test_each_damaged_byte_is_found(at: int) -> None:
    data = bytearray(GOLDEN)
    data[at] ^= 4

    header = decode_header(NAME, AT, data)

    assert isinstance(header, str) or isinstance(decode_body(NAME, header, memoryview(data)), str)


@pytest.mark.parametrize("length", [0, 8, HEADER_BYTES - 1, HEADER_BYTES, len(GOLDEN) - 1])
def test_a_shorter_object_is_found(length: int) -> None:
    data = GOLDEN[:length]

    header = decode_header(NAME, AT, data)

    assert isinstance(header, str) or isinstance(decode_body(NAME, header, memoryview(data)), str)


@pytest.mark.parametrize(
    ("name", "position", "said"),
    [
        (NAME, Position(7, 2), "sequence 1, expected"),
        (NAME, Position(8, 1), "epoch 7"),
        (replace(NAME, node_id=4), AT, "node 3"),
        (replace(NAME, catalog_id=bytes(16)), AT, "catalog.url"),
    ],
)
def test_an_object_in_the_wrong_place_is_refused(name: LogName, position: Position, said: str) -> None:
    found = decode_header(name, position, GOLDEN)

    assert isinstance(found, str)
    assert said in found


@pytest.mark.parametrize("flags", [Flags.FENCE, Flags.CLOSED])
def test_ends_have_a_size_of_their_own_and_name_who_put_them(flags: Flags) -> None:
    data = encode_end(NAME, new_end(flags, AT, AT, trim_offset=9, offset=10), EndedBy(4, 8))

    header = decode_header(NAME, AT, data)

    assert len(data) == END_BYTES
    assert END_BYTES not in {len(encoded(*[b""] * count)) for count in range(3)}
    assert isinstance(header, ObjectHeader)
    assert header.flags is flags
    assert header.end_offset == 10
    assert ended_by(data) == EndedBy(4, 8)
