"""Iceberg tables in catalogs that are services: each record once, with merges and maintenance."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.pipeline.maintenance import maintain_now
from spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import (
    every_offset_once,
    forget_last_commit,
    make_pipeline,
    need,
    numbered,
    offsets,
    run,
)
from tests.support.events import send
from tests.support.rest_catalog import rest_catalog

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a REST catalog."""
    need("iceberg")
    with rest_catalog(tmp_path_factory.mktemp("rest")) as found:
        yield found


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_rest_catalog_has_each_record_once(
    spark: SparkSession, servers: str, topic: str, address: str, tmp_path: Path, mode: str
) -> None:
    # The warehouse is the service's.
    catalog = {"type": "rest", "uri": address, "warehouse": None}
    pipeline = make_pipeline(
        servers, tmp_path, topic, catalog=catalog, table={"mode": mode}, compaction={"batches": 1, "files_min": 2}
    )
    table, _ = open_tables(spark, pipeline)
    for start, end in ((0, 90), (90, 150)):
        send(servers, topic, numbered(start, end))
        run(spark, pipeline)
        forget_last_commit(tmp_path / "checkpoint")
        run(spark, pipeline)
        assert offsets(table.read()) == every_offset_once(end)
    assert list(maintain_now(spark, pipeline))
    assert offsets(table.read()) == every_offset_once(150)
