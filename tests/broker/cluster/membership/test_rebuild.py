"""A lost catalog is rebuilt from the object store, and every record is there again. Real processes and clients."""

import contextlib
import json
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from anabranch.broker.kafka.partitions.snapshot import decode_snapshot
from anabranch.broker.operator.cli.admin_address import parse_admin
from anabranch.broker.operator.cli.admin_port import AdminPort
from anabranch.broker.operator.cli.catalog import catalog
from anabranch.broker.operator.cli.storage import storage
from anabranch.broker.operator.cli.wal import wal
from anabranch.s3stream.model import object_key
from tests.support.node import NodeProcess
from tests.support.s3 import S3Bucket
from tests.support.storage import object_files
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

Rows = list[tuple[int, bytes | None, bytes | None]]
"""Offset, key and value of records."""
PLENTY_MS = 3_600_000


@dataclass(slots=True)
class System:
    """A node with its settings file."""

    node: NodeProcess
    config: Path
    data_dir: Path

    def run(self, *arguments: str) -> Result:
        """A `catalog` command of this node."""
        command, *rest = arguments
        return CliRunner().invoke(catalog, [command, "--config", str(self.config), *rest], env={"COLUMNS": "200"})

    def rebuild(self, *options: str) -> str:
        result = self.run("rebuild", *options)
        assert result.exit_code == 0, result.output
        return result.output

    def lose_catalog(self) -> None:
        for path in self.data_dir.glob("catalog.db*"):
            path.unlink()

    def ask(self, method: str, path: str, **query: str) -> Any:
        return AdminPort(*parse_admin(self.node.admin)[:2]).ask(method, path, **query)

    def verify(self) -> None:
        result = CliRunner().invoke(storage, ["verify", "--deep", "--config", str(self.config)])
        assert result.exit_code == 0, result.output


@contextmanager
def system(tmp_path: Path, bucket: S3Bucket | None = None, **wanted: object) -> Iterator[System]:
    """A node whose objects are in the bucket, or in its data directory."""
    data_dir = tmp_path / "data"
    areas: dict[str, dict[str, object]] = {"node": {"data_dir": str(data_dir)}}
    if bucket is not None:
        areas["objects"] = {"store": "s3", "bucket": bucket.name, "endpoint": bucket.endpoint}
    tmp_path.mkdir(exist_ok=True)
    config = tmp_path / "node.toml"
    lines = []
    for area, values in areas.items():
        lines += [f"[{area}]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    config.write_text("\n".join(lines) + "\n")
    with NodeProcess(tmp_path, config=config, **wanted) as node:
        yield System(node, config, data_dir)


@pytest.fixture(params=["local", "s3"])
def bucket_or_none(request: pytest.FixtureRequest) -> S3Bucket | None:
    return request.getfixturevalue("bucket") if request.param == "s3" else None


def create(bootstrap: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(list(topics)).values():
        future.result(20)


def produce(bootstrap: str, topic: str, rows: Iterator[tuple[int, bytes, bytes | None]] | list[Any]) -> None:
    """Send (partition, key, value), those of a partition as one batch; all are acknowledged when this returns."""
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 60_000, "log_level": 0}
    )
    for partition, key, value in rows:
        producer.produce(topic, value, key, partition=partition, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not errors


def transact(bootstrap: str, topic: str, ends: str) -> None:
    """A transaction for each letter: committed, or aborted after its records are in the log."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "tx", "linger.ms": 0, "log_level": 0})
    producer.init_transactions(30)
    for number, end in enumerate(ends):
        producer.begin_transaction()
        for at in range(5):
            producer.produce(topic, f"{end} {number} {at}".encode(), f"k{at}".encode(), partition=0)
        assert producer.flush(30) == 0
        if end == "c":
            producer.commit_transaction(30)
        elif end == "a":
            producer.abort_transaction(30)


def read(bootstrap: str, isolation: str) -> dict[tuple[str, int], Rows]:
    """Every record that a consumer gets, of every topic of users."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    try:
        topics = consumer.list_topics(timeout=20).topics
        places = [
            TopicPartition(topic.topic, partition)
            for topic in topics.values()
            for partition in topic.partitions
            if topic.topic is not None and not topic.topic.startswith("__")
        ]
        for place in places:
            place.offset, _ = consumer.get_watermark_offsets(place, timeout=20)
        consumer.assign(places)
        return _read_all(consumer, {(place.topic, place.partition) for place in places})
    finally:
        consumer.close()


def _read_all(consumer: Consumer, left: set[tuple[str, int]]) -> dict[tuple[str, int], Rows]:
    found: dict[tuple[str, int], Rows] = {place: [] for place in left}
    while left:
        message = consumer.poll(20)
        assert message is not None, f"no end of {left}"
        topic, partition, error = message.topic(), message.partition(), message.error()
        assert topic is not None
        assert partition is not None
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - the library's public name
            left.discard((topic, partition))
            continue
        offset, key, value = message.offset(), message.key(), message.value()
        assert offset is not None
        found[topic, partition].append((offset, _bytes(key), _bytes(value)))
    return found


def _bytes(value: str | bytes | None) -> bytes | None:
    assert not isinstance(value, str)
    return value


def contents(bootstrap: str) -> Mapping[str, Mapping[tuple[str, int], Rows]]:
    return {isolation: read(bootstrap, isolation) for isolation in ("read_committed", "read_uncommitted")}


def commit_offset(bootstrap: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "workers", "log_level": 0})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    finally:
        consumer.close()


