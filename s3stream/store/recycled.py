"""Recycled memory for data read from objects.

A fresh page costs the kernel more than the bytes that are read into it, so the memory of large reads is reused. It
returns to the pool when its last view is garbage-collected, wherever that is: in a cache, or in a response. No code
frees it.

Memory is mapped in arenas and allocated in whole pages, from the first gap that is large enough. Neighbouring gaps are
joined when memory returns, so that reads of any size fit into the space of others.
"""

import ctypes
import mmap
import threading
import weakref
from bisect import bisect_left

POOLED_BYTES_MIN = 64 * 1024
"""Shorter buffers come from the allocator, which already has their pages."""
POOLED_BYTES_MAX = 32 * 1024 * 1024
ARENA_BYTES = 32 * 1024 * 1024


class _Arena:
    """One mapping, and the gaps in it as sorted, disjoint, non-adjacent [start, end)."""

    __slots__ = ("ends", "memory", "size", "starts")

    def __init__(self, size: int) -> None:
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.size = size
        self.starts = [0]
        self.ends = [size]

    @property
    def is_free(self) -> bool:
        """True if nothing in it is in use."""
        return self.starts == [0] and self.ends == [self.size]

    def take(self, size: int) -> int | None:
        """Take `size` bytes from a gap and return their start; None if no gap is large enough."""
        for at, start in enumerate(self.starts):
            if self.ends[at] - start >= size:
                if self.ends[at] - start == size:
                    del self.starts[at], self.ends[at]
                else:
                    self.starts[at] = start + size
                return start
        return None

    def give_back(self, start: int, end: int) -> None:
        """Return a range to the gaps, joined with adjacent ones."""
        at = bisect_left(self.starts, start)
        if at < len(self.starts) and self.starts[at] == end:
            end = self.ends[at]
            del self.starts[at], self.ends[at]
        if at and self.ends[at - 1] == start:
            self.ends[at - 1] = end
        else:
            self.starts.insert(at, start)
            self.ends.insert(at, end)


class ReadBufferPool:
    """Allocator of writable memory with arbitrary old content. Any thread may take, and drop the last view."""

    def __init__(self, pooled_bytes_max: int = POOLED_BYTES_MAX, *, arena_bytes: int = ARENA_BYTES) -> None:
        """An unused arena is kept while no more than `pooled_bytes_max` are free."""
        self._pooled_bytes_max = pooled_bytes_max
        self._arena_bytes = arena_bytes
        self._arenas: list[_Arena] = []
        self._lock = threading.RLock()
        """Reentrant, because a garbage collection inside may return memory in the same thread."""
        self.free_bytes = 0
        self.mapped_bytes = 0
        """Fresh memory mapped since the start: constant while recycling works."""

    def take(self, size: int) -> memoryview:
        """Return `size` writable bytes. The memory behind them may be larger: see `memoryview(view.obj).nbytes`."""
        if size < POOLED_BYTES_MIN:
            return memoryview(bytearray(size))
        rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        with self._lock:
            arena, start = self._find(rounded)
            self.free_bytes -= rounded
        # One array per use: views refer to the array, and its finalizer returns the memory.
        array = (ctypes.c_ubyte * rounded).from_buffer(arena.memory, start)
        weakref.finalize(array, self._give_back, arena, start, start + rounded).atexit = False
        return memoryview(array).cast("B")[:size]

    def _find(self, size: int) -> tuple[_Arena, int]:
        for arena in self._arenas:
            start = arena.take(size)
            if start is not None:
                return arena, start
        arena = _Arena(max(size, self._arena_bytes))
        self.mapped_bytes += arena.size
        self.free_bytes += arena.size
        start = arena.take(size)
        assert start is not None, "a new arena has room"
        self._arenas.append(arena)
        return arena, start

    def _give_back(self, arena: _Arena, start: int, end: int) -> None:
        with self._lock:
            arena.give_back(start, end)
            self.free_bytes += end - start
            if arena.is_free and self.free_bytes > self._pooled_bytes_max:
                self._arenas.remove(arena)
                self.free_bytes -= arena.size
