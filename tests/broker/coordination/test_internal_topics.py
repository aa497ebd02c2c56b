"""What a group's log says again when it is loaded, after log compaction has been there."""

from types import SimpleNamespace
from typing import cast

from broker.coordination.internal_topics import PartitionLog
from broker.partitions.cleaning import KafkaBatches
from broker.partitions.partition import Partition
from protocol.batch import TRANSACTIONAL_MASK, parse_batch
from protocol.records import ControlType, Record, build_batch, build_marker
from s3stream.model import ReadResult, StreamBatch


async def test_batches_that_compaction_has_emptied_say_nothing() -> None:
    marker = build_marker(
        ControlType.COMMIT, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp_ms=1, base_offset=1
    )
    data = build_batch(
        [Record(b"k", b"v", 1)], base_offset=0, producer_id=7, producer_epoch=0, attributes=TRANSACTIONAL_MASK
    )
    last = build_batch([Record(b"k", b"w", 1)], base_offset=2)
    codec = KafkaBatches()
    payloads = [codec.rewrite(data, frozenset(), -1), codec.rewrite(marker, frozenset(), -1), last]
    assert [parse_batch(payload).record_count for payload in payloads] == [0, 0, 1]
    batches = [StreamBatch(1, at, at + 1, at // 2, 1, payload) for at, payload in enumerate(payloads)]

    async def read(offset: int, _bytes_max: int, *, end_offset: int) -> ReadResult:
        assert (offset, end_offset) == (0, 3)
        return ReadResult(batches, 3)

    stream = SimpleNamespace(start_offset=0, confirmed_offset=3, read=read)
    log = PartitionLog(cast("Partition", SimpleNamespace(stream=stream)), lambda: 0)
    found = [batch async for batch in log.replay()]
    assert [[record.value for record in batch.records] for batch in found] == [[b"w"]]
