"""The topics of this node as assignments depend on them, in one value that changes only when a topic has changed."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from anabranch.broker.kafka.topics.manager import TopicManager


class TopicIdPartition(NamedTuple):
    """A partition named by the id of its topic and its index."""

    topic_id: bytes
    partition: int


Partitions: TypeAlias = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


def by_topic(partitions: Iterable[TopicIdPartition]) -> list[tuple[bytes, list[int]]]:
    """Return topic ids with the indexes of their partitions, in order."""
    topics: dict[bytes, list[int]] = defaultdict(list)
    for topic_id, index in sorted(partitions):
        topics[topic_id].append(index)
    return list(topics.items())


class TopicMetadata(NamedTuple):
    """Properties of a topic that an assignment depends on."""

    topic_id: bytes
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicImage:
    """All topics at one moment. `version` changes whenever a topic does."""

    version: int
    by_name: Mapping[str, TopicMetadata] = field(default_factory=dict)
    names: Mapping[bytes, str] = field(default_factory=dict)
    """Topic id to name."""

    @classmethod
    def of(cls, version: int, topics: Sequence[TopicMetadata]) -> "TopicImage":
        """Build an image of these topics."""
        return cls(version, {topic.name: topic for topic in topics}, {topic.topic_id: topic.name for topic in topics})

    def hash_of(self, names: Iterable[str]) -> int:
        """Return a hash of 64 bits that changes when one of these topics is created, deleted or grows.

        It differs from the hash that Kafka writes. The hash is only compared with one of the same implementation.
        """
        topics = sorted(self.by_name[name] for name in names if name in self.by_name)
        if not topics:
            return 0
        digest = hashlib.blake2b(digest_size=8)
        for topic in topics:
            digest.update(topic.topic_id + topic.partitions.to_bytes(4, "big"))
        return int.from_bytes(digest.digest(), "big", signed=True)


TopicImageGetter: TypeAlias = Callable[[], TopicImage]
NO_TOPICS = TopicImage(0)


class TopicImageSource:
    """Returns the image of this node's topics, and rebuilds it only when a topic has changed."""

    def __init__(self, topics: TopicManager) -> None:
        self._topics = topics
        self._image = TopicImage(-1)

    def __call__(self) -> TopicImage:
        """Return the current topics."""
        if self._image.version != self._topics.version:
            views = [TopicMetadata(topic.topic_id, topic.name, len(topic.partitions)) for topic in self._topics]
            self._image = TopicImage.of(self._topics.version, views)
        return self._image
