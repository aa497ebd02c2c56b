"""Groups of real clients while their node stops, is killed and restarts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ConfluentPartition

from tests.support.events import Event, create_topic, send
from tests.support.node import NodeProcess

pytestmark = pytest.mark.interop

TIMEOUT_S = 60
EVENTS = [Event(n % 3, b"%d" % n) for n in range(30)]


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_committed_offsets_survive(tmp_path: Path, *, killed: bool) -> None:
    with NodeProcess(tmp_path, group_session_timeout_min_ms=3_000) as node:
        create_topic(node.bootstrap, "t", 3)
        send(node.bootstrap, "t", EVENTS)
        settings: dict[str, object] = {
            "bootstrap.servers": node.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 3_000,
            "heartbeat.interval.ms": 500,
            "log_level": 3,
        }
        consumer = Consumer(settings)
        consumer.subscribe(["t"])
        for _ in range(10):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            consumer.commit(message=message, asynchronous=False)
        partitions = [ConfluentPartition("t", index) for index in range(3)]
        before = [part.offset for part in consumer.committed(partitions, TIMEOUT_S)]
        assert sum(max(offset, 0) for offset in before) == 10
        if killed:
            node.kill9()
        else:
            node.terminate()
        node.start()
        consumer.close()  # with or without a leave request: its session ends
        again = Consumer(settings)
        assert [part.offset for part in again.committed(partitions, TIMEOUT_S)] == before
        again.subscribe(["t"])
        found = []
        for _ in range(20):
            message = again.poll(TIMEOUT_S)
            assert message is not None
            found.append(message.value())
        assert len(set(found)) == 20
        again.close()


async def test_members_of_a_killed_node_go_on_in_their_generation(tmp_path: Path) -> None:
    """The coordinator is away for a moment; no member has to rebalance, and nothing is read twice or lost."""
    with NodeProcess(tmp_path) as node:
        create_topic(node.bootstrap, "t", 3)
        send(node.bootstrap, "t", EVENTS)
        settings: dict[str, Any] = {
            "bootstrap_servers": node.bootstrap,
            "group_id": "g",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": 30_000,
            "heartbeat_interval_ms": 200,
            "retry_backoff_ms": 50,
        }
        async with AIOKafkaConsumer("t", **settings) as consumer, asyncio.timeout(TIMEOUT_S):
            found = [(await consumer.getone()).value for _ in EVENTS]
            await consumer.commit()
            coordinator = consumer._coordinator  # noqa: SLF001 - aiokafka tells it in no other way
            member, generation = coordinator.member_id, coordinator.generation
            await asyncio.to_thread(node.kill9)
            await asyncio.to_thread(node.start)
            async with AIOKafkaProducer(bootstrap_servers=node.bootstrap) as producer:
                for n in range(30, 40):
                    await producer.send_and_wait("t", b"%d" % n, partition=n % 3)
            found += [(await consumer.getone()).value for _ in range(10)]
            assert sorted(found) == sorted(b"%d" % n for n in range(40))
            await consumer.commit()
            assert (coordinator.member_id, coordinator.generation) == (member, generation)
            ends = await consumer.end_offsets([TopicPartition("t", index) for index in range(3)])
            assert {part: await consumer.committed(part) for part in ends} == ends
