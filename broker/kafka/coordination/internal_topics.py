"""The internal topics, whose partitions are the logs of coordinators."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from anabranch.broker.kafka.coordination.log import KeyValue, ReplayedBatch
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.protocol.batch import TRANSACTIONAL_MASK, parse_batch
from anabranch.protocol.records import ControlType, Record, build_batch, control_record, decode_records
from anabranch.wal.interface import Durable

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_TOPIC: Final = "__transaction_state"
SHARE_STATE_TOPIC: Final = "__share_group_state"
SCHEMAS_TOPIC: Final = "_schemas"
"""Topic of the schema registry: to clients an ordinary one, which other registries write, too."""
TOPIC_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        OFFSETS_TOPIC: {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"},
        TRANSACTION_TOPIC: {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": "104857600",
        },
        # Only its coordinator deletes records. Kafka leaves out retention.bytes, so that a broker's default holds.
        SHARE_STATE_TOPIC: {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "retention.bytes": "-1",
            "retention.ms": "-1",
            "segment.bytes": "104857600",
        },
    }
)
"""Configs that Kafka creates the topics with, without those about replicas."""
REPLAY_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of a log that are in memory at the same time while it is replayed."""


class PartitionLog:
    """A partition as an `InternalLog`: takes records, and appends batches with Kafka's framing to the stream."""

    def __init__(self, partition: Partition, now_ms: Callable[[], int]) -> None:
        self._partition = partition
        self._now_ms = now_ms

    @property
    def next_offset(self) -> int:
        """Offset of the next record appended."""
        return self._partition.stream.next_offset

    @property
    def leader_epoch(self) -> int:
        """Grows whenever the log is opened for writing."""
        return self._partition.leader_epoch

    def append(self, records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
        """Append one batch with the current time as its timestamp."""
        now_ms = self._now_ms()
        plain = [Record(key=key, value=value, timestamp_ms=now_ms) for key, value in records]
        if producer is None:
            batch = build_batch(plain)
        else:
            producer_id, epoch = producer
            batch = build_batch(plain, producer_id=producer_id, producer_epoch=epoch, attributes=TRANSACTIONAL_MASK)
        durable = self._partition.append_internal(batch).durable
        assert durable is not None, "an internal append is never a duplicate"
        return durable

    async def replay(self) -> AsyncIterator[ReplayedBatch]:
        """Yield all records once they are durable, a batch at a time."""
        async for _, batch in self.read(0):
            yield batch

    async def read(self, offset: int) -> AsyncIterator[tuple[int, ReplayedBatch]]:
        """Yield the batches from an offset on once they are durable, each with the offset of the next one.

        Batches that compaction has emptied, and markers of no outcome, are left out.
        """
        stream = self._partition.stream
        if stream.confirmed_offset < stream.next_offset:
            assert stream.last_durable is not None, "something was appended"
            await stream.last_durable
        offset, end_offset = max(offset, stream.start_offset), stream.confirmed_offset
        while offset < end_offset:
            result = await stream.read(offset, REPLAY_BYTES_MAX, end_offset=end_offset)
            assert result.next_offset > offset, "a read below the confirmed offset returns something"
            for batch in result.batches:
                header = parse_batch(batch.payload)
                if not header.record_count:
                    continue  # emptied by compaction; of its transaction only markers are left
                producer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
                if header.is_control:
                    kind, _ = control_record(batch.payload)
                    if kind in {ControlType.ABORT, ControlType.COMMIT}:
                        yield batch.end_offset, ReplayedBatch((), producer, committed=kind == ControlType.COMMIT)
                    continue
                records = decode_records(batch.payload)
                kept = [KeyValue(record.key or b"", record.value) for record in records if record.offset >= offset]
                yield batch.end_offset, ReplayedBatch(kept, producer)
            offset = result.next_offset

    async def trim(self, offset: int) -> None:
        """Delete all records before `offset`."""
        await self._partition.stream.trim(offset)


class InternalTopics:
    """Creates the internal topics. Each is created when the first client looks for its coordinator."""

    def __init__(self, topics: TopicMap, commands: TopicCommands, partition_counts: Mapping[str, int]) -> None:
        """`partition_counts` has the number of partitions of each topic when it is created."""
        self._topics = topics
        self._commands = commands
        self._partition_counts = partition_counts
        self._creations = {name: asyncio.Lock() for name in partition_counts}
        self._closed = False

    async def ensure(self, name: str) -> None:
        """Create one of these topics unless it exists. Raises KafkaError or StorageError."""
        if self._topics.get(name) is not None:
            return
        async with self._creations[name]:
            if self._topics.get(name) is None and not self._closed:
                await self._commands.ensure(
                    name, partitions=self._partition_counts[name], configs=TOPIC_CONFIGS[name], internal=True
                )

    def close(self) -> None:
        """Create no more topics: the node stops."""
        self._closed = True


class CoordinatorTopic:
    """An `InternalTopic` of this node's topics."""

    def __init__(self, topics: TopicMap, name: str, now_ms: Callable[[], int]) -> None:
        """`name` is that of an internal topic."""
        self._topics = topics
        self._name = name
        self._now_ms = now_ms
        self._logs: dict[Partition, PartitionLog] = {}

    def logs(self) -> Sequence[PartitionLog | None] | None:
        """Return a log for each partition, None for those that other nodes lead; None if the topic is unknown."""
        topic = self._topics.get(self._name)
        partitions = () if topic is None else topic.partitions
        self._logs = {
            partition: self._logs.get(partition) or PartitionLog(partition, self._now_ms)
            for partition in partitions
            if partition is not None
        }
        return (
            None
            if topic is None
            else [None if partition is None else self._logs[partition] for partition in partitions]
        )

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each change of the topics."""
        self._topics.listeners.append(listener)
