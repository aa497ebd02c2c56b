"""Values that the catalog takes and returns.

Times are ms since 1970 and are always passed in; `delete_after_ms` and `deadline_ms` are such times, not durations.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from anabranch.s3stream.model import NewObject, NodeIdentity, StreamInfo, StreamOwner

DEFAULT_RETENTION_SINCE: Final = 10
"""Version of the schema before which topics without a `retention.ms` of their own kept their records forever."""
KEPT_FOREVER: Final[Mapping[str, str]] = {"retention.ms": "-1"}
"""Configs of a topic whose records no default may delete."""


@dataclass(frozen=True, slots=True)
class NodeHolder:
    """The process that registered a node."""

    host_name: str = ""
    """Host name of its machine, for messages."""
    pid: int = 0
    lock_id: str = ""
    """Names the lock that the process holds until it ends, with the boot id of the machine. A process that gets the
    same lock knows that the former holder is gone. Empty: unknown."""


UNKNOWN_HOLDER = NodeHolder()


class NodeListener(NamedTuple):
    """A named address at which a node serves clients."""

    name: str
    host: str
    port: int


DEFAULT_LISTENER = "PLAINTEXT"
"""Name of the listener of a node that names none."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A registered node. A `lease_until_ms` in the past means that the node may be dead."""

    node_id: int
    epoch: int
    host: str
    port: int
    lease_until_ms: int
    """0: the node has stopped cleanly. Negative: its registration was removed."""
    lease_ms: int = 0
    """Duration of the lease after each renewal; 0: unknown."""
    holder: NodeHolder = UNKNOWN_HOLDER
    rack: str = ""
    internal_host: str = ""
    """Address that other nodes connect to; empty: none."""
    internal_port: int = 0
    draining: bool = False
    """True: it gets no partitions, until its next start or until the drain is cancelled."""
    listeners: tuple[NodeListener, ...] = ()
    """Addresses that clients connect to; `host` and `port` are those of the first one."""

    @property
    def identity(self) -> NodeIdentity:
        """Its last registration."""
        return NodeIdentity(self.node_id, self.epoch)


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """A sign of life of a node."""

    epoch: int
    beat: int
    """Grows while the node's process lives."""
    has_lease: bool
    """False: it has stopped cleanly, or was removed."""
    due_ms: int = 0
    """Interval within which the next beat is due; 0: unknown."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """The answer to a sign of life: those of all nodes."""

    beats: Mapping[int, NodeBeat]
    """By node id."""
    version: int
    """Number of the last change of the catalog."""
    uploads: int
    """Number of uploads that the catalog has committed for the node."""


class WalState(IntEnum):
    """The contents that a node's log may have."""

    OPEN = 1
    """Acknowledged records that are in no object yet."""
    FENCED = 2
    """As open; its node is dead, and another one, the recoverer, uploads what is in it."""
    DRAINED = 3
    """No records outside of objects: the node has stopped cleanly."""
    GIVEN_UP = 4
    """Records whose loss was accepted. The log must not be used again: their offsets are given to other records."""


class Takeover(StrEnum):
    """The nodes that may recover a log when its own node is dead."""

    NONE = "none"
    """Its own node only."""
    MACHINE = "machine"
    """Nodes on its machine. The lock of the file or device proves that the process that wrote it has ended."""
    SHARED = "shared"
    """All nodes that can open the device. The claim of the header fences a process that still writes."""


@dataclass(frozen=True, slots=True)
class WalInfo:
    """A write-ahead log that a node has acknowledged into."""

    wal_id: str
    """Log id in its header, 16 hex digits."""
    node_id: int
    node_epoch: int
    """Node epoch of its last claim; it orders a node's logs by their use."""
    location: str
    """Path of the device or file on the node's machine."""
    state: WalState
    seen_ms: int
    """Time of the last change of `state`."""
    takeover: Takeover = Takeover.NONE
    recoverer: int = -1
    """Node that recovers a fenced log."""
    recoverer_epoch: int = 0
    """Epoch in which it does."""
    kind: str = "device"

    @property
    def is_live(self) -> bool:
        """True if acknowledged records may be in it that are in no object."""
        return self.state in {WalState.OPEN, WalState.FENCED}


