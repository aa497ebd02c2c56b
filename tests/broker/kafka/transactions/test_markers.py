"""Markers in the partitions of `__consumer_offsets`, which may move while a marker is on its way."""

from types import SimpleNamespace
from typing import cast

import pytest

from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.transactions.markers import Marker, MarkerWriter
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.wal.interface import Durable, WalError
from tests.support.memory_log import MemoryLog, MemoryTopic

T0 = TopicPartition("t", 0)
WHERE = TopicPartition(OFFSETS_TOPIC, 0)
PRODUCER = Producer(7, 0)
MARKER = Marker(PRODUCER, committed=True, coordinator_epoch=0, bumped=False)


def commit(groups: GroupCoordinator) -> None:
    """Commit an offset in the producer's transaction."""
    errors: list[ErrorCode] = []
    offsets = [(T0, CommittedOffset(5, -1, "", 0))]
    groups.shard("g").offsets.commit("g", "", None, -1, offsets, errors.append, PRODUCER)
    assert errors == [ErrorCode.NONE]


async def test_a_marker_ends_a_transaction_only_in_the_shard_that_it_was_written_for() -> None:
    """The partition was led elsewhere meanwhile, where the producer has begun its next transaction."""
    topic = MemoryTopic([MemoryLog()])
    groups = GroupCoordinator(topic, GroupSettings(), now_ms=lambda: 0, new_id=lambda: "id")
    groups.start()
    commit(groups)
    durable = Durable()
    partition = SimpleNamespace(append_marker=lambda *_, **__: durable, check_leader_epoch=lambda _: None)
    topics = SimpleNamespace(is_being_removed=lambda _: False, partition=lambda *_: partition)
    done: list[WalError | None] = []
    writer = MarkerWriter(cast("TopicManager", topics), groups)
    writer.write(WHERE, MARKER, done.append)
    topic.lead(0, None)
    with pytest.raises(KafkaError) as refused:
        writer.write(WHERE, MARKER, done.append)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    topic.lead(0, MemoryLog())
    commit(groups)
    durable.complete()
    assert done == [None]
    offsets = groups.shard("g").offsets.of("g")
    assert offsets is not None
    assert offsets.is_unstable(*T0)
    assert offsets.get(*T0) is None
