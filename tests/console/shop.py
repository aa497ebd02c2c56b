"""Data of a small shop on a node: something for each page of the console to show."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.node import NodeProcess

ORDERS = 300
COMMITTED = 50
"""Offset that the slow group has committed in each partition of `orders`."""
PARTITIONS = 3
STORAGE = {"storage_upload_age_ms": 3_600_000, "storage_split_bytes": 64 << 10}
"""Nothing is uploaded while the node runs. What its stop uploads of `orders` is long enough for objects of its own."""


@dataclass(frozen=True)
class Shop:
    """A node with data: topics `orders` and `customers`, the groups `billing`, which lags, and `shipping`."""

    node: NodeProcess
    producer: Producer

    @property
    def admin(self) -> str:
        """Address of the admin port."""
        return self.node.admin


@contextmanager
def running_shop(folder: Path) -> Iterator[Shop]:
    """Run a node with data; part of it is in objects, part in the log, and a transaction is open."""
    with NodeProcess(folder, topic_num_partitions=1, **STORAGE) as node:
        # After a restart, a page has to find the node where it was.
        node.settings["admin_port"] = int(node.admin.rpartition(":")[2])
        clients = {"bootstrap.servers": node.bootstrap}
        topics = [NewTopic("orders", PARTITIONS, 1), NewTopic("customers", 1, 1, config={"cleanup.policy": "compact"})]
        admin = AdminClient({**clients})
        for created in admin.create_topics(topics).values():
            created.result(60)
        first = Producer(clients)
        for number in range(ORDERS // 2):
            send_order(first, number)
        assert first.flush(60) == 0
        del first, admin
        assert node.terminate() == 0  # which uploads what is in the log
        node.start()
        producer = Producer({**clients, "enable.idempotence": True})
        for number in range(ORDERS // 2, ORDERS):
            send_order(producer, number)
        producer.produce("customers", b'{"name": "Ada"}', key=b"c1")
        assert producer.flush(60) == 0
        _commit(clients, "billing", COMMITTED)
        _commit(clients, "shipping", ORDERS // PARTITIONS)
        transactional = Producer({**clients, "transactional.id": "ledger-1", "transaction.timeout.ms": 600_000})
        transactional.init_transactions(60)
        transactional.begin_transaction()
        transactional.produce("customers", b"{}", key=b"c2")
        transactional.flush(60)
        yield Shop(node, producer)
        transactional.abort_transaction(60)


def send_order(producer: Producer, number: int) -> None:
    """Send one order to the partition that follows from its number."""
    value = json.dumps({"order": number, "items": [{"sku": f"tea-{number % 7}", "quantity": 2}], "note": "-" * 2000})
    headers: list[tuple[str, str | bytes | None]] = [("trace", f"t{number:04}")]
    producer.produce(
        "orders", value.encode(), key=f"c{number}".encode(), partition=number % PARTITIONS, headers=headers
    )


def _commit(clients: dict[str, str], group: str, offset: int) -> None:
    consumer = Consumer({**clients, "group.id": group})
    consumer.commit(
        offsets=[TopicPartition("orders", index, offset) for index in range(PARTITIONS)], asynchronous=False
    )
    consumer.close()
