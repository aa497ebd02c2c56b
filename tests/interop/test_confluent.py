"""librdkafka 2, through confluent-kafka: its newest release uses other API versions than kcat's."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.interop.records import PARTITIONS, START_MS, Sent, by_partition, sample

pytestmark = pytest.mark.interop

QUIET = {"log_level": 3}
TIMEOUT_S = 60


def produce(servers: str, topic: str, records: list[Sent], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, **QUIET, **settings})
    failures: list[object] = []
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures


@contextmanager
def consumer(servers: str, group: str, **settings: object) -> Iterator[Consumer]:
    client = Consumer({
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 30_000,
        "heartbeat.interval.ms": 200,
        **QUIET,
        **settings,
    })  # fmt: skip
    try:
        yield client
    finally:
        client.close()


def consume(client: Consumer, count: int) -> list[Sent]:
    found: list[Sent] = []
    while len(found) < count:
        message = client.poll(TIMEOUT_S)
        assert message is not None, f"{len(found)} of {count} came"
        if error := message.error():
            raise KafkaException(error)
        headers: Any = message.headers() or []
        partition = message.partition()
        assert partition is not None
        found.append(Sent(partition, message.key(), message.value(), message.timestamp()[1], tuple(headers)))
    return found


def poll_until(condition: Callable[[], bool], *clients: Consumer) -> None:
    """Poll clients that expect no messages until the condition holds."""
    for _ in range(TIMEOUT_S * 20 // len(clients)):
        if condition():
            return
        for client in clients:
            message = client.poll(0.05)
            assert message is None or message.error() is None
    pytest.fail("it did not come to that in time")


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_comes_back(servers: str, topic: str, codec: str) -> None:
    records = sample(200)
    produce(servers, topic, records, **{"compression.type": codec})
    with consumer(servers, f"{topic}-group") as client:
        client.subscribe([topic])
        assert by_partition(consume(client, len(records))) == by_partition(records)


def test_an_idempotent_producer_writes_each_record_once(servers: str, topic: str) -> None:
    records = sample(3000)
    settings: dict[str, object] = {"enable.idempotence": True, "batch.num.messages": 50, "linger.ms": 0}
    produce(servers, topic, records, **settings)
    with consumer(servers, "unused") as client:
        ends = [client.get_watermark_offsets(TopicPartition(topic, index), TIMEOUT_S)[1] for index in range(PARTITIONS)]
        assert ends == [1000] * PARTITIONS
        client.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        assert by_partition(consume(client, len(records))) == by_partition(records)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_two_consumers_share_a_topic(servers: str, topic: str, strategy: str) -> None:
    settings: dict[str, object] = {"partition.assignment.strategy": strategy}
    with consumer(servers, f"{topic}-group", **settings) as first:
        first.subscribe([topic])
        poll_until(lambda: len(first.assignment()) == PARTITIONS, first)
        with consumer(servers, f"{topic}-group", **settings) as second:
            second.subscribe([topic])
            poll_until(lambda: {len(first.assignment()), len(second.assignment())} == {1, 2}, first, second)
            owned = [partition.partition for client in (first, second) for partition in client.assignment()]
            assert sorted(owned) == list(range(PARTITIONS))
        poll_until(lambda: len(first.assignment()) == PARTITIONS, first)


def test_a_static_member_comes_back_without_a_rebalance(servers: str, topic: str) -> None:
    settings: dict[str, object] = {"group.instance.id": "one"}
    rebalances: list[str] = []
    other: dict[str, object] = {"group.instance.id": "two"}
    with consumer(servers, f"{topic}-group", **other) as second:
        second.subscribe([topic], on_assign=lambda *_: rebalances.append("assign"))
        with consumer(servers, f"{topic}-group", **settings) as first:
            first.subscribe([topic])
            poll_until(lambda: {len(first.assignment()), len(second.assignment())} == {1, 2}, first, second)
            owned = [partition.partition for partition in first.assignment()]
            before = len(rebalances)
        with consumer(servers, f"{topic}-group", **settings) as again:
            again.subscribe([topic])
            poll_until(lambda: bool(again.assignment()), again, second)
            assert [partition.partition for partition in again.assignment()] == owned
        assert len(rebalances) == before


def test_committed_offsets_with_their_metadata(servers: str, topic: str) -> None:
    produce(servers, topic, sample(30))
    with consumer(servers, f"{topic}-group") as client:
        client.subscribe([topic])
        consume(client, 30)
        wanted = [TopicPartition(topic, 0, 4, "why four", leader_epoch=0), TopicPartition(topic, 1, 9)]
        for partition in client.commit(offsets=wanted, asynchronous=False) or []:
            assert partition.error is None
    with consumer(servers, f"{topic}-group") as client:
        found = client.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], TIMEOUT_S)
        assert [(part.offset, part.metadata) for part in found] == [(4, "why four"), (9, None), (-1001, None)]
        client.subscribe([topic])
        assert len(consume(client, 6 + 1 + 10)) == 17


def test_auto_commit_and_close_keep_the_place(servers: str, topic: str) -> None:
    produce(servers, topic, sample(30))
    settings: dict[str, object] = {"enable.auto.commit": True}
    with consumer(servers, f"{topic}-group", **settings) as client:
        client.subscribe([topic])
        consume(client, 30)
    produce(servers, topic, sample(3))
    with consumer(servers, f"{topic}-group", **settings) as client:
        client.subscribe([topic])
        assert by_partition(consume(client, 3)) == by_partition(sample(3))


def test_offsets_for_times_and_watermarks(servers: str, topic: str) -> None:
    produce(servers, topic, sample(30))
    with consumer(servers, "unused") as client:
        asked = [
            TopicPartition(topic, 0, START_MS),
            TopicPartition(topic, 1, START_MS + 10_001),
            TopicPartition(topic, 2, START_MS + 100_000),
        ]
        assert [part.offset for part in client.offsets_for_times(asked, TIMEOUT_S)] == [0, 4, -1]
        assert client.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S) == (0, 10)
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    specs: Any = OffsetSpec
    for spec, offset in ((specs.earliest(), 0), (specs.latest(), 10), (specs.max_timestamp(), 9)):
        (future,) = admin.list_offsets({TopicPartition(topic, 1): spec}).values()
        assert future.result(TIMEOUT_S).offset == offset


@pytest.fixture
def names(topic: str) -> Iterator[str]:
    """Names for topics of one test."""
    return (f"{topic}-{number}" for number in itertools.count())


def test_topics_are_administered(servers: str, names: Iterator[str]) -> None:
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    name = next(names)

    def done(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(TIMEOUT_S)

    done(admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "60000"})]))
    with pytest.raises(KafkaException, match="already exists"):
        done(admin.create_topics([NewTopic(name, 2, 1)]))
    assert len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions) == 2
    done(admin.create_partitions([NewPartitions(name, 5)]))
    assert len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions) == 5
    configs = done(admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, name)]))
    assert configs["retention.ms"].value == "60000"
    assert configs["cleanup.policy"].value == "delete"
    done(admin.delete_topics([name]))
    assert name not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_is_created_by_its_first_record(servers: str, names: Iterator[str]) -> None:
    name = next(names)
    produce(servers, name, [Sent(0, b"k", b"v", START_MS, ())])
    with consumer(servers, f"{name}-group") as client:
        client.subscribe([name])
        assert consume(client, 1)[0].value == b"v"


def test_groups_are_administered(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, **QUIET})
    group = f"{topic}-group"
    with consumer(servers, group) as client:
        client.subscribe([topic])
        poll_until(lambda: len(client.assignment()) == PARTITIONS, client)
        client.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        described = admin.describe_consumer_groups([group])[group].result(TIMEOUT_S)
        assert described.state.name == "STABLE"
        assert described.partition_assignor == "range"
        assert len(described.members[0].assignment.topic_partitions) == PARTITIONS
        with pytest.raises(KafkaException, match=r"not empty|NON_EMPTY"):
            admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert group in {found.group_id for found in listed.valid}
    change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 1, 7)])
    admin.alter_consumer_group_offsets([change])[group].result(TIMEOUT_S)
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    assert sorted((part.partition, part.offset) for part in found.topic_partitions) == [(0, 5), (1, 7)]
    admin.delete_consumer_groups([group])[group].result(TIMEOUT_S)
    found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT_S)
    assert not found.topic_partitions
