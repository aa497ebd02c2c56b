"""Engines, each of which reads tables by the REST catalog of a node."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog

from tests.support.s3 import ACCESS_KEY, SECRET_KEY, S3Bucket
from tests.support.tools import duckdb
from tests.support.trino import CATALOG, trino_server
from tests.tables.engines import duckdb_rows
from tests.tables.engines.rows import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAMESPACE: Final = "default"
REGION: Final = "us-east-1"


@dataclass(frozen=True, slots=True)
class Lake:
    """Place of tables for engines."""

    url: str
    """Address of the REST catalog."""
    folder: Path
    """An empty folder for an engine."""
    bucket: S3Bucket | None = None
    """Bucket with the tables; None: they are local files."""
    token: str = ""
    """Bearer token for the catalog; empty: it needs none."""
    spark: "SparkSession | None" = None
    """The session, if it is Spark that reads."""


Reader = Callable[[Lake, Sequence[str]], Iterator[Sequence[Row]]]
"""Yields the rows of each of some tables."""


@contextmanager
def catalog_of(lake: Lake) -> Iterator[Catalog]:
    """Open the catalog with pyiceberg."""
    token = {"token": lake.token} if lake.token else {}
    catalog = load_catalog("anabranch", type="rest", uri=lake.url, **token)
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
        options = None
        if lake.bucket is not None:  # what the catalog says of the store reaches pyiceberg only
            options = {
                "aws_endpoint_url": lake.bucket.endpoint,
                "aws_region": REGION,
                "aws_access_key_id": ACCESS_KEY,
                "aws_secret_access_key": SECRET_KEY,
            }
        for name in names:
            table = catalog.load_table((NAMESPACE, name))
            scan = pl.scan_iceberg(table, storage_options=options, reader_override="native")
            yield scan.collect().to_arrow().to_pylist()


def by_duckdb(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with DuckDB."""
    command = [str(duckdb("python")), duckdb_rows.__file__, lake.url, lake.token, str(lake.folder), *names]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in names:
        yield pq.read_table(lake.folder / f"{name}.parquet").to_pylist()


def by_spark(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with Spark's runtime of Iceberg."""
    from anabranch.spark.table_tail import catalog_settings

    session = lake.spark
    assert session is not None
    catalog = f"anabranch_{abs(hash(lake.url))}"  # a session keeps the catalogs that it has once used
    settings = catalog_settings(lake.url.removesuffix("/iceberg"), lake.token, name=catalog)
    if lake.bucket is not None:
        # By S3A: its own way to S3 needs jars of 600 MB.
        settings[f"spark.sql.catalog.{catalog}.io-impl"] = "org.apache.iceberg.hadoop.HadoopFileIO"
        hadoop: Any = session.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - Python has no other way
        for name, value in (
            ("endpoint", lake.bucket.endpoint),
            ("endpoint.region", REGION),
            ("path.style.access", "true"),
            ("access.key", ACCESS_KEY),
            ("secret.key", SECRET_KEY),
        ):
            hadoop.set(f"fs.s3a.bucket.{lake.bucket.name}.{name}", value)
    for name, value in settings.items():
        session.conf.set(name, value)
    for name in names:
        yield session.read.table(f"{catalog}.{NAMESPACE}.`{name}`").toArrow().to_pylist()


def by_trino(lake: Lake, names: Sequence[str]) -> Iterator[Sequence[Row]]:
    """Read with Trino."""
    store = {"fs.hadoop.enabled": "true"}
    if lake.bucket is not None:  # it takes keys from the catalog only with a session token
        store = {
            "fs.native-s3.enabled": "true",
            "s3.endpoint": lake.bucket.endpoint,
            "s3.region": REGION,
            "s3.path-style-access": "true",
            "s3.aws-access-key": ACCESS_KEY,
            "s3.aws-secret-key": SECRET_KEY,
        }
    if lake.token:
        store |= {"iceberg.rest-catalog.security": "OAUTH2", "iceberg.rest-catalog.oauth2.token": lake.token}
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
