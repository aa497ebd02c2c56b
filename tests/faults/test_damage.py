"""A damaged or missing object: its readers get a final error, the node continues and reports the damage."""

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.support.events import create_topic
from tests.support.kafka_tools import CONSUMER, OFFSETS, run_tool
from tests.support.metrics import Samples
from tests.support.node import NodeProcess
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.storage import object_files
from tests.support.waiting import wait_until

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    from kafka import KafkaConsumer
    from kafka import TopicPartition as KafkaPythonPartition
    from kafka.errors import CorruptRecordError

pytestmark = pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")

BLOCK_BYTES = 600_000
"""Larger than batches that are joined to one block: each batch is a separate block."""
OLD_MS = 1_700_000_000_000


@dataclass
class Damaged:
    """A node whose one object is damaged in the second of three blocks of topic `t`, and holds topic `other`, too."""

    node: NodeProcess
    path: Path
    whole: bytes

    def damaged(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.node.status()["damaged_objects"]
        return found

    def metric(self, name: str) -> int:
        return int(Samples(self.node.ask("/metrics")).value(f"anabranch_{name}"))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def restore(self) -> None:
        self.path.write_bytes(self.whole)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Damaged]:
    with NodeProcess(tmp_path, compaction_enabled="false", catalog_lease_ms=1_000) as node:
        for topic in ("t", "other"):
            create_topic(node.bootstrap, topic, 1)
        producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 3})
        for number in range(3):
            producer.produce("t", b"%d" % number * BLOCK_BYTES, timestamp=OLD_MS + number * 1000)
            assert producer.flush(30) == 0
        producer.produce("other", b"fine")
        assert producer.flush(30) == 0
        assert node.terminate() == 0
        (path,) = object_files(tmp_path / "data" / "objects")
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[BLOCK_BYTES * 3 // 2] ^= 1
        path.write_bytes(damaged)
        node.start()
        yield Damaged(node, path, whole)
        assert node.terminate() == 0


async def fetch(client: RawClient, topic: str = "t", offset: int = 0) -> PartitionData:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=8 << 20)
    request = FetchRequest(
        max_wait_ms=10_000, max_bytes=8 << 20, topics=[FetchTopic(topic=topic, partitions=[partition])]
    )
    data: PartitionData = (await client.call(request, 12)).responses[0].partitions[0]
    return data


async def list_offset(client: RawClient, timestamp_ms: int) -> tuple[int, int]:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    answer = await client.call(ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[wanted])]), 7)
    partition = answer.topics[0].partitions[0]
    return partition.error_code, partition.offset


def size(data: PartitionData) -> int:
    records = data.records
    assert isinstance(records, bytes | bytearray | memoryview)
    return len(records)


async def test_what_is_damaged_is_named_and_the_rest_is_served(rig: Damaged) -> None:
    async with raw_client(rig.node.bootstrap) as client:
        first = await fetch(client)
        assert first.error_code == ErrorCode.NONE
        assert BLOCK_BYTES < size(first) < 2 * BLOCK_BYTES, "what lies before the damage"
        assert rig.damaged() == []
        for _ in range(3):
            assert (await fetch(client, offset=1)).error_code == ErrorCode.CORRUPT_MESSAGE
        assert BLOCK_BYTES < size(await fetch(client, offset=2)) < 2 * BLOCK_BYTES, "what lies behind"
        assert (await fetch(client, "other")).error_code == ErrorCode.NONE
        response = await client.produce("t", [batch_of(b"more")])
        assert response.responses[0].partition_responses[0].base_offset == 3, "writes go on"
        (told,) = rig.damaged()
        assert told["store"] == "local"
        assert told["key"] == str(rig.path.relative_to(rig.path.parents[2]))
        assert BLOCK_BYTES < told["position"] < 2 * BLOCK_BYTES
        assert told["expected"].startswith("block CRC32C 0x")
        assert told["found"].startswith("0x")
        assert (told["partitions"], told["times"]) == (["t-0"], 3)
        assert 0 < told["since_ms"] <= told["last_ms"]
        assert "anabranch storage verify" in told["advice"]
        assert rig.metric("damaged_objects") == 1
        assert rig.metric("damaged_reads_total") == rig.metric("request_failures_total") == 3
        rig.restore()
        restored = await fetch(client, offset=1)
        assert size(restored) > 2 * BLOCK_BYTES
        assert rig.damaged() == []
        assert rig.metric("damaged_objects") == 0
    (line,) = rig.node.events("an object is damaged")  # once, not for each request
    assert line["partition"] == "t-0"
    assert "block CRC32C: expected" in line["reason"]
    assert told["key"] in line["reason"]


async def test_a_missing_object_is_damage_until_it_is_back(rig: Damaged) -> None:
    rig.remove()
    async with raw_client(rig.node.bootstrap) as client:
        for topic in ("t", "other", "t"):
            assert (await fetch(client, topic)).error_code == ErrorCode.CORRUPT_MESSAGE
        (told,) = rig.damaged()
        assert told["position"] is None
        assert (told["expected"], told["found"]) == ("a committed object", "no object")
        assert told["partitions"] == ["other-0", "t-0"]
        rig.restore()
        assert (await fetch(client, "other")).error_code == ErrorCode.NONE
        assert rig.damaged() == []
    assert len(rig.node.events("an object is damaged")) == 1


