"""Values that pass between the layers of the storage engine. Offsets are 64 bit everywhere (invariant 8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from anabranch.wal.interface import Buffer


class StreamBatch(NamedTuple):
    """One append of one stream: opaque bytes and what storage must know of them. Ranges are half open: [base, end)."""

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


class CachedRun(NamedTuple):
    """A contiguous run [start, end) of one stream in the log cache."""

    start_offset: int
    end_offset: int
    size_bytes: int
    committed: bool
    """True if it is in objects; False if it is only in the log."""


class ObjectKind(IntEnum):
    """Kind of an object: a stream set object (SSO) holds runs of many streams, a stream object (SO) a run of one."""

    SSO = 1
    SO = 2


class ObjectState(IntEnum):
    """State of an object in the catalog; every object in a store is in one of them (invariant 6)."""

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
    """An object as the catalog lists it."""

    object_id: int
    kind: ObjectKind
    state: ObjectState
    store: str
    """Name of the object store that holds it."""
    size_bytes: int
    node_id: int
    """Node that wrote the object."""
    writer_id: str
    """Id of the writer, also in the object's metadata: a rollback deletes only its writer's objects (invariant 5)."""
    deadline_ms: int
    """Prepared: time at which it is reaped. Destroyed: time at which it is deleted. Committed: 0."""
    committed_ms: int
    """0: it was never committed."""
    oldest_data_ms: int = 0
    """Time of the first commit of its oldest data, in whatever object held it then; 0 until the object is committed."""
    cleaned: bool = False
    """True if log compaction wrote it: it has one record for each key, and none that a newer one had replaced then."""


@dataclass(frozen=True, slots=True)
class RangeLocation:
    """Location of a run of a stream: the range and the object that holds it."""

    range: StreamRange
    object: ObjectInfo
    source_stream_id: int = 0
    """Stream id of the run inside the object, if it differs: a clone refers to runs of its original. Else 0."""

    @property
    def stored_stream_id(self) -> int:
        """Stream id of the run in the object's index and blocks."""
        return self.source_stream_id or self.range.stream_id


@dataclass(frozen=True, slots=True)
class NewObject:
    """An object to be committed: prepared, its bytes complete in the store, its ranges in stream order."""

    object_id: int
    kind: ObjectKind
    size_bytes: int
    ranges: Sequence[StreamRange]


class NodeIdentity(NamedTuple):
    """One registration of a node. A later one of the same node, with a higher epoch, fences what it writes."""

    node_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class StreamOwner:
    """Owner of streams: one registration of a node, with the log that it acknowledges into."""

    node_id: int
    node_epoch: int
    wal_id: str
    """The log's id in the catalog, 16 hex digits."""

    @property
    def identity(self) -> NodeIdentity:
        """The registration."""
        return NodeIdentity(self.node_id, self.node_epoch)


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as the catalog lists it."""

    stream_id: int
    epoch: int
    node_id: int
    """Node that has the stream open, or -1."""
    start_offset: int
    end_offset: int
    """End of the data that is committed to objects; data that is only in a node's WAL lies past it."""
    snapshot: bytes
    """The owner's opaque state as of `end_offset` (producer ids, epochs, aborted transactions), or empty."""
    wal_id: str = ""
    """Log that may hold records past `end_offset`; empty: none does, or that of its owner before this was recorded."""
    deleted_offset: int = 0
    """Offset that a client has asked to delete records up to, at most `start_offset`; 0: none has."""

    def is_held_by(self, owner: StreamOwner) -> bool:
        """Return whether records past the end in the owner's log are the stream's. In any other log they are void."""
        return self.node_id == owner.node_id and self.wal_id in {owner.wal_id, ""}


def object_key(cluster: str, object_id: int) -> str:
    """Return the key of an object: it begins with the reversed hex digits of its id, which spreads successive keys."""
    return f"{f'{object_id:016x}'[::-1]}/{cluster}/{object_id}"


LOG_KEYS = "wal/"
"""Beginning of the keys of nodes' logs (`wal/OBJECT_FORMAT.md`), which the catalog has no objects for."""


def parse_object_key(key: str) -> tuple[str, int] | None:
    """Return cluster and object id of a key made by `object_key`; None for any other key."""
    spread, _, rest = key.partition("/")
    cluster, _, digits = rest.rpartition("/")
    if not cluster or not digits.isascii() or not digits.isdigit():
        return None
    object_id = int(digits)
    return (cluster, object_id) if object_key(cluster, object_id) == f"{spread}/{rest}" else None
