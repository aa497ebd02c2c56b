"""Records of an internal topic with one partition, read from a broker."""

from collections.abc import Iterator

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.records import decode_records
from tests.differential.peer import Peer, Wire


def log_of(peer: Peer, topic: str) -> Iterator[KeyValue]:
    """Yield the records of a topic's only partition."""
    wire = Wire(peer)
    offset = 0
    try:
        while True:
            partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
            topics = [FetchTopic(topic=topic, partitions=[partition])]
            wire.send(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=topics), 12)
            (found,) = wire.receive(FetchRequest, 12).responses[0].partitions
            records = [
                record
                for _, batch in iterate_batches(found.records or b"")
                for record in decode_records(batch)
                if record.offset >= offset
            ]
            if not records:
                return
            for record in records:
                yield KeyValue(bytes(record.key or b""), None if record.value is None else bytes(record.value))
            offset = records[-1].offset + 1
    finally:
        wire.close()
