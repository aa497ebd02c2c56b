"""A machine is lost while clients write, and a backup with the object store gives everything back. Real processes."""

import gzip
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from anabranch.broker.cluster.membership.rebuild import is_continued
from anabranch.broker.kafka.partitions.snapshot import decode_snapshot, encode_snapshot
from anabranch.broker.operator.cli.backup import backup
from anabranch.broker.operator.cli.restore import restore
from anabranch.s3stream.catalog.backup import BackupStream
from anabranch.s3stream.catalog.values import WalState
from anabranch.s3stream.maintain.rebuild_plan import StreamChain
from tests.broker.cluster.membership.test_rebuild import (
    System,
    commit_offset,
    committed_offset,
    contents,
    create,
    facts_of,
    filled,
    manifests,
    numbered,
    objects_of,
    produce,
    read,
    transact,
)
from tests.s3stream.catalog.test_backup import lines_of, store
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer
from tests.support.s3 import S3Bucket, set_credentials
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


def run_backup(config: Path, target: Path) -> None:
    result = CliRunner().invoke(backup, ["--config", str(config), str(target)])
    assert result.exit_code == 0, result.output


def run_restore(config: Path, source: Path, *options: str) -> Result:
    arguments = ["--config", str(config), *options, str(source)]
    return CliRunner().invoke(restore, arguments, env={"COLUMNS": "200"})


def data_objects(bucket: S3Bucket) -> set[str]:
    """Keys of the objects that are neither manifests nor in the log."""
    # Unlike rglob, walk passes over folders that vanish meanwhile.
    keys = {
        str((Path(folder) / name).relative_to(bucket.folder))
        for folder, _, names in os.walk(bucket.folder)
        for name in names
    }
    return {key for key in keys if not key.startswith(("manifest/", "wal/", "."))}


class Load:
    """A client that writes until the node is gone, and knows what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acked: dict[int, bytes] = {}
        """Value by offset."""
        self._topic = topic
        self._stop = threading.Event()
        self._writes = threading.Event()
        self._writes.set()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        )
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            if len(self._producer) < 500 and self._writes.is_set():
                self._producer.produce(self._topic, b"%d" % number, on_delivery=self._delivered)
                number += 1
            self._producer.poll(0 if len(self._producer) < 500 and self._writes.is_set() else 0.01)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        offset, value = message.offset(), message.value()
        if error is None and offset is not None and isinstance(value, bytes):
            self.acked[offset] = value

    def wait_for_more(self, count: int) -> None:
        target = len(self.acked) + count
        wait_until(lambda: len(self.acked) >= target, f"{count} more records are acknowledged")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing in the block: a reader would never come to the end."""
        self._writes.clear()
        wait_until(lambda: not len(self._producer), "all records are acknowledged")
        yield
        self._writes.set()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.purge()
        self._producer.poll(0)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_a_lost_machine_comes_back_from_the_backup_and_the_bucket(
    tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, engine: str
) -> None:
    set_credentials(monkeypatch)
    server: PostgresServer | None = request.getfixturevalue("postgres") if engine == "postgresql" else None
    machine, config, copy = tmp_path / "machine", tmp_path / "node.toml", tmp_path / "backup"

    def configure() -> None:
        url = f"sqlite:///{machine}/catalog.db" if server is None else server.new_database()
        config.write_text(
            f'[node]\ndata_dir = "{machine}"\n[catalog]\nurl = "{url}"\n[wal]\nkind = "object"\n[objects]\n'
            f'store = "s3"\nbucket = "{bucket.name}"\nendpoint = "{bucket.endpoint}"\n'
        )

    configure()
    with NodeProcess(
        tmp_path,
        config=config,
        data_dir=machine,
        storage_upload_age_ms=200,
        compaction_enabled="false",
        storage_gc_period_ms=100,
        storage_delete_delay_ms=100,
    ) as node:
        create(node.bootstrap, NewTopic("load", 1), NewTopic("plain", 2), NewTopic("money", 1), NewTopic("gone", 1))
        for begin in (0, 50):
            produce(node.bootstrap, "plain", numbered(0, begin, begin + 50))
            produce(node.bootstrap, "gone", numbered(0, begin, begin + 50))
            transact(node.bootstrap, "money", "ca")
            node.wait_uploaded()
        commit_offset(node.bootstrap, "plain", 42)
        load = Load(node.bootstrap, "load")
        try:
            load.wait_for_more(500)
            run_backup(config, copy)
            # Everything that can happen after a backup.
            load.wait_for_more(500)
            admin = AdminClient({"bootstrap.servers": node.bootstrap})
            for done in admin.delete_topics(["gone"]).values():
                done.result(20)
            create(node.bootstrap, NewTopic("later", 1, config={"retention.ms": "-1"}))
            produce(node.bootstrap, "later", numbered(0, 0, 50))
            produce(node.bootstrap, "plain", numbered(1, 0, 50))
            transact(node.bootstrap, "money", "acco")
            commit_offset(node.bootstrap, "plain", 43)
            old = data_objects(bucket)
            node.compact()
            wait_until(lambda: not data_objects(bucket) >= old, "compacted objects are deleted")
            with load.paused():
                before = contents(node.bootstrap)
            load.wait_for_more(500)
            node.kill9()
        finally:
            load.end()
        shutil.rmtree(machine)
        configure()

        result = run_restore(config, copy)
        assert result.exit_code == 0, result.output
        node.start()
        after = contents(node.bootstrap)
        for isolation, found in after.items():
            rows = {offset: value for offset, _, value in found["load", 0]}
            assert load.acked.items() <= rows.items()
            assert {**found, ("load", 0): before[isolation]["load", 0]} == before[isolation]
        assert committed_offset(node.bootstrap, "plain") == 43
        resource = ConfigResource(ConfigResource.Type.TOPIC, "later")
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        configs = admin.describe_configs([resource])[resource].result(20)
        assert configs["retention.ms"].value == "-1"
        produce(node.bootstrap, "plain", numbered(0, 100, 110))
        transact(node.bootstrap, "money", "c")
        assert node.terminate() == 0


