"""Values that pass between the layers of the storage engine. Offsets are 64 bit everywhere (invariant 8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from wal.interface import Buffer


class StreamBatch(NamedTuple):
    """One append of one stream: opaque bytes with what storage must know of them. Ranges are half open: [base, end)."""

    stream_id: int
    base_offset: int
    end_offset: int
    """One past the last offset. `end - base` may exceed `record_count` (compacted topics leave gaps)."""
    record_count: int
    max_timestamp_ms: int
    """Largest record timestamp in the batch, or -1."""
    payload: Buffer

    @property
    def size_bytes(self) -> int:
        """Length of the payload."""
        return len(self.payload)


BATCH_OVERHEAD_BYTES: Final = 512
"""Memory counted for each cached batch on top of its payload: the Python objects that hold it."""


class ReadResult(NamedTuple):
    """Contiguous batches. The first may begin before the requested offset, when that lies inside a batch."""

    batches: Sequence[StreamBatch]
    next_offset: int
    """Offset of the next read: the end of the last batch, or the requested offset when there is none."""


class ObjectKind(IntEnum):
    """Stream set objects hold runs of many streams, stream objects one run of one stream."""

    SSO = 1
    SO = 2


class ObjectState(IntEnum):
    """Life of an object in the catalog: nothing else may lie in a store (invariant 6)."""

    PREPARED = 1
    COMMITTED = 2
    DESTROYED = 3


@dataclass(frozen=True, slots=True)
class StreamRange:
    """A contiguous run [start, end) of one stream inside one object."""

    stream_id: int
    start_offset: int
    end_offset: int
    record_count: int
    size_bytes: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as the catalog knows it."""

    object_id: int
    kind: ObjectKind
    state: ObjectState
    store: str
    """Name of the object store it lies in."""
    size_bytes: int
    node_id: int
    """Node that wrote it."""
    writer_id: str
    """In the object's metadata too: a roll-back deletes only what its own writer made (invariant 5)."""
    deadline_ms: int
    """Prepared: when it is reaped. Destroyed: when it is deleted. Committed: 0."""
    committed_ms: int
    """0: it was never committed."""
    oldest_data_ms: int = 0
    """When its oldest data was first committed, in whatever object held it then; 0 until the object is committed."""
    cleaned: bool = False
    """True if log compaction wrote it: each key is there once, but for what later parts of the stream hold."""


@dataclass(frozen=True, slots=True)
class RangeLocation:
    """Where a run of a stream lies: the range and the object that holds it."""

    range: StreamRange
    object: ObjectInfo
    source_stream_id: int = 0
    """The stream under whose id the object has it: a clone refers to what its original wrote. 0: the range's own."""

    @property
    def stored_stream_id(self) -> int:
        """The stream id in the object's index and blocks: what to look the range up by."""
        return self.source_stream_id or self.range.stream_id


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object about to be committed: prepared before, its bytes complete in the store, its ranges in stream order."""

    object_id: int
    kind: ObjectKind
    size_bytes: int
    ranges: Sequence[StreamRange]


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as the catalog knows it."""

    stream_id: int
    epoch: int
    node_id: int
    """Node that has it open, or -1."""
    start_offset: int
    end_offset: int
    """End of what is committed to objects; what is only in a node's WAL lies past it."""
    snapshot: bytes
    """The owner's opaque state as of `end_offset` (producer ids, epochs, aborted transactions), or empty."""


def object_key(cluster: str, object_id: int) -> str:
    """Key of an object: the hex digits of its id reversed, so that keys written in turn spread over the key space."""
    return f"{f'{object_id:016x}'[::-1]}/{cluster}/{object_id}"
