"""`__consumer_offsets` as logs for the group coordinator, over this node's partitions."""

from collections.abc import AsyncIterator, Callable, Sequence

from broker.coordination.log import OFFSETS_TOPIC, KeyValue, LogBatch
from broker.partitions.partition import Partition
from broker.partitions.producers import Producer
from broker.settings.model import GroupSettings
from broker.topics.manager import TopicManager
from protocol.batch import TRANSACTIONAL_MASK, parse_batch
from protocol.records import ControlType, Record, build_batch, control_record, decode_records
from wal.interface import Durable

OFFSETS_TOPIC_CONFIGS = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
"""What Kafka creates the topic with."""
REPLAY_BYTES_MAX = 4 * 1024 * 1024
"""How much of a log is in memory at once while it is replayed."""


class PartitionLog:
    """A partition as an `InternalLog`: records in, batches with Kafka's framing in the stream."""

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
        """Append one batch, timestamped now."""
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

    async def replay(self) -> AsyncIterator[LogBatch]:
        """Yield all durable records, a batch at a time."""
        stream = self._partition.stream
        offset, end_offset = stream.start_offset, stream.confirmed_offset
        while offset < end_offset:
            result = await stream.read(offset, REPLAY_BYTES_MAX, end_offset=end_offset)
            assert result.next_offset > offset, "a read below the confirmed offset returns something"
            for batch in result.batches:
                header = parse_batch(batch.payload)
                if not header.record_count:
                    continue  # compaction has emptied it; nothing of its transaction is left but markers
                producer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
                if header.is_control:
                    kind, _ = control_record(batch.payload)
                    if kind in {ControlType.ABORT, ControlType.COMMIT}:
                        yield LogBatch((), producer, committed=kind == ControlType.COMMIT)
                    continue
                records = decode_records(batch.payload)
                kept = [KeyValue(record.key or b"", record.value) for record in records if record.offset >= offset]
                yield LogBatch(kept, producer)
            offset = result.next_offset

    async def trim(self, offset: int) -> None:
        """Drop all records before `offset`."""
        await self._partition.stream.trim(offset)


class OffsetsTopic:
    """The `InternalTopic` of the group coordinator, created when the first client looks for its coordinator."""

    def __init__(self, topics: TopicManager, settings: GroupSettings, now_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._settings = settings
        self._now_ms = now_ms

    async def open(self, *, create: bool) -> Sequence[PartitionLog | None] | None:
        """Return a log for each partition this node leads."""
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is None:
            if not create:
                return None
            topic = await self._topics.ensure(
                OFFSETS_TOPIC,
                partitions=self._settings.offsets_partitions,
                configs=OFFSETS_TOPIC_CONFIGS,
                internal=True,
            )
        return [None if partition is None else PartitionLog(partition, self._now_ms) for partition in topic.partitions]
