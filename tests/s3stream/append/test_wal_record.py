"""The body of a WAL record."""

import pytest

from anabranch.s3stream.append.wal_record import RECORD_HEADER, RecordKind, WalRecordError, decode_record, encode_reset

WORKED_EXAMPLE = bytes.fromhex(
    "01 00 0000 030000002a00000000000000 0500000000000000 e803000000000000 eb03000000000000 0068e5cf8b0100006162 63"
)


def test_worked_example() -> None:
    record = decode_record(4096, memoryview(WORKED_EXAMPLE))
    assert (record.wal_offset, record.kind, record.epoch) == (4096, RecordKind.BATCH, 5)
    assert record.batch == (42, 1000, 1003, 3, 1_700_000_000_000, b"abc")


def test_reset() -> None:
    record = decode_record(0, memoryview(encode_reset(42, 6, 1003)))
    assert (record.kind, record.epoch, record.batch.base_offset) == (RecordKind.RESET, 6, 1003)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"\x01", "at offset 9: expected at least 48 bytes, found 1"),
        (RECORD_HEADER.pack(2, 0, 0, 1, 1, 1, 0, 1, -1), "expected version 1, found 2"),
        (RECORD_HEADER.pack(1, 7, 0, 1, 1, 1, 0, 1, -1), "expected kind 0 or 1, found 7"),
        (RECORD_HEADER.pack(1, 0, 0, 1, 1, 1, 5, 5, -1), r"stream 1 has the range \[5, 5\)"),
    ],
)
def test_nonsense_is_refused_by_name(body: bytes, message: str) -> None:
    with pytest.raises(WalRecordError, match=message):
        decode_record(9, memoryview(body))


@pytest.mark.parametrize("base", [2**31 - 1, 2**32 - 1, 2**62])
def test_offsets_are_64_bit(base: int) -> None:
    body = RECORD_HEADER.pack(1, RecordKind.BATCH, 0, 1, 42, 5, base, base + 2**33, -1) + b"abc"
    assert decode_record(0, memoryview(body)).batch == (42, base, base + 2**33, 1, -1, b"abc")
    assert decode_record(0, memoryview(encode_reset(42, 6, base))).batch.base_offset == base
