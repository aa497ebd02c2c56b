"""Errors of a pipeline are one line, which has what matters."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from anabranch.spark import cli
from anabranch.spark.pipeline.errors import REASON_CHARS_MAX, reason_of
from anabranch.spark.pipeline.tables import open_tables
from tests.conftest import QUICK_SQL
from tests.spark.pipeline.support import make_pipeline, need, numbered, run
from tests.support.events import send
from tests.support.soak import LONG


class OfJava(Exception):
    """An error as py4j and PySpark show those of Java."""

    def __init__(self, text: str, *causes: str) -> None:
        super().__init__(text)
        chain = None
        for cause in reversed(causes):
            chain = SimpleNamespace(getMessage=lambda text=cause: text, getCause=lambda chain=chain: chain)
        self._origin = SimpleNamespace(getCause=lambda: chain)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError(), "ValueError"),
        (ValueError("a\n\n  b.\n"), "a b"),
        (PySparkException("lost\n\tat org.apache.Spark(Spark.scala:1)\nCaused by: more"), "lost"),
        (PySparkException("[X] wrong\n== SQL ==\nSELECT"), "[X] wrong"),
        (PySparkException("java.lang.IllegalStateException: gone"), "gone"),
        (PySparkException("java.lang.NullPointerException"), "java.lang.NullPointerException"),
        (OfJava("field 'a'", "field 'n'", "INT and TEXT"), "field 'a': field 'n': INT and TEXT"),
        (OfJava("says it all: cause", "cause", ""), "says it all: cause"),
        (
            PySparkException(
                '[P] failed to plan: Traceback (most recent call last):\n  File "a.py", line 1\n    raise KeyError: x\n'
                "KeyError: 1\n\nDuring handling of it, another\n\n"
                'Traceback (most recent call last):\n  File "b.py"\nspark.storage.LocationError: no catalog: in data\n'
            ),
            "[P] failed to plan: no catalog: in data",
        ),
        (PySparkException("failed: Traceback (most recent call last):\n  File \"a.py\"\nKeyError"), "failed"),
        (ValueError("x" * 1000), "x" * REASON_CHARS_MAX + "..."),
    ],
)  # fmt: skip
def test_the_reason_of_an_error(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


@pytest.mark.spark
@pytest.mark.slow
def test_a_field_that_does_not_fit_a_table_is_named(spark: SparkSession, tmp_path: Path) -> None:
    need("delta")
    pipeline = make_pipeline("127.0.0.1:1", tmp_path, "fields", "delta", table={"partition_by": "none"})
    table, _ = open_tables(spark, pipeline)
    table.append(spark.createDataFrame([], "data STRUCT<n: INT>"), "q", 0)
    with pytest.raises(PySparkException) as caught:
        table.append(spark.createDataFrame([], "data STRUCT<n: STRING>"), "q", 1)
    assert "fields 'n' and 'n'" in reason_of(caught.value)
    assert "incompatible data types IntegerType and StringType" in reason_of(caught.value)


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.parametrize("in_process", [True, pytest.param(False, marks=LONG)])
def test_lost_records_are_told_without_a_trace(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: bool
) -> None:
    send(servers, topic, numbered(0, 30))
    run(spark, make_pipeline(servers, tmp_path, topic, "parquet", table={"partition_by": "none"}))
    send(servers, topic, numbered(30, 60))
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_records([TopicPartition(topic, index, OFFSET_END) for index in range(3)]).values():
        done.result(30)
    path = tmp_path / "pipeline.toml"
    path.write_text(
        f'checkpoint = "checkpoint"\n[source]\nbootstrap_servers = "{servers}"\ntopics = ["{topic}"]\n'
        '[decode]\nformat = "json"\nschema_file = "values.ddl"\n'
        '[table]\nformat = "parquet"\nlocation = "table"\npartition_by = "none"\n'
    )
    if in_process:
        monkeypatch.setattr("anabranch.spark.jobs.build_session", lambda *_args, **_more: spark)
        monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
        result = CliRunner().invoke(cli.main, ["ingest", str(path)])
        code, shown = result.exit_code, result.stderr
    else:  # what Java says is shown, too
        settings = {"spark.driver.memory": "512m", **QUICK_SQL}
        words = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = [sys.executable, "-m", "anabranch.spark", "ingest", *words, str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        code, shown = ended.returncode, ended.stderr
    assert code == 1
    assert shown.count("\n") == 1, shown
    line = shown.rstrip("\n")
    assert line.startswith("Error: the pipeline failed: Some data may have been lost")
    assert line.endswith("(to continue without them: source.fail_on_data_loss = false)")
