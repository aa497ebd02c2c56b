"""Values that the catalog takes and returns.

Times are ms since 1970 and are always passed in; `delete_after_ms` and `deadline_ms` are such times, not durations.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from s3stream.model import NewObject, StreamInfo


@dataclass(frozen=True, slots=True)
class NodeHolder:
    """The process that has registered a node."""

    host_name: str = ""
    """Name of its machine, for messages."""
    pid: int = 0
    lock_id: str = ""
    """Names what the process holds locked until it ends, boot of the machine included: whoever holds the very same
    lock knows that the process is gone. Empty: not known."""


UNKNOWN_HOLDER = NodeHolder()


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A registered node. `lease_until_ms` in the past means it is not known to live."""

    node_id: int
    epoch: int
    host: str
    port: int
    lease_until_ms: int
    """0: the node has stopped cleanly. -1: its registration was taken back."""
    lease_ms: int = 0
    """How long each renewal is good for; 0: not known."""
    holder: NodeHolder = UNKNOWN_HOLDER


class WalState(IntEnum):
    """What the log of a node may hold."""

    OPEN = 1
    """Acknowledged records that are in no object yet."""
    DRAINED = 3
    """Nothing: the node has stopped cleanly, with all in objects."""
    GIVEN_UP = 4
    """Records whose loss was accepted: it must not be used again, since their offsets are given to others."""


@dataclass(frozen=True, slots=True)
class WalInfo:
    """A log that a node has acknowledged into."""

    wal_id: str
    """16 hex digits: the log id in its header."""
    node_id: int
    node_epoch: int
    """Under which it was claimed last: a node's logs in the order of their use."""
    location: str
    """Path of the device or file on the node's machine."""
    state: WalState
    seen_ms: int
    """When the state was noted."""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition: which stream holds it, which node serves it, and since which leader epoch."""

    index: int
    stream_id: int
    leader: int
    """Node id; -1 while nobody serves it."""
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its partitions in the order of their indexes, from 0 without gaps."""

    name: str
    topic_id: bytes
    """16 bytes of a UUID."""
    configs: Mapping[str, str]
    """Only what was set for this topic."""
    partitions: Sequence[PartitionInfo]
    internal: bool = False


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created."""

    name: str
    topic_id: bytes
    """16 bytes of a UUID; it tells a repeated command from another topic of that name."""
    partitions: int
    configs: Mapping[str, str]
    internal: bool = False


@dataclass(frozen=True, slots=True)
class DetachedTopic:
    """A topic that is kept, but is none of the cluster's until it is attached."""

    name: str
    """What it was called last."""
    topic_id: bytes
    configs: Mapping[str, str]
    stream_ids: Sequence[int]
    """By partition."""
    internal: bool
    detached_ms: int


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Answer to opening a stream: its state, with the epoch that its writer shows from now on."""

    info: StreamInfo
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class UploadCommit:
    """Everything an upload makes visible at once (invariant 3).

    Each range must begin where its stream ends, after the ranges before it in this commit.
    """

    node_id: int
    node_epoch: int
    objects: Sequence[NewObject]
    stream_epochs: Mapping[int, int]
    """Epoch under which each stream in `objects` was written."""
    snapshots: Mapping[int, bytes]
    """New snapshot of a stream's owner, as of the stream's new end."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class CompactionCommit:
    """Replace ranges by ranges of other objects that cover them, at once; inputs without any left become destroyed."""

    node_id: int
    node_epoch: int
    inputs: Sequence[int]
    outputs: Sequence[NewObject]
    now_ms: int
    delete_after_ms: int
    """When the inputs may be deleted: readers in flight are done by then."""
    streams: Collection[int] | None = None
    """Only the ranges of these streams are swapped, and what others refer to in the inputs stays. None: all."""
