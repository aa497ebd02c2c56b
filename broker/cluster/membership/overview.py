"""The state of a cluster for people and scripts: nodes, their logs, partitions without a leader.

The admin port answers with these types, and commands show them: their fields are public.

A node that runs adds what it observes. Without one, a node counts as living while its lease lasts, by the clock of the
caller: good enough for a look at a stopped cluster, and never the base of a decision.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any, Final

from anabranch.addresses import host_port
from anabranch.broker.cluster.membership.failover import Judgement
from anabranch.broker.cluster.membership.loss import PartitionAtRisk
from anabranch.broker.node.peers.reach import Unreached
from anabranch.s3stream.catalog.values import NodeInfo, PartitionInfo, Takeover, TopicInfo, WalInfo, WalState

_SHOWN: Final = "serialization_alias"
"""Key, in the metadata of a field, of its name in JSON. Pydantic, by which the admin port answers, knows it, too."""


class NodeState(StrEnum):
    """State of a registered node."""

    UP = "UP"
    DRAINING = "DRAINING"
    """It lives, and its partitions are being moved to others."""
    FAILED = "FAILED"
    """It is dead, and was or will be taken over."""
    LEFT = "LEFT"
    """It has stopped cleanly, and nothing of it remains."""


@dataclass(frozen=True, slots=True)
class NodeLog:
    """The write-ahead log of a node."""

    id: str
    node: int
    kind: str
    location: str
    takeover: Takeover
    """Nodes that may open it."""
    state: str
    recoverer: int | None
    """Another node that recovers it, or has recovered it."""
    since_ms: int
    """Time of the last change of the state."""


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A registered node."""

    id: int
    state: NodeState
    epoch: int
    address: str
    rack: str
    machine: str
    leads: int
    """Number of partitions that it leads."""
    beat_age_ms: int | None
    """Age of the last beat that the observer has seen."""
    commit_age_ms: int | None
    """Age of its last upload."""
    log: NodeLog | None


@dataclass(frozen=True, slots=True)
class BalanceState:
    """State of the balancer, and the spread of the load over the nodes."""

    is_on: bool
    """False: the balancer is paused."""
    waits: str | None
    """Reason for which it plans nothing now."""
    spread: float
    """Highest load of a node, in multiples of the mean; 1 is even."""
    planned: int
    """Number of moves of the last plan."""


@dataclass(frozen=True, slots=True)
class UnavailablePartition:
    """A partition that no node serves."""

    topic: str
    partition: int
    leader: int | None
    owner: int | None
    """Node whose log may have its newest records."""
    reason: str


@dataclass(frozen=True, slots=True)
class Move:
    """A move that is not carried out yet, or has failed."""

    topic: str
    partition: int
    from_node: int | None = field(metadata={_SHOWN: "from"})
    to: int
    reason: str
    asked_ms: int
    failure: str | None


@dataclass(frozen=True, slots=True)
class UndrainedLog(NodeLog):
    """A log of a dead node that may hold records which are in no object."""

    node_state: str


@dataclass(frozen=True, slots=True)
class SilentNode:
    """A node whose beat is missing."""

    node: int
    silent_ms: int
    dead: bool
    """True if it is known to be dead."""
    reason: str
    """Reason for which it is not taken over."""


