"""Internal topics: their creation, and the replay of a log after log compaction has rewritten it."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from anabranch.broker.kafka.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TOPIC_CONFIGS,
    TRANSACTION_TOPIC,
    CoordinatorTopic,
    InternalTopics,
    PartitionLog,
)
from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.topics.commands import TopicCommands
from anabranch.broker.kafka.topics.topic_map import TopicMap
from anabranch.protocol.batch import TRANSACTIONAL_MASK, parse_batch
from anabranch.protocol.records import ControlType, Record, build_batch, build_marker
from anabranch.s3stream.model import ReadResult, StreamBatch
from anabranch.wal.interface import Durable
from tests.support.node import running_node

Created = tuple[int, Mapping[str, str], bool]
"""Partitions and configs of a topic, and whether it is internal."""


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

    stream = SimpleNamespace(start_offset=0, confirmed_offset=3, next_offset=3, read=read)
    log = PartitionLog(cast("Partition", SimpleNamespace(stream=stream)), lambda: 0)
    found = [batch async for batch in log.replay()]
    assert [[record.value for record in batch.records] for batch in found] == [[b"w"]]


async def test_a_replay_waits_for_records_on_their_way() -> None:
    """An earlier shard of the partition may have appended them, and has not heard of them since."""
    payload = build_batch([Record(b"k", b"v", 1)], base_offset=0)

    async def read(offset: int, _bytes_max: int, *, end_offset: int) -> ReadResult:
        assert (offset, end_offset) == (0, 1)
        return ReadResult([StreamBatch(1, 0, 1, 1, 1, memoryview(payload))], 1)

    durable = Durable()
    stream = SimpleNamespace(start_offset=0, confirmed_offset=0, next_offset=1, read=read, last_durable=durable)
    log = PartitionLog(cast("Partition", SimpleNamespace(stream=stream)), lambda: 0)

    async def replay() -> list[bytes | None]:
        return [record.value async for batch in log.replay() for record in batch.records]

    replaying = asyncio.ensure_future(replay())
    await asyncio.sleep(0)
    stream.confirmed_offset = 1
    durable.complete()
    assert await replaying == [b"v"]


def creation_of_topics() -> tuple[Mapping[str, Created], InternalTopics]:
    """Return what is created, and what creates it."""
    created: dict[str, Created] = {}

    async def ensure(name: str, *, partitions: int, configs: Mapping[str, str], internal: bool) -> None:
        await asyncio.sleep(0)
        assert name not in created
        created[name] = partitions, configs, internal

    topics = cast("TopicMap", SimpleNamespace(get=created.get))
    commands = cast("TopicCommands", SimpleNamespace(ensure=ensure))
    return created, InternalTopics(topics, commands, dict.fromkeys(TOPIC_CONFIGS, 2))


@pytest.mark.parametrize(
    ("name", "compression"), [(OFFSETS_TOPIC, "producer"), (TRANSACTION_TOPIC, "uncompressed")], ids=str
)
async def test_a_topic_is_created_with_kafkas_configs(name: str, compression: str) -> None:
    created, topics = creation_of_topics()
    await topics.ensure(name)
    configs = {"cleanup.policy": "compact", "compression.type": compression, "segment.bytes": "104857600"}
    assert created == {name: (2, configs, True)}


async def test_nothing_but_its_coordinator_deletes_records_of_the_state_topic() -> None:
    created, topics = creation_of_topics()
    await topics.ensure(SHARE_STATE_TOPIC)
    _, configs, _ = created[SHARE_STATE_TOPIC]
    assert {name: configs[name] for name in ("cleanup.policy", "retention.ms", "retention.bytes")} == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
    }


async def test_a_topic_is_created_once_for_all_who_ask() -> None:
    created, topics = creation_of_topics()
    await asyncio.gather(*(topics.ensure(OFFSETS_TOPIC) for _ in range(3)))
    assert list(created) == [OFFSETS_TOPIC]


async def test_a_node_that_stops_creates_no_topic() -> None:
    created, topics = creation_of_topics()
    topics.close()
    await topics.ensure(OFFSETS_TOPIC)
    assert not created


async def test_a_partition_keeps_its_log_until_it_is_opened_anew(tmp_path: Path) -> None:
    async with running_node(tmp_path, group_offsets_partitions=2) as node:
        topic = CoordinatorTopic(node.serving.topics, OFFSETS_TOPIC, lambda: 0)
        changes: list[Sequence[PartitionLog | None] | None] = []
        topic.subscribe(lambda: changes.append(topic.logs()))
        assert topic.logs() is None
        await node.serving.internal_topics.ensure(OFFSETS_TOPIC)
        logs = topic.logs()
        assert logs is not None
        assert None not in logs
        assert changes[-1] == logs, "the same objects"
        await node.serving.topic_commands.create("another", partitions=1, configs={})
        await node.serving.topic_commands.grow(OFFSETS_TOPIC, 3)
        grown = topic.logs()
        assert grown is not None
        assert (grown[:2], changes[-1]) == (logs, grown)
        await node.serving.topic_commands.delete(OFFSETS_TOPIC)
        assert changes.pop() is None
        await node.serving.internal_topics.ensure(OFFSETS_TOPIC)
        again = topic.logs()
        assert again is not None
        assert not set(again) & set(logs)
        assert changes[-1] == again
