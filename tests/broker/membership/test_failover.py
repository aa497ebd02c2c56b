"""A node dies: another one recovers its log and leads its partitions. Real processes on one machine."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer

RECORDS = 500


def _cluster(folder: Path, catalog_url: str, count: int, **wanted: object) -> list[NodeProcess]:
    shared = {"catalog_url": catalog_url, "objects_path": folder / "objects", **wanted}
    return [NodeProcess(folder / str(node_id), node_id=node_id, **shared) for node_id in range(1, count + 1)]


def _produce(bootstrap: str, values: range) -> list[str]:
    """Send values, and return those that were acked."""
    acked: list[str] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for value in values:
        producer.produce("t", str(value), partition=0, on_delivery=lambda e, m: e or acked.append(m.value().decode()))
    assert not producer.flush(60)
    return acked


def _read(bootstrap: str, count: int) -> list[str]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[str] = []
    while len(found) < count:
        message = consumer.poll(60)
        assert message is not None, "nothing came within 60 s"
        assert message.error() is None, message.error()
        found.append(message.value().decode())
    consumer.close()
    return found


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_acked_records_of_a_killed_node_are_served_by_another_one(
    tmp_path: Path, postgres: PostgresServer, kind: str
) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db" if kind == "sqlite" else postgres.new_database()
    first, second = _cluster(tmp_path, url, 2)
    with first, second:
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        admin.create_topics([NewTopic("t", 1)])["t"].result()
        acked = _produce(first.bootstrap, range(RECORDS))
        assert len(acked) == RECORDS
        first.kill9()
        acked += _produce(second.bootstrap, range(RECORDS, 2 * RECORDS))
        assert _read(second.bootstrap, 2 * RECORDS) == acked == [str(value) for value in range(2 * RECORDS)]
        first.start()
        assert _read(first.bootstrap, 2 * RECORDS) == acked, "it came back, and leads nothing"
