"""Dead letters that are put back into the table, each exactly once, whatever dies and whatever runs beside."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import Column, DataFrame, SparkSession

from anabranch.spark import cli
from anabranch.spark.pipeline import replay as module
from anabranch.spark.pipeline.errors import AnotherDriver
from anabranch.spark.pipeline.names import quoted
from anabranch.spark.pipeline.replay import REPLAYS, Replayed, replay
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import table_columns
from anabranch.spark.pipeline.tables import LakehouseTable, MicroBatchSink, open_dead_letters, open_tables
from tests.spark.pipeline.support import (
    DAY_MS,
    FORMATS,
    JANUARY_MS,
    every_offset_once,
    make_pipeline,
    need,
    numbered,
    offsets,
    run,
)
from tests.support.events import Event, create_topic, send
from tests.support.soak import LONG

UNREAD = {"not JSON at character 1: expecting property name enclosed in double quotes": 1}
pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def text(n: int) -> Event:
    """A record whose number is a text, which the pipeline's schema refuses, of partition 0 to 2."""
    return Event(n % 3, b'{"n":"%d","name":"x%d"}' % (n, n), b"key%d" % n, JANUARY_MS + n)


def names(table: LakehouseTable) -> list[str]:
    """Names in the rows, sorted."""
    return sorted(row["name"] for row in table.read().select("data.name").collect())


def pipeline_of(servers: str, folder: Path, topic: str, kind: str, **sections: object) -> PipelineSettings:
    """A pipeline with dead letters of a kind; `topic`: a table of Iceberg, and dead letters in a topic."""
    if kind != "topic":
        return make_pipeline(servers, folder, topic, kind, **sections)
    create_topic(servers, f"{topic}-dead", 2)
    return make_pipeline(servers, folder, topic, "iceberg", dead_letters={"topic": f"{topic}-dead"}, **sections)


def places_of(spark: SparkSession, pipeline: PipelineSettings) -> tuple[LakehouseTable, MicroBatchSink]:
    """Table and dead letters."""
    return open_tables(spark, pipeline)[0], open_dead_letters(spark, pipeline)


def with_dead_letters(
    spark: SparkSession, servers: str, topic: str, folder: Path, kind: str, **sections: object
) -> PipelineSettings:
    """A pipeline that has run: 9 good records, then 6 with a text for a number, and one that nothing repairs."""
    pipeline = pipeline_of(servers, folder, topic, kind, **sections)
    send(servers, topic, [*numbered(0, 9), *(text(n) for n in range(9, 15)), Event(0, b"{", b"key15", JANUARY_MS)])
    run(spark, pipeline)
    return pipeline


def mend(folder: Path) -> None:
    """Let the schema ignore the number."""
    (folder / "values.ddl").write_text("name STRING")


@pytest.mark.parametrize("kind", ["topic", *(pytest.param(each, marks=LONG) for each in ("iceberg", "delta"))])
def test_what_fits_a_mended_schema_is_put_back_once(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, kind: str
) -> None:
    pipeline = with_dead_letters(spark, servers, topic, tmp_path, kind)
    table, dead_letters = places_of(spark, pipeline)
    mend(tmp_path)
    assert replay(spark, pipeline, "offset < 4", dry_run=False) == Replayed(3, 0, {})
    assert replay(spark, pipeline, None, dry_run=False) == Replayed(3, 0, UNREAD)
    assert replay(spark, pipeline, None, dry_run=False) == Replayed(0, 0, UNREAD)
    assert offsets(table.read()) == every_offset_once(15)
    assert offsets(dead_letters.frozen()) == {(0, 5): 1}
    # The pipeline goes on with both tables.
    send(servers, topic, [Event(1, b'{"name":"more"}', b"k", JANUARY_MS), Event(2, b"[]", b"k", JANUARY_MS)])
    run(spark, pipeline)
    assert "more" in names(table)
    assert offsets(dead_letters.frozen()) == {(0, 5): 1, (2, 5): 1}


