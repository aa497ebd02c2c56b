"""The block cache: decoded data blocks that were read from objects, bounded in bytes, evicted by least recent use.

Objects are immutable and their ids are never used again, so an entry never goes stale.

Blocks of one GET share one buffer, which lives as long as any of them. So buffers are counted and evicted as a whole:
the bound holds for the memory in use, and no block is copied to be kept alone.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES, StreamBatch


class BlockKey(NamedTuple):
    """Object and position of a block."""

    object_id: int
    position: int


class CachedBlock:
    """The batches of one data block; their payloads are slices of `data`, which is a slice of a GET's buffer."""

    __slots__ = ("batches", "data", "ends")

    def __init__(self, batches: Sequence[StreamBatch], data: memoryview) -> None:
        self.batches = batches
        self.data = data
        self.ends = [batch.end_offset for batch in batches]

    def from_offset(self, offset: int) -> Sequence[StreamBatch]:
        """Return the batches from the one that holds `offset`."""
        return self.batches[bisect_right(self.ends, offset) :]


class _CachedBuffer:
    """A buffer that a GET filled, and the blocks in it that are cached."""

    __slots__ = ("keys", "size_bytes")

    def __init__(self, buffer_bytes: int) -> None:
        self.size_bytes = buffer_bytes
        """Bytes of the buffer and of the Python objects that describe its blocks."""
        self.keys: list[BlockKey] = []


class BlockCache:
    """Blocks by object and position. Never holds more than `bytes_max`, whole buffers counted."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.evicted_bytes = 0
        self._blocks: dict[BlockKey, CachedBlock] = {}
        self._buffers: OrderedDict[int, _CachedBuffer] = OrderedDict()
        """By the identity of the buffer, which its blocks keep alive; least recently used first."""

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._blocks

    def get(self, key: BlockKey) -> CachedBlock | None:
        """Return the block, if it is cached; all blocks of its buffer count as used now."""
        block = self._blocks.get(key)
        if block is not None:
            self._buffers.move_to_end(id(block.data.obj))
        return block

    def put(self, key: BlockKey, block: CachedBlock) -> None:
        """Add a block unless it is cached. One whose buffer is larger than the whole cache is not kept."""
        if key in self._blocks:
            return
        buffer = id(block.data.obj)
        segment = self._buffers.get(buffer)
        if segment is None:
            buffer_bytes = memoryview(block.data.obj).nbytes
            if buffer_bytes + BATCH_OVERHEAD_BYTES * len(block.batches) > self.bytes_max:
                return
            segment = self._buffers[buffer] = _CachedBuffer(buffer_bytes)
            self.size_bytes += buffer_bytes
        self._blocks[key] = block
        overhead = BATCH_OVERHEAD_BYTES * len(block.batches)
        segment.keys.append(key)
        segment.size_bytes += overhead
        self.size_bytes += overhead
        self._buffers.move_to_end(buffer)
        while self.size_bytes > self.bytes_max:
            self._evict()

    def _evict(self) -> None:
        _, segment = self._buffers.popitem(last=False)
        self.size_bytes -= segment.size_bytes
        self.evicted_bytes += segment.size_bytes
        for key in segment.keys:
            del self._blocks[key]


class Sized(Protocol):
    """A value of a byte-bounded cache."""

    @property
    def size_bytes(self) -> int:
        """Memory that the value takes."""
        ...


Key = TypeVar("Key")
Value = TypeVar("Value", bound=Sized)


class ByteLru(Generic[Key, Value]):
    """A map that evicts the least recently used values when all take more than `bytes_max`."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.evicted_bytes = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def get(self, key: Key) -> Value | None:
        """Return the value, if there is one; it counts as used now."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Add or replace a value. One larger than the whole cache is not kept."""
        self.remove(key)
        if value.size_bytes > self.bytes_max:
            return
        self._values[key] = value
        self.size_bytes += value.size_bytes
        while self.size_bytes > self.bytes_max:
            _, old = self._values.popitem(last=False)
            self.size_bytes -= old.size_bytes
            self.evicted_bytes += old.size_bytes

    def remove(self, key: Key) -> None:
        """Remove a value, if there is one."""
        value = self._values.pop(key, None)
        if value is not None:
            self.size_bytes -= value.size_bytes
