"""kafka-python: the synchronous client in Python. Of the codecs only gzip is built into it."""

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.interop.records import PARTITIONS, START_MS, Sent, by_partition, sample
from tests.support.waiting import until

with warnings.catch_warnings():
    warnings.filterwarnings(
        "ignore", "(read|open)_text is deprecated", DeprecationWarning
    )  # it reads its own schemas so
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
    from kafka.errors import TopicAlreadyExistsError

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]

TIMEOUT_S = 30


def produce(servers: str, topic: str, records: list[Sent], **settings: object) -> None:
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=5, **settings)
    try:
        sent = [
            producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=record.partition,
                timestamp_ms=record.timestamp_ms,
                headers=list(record.headers),
            )
            for record in records
        ]
        for future in sent:
            future.get(TIMEOUT_S)
    finally:
        producer.close()


@contextmanager
def consumer(servers: str, group: str | None, *topics: str, **settings: object) -> Iterator[Any]:
    wanted: dict[str, object] = {
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "session_timeout_ms": 30_000,
        "heartbeat_interval_ms": 200,
        **settings,
    }
    client = KafkaConsumer(*topics, bootstrap_servers=servers, **wanted)
    try:
        yield client
    finally:
        client.close()


def consume(client: Any, count: int) -> list[Sent]:
    found: list[Sent] = []
    while len(found) < count:
        # A short poll that ends in the middle of a rebalance can leave this client without partitions permanently.
        batches = client.poll(TIMEOUT_S * 1000)
        assert batches, f"{len(found)} of {count} came"
        for messages in batches.values():
            found += [Sent(m.partition, m.key, m.value, m.timestamp, tuple(m.headers)) for m in messages]
    return found


@contextmanager
def polled(client: Any) -> Iterator[None]:
    """Poll a client that expects no messages, as its application would, until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            client.poll(2_000)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(TIMEOUT_S)


async def settled(condition: Callable[[], bool]) -> None:
    await until(condition, timeout_s=TIMEOUT_S, pause_s=0.02)


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_what_is_sent_comes_back(servers: str, topic: str, codec: str | None) -> None:
    records = sample(200)
    produce(servers, topic, records, compression_type=codec)
    with consumer(servers, f"{topic}-group", topic) as client:
        assert by_partition(consume(client, len(records))) == by_partition(records)


def test_an_idempotent_producer_writes_each_record_once(servers: str, topic: str) -> None:
    records = sample(900)
    produce(servers, topic, records, enable_idempotence=True, batch_size=4_096)
    with consumer(servers, None) as client:
        partitions = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        client.assign(partitions)
        assert set(client.end_offsets(partitions).values()) == {300}
        assert by_partition(consume(client, len(records))) == by_partition(records)


async def test_two_consumers_share_a_topic(servers: str, topic: str) -> None:
    with consumer(servers, f"{topic}-group", topic) as first, polled(first):
        await settled(lambda: len(first.assignment()) == PARTITIONS)
        with consumer(servers, f"{topic}-group", topic) as second, polled(second):
            await settled(lambda: {len(first.assignment()), len(second.assignment())} == {1, 2})
            assert len(first.assignment() | second.assignment()) == PARTITIONS
        await settled(lambda: len(first.assignment()) == PARTITIONS)


def test_committed_offsets_with_their_metadata(servers: str, topic: str) -> None:
    produce(servers, topic, sample(30))
    zero, one, two = (TopicPartition(topic, index) for index in range(PARTITIONS))
    with consumer(servers, f"{topic}-group", topic) as client:
        consume(client, 30)
        client.commit({zero: OffsetAndMetadata(4, "why four", -1), one: OffsetAndMetadata(9, "", -1)})
    with consumer(servers, f"{topic}-group", topic) as client:
        assert client.committed(zero, metadata=True).metadata == "why four"
        assert [client.committed(partition) for partition in (zero, one, two)] == [4, 9, None]
        assert len(consume(client, 6 + 1 + 10)) == 17


def test_offsets_for_times(servers: str, topic: str) -> None:
    produce(servers, topic, sample(30))
    zero, one, two = (TopicPartition(topic, index) for index in range(PARTITIONS))
    with consumer(servers, None) as client:
        found = client.offsets_for_times({zero: START_MS, one: START_MS + 10_001, two: START_MS + 100_000})
        assert (found[zero].offset, found[one].offset, found[two]) == (0, 4, None)
        assert client.beginning_offsets([zero]) == {zero: 0}


@pytest.fixture
def names(topic: str) -> Iterator[str]:
    """Names for topics of one test."""
    return (f"{topic}-{number}" for number in itertools.count())


def test_topics_are_administered(servers: str, names: Iterator[str]) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        name = next(names)
        admin.create_topics([NewTopic(name, 2, 1, topic_configs={"retention.ms": "60000"})])
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics([NewTopic(name, 2, 1)])
        admin.create_partitions({name: NewPartitions(5)})
        (described,) = admin.describe_topics([name])
        assert len(described["partitions"]) == 5
        assert name in admin.list_topics()
        configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
        assert "60000" in str(configs)
        admin.delete_topics([name])
        assert name not in admin.list_topics()
    finally:
        admin.close()


def test_groups_are_administered(servers: str, topic: str) -> None:
    group = f"{topic}-group"
    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        produce(servers, topic, sample(3))
        with consumer(servers, group, topic) as client:
            consume(client, 3)
            client.commit({TopicPartition(topic, 0): OffsetAndMetadata(5, "", -1)})
            assert "Stable" in str(admin.describe_groups([group]))
        assert group in str(admin.list_groups())
        offsets = admin.list_group_offsets(group)
        assert ":5" in str(offsets).replace(" ", "").replace("offset=", ":")
        admin.delete_groups([group])
        assert group not in str(admin.list_groups())
    finally:
        admin.close()
