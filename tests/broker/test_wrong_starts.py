"""Starts that an operator gets wrong: none of them may lose, or mix up, what was acknowledged. Real processes."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer, postgres_server

pytestmark = pytest.mark.timeout(240)

TOPIC = "events"
RECORDS = 5_000
LONG_LEASE_MS = 600_000
"""Nobody waits for the end of it in a test."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """Two empty databases."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/right.db", f"sqlite:///{tmp_path}/wrong.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database(), server.new_database()


def produce(bootstrap: str, name: str, count: int = RECORDS) -> None:
    """Produce records that say whose they are; all are acknowledged when this returns."""
    acked: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        offset = message.offset()
        if error is not None or offset is None:
            errors.append(error or KafkaError(KafkaError._FAIL))
        else:
            acked.append(offset)

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 2, "log_level": 0})
    for number in range(count):
        producer.produce(TOPIC, f"{name} {number}".encode(), partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not errors
    assert len(acked) == count


def consume(bootstrap: str) -> list[str]:
    """Every record of the partition, in the order of offsets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    where = TopicPartition(TOPIC, 0, 0)
    found: list[str] = []
    try:
        _, end = consumer.get_watermark_offsets(where, timeout=20)
        consumer.assign([where])
        while len(found) < end:
            messages = consumer.consume(1_000, timeout=20)
            assert messages, f"the partition ends after {len(found)} of {end} records"
            for message in messages:
                value = message.value()
                assert isinstance(value, bytes)
                assert message.offset() == len(found)
                found.append(value.decode())
    finally:
        consumer.close()
    return found


def expected(name: str, count: int = RECORDS) -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def refusal(node: NodeProcess) -> str:
    """The one line with which a node refuses to start."""
    try:
        node.start()
    except RuntimeError:
        said = [line for line in node.lines if not line.startswith("{")]
        assert len(said) == 1, node.lines
        return said[0]
    node.kill9()
    pytest.fail("the node serves")


def is_untouched(url: str) -> bool:
    """Whether there is nothing in a database, not even a file of it."""
    if url.startswith("sqlite"):
        return not Path(url.removeprefix("sqlite:///")).exists()
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'")
        return row.fetchone() == (0,)


# the wrong catalog


def test_an_empty_catalog_beside_a_log_is_refused_and_nothing_is_lost(tmp_path: Path, urls: tuple[str, str]) -> None:
    right, wrong = urls
    with NodeProcess(tmp_path, catalog_url=right) as node:
        produce(node.bootstrap, "first")
        node.kill9()
        line = refusal(NodeProcess(tmp_path, catalog_url=wrong))
        assert str(tmp_path / "data" / "wal") in line
        assert "catalog.url" in line
        assert is_untouched(wrong)
        node.start()
        assert consume(node.bootstrap) == expected("first")
        assert node.terminate() == 0
        # Cleanly stopped, with all in objects: an empty catalog would hide them.
        refusal(NodeProcess(tmp_path, catalog_url=wrong))
        (tmp_path / "data" / "wal").unlink()
        assert "objects" in refusal(NodeProcess(tmp_path, catalog_url=wrong))
        assert is_untouched(wrong)
        node.start()
        assert consume(node.bootstrap) == expected("first")
        assert node.terminate() == 0


def test_the_catalog_of_another_system_is_refused_and_nothing_is_lost(tmp_path: Path, urls: tuple[str, str]) -> None:
    right, wrong = urls
    with NodeProcess(tmp_path / "other", catalog_url=wrong) as other:
        produce(other.bootstrap, "other", 10)
        assert other.terminate() == 0
    with NodeProcess(tmp_path, catalog_url=right) as node:
        produce(node.bootstrap, "first")
        node.kill9()
        line = refusal(NodeProcess(tmp_path, catalog_url=wrong))
        assert "catalog" in line
        node.start()
        assert consume(node.bootstrap) == expected("first")
        assert node.terminate() == 0
