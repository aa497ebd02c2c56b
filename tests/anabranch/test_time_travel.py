"""Time travel of the broker for tests, with real clients."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from anabranch.testing import Broker, BrokerError
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[1, 3], ids=["node", "cluster"])
def shared(request: pytest.FixtureRequest) -> Iterator[Broker]:
    # Clients write their own time, which is long ago once another test has travelled: their records must not expire.
    with Broker({"topic.retention_ms": -1}, nodes=request.param) as running:
        yield running


@pytest.fixture
def broker(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.heal()


def send(broker: Broker, topic: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(WAIT_S) == 0


def consumer_of(broker: Broker, group: str, topic: str, protocol: str = "classic") -> Consumer:
    """Return a consumer that has received a record."""
    settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "group.protocol": protocol}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, **settings})
    consumer.subscribe([topic])
    message = consumer.poll(WAIT_S)
    assert message is not None
    assert message.error() is None
    return consumer


def test_records_outlive_their_retention_and_no_more(broker: Broker) -> None:
    broker.create_topic("week", configs={"retention.ms": 7 * 86_400_000})
    broker.create_topic("kept", configs={"retention.ms": -1})
    for topic in ("week", "kept"):
        send(broker, topic, b"old")
    broker.advance(timedelta(days=6, hours=23))
    assert [each.value for each in broker.records("week")] == [b"old"]
    broker.advance(timedelta(hours=2))
    assert broker.records("week") == []
    assert [each.value for each in broker.records("kept")] == [b"old"]


def test_records_have_the_time_of_the_broker_where_it_sets_it(broker: Broker) -> None:
    broker.create_topic("appended", configs={"message.timestamp.type": "LogAppendTime"})
    send(broker, "appended", b"before")
    broker.advance(3600)
    send(broker, "appended", b"after")
    before, after = broker.records("appended")
    assert after.timestamp_ms - before.timestamp_ms >= 3_600_000


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_whose_session_ends_is_out(broker: Broker, protocol: str) -> None:
    group = topic = f"session-{protocol}"
    broker.create_topic(topic)
    send(broker, topic, b"1")
    consumer = consumer_of(broker, group, topic, protocol)
    consumer.commit(asynchronous=False)  # a group without offsets would be gone with its last member
    broker.wait_for_group(group)
    broker.cut()  # it cannot join again
    broker.advance(30)
    broker.wait_for_group(group, timeout_s=0)
    broker.advance(20)
    with pytest.raises(BrokerError, match="after 0 s: Empty, 0 members"):
        broker.wait_for_group(group, timeout_s=0)
    broker.heal()
    consumer.close()


def test_offsets_of_a_group_expire_after_its_last_session(broker: Broker) -> None:
    broker.create_topic("read")
    send(broker, "read", b"1")
    consumer = consumer_of(broker, "readers", "read")
    consumer.commit(asynchronous=False)
    place = TopicPartition("read", 0)
    assert consumer.committed([place], timeout=WAIT_S)[0].offset == 1
    broker.cut()  # it cannot join again
    broker.advance(timedelta(days=7, minutes=5))
    broker.heal()
    assert consumer.committed([place], timeout=WAIT_S)[0].offset == OFFSET_INVALID
    consumer.close()


def test_a_transaction_that_stays_open_is_aborted(broker: Broker) -> None:
    broker.create_topic("bank", partitions=3)
    settings = {"transactional.id": "bank", "transaction.timeout.ms": 60_000}
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    for index in range(3):
        producer.produce("bank", b"lost", partition=index)
    assert producer.flush(WAIT_S) == 0
    send(broker, "bank", b"behind")
    assert broker.records("bank", committed=True) == []
    broker.advance(timedelta(seconds=61))
    assert [each.value for each in broker.records("bank", committed=True)] == [b"behind"]
    with pytest.raises(KafkaException) as raised:
        producer.commit_transaction(WAIT_S)
    assert raised.value.args[0].name() in {"_FENCED", "INVALID_PRODUCER_EPOCH"}


def test_connections_and_the_cluster_stay(broker: Broker) -> None:
    said = broker.log
    broker.create_topic("stays")
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "retries": 0})
    lost: list[KafkaError] = []
    for _ in range(2):
        producer.produce("stays", b"x", on_delivery=lambda error, _: lost.extend([error] if error else []))
        assert producer.flush(WAIT_S) == 0
        broker.advance(timedelta(days=365))
    assert lost == []
    assert broker.is_healthy
    assert broker.log == said


def test_a_node_that_starts_again_has_the_same_time() -> None:
    with Broker(tls=True) as broker:
        broker.create_topic("later", configs={"message.timestamp.type": "LogAppendTime"})
        broker.advance(timedelta(days=400))
        client = broker.client_settings()
        producer = Producer(client)
        producer.produce("later", b"before")
        assert producer.flush(WAIT_S) == 0
        broker.kill()
        with pytest.raises(BrokerError, match="does not run"):
            broker.advance(1)
        broker.start()
        producer.produce("later", b"after")
        assert producer.flush(WAIT_S) == 0
        before, after = broker.records("later")
        assert 0 <= after.timestamp_ms - before.timestamp_ms < timedelta(days=1) / timedelta(milliseconds=1)


@pytest.mark.parametrize("by", [-1, float("nan"), float("inf"), timedelta(days=-1), timedelta(days=36_501)])
def test_a_time_that_cannot_be_is_refused(broker: Broker, by: timedelta | float) -> None:
    with pytest.raises(BrokerError, match="advance: expected a time that is not negative, and 100 years at most"):
        broker.advance(by)


def test_a_paused_broker_does_not_travel(broker: Broker) -> None:
    broker.pause(1)
    with pytest.raises(BrokerError, match="paused"):
        broker.advance(1)
    broker.resume(1)