def committed_offset(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "workers", "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
        assert found.error is None
        return found.offset
    finally:
        consumer.close()


def numbered(partition: int, begin: int, end: int) -> list[tuple[int, bytes, bytes]]:
    return [(partition, b"k%d" % (number % 7), b"%d " % number + b"x" * 200) for number in range(begin, end)]


def facts_of(path: Path) -> Mapping[str, Any]:
    """Everything in a catalog that a rebuild must not change, including ranges and states of partitions."""

    def rows(query: str) -> list[Any]:
        return connection.execute(query).fetchall()

    with contextlib.closing(sqlite3.connect(path)) as connection:
        states = {
            stream_id: decode_snapshot(stream_id, snapshot)
            for stream_id, snapshot in rows("SELECT stream_id, snapshot FROM streams")
        }
        return {
            "cluster": rows("SELECT name, catalog_id FROM cluster"),
            "topics": rows("SELECT name, topic_id, internal, configs FROM topics ORDER BY name"),
            "partitions": rows("SELECT * FROM partitions ORDER BY topic, idx"),
            "detached": rows("SELECT * FROM detached_topics") + rows("SELECT * FROM detached_partitions"),
            "configs": rows("SELECT * FROM configs"),
            "streams": rows(
                "SELECT stream_id, node_id, leader, start_offset, end_offset FROM streams ORDER BY stream_id"
            ),
            "ranges": rows(
                "SELECT stream_id, start_offset, end_offset, object_id, kind, record_count, size_bytes, "
                "max_timestamp_ms, source_stream_id FROM ranges ORDER BY stream_id, end_offset"
            ),
            "objects": rows(
                "SELECT object_id, kind, store, size_bytes, node_id, writer_id, cleaned, "
                # When an object was committed is not in the store; when older data in it was, is.
                "CASE WHEN oldest_data_ms <> committed_ms THEN oldest_data_ms END "
                "FROM objects WHERE state = 2 ORDER BY object_id"
            ),
            "wals": rows("SELECT wal_id, node_id, state FROM wals"),
            "transactions": {
                key: (
                    state.transactions.open.keys(),
                    [(each.first_offset, each.last_offset) for each in state.transactions.aborted],
                )
                for key, state in states.items()
            },
            "producers": {
                key: {
                    producer_id: (entry.epoch, [(batch.first_sequence, batch.base_offset) for batch in entry.batches])
                    for producer_id, entry in state.producers.entries.items()
                }
                for key, state in states.items()
            },
            "timestamps": {
                key: (state.max_timestamp.timestamp_ms, state.untimed_end or 0) for key, state in states.items()
            },
        }


# everything at once


@pytest.mark.slow
def test_all_that_was_in_objects_and_in_the_log_is_there_again(tmp_path: Path, bucket_or_none: S3Bucket | None) -> None:
    settings = {"storage_upload_age_ms": 200, "compaction_enabled": "false", "storage_gc_period_ms": 200}
    with system(tmp_path, bucket_or_none, **settings) as some:
        node = some.node
        create(
            node.bootstrap,
            NewTopic("plain", 3, config={"retention.ms": "-1"}),
            NewTopic("keys", 1, config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
            NewTopic("money", 1),
            NewTopic("trimmed", 1),
            NewTopic("gone", 1),
            NewTopic("original", 1),
            NewTopic("kept-aside", 1),
        )
        for number in range(4):
            for topic in ("plain", "keys", "trimmed", "original", "kept-aside", *(["gone"] if number < 3 else [])):
                produce(node.bootstrap, topic, numbered(0, 50 * number, 50 * (number + 1)))
            produce(node.bootstrap, "plain", numbered(1, 10 * number, 10 * (number + 1)))
            transact(node.bootstrap, "money", "caac")
            some.node.wait_uploaded()
            if number == 1:
                some.ask("POST", "/topics/original/clone", name="copy")
                some.ask("POST", "/compaction")
            if number == 2:
                some.ask("POST", "/compaction")
                admin = AdminClient({"bootstrap.servers": node.bootstrap})
                for future in admin.delete_topics(["gone"]).values():
                    future.result(20)
                trim = admin.delete_records([TopicPartition("trimmed", 0, 77)])
                assert [each.result(20).low_watermark for each in trim.values()] == [77]
        produce(node.bootstrap, "copy", numbered(0, 1_000, 1_010))
        commit_offset(node.bootstrap, "plain", 42)
        some.ask("POST", "/topics/kept-aside/detach")
        some.node.wait_uploaded()
        some.ask("POST", "/compaction")
        assert node.terminate() == 0

        lost = facts_of(some.data_dir / "catalog.db")
        some.lose_catalog()
        some.rebuild()
        assert facts_of(some.data_dir / "catalog.db") == lost

        # From here on everything stays in the log.
        node.settings |= {"storage_upload_age_ms": PLENTY_MS}
        node.start()
        produce(node.bootstrap, "plain", numbered(2, 0, 100))
        produce(node.bootstrap, "keys", numbered(0, 200, 230))
        transact(node.bootstrap, "money", "ac")
        commit_offset(node.bootstrap, "plain", 43)
        before = contents(node.bootstrap)
        ids = {name: topic["id"] for name, topic in some.node.status()["topics"].items()}
        node.kill9()

        some.lose_catalog()
        said = some.rebuild()
        assert "may hold records that are in no object" in said
        node.start()
        assert contents(node.bootstrap) == before
        now = some.node.status()["topics"]
        assert {name: topic["id"] for name, topic in now.items()} == ids
        assert now["trimmed"]["partitions"][0]["start_offset"] == 77
        assert "gone" not in now
        assert committed_offset(node.bootstrap, "plain") == 43
        resource = ConfigResource(ConfigResource.Type.TOPIC, "plain")
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        configs = admin.describe_configs([resource])[resource].result(20)
        assert configs["retention.ms"].value == "-1"

        # The system continues: appends, transactions, uploads, compaction, detached topics.
        transact(node.bootstrap, "money", "ac")
        produce(node.bootstrap, "plain", numbered(0, 200, 210))
        some.ask("POST", "/detached-topics/kept-aside/attach")
        before = contents(node.bootstrap)
        assert len(before["read_committed"]["kept-aside", 0]) == 200
        assert node.terminate() == 0
        node.settings |= {"storage_upload_age_ms": 200}
        node.start()
        for _ in range(2):
            some.ask("POST", "/compaction")
        after = contents(node.bootstrap)
        assert {key: rows for key, rows in after["read_committed"].items() if key[0] != "keys"} == {
            key: rows for key, rows in before["read_committed"].items() if key[0] != "keys"
        }
        some.verify()
        assert node.terminate() == 0
        some.verify()


# refused rebuilds, and states that a crash, an operator or a disk may have left


@contextmanager
def filled(tmp_path: Path, **wanted: object) -> Iterator[System]:
    """A stopped node with the topic `plain`: partition 0 in two objects, and partition 1 in a separate one."""
    settings = {"storage_upload_age_ms": 100, "compaction_enabled": "false", **wanted}
    with system(tmp_path, None, **settings) as some:
        create(some.node.bootstrap, NewTopic("plain", 2))
        for partition, begin in ((0, 0), (0, 100), (1, 0)):
            produce(some.node.bootstrap, "plain", numbered(partition, begin, begin + 100))
            some.node.wait_uploaded()
        assert some.node.terminate() == 0
        yield some


def objects_of(some: System, partition: int) -> list[Path]:
    """Files of a partition's objects, by offset."""
    with contextlib.closing(sqlite3.connect(some.data_dir / "catalog.db")) as connection:
        rows = connection.execute(
            "SELECT DISTINCT object_id FROM ranges JOIN partitions USING (stream_id) "
            "WHERE topic = 'plain' AND idx = ? ORDER BY end_offset",
            (partition,),
        ).fetchall()
    return [some.data_dir / "objects" / object_key("anabranch", object_id) for (object_id,) in rows]


def manifests(some: System) -> list[str]:
    """Keys of the manifests, the newest one last."""
    objects = some.data_dir / "objects"
    return [str(path.relative_to(objects)) for path in sorted(objects.glob("manifest/anabranch/1/*"))]


def test_a_catalog_that_is_not_empty_is_left_as_it_is(tmp_path: Path) -> None:
    with filled(tmp_path) as some:
        before = facts_of(some.data_dir / "catalog.db")
        result = some.run("rebuild")
        assert result.exit_code == 1
        assert "it is not empty" in result.output
        assert facts_of(some.data_dir / "catalog.db") == before


def test_a_plan_changes_nothing_and_a_running_node_is_not_disturbed(tmp_path: Path) -> None:
    with filled(tmp_path) as some:
        some.lose_catalog()
        names = sorted(path.name for path in some.data_dir.iterdir())
        result = some.run("rebuild", "--plan")
        assert result.exit_code == 0, result.output
        assert re.search(r"topics +1 with 2 partitions", result.output)
        assert re.search(r"objects taken +3 ", result.output)
        assert sorted(path.name for path in some.data_dir.iterdir()) == names
        some.rebuild()
        some.node.start()
        result = some.run("rebuild", "--plan")
        assert result.exit_code == 1
        assert "in use by another process" in result.output


def test_without_a_manifest_nothing_is_guessed(tmp_path: Path) -> None:
    with filled(tmp_path) as some:
        some.lose_catalog()
        for key in manifests(some):
            (some.data_dir / "objects" / key).unlink()
        result = some.run("rebuild")
        assert result.exit_code == 1
        assert "has no manifest of cluster 'anabranch'" in result.output
        assert not (some.data_dir / "catalog.db").exists()


def test_a_damaged_manifest_is_named_and_an_older_one_can_be_chosen(tmp_path: Path) -> None:
    with filled(tmp_path) as some:
        some.node.start()
        assert some.node.terminate() == 0  # two stops have each written all of it
        before = facts_of(some.data_dir / "catalog.db")
        some.lose_catalog()
        *_, older, newest = manifests(some)
        path = some.data_dir / "objects" / newest
        data = bytearray(path.read_bytes())
        data[50] ^= 1
        path.write_bytes(data)
        result = some.run("rebuild")
        assert result.exit_code == 1
        assert newest in result.output
        assert "damaged" in result.output
        assert result.output.endswith(f"; --manifest {older} uses an older one\n")
        some.rebuild("--manifest", older)
        after = facts_of(some.data_dir / "catalog.db")
        assert after["ranges"] == before["ranges"]
        some.node.start()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 0]) == 200


