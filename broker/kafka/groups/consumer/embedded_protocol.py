"""The consumer protocol embedded in JoinGroup and SyncGroup: subscriptions and assignments of classic consumers.

Classic consumers exchange these messages through the coordinator. When a group migrates between the protocols the
broker decodes them instead of the leader: a member's subscription and owned partitions, and its assignment. Topics are
given by name; those that do not exist are left out.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from anabranch.broker.kafka.groups.modern.topic_image import Partitions, TopicIdPartition, TopicImage, by_topic
from anabranch.protocol.codec import decode, encode_versioned, read_version
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.messages.embedded.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    TopicPartitionResponse,
)

VERSION_MAX = 3
"""Later versions are decoded as this one: the format only adds fields."""


class ClassicSubscription(NamedTuple):
    """Subscription of a classic consumer, with the partitions that it owns."""

    version: int
    topic_names: tuple[str, ...]
    """Topic names, sorted."""
    owned: Partitions
    """Empty if the member reports no partitions: it has revoked all of them before it joined."""
    rack_id: str | None


def parse_subscription(metadata: bytes, topics: TopicImage) -> ClassicSubscription:
    """Decode the metadata of a JoinGroup request. Raises MalformedMessage."""
    version = known_version(metadata)
    found, _ = decode(ConsumerProtocolSubscription, metadata, version, 2)
    return ClassicSubscription(
        version, tuple(sorted(set(found.topics))), _ids(found.owned_partitions, topics), found.rack_id
    )


def parse_assignment(assignment: bytes, topics: TopicImage) -> tuple[Partitions, bytes]:
    """Decode a leader's assignment to a member: partitions and user data. Raises MalformedMessage."""
    if not assignment:
        return frozenset(), b""  # the member has joined and not synced yet
    found, _ = decode(ConsumerProtocolAssignment, assignment, known_version(assignment), 2)
    return _ids(found.assigned_partitions, topics), found.user_data or b""


def assigned_partitions(assignment: bytes) -> Sequence[tuple[str, int]]:
    """Decode a leader's assignment to a member: topics by name, and partitions. Raises MalformedMessage."""
    if not assignment:
        return ()
    found, _ = decode(ConsumerProtocolAssignment, assignment, known_version(assignment), 2)
    return [(topic.topic, partition) for topic in found.assigned_partitions for partition in topic.partitions]


def assignment_bytes(partitions: Iterable[TopicIdPartition], topics: TopicImage, metadata: bytes) -> bytes:
    """Encode an assignment in the version of the member's metadata."""
    assigned = [
        TopicPartitionResponse(topic=topics.names[topic_id], partitions=indexes)
        for topic_id, indexes in by_topic(partitions)
        if topic_id in topics.names
    ]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=assigned), known_version(metadata))


def known_version(data: bytes) -> int:
    """Return the version of metadata or an assignment, at most the newest that we know. Raises MalformedMessage."""
    version = read_version(data)
    if version < 0:
        raise MalformedMessage(f"invalid version {version} of the embedded consumer protocol")
    return min(version, VERSION_MAX)


def _ids(found: Sequence[TopicPartition | TopicPartitionResponse], topics: TopicImage) -> Partitions:
    return frozenset(
        TopicIdPartition(topics.by_name[topic.topic].topic_id, partition)
        for topic in found
        if topic.topic in topics.by_name
        for partition in topic.partitions
    )
