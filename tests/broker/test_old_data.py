"""A data directory that an older version wrote is opened, read and written. `old_data/make.py` made it."""

import json
import sqlite3
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from anabranch.broker.operator.cli import main
from anabranch.s3stream.catalog.schema import FIRST_ADDITIVE, NEWEST
from tests.support.node import NodeProcess

pytestmark = pytest.mark.slow

OLD_DATA: Final = Path(__file__).with_name("old_data")
TIMEOUT_S: Final = 30
FOREVER_MS: Final = 100 * 365 * 86_400_000
SETTINGS: Final[Mapping[str, object]] = {
    "catalog_lease_ms": 1_000,  # the older node was killed: the start waits for the end of its lease
    "group_offsets_retention_ms": FOREVER_MS,
    "transaction_id_expiration_ms": FOREVER_MS,
    "storage_upload_age_ms": 100,
    "storage_gc_period_ms": 200,
}


class Record(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    timestamp_ms: int
    key: str
    value: str | None
    headers: Mapping[str, str]


Records = Mapping[tuple[str, int], Sequence[Record]]
"""By topic and partition."""


class Expected(NamedTuple):
    """Offsets and records that the older version acknowledged."""

    committed_offsets: Mapping[int, int]
    records: Sequence[tuple[str, int, str, Record]]
    """Topic, partition, fate (plain, committed, aborted, open), and the record."""

    def of(self, *fates: str) -> Records:
        """Records of these fates, without those of the compacted topic."""
        found: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for topic, partition, fate, record in self.records:
            if topic != "compacted" and fate in fates:
                found[topic, partition].append(record)
        return found

    def keyed(self) -> Sequence[Record]:
        """All records of the compacted topic."""
        return [record for topic, _, _, record in self.records if topic == "compacted"]


OBJECT_LOG: Final = "schema9_object_log"


@pytest.fixture(params=["schema4", "schema9", OBJECT_LOG, "schema12"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Expected:
    """Unpack a stored data directory to `tmp_path / "data"`."""
    with tarfile.open(OLD_DATA / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    content = json.loads((OLD_DATA / f"{request.param}.json").read_text())
    return Expected(
        {int(partition): offset for partition, offset in content["committed_offsets"].items()},
        [
            (
                each["topic"],
                each["partition"],
                each["fate"],
                Record(each["offset"], each["timestamp_ms"], each["key"], each["value"], each["headers"]),
            )
            for each in content["records"]
        ],
    )


@pytest.fixture
def node(old: Expected, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NodeProcess]:
    log = {"wal_kind": "object"} if request.node.callspec.params["old"] == OBJECT_LOG else {}
    with NodeProcess(tmp_path, **SETTINGS, **log) as node:
        yield node


def read(node: NodeProcess, isolation: str) -> Records:
    """All records of the users' topics."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "error",
        }
    )
    found: dict[tuple[str, int], list[Record]] = {
        ("plain", 0): [], ("plain", 1): [], ("compacted", 0): [], ("money", 0): []
    }  # fmt: skip
    left = set(found)
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in found])
        while left:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no end of {left}"
            place: Any = (message.topic(), message.partition())
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error  # noqa: SLF001 - the library's public name
                left.discard(place)
            else:
                found[place].append(_record(message))
    finally:
        consumer.close()
    return found


def _record(message: Any) -> Record:
    value = message.value()
    headers = {name: each.decode() for name, each in message.headers() or ()}
    return Record(
        message.offset(),
        message.timestamp()[1],
        message.key().decode(),
        None if value is None else value.decode(),
        headers,
    )


def apart_from_compacted(records: Records) -> Records:
    return {place: found for place, found in records.items() if place[0] != "compacted"}


def newest_by_key(records: Sequence[Record]) -> Mapping[str, Record]:
    return {record.key: record for record in sorted(records)}


def check_records(node: NodeProcess, old: Expected, appended: Sequence[Record] = ()) -> None:
    committed, everything = read(node, "read_committed"), read(node, "read_uncommitted")
    money = [*old.of("committed")["money", 0], *appended]
    assert apart_from_compacted(committed) == {**old.of("plain"), ("money", 0): money}
    money = [*old.of("committed", "aborted", "open")["money", 0], *appended]
    assert apart_from_compacted(everything) == {**old.of("plain"), ("money", 0): money}
    for records in (committed, everything):
        kept = records["compacted", 0]
        assert {record.offset for record in kept} <= {record.offset for record in old.keyed()}
        assert newest_by_key(kept) == newest_by_key(old.keyed())
        assert len(kept) < len(old.keyed()), "older values are gone, tombstones are not"


def committed_offsets(node: NodeProcess, partitions: Sequence[int]) -> Mapping[int, int]:
    consumer = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "workers"})
    try:
        found = consumer.committed([TopicPartition("plain", each) for each in partitions], timeout=TIMEOUT_S)
        return {each.partition: each.offset for each in found}
    finally:
        consumer.close()


def append(node: NodeProcess) -> list[Record]:
    """Abort the transaction that was left open, and commit one more under its transactional id."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "left-open"})
    producer.init_transactions(TIMEOUT_S)
    appended: list[Record] = []
    producer.begin_transaction()
    for number in range(5):
        producer.produce(
            "money",
            b"now %d" % number,
            b"k",
            partition=0,
            on_delivery=lambda _error, message: appended.append(_record(message)),
        )
    producer.commit_transaction(TIMEOUT_S)
    return appended


def objects_of(catalog_path: Path) -> Sequence[tuple[str, int, int, int]]:
    with closing(sqlite3.connect(catalog_path)) as catalog:
        newest = "SELECT (SELECT max(version) FROM schema_version), (SELECT max(version) FROM schema_additions)"
        assert catalog.execute(newest).fetchone() == (FIRST_ADDITIVE - 1, NEWEST)
        query = "SELECT writer_id, committed_ms, oldest_data_ms, cleaned FROM objects WHERE state = 2"
        return catalog.execute(query).fetchall()


def test_an_older_data_directory_is_read_written_and_compacted(old: Expected, node: NodeProcess) -> None:
    for writer_id, committed_ms, oldest_data_ms, cleaned in objects_of(node.data_dir / "catalog.db"):
        assert cleaned == writer_id.endswith(".cleaned")
        _, found, born_ms = writer_id.partition(".born-")
        assert oldest_data_ms == (int(born_ms) if found else committed_ms)
    assert committed_offsets(node, sorted(old.committed_offsets)) == old.committed_offsets
    appended = append(node)
    check_records(node, old, appended)

    node.kill9()
    node.start()
    check_records(node, old, appended)
    result = CliRunner().invoke(main, ["cluster", "upgrade", "--bootstrap-server", node.bootstrap])
    assert result.output == f"the cluster has level {NEWEST}\n"
    node.compact()
    check_records(node, old, appended)
    assert node.terminate() == 0

    node.start()
    check_records(node, old, appended)
    assert committed_offsets(node, sorted(old.committed_offsets)) == old.committed_offsets
    assert node.terminate() == 0
    flags = ["--data-dir", str(node.data_dir)]
    result = CliRunner().invoke(main, ["storage", "verify", "--deep", *flags])
    assert result.exit_code == 0, result.output
