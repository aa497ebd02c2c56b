"""Validation of a topology against the topics that exist, and the internal topics that it needs (KIP-1071).

The coordinator decides how many partitions internal topics have. A repartition topic without a number has the largest
number of the topics that are read by the subtopology which writes to it, unless it must be copartitioned with others. A
changelog has one partition for each task of its subtopology. Rules and messages are those of Apache Kafka 4.4.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from anabranch.broker.kafka.groups.modern.topic_image import TopicImage
from anabranch.broker.kafka.groups.streams.topology import Subtopology, TopicDescription, Topology
from anabranch.protocol.errors import ErrorCode, KafkaError

NAMES_SHOWN = 3
"""Names of topics that a message lists."""
PartitionCount: TypeAlias = Callable[[str], int | None]
"""Returns the number of partitions of a topic that exists or is decided on."""


class StatusCode(IntEnum):
    """Codes of what keeps a group from running, or of what its members are told beside their tasks."""

    STALE_TOPOLOGY = 0
    MISSING_SOURCE_TOPICS = 1
    INCORRECTLY_PARTITIONED_TOPICS = 2
    MISSING_INTERNAL_TOPICS = 3
    SHUTDOWN_APPLICATION = 4
    ASSIGNMENT_DELAYED = 5
    MISSING_CLIENT_TAGS = 6


class Status(NamedTuple):
    """A code, and its details for people."""

    code: StatusCode
    detail: str


class InternalTopic(NamedTuple):
    """An internal topic with the number of partitions that was decided on."""

    name: str
    partitions: int
    replication_factor: int
    """0: the default of the cluster."""
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ConfiguredSubtopology:
    """A subtopology with the number of its tasks and partitions."""

    task_count: int
    source_topics: frozenset[str]
    repartition_sources: Mapping[str, InternalTopic]
    repartition_sinks: frozenset[str]
    changelogs: Mapping[str, InternalTopic]

    @property
    def is_stateful(self) -> bool:
        """True if its tasks have state to restore."""
        return bool(self.changelogs)


@dataclass(frozen=True, slots=True)
class ConfiguredTopology:
    """A topology as it can run on the topics that exist, or the problem that keeps it from running."""

    epoch: int
    subtopologies: Mapping[str, ConfiguredSubtopology] | None = None
    """By id, in order; None if partitions could not be decided on."""
    missing_topics: Mapping[str, InternalTopic] = field(default_factory=dict)
    """Internal topics to create, by name."""
    problem: Status | None = None

    @property
    def is_ready(self) -> bool:
        """True if all topics are there as the application needs them."""
        return self.problem is None


class _Mismatch(Exception):
    """The topics that exist do not fit the topology."""

    def __init__(self, code: StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.status = Status(code, detail)


def configure(topology: Topology, topics: TopicImage) -> ConfiguredTopology:
    """Validate a topology, and decide on its internal topics.

    Raises STREAMS_INVALID_TOPOLOGY if no topics could make it run.
    """
    try:
        _check_sources(topology, topics)
        decided: dict[str, int] = {}

        def count(name: str) -> int | None:
            topic = topics.by_name.get(name)
            return decided.get(name) if topic is None else topic.partitions

        decided.update(_repartition_counts(topology, count))
        _enforce_copartitions(topology, decided, count)
        decided.update(_changelog_counts(topology, count))
        subtopologies = {
            each.subtopology_id: _configured(each, decided, count)
            for each in sorted(topology.subtopologies, key=lambda each: each.subtopology_id)
        }
        missing = _missing_topics(subtopologies.values(), topics)
    except _Mismatch as mismatch:
        return ConfiguredTopology(topology.epoch, problem=mismatch.status)
    problem = None
    if missing:
        problem = Status(StatusCode.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_summary(missing)}")
    return ConfiguredTopology(topology.epoch, subtopologies, missing, problem)


def check_partitions(topology: Topology) -> None:
    """Raise STREAMS_INVALID_TOPOLOGY if a changelog has a number of partitions, which the coordinator decides on."""
    for each in topology.subtopologies:
        for topic in each.changelogs:
            if topic.partitions:
                raise _invalid(
                    f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                    f"{topic.partitions}."
                )


def _check_sources(topology: Topology, topics: TopicImage) -> None:
    missing = {name for each in topology.subtopologies for name in each.source_topics if name not in topics.by_name}
    if missing:
        raise _Mismatch(StatusCode.MISSING_SOURCE_TOPICS, f"Source topics {_summary(sorted(missing))} are missing.")


def _repartition_counts(topology: Topology, count: PartitionCount) -> Mapping[str, int]:
    """Return the partitions of repartition topics, as far as upstream subtopologies determine them."""
    counts = {topic.name: topic.partitions for topic in _repartition_topics(topology) if topic.partitions}
    needed = progress = True
    while needed:
        if not progress:
            raise _invalid(
                "Failed to compute number of partitions for all repartition topics. There may be loops in the topology "
                "that cannot be resolved."
            )
        needed = progress = False
        for each in topology.subtopologies:
            for sink in each.repartition_sinks:
                if sink in counts:
                    continue
                upstream = _largest_input(each, counts, count)
                if upstream is None:
                    needed = True
                else:
                    counts[sink] = upstream
                    progress = True
    if any(topic.name not in counts for topic in _repartition_topics(topology)):
        raise _invalid(
            "Failed to compute number of partitions for all repartition topics, because a repartition source topic is "
            "never used as a sink topic."
        )
    return counts


def _repartition_topics(topology: Topology) -> Iterator[TopicDescription]:
    for each in topology.subtopologies:
        yield from each.repartition_sources


def _largest_input(subtopology: Subtopology, counts: Mapping[str, int], count: PartitionCount) -> int | None:
    """Return the largest known number of partitions of what a subtopology reads."""
    known = [counts.get(topic.name) for topic in subtopology.repartition_sources]
    known += (count(name) for name in subtopology.source_topics)
    return max((number for number in known if number is not None), default=None)


def _enforce_copartitions(topology: Topology, decided: dict[str, int], count: PartitionCount) -> None:
    """Give flexible repartition topics the number of partitions of those that they are copartitioned with."""
    fixed = frozenset(topic.name for topic in _repartition_topics(topology) if topic.partitions)
    flexible = frozenset(topic.name for topic in _repartition_topics(topology) if not topic.partitions)
    for each in topology.subtopologies:
        for names in _copartitioned(each):
            decided.update(_enforced(names, fixed, flexible, count))


def _copartitioned(subtopology: Subtopology) -> Iterator[frozenset[str]]:
    """Yield sets of copartitioned topics. Raises UNKNOWN_SERVER_ERROR, as Kafka, for an index without a topic."""
    for group in subtopology.copartitions:
        try:
            sources = [subtopology.source_topics[_place(index)] for index in group.source_topics]
            repartitioned = [
                subtopology.repartition_sources[_place(index)].name for index in group.repartition_source_topics
            ]
        except IndexError:
            raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR) from None
        yield frozenset((*sources, *repartitioned))


def _place(index: int) -> int:
    if index < 0:
        raise IndexError(index)
    return index


def _enforced(
    names: frozenset[str], fixed: frozenset[str], flexible: frozenset[str], count: PartitionCount
) -> Mapping[str, int]:
    """Return the number of partitions of the repartition topics among topics that are copartitioned."""
    if not names:
        return {}
    internal = {name: _require(name, count) for name in names if name in fixed or name in flexible}
    external = {name: _require(name, count) for name in names if name not in internal}
    if external:
        number = _same(external.values(), external)
    elif fixed:
        number = _same([_require(name, count) for name in fixed], internal)
    else:
        number = max(internal.values())
        if not number:
            raise _invalid(f"All topics in the copartition group had undefined partition number: [{_listed(internal)}]")
    for name, has in internal.items():
        if name in fixed and has != number:
            raise _Mismatch(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{has}] of repartition topic [{name}] doesn't match number of partitions "
                f"[{number}] of the source topic.",
            )
    return dict.fromkeys(internal, number)


def _require(name: str, count: PartitionCount) -> int:
    number = count(name)
    if number is None:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR)
    return number


def _same(numbers: Collection[int], shown: Mapping[str, int]) -> int:
    """Return the one number. `shown` are the topics that the message lists if there are several."""
    if len(set(numbers)) > 1:
        listed = ", ".join(f"{name}={number}" for name, number in sorted(shown.items()))
        raise _Mismatch(
            StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{listed}}}]",
        )
    return next(iter(numbers))


def _changelog_counts(topology: Topology, count: PartitionCount) -> Mapping[str, int]:
    counts = {}
    for each in topology.subtopologies:
        numbers = [_require(name, count) for name in each.input_topics]
        if not numbers:
            raise _invalid(f"No source topics found for subtopology {each.subtopology_id}")
        counts.update(dict.fromkeys((topic.name for topic in each.changelogs), max(numbers)))
    return counts


def _configured(subtopology: Subtopology, decided: Mapping[str, int], count: PartitionCount) -> ConfiguredSubtopology:
    def internal(topics: Iterable[TopicDescription]) -> Mapping[str, InternalTopic]:
        return {
            topic.name: InternalTopic(
                topic.name, topic.partitions or decided[topic.name], topic.replication_factor, dict(topic.configs)
            )
            for topic in topics
        }

    return ConfiguredSubtopology(
        max(_require(name, count) for name in subtopology.input_topics),
        frozenset(subtopology.source_topics),
        internal(subtopology.repartition_sources),
        frozenset(subtopology.repartition_sinks),
        internal(subtopology.changelogs),
    )


def _missing_topics(subtopologies: Iterable[ConfiguredSubtopology], topics: TopicImage) -> dict[str, InternalTopic]:
    """Return the internal topics that do not exist, in the order of their names."""
    needed = {
        topic.name: topic
        for each in subtopologies
        for topic in (*each.repartition_sources.values(), *each.changelogs.values())
    }
    missing = {}
    for name, topic in sorted(needed.items()):
        existing = topics.by_name.get(name)
        if existing is None:
            missing[name] = topic
        elif existing.partitions != topic.partitions:
            raise _Mismatch(
                StatusCode.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {topic.partitions}, found "
                f"{existing.partitions}",
            )
    return missing


def _summary(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} additional topics" if more > 0 else shown


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)