@dataclass(frozen=True, slots=True)
class FailingConnection:
    """A connection between two living nodes that fails."""

    from_node: int
    to_node: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of a cluster by the catalog, and by what a node observes."""

    observer: int | None
    """The node that observes."""
    controller: int | None
    nodes: Sequence[RegisteredNode]
    partitions: int
    unavailable: Sequence[UnavailablePartition]
    moves: Sequence[Move]
    logs_not_drained: Sequence[UndrainedLog]
    silent: Sequence[SilentNode]
    unreached: Sequence[FailingConnection]
    balance: BalanceState | None
    """None if one node lives, or the controller does not answer."""
    obstacles: Sequence[str]
    """Reasons for which the node that observes takes no records."""


@dataclass(frozen=True, slots=True)
class PartitionLoss:
    """A partition that may lose records."""

    partition: str
    from_offset: int
    """Offset of the first record that may be lost."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Records that are lost when the log of a dead node is given up."""

    node: int
    epoch: int
    machine: str
    log: NodeLog
    partitions: Sequence[PartitionLoss]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts from the catalog, and observations of one node."""

    nodes: Sequence[NodeInfo]
    logs: Sequence[WalInfo]
    topics: Sequence[TopicInfo]
    last_commits: Mapping[int, int]
    now_ms: int
    living: frozenset[int] | None = None
    """Nodes that the observer sees alive; None without an observer."""
    beat_ages_ms: Mapping[int, int] = field(default_factory=dict)
    """Age of the last beat that the observer has seen, by node."""
    judgements: Sequence[Judgement] = ()
    """The observer's opinion of silent nodes."""
    unreached: Sequence[Unreached] = ()
    """Connections from and to the observer that fail."""
    stopped: Mapping[int, str] = field(default_factory=dict)
    """Reasons for which partitions that the observer has open cannot be used, by stream id."""
    obstacles: Sequence[str] = ()
    """Reasons for which the observer takes no records."""

    def lives(self, node: NodeInfo) -> bool:
        """Return whether a node is alive, as far as is known."""
        if self.living is not None:
            return node.node_id in self.living
        return node.lease_until_ms > self.now_ms


def state_of(node: NodeInfo, logs: Sequence[WalInfo], *, lives: bool) -> NodeState:
    """Return the state of a node with its logs, in the order of their use."""
    if node.lease_until_ms > 0 and lives:
        return NodeState.DRAINING if node.draining else NodeState.UP
    if node.lease_until_ms > 0 or any(log.is_live for log in logs):
        return NodeState.FAILED
    was_taken_over = bool(logs) and (logs[-1].recoverer >= 0 or logs[-1].state is WalState.GIVEN_UP)
    return NodeState.FAILED if was_taken_over else NodeState.LEFT


def logs_of(facts: ClusterFacts, node_id: int) -> Sequence[WalInfo]:
    """Return a node's logs in the order of their use."""
    return sorted((log for log in facts.logs if log.node_id == node_id), key=lambda log: (log.node_epoch, log.wal_id))


def describe_nodes(facts: ClusterFacts) -> list[RegisteredNode]:
    """Return the registered nodes, by id."""
    led = Counter(partition.leader for topic in facts.topics for partition in topic.partitions)
    return [_describe_node(facts, node, led[node.node_id]) for node in facts.nodes]


def _describe_node(facts: ClusterFacts, node: NodeInfo, leads: int) -> RegisteredNode:
    logs = logs_of(facts, node.node_id)
    return RegisteredNode(
        id=node.node_id,
        state=state_of(node, logs, lives=facts.lives(node)),
        epoch=node.epoch,
        address=host_port(node.host, node.port),
        rack=node.rack,
        machine=node.holder.host_name,
        leads=leads,
        beat_age_ms=facts.beat_ages_ms.get(node.node_id) if node.lease_until_ms > 0 else None,
        commit_age_ms=_commit_age_ms(facts, node),
        log=describe_log(logs[-1]) if logs else None,
    )


def _commit_age_ms(facts: ClusterFacts, node: NodeInfo) -> int | None:
    """Return the age of a node's last upload by its own clock: at its last beat, and the age of that for the observer.

    Clocks of two machines are never compared. None if it has no upload, or no beat that was observed.
    """
    commit_ms, beat_age_ms = facts.last_commits.get(node.node_id), facts.beat_ages_ms.get(node.node_id)
    if commit_ms is None or beat_age_ms is None or node.lease_until_ms <= 0:
        return None
    beat_ms = node.lease_until_ms - node.lease_ms
    return max(0, beat_ms - commit_ms) + beat_age_ms


def describe_log(log: WalInfo) -> NodeLog:
    """Describe a log."""
    return NodeLog(
        id=log.wal_id,
        node=log.node_id,
        kind=log.kind,
        location=log.location,
        takeover=log.takeover,
        state=log.state.name,
        recoverer=_known(log.recoverer),
        since_ms=log.seen_ms,
    )


