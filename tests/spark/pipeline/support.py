"""Records and pipelines for tests of whole pipelines."""

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from anabranch.spark.jars import TABLE_JARS, installed_spark_version, spark_line
from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.run import RunningPipeline, start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from tests.support.events import Event
from tests.support.soak import LONG

JANUARY_MS = 1_357_000_000_000
DAY_MS = 86_400_000
WAIT_S = 400
FORMATS = pytest.mark.parametrize("table_format", ["iceberg", pytest.param("delta", marks=LONG)])
"""For what a pipeline does alike in both formats. What is Delta's own has tests of Delta alone, without a stream."""


def numbered(start: int, end: int, partitions: int = 3) -> list[Event]:
    """JSON values with a number, a few a day."""
    return [
        Event(n % partitions, b'{"n":%d,"name":"x%d"}' % (n, n), b"key%d" % n, JANUARY_MS + n * DAY_MS // 100)
        for n in range(start, end)
    ]


def need(table_format: str) -> None:
    """Skip where this Spark has no such tables."""
    if table_format != "parquet" and table_format not in TABLE_JARS[spark_line(installed_spark_version())]:
        pytest.skip(f"no {table_format} for Spark {installed_spark_version()}")


def places(table_format: str, folder: Path, topic: str) -> dict[str, str]:
    """`[table]` of a table of that format; its catalog is one for a whole run, as the session is."""
    need(table_format)
    if table_format == "iceberg":
        return {"format": "iceberg", "name": f"lake{folder.name.replace('-', '_')}.db.{topic.replace('-', '_')}"}
    return {"format": table_format, "location": str(folder / "table")}


def make_pipeline(
    servers: str, folder: Path, topic: str, table_format: str = "iceberg", **sections: object
) -> PipelineSettings:
    """A pipeline of JSON values `n INT, name STRING` into a table in `folder`."""
    schema = folder / "values.ddl"
    if not schema.exists():
        schema.write_text("n INT, name STRING")
    values: dict[str, object] = {
        "name": topic,
        "checkpoint": str(folder / "checkpoint"),
        "source": {"bootstrap_servers": servers, "topics": [topic]},
        "decode": {"format": "json", "schema_file": str(schema)},
        "table": places(table_format, folder, topic),
        "catalog": {"warehouse": str(folder / "lake")} if table_format == "iceberg" else {},
        "compaction": {"batches": 0},
    }
    for name, section in sections.items():
        base = values.get(name)
        values[name] = {**base, **section} if isinstance(base, dict) and isinstance(section, dict) else section
    return PipelineSettings.model_validate(values)


def run(spark: SparkSession, pipeline: PipelineSettings) -> RunningPipeline:
    """Run a pipeline until it has processed all current records."""
    running = start_pipeline(spark, pipeline)
    try:
        for query in running.queries:
            assert query.awaitTermination(WAIT_S), "the pipeline did not end"
    finally:
        running.stop()
    running.finish()
    return running


def offsets(table: DataFrame) -> Counter[tuple[int, int]]:
    """Count of each partition and offset in a table."""
    return Counter((row["partition"], row["offset"]) for row in table.select("partition", "offset").collect())


def every_offset_once(count: int, partitions: int = 3) -> Counter[tuple[int, int]]:
    """Expected `offsets` of a table with the records `numbered(0, count)`."""
    return Counter((n % partitions, n // partitions) for n in range(count))


def forget_last_commit(checkpoint: Path) -> None:
    """Restore the state of a driver that died after the table's commit and before the query's own."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.glob("[0-9]*"))
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink()


def failure_of(running: RunningPipeline) -> BaseException | None:
    """Error of a pipeline that ends with one."""
    with pytest.raises(StreamingQueryException):
        running.query.awaitTermination(WAIT_S)
    assert running.batches is not None
    return running.batches.failure


def run_until_it_dies(
    spark: SparkSession, pipeline: PipelineSettings, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    """Run a pipeline whose driver dies where it calls a method."""
    death = PipelineError("the driver dies here")

    def die(*_arguments: object) -> None:
        raise death

    with monkeypatch.context() as patched:
        patched.setattr(owner, method, die)
        assert failure_of(start_pipeline(spark, pipeline)) is death
