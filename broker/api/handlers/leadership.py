"""Leaders as announced to clients.

Invariant: as far as this node knows, an announced leader lives and serves the partition, or is about to open it and
parks requests until then (`broker/kafka/topics/parking.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.peers.members import Member

NO_LEADER = -1
"""Stands for the leader of a partition that no node serves."""


class Leadership(NamedTuple):
    """The leader and the replicas of a partition."""

    leader: Member | None
    """Node that serves the partition, or is about to; None if none does."""
    leader_epoch: int
    """The last one known, with or without a leader."""
    replicas: Sequence[int]
    """Node ids: the one that is to lead, or none."""
    offline_replicas: Sequence[int] = ()
    """Those of the replicas that are dead, or cannot serve the partition because of an error."""


def leadership_of(serving: Serving, topic: Topic, index: int) -> Leadership:
    """Return the leadership of a partition that exists.

    This node serves what it has open without an error, also while it hands it over, as long as its ownership is proved.
    It opens what it leads and has not open, and so does another node that lives: they are named at once. One that is
    cut off from the catalog serves what it leads until it is taken over, and is named as long as it answers.
    """
    partition = topic.partitions[index]
    is_served = partition is not None and (partition.stream.error is None or partition.stream.is_sealed)
    if partition is not None and is_served and serving.ownership.is_proved:
        return Leadership(serving.members.own, partition.leader_epoch, (serving.node_id,))
    info = topic.info.partitions[index]
    epoch = info.leader_epoch if partition is None else max(info.leader_epoch, partition.leader_epoch)
    replicas = (info.leader,) if info.leader >= 0 else ()
    leader = serving.members.get_leader(info.leader)
    if leader is None or (leader is serving.members.own and partition is not None):
        return Leadership(None, epoch, replicas, replicas)
    return Leadership(leader, epoch, replicas)


def find_leadership(serving: Serving, topic: str | bytes, index: int) -> Leadership | None:
    """Return the leadership of a partition of a topic given by name or id; None if there is no such partition."""
    found = serving.topics.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        return None
    return leadership_of(serving, found, index)
