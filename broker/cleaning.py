"""What log compaction must know of Kafka: the records in a batch, and which topics want it.

Compaction (`compaction.cleaner`) decides which records stay; it sees payloads only through `KafkaBatches`.
"""

from collections.abc import Container, Iterable, Mapping, Sequence

from broker.configs import TOPIC_CONFIGS, default_value, parse_topic_config
from broker.settings import Settings
from compaction.cleaner import CleanPolicy, RecordInfo
from protocol.batch import HEADER, TIMESTAMP_TYPE_MASK, parse_batch, seal
from protocol.errors import KafkaError
from protocol.records import build_batch, decode_records
from s3stream.catalog.interface import TopicInfo
from wal.interface import Buffer


class KafkaBatches:
    """Batches of format v2, in any codec."""

    def records(self, payload: Buffer) -> Sequence[RecordInfo] | None:
        """The records of a batch; None for what stays as it is: transactions' data, markers, what cannot be read.

        A topic that was not compacted yet takes batches whose records are none; they must not end compaction.
        """
        header = parse_batch(payload)
        if header.is_control or header.is_transactional:
            return None
        try:
            records = decode_records(payload)
        except KafkaError:
            return None
        return [RecordInfo(each.offset, each.key, each.value is None, each.timestamp_ms) for each in records]

    def keep(self, payload: Buffer, offsets: Container[int]) -> Buffer:
        """The batch with only the records at `offsets`, as Apache Kafka's cleaner leaves it.

        Base and last offset stay, so that consumers step over what is gone; so do producer, sequence, and codec.
        """
        header = parse_batch(payload)
        batch = build_batch(
            [record for record in decode_records(payload) if record.offset in offsets],
            base_offset=header.base_offset,
            leader_epoch=header.partition_leader_epoch,
            compression=header.compression,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            attributes=header.attributes & TIMESTAMP_TYPE_MASK,
        )
        made = parse_batch(batch)
        HEADER.pack_into(batch, 0, *made._replace(last_offset_delta=header.last_offset_delta))
        seal(batch)
        return batch


def clean_policies(topics: Iterable[TopicInfo], settings: Settings) -> Mapping[int, CleanPolicy]:
    """The streams of the topics with `cleanup.policy=compact`, with the configs that tell how."""
    policies: dict[int, CleanPolicy] = {}
    for topic in topics:
        if parse_topic_config(topic.configs, settings).compacted:
            policy = _policy(topic.configs, settings)
            policies |= {partition.stream_id: policy for partition in topic.partitions}
    return policies


def _policy(configs: Mapping[str, str], settings: Settings) -> CleanPolicy:
    def value(name: str) -> str:
        return configs.get(name) or default_value(TOPIC_CONFIGS[name], settings)

    return CleanPolicy(
        dirty_ratio_min=float(value("min.cleanable.dirty.ratio")),
        lag_ms_min=int(value("min.compaction.lag.ms")),
        lag_ms_max=int(value("max.compaction.lag.ms")),
        delete_retention_ms=int(value("delete.retention.ms")),
    )
