"""Compaction in a node that serves: clients notice nothing, however often it runs and whenever the node dies."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from click.testing import CliRunner

from anabranch.broker.operator.cli.storage import storage
from tests.support.node import NodeProcess
from tests.support.waiting import until

PARTITIONS = 4
RECORDS = 400


async def produce(node: NodeProcess, round_number: int) -> None:
    """Records whose values contain partition, round and number."""
    rng = random.Random(round_number)
    producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, acks="all", enable_idempotence=True)
    await producer.start()
    try:
        for number in range(RECORDS):
            for partition in range(PARTITIONS):
                value = b"%d:%d:%d:" % (partition, round_number, number) + rng.randbytes(rng.randrange(2_000))
                await producer.send("t", value, partition=partition)
            if number % 20 == 0:
                await producer.flush()
        await producer.flush()
    finally:
        await producer.stop()


async def check(node: NodeProcess, rounds: int) -> None:
    """Check that every record is there, once, in order."""
    consumer = AIOKafkaConsumer("t", bootstrap_servers=node.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in range(PARTITIONS)}
        async with asyncio.timeout(60):
            while sum(map(len, found.values())) < rounds * RECORDS * PARTITIONS:
                record = await consumer.getone()
                partition, round_number, number, _ = record.value.split(b":", 3)
                assert int(partition) == record.partition
                assert record.offset == len(found[record.partition])
                found[record.partition].append((int(round_number), int(number)))
        wanted = [(round_number, number) for round_number in range(rounds) for number in range(RECORDS)]
        assert all(numbers == wanted for numbers in found.values())
    finally:
        await consumer.stop()


async def has_compacted(node: NodeProcess) -> bool:
    """Return whether a run has changed objects, or does within some of its periods."""
    with suppress(TimeoutError):
        await until(
            lambda: any(event["commits"] for event in node.events("compaction done")), timeout_s=5, pause_s=0.05
        )
        return True
    return False


@pytest.mark.slow
async def test_clients_notice_nothing(tmp_path: Path) -> None:
    with NodeProcess(
        tmp_path,
        topic_num_partitions=PARTITIONS,
        storage_upload_age_ms=30,
        storage_split_bytes=64 * 1024,
        storage_delete_delay_ms=3_000,
        storage_log_cache_bytes=1 << 20,
        storage_block_cache_bytes=1 << 20,
        compaction_period_ms=100,
    ) as node:
        for round_number in range(4):
            async with asyncio.TaskGroup() as group:
                group.create_task(produce(node, round_number))
                if round_number:
                    group.create_task(check(node, round_number + 1))
            if round_number % 2:
                await asyncio.to_thread(node.kill9)
                await asyncio.to_thread(node.start)
        # Few runs while uploads, which have priority, are under pressure: on a slow machine the first run follows them.
        # Its uploads are large, too, and may leave nothing to compact: then more records follow.
        rounds = 4
        async with asyncio.timeout(60):
            while not await has_compacted(node):
                await produce(node, rounds)
                rounds += 1
        await check(node, rounds)
        assert await asyncio.to_thread(node.terminate) == 0
        done = node.events("compaction done")
        assert not any(event["errors"] for event in done)
        assert not node.events("compaction failed")
    arguments = ["verify", "--deep", "--data-dir", str(tmp_path / "data")]
    verified = await asyncio.to_thread(CliRunner().invoke, storage, arguments)
    assert verified.exit_code == 0, verified.output
