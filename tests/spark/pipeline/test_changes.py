"""Tables with keys: what a topic's records, and envelopes of Debezium, make of their rows, in both formats."""

import json
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline import iceberg as iceberg_module
from anabranch.spark.pipeline import merge as merge_module
from anabranch.spark.pipeline import writer as writer_module
from anabranch.spark.pipeline.changes import DELETED
from anabranch.spark.pipeline.check import check_pipeline
from anabranch.spark.pipeline.errors import AnotherDriver, PipelineError, SettingError
from anabranch.spark.pipeline.iceberg import IcebergTable
from anabranch.spark.pipeline.merge import Merge, bounds_of
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.tables import LakehouseTable, open_tables
from tests.spark.pipeline.support import FORMATS, JANUARY_MS, forget_last_commit, make_pipeline, need, run
from tests.support.events import Event, create_topic, send
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def change(key: str | None, n: int | None, *, partition: int | None = None, at: int = 0) -> Event:
    """A record of a key: its value, or its deletion. A key stays in its partition unless told otherwise."""
    place = sum((key or "").encode()) % 3 if partition is None else partition
    value = None if n is None else json.dumps({"n": n, "name": f"x{n}"}).encode()
    return Event(place, value, None if key is None else key.encode(), JANUARY_MS + at)


def keyed(servers: str, folder: Path, topic: str, table_format: str, **sections: Any) -> PipelineSettings:
    """A pipeline into a table with keys, without the 16 buckets that are the default in Iceberg: each is a file."""
    table = {"mode": "upsert", "partition_by": "none", **sections.pop("table", {})}
    key = sections.pop("key", {"format": "text"})
    return make_pipeline(servers, folder, topic, table_format, table=table, key=key, **sections)


def rows(table: LakehouseTable) -> dict[Any, Any]:
    """Number of each key. Fails if a key has two rows."""
    found = table.read().select("key", "data.n").collect()
    values = {row["key"]: row["n"] for row in found}
    assert len(values) == len(found)
    return values


def errors(table: LakehouseTable) -> list[str]:
    return sorted(row["error"] for row in table.read().collect())


def folded(events: Iterable[Event]) -> Mapping[str, int]:
    """The newest number of each key, without those that were deleted."""
    state: dict[str, int] = {}
    for event in events:
        assert event.key is not None
        if event.value is None:
            state.pop(event.key.decode(), None)
        else:
            state[event.key.decode()] = json.loads(event.value)["n"]
    return state


