"""Engines, each of which reads tables by the REST catalog of a node."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.support.tools import duckdb
from tests.support.trino import CATALOG, trino_server
from tests.tables.engines import duckdb_rows
from tests.tables.engines.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE: Final = "default"


@dataclass(frozen=True, slots=True)
class Lake:
    """Place of tables for engines."""

    url: str
    """Address of the REST catalog."""
    folder: Path
    """An empty folder for an engine."""
    s3: Mapping[str, str]
    """Address and keys of the S3 service, by their names in the answer to a load; empty: tables are local files."""
    spark: "SparkSession | None" = None
    """The session, if it is Spark that reads."""


Reader = Callable[[Lake, Sequence[str]], Iterator[Sequence[Row]]]
"""Yields the rows of each of some tables."""


@contextmanager
def catalog_of(lake: Lake) -> Iterator[Catalog]:
    """Open the catalog with pyiceberg."""
    catalog = load_catalog("anabranch", type="rest", uri=lake.url)
    try:
        yield catalog
    finally:
        catalog.close()


def by_pyiceberg(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with pyiceberg."""
    with catalog_of(lake) as catalog:
        for name in names:
            yield catalog.load_table((NAMESPACE, name)).scan().to_arrow().to_pylist()


def by_polars(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with Polars' own reader, which plans with pyiceberg."""
    with pytest.MonkeyPatch.context() as patch, catalog_of(lake) as catalog:
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        for name in names:
            table = catalog.load_table((NAMESPACE, name))
            yield pl.scan_iceberg(table, reader_override="native").collect().to_arrow().to_pylist()


def by_duckdb(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with DuckDB."""
    command = [str(duckdb("python")), duckdb_rows.__file__, lake.url, str(lake.folder), *names]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in names:
        yield pq.read_table(lake.folder / f"{name}.parquet").to_pylist()


def by_spark(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with Spark's runtime of Iceberg."""
    session = lake.spark
    assert session is not None
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": lake.url}
    catalog = f"anabranch_{abs(hash(lake.url))}"  # a session keeps the catalogs that it has once used
    for name, value in settings.items():
        session.conf.set(f"spark.sql.catalog.{catalog}{name}", value)
    for name in names:
        yield session.read.table(f"{catalog}.{NAMESPACE}.`{name}`").toArrow().to_pylist()


def by_trino(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with Trino."""
    store = {"fs.hadoop.enabled": "true"}
    if lake.s3:
        store = {
            "fs.native-s3.enabled": "true",
            "s3.endpoint": lake.s3["s3.endpoint"],
            "s3.region": lake.s3["s3.region"],
            "s3.path-style-access": "true",
            "iceberg.rest-catalog.vended-credentials-enabled": "true",
        }
    with trino_server(lake.folder, {"iceberg.rest-catalog.uri": lake.url, **store}) as server:
        for name in names:
            yield server.query(f'SELECT * FROM {CATALOG}."{NAMESPACE}"."{name}"')


READERS: Final[Mapping[str, Reader]] = {
    "pyiceberg": by_pyiceberg,
    "polars": by_polars,
    "duckdb": by_duckdb,
    "spark": by_spark,
    "trino": by_trino,
}
