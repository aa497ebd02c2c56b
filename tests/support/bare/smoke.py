"""A test as a user may write it, with a client in Python alone: it runs wherever the base is installed.

pytest -c /dev/null --noconftest tests/support/bare/smoke.py
"""

import pytest
from kafka import KafkaConsumer, KafkaProducer

from anabranch.extras import is_installed
from anabranch.testing import Broker, BrokerError

TIMEOUT_S = 60


def send(broker: Broker, topic: str, value: bytes) -> None:
    """Send a record, and wait until it is acknowledged."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    producer.send(topic, value).get(TIMEOUT_S)
    producer.close()


def test_records_survive_a_crash(anabranch_broker: Broker, anabranch_topic: str) -> None:
    send(anabranch_broker, anabranch_topic, b"before")
    anabranch_broker.kill()
    anabranch_broker.start()
    send(anabranch_broker, anabranch_topic, b"after")
    consumer = KafkaConsumer(
        anabranch_topic,
        bootstrap_servers=anabranch_broker.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    values = [next(consumer).value for _ in range(2)]
    consumer.close()
    assert values == [b"before", b"after"]
    assert anabranch_broker.log == ""


@pytest.mark.skipif(is_installed("console"), reason="there is an admin port")
def test_what_is_missing_is_named(anabranch_broker: Broker) -> None:
    with pytest.raises(BrokerError, match=r"no admin port: pip install 'anabranch\[console\]'"):
        _ = anabranch_broker.admin_url