# what is read, and what is refused


@contextmanager
def backed_up(tmp_path: Path, **wanted: object) -> Iterator[tuple[System, Path]]:
    """A stopped node with three objects, and a backup of its catalog."""
    with filled(tmp_path, **wanted) as some:
        copy = tmp_path / "backup"
        run_backup(some.config, copy)
        yield some, copy


def test_only_what_came_after_the_backup_is_read(tmp_path: Path) -> None:
    with backed_up(tmp_path) as (some, copy):
        before = facts_of(some.data_dir / "catalog.db")
        some.lose_catalog()
        result = run_restore(some.config, copy)
        assert "300 records (0 bytes read)" in result.output, result.output
        assert facts_of(some.data_dir / "catalog.db") == before
        second = tmp_path / "second"
        run_backup(some.config, second)
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(1, 100, 110))
        assert some.node.terminate() == 0
        before = facts_of(some.data_dir / "catalog.db")
        some.lose_catalog()
        result = run_restore(some.config, second)
        read_bytes = re.search(r"310 records \(([\d.]+) KiB read\)", result.output)
        assert read_bytes is not None, result.output
        assert float(read_bytes[1]) < 10, "the ten last records only"
        assert facts_of(some.data_dir / "catalog.db") == before


def test_a_log_that_is_lost_with_its_machine_is_said_in_one_line(tmp_path: Path) -> None:
    with backed_up(tmp_path) as (some, copy):
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(1, 100, 110))
        some.node.wait_uploaded()
        some.node.kill9()
        some.lose_catalog()
        log = (some.data_dir / "wal").rename(tmp_path / "log")
        result = run_restore(some.config, copy, "--plan")
        assert "may hold acknowledged records; bring it back to" in result.output, result.output
        result = run_restore(some.config, copy)
        assert result.exit_code == 0, result.output
        assert (
            "acknowledged, but not uploaded: lost, if there was anything, unless the log of node 1 is brought back"
            in (result.output)
        )
        some.lose_catalog()
        log.rename(some.data_dir / "wal")
        result = run_restore(some.config, copy)
        assert "acknowledged, but not uploaded: kept; the next start of node 1 replays" in result.output
        some.node.start()
        found = read(some.node.bootstrap, "read_committed")
        assert [len(found["plain", partition]) for partition in (0, 1)] == [200, 110]


