"""Internal topics: their creation, and the replay of a log after log compaction has rewritten it."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, CoordinatorTopic, PartitionLog
from broker.partitions.cleaning import KafkaBatches
from broker.partitions.partition import Partition
from broker.topics.manager import TopicManager
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


@pytest.mark.parametrize(
    ("name", "compression"), [(OFFSETS_TOPIC, "producer"), (TRANSACTION_TOPIC, "uncompressed")], ids=str
)
async def test_a_topic_is_created_only_when_asked_to_and_with_kafkas_configs(name: str, compression: str) -> None:
    created: list[tuple[str, int, Mapping[str, str], bool]] = []
    led = cast("Partition", SimpleNamespace(leader_epoch=7))

    async def ensure(name: str, *, partitions: int, configs: Mapping[str, str], internal: bool) -> SimpleNamespace:
        created.append((name, partitions, configs, internal))
        return SimpleNamespace(partitions=[led, None])

    topics = cast("TopicManager", SimpleNamespace(get=lambda _: None, ensure=ensure))
    topic = CoordinatorTopic(topics, name, 2, lambda: 0)
    assert await topic.open(create=False) is None
    assert created == []
    logs = await topic.open(create=True)
    assert logs is not None
    assert [None if log is None else log.leader_epoch for log in logs] == [7, None]
    configs = {"cleanup.policy": "compact", "compression.type": compression, "segment.bytes": "104857600"}
    assert created == [(name, 2, configs, True)]
