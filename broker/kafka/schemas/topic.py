"""The topic `_schemas`: its one partition as the log of the registry.

It is an ordinary topic, as a registry of Confluent's makes it: it can be read and moved, mirrored, cloned and detached.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from anabranch.broker.kafka.coordination.internal_topics import SCHEMAS_TOPIC, PartitionLog
from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.schemas.model import ErrorKind, RegistryError
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.wal.interface import Durable

SCHEMAS_PARTITION: Final = 0
TOPIC_CONFIGS: Final[Mapping[str, str]] = MappingProxyType({"cleanup.policy": "compact"})


class PartitionSchemaLog:
    """The partition as a `SchemaLog`."""

    def __init__(self, partition: Partition, now_ms: Callable[[], int]) -> None:
        self.partition = partition
        self._log = PartitionLog(partition, now_ms)

    @property
    def next_offset(self) -> int:
        """Offset of the next record appended."""
        return self._log.next_offset

    def write(self, records: Sequence[KeyValue]) -> Durable:
        """Append one batch. Raises StorageError."""
        return self._log.append(records)

    async def read(self, offset: int) -> AsyncIterator[tuple[int, Sequence[KeyValue]]]:
        """Yield the records from an offset on, in batches with the offset that follows. Raises StorageError, WalError.

        Records of transactions count at once, whatever becomes of them: registries write none.
        """
        end_offset = self.next_offset
        async for offset, batch in self._log.read(offset):  # noqa: B020 - it goes on from where it begins
            yield offset, batch.records
        if end_offset > offset:  # the last batches were emptied by compaction
            yield end_offset, ()


class NodeSchemaTopic:
    """The topic among those of this node, as a `SchemaTopic`."""

    def __init__(
        self, topics: TopicMap, commands: TopicCommands, now_ms: Callable[[], int], may_read: Callable[[], bool]
    ) -> None:
        """`may_read` returns whether the node can prove that it still leads its partitions."""
        self._topics = topics
        self._commands = commands
        self._now_ms = now_ms
        self._may_read = may_read
        self._log: PartitionSchemaLog | None = None

    def log(self) -> PartitionSchemaLog | None:
        """Return the log; None: the topic does not exist. Raises RegistryError if this node does not lead it."""
        topic = self._topics.get(SCHEMAS_TOPIC)
        if topic is None:
            self._log = None
            return None
        if len(topic.partitions) != 1:
            raise RegistryError(ErrorKind.STORE, f"the topic {SCHEMAS_TOPIC} must have one partition")
        partition = topic.partitions[SCHEMAS_PARTITION]
        if partition is None or not self._may_read():
            self._log = None
            raise RegistryError(ErrorKind.UNKNOWN_LEADER, f"this node does not lead the topic {SCHEMAS_TOPIC} now")
        if self._log is None or self._log.partition is not partition:
            self._log = PartitionSchemaLog(partition, self._now_ms)
        return self._log

    async def create(self) -> None:
        """Create the topic unless it exists. Raises KafkaError, StorageError, and RegistryError if it loses records."""
        topic = await self._commands.ensure(SCHEMAS_TOPIC, partitions=1, configs=TOPIC_CONFIGS)
        if topic.config.deletable:
            raise RegistryError(ErrorKind.STORE, f"the topic {SCHEMAS_TOPIC} must have cleanup.policy=compact")
