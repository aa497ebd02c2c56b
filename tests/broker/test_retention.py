"""Old records go from the start of the log on, and nothing else goes."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from broker.partition import Partition
from broker.retention import PARTITIONS_IN_FLIGHT, enforce, enforce_all
from protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.records import Record, build_batch
from s3stream.errors import CatalogUnavailable
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

T = 1_700_000_000_000


async def create(client: RawClient, **configs: str) -> None:
    values = [CreatableTopicConfig(name=name.replace("_", "."), value=configs[name]) for name in configs]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=values)
    assert (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0].error_code == 0


async def fill(client: RawClient, *ages_ms: int) -> None:
    """One batch of two records each, the newer one so old at T."""
    for age_ms in ages_ms:
        response = await client.produce("t", [batch_of(b"a", b"b", timestamp_ms=T - age_ms - 1)])
        assert response.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("flushed", [False, True])
async def test_batches_go_up_to_the_first_young_one(tmp_path: Path, flushed: bool) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_ms="1000")
        await fill(client, 5000, 1001, 1000, 3000, 0)
        if flushed:
            await node.node.storage.flush()
        partition = node.node.topics.partition("t", 0)
        assert await enforce(partition, T) == 4
        assert await enforce(partition, T) == 0
        assert partition.log_start_offset == 4, "the old one behind the young one waits"
        assert await enforce(partition, T + 1001) == 6
        assert (partition.log_start_offset, partition.high_watermark) == (10, 10)
        await fill(client, 0)
        assert partition.high_watermark == 12


@pytest.mark.parametrize("configs", [{}, {"cleanup_policy": "compact", "retention_ms": "1"}, {"retention_ms": "-1"}])
async def test_nothing_goes_unasked(tmp_path: Path, configs: dict[str, str]) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, **configs)
        keyed = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)])
        assert (await client.produce("t", [keyed])).responses[0].partition_responses[0].error_code == 0
        assert await enforce(node.node.topics.partition("t", 0), T) == 0


async def test_it_happens_by_itself(tmp_path: Path) -> None:
    settings = {"topic_retention_ms": 1000, "topic_retention_check_interval_ms": 20}
    async with running_node(tmp_path, **settings) as node, raw_client(node.bootstrap) as client:
        await create(client)
        await fill(client, 0)
        partition = node.node.topics.partition("t", 0)
        await until(lambda: partition.log_start_offset == 2, pause_s=0.01)


BATCH_BYTES = 300_000
"""Two of them do not fit a block."""


async def fill_bytes(client: RawClient, batches: int) -> None:
    for number in range(batches):
        value = number.to_bytes(2) * (BATCH_BYTES // 2)
        response = await client.produce("t", [batch_of(value, timestamp_ms=T)])
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_the_oldest_go_by_size_and_never_below_it(tmp_path: Path) -> None:
    """Kafka's rule: a segment goes as long as the log without it is not smaller than the limit."""
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_bytes="700000")
        await fill_bytes(client, 6)
        partition = node.node.topics.partition("t", 0)
        assert await enforce(partition, T) == 0, "what is only in the log stays, as Kafka's active segment does"
        await node.node.storage.flush()
        assert await enforce(partition, T) == 3
        assert await enforce(partition, T) == 0
        assert (partition.log_start_offset, partition.high_watermark) == (3, 6)
        await fill_bytes(client, 2)
        assert await enforce(partition, T) == 2, "what is not in objects yet counts"
        await node.node.topics.alter("t", set_configs={"retention.bytes": "0"}, unset=())
        assert await enforce(partition, T) == 1
        assert (partition.log_start_offset, partition.high_watermark) == (6, 8)


async def test_the_stricter_of_age_and_size_counts(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, retention_bytes="100000000", retention_ms="1000")
        await fill(client, 5000, 5000, 0)
        await node.node.storage.flush()
        partition = node.node.topics.partition("t", 0)
        assert await enforce(partition, T) == 4
        await node.node.topics.alter("t", set_configs={"retention.ms": "-1", "retention.bytes": "0"}, unset=())
        assert await enforce(partition, T) == 2


class Slow:
    """As much of a partition as is needed to see how many are looked over at the same time."""

    def __init__(self, name: str, gate: asyncio.Event, seen: list[str]) -> None:
        self.name, self.gate, self.seen = name, gate, seen
        self.config, self.stream = self, self
        self.start_offset, self.confirmed_offset = 0, 1
        self.deletable, self.retention_ms, self.retention_bytes = True, 0, -1

    async def offset_for_time(self, _: int) -> None:
        self.seen.append(self.name)
        await self.gate.wait()
        raise CatalogUnavailable(f"no answer for {self.name}")


async def test_a_few_partitions_are_looked_over_at_a_time_and_one_that_fails_stops_no_other() -> None:
    gate, seen = asyncio.Event(), list[str]()
    partitions = [Slow(f"t-{number}", gate, seen) for number in range(3 * PARTITIONS_IN_FLIGHT)]
    async with asyncio.TaskGroup() as group:
        _ = group.create_task(enforce_all(cast("list[Partition]", partitions), lambda: T))
        await until(lambda: len(seen) == PARTITIONS_IN_FLIGHT, pause_s=0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(seen) == PARTITIONS_IN_FLIGHT
        gate.set()
    assert sorted(seen) == sorted(each.name for each in partitions)
