"""Recycled memory is reused once its last view is gone, and never before."""

import gc
import random

import pytest

from anabranch.s3stream.store.recycled import POOLED_BYTES_MIN, ReadBufferPool

MIB = 1024 * 1024


@pytest.mark.slow
def test_memory_comes_back_when_its_last_view_dies() -> None:
    pool = ReadBufferPool(8 * MIB, arena_bytes=MIB)
    view = pool.take(MIB)
    view[:4] = b"abcd"
    part = view[2:4].toreadonly()
    del view
    assert (pool.free_bytes, pool.mapped_bytes, bytes(part)) == (0, MIB, b"cd")
    other = pool.take(MIB)
    assert pool.mapped_bytes == 2 * MIB, "memory with a view is not handed out"
    del part, other
    gc.collect()
    assert pool.free_bytes == 2 * MIB
    again = [pool.take(MIB - 1), pool.take(MIB - 2)]
    assert [len(each) for each in again] == [MIB - 1, MIB - 2]
    assert (pool.free_bytes, pool.mapped_bytes) == (0, 2 * MIB)


def test_gaps_are_joined_for_what_is_larger() -> None:
    pool = ReadBufferPool(8 * MIB, arena_bytes=4 * MIB)
    views = [pool.take(MIB) for _ in range(4)]
    del views[1:3]
    large = pool.take(2 * MIB)
    assert (len(large), pool.free_bytes, pool.mapped_bytes) == (2 * MIB, 0, 4 * MIB)


def test_what_waits_in_unused_arenas_is_bounded() -> None:
    pool = ReadBufferPool(4 * MIB, arena_bytes=2 * MIB)
    views = [pool.take(2 * MIB) for _ in range(5)]
    del views
    assert pool.free_bytes == 4 * MIB
    larger = pool.take(3 * MIB)
    assert (len(larger), pool.free_bytes) == (3 * MIB, 4 * MIB)


def test_small_buffers_are_left_to_the_allocator() -> None:
    pool = ReadBufferPool()
    assert len(pool.take(0)) == 0
    assert memoryview(pool.take(POOLED_BYTES_MIN - 1).obj).nbytes == POOLED_BYTES_MIN - 1
    assert pool.mapped_bytes == 0
    whole = memoryview(pool.take(POOLED_BYTES_MIN + 1).obj).nbytes
    assert whole == POOLED_BYTES_MIN + 4096


def test_any_order_of_taking_and_dropping_mixes_nothing_up() -> None:
    rng = random.Random(1)
    pool = ReadBufferPool(2 * MIB, arena_bytes=MIB)
    held: list[tuple[int, memoryview]] = []
    for number in range(400):
        if held and rng.random() < 0.5:
            mark, view = held.pop(rng.randrange(len(held)))
            assert view[0] == view[-1] == mark
            del view
        else:
            view = pool.take(rng.randrange(POOLED_BYTES_MIN, 3 * MIB // 2))
            view[0] = view[-1] = number % 256
            held.append((number % 256, view))
            del view
    used = sum(memoryview(view.obj).nbytes for _, view in held)
    held.clear()
    assert pool.free_bytes <= 2 * MIB
    assert used > 0
