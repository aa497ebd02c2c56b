"""Aborted transactions whose data compaction has removed: forgotten in time, and never too early for a reader."""

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.partitions.transactions import AbortedEntry, PartitionTransactions
from tests.support.node import running_node

CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "0"}
EXPECTED = {b"a": b"1", b"b": b"2"}


def with_aborted(*entries: tuple[int, int, int]) -> PartitionTransactions:
    """Each a producer, its first offset, and its marker's."""
    state = PartitionTransactions()
    for producer, first, last in entries:
        state.write(producer, first, 0)
        state.end(producer, last, 0, aborted=True)
    return state


def test_what_is_vacated_is_in_no_snapshot_and_forgotten_when_no_cache_has_it() -> None:
    state = with_aborted((7, 0, 10), (8, 20, 30))
    state.vacate([(7, 0, 10), (9, 5, 6)], 100)
    first, second = state.aborted_between(0, 100)
    assert (state.is_vacated(first), state.is_vacated(second)) == (True, False)
    decoded, _ = PartitionTransactions.decode(state.encode())
    assert list(decoded.aborted) == [AbortedEntry(8, 20, 30, 31)]
    state.forget_vacated(99, lambda _: False)
    state.forget_vacated(100, lambda offset: offset == 10)
    assert state.aborted_count == 2
    state.vacate([(7, 0, 10)], 500)
    state.forget_vacated(100, lambda _: False)
    assert list(state.aborted) == [second]
    assert not state.is_vacated(first)


def test_a_trim_forgets_what_is_vacated_too() -> None:
    state = with_aborted((7, 0, 10))
    (entry,) = state.aborted
    state.vacate([(7, 0, 10)], 0)
    state.trim(11)
    assert state.aborted_count == 0
    assert not state.is_vacated(entry)


async def table(node: Node, isolation_level: str) -> dict[bytes, bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=node.bootstrap, isolation_level=isolation_level)
    await consumer.start()
    try:
        partition = TopicPartition("t", 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        found: dict[bytes, bytes] = {}
        async with asyncio.timeout(30):
            while await consumer.position(partition) < end:
                for batch in (await consumer.getmany(partition, timeout_ms=100)).values():
                    found |= {record.key: record.value for record in batch if record.key != b"tick"}
        return found
    finally:
        await consumer.stop()


async def clean(node: Node) -> None:
    """Upload all, and something new with it, and clean."""
    producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap)
    await producer.start()
    try:
        await producer.send_and_wait("t", b"", key=b"tick", partition=0)
    finally:
        await producer.stop()
    await node.serving.storage.flush()
    summary = await node.upkeep.compaction.run_once()
    assert summary.streams_cleaned > 0
    assert summary.errors == []


async def test_readers_of_committed_data_see_the_same_all_along(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        admin = AIOKafkaAdminClient(bootstrap_servers=node.bootstrap)
        await admin.start()
        await admin.create_topics([NewTopic("t", 1, 1, topic_configs=CONFIGS)])
        await admin.close()
        producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, transactional_id="x")
        await producer.start()
        for key, value in ((b"a", b"1"), (b"a", b"aborted"), (b"b", b"2")):
            await producer.begin_transaction()
            await producer.send_and_wait("t", value, key=key, partition=0)
            await (producer.abort_transaction() if value == b"aborted" else producer.commit_transaction())
        await producer.stop()
        partition = node.serving.topics.partition("t", 0)
        await clean(node)
        (entry,) = partition.transactions.aborted
        assert not partition.transactions.is_vacated(entry)
        for _ in range(5):
            # The log cache dropped the aborted record together with the objects.
            assert await table(node, "read_uncommitted") == EXPECTED
            assert await table(node, "read_committed") == EXPECTED
            await clean(node)
        assert partition.transactions.is_vacated(entry)
        assert await table(node, "read_committed") == EXPECTED
    async with running_node(tmp_path) as node:
        assert node.serving.topics.partition("t", 0).transactions.aborted_count == 0
        for isolation_level in ("read_committed", "read_uncommitted"):
            assert await table(node, isolation_level) == EXPECTED
