"""Leaders of partitions, as clients are told about them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.cluster.members import Member
from broker.node import Node
from broker.topics.topic import Topic


class Leader(NamedTuple):
    """The node that serves a partition."""

    node_id: int
    epoch: int
    """Leader epoch."""


def leader_of(node: Node, topic: Topic, index: int) -> Leader | None:
    """Return the leader of a partition, or None while no living node has it open."""
    partition = topic.partitions[index]
    if partition is not None:
        return Leader(node.node_id, partition.leader_epoch) if partition.stream.error is None else None
    info = topic.info.partitions[index]
    if info.owner != info.leader or info.leader == node.node_id or node.members.get(info.leader) is None:
        return None
    return Leader(info.leader, info.leader_epoch)


def replicas_of(topic: Topic, index: int) -> Sequence[int]:
    """Return the replicas of a partition: its leader, or the one it had last. Durability does not depend on them."""
    return (topic.info.partitions[index].leader,)


def endpoints_of(node: Node, leaders: Iterable[Leader]) -> Sequence[Member]:
    """Return the nodes that clients need in order to reach leaders, by id (KIP-951)."""
    found = {leader.node_id: node.members.get(leader.node_id) for leader in leaders}
    return [member for _, member in sorted(found.items()) if member is not None]
