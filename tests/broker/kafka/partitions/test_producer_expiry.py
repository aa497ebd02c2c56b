"""Idle producers expire by age, and a jump of the clock expires none."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from anabranch.broker.app import run_node
from anabranch.broker.cluster.membership.environment import Environment
from anabranch.broker.kafka.partitions import producer_expiry
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.node import settings_for
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

MINUTE_MS = 60_000
YEAR_MS = 365 * 86_400_000
PRODUCER_A, PRODUCER_B = 5, 6


@dataclass(slots=True)
class SettableClock:
    """The wall clock, ahead by an adjustable time."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


async def produce(client: RawClient, producer_id: int) -> int:
    """Send the producer's first batch; returns its base offset."""
    batch = batch_of(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=0)
    answer = (await client.produce("t", [batch])).responses[0].partition_responses[0]
    assert answer.error_code == 0
    return answer.base_offset


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Number of expiry passes over a partition's producers so far; the interval between passes is short."""
    count = 0
    expire = Partition.expire_producers

    def counted(partition: Partition, before_ms: int) -> None:
        nonlocal count
        expire(partition, before_ms)
        count += 1

    monkeypatch.setattr(Partition, "expire_producers", counted)
    monkeypatch.setattr(producer_expiry, "EXPIRY_INTERVAL_S", 0.01)
    return lambda: count


async def test_a_leap_of_the_clock_leaves_deduplication_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passes: Callable[[], int]
) -> None:
    clock = SettableClock()
    settings = settings_for(tmp_path, topic_producer_id_expiration_ms=5 * MINUTE_MS)
    environment = Environment(now_ms=clock.now_ms)
    async with run_node(settings, environment=environment) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        producers = node.serving.topics.partition("t", 0).producers
        await produce(client, PRODUCER_A)
        clock.ahead_ms = 9 * MINUTE_MS  # as little as a correction may be
        await until(lambda: not producers.entries, pause_s=0.01)
        base_offset = await produce(client, PRODUCER_B)
        clock.ahead_ms = YEAR_MS
        before = passes()
        await until(lambda: passes() >= before + 2, pause_s=0.01)  # the first one may have begun before
        assert await produce(client, PRODUCER_B) == base_offset, "the retry is recognised"
        assert list(producers.entries) == [PRODUCER_B]