async def test_a_store_that_is_away_is_waited_for(rig: Damaged) -> None:
    folder = rig.path.parents[2]
    away = folder.with_name("away")
    folder.rename(away)  # a disk that is not mounted
    async with raw_client(rig.node.bootstrap) as client:
        assert (await fetch(client)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert rig.damaged() == []
        away.rename(folder)
        assert (await fetch(client)).error_code == ErrorCode.NONE


async def test_lookups_by_time_fail_for_good(rig: Damaged) -> None:
    async with raw_client(rig.node.bootstrap) as client:
        assert await list_offset(client, OLD_MS + 1) == (ErrorCode.UNKNOWN_SERVER_ERROR, -1)
        assert await list_offset(client, OLD_MS + 1001) == (ErrorCode.NONE, 2)
        assert rig.metric("request_failures_total") == 1
    assert [each["partitions"] for each in rig.damaged()] == [["t-0"]]


async def test_deleting_records_past_the_damage_ends_it(rig: Damaged) -> None:
    async with raw_client(rig.node.bootstrap) as client:
        rig.remove()
        assert (await fetch(client)).error_code == ErrorCode.CORRUPT_MESSAGE
        for topic, end in (("t", 3), ("other", 1)):
            wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=end)])
            answer = await client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=10_000), 2)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE
        wait_until(lambda: not rig.damaged(), "nobody needs the object any more")


def consumer_of(rig: Damaged, group: str) -> Consumer:
    settings = {"bootstrap.servers": rig.node.bootstrap, "group.id": group, "log_level": 3}
    return Consumer({**settings, "auto.offset.reset": "earliest"})


def test_librdkafka_tells_the_application(rig: Damaged) -> None:
    consumer = consumer_of(rig, "reader")
    try:
        consumer.assign([TopicPartition("t", 0, 0)])
        first = consumer.poll(30)
        assert first is not None
        assert (first.error(), first.offset()) == (None, 0)
        failure = consumer.poll(30)
        assert failure is not None
        error = failure.error()
        assert error is not None
        assert error.code() == KafkaError.INVALID_MSG  # its name for CORRUPT_MESSAGE
        with pytest.raises(KafkaException, match="Unknown"):
            consumer.offsets_for_times([TopicPartition("t", 0, OLD_MS + 1)], timeout=30)
    finally:
        consumer.close()


def test_kafka_python_raises(rig: Damaged) -> None:
    consumer = KafkaConsumer(bootstrap_servers=rig.node.bootstrap, group_id=None, consumer_timeout_ms=30_000)
    try:
        consumer.assign([KafkaPythonPartition("t", 0)])
        consumer.seek_to_beginning()
        assert next(consumer).offset == 0
        with pytest.raises(CorruptRecordError):
            next(consumer)
    finally:
        consumer.close()


@pytest.mark.interop
def test_java_ends_with_an_error(rig: Damaged) -> None:
    wanted = ["--topic", "t", "--from-beginning", "--max-messages", "3"]  # and waits for them, but for an error
    where = ["--bootstrap-server", rig.node.bootstrap]
    consumed = run_tool(CONSUMER, [*where, *wanted])
    assert "Processed a total of 1 messages" in consumed.stderr
    listed = run_tool(OFFSETS, [*where, "--topic-partitions", "t:0", "--time", str(OLD_MS + 1)])
    assert "t:0" not in listed.stdout
    assert "UnknownServerException" in listed.stdout + listed.stderr


def test_a_group_whose_log_is_damaged_is_told(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, compaction_enabled="false", group_offsets_partitions=1) as node:
        create_topic(node.bootstrap, "t", 1)
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "group", "log_level": 3})
        consumer.commit(offsets=[TopicPartition("t", 0, 5)], asynchronous=False)
        consumer.close()
        assert node.terminate() == 0
        (path,) = object_files(tmp_path / "data" / "objects")
        whole = path.read_bytes()
        path.unlink()
        node.start()
        rig = Damaged(node, path, whole)
        consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "group", "log_level": 3})
        try:
            wait_until(lambda: bool(rig.damaged()), "loading the group has failed")
            assert rig.damaged()[0]["partitions"] == ["__consumer_offsets-0"]
            with pytest.raises(KafkaException):
                consumer.committed([TopicPartition("t", 0)], timeout=30)
            rig.restore()

            def committed() -> int | None:
                try:
                    (found,) = consumer.committed([TopicPartition("t", 0)], timeout=30)
                except KafkaException:
                    return None
                return int(found.offset)

            # The object is read, and no longer listed, a moment before the group is loaded.
            wait_until(lambda: committed() is not None, "the group is loaded")
            assert committed() == 5
            assert not rig.damaged()
        finally:
            consumer.close()
        assert node.terminate() == 0
        assert len(node.events("groups not loaded: an object is damaged")) == 1


def test_compaction_goes_on_with_the_others_and_verify_finds_it(rig: Damaged, tmp_path: Path) -> None:
    for _ in range(2):
        producer = Producer({"bootstrap.servers": rig.node.bootstrap, "log_level": 3})
        producer.produce("other", b"x" * 1000)
        assert producer.flush(30) == 0
        assert rig.node.terminate() == 0
        rig.node.start()
    _, summary = rig.node.compact(), rig.node.compact()
    assert len(summary["left_alone"]) == 1
    (told,) = rig.damaged()
    assert told["object_id"] == summary["left_alone"][0]
    assert told["partitions"] == []
    assert told["times"] == 1, "later runs leave it out"
    assert rig.node.status()["compaction"]["last"]["sso_after"] == 2, "the two others became one"
    assert len(rig.node.events("compaction leaves an object alone until the node restarts")) == 1
    assert rig.node.terminate() == 0
    verified = verify(tmp_path / "data")
    assert verified.returncode == 1
    assert "CRC32C: expected" in verified.stdout
    assert told["key"] in verified.stdout
    rig.node.start()


def verify(data: Path) -> "subprocess.CompletedProcess[str]":
    """Run `anabranch storage verify`, wide enough to be read by a test."""
    arguments = ["-m", "anabranch", "storage", "verify", "--deep", "--data-dir", str(data)]
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "500"},
    )