def describe_loss(node: NodeInfo, log: WalInfo, at_risk: Sequence[PartitionAtRisk]) -> Loss:
    """Describe what is lost with the log of a node."""
    partitions = [PartitionLoss(each.partition, each.end_offset) for each in at_risk]
    return Loss(node.node_id, node.epoch, node.holder.host_name, describe_log(log), partitions)


def describe_cluster(
    facts: ClusterFacts, *, controller: int | None, observer: int | None, balance: BalanceState | None = None
) -> ClusterStatus:
    """Describe the whole cluster."""
    nodes = describe_nodes(facts)
    states = {node.id: node.state for node in nodes}
    return ClusterStatus(
        observer=observer,
        controller=controller,
        nodes=nodes,
        partitions=sum(len(topic.partitions) for topic in facts.topics),
        unavailable=list(_unavailable(facts, states)),
        moves=list(_moves(facts)),
        logs_not_drained=[
            UndrainedLog(**asdict(describe_log(log)), node_state=states.get(log.node_id, "REMOVED"))
            for log in facts.logs
            if log.is_live and states.get(log.node_id) not in (NodeState.UP, NodeState.DRAINING)
        ],
        silent=[
            SilentNode(each.node_id, int(1000 * each.seconds), each.is_dead, each.reason) for each in facts.judgements
        ],
        unreached=[FailingConnection(*each) for each in facts.unreached],
        balance=balance,
        obstacles=facts.obstacles,
    )


def _known(node_id: int) -> int | None:
    """Return the id of a node; None for -1, which stands for none."""
    return node_id if node_id >= 0 else None


def _moves(facts: ClusterFacts) -> Iterator[Move]:
    """Yield the orders of moves that are not carried out yet, or have failed."""
    for topic in facts.topics:
        for partition in topic.partitions:
            if (order := partition.order) is not None:
                yield Move(
                    topic=topic.name,
                    partition=partition.index,
                    from_node=_known(partition.leader),
                    to=order.to_node,
                    reason=order.reason.name.lower(),
                    asked_ms=order.asked_ms,
                    failure=order.failure or None,
                )


def _unavailable(facts: ClusterFacts, states: Mapping[int, str]) -> Iterator[UnavailablePartition]:
    """Yield the partitions that no node serves, with the reason."""
    reasons = {each.node_id: each.reason for each in facts.judgements if each.reason}
    for topic in facts.topics:
        for partition in topic.partitions:
            reason = _why_unavailable(facts, partition, states, reasons)
            if reason:
                leader, owner = _known(partition.leader), _known(partition.owner)
                yield UnavailablePartition(topic.name, partition.index, leader, owner, reason)


def _why_unavailable(
    facts: ClusterFacts, partition: PartitionInfo, states: Mapping[int, str], reasons: Mapping[int, str]
) -> str:
    leader, owner = partition.leader, partition.owner
    up = (NodeState.UP, NodeState.DRAINING)
    if partition.stream_id in facts.stopped:
        return facts.stopped[partition.stream_id]
    if owner < 0:
        if states.get(leader) in up:
            return f"node {leader} is opening it"
        return f"its leader, node {leader}, is not there" if leader >= 0 else "no node leads it"
    if states.get(owner) in up:
        return "" if owner == leader else f"node {owner} still has it open, and node {leader} is to lead it"
    live = [log for log in logs_of(facts, owner) if log.is_live]
    where = f"the log of node {owner}" + (f", {live[-1].location}" if live else "")
    if live and live[-1].state is WalState.FENCED and states.get(live[-1].recoverer) in up:
        return f"node {live[-1].recoverer} recovers {where}"
    reason = reasons.get(owner, f"{where}, was not recovered yet" if live else "it was not recovered yet")
    return f"its newest records may be in the log of node {owner}: {reason}"


def as_json(value: Any) -> Any:
    """Return one of these descriptions, or several, as the values that the admin port sends as JSON."""
    if is_dataclass(value):
        return {each.metadata.get(_SHOWN, each.name): as_json(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [as_json(each) for each in value]
    return value.value if isinstance(value, Enum) else value
