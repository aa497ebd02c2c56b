"""Every engine reads exactly the records of a READ_COMMITTED consumer, row by row, from files and from S3."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from tests.support.node import NodeProcess
from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Server, set_credentials
from tests.support.waiting import wait_until
from tests.tables.engines.readers import READERS, Lake
from tests.tables.engines.rows import Row, committed_records, engine_rows, expected_rows, same
from tests.tables.engines.topics import TOPICS, Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMES = [topic.name for topic in TOPICS]


@dataclass(frozen=True, slots=True)
class Sent:
    """Expected rows of a node whose tables have all that was sent."""

    url: str
    s3: Mapping[str, str]
    expected: Mapping[str, Sequence[Row]]
    """Rows that each table must have."""


@pytest.fixture(scope="module", params=["files"])
def sent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sent]:
    """A node with all topics, and their rows."""
    folder = tmp_path_factory.mktemp("lake")
    wanted: dict[str, Any] = {"wal_capacity_bytes": 64 << 20}
    s3: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "s3":
            server: S3Server = request.getfixturevalue("s3")
            bucket = server.new_bucket()
            set_credentials(patch)
            config = folder / "node.toml"
            config.write_text(f'[tables]\ns3_access_key_id = "{ACCESS_KEY}"\ns3_secret_access_key = "{SECRET_KEY}"\n')
            config.chmod(0o600)
            wanted |= {**bucket.node_settings(), "config": config}
            s3 = {"s3.endpoint": bucket.endpoint, "s3.region": "us-east-1"}
        with NodeProcess(folder, **wanted) as node:
            patch.delenv("AWS_ACCESS_KEY_ID", raising=False)  # engines get theirs with the table
            patch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
            with SchemaRegistryClient({"url": f"http://{node.admin}/schema-registry"}) as registry:
                cluster = Cluster(node.bootstrap, registry)
                for topic in TOPICS:
                    topic.create(cluster)
                    topic.send(topic, cluster)
            found = {each.name: committed_records(node.bootstrap, each.name, each.partitions) for each in TOPICS}
            expected = {each.name: expected_rows(each, found[each.name].records) for each in TOPICS}
            url = f"http://{node.admin}/iceberg"
            ends = {name: each.ends for name, each in found.items()}
            wait_until(lambda: not behind(url, ends), f"the tables have all of {ends}", timeout_s=120)
            yield Sent(url, s3, expected)
            cluster.producers.clear()


def behind(url: str, ends: Mapping[str, Mapping[int, int]]) -> Mapping[str, Any]:
    """Return the tables that lack offsets, and what they have."""
    found = {name: offsets_of(url, name) for name in ends}
    return {
        name: has
        for name, has in found.items()
        if any(has.get(str(partition), 0) < end for partition, end in ends[name].items() if end)
    }


def offsets_of(url: str, name: str) -> Mapping[str, int]:
    """Return the ends of a table's partitions, from the summary of its current snapshot."""
    try:
        with urllib.request.urlopen(f"{url}/v1/namespaces/default/tables/{name}?snapshots=refs") as answer:
            (snapshot,) = json.loads(answer.read())["metadata"]["snapshots"]
    except urllib.error.HTTPError:
        return {}
    ends: Mapping[str, int] = json.loads(snapshot["summary"]["anabranch.offsets"])
    return ends


@pytest.mark.parametrize("engine", ["pyiceberg", "polars", "duckdb", pytest.param("trino", marks=pytest.mark.slow)])
def test_every_row_is_the_consumer_s(sent: Sent, engine: str, tmp_path: Path) -> None:
    check(sent, engine, Lake(sent.url, tmp_path, sent.s3))


@pytest.mark.spark
def test_every_row_of_spark_is_the_consumer_s(sent: Sent, tmp_path: Path, spark: "SparkSession") -> None:
    check(sent, "spark", Lake(sent.url, tmp_path, sent.s3, spark))


def check(sent: Sent, engine: str, lake: Lake) -> None:
    """Compare all tables."""
    differences = {}
    for name, rows in zip(NAMES, READERS[engine](lake, NAMES), strict=True):
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
