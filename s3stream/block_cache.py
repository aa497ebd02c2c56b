"""The block cache: decoded data blocks that were read from objects, bounded in bytes, least recently used out first.

Objects are immutable and their ids never used again, so an entry never goes stale.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from s3stream.log_cache import BATCH_OVERHEAD_BYTES
from s3stream.model import StreamBatch


class BlockKey(NamedTuple):
    """Where a block lies."""

    object_id: int
    position: int


class CachedBlock:
    """The batches of one data block; their payloads are slices of memory that belongs to this block alone."""

    __slots__ = ("batches", "ends", "size_bytes")

    def __init__(self, batches: Sequence[StreamBatch], data_bytes: int) -> None:
        self.batches = batches
        self.ends = [batch.end_offset for batch in batches]
        self.size_bytes = data_bytes + BATCH_OVERHEAD_BYTES * len(batches)

    def from_offset(self, offset: int) -> Sequence[StreamBatch]:
        """Batches from the one that holds `offset`."""
        return self.batches[bisect_right(self.ends, offset) :]


class Sized(Protocol):
    """What a byte-bounded cache must know of its values."""

    @property
    def size_bytes(self) -> int:
        """Memory the value takes."""
        ...


Key = TypeVar("Key")
Value = TypeVar("Value", bound=Sized)


class ByteLru(Generic[Key, Value]):
    """A map that drops what was least recently used when its values take more than `bytes_max`."""

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
        """The value, which counts as used now."""
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
        """Forget a value, if it is there."""
        value = self._values.pop(key, None)
        if value is not None:
            self.size_bytes -= value.size_bytes
