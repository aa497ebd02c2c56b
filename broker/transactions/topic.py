"""`__transaction_state` as logs for the transaction coordinator, over this node's partitions."""

from collections.abc import Callable, Sequence

from broker.coordination.internal_topics import PartitionLog
from broker.settings.model import TransactionSettings
from broker.topics.manager import TopicManager

TRANSACTION_TOPIC = "__transaction_state"
TRANSACTION_TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "segment.bytes": "104857600",
}
"""What Kafka creates the topic with, without those that are about replicas."""


class TransactionTopic:
    """The `InternalTopic` of the transaction coordinator, created when the first client looks for its coordinator."""

    def __init__(self, topics: TopicManager, settings: TransactionSettings, now_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._settings = settings
        self._now_ms = now_ms

    async def open(self, *, create: bool) -> Sequence[PartitionLog | None] | None:
        """Return a log for each partition this node leads."""
        topic = self._topics.get(TRANSACTION_TOPIC)
        if topic is None:
            if not create:
                return None
            topic = await self._topics.ensure(
                TRANSACTION_TOPIC,
                partitions=self._settings.state_partitions,
                configs=TRANSACTION_TOPIC_CONFIGS,
                internal=True,
            )
        return [None if partition is None else PartitionLog(partition, self._now_ms) for partition in topic.partitions]
