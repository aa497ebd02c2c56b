"""A node dies: another one recovers its log and leads its partitions. Real processes on one machine."""

import os
import shutil
import signal
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

RECORDS = 500
TIMEOUT_S = 60


def cluster(folder: Path, count: int, catalog_url: str = "", **wanted: object) -> list[NodeProcess]:
    """Nodes 1, 2, ... of one cluster, not started."""
    shared = {
        "catalog_url": catalog_url or f"sqlite:///{folder}/catalog.db",
        "objects_path": folder / "objects",
        "cluster_internal_port": 0,
        **wanted,
    }
    return [NodeProcess(folder / str(node_id), node_id=node_id, **shared) for node_id in range(1, count + 1)]


def bootstrap(*nodes: NodeProcess) -> str:
    return ",".join(node.bootstrap for node in nodes)


def create_topic(node: NodeProcess) -> None:
    """Create the topic `t`, whose only partition the node leads."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("t", 1)])["t"].result()


class Sender:
    """An idempotent producer that keeps what was acked, in the order of the acks."""

    def __init__(self, *nodes: NodeProcess) -> None:
        self.acked: list[str] = []
        self._producer = Producer(
            {
                "log_level": 0,
                "bootstrap.servers": bootstrap(*nodes),
                "enable.idempotence": True,
                "linger.ms": 5,
                "acks": "all",
            }
        )

    def send(self, values: range) -> None:
        """Hand over values without waiting for acks."""
        for value in values:
            self._producer.produce("t", str(value), partition=0, on_delivery=self._note)

    def _note(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value = message.value()
        assert value is not None
        self.acked.append(value.decode())

    def flush(self) -> None:
        """Wait until everything is acked."""
        assert not self._producer.flush(TIMEOUT_S)


def read(node: NodeProcess, count: int, **wanted: Any) -> Sequence[str]:
    """Read the topic from its beginning."""
    consumer = Consumer({"log_level": 0, "bootstrap.servers": node.bootstrap, "group.id": "reader", **wanted})
    consumer.assign([TopicPartition("t", 0, 0)])
    found = [_value(consumer.poll(TIMEOUT_S)) for _ in range(count)]
    consumer.close()
    return found


def _value(message: Message | None) -> str:
    assert message is not None, f"nothing came within {TIMEOUT_S} s"
    assert message.error() is None, message.error()
    value = message.value()
    assert value is not None
    return value.decode()


def wait_until_said(node: NodeProcess, event: str) -> None:
    wait_until(lambda: any(event in line for line in node.lines), f"node {node.settings['node_id']} says: {event}")


def numbers(count: int) -> list[str]:
    return [str(value) for value in range(count)]


def test_clients_of_any_node_are_told_of_a_new_one_when_it_serves(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2)
    with first, second:
        listed = AdminClient({"bootstrap.servers": first.bootstrap}).list_topics(timeout=TIMEOUT_S).brokers
        assert sorted(listed) == [1, 2], "one that knows the first only has nobody left to ask when it dies"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_producer_goes_on_when_its_node_is_killed_and_nothing_is_lost(
    tmp_path: Path, postgres: PostgresServer, kind: str
) -> None:
    first, second = cluster(tmp_path, 2, postgres.new_database() if kind == "postgresql" else "")
    with first, second:
        create_topic(first)
        sender = Sender(first, second)
        sender.send(range(RECORDS))
        sender.flush()
        sender.send(range(RECORDS, 2 * RECORDS))  # some of them are under way
        first.kill9()
        sender.send(range(2 * RECORDS, 3 * RECORDS))
        sender.flush()
        assert sender.acked == numbers(3 * RECORDS)
        assert read(second, 3 * RECORDS) == sender.acked
        first.start()
        assert read(first, 3 * RECORDS) == sender.acked, "it leads nothing, and knows who does"


def test_groups_and_transactions_go_on_at_another_node(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2)
    with first, second:
        create_topic(first)
        transactional = {"log_level": 0, "bootstrap.servers": bootstrap(first, second), "transactional.id": "x"}
        producer = Producer(transactional)
        producer.init_transactions(TIMEOUT_S)
        for number, ends in enumerate((producer.commit_transaction, producer.abort_transaction, None)):
            producer.begin_transaction()
            producer.produce("t", str(number), partition=0)
            producer.flush(TIMEOUT_S)
            if ends is not None:
                ends(TIMEOUT_S)
        group = {
            "log_level": 0,
            "bootstrap.servers": bootstrap(first, second),
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        consumer = Consumer(group)
        consumer.subscribe(["t"])
        assert _value(consumer.poll(TIMEOUT_S)) == "0"
        consumer.commit(asynchronous=False)
        first.kill9()

        successor = Producer(transactional)  # fences the one with the open transaction
        successor.init_transactions(TIMEOUT_S)
        successor.begin_transaction()
        successor.produce("t", "3", partition=0)
        successor.commit_transaction(TIMEOUT_S)
        assert _value(consumer.poll(TIMEOUT_S)) == "3", "the others were aborted"
        assert read(second, 2, **{"isolation.level": "read_committed"}) == ["0", "3"]
        (committed,) = Consumer({**group, "group.id": "g"}).committed([TopicPartition("t", 0)], TIMEOUT_S)
        assert committed.offset == 1
        consumer.close()


def test_after_all_nodes_were_killed_any_one_serves_everything(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2)
    with first, second:
        create_topic(first)
        sender = Sender(first)
        sender.send(range(RECORDS))
        sender.flush()
        second.kill9()
        first.kill9()
        second.start()
        assert read(second, RECORDS) == sender.acked


def test_a_node_that_stops_cleanly_leaves_its_partitions_to_the_others(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2)
    with first, second:
        create_topic(first)
        sender = Sender(first, second)
        sender.send(range(RECORDS))
        sender.flush()
        assert first.terminate() == 0
        sender.send(range(RECORDS, 2 * RECORDS))
        sender.flush()
        assert read(second, 2 * RECORDS) == sender.acked == numbers(2 * RECORDS)
        assert not [line for line in second.lines if "is dead" in line]


def pause(node: NodeProcess, folder: Path) -> None:
    """SIGSTOP to a node outside of a transaction of SQLite: all others would wait for it, as nothing ends it."""
    while True:
        os.kill(node.pid, signal.SIGSTOP)
        wait_until(lambda: _states(node) == {"T"}, "all its threads are stopped")
        with closing(sqlite3.connect(folder / "catalog.db", timeout=1, isolation_level=None)) as catalog:
            try:
                catalog.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:  # by the node, or by another one, which takes no second
                os.kill(node.pid, signal.SIGCONT)
            else:
                catalog.execute("ROLLBACK")
                return


def _states(node: NodeProcess) -> set[str]:
    """States of its threads (proc(5)); T: stopped."""
    threads = Path(f"/proc/{node.pid}/task").glob("*/stat")
    return {thread.read_text().rpartition(")")[2].split()[0] for thread in threads}


def test_a_paused_node_keeps_its_log_while_its_process_is_there(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2)
    with first, second:
        create_topic(first)
        sender = Sender(first, second)
        sender.send(range(RECORDS))
        sender.flush()
        pause(first, tmp_path)
        wait_until_said(second, "a silent node is not taken over")
        os.kill(first.pid, signal.SIGCONT)
        sender.send(range(RECORDS, 2 * RECORDS))
        sender.flush()
        assert read(second, 2 * RECORDS) == sender.acked == numbers(2 * RECORDS)


def test_a_paused_node_is_fenced_when_others_can_open_its_device(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2, wal_takeover="shared")
    with first, second:
        create_topic(first)
        sender = Sender(first, second)
        sender.send(range(RECORDS))
        sender.flush()
        pause(first, tmp_path)
        sender.send(range(RECORDS, 2 * RECORDS))  # some of them lie in the paused node's sockets
        wait_until_said(second, "the log of a dead node is recovered")
        os.kill(first.pid, signal.SIGCONT)
        sender.flush()
        assert read(second, 2 * RECORDS) == sender.acked == numbers(2 * RECORDS)
        assert first.wait() != 0, "it refuses all writes, and ends"


def test_a_node_that_returns_at_once_shares_its_device_with_its_recoverer(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2, wal_takeover="shared")
    with first, second:
        create_topic(first)
        sender = Sender(first, second)
        sender.send(range(RECORDS))
        sender.flush()
        first.kill9()
        wait_until_said(second, "a node is dead: it is taken over")
        os.kill(second.pid, signal.SIGSTOP)  # before the recovery, in the middle of it, or after it
        first.spawn()
        os.kill(second.pid, signal.SIGCONT)
        first.wait_ready()
        wait_until_said(second, "the log of a dead node is recovered")
        sender.send(range(RECORDS, 2 * RECORDS))
        sender.flush()
        assert read(second, 2 * RECORDS) == sender.acked == numbers(2 * RECORDS)


def test_nothing_is_lost_with_a_machine_when_the_log_is_in_the_object_store(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2, wal_kind="object")
    with first, second:
        create_topic(first)
        sender = Sender(first, second)
        sender.send(range(RECORDS))
        sender.flush()
        sender.send(range(RECORDS, 2 * RECORDS))
        first.kill9()
        shutil.rmtree(first.data_dir)
        sender.flush()
        assert read(second, 2 * RECORDS) == sender.acked == numbers(2 * RECORDS)
        first.start()
        assert read(first, 2 * RECORDS) == sender.acked


def test_a_paused_node_whose_log_is_in_the_object_store_is_fenced(tmp_path: Path) -> None:
    first, second = cluster(tmp_path, 2, wal_kind="object")
    with first, second:
        create_topic(first)
        sender = Sender(first, second)
        sender.send(range(RECORDS))
        sender.flush()
        pause(first, tmp_path)
        sender.send(range(RECORDS, 2 * RECORDS))
        wait_until_said(second, "the log of a dead node is recovered")
        os.kill(first.pid, signal.SIGCONT)
        sender.flush()
        assert read(second, 2 * RECORDS) == sender.acked == numbers(2 * RECORDS)
        assert first.wait() != 0, "it refuses all writes, and ends"