def test_a_missing_object_is_a_loss_that_somebody_has_to_accept(tmp_path: Path) -> None:
    with filled(tmp_path) as some:
        first = objects_of(some, 0)[0]
        some.lose_catalog()
        first.unlink()
        result = some.run("rebuild")
        assert result.exit_code == 1
        assert "plain-0: no object holds [0, 100)" in result.output
        assert "--accept-loss" in result.output
        assert not (some.data_dir / "catalog.db").exists()
        some.rebuild("--accept-loss")
        some.node.start()
        found = read(some.node.bootstrap, "read_committed")
        assert [row[0] for row in found["plain", 0]] == list(range(100, 200))
        assert len(found["plain", 1]) == 100


def test_a_damaged_block_is_a_loss_that_somebody_has_to_accept(tmp_path: Path) -> None:
    with filled(tmp_path) as some:
        (damaged,) = objects_of(some, 1)
        some.lose_catalog()
        data = bytearray(damaged.read_bytes())
        data[100] ^= 1
        damaged.write_bytes(data)
        result = some.run("rebuild")
        assert result.exit_code == 1
        assert "block CRC32C" in result.output
        assert damaged.name in result.output
        some.rebuild("--accept-loss")
        some.node.start()
        consumer = Consumer({"bootstrap.servers": some.node.bootstrap, "group.id": "reader", "log_level": 0})
        try:
            assert consumer.get_watermark_offsets(TopicPartition("plain", 1), timeout=20) == (0, 100)
            found = _read_all_of(consumer, TopicPartition("plain", 0, 0), 200)
        finally:
            consumer.close()
        assert found == list(range(200))


