"""The native block of the log beside its twin in Python: the same bytes, the same positions."""

import gc
import weakref
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.native import choose
from anabranch.wal.block import WalBlock, aligned_buffer
from anabranch.wal.format import PADDING_BYTES_MIN, PAGE_BYTES, RECORD_HEADER_BYTES
from tests.support.native import require_native

ROOM_BYTES = 8 * PAGE_BYTES
FIELDS = ("offset", "room_bytes", "salt", "opened_at", "length", "records", "last_offset", "end")


@pytest.fixture(scope="module")
def native_block() -> Any:
    require_native()
    return choose("require").twin(WalBlock)


def state(block: Any) -> dict[str, Any]:
    return {name: getattr(block, name) for name in FIELDS} | {"bytes": bytes(block.buffer)}


BODY = st.lists(st.binary(max_size=3000), max_size=3)


@given(
    offset=st.integers(0, 2**50).map(lambda page: page * PAGE_BYTES),
    salt=st.integers(0, 2**32 - 1),
    bodies=st.lists(BODY, max_size=6),
    durable_offset=st.integers(0, 2**63 - 1),
    kind=st.sampled_from([bytes, bytearray, lambda data: memoryview(b"x" + data)[1:]]),
    old=st.integers(0, 255),
)
def test_both_write_the_same_bytes(
    native_block: Any, offset: int, salt: int, bodies: list[list[bytes]], durable_offset: int, kind: Any, old: int
) -> None:
    blocks = []
    for make in (WalBlock, native_block):
        buffer = aligned_buffer(ROOM_BYTES)
        buffer[:] = bytes([old]) * ROOM_BYTES
        blocks.append(make(offset, buffer, ROOM_BYTES, salt, 1.5))
    python, native = blocks
    assert state(native) == state(python)
    for body in bodies:
        size = sum(map(len, body))
        if python.length + RECORD_HEADER_BYTES + size > python.room_bytes:
            continue
        assert native.add([kind(part) for part in body], size) == python.add(body, size)
        assert state(native) == state(python)
    for block in blocks:
        block.seal(durable_offset)
    assert state(native) == state(python)


def test_what_does_not_fit_is_an_error_and_leaves_the_block_whole(native_block: Any) -> None:
    block = native_block(0, aligned_buffer(PAGE_BYTES), PAGE_BYTES, 1, 0.0)
    block.add((bytes(100),), 100)
    before = block.length, block.records, block.last_offset
    room = PAGE_BYTES - block.length - RECORD_HEADER_BYTES
    for parts, size in (((bytes(room + 1),), room + 1), ((b"ab",), 1), ((b"a",), 2), ((b"a",), 2**63 - 1)):
        with pytest.raises(ValueError, match=r"record of|parts of"):
            block.add(parts, size)
        assert (block.length, block.records, block.last_offset) == before
    block.add((bytes(room),), room)
    with pytest.raises(ValueError, match="no room for padding"):
        block.seal(0)


@pytest.mark.parametrize("parts", [(1,), ("text",), None, (memoryview(b"abcd")[::2],)])
def test_parts_that_are_no_bytes_are_errors(native_block: Any, parts: Any) -> None:
    block = native_block(0, aligned_buffer(PAGE_BYTES), PAGE_BYTES, 1, 0.0)
    with pytest.raises((TypeError, BufferError)):
        block.add(parts, 2)
    assert block.length == 0


def test_a_buffer_that_cannot_be_written_is_refused(native_block: Any) -> None:
    with pytest.raises(ValueError, match="room"):
        native_block(0, memoryview(bytes(PAGE_BYTES)), PAGE_BYTES, 1, 0.0)
    with pytest.raises(ValueError, match="room"):
        native_block(0, aligned_buffer(PAGE_BYTES), PADDING_BYTES_MIN - 1, 1, 0.0)


def test_a_block_is_freed_with_the_cycle_through_its_completion(native_block: Any) -> None:
    block = native_block(0, aligned_buffer(PAGE_BYTES), PAGE_BYTES, 1, 0.0)
    block.durable.add_done_callback(partial(max, block))
    freed = weakref.ref(block)
    del block
    gc.collect()
    assert freed() is None
