"""Iceberg tables in catalogs that are services: each record once, merged or a dead letter, with maintenance."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.pipeline.maintenance import maintain_now
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import (
    JANUARY_MS,
    every_offset_once,
    forget_last_commit,
    make_pipeline,
    need,
    numbered,
    offsets,
    run,
)
from tests.support.events import Event, send
from tests.support.hive_metastore import hive_metastore
from tests.support.rest_catalog import rest_catalog
from tests.support.soak import LONG

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


@pytest.fixture(scope="module")
def catalog(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """`[catalog]` of a service, whose warehouse is its own."""
    need("iceberg")
    service = {"rest": rest_catalog, "hive": hive_metastore}[request.param]
    with service(tmp_path_factory.mktemp(request.param)) as address:
        yield {"type": request.param, "uri": address, "warehouse": None}


@pytest.mark.parametrize("catalog", ["rest", pytest.param("hive", marks=LONG)], indirect=True)
def test_a_catalog_has_each_record_once(
    spark: SparkSession, servers: str, topic: str, catalog: dict[str, object], tmp_path: Path
) -> None:
    # The session keeps a catalog by its name, here one for each service.
    table_settings = {
        "mode": "upsert",
        "partition_by": "none",
        "name": f"{catalog['type']}.db.{topic.replace('-', '_')}",
    }
    pipeline = make_pipeline(
        servers, tmp_path, topic,
        catalog=catalog, source={"offsets_per_batch_max": 90}, table=table_settings, compaction={"files_min": 2},
    )  # fmt: skip
    table, dead_letters = open_tables(spark, pipeline)
    # Rows are merged, in two micro-batches, and dead letters are appended.
    send(servers, topic, [*numbered(0, 150), Event(0, b"dead", b"dead", JANUARY_MS)])
    run(spark, pipeline)
    assert spark.table(f"{pipeline.table.name}.files").count() > 1
    forget_last_commit(tmp_path / "checkpoint")
    run(spark, pipeline)
    assert list(maintain_now(spark, pipeline))
    assert spark.table(f"{pipeline.table.name}.files").count() == 1
    assert offsets(table.read()) == every_offset_once(150)
    assert offsets(dead_letters.read()) == {(0, 50): 1}
