"""Log compaction compared with Apache Kafka's own cleaner: both leave the same records of the same history."""

import asyncio
import random
from collections.abc import Iterator
from functools import partial

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from benchmarks.lab.processes import ApacheKafka
from tests.differential.conftest import quick_jvm
from tests.support import tools
from tests.support.node import NodeProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

WAIT_S = 120.0
TICK = b"tick"
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "3600000",
}
KV = tuple[bytes, bytes | None]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    tools.java()
    tools.kafka_class_path()
    settings = {"log.cleaner.backoff.ms": "100", "transaction.state.log.num.partitions": "1"}
    home = tmp_path_factory.mktemp("apache-kafka") / "home"
    with ApacheKafka(home, properties=settings, jvm=quick_jvm()) as broker:
        yield f"127.0.0.1:{broker.port}"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node"), wal_capacity_bytes=64 << 20) as node:
        yield node


async def create(bootstrap: str, topic: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(topic, 1, 1, topic_configs=CONFIGS)])
    finally:
        await admin.close()


async def write(bootstrap: str, topic: str, seed: int) -> None:
    """Two transactional producers and a plain one take turns; their actions follow from the seed."""
    rng = random.Random(seed)
    send = partial(send_records, topic)
    plain = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    writers = [
        AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=f"{topic}-{at}", compression_type=codec)
        for at, codec in enumerate(("gzip", None))
    ]
    everyone = [plain, *writers]
    for producer in everyone:
        await producer.start()
    is_open = dict.fromkeys(writers, False)
    try:
        for number in range(60):
            producer = rng.choice(everyone)
            keys = rng.sample(range(8), rng.randint(1, 3))
            records = [(b"%d" % key, None if rng.random() < 0.2 else b"%d" % number) for key in keys]
            if producer is plain:
                await send(plain, records)
                continue
            if not is_open[producer]:
                await producer.begin_transaction()
            await send(producer, records)
            is_open[producer] = rng.random() < 0.5
            if not is_open[producer]:
                await (producer.abort_transaction() if rng.random() < 0.5 else producer.commit_transaction())
        for producer in writers:
            if is_open[producer]:
                await producer.abort_transaction()
    finally:
        for producer in everyone:
            await producer.stop()


async def send_records(topic: str, producer: AIOKafkaProducer, records: list[KV]) -> None:
    batch = producer.create_batch()
    for key, value in records:
        batch.append(key=key, value=value, timestamp=None)
    await (await producer.send_batch(batch, topic, partition=0))


async def tick(bootstrap: str, topic: str) -> None:
    """A record that ends Apache Kafka's active segment, which it never cleans."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        await producer.send_and_wait(topic, b"", key=TICK, partition=0)
    finally:
        await producer.stop()


async def records(bootstrap: str, topic: str, isolation: str) -> list[tuple[bytes | None, bytes | None]]:
    """Records that a consumer reads from start to end, without the ticks."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end = (await consumer.end_offsets([partition]))[partition]
        found = []
        async with asyncio.timeout(WAIT_S):
            while await consumer.position(partition) < end:
                for batch in (await consumer.getmany(partition, timeout_ms=200)).values():
                    found += [(record.key, record.value) for record in batch if record.key != TICK]
        return found
    finally:
        await consumer.stop()


Views = tuple[list[tuple[bytes | None, bytes | None]], ...]


async def views(bootstrap: str, topic: str) -> Views:
    return tuple([await records(bootstrap, topic, each) for each in ("read_uncommitted", "read_committed")])


def compact(node: NodeProcess) -> int:
    """Have everything in objects, compact it, and leave nothing in caches; returns the records removed."""
    restart(node)
    summary = node.compact()
    assert summary["errors"] == []
    restart(node)
    return int(summary["records_removed"])


def restart(node: NodeProcess) -> None:
    assert node.terminate() == 0
    node.start()


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_same_records_are_left(kafka: str, ours: NodeProcess, seed: int) -> None:
    topic = f"cleaned-{seed}"
    for bootstrap in (kafka, ours.bootstrap):
        await create(bootstrap, topic)
        await write(bootstrap, topic, seed)
        await tick(bootstrap, topic)
    before = await views(ours.bootstrap, topic)
    assert await asyncio.to_thread(compact, ours) > 0
    mine = await views(ours.bootstrap, topic)
    assert dict(mine[1]) == dict(before[1])
    assert mine[0] == mine[1], "nothing aborted is left"
    assert len(mine[0]) == len(dict(mine[0])) < len(before[0])
    theirs: Views = ()
    try:
        async with asyncio.timeout(WAIT_S):
            while theirs != mine:
                await tick(kafka, topic)
                theirs = await views(kafka, topic)
    except TimeoutError:
        pytest.fail(f"Apache Kafka has left {theirs}, we {mine}")
