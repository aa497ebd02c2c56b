"""Killed again and again under load with acks=all: every acked record is there, once, in order, with its offset."""

import os
import random
from collections import defaultdict
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.node import NodeProcess

KILLS = 20 if os.environ.get("ANABRANCH_SOAK") else 8
PARTITIONS = 3
TOPIC = "events"
IN_FLIGHT_MAX = 2_000


class KilledProducer:
    """An idempotent producer that numbers its records per partition, and remembers the acks."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "batch.num.messages": 100,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self.sent = [0] * PARTITIONS
        self.acked: dict[int, dict[int, int]] = defaultdict(dict)
        """Value by offset, by partition."""
        self.acks = 0
        self.errors: list[str] = []

    def send_until(self, acks: int) -> None:
        """Keep records in flight until so many are acked in all."""
        while self.acks < acks:
            if sum(self.sent) - self.acks < IN_FLIGHT_MAX:
                for _ in range(50):
                    partition = sum(self.sent) % PARTITIONS
                    value = b"%d" % self.sent[partition]
                    self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
                    self.sent[partition] += 1
            self._producer.poll(0.005)
            assert not self.errors, self.errors[:3]

    def finish(self) -> None:
        """Wait for every record."""
        assert self._producer.flush(60) == 0
        assert not self.errors, self.errors[:3]

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self.acks += 1
        if error is not None:
            self.errors.append(str(error))
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.acked[partition][offset] = int(value)


def read_all(bootstrap: str) -> dict[int, list[tuple[int, int]]]:
    """Every record of every partition, (offset, value), in the order of receipt."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 0}
    )
    found: dict[int, list[tuple[int, int]]] = {}
    try:
        for partition in range(PARTITIONS):
            where = TopicPartition(TOPIC, partition, 0)
            start, end = consumer.get_watermark_offsets(where, timeout=20)
            assert start == 0
            consumer.assign([where])
            rows: list[tuple[int, int]] = []
            while len(rows) < end:
                messages = consumer.consume(min(1_000, end - len(rows)), timeout=20)
                assert messages, f"partition {partition} ends after {len(rows)} of {end} records"
                for message in messages:
                    offset, value = message.offset(), message.value()
                    assert message.error() is None
                    assert offset is not None
                    assert value is not None
                    rows.append((offset, int(value)))
            found[partition] = rows
    finally:
        consumer.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    seeded = random.Random(20_26)
    with NodeProcess(tmp_path, topic_num_partitions=PARTITIONS, storage_upload_age_ms=150) as node:
        load = KilledProducer(node.bootstrap)
        for _ in range(KILLS):
            load.send_until(load.acks + seeded.randrange(1, 4_000))
            node.kill9()
            node.start()
        load.send_until(load.acks + 1_000)
        load.finish()
        found = read_all(node.bootstrap)
        recovered = sum(start["recovered_records"] for start in node.events("serving"))
        assert recovered > 0, "some kills left records in the log alone"
    for partition in range(PARTITIONS):
        rows = found[partition]
        assert [offset for offset, _ in rows] == list(range(len(rows))), "offsets without gaps"
        assert [value for _, value in rows] == list(range(load.sent[partition])), "every record, once, in order"
        assert dict(rows) == load.acked[partition], "each at the offset of its ack"