def _read_all_of(consumer: Consumer, place: TopicPartition, count: int) -> list[int]:
    consumer.assign([place])
    offsets: list[int] = []
    while len(offsets) < count:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        offset = message.offset()
        assert offset is not None
        offsets.append(offset)
    return offsets


def test_a_topic_made_after_the_manifest_keeps_its_records(tmp_path: Path) -> None:
    """Some in objects, some in the log alone; only its name is lost."""
    with filled(tmp_path) as some:
        newest = manifests(some)[-1]
        kept = (some.data_dir / "objects" / newest).read_bytes()
        some.node.start()
        create(some.node.bootstrap, NewTopic("late", 1))
        produce(some.node.bootstrap, "late", numbered(0, 0, 50))
        some.node.wait_uploaded()
        assert some.node.terminate() == 0
        some.node.settings |= {"storage_upload_age_ms": PLENTY_MS}
        some.node.start()
        produce(some.node.bootstrap, "late", numbered(0, 50, 80))
        produce(some.node.bootstrap, "plain", numbered(1, 100, 110))
        some.node.kill9()
        some.lose_catalog()
        for key in manifests(some):
            (some.data_dir / "objects" / key).unlink()
        (some.data_dir / "objects" / newest).write_bytes(kept)
        said = some.rebuild()
        name = re.search(r"recovered-stream-\d+", said.split("rebuilt", 1)[1])
        assert name is not None
        some.node.start()
        found = read(some.node.bootstrap, "read_committed")
        assert [value for _, _, value in found[name[0], 0]] == [value for _, _, value in numbered(0, 0, 80)]
        assert len(found["plain", 1]) == 110


