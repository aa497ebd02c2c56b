"""Transactions as clients see them: atomic, isolated, fenced, timed out; and exactly-once over kills of the node."""

import asyncio
import os
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.differential.conftest import has_compiler
from tests.interop.test_java import TIMEOUT_S as TOOL_TIMEOUT_S
from tests.interop.test_java import cells, run
from tests.support.events import create_topic
from tests.support.kafka_tools import TOOLS, kafka_tool
from tests.support.node import NodeProcess
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.interop

TIMEOUT_S = 30
PARTITIONS = 3
ROUNDS = 30
KILLS = 80 if os.environ.get("ANABRANCH_SOAK") else 8
QUIET: dict[str, Any] = {"log_level": 0}
SURVIVES: dict[str, Any] = {
    # librdkafka's default is to bootstrap again when no broker answers; that can lose the transaction coordinator.
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 500,
}


def transactional(servers: str, name: str, **settings: object) -> Producer:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 0, **QUIET, **settings})
    producer.init_transactions(TIMEOUT_S)
    return producer


def send(producer: Producer, topic: str, *values: bytes) -> None:
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=at % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def read(servers: str, topic: str, isolation: str, partitions: int = PARTITIONS) -> list[bytes]:
    """All values up to the last stable offset or the high watermark, partition by partition."""
    settings = {"bootstrap.servers": servers, "group.id": "unused", "isolation.level": isolation, **QUIET}
    consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
    values: list[bytes] = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while True:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                if message.error() is not None:
                    break  # the end of the partition
                values.append(value_of(message))
    finally:
        consumer.close()
    return values


def read_committed(servers: str, topic: str, count: int, partitions: int = PARTITIONS) -> list[bytes]:
    """All committed values when there are so many: the markers of a transaction follow the answer to its commit."""
    values: list[bytes] = []

    def is_there() -> bool:
        values[:] = read(servers, topic, "read_committed", partitions)
        return len(values) >= count

    wait_until(is_there, f"{count} values are committed")
    return values


def value_of(message: Message) -> bytes:
    value = message.value()
    assert value is not None
    return value


def test_committed_readers_see_whole_transactions_and_no_aborted_ones(servers: str, topic: str) -> None:
    producer = transactional(servers, f"{topic}-id")
    for name, commit in ((b"a", True), (b"b", False), (b"c", True), (b"d", False)):
        producer.begin_transaction()
        send(producer, topic, *(b"%s%d" % (name, n) for n in range(30)))
        (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)
    producer.begin_transaction()
    send(producer, topic, b"open")
    committed = read(servers, topic, "read_committed")
    assert Counter(value[:1] for value in committed) == {b"a": 30, b"c": 30}
    assert len(read(servers, topic, "read_uncommitted")) == 121
    producer.commit_transaction(TIMEOUT_S)
    assert b"open" in read_committed(servers, topic, 61)


def test_a_new_life_fences_the_old_one_and_aborts_what_it_left(servers: str, topic: str) -> None:
    zombie = transactional(servers, f"{topic}-id")
    zombie.begin_transaction()
    send(zombie, topic, b"zombie")
    successor = transactional(servers, f"{topic}-id")
    with pytest.raises(KafkaException, match="fenced"):
        zombie.commit_transaction(TIMEOUT_S)
    successor.begin_transaction()
    send(successor, topic, b"successor")
    successor.commit_transaction(TIMEOUT_S)
    assert read_committed(servers, topic, 1) == [b"successor"]


async def test_aiokafka_commits_aborts_and_is_fenced(servers: str, topic: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-id") as producer:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"kept", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"dropped", partition=0)
        await producer.abort_transaction()
        consumer = AIOKafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed", group_id=None)
        async with consumer:
            where = AioTopicPartition(topic, 0)
            consumer.assign([where])
            await consumer.seek_to_beginning(where)
            async with producer.transaction():
                await producer.send_and_wait(topic, b"kept too", partition=0)
            values = [(await consumer.getone()).value for _ in range(2)]
            assert values == [b"kept", b"kept too"]
        await producer.begin_transaction()
        await producer.send_and_wait(topic, b"late", partition=0)
        async with AIOKafkaProducer(bootstrap_servers=servers, transactional_id=f"{topic}-id"):
            with pytest.raises(ProducerFenced):
                await producer.commit_transaction()


def test_java_ends_one_transaction_after_the_other_without_a_pause(servers: str, topic: str) -> None:
    if not has_compiler():
        pytest.skip("no javac: the program must be compiled")
    program = str(Path(__file__).with_name("TransactionRounds.java"))
    command = [*kafka_tool(program), servers, topic, str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    committed = [b"committed %d" % number for number in range(ROUNDS)]
    assert sorted(read_committed(servers, topic, ROUNDS)) == sorted(committed)


def test_java_uses_version_2_and_its_tools_show_it(servers: str, topic: str) -> None:
    """With transaction.version 2 each transaction has a separate epoch."""
    single = f"{topic}-single"  # the producer chooses partitions, and only the last transaction's shows its epoch
    create_topic(servers, single, 1)
    producing = ["--topic", single, "--num-records", "1000", "--record-size", "100", "--throughput", "2000"]
    run(
        servers,
        f"{TOOLS}.ProducerPerformance",
        *producing,
        "--transactional-id",
        f"{topic}-id",
        "--transaction-duration-ms",
        "10",
    )
    assert len(read_committed(servers, single, 1000, partitions=1)) == 1000
    tool = f"{TOOLS}.TransactionsCommand"

    def states() -> dict[str, str]:
        return {row[0]: row[3] for row in cells(run(servers, tool, "list"))}

    wait_until(lambda: states()[f"{topic}-id"] == "CompleteCommit", "the last transaction is complete")
    (described,) = cells(run(servers, tool, "describe", "--transactional-id", f"{topic}-id"))
    epoch = int(described[3])
    assert epoch > 1, "half a second of transactions of 10 ms"
    producers = cells(run(servers, tool, "describe-producers", "--topic", single, "--partition", "0"))
    assert [int(row[1]) for row in producers] == [epoch]
    assert producers[0][5] == "None"


def test_a_hanging_transaction_is_aborted_after_its_timeout(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, topic_num_partitions=PARTITIONS, transaction_abort_interval_ms=50) as node:
        producer = transactional(node.bootstrap, "id", **{"transaction.timeout.ms": 1000})
        producer.begin_transaction()
        send(producer, "t", b"hanging")
        other = transactional(node.bootstrap, "other")
        other.begin_transaction()
        send(other, "t", b"behind")
        other.commit_transaction(TIMEOUT_S)
        settings = {"bootstrap.servers": node.bootstrap, "group.id": "g", "isolation.level": "read_committed", **QUIET}
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition("t", 0, 0)])
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert value_of(message) == b"behind", "readable once the transaction before it is aborted"
        finally:
            consumer.close()
        with pytest.raises(KafkaException):
            producer.commit_transaction(TIMEOUT_S)
        asyncio.run(until(lambda: bool(node.events("transaction timed out"))))


