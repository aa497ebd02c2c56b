"""Recycled memory for what is read from objects.

A fresh page costs the kernel more than the bytes that are read into it, so the memory of large reads is used again. It
comes back by itself when the last view of it dies, whoever holds it: a cache, an answer on its way to a client. Nobody
frees anything. What waits to be used again is bounded in bytes.
"""

import ctypes
import mmap
import threading
import weakref
from collections import OrderedDict

POOLED_BYTES_MIN = 64 * 1024
"""Shorter buffers are left to the allocator, which has their pages already."""
POOLED_BYTES_MAX = 64 * 1024 * 1024


class BufferPool:
    """Allocator of writable memory with old content. Any thread may take, and drop the last view."""

    def __init__(self, pooled_bytes_max: int = POOLED_BYTES_MAX) -> None:
        """`pooled_bytes_max` bounds what waits to be used again."""
        self._pooled_bytes_max = pooled_bytes_max
        self._lock = threading.RLock()
        self._free: OrderedDict[int, list[mmap.mmap]] = OrderedDict()
        """By size; the size used last comes last."""
        self.free_bytes = 0
        self.mapped_bytes = 0
        """Fresh memory since the start: stays flat while recycling works."""

    def take(self, size: int) -> memoryview:
        """`size` writable bytes. The memory behind them may be larger: `memoryview(view.obj).nbytes` tells."""
        if size < POOLED_BYTES_MIN:
            return memoryview(bytearray(size))
        rounded = _rounded(size)
        memory = self._reuse(rounded) or self._map(rounded)
        # One array per use: views hold the array, the array's end gives the memory back.
        array = (ctypes.c_ubyte * rounded).from_buffer(memory)
        weakref.finalize(array, self._give_back, rounded, memory).atexit = False
        return memoryview(array).cast("B")[:size]

    def _map(self, size: int) -> mmap.mmap:
        with self._lock:
            self.mapped_bytes += size
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def _reuse(self, size: int) -> mmap.mmap | None:
        with self._lock:
            free = self._free.get(size)
            if not free:
                return None
            memory = free.pop()
            self._free.move_to_end(size)
            self.free_bytes -= size
            return memory

    def _give_back(self, size: int, memory: mmap.mmap) -> None:
        with self._lock:
            self._free.setdefault(size, []).append(memory)
            self._free.move_to_end(size)
            self.free_bytes += size
            while self.free_bytes > self._pooled_bytes_max:
                oldest = next(iter(self._free))
                if self._free[oldest]:
                    self._free[oldest].pop()
                    self.free_bytes -= oldest
                if not self._free[oldest]:
                    del self._free[oldest]


def _rounded(size: int) -> int:
    """Up to a multiple of a quarter of the power of two below it: a few sizes serve all, and little is wasted."""
    step = max(mmap.PAGESIZE, 1 << (size.bit_length() - 3))
    return (size + step - 1) // step * step