def test_the_log_of_another_catalog_is_refused(tmp_path: Path) -> None:
    with filled(tmp_path / "a") as some, filled(tmp_path / "b") as other:
        some.lose_catalog()
        shutil.copy(other.data_dir / "wal", some.data_dir / "wal")
        result = some.run("rebuild")
        assert result.exit_code == 1
        assert "they do not belong together" in result.output


def test_a_lost_log_is_told_and_nothing_of_the_objects_goes_with_it(tmp_path: Path) -> None:
    with filled(tmp_path) as some:
        some.node.settings |= {"storage_upload_age_ms": PLENTY_MS}
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(1, 100, 110))
        wait_until(lambda: some.node.status()["manifest"]["writes"] > 0, "a manifest is written")
        some.node.kill9()
        some.lose_catalog()
        (some.data_dir / "wal").unlink()
        assert "may hold acknowledged records; bring it back" in some.rebuild()
        with pytest.raises(RuntimeError, match="give-up"):
            some.node.start()
        given_up = CliRunner().invoke(wal, ["give-up", "--config", str(some.config), "--yes"])
        assert given_up.exit_code == 0, given_up.output
        some.node.start()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 1]) == 100


# an older copy of the catalog


@contextmanager
def restored(tmp_path: Path) -> Iterator[System]:
    """An older copy of the database: the topic `plain` had 100 records more in objects when the catalog was lost."""
    with filled(tmp_path) as some:
        shutil.copy(some.data_dir / "catalog.db", tmp_path / "older.db")
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(0, 200, 300))
        some.node.wait_uploaded()
        assert some.node.terminate() == 0
        some.lose_catalog()
        shutil.copy(tmp_path / "older.db", some.data_dir / "catalog.db")
        yield some


def test_a_copy_of_the_catalog_from_a_clean_stop_does_not_hide_what_only_the_log_has(tmp_path: Path) -> None:
    """In the copy the streams have no owner: the node has opened them since."""
    with filled(tmp_path) as some:
        shutil.copy(some.data_dir / "catalog.db", tmp_path / "older.db")
        some.node.settings |= {"storage_upload_age_ms": PLENTY_MS}
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(0, 200, 250))
        some.node.kill9()
        some.lose_catalog()
        shutil.copy(tmp_path / "older.db", some.data_dir / "catalog.db")
        result = some.run("advance", "--yes")
        assert result.exit_code == 0, result.output
        some.node.start()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 0]) == 250


def test_an_older_catalog_is_refused_and_a_rebuild_has_everything(tmp_path: Path) -> None:
    with restored(tmp_path) as some:
        with pytest.raises(RuntimeError, match="gone back to an earlier state"):
            some.node.start()
        some.lose_catalog()
        some.rebuild()
        some.node.start()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 0]) == 300


def test_an_older_catalog_goes_on_without_touching_what_it_does_not_know(tmp_path: Path) -> None:
    with restored(tmp_path) as some:
        objects = some.data_dir / "objects"
        before = {path: path.read_bytes() for path in object_files(objects)}
        result = some.run("advance", "--yes")
        assert result.exit_code == 0, result.output
        some.node.start()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 0]) == 200
        produce(some.node.bootstrap, "plain", numbered(0, 500, 510))
        some.node.wait_uploaded()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 0]) == 210
        assert {path: path.read_bytes() for path in before} == before
        assert some.node.terminate() == 0
        some.node.start()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 0]) == 210