@FORMATS
def test_each_key_has_the_row_of_its_newest_record(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = keyed(servers, tmp_path, topic, table_format)
    first = [change(f"k{n % 10}", n) for n in range(40)]
    send(servers, topic, [*first, change("k3", None), change(None, 99)])
    run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    assert rows(table) == folded([*first, change("k3", None)])
    assert errors(dead_letters) == ["key: missing, so the record belongs to no row"]
    # A key that comes back, one that goes, one that is new, and one that comes and goes within the micro-batch.
    second = [change("k3", 103), change("k4", None), change("new", 104), change("short", 105), change("short", None)]
    send(servers, topic, second)
    with monkeypatch.context() as patched:
        # What was persisted is lost with its executor: each use computes it again.
        patched.setattr(writer_module, "persisted", nullcontext)
        last = run(spark, pipeline)
    wanted = folded([*first, change("k3", None), *second])
    assert rows(table) == wanted
    # A driver that died after the table's commit repeats the micro-batch.
    forget_last_commit(Path(pipeline.checkpoint))
    run(spark, pipeline)
    assert rows(table) == wanted
    assert table.committed(last.query.id) == 1
    assert len(errors(dead_letters)) == 1


@FORMATS
def test_a_micro_batch_without_a_good_record_is_a_commit_too(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = keyed(servers, tmp_path, topic, table_format)
    send(servers, topic, [change(None, 1), Event(0, b"not JSON", b"k")])
    running = run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    assert rows(table) == {}
    assert errors(dead_letters) == [
        "key: missing, so the record belongs to no row",
        "not JSON at character 0: expecting value",
    ]
    assert table.committed(running.query.id) == 0


def test_a_topic_read_again_and_one_that_grew_do_not_take_rows_back(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    need("iceberg")
    pipeline = keyed(servers, tmp_path, topic, "iceberg")
    events = [change("a", 1, at=1), change("a", 2, at=2), change("b", 3, at=3), change("moved", 4, partition=0, at=9)]
    # The topic has grown: the key's later records, by their timestamps, are in another partition.
    moved = [change("moved", 6, partition=2, at=11), change("moved", 5, partition=1, at=10)]
    send(servers, topic, [*events, *moved])
    run(spark, pipeline)
    table, _ = open_tables(spark, pipeline)
    wanted = {"a": 2, "b": 3, "moved": 6}
    assert rows(table) == wanted
    # Another checkpoint begins at the beginning, one offset of each partition at a time.
    again = pipeline.model_copy(
        update={
            "checkpoint": str(tmp_path / "second"),
            "source": pipeline.source.model_copy(update={"offsets_per_batch_max": 2}),
        }
    )
    run(spark, again)
    assert rows(table) == wanted


@FORMATS
def test_new_fields_become_columns_and_missing_ones_are_empty(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = keyed(servers, tmp_path, topic, table_format)
    send(servers, topic, [change("old", 1), change("both", 2)])
    run(spark, pipeline)
    (tmp_path / "values.ddl").write_text("n INT, name STRING, more STRUCT<a: INT>")
    value = {"n": 3, "name": "x", "more": {"a": 7}}
    send(servers, topic, [Event(1, json.dumps(value).encode(), b"both", JANUARY_MS + 5)])
    run(spark, pipeline)
    table, _ = open_tables(spark, pipeline)
    found = {row["key"]: row["data"].asDict(recursive=True) for row in table.read().collect()}
    assert found == {"old": {"n": 1, "name": "x1", "more": None}, "both": value}
    # A schema that has lost fields.
    (tmp_path / "values.ddl").write_text("n INT")
    send(servers, topic, [Event(1, b'{"n":4}', b"both", JANUARY_MS + 6)])
    run(spark, pipeline)
    found = {row["key"]: row["data"].asDict(recursive=True) for row in table.read().collect()}
    assert found["both"] == {"n": 4, "name": None, "more": None}


ENVELOPE = "before: STRUCT<n: INT, name: STRING>, after: STRUCT<n: INT, name: STRING>, op: STRING, ts_ms: BIGINT"


def envelope(op: str | None, after: object = None, *, connect: bool = False) -> bytes:
    """A value as Debezium writes it, with Kafka Connect's envelope around it or without."""
    body = {"before": None, "after": after, "op": op, "ts_ms": 5, "source": {"db": "shop"}}
    return json.dumps({"schema": {"type": "struct"}, "payload": body} if connect else body).encode()


@pytest.mark.parametrize("connect", [True, False])
def test_envelopes_of_debezium_become_rows(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, connect: bool
) -> None:
    need("iceberg")
    pipeline = keyed(
        servers,
        tmp_path,
        topic,
        "iceberg",
        table={"mode": "changelog", "event_time": "timestamp_millis(data.n)"},
    )
    (tmp_path / "values.ddl").write_text(f"payload: STRUCT<{ENVELOPE}>" if connect else ENVELOPE)

    def record(key: str, op: str | None, n: int | None = None) -> Event:
        after = None if n is None else {"n": n, "name": f"x{n}"}
        return change(key, None)._replace(value=envelope(op, after, connect=connect))

    events = [record("read", "r", 1), record("created", "c", 2), record("gone", "c", 3), record("updated", "c", 4)]
    events += [record("updated", "u", 5), record("gone", "d"), change("gone", None)]
    events += [record("bad", "t"), record("bad", None), record("bad", "u"), change("bad", 7)]
    send(servers, topic, events)
    run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    assert rows(table) == {"read": 1, "created": 2, "updated": 5}
    assert {row["event_time"].microsecond for row in table.read().select("event_time").collect()} == {1000, 2000, 5000}
    assert errors(dead_letters) == [
        "after: missing, though op is u",
        "op: expected c, u, r or d, found t",
        "op: missing, so this is no envelope of Debezium",
        "op: missing, so this is no envelope of Debezium",
    ]


def test_keys_are_columns_in_mode_append_too(spark: SparkSession, servers: str, topic: str, tmp_path: Path) -> None:
    need("iceberg")
    (tmp_path / "keys.ddl").write_text("id INT, region STRING")
    pipeline = make_pipeline(
        servers,
        tmp_path,
        topic,
        key={"format": "json", "schema_file": str(tmp_path / "keys.ddl")},
        table={"partition_by": ["key.region"]},
    )
    send(servers, topic, [change('{"id":1,"region":"eu"}', 1), change('{"id":"x"}', 2), change(None, 3)])
    run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    found = {row["n"]: row["key"] and row["key"].asDict() for row in table.read().select("key", "data.n").collect()}
    assert found == {1: {"id": 1, "region": "eu"}, 3: None}
    (dead,) = dead_letters.read().collect()
    assert (dead["error"], bytes(dead["key"])) == ("key: id: expected int, found the text 'x'", b'{"id":"x"}')


def test_rows_are_of_a_topic_and_a_key_that_is_a_struct(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    need("iceberg")
    topics = [topic, f"{topic}-other"]
    create_topic(servers, topics[1], 3)
    (tmp_path / "keys.ddl").write_text("id INT, at STRUCT<day: DATE, n: DOUBLE>")
    pipeline = keyed(
        servers,
        tmp_path,
        topics[0],
        "iceberg",
        source={"topics": topics},
        table={"partition_by": ["topic"]},
        key={"format": "json", "schema_file": str(tmp_path / "keys.ddl")},
    )
    one, two = '{"id":1,"at":{"day":"2013-01-01","n":0.5}}', '{"id":1}'
    send(servers, topics[0], [change(one, 1), change(two, 2), change(two, 3)])
    send(servers, topics[1], [change(one, 4)])
    run(spark, pipeline)
    table, _ = open_tables(spark, pipeline)
    send(servers, topics[1], [change(one, 5), change(two, None)])
    send(servers, topics[0], [change(two, None)])
    run(spark, pipeline)
    found = table.read().select("topic", "key.id", "key.at.n", "data.n").collect()
    assert sorted(tuple(row) for row in found) == sorted([(topics[0], 1, 0.5, 1), (topics[1], 1, 0.5, 5)])


def test_a_key_with_an_empty_part_has_one_row_beside_the_others_of_its_batch(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    need("iceberg")
    (tmp_path / "keys.ddl").write_text("id INT, n INT")
    key = {"format": "json", "schema_file": str(tmp_path / "keys.ddl")}
    pipeline = keyed(servers, tmp_path, topic, "iceberg", table={"partition_by": ["bucket(16, key.id)"]}, key=key)
    # Empty parts beside others, and then alone.
    for n, keys in enumerate((['{"n":1}', '{"id":1,"n":1}'], ['{"n":1}', '{"id":1,"n":1}'], ['{"n":1}'])):
        send(servers, topic, [change(each, n) for each in keys])
        run(spark, pipeline)
    table, _ = open_tables(spark, pipeline)
    assert isinstance(table, IcebergTable)
    assert [each.column for each in table.bucket_functions()] == ["key.id"]
    found = table.read().select("key.id", "data.n").collect()
    assert {tuple(row) for row in found} == {(None, 2), (1, 1)}
    assert len(found) == 2


def changes(spark: SparkSession, *numbers: int, offset: int = 0) -> DataFrame:
    """A change of the key of each number, as a merge takes it."""
    found = spark.createDataFrame([(n,) for n in numbers], "n INT")
    return found.selectExpr(
        "'t' AS topic",
        "0 AS partition",
        f"{offset} + BIGINT(n) AS offset",
        f"TIMESTAMP_SECONDS({offset} + n) AS timestamp",
        "'k' || n % 10 AS key",
        "NAMED_STRUCT('n', n) AS data",
        f"false AS {DELETED}",
    )


def test_a_merge_that_another_writer_overtakes_is_done_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("iceberg")
    table, _ = open_tables(spark, keyed("127.0.0.1:1", tmp_path, "overtaken", "iceberg"))
    assert isinstance(table, IcebergTable)
    table.merge(changes(spark, 1, 2), "q", 0)
    merge, others = Merge.run, [lambda: table.load().newAppend().commit()]

    def overtaken(self: Merge, *arguments: Any) -> None:
        merge(self, *arguments)
        if others:
            others.pop()()

    monkeypatch.setattr(Merge, "run", overtaken)
    table.merge(changes(spark, 11, 3), "q", 1)
    assert rows(table) == {"k1": 11, "k2": 2, "k3": 3}
    summary = table.load().currentSnapshot().summary()
    assert (summary["anabranch.query-id"], summary["anabranch.batch-id"]) == ("q", "1")
    # Another driver on the same checkpoint is one of the other writers.
    second, _ = open_tables(spark, keyed("127.0.0.1:1", tmp_path, "overtaken", "iceberg"))
    others.append(lambda: second.merge(changes(spark, 21), "q", 2))
    with pytest.raises(AnotherDriver, match="micro-batch 2 was committed by another driver"):
        table.merge(changes(spark, 21), "q", 2)
    assert rows(table) == {"k1": 21, "k2": 2, "k3": 3}
    for module in (iceberg_module, merge_module):
        monkeypatch.setattr(module, "MERGE_TRIES", 2)
    others.extend([lambda: table.load().newAppend().commit()] * 2)
    with pytest.raises(PipelineError, match=r"micro-batch 3 was merged 2 times, .* stop what writes to the table"):
        table.merge(changes(spark, 31), "q", 3)
    assert (rows(table)["k1"], table.committed("q")) == (21, 2)


def test_a_key_that_two_writers_add_at_once_has_one_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("iceberg")
    pipeline = keyed("127.0.0.1:1", tmp_path, "added", "iceberg")
    table, other = (open_tables(spark, pipeline)[0] for _ in range(2))
    table.merge(changes(spark, 1), "q", 0)
    merge = Merge.run

    def overtaken(self: Merge, *arguments: Any) -> None:
        merge(self, *arguments)
        monkeypatch.setattr(Merge, "run", merge)
        other.merge(changes(spark, 2), "another", 0)

    monkeypatch.setattr(Merge, "run", overtaken)
    table.merge(changes(spark, 12), "q", 1)
    found = table.read().select("key", "data.n").collect()
    assert sorted(tuple(row) for row in found) == [("k1", 1), ("k2", 12)]


@pytest.mark.parametrize("table_format", ["iceberg", "delta"])
def test_a_merge_that_is_overtaken_while_it_runs_is_done_again(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    pipeline = keyed("127.0.0.1:1", tmp_path, "during", table_format)
    table, other = (open_tables(spark, pipeline)[0] for _ in range(2))
    table.merge(changes(spark, 1, 2), "q", 0)
    reads, goes_on = tmp_path / "reads", tmp_path / "goes-on"

    def wait_for_the_other(n: int) -> int:
        reads.touch()
        while not goes_on.exists():
            time.sleep(0.01)
        return n

    number = f.udf(wait_for_the_other, "INT", useArrow=False)("data.n")
    slow = changes(spark, 11).withColumn("data", f.struct(number.alias("n")))

    def overtake() -> None:
        try:
            wait_until(reads.exists, "the merge reads its rows")
            other.merge(changes(spark, 21), "another", 0)
        finally:
            goes_on.touch()

    with ThreadPoolExecutor(1) as thread:
        overtaking = thread.submit(overtake)
        table.merge(slow, "q", 1)
        overtaking.result()
    # The newest row of the key.
    assert (rows(table), table.committed("q"), table.committed("another")) == ({"k1": 21, "k2": 2}, 1, 0)


def test_a_commit_that_another_process_has_overwritten_is_told(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes have renamed their metadata to the same version at the same moment."""
    need("iceberg")
    table, _ = open_tables(spark, make_pipeline("127.0.0.1:1", tmp_path, "overwritten"))
    table.append(changes(spark, 1).drop(DELETED), "q", 0)
    before = table.committed("q")
    monkeypatch.setattr(iceberg_module, "_committed", lambda *_: before)
    with pytest.raises(PipelineError, match="micro-batch 1 was committed and is not there: another process"):
        table.append(changes(spark, 2).drop(DELETED), "q", 1)


def test_delta_merges_a_micro_batch_once(spark: SparkSession, tmp_path: Path) -> None:
    need("delta")
    table, _ = open_tables(spark, keyed("127.0.0.1:1", tmp_path, "once", "delta"))
    session = spark.newSession()  # a query has a session of its own
    table.merge(changes(session, 1, 2), "q", 0)
    # A new field becomes a column.
    named = changes(session, 11).withColumn("data", f.col("data").withField("name", f.lit("x")))
    table.merge(named, "q", 1)
    # A driver that was taken for dead: its changes would be newer, but the number counts.
    table.merge(changes(session, 21, 22), "q", 1)
    # No changes are a commit, too.
    table.merge(changes(session), "q", 2)
    found = {row["key"]: row["data"].asDict() for row in table.read().collect()}
    assert (found, table.committed("q")) == ({"k1": {"n": 11, "name": "x"}, "k2": {"n": 2, "name": None}}, 2)
    # Compaction drops the row that was replaced, and is no micro-batch.
    assert table.compact() > 0
    assert (rows(table), table.committed("q")) == ({"k1": 11, "k2": 2}, 2)
    assert len(table.read().inputFiles()) == 1
    appended, _ = open_tables(spark, keyed("127.0.0.1:1", tmp_path, "once", "delta", table={"mode": "append"}))
    with pytest.raises(SettingError, match=r"table\.mode: .* has one row for each key"):
        appended.layout_changes(table.read().schema)
    assert table.layout_changes(table.read().schema) == []


@FORMATS
def test_a_table_keeps_its_kind_of_mode(spark: SparkSession, tmp_path: Path, table_format: str) -> None:
    for mode, other, message in (
        ("append", "upsert", "has been appended to, so a key may have several rows already; use another table"),
        ("changelog", "append", "has one row for each key, and appended records would end that; use another table"),
    ):
        folder = tmp_path / mode
        folder.mkdir()
        (folder / "values.ddl").write_text(ENVELOPE)
        first = keyed("127.0.0.1:1", folder, mode, table_format, table={"mode": mode})
        table, _ = open_tables(spark, first)
        (table.append if mode == "append" else table.merge)(changes(spark, 1), "q", 0)
        check_pipeline(spark, first)
        second = keyed("127.0.0.1:1", folder, mode, table_format, table={"mode": other})
        with pytest.raises(SettingError, match=f"table.mode: .* {message}"):
            check_pipeline(spark, second)


def test_values_without_an_envelope_are_refused_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    need("delta")
    pipeline = keyed("127.0.0.1:1", tmp_path, "t", "delta", table={"mode": "changelog"})
    with pytest.raises(SettingError, match=r"table\.mode: changelog needs Debezium's envelope, but .* after: n, name"):
        check_pipeline(spark, pipeline)
    (tmp_path / "keys.ddl").write_text("id MAP<STRING, INT>")
    key = {"format": "json", "schema_file": str(tmp_path / "keys.ddl")}
    with pytest.raises(SettingError, match=r"key\.format: keys with a map in them cannot be compared"):
        check_pipeline(spark, keyed("127.0.0.1:1", tmp_path, "t", "delta", key=key))


@FORMATS
def test_a_merge_reads_only_files_that_may_have_one_of_the_keys(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    by_default = {"table": {"mode": "upsert"}, "key": {"format": "text"}}
    table, _ = open_tables(spark, make_pipeline("127.0.0.1:1", tmp_path, "bounded", table_format, **by_default))
    table.merge(changes(spark, *range(10)), "q", 0)
    buckets = table.bucket_functions() if isinstance(table, IcebergTable) else ()
    assert [(each.width, each.column) for each in buckets] == ([(16, "key")] if table_format == "iceberg" else [])
    found = list(bounds_of(changes(spark, 3, 5), buckets, f.col))
    kept = table.read().select("key").filter(reduce(and_, found))
    plan = kept._jdf.queryExecution().executedPlan().toString()  # noqa: SLF001 - Python has no plans
    assert {row["key"] for row in kept.collect()} >= {"k3", "k5"}
    if table_format == "iceberg":
        assert len(found) == 3
        assert "key >= 'k3', key <= 'k5'" in plan
        assert "bucket[16](key) IN (" in plan
        assert {row["key"] for row in kept.collect()} <= {"k3", "k4", "k5"}


@FORMATS
def test_compaction_drops_replaced_rows(spark: SparkSession, tmp_path: Path, table_format: str) -> None:
    files = {"compaction": {"files_min": 2}} if table_format == "iceberg" else {}
    pipeline = keyed("127.0.0.1:1", tmp_path, "replaced", table_format, **files)
    table, _ = open_tables(spark, pipeline)
    for batch in range(4):
        table.merge(changes(spark, *range(10), offset=batch * 100), "q", batch)
    if isinstance(table, IcebergTable):
        summary = table.load().currentSnapshot().summary()
        # A data file has one file of positions, however often its rows were replaced.
        assert int(summary["total-delete-files"]) <= int(summary["total-data-files"])
        assert (summary["total-records"], summary["total-position-deletes"]) == ("40", "30")
    assert table.compact() > 0
    assert len(rows(table)) == 10
    if isinstance(table, IcebergTable):
        summary = table.load().currentSnapshot().summary()
        assert (summary["total-records"], summary["total-position-deletes"]) == ("10", "0")