def test_a_transaction_whose_end_was_deleted_since_does_not_stay_open(tmp_path: Path) -> None:
    """It was open in the backup. The records with its end are gone, as with a retention of less than a backup's age."""
    with filled(tmp_path) as some:
        some.node.start()
        transact(some.node.bootstrap, "plain", "o")
        some.node.wait_uploaded()
        copy = tmp_path / "backup"
        run_backup(some.config, copy)
        transact(some.node.bootstrap, "plain", "c")
        end = 200 + 6 + 6
        produce(some.node.bootstrap, "plain", numbered(0, end, end + 10))
        admin = AdminClient({"bootstrap.servers": some.node.bootstrap})
        for deleted in admin.delete_records([TopicPartition("plain", 0, end)]).values():
            assert deleted.result(20).low_watermark == end
        some.node.wait_uploaded()
        assert some.node.terminate() == 0
        some.lose_catalog()
        result = run_restore(some.config, copy)
        assert result.exit_code == 0, result.output
        some.node.start()
        assert len(read(some.node.bootstrap, "read_committed")["plain", 0]) == 10


@pytest.mark.parametrize(
    ("start", "end", "open_transaction", "expected"),
    [
        (0, 100, False, True),
        (100, 150, False, True),
        (101, 150, False, False),
        (0, 99, False, False),
        (0, 150, True, False),
    ],
)
def test_the_state_of_a_backup_is_continued_only_without_a_hole(
    start: int, end: int, open_transaction: bool, expected: bool
) -> None:
    state = decode_snapshot(1, b"")._replace(untimed_end=0)
    if open_transaction:
        state.transactions.write(7, 90, 1_000)
    known = BackupStream(1, 100, encode_snapshot(state, 0), 1, ())
    assert is_continued(known, StreamChain(1, start, end, [])) is expected


def test_after_a_rebuild_in_between_all_records_are_read(tmp_path: Path) -> None:
    """Other records than those of the backup could have their offsets."""
    with backed_up(tmp_path) as (some, copy):
        some.lose_catalog()
        some.rebuild()
        some.node.start()
        assert some.node.terminate() == 0
        some.lose_catalog()
        result = run_restore(some.config, copy)
        assert re.search(r"300 records \([\d.]+ KiB read\)", result.output), result.output


def test_without_any_manifest_the_backup_says_what_the_objects_are(tmp_path: Path) -> None:
    with backed_up(tmp_path) as (some, copy):
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(1, 100, 110))
        assert some.node.terminate() == 0
        for key in manifests(some):
            (some.data_dir / "objects" / key).unlink()
        some.lose_catalog()
        result = run_restore(some.config, copy)
        assert result.exit_code == 0, result.output
        assert "none that is newer than the backup" in result.output
        some.node.start()
        found = read(some.node.bootstrap, "read_committed")
        assert [len(found["plain", partition]) for partition in (0, 1)] == [200, 110]


def test_a_damaged_manifest_is_replaced_by_an_older_one_that_is_newer_than_the_backup(tmp_path: Path) -> None:
    with backed_up(tmp_path, storage_gc_period_ms=100, storage_delete_delay_ms=100) as (some, copy):
        old = [path for partition in (0, 1) for path in objects_of(some, partition)]
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(1, 100, 110))
        some.node.wait_uploaded()
        some.node.compact()
        wait_until(lambda: not any(path.exists() for path in old), "the compacted objects are deleted")
        assert some.node.terminate() == 0
        some.node.start()
        assert some.node.terminate() == 0  # it wrote one more manifest
        some.lose_catalog()
        *_, older, newest = manifests(some)
        (some.data_dir / "objects" / newest).write_bytes(b"damaged")
        result = run_restore(some.config, copy)
        assert result.exit_code == 0, result.output
        assert re.search(rf"manifest +{older}, written", result.output)
        assert re.search(rf"not used +.*{newest}", result.output)
        some.node.start()
        found = read(some.node.bootstrap, "read_committed")
        assert [len(found["plain", partition]) for partition in (0, 1)] == [200, 110]


