"""Scanning records finds the same as decoding them, and refuses the same."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.protocol.batch import HEADER_BYTES, parse_batch
from anabranch.protocol.errors import InvalidRecord
from anabranch.protocol.record_scan import WINDOW_BYTES, RecordHead, scan_records
from anabranch.protocol.records import Record, build_batch, decode_records

BYTES = st.one_of(st.none(), st.binary(max_size=20), st.just(bytes(200)), st.just(bytes(3 * WINDOW_BYTES)))
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(Record, key=BYTES, value=BYTES, timestamp_ms=st.integers(0, 1 << 41), headers=HEADERS),
    min_size=1,
    max_size=30,
)


def scan(batch: bytearray) -> list[RecordHead]:
    return list(scan_records(memoryview(batch)[HEADER_BYTES:], parse_batch(batch)))


def decode(batch: bytearray) -> list[RecordHead]:
    return [
        RecordHead(record.offset, record.key, record.value is None, record.timestamp_ms)
        for record in decode_records(batch)
    ]


@given(records=RECORDS, copies=st.sampled_from([1, 50]), base_offset=st.integers(0, 1 << 40))
def test_it_finds_what_decoding_finds(records: list[Record], copies: int, base_offset: int) -> None:
    batch = build_batch(records * copies, base_offset=base_offset)
    assert scan(batch) == decode(batch)


@given(records=RECORDS, seed=st.integers(0, 1 << 32), changes=st.integers(1, 3))
def test_it_refuses_what_decoding_refuses(records: list[Record], seed: int, changes: int) -> None:
    choose = random.Random(seed)
    batch = build_batch(records)
    for _ in range(changes):
        batch[choose.randrange(HEADER_BYTES, min(len(batch), HEADER_BYTES + 300))] = choose.randrange(256)
    try:
        expected = decode(batch)
    except InvalidRecord:
        with pytest.raises(InvalidRecord):
            scan(batch)
    else:
        assert scan(batch) == expected
