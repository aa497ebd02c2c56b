"""The topics that share partitions belong to, as the share coordinator sees them."""

from collections.abc import Callable, Collection
from typing import Protocol

from anabranch.broker.kafka.topics.manager import TopicManager


class ShareTopics(Protocol):
    """Topics of the cluster by id, whichever nodes lead them."""

    def has_partition(self, topic_id: bytes, partition: int) -> bool:
        """Return whether this node knows the partition."""
        ...

    async def read_ids(self) -> Collection[bytes]:
        """Return the ids of all topics of the catalog, detached or not. Raises StorageError."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the topics that this node knows. It must not raise."""
        ...


class ClusterTopics:
    """Satisfies `ShareTopics` from this node's topics and the catalog."""

    def __init__(self, topics: TopicManager) -> None:
        self._topics = topics

    def has_partition(self, topic_id: bytes, partition: int) -> bool:
        """Return whether this node knows the partition."""
        topic = self._topics.get(topic_id)
        return topic is not None and 0 <= partition < len(topic.partitions)

    async def read_ids(self) -> Collection[bytes]:
        """Return the ids of all topics of the catalog, detached or not. Raises CatalogError."""
        return await self._topics.read_ids()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the topics."""
        self._topics.listeners.append(listener)
