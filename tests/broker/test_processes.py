"""`anabranch serve --processes N`, with real processes and clients: nothing that was acknowledged is lost."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.node import NodeProcess
from tests.support.several_processes import SeveralProcesses
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
PARTITIONS = 8


def create(node: NodeProcess, topic: str) -> Counter[int]:
    """Create a topic through the address that all processes have; return how many partitions each node leads."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result()
    return leaders(node, topic)


def leaders(node: NodeProcess, topic: str) -> Counter[int]:
    """Return how many partitions of a topic each node leads."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    return Counter(each.leader for each in admin.list_topics(topic, timeout=30).topics[topic].partitions.values())


class Load:
    """Numbered records from librdkafka's idempotent producer to all partitions."""

    def __init__(self, node: NodeProcess, topic: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": node.bootstrap,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 200,
            }
        )
        self._topic = topic
        self._sent = 0
        self.acked: set[int] = set()
        self.failed: list[str] = []

    def send(self, count: int) -> None:
        """Send records."""
        for number in range(self._sent, self._sent + count):
            self._producer.produce(
                self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._noted(number)
            )
        self._sent += count
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged."""
        assert self._producer.flush(60) == 0
        assert self.failed == []
        assert len(self.acked) == self._sent

    def _noted(self, number: int) -> Callable[[KafkaError | None, Message], None]:
        def noted(error: KafkaError | None, _: Message) -> None:
            if error is None:
                self.acked.add(number)
            else:
                self.failed.append(str(error))

        return noted

    def send_until(self, done: Callable[[], bool], what: str) -> None:
        """Send while something happens."""

        def sent_and_done() -> bool:
            self.send(PARTITIONS)
            return done()

        wait_until(sent_and_done, what)


async def read(node: NodeProcess, topic: str) -> Sequence[int]:
    """Return the numbers of all records, read with aiokafka."""
    consumer = AIOKafkaConsumer(bootstrap_servers=node.bootstrap)
    await consumer.start()
    try:
        places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
        consumer.assign(places)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(places)
        found: list[int] = []
        async with asyncio.timeout(60):
            while any([await consumer.position(place) < ends[place] for place in places]):
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += [int(each.value) for each in records]
        return found
    finally:
        await consumer.stop()


def check(node: NodeProcess, topic: str, load: Load) -> None:
    """Check that each acknowledged record is there once."""
    found = asyncio.run(read(node, topic))
    assert Counter(found) == Counter(load.acked)


async def produce(node: NodeProcess, topic: str, count: int) -> None:
    """Send records with aiokafka."""
    producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        waiting = [
            await producer.send(topic, str(number).encode(), partition=number % PARTITIONS) for number in range(count)
        ]
        await asyncio.gather(*waiting)
    finally:
        await producer.stop()


def test_two_processes_are_two_brokers_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    with SeveralProcesses(tmp_path, processes=2) as node:
        assert create(node, "events") == {1: 4, 2: 4}
        load = Load(node, "events")
        load.send(1000)
        load.flush()
        page = node.ask("/metrics").decode()
        assert 'anabranch_node_epoch{node="1"} 1.0' in page
        assert 'anabranch_node_epoch{node="2"} 1.0' in page
        node.kill_node(2)
        load.send_until(lambda: leaders(node, "events") == {1: 8}, "the other node leads all partitions")
        load.flush()
        load.send_until(lambda: len(node.events("serving")) == 3, "the killed one serves again")
        load.flush()
        assert "node 2 was killed by SIGKILL" in "".join(node.lines)
        assert create(node, "others") == {1: 4, 2: 4}
        asyncio.run(produce(node, "others", 100))
        assert sorted(asyncio.run(read(node, "others"))) == list(range(100))
        assert node.terminate() == 0
        assert [each["wal_used_bytes"] for each in node.events("stopped")] == [0, 0]
        assert node.events("partitions were moved before the stop") == [], "none are moved if all stop"
        node.start()
        assert leaders(node, "events") == {1: 8}, "each node leads what it led before"
        assert leaders(node, "others") == {1: 4, 2: 4}, "each node leads what it led before"
        node.kill_node(2, signal.SIGTERM)  # a stop of one node, whose partitions move
        load.send_until(lambda: node.events("stopped")[2:] != [], "one has stopped")
        load.flush()
        assert node.events("partitions were moved before the stop")[0]["left"] == 0
        check(node, "events", load)
        assert node.terminate() == 0


def test_four_processes_end_with_their_parent_and_two_take_over_what_they_left(tmp_path: Path) -> None:
    """The store takes nothing when they stop, so the logs of all four keep records."""
    objects = tmp_path / "data" / "objects"
    with SeveralProcesses(tmp_path, processes=4, stop_upload_timeout_ms=100) as node:
        assert create(node, "events") == {1: 2, 2: 2, 3: 2, 4: 2}
        load = Load(node, "events")
        load.send(1000)
        load.flush()
        objects.rename(tmp_path / "aside")
        objects.write_text("in the way")
        node.kill9()
        assert len(node.events("stopping: all processes stop")) == 4
        assert all(each["wal_used_bytes"] > 0 for each in node.events("stopped"))
        objects.unlink()
        (tmp_path / "aside").rename(objects)
        node.settings["processes"] = 2
        node.start()
        wait_until(lambda: set(leaders(node, "events")) <= {1, 2}, "two nodes lead all partitions")
        check(node, "events", load)
        assert node.terminate() == 0
        node.settings["processes"] = 3
        node.start()
        check(node, "events", load)
        assert create(node, "more")[3] > 0
        assert node.terminate() == 0


def test_a_folder_is_started_with_one_process_and_with_several(tmp_path: Path) -> None:
    """The catalog and the logs are the same ones, and the clients' address stays."""
    with NodeProcess(tmp_path) as single:
        create(single, "events")
        load = Load(single, "events")
        load.send(100)
        load.flush()
        single.kill9()
        port = single.port
    with SeveralProcesses(tmp_path, processes=2, port=port) as node:
        check(node, "events", load)
        create(node, "others")
        others = Load(node, "others")
        others.send(100)
        others.flush()
        _assert_refused(tmp_path, processes=2)
        _assert_refused(tmp_path)
        node.kill9()
    with NodeProcess(tmp_path, port=port) as single:
        wait_until(lambda: leaders(single, "others") == {1: 8}, "it leads all partitions")
        check(single, "events", load)
        check(single, "others", others)
        assert single.terminate() == 0


def _assert_refused(folder: Path, **wanted: object) -> None:
    """Assert that nobody else can start in the folder of a node that runs."""
    said = NodeProcess(folder, **wanted).refusal()
    assert f"data directory {folder / 'data'}: in use by another process (pid " in said


def test_a_start_that_fails_ends_with_one_line(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "other", admin_enabled=False) as other:
        node = SeveralProcesses(tmp_path / "node", processes=2, port=other.port - 2, admin_enabled=False)
        node.spawn()
        assert node.wait() == 1
    said = [line for line in node.lines if not line.startswith("{")]
    assert len(said) == 1
    assert f"cannot listen on 127.0.0.1:{other.port}: Address already in use" in said[0]
    assert "before all nodes served: stopping" in "".join(node.lines)
