"""Memory for frames: cut from slabs, and reused when the last view is gone."""

import mmap

from anabranch.broker.node.net.slabs import ALIGNMENT, SlabPool

SLAB = 16 * mmap.PAGESIZE


def make(pooled_slabs: int = 4) -> SlabPool:
    return SlabPool(pooled_bytes_max=pooled_slabs * SLAB, slab_bytes=SLAB)


def test_views_do_not_overlap() -> None:
    pool = make()
    views = [pool.allocate(size) for size in (1, 63, 64, 65, 5000, SLAB // 2, SLAB // 2, SLAB // 3)]
    for at, view in enumerate(views):
        view[:] = bytes([at + 1]) * len(view)
    assert [set(view) for view in views] == [{at + 1} for at in range(len(views))]


def test_a_slab_comes_back_with_its_last_view() -> None:
    pool = make()
    first = pool.allocate(100)
    part = first[10:20]
    rest = [pool.allocate(SLAB // 4) for _ in range(8)]
    assert pool.slabs_mapped == 3
    del rest
    assert pool.slabs_free == 1, "the first is still looked at, the last is still being cut"
    del first
    assert pool.slabs_free == 1
    del part
    assert pool.slabs_free == 2


def test_memory_is_used_again() -> None:
    pool = make()
    for _ in range(1000):
        pool.allocate(SLAB // 3)
    assert pool.slabs_mapped <= 2


def test_the_pool_is_bounded() -> None:
    pool = make(pooled_slabs=2)
    views = [pool.allocate(SLAB // 2) for _ in range(20)]
    del views
    assert pool.slabs_free <= 2


def test_a_large_frame_gets_its_own_mapping() -> None:
    pool = make()
    large = pool.allocate(10 * SLAB)
    large[-1] = 1
    assert pool.slabs_mapped == 0
    assert len(large) == 10 * SLAB
    assert len(pool.allocate(ALIGNMENT)) == ALIGNMENT