class Copier:
    """Consume, transform, produce: offsets and results in one transaction."""

    def __init__(self, servers: str, at: Callable[[str], None]) -> None:
        self._at = at
        self._consumer = Consumer({
            "bootstrap.servers": servers,
            "group.id": "copiers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **QUIET,
            **SURVIVES,
        })  # fmt: skip
        self._consumer.assign([TopicPartition("in", partition) for partition in range(PARTITIONS)])
        self._producer = transactional(servers, "copier", **SURVIVES)

    def step(self) -> int:
        """Copy one batch; returns how many records it had. Raises KafkaException when all must start afresh."""
        messages = [message for message in self._consumer.consume(50, 0.5) if message.error() is None]
        if not messages:
            return 0
        self._producer.begin_transaction()
        for message in messages:
            self._producer.produce("out", b"copy of " + value_of(message), partition=message.partition() or 0)
        self._at("produced")
        offsets = self._consumer.position(self._consumer.assignment())
        self._producer.send_offsets_to_transaction(
            [offset for offset in offsets if offset.offset >= 0],
            self._consumer.consumer_group_metadata(),
            TIMEOUT_S,
        )
        self._at("offsets sent")
        self._producer.commit_transaction(TIMEOUT_S)
        self._at("committed")
        return len(messages)

    def is_done(self) -> bool:
        """True if everything has been copied, according to the group's committed offsets."""
        committed = self._consumer.committed(self._consumer.assignment(), TIMEOUT_S)
        return all(place.offset == self._consumer.get_watermark_offsets(place, TIMEOUT_S)[1] for place in committed)

    def close(self) -> None:
        self._consumer.close()


@dataclass
class Killer:
    """Kills and restarts a node a few times, each time when the test reaches a randomly drawn place."""

    node: NodeProcess
    seeded: random.Random
    kills_left: int
    _next: str = "produced"
    _steps: int = 3
    _thread: threading.Thread | None = None

    def at(self, place: str) -> None:
        """Report that the test has reached a place; the test continues while the node goes down."""
        if place != self._next or not self.kills_left or (self._thread is not None and self._thread.is_alive()):
            return
        self._steps -= 1
        if self._steps > 0:
            return
        self.kills_left -= 1
        self._next, self._steps = (
            self.seeded.choice(["produced", "offsets sent", "committed"]),
            self.seeded.randrange(9),
        )
        self._thread = threading.Thread(target=self._restart)
        self._thread.start()

    def _restart(self) -> None:
        self.node.kill9()
        self.node.start()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.timeout(300 if KILLS < 10 else 3_000)
def test_exactly_once_over_kills_of_the_node(tmp_path: Path) -> None:
    """By librdkafka, whose transactions are of version 1; those of version 2 are in `test_streams_and_connect`."""
    total = 625 * KILLS
    with NodeProcess(tmp_path, topic_num_partitions=PARTITIONS, storage_upload_age_ms=200) as node:
        source = Producer({"bootstrap.servers": node.bootstrap, **QUIET})
        for n in range(total):
            source.produce("in", b"%d" % n, partition=n % PARTITIONS)
        assert source.flush(TIMEOUT_S) == 0
        killer = Killer(node, random.Random(20_26), kills_left=KILLS)
        copier = Copier(node.bootstrap, killer.at)
        over = False
        while not over:
            try:
                over = not copier.step() and copier.is_done()
            except KafkaException:
                copier.close()
                killer.join()
                copier = Copier(node.bootstrap, killer.at)
        copier.close()
        killer.join()
        assert not killer.kills_left, "every kill happened"
        copies = [int(value.removeprefix(b"copy of ")) for value in read(node.bootstrap, "out", "read_committed")]
        assert sorted(copies) == list(range(total)), "each record once"
