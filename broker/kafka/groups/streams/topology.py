"""The topology of a streams application as its members send it: subtopologies with the topics they need (KIP-1071)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """An internal topic of the application, a repartition topic or a changelog."""

    name: str
    partitions: int
    """0: the coordinator decides."""
    replication_factor: int
    """0: the default of the cluster."""
    configs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Copartition:
    """Topics of a subtopology that must have the same number of partitions, as indexes into its lists of topics."""

    source_topics: tuple[int, ...] = ()
    source_topic_regex: tuple[int, ...] = ()
    repartition_source_topics: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subtopology:
    """A part of the application whose tasks run independently of the others."""

    subtopology_id: str
    source_topics: tuple[str, ...] = ()
    source_topic_regex: tuple[str, ...] = ()
    """Not supported yet by Apache Kafka 4.4; empty."""
    changelogs: tuple[TopicDescription, ...] = ()
    repartition_sinks: tuple[str, ...] = ()
    """Repartition topics that it writes to."""
    repartition_sources: tuple[TopicDescription, ...] = ()
    """Repartition topics that it reads."""
    copartitions: tuple[Copartition, ...] = ()

    @property
    def input_topics(self) -> Iterator[str]:
        """Names of all topics that it reads."""
        yield from self.source_topics
        yield from (topic.name for topic in self.repartition_sources)


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology, with subtopologies in the order in which they were sent."""

    epoch: int
    subtopologies: tuple[Subtopology, ...] = ()

    @property
    def by_id(self) -> Mapping[str, Subtopology]:
        """Subtopologies by their ids."""
        return {each.subtopology_id: each for each in self.subtopologies}

    def is_same(self, other: "Topology") -> bool:
        """Return whether the other topology is equal. The order of subtopologies does not count."""
        return self.epoch == other.epoch and self.by_id == other.by_id

    def required_topics(self) -> frozenset[str]:
        """Return the names of all topics that it needs, internal ones included."""
        return frozenset(
            name
            for each in self.subtopologies
            for name in (*each.input_topics, *(topic.name for topic in each.changelogs))
        )

    def input_topics(self) -> Mapping[str, Subtopology]:
        """Return the topics that are read, each with the subtopology that reads it."""
        return {name: each for each in self.subtopologies for name in each.input_topics}


def topology_of(found: Any) -> Topology:
    """Return the topology of a heartbeat, or of the group's record: their fields have the same names."""
    return Topology(found.epoch, tuple(_subtopology(each) for each in found.subtopologies))


def _subtopology(found: Any) -> Subtopology:
    return Subtopology(
        found.subtopology_id,
        tuple(found.source_topics),
        tuple(found.source_topic_regex),
        tuple(map(_topic, found.state_changelog_topics)),
        tuple(found.repartition_sink_topics),
        tuple(map(_topic, found.repartition_source_topics)),
        tuple(
            Copartition(
                tuple(each.source_topics), tuple(each.source_topic_regex), tuple(each.repartition_source_topics)
            )
            for each in found.copartition_groups
        ),
    )


def _topic(found: Any) -> TopicDescription:
    configs = tuple((each.key, each.value) for each in found.topic_configs)
    return TopicDescription(found.name, found.partitions, found.replication_factor, configs)
