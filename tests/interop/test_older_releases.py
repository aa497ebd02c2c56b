"""Clients that choose versions by ApiVersions, and a node that presents itself as an older release.

A request in a version that the release does not have closes its connection, which the log of the node says.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interop import test_aiokafka, test_confluent, test_kafka_python
from tests.interop.records import by_partition, sample
from tests.interop.test_java import cells, console_consumer, run
from tests.interop.test_transactions import TIMEOUT_S, transactional
from tests.support.events import committed_records
from tests.support.kafka_tools import GROUPS, PRODUCER
from tests.support.node import NodeProcess

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
]


@pytest.fixture(scope="module", params=["2.1", "3.6"])
def release(request: pytest.FixtureRequest) -> Any:
    """The oldest release that Java's clients of today accept, and one of the middle."""
    return request.param


@pytest.fixture(scope="module")
def servers(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(tmp_path_factory.mktemp("node"), compatibility_kafka=release) as node:
        yield node.bootstrap
        assert node.terminate() == 0
        assert not node.events("connection closed")


def test_kafka_python_takes_it_for_the_release(servers: str, topic: str, release: str) -> None:
    records = sample(30)
    test_kafka_python.produce(servers, topic, records)
    with test_kafka_python.consumer(servers, f"{topic}-group", topic) as client:
        assert client.config["api_version"] == tuple(map(int, release.split(".")))
        assert by_partition(test_kafka_python.consume(client, len(records))) == by_partition(records)
        client.commit()


async def test_aiokafka_takes_older_versions(servers: str, topic: str) -> None:
    records = sample(30)
    await test_aiokafka.produce(servers, topic, records, enable_idempotence=True)
    async with test_aiokafka.consumer(servers, f"{topic}-group", topic) as client:
        assert by_partition(await test_aiokafka.consume(client, len(records))) == by_partition(records)
        await client.commit()


def test_librdkafka_takes_older_versions(servers: str, topic: str) -> None:
    records = sample(30)
    test_confluent.produce(servers, topic, records, **{"compression.type": "lz4"})
    with test_confluent.consumer(servers, f"{topic}-group") as client:
        client.subscribe([topic])
        assert by_partition(test_confluent.consume(client, len(records))) == by_partition(records)
        client.commit(asynchronous=False)


def test_transactions_of_librdkafka(servers: str, topic: str) -> None:
    producer = transactional(servers, topic)
    for value, end in ((b"kept", producer.commit_transaction), (b"gone", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
        end(TIMEOUT_S)
    assert committed_records(servers, topic) == [(0, None, b"kept")]


def test_java_takes_older_versions(servers: str, topic: str) -> None:
    lines = [f"line {number}" for number in range(30)]
    run(servers, PRODUCER, "--topic", topic, stdin="\n".join(lines))
    group = f"{topic}-group"
    assert sorted(console_consumer(servers, topic, group=group, count=len(lines))) == sorted(lines)
    rows = cells(run(servers, GROUPS, "--describe", "--group", group))
    assert sum(int(row[3]) for row in rows if row[0] == group) == len(lines)
