"""Real consumers migrate to the new group protocol one by one, and back, while their group works."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from tests.interop.test_confluent import QUIET, TIMEOUT_S, poll_until
from tests.interop.test_java import cells, command, run
from tests.support.events import Event, create_topic, send
from tests.support.kafka_tools import CONSUMER, GROUPS
from tests.support.node import NodeProcess

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

PARTITIONS = 4


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node whose members hear of changes soon; some tests kill it."""
    with NodeProcess(tmp_path_factory.mktemp("node"), group_consumer_heartbeat_interval_ms=100) as node:
        yield node


@contextmanager
def member(node: NodeProcess, group: str, protocol: str, **settings: object) -> Iterator[Consumer]:
    classic: dict[str, object] = {"heartbeat.interval.ms": 100, "session.timeout.ms": 30_000}
    client = Consumer({
        "bootstrap.servers": node.bootstrap,
        "group.id": group,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 200,
        **QUIET,
        **(classic if protocol == "classic" else {}),
        **settings,
    })  # fmt: skip
    client.subscribe([group])
    try:
        yield client
    finally:
        client.close()


def owned(client: Consumer) -> list[int]:
    return sorted(partition.partition for partition in client.assignment())


def settle(*clients: Consumer) -> None:
    """Poll until the clients share all partitions evenly."""
    share = PARTITIONS // len(clients)
    poll_until(lambda: all(len(owned(client)) == share for client in clients), *clients)
    assert sorted(number for client in clients for number in owned(client)) == list(range(PARTITIONS))


def kind_of(node: NodeProcess, group: str) -> str:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
    return str(admin.describe_consumer_groups([group])[group].result(TIMEOUT_S).type.name)


def read(node: NodeProcess, group: str, batch: int, *clients: Consumer) -> None:
    """Send records and check that each is read once, with its offset committed by its reader."""
    wanted = {b"%d-%d" % (batch, n) for n in range(20)}
    send(node.bootstrap, group, [Event(n % PARTITIONS, value) for n, value in enumerate(sorted(wanted))])
    found: list[bytes | None] = []
    for _ in range(TIMEOUT_S * 20):
        for client in clients:
            message = client.poll(0.05)
            if message is not None:
                assert message.error() is None
                found.append(message.value())
                client.commit(message=message, asynchronous=False)
        if len(found) >= len(wanted):
            break
    assert sorted(value or b"" for value in found) == sorted(wanted)


# librdkafka's sticky assignor at times puts its own data into assignments; such groups are refused, as by Apache Kafka.
@pytest.mark.parametrize("strategy", ["range", "roundrobin"])
def test_a_rolling_upgrade_and_a_rolling_downgrade(node: NodeProcess, strategy: str) -> None:
    group = f"rolling-{strategy}"
    create_topic(node.bootstrap, group, PARTITIONS)
    settings: dict[str, object] = {"partition.assignment.strategy": strategy}
    with member(node, group, "classic", **settings) as first:
        with member(node, group, "classic", **settings) as second:
            settle(first, second)
            read(node, group, 0, first, second)
            assert kind_of(node, group) == "CLASSIC"
        with member(node, group, "consumer") as new:
            settle(first, new)
            read(node, group, 1, first, new)
            assert kind_of(node, group) == "CONSUMER"
            node.kill9()
            node.start()
            read(node, group, 2, first, new)
            settle(first, new)
        settle(first)
        read(node, group, 3, first)
        assert kind_of(node, group) == "CLASSIC"


def test_the_last_classic_member_goes(node: NodeProcess) -> None:
    group = "upgraded"
    create_topic(node.bootstrap, group, PARTITIONS)
    with member(node, group, "consumer") as new:
        # If the classic member comes first, the other one converts the group under its JoinGroup. It is then told to
        # join again, as by Apache Kafka, and librdkafka reports that as an error.
        settle(new)
        with member(node, group, "classic") as classic:
            settle(classic, new)
        settle(new)
        read(node, group, 0, new)
        assert kind_of(node, group) == "CONSUMER"


def test_javas_consumers_of_both_protocols_in_one_group(node: NodeProcess) -> None:
    group = "java"
    create_topic(node.bootstrap, group, PARTITIONS)
    with member(node, group, "classic") as classic:
        settle(classic)
        java = command(
            node.bootstrap,
            CONSUMER,
            ["--topic", group, "--group", group, "--command-property", "group.protocol=consumer"],
        )
        process = subprocess.Popen(java, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            poll_until(lambda: len(owned(classic)) == PARTITIONS // 2, classic)
            described = cells(run(node.bootstrap, GROUPS, "--describe", "--members", "--group", group))
            assert len([row for row in described if row[0] == group]) == 2
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
        settle(classic)
        assert kind_of(node, group) == "CLASSIC"
