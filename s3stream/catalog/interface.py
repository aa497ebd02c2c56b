"""What node, engine and compaction ask of the catalog: metadata only, each command one transaction.

Commands are idempotent: repeating one that succeeded succeeds again. Those that take `node_epoch` or a stream's epoch
refuse old ones (invariant 7). Getters have no side effects. Times are ms since 1970 and always handed in;
`delete_after_ms` and `deadline_ms` are such times, not durations.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from s3stream.errors import AlreadyExists
from s3stream.model import NewObject, ObjectInfo, RangeLocation, StreamInfo

if TYPE_CHECKING:
    from s3stream.catalog.fill import Advance, Filling
    from s3stream.catalog.state import CatalogState


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


class Catalog(Protocol):
    """The metadata store of a cluster. Errors are those of `s3stream.errors`."""

    @property
    def where(self) -> str:
        """Its URL without the password, for messages."""
        ...

    async def is_blank(self) -> bool:
        """Whether no node, topic or object was ever registered, or there is no such database. Before `open`.

        Leaves no trace: nothing is made, migrated or written.
        """
        ...

    async def open(self, *, cluster: str, new_id: bytes | None = None) -> None:
        """Connect, migrate the schema, and adopt `cluster` as the cluster's name, or check that it is.

        A catalog without an identity takes `new_id`, 16 random bytes. A catalog that is only read is not changed by
        this either: schema and name must be as expected.
        """
        ...

    def identity(self) -> bytes:
        """The catalog's own id, 16 bytes, once it is open: no other catalog has it. Zero: it was never given one."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...

    # nodes

    async def register_node(
        self,
        node_id: int,
        host: str,
        port: int,
        *,
        now_ms: int,
        lease_ms: int,
        holder: NodeHolder = UNKNOWN_HOLDER,
        after_epoch: int | None = None,
    ) -> NodeInfo:
        """Claim a node id: its epoch grows by one, and every writer with an older one is fenced.

        With `after_epoch` only if that is still the node's last epoch (0: there is none), so that one of several that
        found the id free gets it: NodeFenced for the others.
        """
        ...

    async def renew_lease(self, node_id: int, node_epoch: int, *, now_ms: int, lease_ms: int) -> None:
        """Extend the lease; NodeFenced when the epoch is old."""
        ...

    async def stop_node(self, node_id: int, node_epoch: int, *, drained_wal: str | None, now_ms: int) -> None:
        """End the lease of a node that stops; its log, if named, holds nothing any more. NodeFenced."""
        ...

    async def remove_node(self, node_id: int, *, now_ms: int) -> None:
        """Take back the registration of a node that is dead and leads nothing. Raises NodeInUse, NotFound."""
        ...

    async def list_nodes(self) -> Sequence[NodeInfo]:
        """All nodes ever registered and not removed, by id."""
        ...

    async def get_node(self, node_id: int) -> NodeInfo | None:
        """A node that was ever registered, a removed one too."""
        ...

    # the logs of nodes

    async def list_wals(self, node_id: int) -> Sequence[WalInfo]:
        """Every log that the node has used, the one used last at the end."""
        ...

    async def open_wal(self, wal_id: str, *, node_id: int, node_epoch: int, location: str, now_ms: int) -> None:
        """Note that the node acknowledges into this log from now on.

        NodeFenced; CatalogError when the log was given up, or another one may hold records of the node's streams.
        """
        ...

    async def give_up_wal(self, wal_id: str, *, seen: NodeInfo, now_ms: int) -> None:
        """Accept the loss of what a log holds that is in no object.

        `seen` is the log's node as it was when its process was found to be gone: NodeInUse when it is no longer that.
        NotFound when the log holds nothing.
        """
        ...

    async def count_open_streams(self, node_id: int) -> int:
        """Streams that the node opened last: records past their ends may be in its log."""
        ...

    # topics

    async def create_topic(
        self, name: str, topic_id: bytes, *, partitions: int, configs: Mapping[str, str], leader: int, internal: bool
    ) -> TopicInfo:
        """Create a topic and its streams, led by node `leader`. AlreadyExists unless it has this very `topic_id`."""
        ...

    async def create_topics(self, wanted: Sequence[NewTopic], *, leader: int) -> Sequence[TopicInfo | AlreadyExists]:
        """The same for many, in one transaction, in the order asked.

        Where a topic cannot be created, the error it would be alone stands in its place; the others are created.
        """
        ...

    # Changes go by topic id: a command may be repeated when there is a new topic of the name.

    async def add_partitions(self, topic_id: bytes, total: int, *, leader: int) -> TopicInfo:
        """Grow to `total` partitions; CatalogError when it has more already; no change when as many. NotFound."""
        ...

    async def delete_topics(self, topic_ids: Sequence[bytes], *, now_ms: int, delete_after_ms: int) -> None:
        """Forget the topics and their streams, in one transaction; objects nobody needs any more become destroyed.

        Topics that do not exist are as good as deleted.
        """
        ...

    async def alter_topic(self, topic_id: bytes, *, set_configs: Mapping[str, str], unset: Sequence[str]) -> TopicInfo:
        """Change the topic's own settings. NotFound."""
        ...

    async def list_topics(self) -> Sequence[TopicInfo]:
        """All topics by name."""
        ...

    async def list_topic_configs(self) -> Mapping[bytes, Mapping[str, str]]:
        """What was set for topics, by topic id; topics without anything set are not listed."""
        ...

    # moving topics: catalog changes only, no data is touched

    async def detach_topic(
        self, name: str, topic_id: bytes, *, ends: Mapping[int, int], node_id: int, node_epoch: int, now_ms: int
    ) -> None:
        """Take a topic out of the cluster; its objects stay until it is attached and deleted.

        `ends` are the ends of its streams when all was uploaded: EndMoved when they are others. Whoever writes to the
        streams is fenced. NotFound, StreamFenced when another node has one of them open.
        """
        ...

    async def attach_topic(self, topic_id: bytes, name: str, *, node_id: int, node_epoch: int) -> TopicInfo:
        """Bring a detached topic back under `name`, led by the node. NotFound; AlreadyExists when the name is taken."""
        ...

    async def clone_topic(
        self,
        name: str,
        new_name: str,
        topic_id: bytes,
        *,
        ends: Mapping[int, int],
        node_id: int,
        node_epoch: int,
    ) -> TopicInfo:
        """Create `new_name`, led by the node, with the records that `name` has up to `ends`, and go separate ways.

        Its streams refer to the same objects. EndMoved unless `ends` are the committed ends of all streams of `name`;
        NotFound; AlreadyExists unless `new_name` has this very `topic_id`.
        """
        ...

    async def list_detached(self) -> Sequence[DetachedTopic]:
        """Detached topics, by name, the last one detached first."""
        ...

    # streams

    async def open_streams(self, stream_ids: Sequence[int], *, node_id: int, node_epoch: int) -> Sequence[OpenStream]:
        """Take streams over: epoch and leader epoch of each grow by one, the leader becomes `node_id`.

        In one transaction; the answer is in the order asked. StreamNotFound.
        """
        ...

    async def get_streams(self, stream_ids: Sequence[int]) -> Mapping[int, StreamInfo]:
        """Those of the streams that exist."""
        ...

    async def list_streams(self, *, after: int, limit: int) -> Sequence[StreamInfo]:
        """The first `limit` streams with ids above `after`, by id."""
        ...

    async def next_stream_id(self) -> int:
        """The id of the next stream: no stream with this or a higher id was ever made."""
        ...

    async def trim_stream(
        self, stream_id: int, epoch: int, new_start: int, *, now_ms: int, delete_after_ms: int
    ) -> StreamInfo:
        """Move the start forward (never back, never past the end); objects wholly before it become destroyed."""
        ...

    async def find_ranges(
        self, stream_id: int, start_offset: int, end_offset: int, *, limit: int
    ) -> Sequence[RangeLocation]:
        """Committed ranges that overlap [start, end), in offset order, at most `limit`; O(log n + answer)."""
        ...

    async def stream_bytes(self, stream_ids: Sequence[int]) -> Mapping[int, int]:
        """Bytes of the committed ranges of each stream."""
        ...

    async def find_time(self, stream_id: int, timestamp_ms: int) -> RangeLocation | None:
        """The first live range whose largest timestamp is at or after `timestamp_ms`."""
        ...

    # objects

    async def prepare_objects(
        self,
        count: int,
        *,
        node_id: int,
        node_epoch: int,
        writer_id: str,
        store: str,
        now_ms: int,
        deadline_ms: int,
    ) -> Sequence[int]:
        """Reserve object ids, never used before, for objects that are about to be written."""
        ...

    async def note_multipart(self, object_id: int, upload_id: str) -> None:
        """Remember a multipart upload under way, so that a later process can abort it."""
        ...

    async def commit_upload(self, commit: UploadCommit) -> None:
        """Make an upload visible. Refuses stale epochs, and ranges that do not begin at their stream's end."""
        ...

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        """Swap inputs for outputs. Every live range of the inputs must be covered by exactly one output."""
        ...

    async def get_objects(self, object_ids: Sequence[int]) -> Mapping[int, ObjectInfo]:
        """Those of the objects that exist."""
        ...

    async def list_objects(self, *, after: int, limit: int) -> Sequence[ObjectInfo]:
        """The first `limit` objects, in any state, with ids above `after`, by id."""
        ...

    async def list_node_ssos(self, node_id: int, *, limit: int) -> Sequence[ObjectInfo]:
        """The node's newest committed stream set objects, oldest first."""
        ...

    async def list_stream_objects(self, stream_id: int) -> Sequence[RangeLocation]:
        """The stream's committed stream objects (SO) in offset order."""
        ...

    async def list_compactable_streams(self, node_id: int, *, objects_min: int, limit: int) -> Sequence[int]:
        """Streams the node has open with at least `objects_min` stream objects, most objects first."""
        ...

    async def shared_objects(self) -> frozenset[int]:
        """Stream objects (SO) that several streams refer to: a topic was cloned."""
        ...

    async def object_ranges(self, object_ids: Sequence[int]) -> Mapping[int, Sequence[RangeLocation]]:
        """The live ranges (past their stream's start, stream not deleted) of each object, by stream and offset."""
        ...

    async def list_reapable(self, *, now_ms: int, limit: int) -> Sequence[tuple[ObjectInfo, str]]:
        """Prepared or destroyed objects past their deadline, each with its multipart upload id or an empty text."""
        ...

    async def condemn_objects(self, object_ids: Sequence[int], *, now_ms: int) -> Sequence[int]:
        """Take prepared objects past their deadline from their writers, so that no commit can come after.

        They become destroyed. Returns which of the ids are destroyed now: only those may be deleted from the store.
        """
        ...

    async def discard_objects(self, object_ids: Sequence[int], *, now_ms: int, delete_after_ms: int) -> None:
        """Give up prepared objects: no commit can come after, and the collector has them from `delete_after_ms` on.

        Committed and destroyed ones stay what they are: whatever a writer believes of its commit, the catalog knows.
        """
        ...

    async def forget_objects(self, object_ids: Sequence[int]) -> None:
        """Drop prepared and destroyed objects whose bytes are gone from the store."""
        ...

    async def count_committed(self) -> Mapping[str, int]:
        """Committed objects by the name of their store."""
        ...

    async def count_objects(self) -> Mapping[str, tuple[int, int]]:
        """(count, bytes) by kind and state, as in `"SSO committed"`."""
        ...

    # small things

    async def alter_config(
        self, kind: str, name: str, *, set_configs: Mapping[str, str], unset: Sequence[str]
    ) -> Mapping[str, str]:
        """Change what is set for a thing that is no topic (a group, a feature); returns all that is set for it now."""
        ...

    async def list_configs(self) -> Mapping[tuple[str, str], Mapping[str, str]]:
        """What is set, by kind and name of the thing; things without anything set are not listed."""
        ...

    async def next_producer_ids(self, count: int) -> int:
        """Reserve `count` producer ids; returns the first."""
        ...

    # manifests: what is kept in the object store of all this

    async def read_state(self) -> "tuple[int, CatalogState]":
        """All that a manifest tells, with the number of the manifest begun last (0: none)."""
        ...

    async def next_manifest(self, above: int) -> int:
        """A number for a manifest, higher than all before and than `above`."""
        ...

    async def fill(self, wanted: "Filling") -> None:
        """Fill a catalog that has nothing yet, in one transaction. CatalogError when it has anything."""
        ...

    async def advance(self, wanted: "Advance") -> None:
        """Move counters and epochs of a restored catalog ahead of what was given since the copy was made."""
        ...

    def watch_shape(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after each attempt made here to change topics, streams' owners or configs."""
        ...