class MoveReason(IntEnum):
    """The reason for which a stream shall be led by another node."""

    REASSIGNMENT = 1
    """Kafka's AlterPartitionReassignments."""
    OPERATOR = 2
    """An operator moved the partition."""
    PLACEMENT = 3
    """It is a better place."""
    ELECTION = 4
    """The target is the preferred leader."""
    DRAIN = 5
    """The leader is being drained."""
    STOP = 6
    """The leader is stopping."""
    GATHERING = 7
    """All partitions of a topic must be on one node, to be detached or cloned."""

    @property
    def is_lasting(self) -> bool:
        """True if the target becomes the stream's preferred leader when it leads."""
        return self in {MoveReason.REASSIGNMENT, MoveReason.OPERATOR, MoveReason.PLACEMENT}


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """An order to the leader of a stream: hand it over to another node."""

    stream_id: int
    to_node: int
    reason: MoveReason
    asked_ms: int
    failure: str = ""
    """Reason for which it is no longer carried out; empty: it is, or will be."""
    replicas: tuple[int, ...] = ()
    """Replicas of the partition once the node leads it, if the reason is lasting; empty: the node alone."""

    @property
    def outcome(self) -> tuple[int, tuple[int, ...]] | None:
        """Preferred leader and replicas of the partition once the node leads it; None: they stay as they are."""
        if not self.reason.is_lasting:
            return None
        replicas = self.replicas or (self.to_node,)
        return replicas[0], replicas if len(replicas) > 1 else ()


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition with its stream, its leader and its leader epoch."""

    index: int
    stream_id: int
    leader: int
    """Node id; -1 without a leader."""
    leader_epoch: int
    owner: int = -1
    """Node that has the stream open; -1: none."""
    preferred: int = -1
    """Node that shall lead it when nothing speaks against it; -1: none."""
    order: MoveOrder | None = None
    """Order to move it, which may have failed."""
    replicas: tuple[int, ...] = ()
    """Nodes that serve reads of it, and lead it rather than others; the preferred leader first. Empty: the leader."""

    def replicas_with(self, leader: int) -> tuple[int, ...]:
        """Return the replicas while the node leads it: one that is none of them stands in for the first."""
        return self.replicas if leader in self.replicas or leader < 0 else (leader, *self.replicas[1:])


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic with its partitions in the order of their indexes, from 0 without gaps."""

    name: str
    topic_id: bytes
    """16 bytes of a UUID."""
    configs: Mapping[str, str]
    """Configs set on this topic, without defaults."""
    partitions: Sequence[PartitionInfo]
    internal: bool = False


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created."""

    name: str
    topic_id: bytes
    """16 bytes of a UUID; it distinguishes a repeated command from another topic of that name."""
    partitions: int
    configs: Mapping[str, str]
    internal: bool = False
    leaders: Sequence[int] | None = None
    """Leaders of the partitions, in order; None: they are placed over the nodes."""
    replicas: Sequence[Sequence[int]] | None = None
    """Replicas of the partitions, in order, if `leaders` are given; None: the leaders only."""
    factor: int = 1
    """Number of replicas of each partition, if they are placed: at most as many as there are nodes."""


@dataclass(frozen=True, slots=True)
class DetachedTopic:
    """A topic that is kept outside the cluster until it is attached."""

    name: str
    """Its last name."""
    topic_id: bytes
    configs: Mapping[str, str]
    stream_ids: Sequence[int]
    """In the order of the partitions."""
    internal: bool
    detached_ms: int


class AclRow(NamedTuple):
    """An access control list with one entry, in Kafka's codes."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class TokenRow(NamedTuple):
    """A delegation token, without anything that a client could authenticate itself with."""

    token_id: str
    owner: str
    """Principal that it is for, in Kafka's notation."""
    requester: str
    """Principal that has asked for it."""
    renewers: tuple[str, ...]
    """Further principals that may renew it."""
    issued_ms: int
    expires_ms: int
    max_ms: int
    """Time at which it expires at the latest, however often it is renewed."""


@dataclass(frozen=True, slots=True)
class CatalogChanges:
    """The changes of topics, nodes, configs, ACLs and tokens since an earlier one."""

    version: int
    """Number of the last one."""
    nodes: Sequence[NodeInfo]
    """All that are registered."""
    topics: Sequence[TopicInfo]
    """Topics that were created or have changed, or whose partitions have."""
    topic_ids: Collection[bytes] | None
    """All topics there are, if one was deleted or detached; else None."""
    detached_ids: Collection[bytes]
    """The detached ones among those that are gone, if `topic_ids` is given."""
    configs_changed: bool
    """True if configs of brokers, groups or others have changed."""
    acls_changed: bool
    """True if access control lists have changed."""
    tokens_changed: bool
    secret_changed: bool
    """True if delegation tokens have changed."""


class StreamReading(NamedTuple):
    """A stream that another node may have open, as the catalog has it at one moment."""

    stream_id: int
    start_offset: int
    end_offset: int
    """Committed end."""
    epoch: int
    leader_epoch: int
    snapshot: bytes | None
    """State of the stream's owner as of `end_offset`; None: it is the one of the reading before."""


@dataclass(frozen=True, slots=True)
class OpenStream:
    """Result of opening a stream: its state, with the epoch that its writer must present."""

    info: StreamInfo
    leader_epoch: int

    @property
    def is_first(self) -> bool:
        """True if it has never been open before, and its leader is the one that it was created with."""
        return self.info.epoch == 1 and self.leader_epoch == 1


@dataclass(frozen=True, slots=True)
class StreamTransfer:
    """Change of a stream's owner in a planned move. The target has all that is past `end_offset` in its own log."""

    stream_id: int
    epoch: int
    """Epoch under which the source has it open."""
    leader_epoch: int
    """The source's leader epoch."""
    end_offset: int
    """Committed end, at which the tail in the target's log begins."""
    source: StreamOwner
    target: StreamOwner


@dataclass(frozen=True, slots=True)
class UploadCommit:
    """All changes that an upload makes visible in one transaction (invariant 3).

    Each range must begin where its stream ends, after the ranges before it in this commit.
    """

    node: NodeIdentity
    objects: Sequence[NewObject]
    stream_epochs: Mapping[int, int]
    """Epoch under which each stream in `objects` was written."""
    snapshots: Mapping[int, bytes]
    """New snapshots of the streams' owners, as of the streams' new ends."""
    now_ms: int


@dataclass(frozen=True, slots=True)
class CompactionCommit:
    """Replacement of ranges by ranges of other objects that cover them; inputs without any left become destroyed."""

    node: NodeIdentity
    inputs: Sequence[int]
    outputs: Sequence[NewObject]
    now_ms: int
    delete_after_ms: int
    """Time from which the inputs may be deleted, when readers in flight have finished."""
    streams: Collection[int] | None = None
    """Streams whose ranges are replaced; other streams keep their ranges in the inputs. None: all streams."""
