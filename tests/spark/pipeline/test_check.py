"""`ingest --check` finds what would stop a pipeline: each with the setting to change, in one line."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from anabranch.spark import cli
from anabranch.spark.pipeline.check import RECORDS, check_pipeline
from anabranch.spark.pipeline.decode import RecordDecoder
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import rows_of, table_columns
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import make_pipeline

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def refused(spark: SparkSession, pipeline: PipelineSettings) -> str:
    with pytest.raises(SettingError) as caught:
        check_pipeline(spark, pipeline)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_spark_would_not_take(spark: SparkSession, tmp_path: Path) -> None:
    def make(topic: str, table_format: str = "iceberg", **sections: object) -> PipelineSettings:
        return make_pipeline("127.0.0.1:1", tmp_path, topic, table_format, **sections)

    check_pipeline(spark, make("good", table={"event_time": "to_timestamp(data.name)"}))
    check_pipeline(spark, make("good", "delta"))
    check_pipeline(spark, make("good", "parquet"))
    assert not (tmp_path / "table").exists(), "a check writes nothing"
    sql = refused(spark, make("sql", table={"event_time": "to_timestamp(data.nothing)"}))
    assert sql.startswith("table.event_time: [FIELD_NOT_FOUND] No such struct field `nothing` in `n`, `name`.")
    assert refused(spark, make("sql", table={"event_time": "to_timestamp("})).startswith(
        "table.event_time: [PARSE_SYNTAX"
    )
    kind = refused(spark, make("kind", table={"name": "elsewhere.db.t"}, catalog={"type": "unheard-of"}))
    assert kind.startswith("catalog: ")
    assert "unheard-of" in kind
    registry = {"format": "json", "schema_file": None, "registry": "http://127.0.0.1:1", "subject": "s"}
    assert refused(spark, make("registry", decode=registry)).startswith("decode.registry: ")
    (tmp_path / "values.ddl").write_text("n INTT")
    assert refused(spark, make("ddl")).startswith(
        f"decode.schema_file: {tmp_path}/values.ddl: the schema can't be read"
    )


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_type_that_the_table_cannot_take(spark: SparkSession, tmp_path: Path, table_format: str) -> None:
    """It would stop the first micro-batch with records, which may be days after the start."""

    def make(columns: str) -> PipelineSettings:
        (tmp_path / "values.ddl").write_text(columns)
        return make_pipeline("127.0.0.1:1", tmp_path, "types", table_format, table={"partition_by": "none"})

    pipeline = make("n INT, name STRING, part STRUCT<a: INT>")
    (column,) = (each for each in pipeline_columns(spark, pipeline) if each.name == "data")
    table, _ = open_tables(spark, pipeline)
    table.append(spark.createDataFrame([], StructType([column])), "q", 0)
    assert check_pipeline(spark, pipeline) == []
    for columns, field in (
        ("n STRING, name STRING", "n"),
        ("n INT, name INT", "name"),
        ("part STRUCT<a: STRING>", "a"),
        ("part INT", "part"),
    ):
        said = refused(spark, make(columns))
        assert said.startswith(f"table.{'name' if table_format == 'iceberg' else 'location'}: {table.place} has other")
        assert field in said
        assert said.endswith("; use another table, and a new checkpoint")
    # A field that is new, or missing, or in Iceberg one that becomes wider, is no matter.
    wider = "BIGINT" if table_format == "iceberg" else "INT"
    assert check_pipeline(spark, make(f"n {wider}, more STRING")) == []


def pipeline_columns(spark: SparkSession, pipeline: PipelineSettings) -> StructType:
    records = rows_of(spark.createDataFrame([], RECORDS), RecordDecoder(pipeline).current(), pipeline)
    return records.select(*table_columns(records, pipeline)).schema


@pytest.mark.interop
def test_the_command_names_file_and_line(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f'checkpoint = "checkpoint"\n[source]\nbootstrap_servers = "{servers}"\ntopics = ["{topic}"]\n'
        '[table]\nformat = "parquet"\nlocation = "table"\nevent_time = "tomorrow(value)"\n'
    )
    monkeypatch.setattr("anabranch.spark.jobs.build_session", lambda *_args, **_more: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    done = CliRunner().invoke(cli.main, ["ingest", "--check", str(path)])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: {path}:8: table.event_time: [UNRESOLVED_ROUTINE]")
    assert not (tmp_path / "table").exists()
