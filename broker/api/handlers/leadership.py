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
    """Node ids, the preferred leader first; none without a leader. The leader is always one of them."""
    offline_replicas: Sequence[int] = ()
    """Those of the replicas that are dead, or cannot serve the partition because of an error."""

    @property
    def in_sync_replicas(self) -> Sequence[int]:
        """Replicas that serve reads. All of them read the same objects; without a leader, those that were to lead."""
        if self.leader is None:
            return self.replicas
        return [each for each in self.replicas if each not in self.offline_replicas]


def leadership_of(serving: Serving, topic: Topic, index: int) -> Leadership:
    """Return the leadership of a partition that exists.

    This node serves what it has open without an error, also while it hands it over, as long as its ownership is proved.
    It opens what it leads and has not open, and so does another node that lives: they are named at once. One that is
    cut off from the catalog serves what it leads until it is taken over, and is named as long as it answers.
    """
    info, partition = topic.info.partitions[index], topic.partitions[index]
    is_served = partition is not None and (partition.stream.error is None or partition.stream.is_sealed)
    if partition is not None and is_served and serving.ownership.is_proved:
        replicas = info.replicas_with(serving.node_id)
        return Leadership(serving.members.own, partition.leader_epoch, replicas, _dead(serving, replicas))
    epoch = info.leader_epoch if partition is None else max(info.leader_epoch, partition.leader_epoch)
    replicas = info.replicas_with(info.leader)
    leader = serving.members.get_leader(info.leader)
    if leader is None or (leader is serving.members.own and partition is not None):
        return Leadership(None, epoch, replicas, _dead(serving, replicas, info.leader))
    return Leadership(leader, epoch, replicas, _dead(serving, replicas))


def _dead(serving: Serving, replicas: Sequence[int], failed: int = NO_LEADER) -> Sequence[int]:
    """Return those of the replicas that do not live, and the one that has failed."""
    get = serving.members.get_leader
    return [each for each in replicas if each == failed or get(each) is None]


def find_leadership(serving: Serving, topic: str | bytes, index: int) -> Leadership | None:
    """Return the leadership of a partition of a topic given by name or id; None if there is no such partition."""
    found = serving.topics.get(topic)
    if found is None or not 0 <= index < len(found.partitions):
        return None
    return leadership_of(serving, found, index)
