"""Look-up of topics and partitions, by name and by id."""

import asyncio
from collections.abc import Callable, Iterator

from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.names import collision_key
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StreamFenced


def _unknown(topic: str | bytes) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else ErrorCode.UNKNOWN_TOPIC_ID)


class TopicMap:
    """Topics by name and by id. `TopicManager` changes them."""

    def __init__(self) -> None:
        self._by_name: dict[str, Topic] = {}
        self._by_id: dict[bytes, Topic] = {}
        self._collisions: dict[str, str] = {}
        """Names of topics by the form in which names collide."""
        self.version = 0
        """Grows whenever a topic is added or removed, or its partitions, their leaders or owners change."""
        self._changed = asyncio.Event()
        self.listeners: list[Callable[[], None]] = []
        """Called after each change of `version`, before a partition that is led no more is closed. Must not raise."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Topic]:
        """Iterate over all topics, ordered by name."""
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics."""
        return sum(len(topic.info.partitions) for topic in self._by_name.values())

    def get(self, topic: str | bytes) -> Topic | None:
        """Return the topic of that name or id."""
        return self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)

    def require(self, topic: str | bytes) -> Topic:
        """Return the topic of that name or id. Raises UNKNOWN_TOPIC_OR_PARTITION, or UNKNOWN_TOPIC_ID for an id."""
        found = self.get(topic)
        if found is None:
            raise _unknown(topic)
        return found

    def has_partition(self, name: str, index: int) -> bool:
        """Return whether the partition exists, whichever node leads it."""
        topic = self._by_name.get(name)
        return topic is not None and 0 <= index < len(topic.partitions)

    def partition(self, topic: str | bytes, index: int) -> Partition:
        """Return a partition that this node leads. Raises as `require` and `partition_of` do."""
        found = self._by_name.get(topic) if isinstance(topic, str) else self._by_id.get(topic)  # as `require`, inlined
        if found is None:
            raise _unknown(topic)
        return self.partition_of(found, index)

    @staticmethod
    def partition_of(topic: Topic, index: int) -> Partition:
        """Return a partition of `topic`.

        Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER. A stream that was fenced is led elsewhere.
        """
        if not 0 <= index < len(topic.partitions):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = topic.partitions[index]
        if partition is None or ((error := partition.stream.error) and isinstance(error, StreamFenced)):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def led_partitions(self) -> Iterator[Partition]:
        """Iterate over all partitions that this node leads."""
        for topic in self._by_name.values():
            for partition in topic.partitions:
                if partition is not None:
                    yield partition

    def colliding(self, name: str) -> str | None:
        """Return the name of the existing topic with which `name` collides, or None. It may be the same name."""
        return self._collisions.get(collision_key(name))

    async def changed(self) -> None:
        """Wait for the next change of `version`."""
        await self._changed.wait()

    # changes, by `TopicManager` alone

    def _note_change(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()
        for listener in self.listeners:
            listener()

    def _insert(self, topic: Topic) -> None:
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._collisions[collision_key(topic.name)] = topic.name
        self._note_change()

    def _discard(self, topic: Topic) -> None:
        del self._by_name[topic.name]
        del self._by_id[topic.topic_id]
        self._collisions.pop(collision_key(topic.name), None)
        self._note_change()
