"""Endpoints of the members of a group, with the partitions that their tasks read, for interactive queries (KIP-535)."""

from collections.abc import Iterable, Iterator, Sequence

from anabranch.broker.kafka.groups.modern.topic_image import TopicImage
from anabranch.broker.kafka.groups.streams.configured_topology import ConfiguredTopology
from anabranch.broker.kafka.groups.streams.member import StreamsMember
from anabranch.broker.kafka.groups.streams.requests import EndpointPartitions, TopicPartitions
from anabranch.broker.kafka.groups.streams.tasks import Task, by_subtopology


def endpoints_of(
    members: Iterable[StreamsMember], topology: ConfiguredTopology, topics: TopicImage
) -> Iterator[EndpointPartitions]:
    """Yield the endpoints of those members that have one. Several members may have the same."""
    for member in members:
        if member.endpoint is not None:
            yield EndpointPartitions(
                member.endpoint,
                _partitions(member.assigned.active, topology, topics),
                _partitions(member.assigned.standby | member.assigned.warmup, topology, topics),
            )


def _partitions(tasks: Iterable[Task], topology: ConfiguredTopology, topics: TopicImage) -> Sequence[TopicPartitions]:
    """Return the partitions that tasks read, those of repartition topics included."""
    found = []
    for subtopology_id, indexes in by_subtopology(tasks):
        subtopology = (topology.subtopologies or {}).get(subtopology_id)
        if subtopology is None:
            continue
        for name in sorted(subtopology.source_topics | subtopology.repartition_sources.keys()):
            topic = topics.by_name.get(name)
            existing = [index for index in indexes if topic is not None and index < topic.partitions]
            if existing:
                found.append(TopicPartitions(name, existing))
    return found
