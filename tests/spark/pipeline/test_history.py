"""Tables with keys that keep what is deleted, or each version of a row: marks, and slowly changing dimensions."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import ValidationError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.changes import DELETED
from anabranch.spark.pipeline.check import check_pipeline
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.history import HistoryMerge
from anabranch.spark.pipeline.sections import TableSection
from anabranch.spark.pipeline.tables import LakehouseTable, open_tables
from tests.spark.pipeline.support import FORMATS, JANUARY_MS, forget_last_commit, need, run
from tests.spark.pipeline.test_changes import change, errors, keyed
from tests.support.events import Event, send

REAL = (pytest.mark.spark, pytest.mark.interop, pytest.mark.slow)


class Version(NamedTuple):
    """A row of a table with history, with times in ms from the beginning of the events."""

    n: int | None
    since: int
    until: int | None
    deleted: bool = False


def with_marks(test: Any) -> Any:
    for mark in REAL:
        test = mark(test)
    return test


def ms(name: str) -> Any:
    return (f.unix_millis(name) - JANUARY_MS).alias(name)


def history(table: LakehouseTable) -> dict[str, list[Version]]:
    """Versions of each key. Fails if the mark of the newest is not that of its time."""
    found: dict[str, list[Version]] = {}
    columns = ["key", "data.n", ms("valid_from"), ms("valid_to"), "deleted", "is_current"]
    for key, n, since, until, deleted, is_current in (
        table.read().orderBy("valid_from", "offset").select(*columns).collect()
    ):
        assert is_current == (until is None)
        found.setdefault(key, []).append(Version(n, since, until, deleted))
    return found


def modelled(events: Sequence[Event]) -> dict[str, list[Version]]:
    """The same by a model: offset by offset, of keys that stay in their partition."""
    found: dict[str, list[Version]] = {}
    for event in events:
        assert event.key is not None
        versions = found.setdefault(event.key.decode(), [])
        at = max(event.timestamp_ms - JANUARY_MS, versions[-1].since if versions else 0)
        if versions:
            versions[-1] = versions[-1]._replace(until=at)
        n = None if event.value is None else int(event.value.partition(b'"n": ')[2].partition(b",")[0])
        versions.append(Version(n, at, None, deleted=n is None))
    return found


@with_marks
@FORMATS
def test_each_record_is_a_version_of_its_row(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = keyed(servers, tmp_path, topic, table_format, table={"history": True})
    assert check_pipeline(spark, pipeline) == []
    first = [
        change("a", 1, at=1), change("b", 1, at=1), change("a", 2, at=5), change("a", 3, at=4), change("b", None, at=7),
        change("c", None, at=2), change("d", 1, at=3),
    ]  # fmt: skip
    send(servers, topic, first)
    send(servers, topic, [Event(0, b"{", b"bad", JANUARY_MS)])
    run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    assert history(table) == modelled(first)
    assert modelled(first)["a"] == [Version(1, 1, 5), Version(2, 5, 5), Version(3, 5, None)]
    second = [change("b", 2, at=9), change("a", None, at=10), change("d", 2, at=11), change("d", 3, at=12)]
    send(servers, topic, second)
    last = run(spark, pipeline)
    wanted = modelled([*first, *second])
    assert history(table) == wanted
    # A driver that died after the table's commit repeats the micro-batch.
    forget_last_commit(Path(pipeline.checkpoint))
    run(spark, pipeline)
    assert history(table) == wanted
    assert table.committed(last.query.id) == 1
    assert len(errors(dead_letters)) == 1
    # Another checkpoint reads all of it again, a few at a time.
    again = pipeline.model_copy(
        update={
            "checkpoint": str(tmp_path / "again"),
            "source": pipeline.source.model_copy(update={"offsets_per_batch_max": 5}),
        }
    )
    run(spark, again)
    assert history(table) == wanted
    for table_settings in ({}, {"deletes": "mark"}):
        other = keyed(servers, tmp_path, topic, table_format, table=table_settings)
        with pytest.raises(SettingError, match=r"^table.history: .* has the history of each key, and so several rows"):
            check_pipeline(spark, other)


@with_marks
@FORMATS
def test_a_deleted_row_is_marked(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = keyed(servers, tmp_path, topic, table_format, table={"deletes": "mark"})
    send(servers, topic, [
        change("stays", 1, at=1), change("goes", 1, at=1), change("short", 1, at=1), change("short", 2, at=2),
        change("short", None, at=3), change("never", None, at=4), change("late", 1, at=9, partition=1),
        change("bad", None, at=1),
    ])  # fmt: skip
    run(spark, pipeline)
    send(servers, topic, [
        change("goes", None, at=5), change("never", 7, at=6), change("late", None, at=8, partition=2),
        change("short", None, at=7), Event(0, b'{"n": "x"}', b"bad", JANUARY_MS + 9),
    ])  # fmt: skip
    last = run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)

    def rows() -> dict[str, tuple[Any, ...]]:
        found = table.read().select("key", "data.n", "deleted", ms("deleted_at"), ms("timestamp")).collect()
        assert len({row["key"] for row in found}) == len(found)
        return {row["key"]: tuple(row)[1:] for row in found}

    wanted = {
        "stays": (1, False, None, 1), "goes": (1, True, 5, 5), "short": (2, True, 7, 7), "never": (7, False, None, 6),
        "late": (1, False, None, 9), "bad": (None, True, 1, 1),
    }  # fmt: skip
    assert rows() == wanted
    forget_last_commit(Path(pipeline.checkpoint))
    run(spark, pipeline)
    assert rows() == wanted
    assert table.committed(last.query.id) == 1
    assert len(errors(dead_letters)) == 1


def versions(spark: SparkSession, *rows: tuple[str, int, int, int, int | None]) -> DataFrame:
    """Records of key, partition, offset, seconds, and number, as a merge takes them."""
    found = spark.createDataFrame(list(rows), "key STRING, partition INT, offset BIGINT, at BIGINT, n INT")
    return found.selectExpr(
        "'t' AS topic", "partition", "offset", "timestamp_seconds(at) AS timestamp", "key", "n IS NULL AS deleted",
        "timestamp_seconds(at) AS valid_from", "CAST(NULL AS TIMESTAMP) AS valid_to", "true AS is_current",
        "NAMED_STRUCT('n', n) AS data", f"n IS NULL AS {DELETED}",
    )  # fmt: skip


def intervals(table: LakehouseTable) -> list[tuple[Any, ...]]:
    columns = ("key", "data.n", f.unix_seconds("valid_from"), f.unix_seconds("valid_to"), "is_current")
    return sorted((tuple(row) for row in table.read().select(*columns).collect()), key=str)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_the_order_of_commits_does_not_matter(
    spark: SparkSession, tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    need(table_format)
    # Key k is in two partitions, since its topic has grown.
    rows = [
        ("k", 0, 0, 1, 10), ("k", 0, 1, 3, 11), ("k", 0, 2, 2, None), ("k", 1, 0, 4, 12), ("k", 1, 1, 6, 13),
        ("m", 0, 3, 1, 20), ("m", 0, 4, 9, 21),
    ]  # fmt: skip
    wanted = sorted(
        [
            ("k", 10, 1, 3, False), ("k", 11, 3, 3, False), ("k", None, 3, 4, False), ("k", 12, 4, 6, False),
            ("k", 13, 6, None, True), ("m", 20, 1, 9, False), ("m", 21, 9, None, True),
        ],
        key=str,
    )  # fmt: skip
    pipeline = keyed("127.0.0.1:1", tmp_path, "orders", table_format, table={"history": True})
    table, _ = open_tables(spark, pipeline)
    random.Random(7).shuffle(rows)
    for number, some in enumerate((rows[:3], rows[3:5], rows[2:], rows)):
        table.merge(versions(spark, *some), "q", number)
    assert intervals(table) == wanted
    # Another writer commits between the look at the table and the merge.
    session = spark.newSession()  # as that of another driver
    other, _ = open_tables(session, pipeline)
    merge, others = HistoryMerge.run, [lambda: other.merge(versions(session, ("k", 1, 2, 7, 14)), "other", 0)]

    def overtaken(self: HistoryMerge, *arguments: Any) -> None:
        if others:
            others.pop()()
        merge(self, *arguments)

    monkeypatch.setattr(HistoryMerge, "run", overtaken)
    table.merge(versions(spark, ("k", 0, 5, 8, 15)), "q", 4)
    wanted.remove(("k", 13, 6, None, True))
    wanted += [("k", 13, 6, 7, False), ("k", 14, 7, 8, False), ("k", 15, 8, None, True)]
    assert intervals(table) == sorted(wanted, key=str)
    assert (table.committed("q"), table.committed("other")) == (4, 0)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ({"deletes": "mark"}, "has no effect: with mode = 'append' nothing is deleted"),
        ({"history": True}, "has no effect: with mode = 'append' nothing is deleted"),
        ({"mode": "upsert", "history": True, "deletes": "mark"}, "has no effect: with history a deletion is a version"),
    ],
)
def test_what_has_no_effect_is_refused(table: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        TableSection.model_validate({"name": "lake.db.t", **table})
