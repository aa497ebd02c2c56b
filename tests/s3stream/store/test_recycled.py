"""Memory that is used again once nobody looks at it, and never before."""

import gc

from s3stream.store.recycled import POOLED_BYTES_MIN, BufferPool

MIB = 1024 * 1024


def test_memory_comes_back_when_its_last_view_dies() -> None:
    pool = BufferPool(8 * MIB)
    view = pool.take(MIB)
    view[:4] = b"abcd"
    part = view[2:4].toreadonly()
    mapped = pool.mapped_bytes
    del view
    assert (pool.free_bytes, bytes(part)) == (0, b"cd")
    other = pool.take(MIB)
    assert pool.mapped_bytes == 2 * mapped, "what somebody looks at is not handed out"
    del part, other
    gc.collect()
    assert pool.free_bytes == 2 * mapped
    again = [pool.take(MIB - 1), pool.take(MIB - 2)]
    assert [len(each) for each in again] == [MIB - 1, MIB - 2]
    assert (pool.free_bytes, pool.mapped_bytes) == (0, 2 * mapped)


def test_what_waits_is_bounded_and_the_size_used_last_stays() -> None:
    pool = BufferPool(4 * MIB)
    views = [pool.take(2 * MIB) for _ in range(3)]
    del views
    assert pool.free_bytes == 4 * MIB
    small = pool.take(MIB)
    del small
    assert pool.free_bytes == 3 * MIB, "one of the two larger ones went"
    mapped = pool.mapped_bytes
    small = pool.take(MIB)
    assert (pool.mapped_bytes, len(small)) == (mapped, MIB)


def test_sizes_are_rounded_by_a_quarter_at_most() -> None:
    pool = BufferPool(1 << 40)
    for size in (POOLED_BYTES_MIN, 100_000, MIB + 1, 5 * MIB, 8 * MIB - 1):
        whole = memoryview(pool.take(size).obj).nbytes
        assert size <= whole <= size * 5 // 4
    assert len(pool.take(0)) == 0
    assert memoryview(pool.take(10).obj).nbytes == 10
