"""Clients over a quota: they see throttle times, wait, and lose nothing."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.interop.test_java import run
from tests.support.kafka_tools import CONFIGS, TOOLS, TOPICS
from tests.support.node import NodeProcess

pytestmark = pytest.mark.interop

RECORDS = 300
VALUE_BYTES = 1000


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A node on which every client id may write 100 kB/s."""
    with NodeProcess(tmp_path_factory.mktemp("quotas"), quota_window_num=2) as node:
        run(node.bootstrap, TOPICS, "--create", "--topic", "t")
        rate = ["--alter", "--entity-type", "clients", "--entity-default", "--add-config", "producer_byte_rate=100000"]
        run(node.bootstrap, CONFIGS, *rate)
        yield node.bootstrap
        throttled = node.status()["quotas"]["producer_byte_rate"]["throttled"]
        assert {each["client_id"] for each in throttled} == {"slow", "perf-producer-client"}
        assert node.terminate() == 0


def test_librdkafka_is_throttled(servers: str) -> None:
    throttles: list[float] = []
    delivered: list[Any] = []
    producer = Producer({
        "bootstrap.servers": servers,
        "client.id": "slow",
        "batch.size": 20_000,
        "throttle_cb": lambda event: throttles.append(event.throttle_time),
    })  # fmt: skip
    for _ in range(RECORDS):
        producer.produce("t", b"x" * VALUE_BYTES, on_delivery=lambda error, _: delivered.append(error))
    assert producer.flush(60) == 0
    assert delivered == [None] * RECORDS
    assert any(throttles)


def test_javas_producer_is_throttled(servers: str) -> None:
    tool = f"{TOOLS}.ProducerPerformance"
    arguments = ["--topic", "t", "--num-records", str(RECORDS), "--record-size", str(VALUE_BYTES)]
    limits = ["--throughput", "-1", "--command-property", "batch.size=20000", "client.id=perf-producer-client"]
    shown = run(servers, tool, *arguments, *limits, "--print-metrics")
    assert f"{RECORDS} records sent" in shown
    (longest,) = re.findall(r"produce-throttle-time-max\S*\s*:\s*([0-9.]+)", shown)
    assert float(longest) > 0