def test_a_backup_whose_objects_were_replaced_since_is_refused_without_a_manifest(tmp_path: Path) -> None:
    with backed_up(tmp_path, storage_gc_period_ms=100, storage_delete_delay_ms=100) as (some, copy):
        old = [path for partition in (0, 1) for path in objects_of(some, partition)]
        some.node.start()
        produce(some.node.bootstrap, "plain", numbered(1, 100, 110))
        some.node.wait_uploaded()
        some.node.compact()
        wait_until(lambda: not any(path.exists() for path in old), "the compacted objects are deleted")
        assert some.node.terminate() == 0
        some.lose_catalog()
        aside = {key: (some.data_dir / "objects" / key).read_bytes() for key in manifests(some)}
        newest = max(aside)
        for key in aside:
            (some.data_dir / "objects" / key).unlink()
        (some.data_dir / "objects" / newest).write_bytes(b"damaged")
        result = run_restore(some.config, copy)
        assert result.exit_code == 1
        assert "the backup is too old for the object store" in result.output
        assert newest in result.output
        assert "plain-1: [100, 110) is only in objects that compaction wrote later" in result.output
        assert not (some.data_dir / "catalog.db").exists()

        # With the manifest it goes, even if the clock of the backup is ahead.
        (some.data_dir / "objects" / newest).write_bytes(aside[newest])
        lines = lines_of(copy)
        lines[0] |= {"manifest": 1_000, "written_ms": 2 * lines[0]["written_ms"]}
        store(copy, lines)
        result = run_restore(some.config, copy)
        assert result.exit_code == 0, result.output
        assert newest in result.output
        some.node.start()
        found = read(some.node.bootstrap, "read_committed")
        assert [len(found["plain", partition]) for partition in (0, 1)] == [200, 110]


def test_a_restore_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    with backed_up(tmp_path) as (some, copy):
        before = facts_of(some.data_dir / "catalog.db")
        result = run_restore(some.config, copy)
        assert result.exit_code == 1
        assert "it is not empty" in result.output
        assert facts_of(some.data_dir / "catalog.db") == before

        some.lose_catalog()
        damaged = tmp_path / "damaged"
        damaged.write_bytes(copy.read_bytes()[:-20])
        result = run_restore(some.config, damaged)
        assert result.exit_code == 1
        assert re.search(rf"Error: backup {damaged}: .*(damaged|incomplete)", result.output)

        other = tmp_path / "other.toml"
        other.write_text(some.config.read_text() + 'cluster = "elsewhere"\n')
        result = run_restore(other, copy)
        assert result.exit_code == 1
        assert "is of cluster 'anabranch', not of 'elsewhere'" in result.output
        assert not (some.data_dir / "catalog.db").exists()

    with backed_up(tmp_path / "second") as (second, copy_of_second):
        second.lose_catalog()
        result = run_restore(second.config, copy)
        assert result.exit_code == 1
        assert "they do not belong together" in result.output
        assert "--plan" not in result.output
        assert run_restore(second.config, copy_of_second, "--plan").exit_code == 0
        assert not (second.data_dir / "catalog.db").exists()


def test_the_logs_of_other_nodes_are_named(tmp_path: Path) -> None:
    with backed_up(tmp_path) as (some, copy):
        lines = lines_of(copy)
        for table, change in (
            ("nodes", {"node_id": 2}),
            ("wals", {"node_id": 2, "wal_id": "other", "state": WalState.OPEN}),
        ):
            at = next(
                number for number, line in enumerate(lines) if isinstance(line, dict) and line.get("table") == table
            )
            row = dict(zip(lines[at]["columns"], lines[at + 1], strict=True)) | change
            lines.insert(at + 1, list(row.values()))
            lines[0]["rows"][table] += 1
        lines[0] |= {
            "manifest": 1_000,
            "written_ms": 2 * lines[0]["written_ms"],
        }  # newer than the manifest, which lacks them
        store(copy, lines)
        some.lose_catalog()
        result = run_restore(some.config, copy)
        assert result.exit_code == 0, result.output
        assert "the logs of nodes 2 are replayed by their own next starts" in result.output


def test_a_running_node_is_not_disturbed(tmp_path: Path) -> None:
    with backed_up(tmp_path) as (some, copy):
        some.node.start()
        result = run_restore(some.config, copy)
        assert result.exit_code == 1
        assert "in use by another process" in result.output


def test_the_first_line_of_a_backup_can_be_read_by_people(tmp_path: Path) -> None:
    with backed_up(tmp_path) as (_, copy):
        header = json.loads(gzip.decompress(copy.read_bytes()).splitlines()[0])
        assert (header["format"], header["version"], header["rows"]["objects"]) == ("anabranch backup", 1, 3)
