"""Kafka's side of log compaction: decoding and rewriting of batches, and the topics that are compacted.

Compaction (`compaction.cleaning.cleaner`) decides which records stay. It reads payloads only through `KafkaBatches`.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.snapshot import decode_snapshot
from anabranch.compaction.interface import (
    NO_HORIZON,
    AbortedRange,
    BatchInfo,
    BatchTooLarge,
    CleanPolicy,
    History,
    LastBatch,
    MarkerKind,
    RecordInfo,
    StreamTail,
)
from anabranch.protocol.batch import (
    CONTROL_MASK,
    DELETE_HORIZON_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    parse_batch,
    write_crc,
)
from anabranch.protocol.compression import decompressed
from anabranch.protocol.errors import DecompressedTooLarge, KafkaError
from anabranch.protocol.record_scan import TIMESTAMP_LIMIT_MS, fits_batch, scan_records
from anabranch.protocol.records import ControlType, build_batch, control_type, decode_records
from anabranch.s3stream.catalog.values import TopicInfo
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.model import StreamInfo
from anabranch.wal.interface import Buffer

_MARKERS: Mapping[int, MarkerKind] = {ControlType.ABORT: MarkerKind.ABORT, ControlType.COMMIT: MarkerKind.COMMIT}
_KEPT_ATTRIBUTES = TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK


RECORD_COST_BYTES = 600
"""Memory of a record's Python objects while its batch is rewritten, in addition to its bytes."""
COPIES = 3
"""Copies of the decompressed records in memory while a batch is rewritten: decompressed, decoded, encoded."""


class KafkaBatches:
    """Batches of format v2, in any codec."""

    def describe(self, payload: Buffer, bytes_max: int) -> BatchInfo | None:
        """Describe a batch; None if it cannot be decoded or could not be rewritten. Raises TakesTooMuch.

        A topic that is not compacted accepts batches whose records cannot be decoded. They must not end compaction
        later. Nor may an offset outside its batch, which would hide the newer records of its key.
        """
        header = parse_batch(payload)
        left = (bytes_max - header.record_count * RECORD_COST_BYTES) // COPIES
        marker = None
        try:
            if left < 0 or (not header.compression and len(payload) > left):
                raise BatchTooLarge
            packed = memoryview(payload)[HEADER_BYTES : header.size_bytes]
            with decompressed(header.compression, packed, bytes_max=left) as data:
                records = [
                    RecordInfo(each.offset, each.key, each.is_tombstone, each.timestamp_ms)
                    for each in scan_records(data, header)
                ]
            if header.is_control and records:
                marker = _MARKERS.get(control_type(records[0].key), MarkerKind.OTHER)
        except DecompressedTooLarge:
            raise BatchTooLarge from None
        except KafkaError:
            return None
        horizon_ms = header.base_timestamp if header.attributes & DELETE_HORIZON_MASK else NO_HORIZON
        if horizon_ms >= TIMESTAMP_LIMIT_MS or not all(fits_batch(r.offset, r.timestamp_ms, header) for r in records):
            return None
        return BatchInfo(
            () if header.is_control else records,
            header.last_offset,
            header.producer_id,
            header.producer_epoch,
            header.is_transactional,
            header.is_control,
            marker,
            horizon_ms,
        )

    def rewrite(self, payload: Buffer, offsets: AbstractSet[int] | None, delete_horizon_ms: int) -> Buffer:
        """Rewrite the batch with only the records at `offsets` (None: all), as Apache Kafka's cleaner does.

        Base and last offset stay, so that consumers step over the removed records. Producer, sequence and codec stay
        too. A delete horizon replaces the base timestamp (KIP-534). Without records only the header is left.
        """
        header = parse_batch(payload)
        if offsets is not None and not offsets:
            return _empty(header)
        records = decode_records(payload)
        horizon_ms = min(delete_horizon_ms, TIMESTAMP_LIMIT_MS - 1)
        batch = build_batch(
            records if offsets is None else [record for record in records if record.offset in offsets],
            base_offset=header.base_offset,
            leader_epoch=header.partition_leader_epoch,
            compression=header.compression,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            attributes=header.attributes & _KEPT_ATTRIBUTES | (DELETE_HORIZON_MASK if horizon_ms >= 0 else 0),
            base_timestamp=horizon_ms if horizon_ms >= 0 else None,
        )
        made = parse_batch(batch)
        HEADER.pack_into(batch, 0, *made._replace(last_offset_delta=header.last_offset_delta))
        write_crc(batch)
        return batch


def _empty(header: BatchHeader) -> bytearray:
    """Return a header without records: it keeps a producer's sequence, or the end of the log."""
    made = header._replace(
        length=HEADER_BYTES - LOG_OVERHEAD_BYTES,
        attributes=header.attributes & _KEPT_ATTRIBUTES,
        base_timestamp=header.max_timestamp,
        record_count=0,
    )
    batch = bytearray(HEADER.pack(*made))
    write_crc(batch)
    return batch


def history_of(info: StreamInfo) -> History:
    """Decode a partition's transactions and producers from its snapshot. Raises CorruptObject."""
    state = decode_snapshot(info.stream_id, info.snapshot)
    transactions, producers = state.transactions, state.producers
    return History(
        transactions.last_stable_offset(info.end_offset),
        [AbortedRange(*entry[:3]) for entry in transactions.aborted],
        {
            producer_id: LastBatch(entry.batches[-1].end_offset - 1 if entry.batches else -1, entry.epoch)
            for producer_id, entry in producers.entries.items()
        },
    )


def tail_of(storage: S3Stream, stream_id: int) -> StreamTail | None:
    """Return what decides, apart from its objects, when a stream is cleaned; None if it is not open here."""
    stream = storage.stream(stream_id)
    if stream is None:
        return None
    return StreamTail(stream.start_offset, stream.committed_offset, storage.waiting_ms(stream_id))


def clean_policies(topics: Iterable[tuple[TopicInfo, TopicConfig]]) -> Mapping[int, CleanPolicy]:
    """Map the streams of topics with `cleanup.policy=compact` to the configs for it."""
    policies: dict[int, CleanPolicy] = {}
    for topic, config in topics:
        if config.cleaning is not None:
            policies |= {partition.stream_id: config.cleaning for partition in topic.partitions}
    return policies
