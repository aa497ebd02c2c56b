"""An outage of the store until the log is full: producers of other libraries, with their defaults, see no error.

The test of librdkafka is in `test_store.py`.
"""

import asyncio
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.faults.rig import Rig, faulty_node
from tests.faults.test_store import DOWN
from tests.support.kafka_tools import TOOLS, kafka_tool
from tests.support.s3 import S3Bucket
from tests.support.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.timeout(400)

RECORDS = 1500
RECORD_BYTES = 10_000
"""Twice the capacity of the log, in all."""


@pytest.fixture
def program() -> list[str]:
    """Java's producer."""
    return kafka_tool(f"{TOOLS}.ProducerPerformance")


def test_java_and_aiokafka_wait_and_see_no_error(tmp_path: Path, bucket: S3Bucket, program: list[str]) -> None:
    small = {"storage_upload_age_ms": 200, "compaction_enabled": "false", "wal_capacity_bytes": "8MiB"}
    with faulty_node(tmp_path, bucket, **small) as rig, ThreadPoolExecutor(2) as threads:
        rig.weather.decide = lambda _: DOWN
        others = threads.submit(lambda: asyncio.run(send(rig.node.bootstrap)))
        java_said = threads.submit(lambda: perform(program, rig.node.bootstrap))
        try:
            wait_until(lambda: {"aiokafka", "java"} <= rig.node.status()["topics"].keys(), "both have begun")
            wait_until(lambda: not rig.writable(), "the log is full")
            wait_until(lambda: rig.stands_still("aiokafka") and rig.stands_still("java"), "nobody gets through")
            wait_until(lambda: rig.weather.faults >= 12, "the store was asked for again and again")
            assert not others.done()
            assert not java_said.done()
        finally:
            rig.weather.clear()
        assert others.result(WAIT_S) == list(range(RECORDS))
        said = java_said.result(WAIT_S)
        assert f"{RECORDS} records sent" in said
        told = [line for line in said.splitlines() if line.startswith("org.apache.kafka.common.errors")]
        assert not told, "what its callbacks were told of"
        rig.node.wait_uploaded()
        assert ends(rig) == {"aiokafka": RECORDS, "java": RECORDS}
        assert rig.node.terminate() == 0


def ends(rig: Rig) -> dict[str, int]:
    return {topic: rig.partition(topic)["high_watermark"] for topic in ("aiokafka", "java")}


async def send(bootstrap: str) -> list[int]:
    """Offsets of the records, in the order they were sent."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    await producer.start()
    try:
        waiting = [await producer.send("aiokafka", bytes(RECORD_BYTES)) for _ in range(RECORDS)]
        return [(await each).offset for each in waiting]
    finally:
        await producer.stop()


def perform(program: list[str], bootstrap: str) -> str:
    """Run Apache Kafka's own load generator and return its output."""
    done = subprocess.run(
        [
            *program,
            *("--topic", "java", "--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES)),
            *("--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout
