"""Clients with a `client.rack`: they read history from the replica in their rack, and the rest from the leader."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from threading import get_ident

import pytest
from confluent_kafka import Consumer, Producer

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.move_requests import Place
from anabranch.s3stream.catalog.values import MoveReason
from tests.broker.api.handlers.test_many_nodes import all_serve, assigned, create
from tests.interop.test_java import run
from tests.support.kafka_tools import CONSUMER
from tests.support.node import running_nodes
from tests.support.tools import rack_client
from tests.support.waiting import until

pytestmark = pytest.mark.interop

RACK = "a"
HISTORY, TAIL = 2_000, 100
VALUE = b"x" * 500
WAIT_S = 60


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Two nodes in one rack. The second leads `t-0`, which has records in objects only, then some in its log."""
    async with running_nodes(tmp_path, 2, rack=RACK) as running:
        assert await create(running[0], assigned("t", [1, 2])) == [(0, None)]
        await all_serve(running, "t")
        await asyncio.to_thread(produce, running[0].bootstrap, HISTORY)
        await running[0].serving.storage.flush()
        await running[0].serving.move_requests.request({Place("t", 0): 2}, MoveReason.GATHERING)
        await until(lambda: not running[0].serving.move_requests.led_by(1), timeout_s=WAIT_S, pause_s=0.01)
        await all_serve(running, "t")
        await asyncio.to_thread(produce, running[1].bootstrap, TAIL)
        yield running


def produce(servers: str, count: int) -> None:
    """Produce records whose keys are numbers, in batches that are small, so that there are many fetches."""
    producer = Producer({"bootstrap.servers": servers, "batch.num.messages": 50, "linger.ms": 5})
    for number in range(count):
        producer.produce("t", VALUE, key=str(number), partition=0)
    assert producer.flush(WAIT_S) == 0


def librdkafka(servers: str) -> list[str]:
    """Keys that librdkafka's consumer reads from the beginning."""
    options = {"auto.offset.reset": "earliest", "client.rack": RACK, "fetch.message.max.bytes": 50_000}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"group-{get_ident()}", **options})
    consumer.subscribe(["t"])
    keys: list[str] = []
    while len(keys) < HISTORY + TAIL:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{len(keys)} records were read"
        assert message.error() is None
        keys.append((message.key() or b"").decode())
    consumer.close()
    return keys


def java(servers: str) -> list[str]:
    """Keys that Java's consumer reads from the beginning."""
    properties = {"client.rack": RACK, "max.partition.fetch.bytes": "50000"}
    given = [word for name, value in properties.items() for word in ("--command-property", f"{name}={value}")]
    printed = ("--formatter-property", "print.key=true", "--formatter-property", "print.value=false")
    limits = ("--from-beginning", "--max-messages", str(HISTORY + TAIL), "--timeout-ms", "30000")
    return run(servers, CONSUMER, "--topic", "t", *limits, *given, *printed).split()


def go(client: str, servers: str) -> list[str]:
    """Keys that a consumer in Go reads from the beginning."""
    command = [str(rack_client()), client, servers, "t", RACK, str(HISTORY + TAIL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


CLIENTS = [librdkafka, java, partial(go, "franz-go"), partial(go, "sarama")]


@pytest.mark.parametrize("client", CLIENTS, ids=["librdkafka", "java", "franz-go", "sarama"])
async def test_history_is_read_from_the_replica_and_the_tail_from_the_leader(
    nodes: list[Node], client: Callable[[str], list[str]]
) -> None:
    replica, leader = nodes
    before = leader.serving.fetched_bytes
    keys = await asyncio.to_thread(client, leader.bootstrap)
    assert keys == [str(number) for count in (HISTORY, TAIL) for number in range(count)]
    assert replica.serving.replicas.object_bytes == replica.serving.fetched_bytes >= HISTORY * len(VALUE)
    assert leader.serving.fetched_bytes - before < 2 * TAIL * len(VALUE), "it has sent the tail"


@pytest.fixture
async def racks(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Two nodes, the first in the clients' rack. The second leads `t-0`, which has some records in its log."""
    async with running_nodes(tmp_path, 2, rack=(RACK, "b")) as running:
        assert await create(running[0], assigned("t", [2, 1])) == [(0, None)]
        await all_serve(running, "t")
        await asyncio.to_thread(produce, running[1].bootstrap, TAIL)
        yield running


@pytest.mark.parametrize(("client", "readers"), [(librdkafka, 3), (java, 1)])
async def test_new_records_are_read_from_the_replica_which_gets_them_once(
    racks: list[Node], client: Callable[[str], list[str]], readers: int
) -> None:
    replica, leader = racks
    tails, followers = replica.serving.replicas.tails, leader.serving.replicas.followers
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(asyncio.to_thread(client, leader.bootstrap)) for _ in range(readers)]
        await until(lambda: len(tails) == 1, timeout_s=WAIT_S, pause_s=0.01)
        await until(
            lambda: sum(node.serving.fetched_bytes for node in racks) >= readers * TAIL * len(VALUE),
            timeout_s=WAIT_S,
            pause_s=0.01,
        )
        before = leader.serving.fetched_bytes
        await asyncio.to_thread(produce, leader.bootstrap, HISTORY)
    for each in reading:
        assert each.result() == [str(number) for count in (TAIL, HISTORY) for number in range(count)]
    new_bytes = HISTORY * len(VALUE)
    assert replica.serving.fetched_bytes > 0.9 * readers * new_bytes
    assert leader.serving.fetched_bytes - before < 0.1 * readers * new_bytes
    assert new_bytes < tails.received_bytes == followers.sent_bytes < 1.3 * (new_bytes + TAIL * len(VALUE))


async def test_readers_of_a_replica_that_is_taken_away_go_back_to_the_leader(racks: list[Node]) -> None:
    replica, leader = racks
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(asyncio.to_thread(go, "franz-go", leader.bootstrap))
        await until(lambda: len(replica.serving.replicas.tails) == 1, timeout_s=WAIT_S, pause_s=0.01)
        await asyncio.to_thread(produce, leader.bootstrap, HISTORY // 2)
        await until(lambda: replica.serving.fetched_bytes > 0, timeout_s=WAIT_S, pause_s=0.01)
        place = Place("t", 0)
        await leader.serving.move_requests.request({place: 2}, MoveReason.REASSIGNMENT, {place: (2,)})
        await replica.serving.membership.catch_up()
        await asyncio.to_thread(produce, leader.bootstrap, HISTORY // 2)
    assert len(reading.result()) == HISTORY + TAIL
