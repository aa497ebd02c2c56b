"""Recycled memory for large frames.

A fresh page costs the kernel about as much as receiving its content, so frames are allocated from large anonymous
mappings that are reused. A slab is allocated front to back. It returns to the pool when its last memoryview is
garbage-collected, wherever that is: in a request in progress, the log cache, an upload. No code frees it.
"""

import ctypes
import mmap
import weakref

SLAB_BYTES = 4 << 20
ALIGNMENT = 64


class SlabPool:
    """Allocator of writable memoryviews. Dropping the last view of a slab may happen on any thread."""

    def __init__(self, *, pooled_bytes_max: int, slab_bytes: int = SLAB_BYTES) -> None:
        assert slab_bytes % mmap.PAGESIZE == 0, "a slab is whole pages"
        self._slab_bytes = slab_bytes
        self._pooled_max = max(1, pooled_bytes_max // slab_bytes)
        self._slab_type = ctypes.c_ubyte * slab_bytes
        self._free: list[mmap.mmap] = []
        self._current: memoryview = memoryview(b"")
        self._position = 0
        self._slabs_mapped = 0

    @property
    def slabs_mapped(self) -> int:
        """Slabs mapped since the start: constant while recycling works."""
        return self._slabs_mapped

    @property
    def slabs_free(self) -> int:
        """Idle slabs in the pool."""
        return len(self._free)

    def allocate(self, size: int) -> memoryview:
        """Return `size` writable bytes with arbitrary old content. More than half a slab gets a separate mapping."""
        start = self._position
        if start + size > len(self._current):
            if size > self._slab_bytes // 2:
                return memoryview(_map(size))
            self._current = self._take_slab()
            start = 0
        self._position = (start + size + ALIGNMENT - 1) & -ALIGNMENT
        return self._current[start : start + size]

    def _take_slab(self) -> memoryview:
        if self._free:
            memory = self._free.pop()
        else:
            memory = _map(self._slab_bytes)
            self._slabs_mapped += 1
        # One array per use of the slab: views refer to the array, and its finalizer returns the mapping.
        array = self._slab_type.from_buffer(memory)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return memoryview(array).cast("B")

    def _give_back(self, memory: mmap.mmap) -> None:
        if len(self._free) < self._pooled_max:
            self._free.append(memory)


def _map(size: int) -> mmap.mmap:
    """Map fresh private memory. The default, shared memory, costs a tmpfs page on each first touch."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
