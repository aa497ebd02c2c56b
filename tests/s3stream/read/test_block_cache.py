"""The block cache counts and drops whole buffers, because they are the memory it holds."""

from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES, StreamBatch
from anabranch.s3stream.read.block_cache import BlockCache, BlockKey, CachedBlock


def block(buffer: bytearray, start: int, end: int) -> CachedBlock:
    data = memoryview(buffer)[start:end]
    return CachedBlock([StreamBatch(1, start, end, 1, -1, data)], data)


def test_blocks_of_one_buffer_are_counted_once_and_leave_together() -> None:
    cache = BlockCache(2_000 + 4 * BATCH_OVERHEAD_BYTES)
    first, second, third = bytearray(1000), bytearray(1000), bytearray(1000)
    for at in (0, 500):
        cache.put(BlockKey(1, at), block(first, at, at + 500))
    assert cache.size_bytes == 1000 + 2 * BATCH_OVERHEAD_BYTES
    cache.put(BlockKey(2, 0), block(second, 0, 10))
    assert cache.get(BlockKey(1, 0)) is not None
    cache.put(BlockKey(3, 0), block(third, 0, 10))
    # The second buffer was used least recently, and counts whole though ten bytes of it are wanted.
    assert BlockKey(2, 0) not in cache
    assert BlockKey(1, 500) in cache
    assert cache.size_bytes == 2000 + 3 * BATCH_OVERHEAD_BYTES
    assert cache.evicted_bytes == 1000 + BATCH_OVERHEAD_BYTES


def test_a_buffer_larger_than_the_cache_is_not_kept() -> None:
    cache = BlockCache(900 + BATCH_OVERHEAD_BYTES)
    cache.put(BlockKey(1, 0), block(bytearray(1000), 0, 10))
    assert len(cache) == cache.size_bytes == 0


def test_a_block_put_twice_is_counted_once() -> None:
    cache = BlockCache(10_000)
    for _ in range(2):
        cache.put(BlockKey(1, 0), block(bytearray(1000), 0, 1000))
    assert (len(cache), cache.size_bytes) == (1, 1000 + BATCH_OVERHEAD_BYTES)
