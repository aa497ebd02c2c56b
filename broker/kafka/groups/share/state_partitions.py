"""Partitions of which the share coordinator has a state for a group, or is asked to create or delete one.

A partition may be assigned to members when its state is there. The group records what it asks for before it asks, so
that a later coordinator of the group knows what may be there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition

NO_INDEXES: frozenset[int] = frozenset()


class TopicPartitionSet(NamedTuple):
    """Partitions of one topic."""

    name: str
    indexes: frozenset[int]


TopicSets = Mapping[bytes, TopicPartitionSet]
"""Partitions by topic id."""


@dataclass(frozen=True, slots=True)
class StatePartitions:
    """States of one group, as its record has them."""

    initializing: TopicSets = field(default_factory=dict)
    """Partitions whose state is being created."""
    initialized: TopicSets = field(default_factory=dict)
    """Partitions with a state."""
    deleting: Mapping[bytes, str] = field(default_factory=dict)
    """Names of the topics whose states are being deleted, by topic id."""

    def begin_creation(self, asked: TopicSets) -> "StatePartitions":
        """Return the states after creations of these have begun, which overtake deletions."""
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in asked}
        return StatePartitions(_with(self.initializing, asked), self.initialized, deleting)

    def end_creation(self, created: TopicSets, failed: TopicSets) -> "StatePartitions":
        """Return the states after some have been created, and others could not be."""
        initializing = _without(_without(self.initializing, created), failed)
        return StatePartitions(initializing, _with(self.initialized, created), self.deleting)

    def begin_deletion(self, names: Mapping[bytes, str]) -> "StatePartitions":
        """Return the states after the deletion of topics has begun, by topic id."""
        return StatePartitions(self.initializing, _without_topics(self.initialized, names), {**self.deleting, **names})

    def begin_deletion_of_all(self) -> "StatePartitions":
        """Return the states after the deletion of all has begun."""
        names = {topic_id: found.name for topic_id, found in (*self.initializing.items(), *self.initialized.items())}
        return StatePartitions({}, {}, {**self.deleting, **names})

    def without_topics(self, topic_ids: Iterable[bytes]) -> "StatePartitions":
        """Return the states without those of topics that are gone, with their states."""
        gone = dict.fromkeys(topic_ids)
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone}
        return StatePartitions(
            _without_topics(self.initializing, gone), _without_topics(self.initialized, gone), deleting
        )

    def end_deletion(self, topic_ids: Iterable[bytes]) -> "StatePartitions":
        """Return the states after those of topics have been deleted."""
        gone = set(topic_ids)
        deleting = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in gone}
        return StatePartitions(self.initializing, self.initialized, deleting)

    def names(self) -> Iterator[tuple[bytes, str]]:
        """Yield id and name of each topic, perhaps more than once."""
        for sets in (self.initializing, self.initialized):
            for topic_id, found in sets.items():
                yield topic_id, found.name
        yield from self.deleting.items()


def partitions_of(sets: TopicSets) -> Iterator[TopicIdPartition]:
    """Yield the partitions one by one."""
    for topic_id, (_, indexes) in sets.items():
        for index in indexes:
            yield TopicIdPartition(topic_id, index)


def topic_sets(partitions: Iterable[TopicIdPartition], names: Mapping[bytes, str]) -> TopicSets:
    """Group partitions by topic. A topic without a name is left out."""
    found: dict[bytes, set[int]] = {}
    for topic_id, index in partitions:
        found.setdefault(topic_id, set()).add(index)
    return {
        topic_id: TopicPartitionSet(names[topic_id], frozenset(indexes))
        for topic_id, indexes in found.items()
        if topic_id in names
    }


def indexes_of(sets: TopicSets, topic_id: bytes) -> frozenset[int]:
    """Return the partitions of a topic."""
    found = sets.get(topic_id)
    return NO_INDEXES if found is None else found.indexes


def _with(sets: TopicSets, added: TopicSets) -> TopicSets:
    merged = dict(sets)
    for topic_id, (name, indexes) in added.items():
        merged[topic_id] = TopicPartitionSet(name, indexes | indexes_of(sets, topic_id))
    return merged


def _without(sets: TopicSets, removed: TopicSets) -> TopicSets:
    left = {
        topic_id: TopicPartitionSet(name, indexes - indexes_of(removed, topic_id))
        for topic_id, (name, indexes) in sets.items()
    }
    return {topic_id: found for topic_id, found in left.items() if found.indexes}


def _without_topics(sets: TopicSets, gone: Mapping[bytes, object]) -> TopicSets:
    return {topic_id: found for topic_id, found in sets.items() if topic_id not in gone}
