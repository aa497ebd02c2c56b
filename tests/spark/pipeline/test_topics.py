"""Pipelines with a table for each topic: every record in its table once, whatever dies, appears or has no schema."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession

from anabranch.spark import cli
from anabranch.spark.pipeline.errors import PipelineError, SettingError
from anabranch.spark.pipeline.maintenance import maintain_now
from anabranch.spark.pipeline.replay import Replayed, replay
from anabranch.spark.pipeline.run import ROWS_PER_TASK, MicroBatchWriter, start_pipeline
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import LakehouseTable, open_tables
from anabranch.spark.pipeline.toml_file import describe
from anabranch.spark.pipeline.topics import known_topics
from anabranch.spark.pipeline.writer import TableWriter
from tests.spark.pipeline.registry_server import running_registry
from tests.spark.pipeline.support import (
    DAY_MS,
    JANUARY_MS,
    every_offset_once,
    failure_of,
    forget_last_commit,
    make_pipeline,
    need,
    numbered,
    offsets,
    run,
)
from tests.spark.pipeline.test_decoders import NEWER, PLAIN, avro, with_id
from tests.support.events import Event, create_topic, send
from tests.support.waiting import wait_until

REAL = (pytest.mark.spark, pytest.mark.interop, pytest.mark.slow)


def with_marks(test: Any) -> Any:
    """Mark a test that needs Spark and a node."""
    for mark in REAL:
        test = mark(test)
    return test


def per_topic(
    servers: str, folder: Path, prefix: str, table_format: str = "iceberg", **sections: object
) -> PipelineSettings:
    """A pipeline of all topics that begin with `prefix`, each with a schema file and a table."""
    need(table_format)
    place = (
        {"name": f"lake{folder.name.replace('-', '_')}.db.{{topic}}", "location": None}
        if table_format == "iceberg"
        else {"location": f"{folder}/{{topic}}"}
    )
    source = {"topics": (), "topic_pattern": f"{prefix}[.-].*"}
    decode = {"schema_file": str(folder / "{topic}.ddl")}
    defaults: dict[str, Any] = {"source": source, "decode": decode, "table": place}
    for name, section in sections.items():
        defaults[name] = {**defaults[name], **section} if isinstance(section, dict) and name in defaults else section
    return make_pipeline(servers, folder, prefix, table_format, **defaults)


def tables_of(spark: SparkSession, pipeline: PipelineSettings, topic: str) -> tuple[LakehouseTable, LakehouseTable]:
    """Table of a topic, and that of its dead letters."""
    return open_tables(spark, pipeline.for_topic(topic))


def make_topics(servers: str, folder: Path, topics: Sequence[str], schema: str = "n INT, name STRING") -> None:
    """Topics of three partitions with their schema files."""
    for topic in topics:
        create_topic(servers, topic, 3)
        (folder / f"{topic}.ddl").write_text(schema)


@with_marks
def test_every_topic_has_its_own_table_and_progress(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, late = f"{topic}.eu", f"{topic}-us", f"{topic}-zz"
    make_topics(servers, tmp_path, [first])
    make_topics(servers, tmp_path, [second], "name STRING")
    pipeline = per_topic(servers, tmp_path, topic)
    send(servers, first, [*numbered(0, 30), Event(0, b"{", timestamp_ms=JANUARY_MS)])
    send(servers, second, numbered(0, 12))
    running = run(spark, pipeline)
    assert running.batches is not None
    assert running.batches.counted == {0: 43}
    table, dead_letters = tables_of(spark, pipeline, first)
    other, _ = tables_of(spark, pipeline, second)
    assert (offsets(table.read()), offsets(other.read())) == (every_offset_once(30), every_offset_once(12))
    assert offsets(dead_letters.read()) == {(0, 10): 1}
    assert (fields(table.read()), fields(other.read())) == (["n", "name"], ["name"])
    assert {row["topic"] for row in table.read().select("topic").collect()} == {first}

    # A driver dies between the tables of a micro-batch, of which one topic has no records ...
    create_topic(servers, late, 3)
    send(servers, late, numbered(0, 3))
    send(servers, second, numbered(12, 15))
    with monkeypatch.context() as patched:
        write = TableWriter.write

        def dies(self: TableWriter, batch: DataFrame, query_id: str, batch_id: int) -> int | None:
            if self.topic == late:
                raise PipelineError("the driver dies here")
            return write(self, batch, query_id, batch_id)

        patched.setattr(TableWriter, "write", dies)
        assert str(failure_of(start_pipeline(spark, pipeline))) == "the driver dies here"
    assert offsets(other.read()) == every_offset_once(15)
    # ... and then after all of them. The new topic has no schema: its records are dead letters.
    run(spark, pipeline)
    forget_last_commit(Path(pipeline.checkpoint))
    send(servers, first, numbered(31, 34))
    send(servers, late, numbered(3, 6))
    run(spark, pipeline)
    assert offsets(other.read()) == every_offset_once(15)
    new, letters = tables_of(spark, pipeline, late)
    assert (new.exists(), offsets(letters.read())) == (False, every_offset_once(6))
    reason = f"decode.schema_file: {tmp_path}/{late}.ddl: No such file or directory"
    assert {row["error"] for row in letters.read().select("error").collect()} == {reason}
    assert replay(spark, pipeline, f"topic = '{late}'", dry_run=True) == Replayed(0, 0, {reason: 6})
    (tmp_path / f"{late}.ddl").write_text("n INT")
    # A driver that died before its commit finds a schema that was not there: the records stay where they are.
    forget_last_commit(Path(pipeline.checkpoint))
    run(spark, pipeline)
    assert not new.exists()
    assert replay(spark, pipeline, None, dry_run=False).put_back == 6
    assert (offsets(new.read()), letters.read().count()) == (every_offset_once(6), 0)
    assert [line.partition(": ")[0] for line in maintain_now(spark, pipeline)].count(new.place) == 3


def fields(table: DataFrame) -> list[str]:
    """Names in the column `data`."""
    return table.select("data.*").columns


@with_marks
def test_a_topic_that_appears_while_the_pipeline_runs(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    first, second = f"{topic}-a", f"{topic}-b"
    create_topic(servers, first, 1)
    with running_registry() as registry:
        plain = registry.add(f"{first}-value", PLAIN)
        pipeline = per_topic(
            servers, tmp_path, topic,
            decode={"format": "avro", "schema_file": None, "registry": registry.url},
            trigger={"mode": "processing-time", "interval": "100 milliseconds"},
        )  # fmt: skip
        send(servers, first, [Event(0, with_id(plain, avro(PLAIN, {"carrier": "AA", "delay": 3})))])
        running = start_pipeline(spark, pipeline)
        try:
            old, new = (tables_of(spark, pipeline, name)[0] for name in (first, second))
            wait_until(lambda: old.exists() and not old.read().isEmpty(), "the first topic's record arrived")
            newer = registry.add(f"{second}-value", NEWER)
            create_topic(servers, second, 1)
            record = {"carrier": "DL", "delay": 0, "gate": "B7"}
            send(servers, second, [Event(0, with_id(newer, avro(NEWER, record)))])
            wait_until(lambda: new.exists() and not new.read().isEmpty(), "the new topic's record arrived")
        finally:
            running.stop()
    assert (fields(old.read()), fields(new.read())) == (["carrier", "delay"], ["carrier", "delay", "gate"])
    assert {path for path in registry.requests if path.startswith("/subjects")} == {
        f"/subjects/{name}-value/versions/latest" for name in (first, second)
    }


@with_marks
def test_each_topic_has_its_own_watermark(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    ahead, behind = f"{topic}-a", f"{topic}-b"
    make_topics(servers, tmp_path, [ahead, behind])
    pipeline = per_topic(servers, tmp_path, topic, table={"partition_by": "none"}, watermark={"delay": "1 hour"})

    def at(*days: int) -> list[Event]:
        return [Event(0, b"{}", timestamp_ms=JANUARY_MS + day * DAY_MS) for day in days]

    send(servers, ahead, at(9))
    send(servers, behind, at(1))
    run(spark, pipeline)
    # The watermark outlives a micro-batch without records of its topic.
    send(servers, behind, at(1))
    run(spark, pipeline)
    send(servers, behind, at(0, 2))
    send(servers, ahead, at(8))
    run(spark, pipeline)
    late = {name: tables_of(spark, pipeline, name)[1].read() for name in (ahead, behind)}
    assert (offsets(late[ahead]), offsets(late[behind])) == ({(0, 1): 1}, {(0, 2): 1})


@with_marks
def test_the_commands_know_the_topics(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topics(servers, tmp_path, [f"{topic}-a"])
    create_topic(servers, f"{topic}-b", 1)
    pipeline = per_topic(servers, tmp_path, topic)
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'checkpoint = "checkpoint"\n[source]\nbootstrap_servers = "{servers}"\ntopic_pattern = "{topic}[.-].*"\n'
        f'[decode]\nformat = "json"\nschema_file = "{{topic}}.ddl"\n[table]\nname = "{pipeline.table.name}"\n'
    )
    monkeypatch.setattr("anabranch.spark.jobs.build_session", lambda *_args, **_more: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)

    def outcome(*arguments: str) -> tuple[int, list[str]]:
        result = CliRunner().invoke(cli.main, [*arguments, str(file)])
        return result.exit_code, result.output.splitlines()

    places = [pipeline.for_topic(f"{topic}-{letter}").table.place for letter in "ab"]
    problem = f"decode.schema_file: {tmp_path}/{topic}-b.ddl: No such file or directory"
    found = [
        f"topic {topic}-a: table {places[0]}",
        f"topic {topic}-b: table {places[1]}",
        f"topic {topic}-b: {problem}; its records become dead letters until there is one",
        "ready to run",
    ]
    assert outcome("ingest", "--check") == (0, [f"{file}: {line}" for line in found])
    send(servers, f"{topic}-b", [Event(0, b'{"n":1}', timestamp_ms=JANUARY_MS)])
    code, lines = outcome("ingest")
    assert (code, lines[0].startswith("batch 0: 1 row in "), lines[-1]) == (0, True, "1 row from this run")
    (tmp_path / f"{topic}-b.ddl").write_text("n INT")
    assert outcome("replay") == (0, [f"1 of 1 dead letters put back into {pipeline.table.name}"])
    code, lines = outcome("ingest")
    assert (code, lines) == (0, ["0 rows from this run"])


@with_marks
def test_topics_that_would_share_a_table_stop_the_pipeline(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    make_topics(servers, tmp_path, [f"{topic}.a"])
    pipeline = per_topic(servers, tmp_path, topic)
    send(servers, f"{topic}.a", numbered(0, 3))
    run(spark, pipeline)
    make_topics(servers, tmp_path, [f"{topic}-a"])
    send(servers, f"{topic}-a", numbered(0, 6))
    failure = failure_of(start_pipeline(spark, pipeline))
    assert isinstance(failure, SettingError)
    place = pipeline.for_topic(f"{topic}.a").table.place
    assert str(failure) == (
        f"table.topic_names: topics '{topic}-a' and '{topic}.a' would share {place}: give one of them another name here"
    )
    with pytest.raises(SettingError):
        known_topics(spark, pipeline)
    renamed = per_topic(servers, tmp_path, topic, table={"topic_names": {f"{topic}-a": "another"}})
    run(spark, renamed)
    assert offsets(open_tables(spark, renamed.for_topic(f"{topic}-a"))[0].read()) == every_offset_once(6)
    assert offsets(open_tables(spark, renamed.for_topic(f"{topic}.a"))[0].read()) == every_offset_once(3)


def parse(table: dict[str, object], *topics: str, **sections: object) -> PipelineSettings:
    source = {"topics": topics} if topics else {"topic_pattern": ".*"}
    return PipelineSettings.model_validate({"checkpoint": "c", "source": source, "table": table, **sections})


@pytest.mark.spark
def test_a_topic_gets_the_tasks_that_its_rows_are_worth(spark: SparkSession, tmp_path: Path) -> None:
    tasks: list[int] = []

    def write(rows: DataFrame, *_: object) -> None:
        tasks.append(rows.rdd.getNumPartitions())

    pipeline = per_topic("127.0.0.1:1", tmp_path, "small", maintenance={"enabled": False})
    writer: Any = SimpleNamespace(write=write, tables=())
    batches = MicroBatchWriter(spark, pipeline, writers={"a": writer, "b": writer})
    batches.query_id.set_result("query")
    rows = spark.range(0, ROWS_PER_TASK + 6, numPartitions=8).selectExpr("IF(id < 5, 'a', 'b') AS topic")
    batches(rows, 0)
    assert (tasks, batches.counted) == ([1, 2], {0: ROWS_PER_TASK + 6})


def test_what_stands_for_the_topic() -> None:
    decode = {"format": "avro", "registry": "http://127.0.0.1:1"}
    pipeline = parse({"name": "lake.db.{topic}", "topic_names": {"b": "c-d"}}, decode=decode)
    own = pipeline.for_topic("a.b-c")
    assert (own.table.place, own.dead_letter_place) == ("lake.db.a_b_c", "lake.db.a_b_c_dead_letters")
    assert (own.source.topics, own.source.topic_pattern, own.subject_of("value")) == (("a.b-c",), None, "a.b-c-value")
    assert pipeline.for_topic("b").table.place == "lake.db.c-d"
    located = parse({"format": "delta", "location": "s3a://lake/{topic}/all"}, dead_letters={"location": "/d/{topic}"})
    assert located.for_topic("a.b").table.place == "s3a://lake/a.b/all"
    assert located.for_topic("a.b").dead_letter_place == "/d/a.b"
    named = parse({"name": "lake.db.{topic}"}, decode={**decode, "subject": "prod.{topic}"})
    assert named.for_topic("a.b").subject_of("value") == "prod.a.b"


@pytest.mark.parametrize(
    ("sections", "topics", "problem"),
    [
        (
            {"table": {"format": "parquet", "location": "/t/{topic}"}},
            [],
            "table.location = '/t/{topic}': Spark's file sink",
        ),
        (
            {"table": {"name": "{topic}.db.t"}},
            [],
            "table.name = '{topic}.db.t': {topic} can't be in the catalog's name",
        ),
        ({"table": {"name": "l.d.t", "topic_names": {"a": "b"}}}, [], "table.topic_names: has no effect: table.name"),
        (
            {"table": {"name": "l.d.t"}, "dead_letters": {"name": "l.d.{topic}"}},
            [],
            "dead_letters.name = 'l.d.{topic}': has no effect",
        ),
        (
            {"table": {"name": "l.d.{topic}"}, "dead_letters": {"name": "l.d.dead"}},
            [],
            "dead_letters.name = 'l.d.dead': each topic's table has its own: add {topic}",
        ),
        ({"table": {"name": "l.d.{topic}"}}, ["a-b", "a.b"], "table.topic_names: topics 'a-b' and 'a.b' would share"),
        ({"table": {"name": "l.d.{topic}"}}, ["A", "a"], "table.topic_names: topics 'A' and 'a' would share l.d.a"),
        (
            {"table": {"name": "l.d.{topic}"}, "decode": {"format": "text"}},
            ["a", "a_dead_letters"],
            "table.topic_names: topics 'a' and 'a_dead_letters' would share l.d.a_dead_letters",
        ),
    ],
)
def test_settings_that_contradict_a_table_for_each_topic(
    sections: dict[str, Any], topics: list[str], problem: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        parse(*(sections.pop("table"),), *topics, **sections)
    _, message = describe(caught.value.errors()[0])
    assert message.startswith(problem)
