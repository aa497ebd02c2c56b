"""Golden bytes of every format, and decoders that return the problem instead of raising."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.wal.block import WalBlock, aligned_buffer
from anabranch.wal.format import (
    CATALOG_UNKNOWN,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    RING_POSITION,
    Header,
    LogGap,
    Magic,
    Shutdown,
    decode_durable_offset,
    decode_header,
    decode_record_header,
    decode_skip,
    encode_header,
    encode_padding_into,
    encode_skip_into,
    explain_record_header,
    newest_header,
    page_up,
    record_salt,
)

HEADER = Header(
    sequence=3,
    log_id=7,
    capacity_bytes=1 << 20,
    base_offset=0,
    head_offset=4096,
    trim_offset=-1,
    durable_offset=8192,
    window_bytes=1 << 16,
    node_id=5,
    node_epoch=9,
    last_write_ms=1_700_000_000_000,
    cluster="demo",
    shutdown=Shutdown.GRACEFUL,
    catalog_id=bytes(range(16)),
    state_epoch=9,
    state_sequence=3,
    gaps=(LogGap(5000, 8192),),
)
GOLDEN_HEADER = bytes.fromhex(
    "414e41425257414c 02000000 01000000 0300000000000000 0700000000000000 0000100000000000 0000000000000000"
    "0010000000000000 ffffffffffffffff 0020000000000000 0000010000000000 0500000000000000 0900000000000000"
    "0068e5cf8b010000 64656d6f" + "00" * 60 + "000102030405060708090a0b0c0d0e0f"
    "0900000000000000 0300000000000000 8813000000000000 0020000000000000" + "00" * 240 + "2b565166"
)
GOLDEN_HEADER_V1 = bytes.fromhex(
    "414e41425257414c 01000000 01000000 0300000000000000 0700000000000000 0000100000000000 0000000000000000"
    "0010000000000000 ffffffffffffffff 0020000000000000 0000010000000000 0500000000000000 0900000000000000"
    "0068e5cf8b010000 64656d6f" + "00" * 60 + "3ab634a7"
)
# The worked example of FORMAT.md.
GOLDEN_BLOCK = bytes.fromhex(
    "41425752 05000000 1800000000000000 4cbb719a 38870301 68656c6c6f"
    "41425752 06000000 3500000000000000 9656996d 18701a6c 776f726c6421"
    "41425750 ad0f0000 5300000000000000 d1cce370 926007b0 0000000000000000"
)
GOLDEN_SKIP = bytes.fromhex("41425753 e80f0000 1810000000000000 76babe4b ac0b4e6a a00f000000000000 0050000000000000")
SALT = record_salt(7)


def test_golden_header() -> None:
    page = encode_header(HEADER)
    assert page == GOLDEN_HEADER.ljust(PAGE_BYTES, b"\0")
    assert decode_header(page) == HEADER


def test_golden_header_of_version_1() -> None:
    page = GOLDEN_HEADER_V1.ljust(PAGE_BYTES, b"\0")
    assert decode_header(page) == replace(HEADER, catalog_id=CATALOG_UNKNOWN, gaps=())


def test_golden_block() -> None:
    block = WalBlock(0, aligned_buffer(2 * PAGE_BYTES), 2 * PAGE_BYTES, SALT, 0.0)
    assert block.add([b"hel", b"lo"], 5) == 0
    assert block.add([b"world!"], 6) == 29
    block.seal(0)
    assert bytes(block.buffer[: block.length]) == GOLDEN_BLOCK.ljust(PAGE_BYTES, b"\0")
    assert block.end == PAGE_BYTES


def test_golden_skip() -> None:
    page = aligned_buffer(PAGE_BYTES)
    page[:] = b"x" * PAGE_BYTES
    encode_skip_into(page, 4096, 4000, 20480, SALT)
    assert bytes(page) == GOLDEN_SKIP.ljust(PAGE_BYTES, b"\0")
    assert decode_skip(page[RECORD_HEADER_BYTES:]) == (4000, 20480)


@pytest.mark.parametrize("at", [0, 1, 4063, 4064, 4065, 4095, 4096, 5000])
def test_padding_always_fits_and_ends_a_page(at: int) -> None:
    buffer = aligned_buffer(4 * PAGE_BYTES)
    buffer[:] = b"x" * len(buffer)
    end = encode_padding_into(buffer, at, 8192 + at, 77, SALT)
    header = decode_record_header(buffer, at, 8192 + at, SALT)
    assert header is not None
    assert header.magic == Magic.PADDING
    assert at + RECORD_HEADER_BYTES + header.body_bytes == end == page_up(at + 32)
    assert decode_durable_offset(buffer[at + RECORD_HEADER_BYTES : end]) == 77
    assert not any(buffer[at + 32 : end])


def test_record_headers_are_bound_to_offset_and_log() -> None:
    page = memoryview(GOLDEN_BLOCK)
    assert decode_record_header(page, 0, 0, SALT) == (RECORD_MAGIC, 5, 0x9A71BB4C)
    assert decode_record_header(page, 0, 4096, SALT) is None
    assert decode_record_header(page, 0, 0, record_salt(8)) is None
    assert decode_record_header(page, 1, 0, SALT) is None
    assert "magic" in explain_record_header(page, 1, 1, SALT)
    assert "body offset 24, expected 4120" in explain_record_header(page, 0, 4096, SALT)
    assert "header CRC" in explain_record_header(page, 0, 0, record_salt(8))
    assert "zeros" in explain_record_header(bytes(24), 0, 0, SALT)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (bytes(PAGE_BYTES), "blank"),
        (b"short", "5 bytes"),
        (b"NOTALOG!".ljust(PAGE_BYTES, b"\0"), "magic"),
        ((GOLDEN_HEADER[:20] + b"\xff" + GOLDEN_HEADER[21:]).ljust(PAGE_BYTES, b"\0"), "header CRC"),
        ((GOLDEN_HEADER[:170] + b"\xff" + GOLDEN_HEADER[171:]).ljust(PAGE_BYTES, b"\0"), "header CRC"),
        ((GOLDEN_HEADER_V1[:20] + b"\xff" + GOLDEN_HEADER_V1[21:]).ljust(PAGE_BYTES, b"\0"), "header CRC"),
    ],
)
def test_bad_headers_say_why(page: bytes, reason: str) -> None:
    found = decode_header(page)
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"capacity_bytes": 5000}, "capacity 5000 bytes, expected whole pages"),
        ({"head_offset": 4097}, "head offset 4097, durable offset 8192, expected page boundaries"),
        ({"head_offset": 12288}, "durable offset 8192, expected at most a ring"),
        ({"gaps": (LogGap(8192, 1 << 56),)}, "gap from 8192 to 72057594037927936, expected an end at most a ring past"),
        ({"durable_offset": 1 << 40}, "durable offset 1099511627776, expected at most a ring"),
    ],
)
def test_headers_that_make_no_sense_are_refused(changes: dict[str, int], reason: str) -> None:
    assert reason in str(decode_header(encode_header(replace(HEADER, **changes))))  # type: ignore[arg-type]  # numbers


def test_a_header_of_another_version_is_refused() -> None:
    page = bytearray(encode_header(HEADER))
    page[8] = 3
    assert decode_header(page) == "format version 3, this program supports 1 and 2"


def test_the_newer_valid_copy_counts() -> None:
    older, newer = encode_header(HEADER), encode_header(replace(HEADER, sequence=4))
    assert newest_header(newer + older) == replace(HEADER, sequence=4)
    assert newest_header(older + newer) == replace(HEADER, sequence=4)
    assert newest_header(bytes(PAGE_BYTES) + older) == HEADER
    assert newest_header(b"\x01" + newer[1:] + older) == HEADER
    assert newest_header(bytes(RING_POSITION)) is None
    assert HEADER.position == PAGE_BYTES
    assert replace(HEADER, sequence=4).position == 0


@given(
    ring_pages=st.integers(1, 50),
    base=st.integers(0, 1 << 40),
    ahead=st.integers(0, 1 << 40),
    length=st.integers(1, 50 * PAGE_BYTES),
)
def test_positions_stay_in_the_ring(ring_pages: int, base: int, ahead: int, length: int) -> None:
    header = replace(HEADER, capacity_bytes=RING_POSITION + ring_pages * PAGE_BYTES, base_offset=base)
    length = min(length, header.ring_bytes)
    segments = header.segments(base + ahead, length)
    assert sum(size for _, size in segments) == length
    assert len(segments) <= 2
    for position, size in segments:
        assert position >= RING_POSITION
        assert position + size <= header.capacity_bytes
    assert header.position_of(base + ahead) == header.position_of(base + ahead + header.ring_bytes)
    if len(segments) == 2:
        assert segments[1][0] == RING_POSITION
