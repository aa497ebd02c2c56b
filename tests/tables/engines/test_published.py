"""Published tables have the rows of a READ_COMMITTED consumer, read by way of the other catalogs."""

import json
import re
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog

from anabranch.broker.operator.cli import main
from tests.support.node import NodeProcess
from tests.support.postgres import PostgresServer
from tests.support.rest_catalog import rest_catalog
from tests.support.waiting import wait_until
from tests.tables.engines.rows import Row, committed_records, engine_rows, expected_rows, same
from tests.tables.engines.test_engines import behind, without_null_lists
from tests.tables.engines.topics import HOSTILE, MARKS, TRANSACTIONS, Cluster, TableTopic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.interop, pytest.mark.server]
TOPICS = {
    "rest": [replace(each, name=f"{each.name}-rest") for each in (HOSTILE, TRANSACTIONS)],
    "jdbc": [replace(each, name=f"{each.name}-jdbc") for each in (MARKS, TRANSACTIONS)],
}


@pytest.fixture(scope="module")
def addresses(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with rest_catalog(tmp_path_factory.mktemp("rest")) as address:
        yield {"rest": address, "jdbc": postgres.new_database()}


@pytest.fixture(scope="module")
def node(addresses: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node")
    config = folder / "node.toml"
    config.write_text(
        "".join(f'[table_catalogs.{name}]\ntype = "{name}"\nuri = "{uri}"\n' for name, uri in addresses.items())
    )
    with NodeProcess(folder, wal_capacity_bytes=64 << 20, storage_upload_age_ms=200, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def expected(node: NodeProcess) -> Mapping[str, Sequence[Row]]:
    """Rows of published topics, by name."""
    cluster = Cluster(node.bootstrap, None)
    for catalog, some in TOPICS.items():
        for topic in some:
            published(topic, catalog).create(cluster)
            topic.send(topic, cluster)
    node.wait_uploaded()
    topics = [topic for some in TOPICS.values() for topic in some]
    found = {each.name: committed_records(node.bootstrap, each.name, each.partitions) for each in topics}
    url = f"http://{node.admin}/iceberg"
    wait_until(lambda: not behind(url, found), "the tables have all records", timeout_s=120)
    wait_until(lambda: all(is_published(node, name) for name in found), "they are published")
    shown = CliRunner().invoke(main, ["table", "describe", f"{MARKS.name}-jdbc", "--admin", node.admin])
    assert re.search(r"published +in jdbc, version \d+, snapshot \d+\n", shown.output), shown.output
    cluster.producers.clear()
    return {each.name: expected_rows(each, found[each.name].records) for each in topics}


def published(topic: TableTopic, catalog: str) -> TableTopic:
    return replace(topic, configs=lambda cluster: {**topic.configs(cluster), "table.publish": catalog})


def is_published(node: NodeProcess, topic: str) -> bool:
    try:
        found: dict[str, Any] = json.loads(node.ask(f"/api/v1/tables/{topic}"))
    except urllib.error.URLError:
        return False
    wanted = {"catalog": topic.rpartition("-")[2], "version": found["version"], "snapshot_id": found["snapshot_id"]}
    return bool(found["publication"] == {**wanted, "lag_ms": 0, "error": None})


def differences(rows: Mapping[str, Sequence[Row]], expected: Mapping[str, Sequence[Row]]) -> Mapping[str, str]:
    return {name: text for name, some in rows.items() if (text := same(engine_rows(some), expected[name]))}


def opened(catalog: str, uri: str) -> Catalog:
    if catalog == "rest":
        return RestCatalog("reader", uri=uri)
    return SqlCatalog("jdbc", uri=uri.replace("postgresql://", "postgresql+psycopg://"))


@pytest.mark.parametrize("catalog", TOPICS)
def test_pyiceberg_finds_the_consumer_s_rows(
    expected: Mapping[str, Sequence[Row]], addresses: Mapping[str, str], catalog: str
) -> None:
    with closing(opened(catalog, addresses[catalog])) as reader:
        names = [each.name for each in TOPICS[catalog]]
        rows = {name: reader.load_table(("default", name)).scan().to_arrow().to_pylist() for name in names}
    assert differences(rows, {name: list(map(without_null_lists, expected[name])) for name in names}) == {}


@pytest.mark.spark
@pytest.mark.parametrize("catalog", TOPICS)
def test_spark_finds_the_consumer_s_rows(
    node: NodeProcess,
    expected: Mapping[str, Sequence[Row]],
    addresses: Mapping[str, str],
    catalog: str,
    tmp_path: Path,
    spark: "SparkSession",
) -> None:
    from anabranch.spark.table_tail import table_and_tail

    # Spark's name of a JDBC catalog is that in the database. A session keeps the catalogs that it has once used.
    name, uri = ("jdbc", addresses["jdbc"]) if catalog == "jdbc" else (f"published_{tmp_path.name}", addresses["rest"])
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": catalog, ".uri": uri}
    if catalog == "jdbc":
        user, _, place = uri.removeprefix("postgresql://").partition("@")
        settings |= {".uri": f"jdbc:postgresql://{place}", ".jdbc.user": user, ".warehouse": str(tmp_path)}
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
    rows = {
        each.name: spark.read.table(f"{name}.default.`{each.name}`").toArrow().to_pylist() for each in TOPICS[catalog]
    }
    assert differences(rows, expected) == {}
    last = TOPICS[catalog][-1].name
    both = table_and_tail(spark, f"{name}.default.`{last}`", {"kafka.bootstrap.servers": node.bootstrap})
    assert differences({last: both.toArrow().to_pylist()}, expected) == {}
