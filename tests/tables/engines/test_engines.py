"""Every engine reads exactly the records of a READ_COMMITTED consumer, row by row, from files and from S3."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.support.node import NodeProcess
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Bucket, S3Server, set_credentials
from tests.support.waiting import wait_until
from tests.tables.engines.readers import READERS, Lake
from tests.tables.engines.rows import Committed, Row, committed_records, engine_rows, expected_rows, same
from tests.tables.engines.topics import COMPACTED, MARKS, TOPICS, Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOKEN: Final = "t" * 20


@dataclass(frozen=True, slots=True)
class Sent:
    """Expected rows of a node whose tables have all that was sent."""

    url: str
    bucket: S3Bucket | None
    expected: Mapping[str, Sequence[Row]]
    """Rows that each table must have."""


@pytest.fixture(scope="module", params=["files", pytest.param("s3", marks=pytest.mark.server)])
def sent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    """A node with all topics, and their rows."""
    folder = tmp_path_factory.mktemp("lake")
    wanted: dict[str, Any] = {"wal_capacity_bytes": 64 << 20, "storage_upload_age_ms": 200}
    bucket: S3Bucket | None = None
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            server: S3Server = request.getfixturevalue("s3")
            bucket = server.new_bucket()
            set_credentials(patch)
            config = folder / "node.toml"
            config.write_text(f'[tables]\ns3_access_key_id = "{ACCESS_KEY}"\ns3_secret_access_key = "{SECRET_KEY}"\n')
            config.chmod(0o600)
            wanted |= {**bucket.node_settings(), "config": config}
        with NodeProcess(folder, **wanted) as node:
            patch.delenv("AWS_ACCESS_KEY_ID", raising=False)  # engines get theirs with the table
            patch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
            with SchemaRegistryClient({"url": f"http://{node.admin}/schema-registry"}) as registry:
                cluster = Cluster(node.bootstrap, registry)
                for topic in TOPICS:
                    topic.create(cluster)
                    topic.send(topic, cluster)
            node.wait_uploaded()
            node.compact()  # it removes the records of the compacted topic whose keys have newer ones
            found = {each.name: committed_records(node.bootstrap, each.name, each.partitions) for each in TOPICS}
            expected = {each.name: expected_rows(each, found[each.name].records) for each in TOPICS}
            assert len(expected[COMPACTED.name]) < len(COMPACTED.events()), "it was cleaned"
            url = f"http://{node.admin}/iceberg"
            wait_until(lambda: not behind(url, found), "the tables have all records", timeout_s=120)
            yield Sent(url, bucket, expected)
            cluster.producers.clear()


def behind(url: str, wanted: Mapping[str, Committed], token: str = "") -> Mapping[str, Any]:
    """Return the tables whose current snapshot is not of all records, and what its summary says."""
    summaries = {name: summary_of(url, name, token) for name in wanted}
    return {name: summary for name, summary in summaries.items() if summary is None or is_behind(summary, wanted[name])}


def is_behind(summary: Mapping[str, str], wanted: Committed) -> bool:
    """Return whether a snapshot lacks offsets, or has records that are no longer in the topic."""
    offsets = json.loads(summary["anabranch.offsets"])
    lacks = any(offsets.get(str(partition), 0) < end for partition, end in wanted.ends.items() if end)
    return lacks or int(summary["total-records"]) != len(wanted.records)


def summary_of(url: str, name: str, token: str) -> Mapping[str, str] | None:
    """Return the summary of a table's current snapshot; None without one, or without the right to see it."""
    place = f"{url}/v1/namespaces/default/tables/{name}?snapshots=refs"
    request = urllib.request.Request(place, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request) as answer:
            snapshots = json.loads(answer.read())["metadata"]["snapshots"]
    except urllib.error.HTTPError:
        return None
    return snapshots[0]["summary"] if snapshots else None


@pytest.mark.parametrize("engine", ["pyiceberg", "polars", "duckdb", pytest.param("trino", marks=pytest.mark.slow)])
def test_every_row_is_the_consumer_s(sent: Sent, engine: str, tmp_path: Path) -> None:
    check(sent, engine, Lake(sent.url, tmp_path, sent.bucket))


@pytest.mark.spark
def test_every_row_of_spark_is_the_consumer_s(sent: Sent, tmp_path: Path, spark: "SparkSession") -> None:
    check(sent, "spark", Lake(sent.url, tmp_path, sent.bucket, spark=spark))


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Sent]:
    """A node whose admin port wants tokens, with one table."""
    config = tmp_path / "node.toml"
    config.write_text(f'[admin]\ntables_token = "{TOKEN}"\n')
    config.chmod(0o600)
    with NodeProcess(tmp_path, config=config) as node:
        MARKS.create(Cluster(node.bootstrap, None))
        MARKS.send(MARKS, Cluster(node.bootstrap, None))
        found = committed_records(node.bootstrap, MARKS.name, MARKS.partitions)
        url = f"http://{node.admin}/iceberg"
        wait_until(lambda: not behind(url, {MARKS.name: found}, TOKEN), "the table has all records")
        assert summary_of(url, MARKS.name, "") is None, "a token is needed"
        yield Sent(url, None, {MARKS.name: expected_rows(MARKS, found.records)})


@pytest.mark.parametrize("engine", ["pyiceberg", "duckdb", pytest.param("trino", marks=pytest.mark.slow)])
def test_engines_send_a_token(guarded: Sent, engine: str, tmp_path: Path) -> None:
    folder = tmp_path / engine
    folder.mkdir()
    check(guarded, engine, Lake(guarded.url, folder, token=TOKEN))


@pytest.mark.spark
def test_spark_sends_a_token(guarded: Sent, tmp_path: Path, spark: "SparkSession") -> None:
    check(guarded, "spark", Lake(guarded.url, tmp_path, token=TOKEN, spark=spark))


def check(sent: Sent, engine: str, lake: Lake) -> None:
    """Compare all tables."""
    differences = {}
    for name, rows in zip(sent.expected, READERS[engine](lake, list(sent.expected)), strict=True):
        expected = sent.expected[name]
        if engine == "pyiceberg":
            expected = [without_null_lists(row) for row in expected]
        if difference := same(engine_rows(rows), expected):
            differences[name] = difference
    assert differences == {}


def without_null_lists(row: Row) -> Row:
    """Return a row as pyiceberg 0.12 shows it: lists of structs that are null are empty ones."""
    found = {**row, "_kafka": {**row["_kafka"], "headers": row["_kafka"]["headers"] or []}}
    if "lines" in row:
        found["lines"] = row["lines"] or []
    if row.get("in"):
        found["in"] = {**row["in"], "list": row["in"]["list"] or []}
    return found