def test_values_mended_in_the_table_are_put_back(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    pipeline = with_dead_letters(spark, servers, topic, tmp_path, "iceberg")
    table, dead_letters = places_of(spark, pipeline)
    texts = {f"n: expected int, found the text '{n}'": 1 for n in range(9, 15)}
    assert replay(spark, pipeline, None, dry_run=False) == Replayed(0, 0, {**texts, **UNREAD})
    assert (dead_letters.frozen().count(), table.committed(REPLAYS)) == (7, -1)
    spark.sql(
        f'UPDATE {quoted(dead_letters.place)} SET value = CAST(\'{{"n":7,"name":"mended"}}\' AS BINARY) '
        "WHERE partition = 0 AND offset = 5"
    )
    assert replay(spark, pipeline, None, dry_run=False) == Replayed(1, 0, texts)
    assert dead_letters.frozen().count() == 6
    assert names(table) == sorted([*(f"x{n}" for n in range(9)), "mended"])


def test_a_replay_that_died_before_it_deleted_does_not_write_twice(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_dead_letters(spark, servers, topic, tmp_path, "iceberg")
    table, dead_letters = places_of(spark, pipeline)
    mend(tmp_path)

    class Died(Exception):
        pass

    def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(type(dead_letters), "remove", die)
        with pytest.raises(Died):
            replay(spark, pipeline, None, dry_run=False)
    assert offsets(table.read()) == every_offset_once(15)
    assert dead_letters.frozen().count() == 7
    found = replay(spark, pipeline, None, dry_run=False)
    assert (found.put_back, found.there_before) == (0, 6)
    assert offsets(table.read()) == every_offset_once(15)
    assert dead_letters.frozen().count() == 1


def letters(spark: SparkSession, topic: str, *records: tuple[int, int, int, bytes]) -> DataFrame:
    """Dead letters of records: the partition, offset, day and value of each."""
    found = spark.createDataFrame(list(records), "partition INT, offset BIGINT, day INT, value BINARY")
    return found.selectExpr(
        f"'{topic}' AS topic", "partition", "offset",
        f"TIMESTAMP_MILLIS({JANUARY_MS} + day * {DAY_MS}) AS timestamp",
        "CAST(NULL AS BINARY) AS key", "value", "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>) AS headers",
        "'bad' AS error", "0L AS batch_id",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_of_two_replays_at_once_one_writes(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is suspended after it has looked what the table lacks; the second takes a part of the letters.

    Iceberg refuses the number that both have. Delta skips it, and the first finds that its rows are not there.
    """
    pipeline = pipeline_of("127.0.0.1:1", tmp_path, "faster", kind)
    table, dead_letters = places_of(spark, pipeline)
    values = [(n % 3, n // 3, 0, b'{"n":"text","name":"x"}') for n in range(6)]
    dead_letters.append(letters(spark, "faster", *values, (0, 5, 0, b"{")), "q", 0)
    mend(tmp_path)

    def suspended(records: DataFrame, of: PipelineSettings) -> list[Column]:
        monkeypatch.setattr(module, "table_columns", table_columns)
        assert replay(spark, pipeline, "partition = 1", dry_run=False).put_back == 2
        return table_columns(records, of)

    monkeypatch.setattr(module, "table_columns", suspended)
    with pytest.raises(AnotherDriver, match="another replay was faster; run it again"):
        replay(spark, pipeline, None, dry_run=False)
    found = replay(spark, pipeline, None, dry_run=False)
    assert found.put_back + found.there_before == 4
    assert offsets(table.read()) == every_offset_once(6)
    assert offsets(dead_letters.frozen()) == {(0, 5): 1}


@FORMATS
def test_a_row_of_a_key_is_replaced_by_a_newer_letter_only(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = pipeline_of(servers, tmp_path, topic, table_format, table={"mode": "upsert"}, key={"format": "text"})

    def record(key: bytes, name: bytes, number: bytes = b"1") -> Event:
        return Event(0, b'{"n":%s,"name":"%s"}' % (number, name), key, JANUARY_MS)

    bad = b'"text"'
    send(
        servers, topic,
        [
            # The clock of its producer is ahead.
            record(b"a", b"old", bad)._replace(timestamp_ms=JANUARY_MS + 5_000), record(b"a", b"new"),
            record(b"b", b"old"), record(b"b", b"new", bad),
        ],
    )  # fmt: skip
    run(spark, pipeline)
    table, dead_letters = places_of(spark, pipeline)
    mend(tmp_path)
    assert replay(spark, pipeline, None, dry_run=True) == Replayed(2, 0, {})
    assert replay(spark, pipeline, None, dry_run=False) == Replayed(2, 0, {})
    found = {row["key"]: row["name"] for row in table.read().select("key", "data.name").collect()}
    assert found == {"a": "new", "b": "new"}
    assert dead_letters.frozen().isEmpty()


def test_records_of_two_topics_of_one_name_are_both_put_back(spark: SparkSession, tmp_path: Path) -> None:
    """The topic was deleted and made anew, and a new checkpoint has read it into the same tables."""
    need("iceberg")
    pipeline = pipeline_of("127.0.0.1:1", tmp_path, "twice", "iceberg")
    table, dead_letters = places_of(spark, pipeline)
    old, new = (0, 5, 0, b'{"n":1,"name":"old"}'), (0, 5, 1, b'{"n":2,"name":"new"}')
    dead_letters.append(letters(spark, "twice", old, new), "q", 0)
    mend(tmp_path)
    assert replay(spark, pipeline, None, dry_run=False).put_back == 2
    assert names(table) == ["new", "old"]
    assert dead_letters.frozen().isEmpty()


def test_the_command(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = with_dead_letters(spark, servers, topic, tmp_path, "iceberg")
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'checkpoint = "checkpoint"\n[source]\nbootstrap_servers = "{servers}"\ntopics = ["{topic}"]\n'
        f'[decode]\nformat = "json"\nschema_file = "values.ddl"\n[table]\nname = "{pipeline.table.name}"\n'
    )
    monkeypatch.setattr("anabranch.spark.jobs.build_session", lambda *_args, **_more: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _self: None)
    mend(tmp_path)

    def outcome(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli.main, ["replay", str(file), *arguments])
        return result.exit_code, " ".join(result.output.split())

    place = f"{pipeline.table.name}"
    assert outcome("--where", "offset <")[0] == 1
    assert "Error: --where: [UNRESOLVED_COLUMN" in outcome("--where", "nothing = 1")[1]
    assert outcome("--dry-run")[1].startswith("6 of 7 dead letters can be put back dead letters that stay")
    assert outcome("--where", "offset < 5") == (0, f"6 of 6 dead letters put back into {place}")
    assert outcome()[1].startswith(f"0 of 1 dead letters put back into {place}")
    assert outcome("--where", "offset > 100") == (0, f"{place}_dead_letters: no dead letters to put back")
