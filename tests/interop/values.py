"""Records of a topic, sent and read by real clients with any settings. Reading joins a group of the topic's name."""

import asyncio
import warnings
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Message, Producer

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer  # it reads its own schemas so

TIMEOUT_S = 30


def value_of(message: Message) -> str:
    value = message.value()
    assert isinstance(value, bytes)
    return value.decode()


def send_with_confluent(settings: dict[str, Any], topic: str, values: Sequence[str]) -> None:
    failures: list[KafkaError] = []
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(TIMEOUT_S) == 0
    assert not failures


def read_with_confluent(settings: dict[str, Any], topic: str, count: int) -> list[str]:
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[str] = []
    try:
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=TIMEOUT_S)
            assert messages, f"{len(found)} of {count} records"
            found += [value_of(message) for message in messages]
    finally:
        consumer.close()
    return found


async def send_and_read_with_aiokafka(settings: dict[str, Any], topic: str, values: Sequence[str]) -> list[str]:
    async with AIOKafkaProducer(**settings) as producer:
        for sent in [await producer.send(topic, value.encode()) for value in values]:
            await sent
    found: list[str] = []
    async with AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            while len(found) < len(values):
                found.append((await consumer.getone()).value.decode())
    return found


def send_and_read_with_kafka_python(settings: dict[str, Any], topic: str, values: Sequence[str]) -> list[str]:
    producer = KafkaProducer(**settings)
    for sent in [producer.send(topic, value.encode()) for value in values]:
        sent.get(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000, **settings
    )
    found = []
    for message in consumer:
        found.append(message.value.decode())
        if len(found) == len(values):
            break
    consumer.close()
    return found
