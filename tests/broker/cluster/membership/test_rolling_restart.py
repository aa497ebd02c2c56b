"""Nodes are stopped one after the other while clients go on. Real processes on one machine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.broker.cluster.membership.test_failover import bootstrap, cluster
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

PARTITIONS = 6
TIMEOUT_S = 60


class Load:
    """A producer that sends numbered records to all partitions until it is stopped, one at a time for each."""

    def __init__(self, *nodes: NodeProcess) -> None:
        self.sent = [0] * PARTITIONS
        self.errors: list[KafkaError] = []
        self._stopped = False
        self._producer = Producer(
            {"log_level": 0, "bootstrap.servers": bootstrap(*nodes), "enable.idempotence": True, "acks": "all"}
        )

    def run(self) -> None:
        while not self._stopped:
            for partition in range(PARTITIONS):
                value = str(self.sent[partition])
                self._producer.produce("t", value, partition=partition, on_delivery=self._note)
                self.sent[partition] += 1
            self._producer.flush(TIMEOUT_S)

    def _note(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.errors.append(error)

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stopped = True
            thread.join()


def read(nodes: list[NodeProcess], counts: list[int]) -> list[list[int]]:
    """All records of the topic by partition, in the order of their offsets."""
    consumer = Consumer({"log_level": 0, "bootstrap.servers": bootstrap(*nodes), "group.id": "reader"})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for _ in range(sum(counts)):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"nothing came within {TIMEOUT_S} s"
        assert message.error() is None, message.error()
        partition, value = message.partition(), message.value()
        assert partition is not None
        assert value is not None
        found[partition].append(int(value))
    consumer.close()
    return found


def said(node: NodeProcess, event: str) -> list[str]:
    return [line for line in node.lines if event in line]


def test_clients_notice_nothing_of_a_rolling_restart(tmp_path: Path) -> None:
    nodes = cluster(tmp_path, 3)
    with nodes[0], nodes[1], nodes[2]:
        admins = [AdminClient({"bootstrap.servers": node.bootstrap}) for node in nodes]
        wait_until(
            lambda: all(len(admin.list_topics().brokers) == 3 for admin in admins), "every node knows the others"
        )
        admins[0].create_topics([NewTopic("t", PARTITIONS)])["t"].result()
        load = Load(*nodes)
        with load.running():
            for node in nodes:
                assert node.terminate() == 0
                (line,) = said(node, "partitions were moved before the stop")
                assert '"left": 0' in line
                node.start()
        assert load.errors == []
        assert min(load.sent) > 0
        assert read(nodes, load.sent) == [list(range(count)) for count in load.sent]
        for node in nodes[:2]:
            assert node.terminate() == 0
        (line,) = said(nodes[1], "partitions were moved before the stop")[1:]
        assert '"left": 0' in line
        wait_until(lambda: len(admins[2].list_topics().brokers) == 1, "the last node knows that it is alone")
        assert nodes[2].terminate() == 0
        assert len(said(nodes[2], "partitions were moved before the stop")) == 1, "alone it has nobody to move to"
