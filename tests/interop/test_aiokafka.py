"""aiokafka: the pure Python client for asyncio."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from tests.interop.records import PARTITIONS, START_MS, Sent, by_partition, sample
from tests.support.waiting import until

pytestmark = pytest.mark.interop

TIMEOUT_S = 30


async def produce(servers: str, topic: str, records: list[Sent], **settings: object) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, **settings) as producer:
        sent = [
            await producer.send(
                topic,
                record.value,
                record.key,
                record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        for future in sent:
            await future


@asynccontextmanager
async def consumer(servers: str, group: str | None, *topics: str, **settings: object) -> AsyncIterator[Any]:
    wanted: dict[str, object] = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 30_000,
        "heartbeat_interval_ms": 200,
        **settings,
    }
    async with AIOKafkaConsumer(*topics, bootstrap_servers=servers, **wanted) as client:
        yield client


async def consume(client: Any, count: int) -> list[Sent]:
    found: list[Sent] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < count:
            message = await client.getone()
            found.append(Sent(message.partition, message.key, message.value, message.timestamp, tuple(message.headers)))
    return found


async def settled(condition: Callable[[], bool]) -> None:
    await until(condition, timeout_s=TIMEOUT_S, pause_s=0.02)


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_what_is_sent_comes_back(servers: str, topic: str, codec: str | None) -> None:
    records = sample(200)
    await produce(servers, topic, records, compression_type=codec)
    async with consumer(servers, f"{topic}-group", topic) as client:
        assert by_partition(await consume(client, len(records))) == by_partition(records)


async def test_an_idempotent_producer_writes_each_record_once(servers: str, topic: str) -> None:
    records = sample(1500)
    await produce(servers, topic, records, enable_idempotence=True, max_batch_size=4_096)
    async with consumer(servers, None) as client:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        client.assign(partitions)
        assert set((await client.end_offsets(partitions)).values()) == {500}
        assert by_partition(await consume(client, len(records))) == by_partition(records)


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_every_kind_of_acknowledgement(servers: str, topic: str, acks: int | str) -> None:
    await produce(servers, topic, sample(30), acks=acks)
    async with consumer(servers, f"{topic}-group", topic) as client:
        assert by_partition(await consume(client, 30)) == by_partition(sample(30))


@pytest.mark.parametrize("assignor", [RoundRobinPartitionAssignor, StickyPartitionAssignor])
async def test_two_consumers_share_a_topic(servers: str, topic: str, assignor: type) -> None:
    async with consumer(servers, f"{topic}-group", topic, partition_assignment_strategy=[assignor]) as first:
        await settled(lambda: len(first.assignment()) == PARTITIONS)
        async with consumer(servers, f"{topic}-group", topic, partition_assignment_strategy=[assignor]) as second:
            await settled(lambda: {len(first.assignment()), len(second.assignment())} == {1, 2})
            assert len(first.assignment() | second.assignment()) == PARTITIONS
        await settled(lambda: len(first.assignment()) == PARTITIONS)


async def test_committed_offsets_with_their_metadata(servers: str, topic: str) -> None:
    await produce(servers, topic, sample(30))
    zero, one, two = (TopicPartition(topic, index) for index in range(PARTITIONS))
    async with consumer(servers, f"{topic}-group", topic) as client:
        await consume(client, 30)
        await client.commit({zero: OffsetAndMetadata(4, "why four"), one: 9})
    async with consumer(servers, f"{topic}-group", topic) as client:
        assert [await client.committed(partition) for partition in (zero, one, two)] == [4, 9, None]
        assert len(await consume(client, 6 + 1 + 10)) == 17


async def test_offsets_for_times(servers: str, topic: str) -> None:
    await produce(servers, topic, sample(30))
    zero, one, two = (TopicPartition(topic, index) for index in range(PARTITIONS))
    async with consumer(servers, None) as client:
        client.assign([zero, one, two])
        found = await client.offsets_for_times({zero: START_MS, one: START_MS + 10_001, two: START_MS + 100_000})
        assert (found[zero].offset, found[one].offset, found[two]) == (0, 4, None)
        assert found[one].timestamp == START_MS + 13_000
        assert set((await client.beginning_offsets([zero, one])).values()) == {0}


@pytest.fixture
def names(topic: str) -> Iterator[str]:
    """Names for topics of one test."""
    return (f"{topic}-{number}" for number in itertools.count())


async def test_topics_are_administered(servers: str, names: Iterator[str]) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        name = next(names)
        await admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "60000"})])
        await admin.create_partitions({name: NewPartitions(5)})
        (described,) = await admin.describe_topics([name])
        assert len(described["partitions"]) == 5
        (configs,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        values = {entry[0]: entry[1] for entry in configs.resources[0][4]}
        assert values["retention.ms"] == "60000"
        assert name in await admin.list_topics()
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()
    finally:
        await admin.close()


async def test_groups_are_administered(servers: str, topic: str) -> None:
    group = f"{topic}-group"
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        async with consumer(servers, group, topic) as client:
            await settled(lambda: len(client.assignment()) == PARTITIONS)
            await client.commit({TopicPartition(topic, 0): 5})
            (response,) = await admin.describe_consumer_groups([group])
            described = response.groups[0]
            assert (described[1], described[2]) == (group, "Stable")
            assert len(described[5]) == 1
        assert (group, "consumer") in await admin.list_consumer_groups()
        offsets = await admin.list_consumer_group_offsets(group)
        assert {key.partition: found.offset for key, found in offsets.items()} == {0: 5}
    finally:
        await admin.close()


async def test_a_long_poll_ends_with_the_record(servers: str, topic: str) -> None:
    """A waiting consumer gets a record as soon as it is there, long before its wait times out."""
    async with consumer(servers, None, fetch_max_wait_ms=20_000) as client:
        client.assign([TopicPartition(topic, 0)])
        async with asyncio.TaskGroup() as group:
            task = group.create_task(consume(client, 1))
            await client.position(TopicPartition(topic, 0))  # known, so that the fetch is under way
            await produce(servers, topic, sample(1))
            async with asyncio.timeout(10):
                assert await task == sample(1)
