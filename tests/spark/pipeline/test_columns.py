"""Fields of values as columns of the table: at the top level, chosen, renamed, cast, and records left out."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.check import RECORDS, check_pipeline
from anabranch.spark.pipeline.decode import RecordDecoder
from anabranch.spark.pipeline.errors import SettingError, UnusableSchema
from anabranch.spark.pipeline.replay import FILTERED, replay
from anabranch.spark.pipeline.settings import PipelineSettings
from anabranch.spark.pipeline.source import rows_of, table_columns
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import FORMATS, JANUARY_MS, make_pipeline, run
from tests.support.events import Event, send

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DDL = "id BIGINT, cents STRING, place STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>, topic STRING"
GOOD = b'{"id": 1, "cents": "19.50", "place": {"city": "Oslo", "zip": 150}, "tags": ["a"], "topic": "t"}'


def shaped(
    folder: Path, values: list[bytes | None], columns: dict[str, Any], *, keys: bool = False, **more: Any
) -> tuple[Any, list[Row]]:
    """Schema of the table, and the rows with their errors, of values of `DDL`."""
    spark = SparkSession.active()
    (folder / "values.ddl").write_text(DDL)
    pipeline = make_pipeline("127.0.0.1:1", folder, "t", columns=columns, **more)
    key = bytearray(b"k") if keys else None
    raw = [(key, value and bytearray(value), "t", 0, at, None, 0, None) for at, value in enumerate(values)]
    given = spark.createDataFrame(raw, RECORDS)
    records = rows_of(given, RecordDecoder(pipeline).current(), pipeline)
    rows = records.select(f.col("error").alias("why"), *table_columns(records, pipeline))
    return rows.drop("why").schema, rows.orderBy("offset").collect()


def refused(folder: Path, columns: dict[str, Any], **more: Any) -> str:
    """Error of a pipeline's start."""
    with pytest.raises(SettingError) as caught:
        shaped(folder, [], columns, **more)
    return str(caught.value)


def test_fields_are_chosen_renamed_and_cast(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is SparkSession.active()
    columns = {
        "top_level": True,
        "select": ["id", "place.city", "place", "cents"],
        "rename": {"place.city": "town"},
        "cast": {"cents": "decimal(6,2)", "place.zip": "string"},
    }
    bad = b'{"id": 2, "cents": "19.505", "place": null}'
    schema, rows = shaped(tmp_path, [GOOD, bad, None, b"[]"], columns)
    names = ["topic", "partition", "offset", "timestamp", "key", "headers", "id", "town", "place", "cents"]
    assert schema.names == names
    assert schema["place"].dataType.simpleString() == "struct<town:string,zip:string>"
    assert schema["cents"].dataType.simpleString() == "decimal(6,2)"
    assert rows[0].asDict(recursive=True) | {"cents": "19.50"} == dict.fromkeys(names) | {
        "why": None, "topic": "t", "partition": 0, "offset": 0, "id": 1, "town": "Oslo", "cents": "19.50",
        "place": {"town": "Oslo", "zip": "150"},
    }  # fmt: skip
    assert [row["why"] for row in rows] == [
        None, "cents: expected decimal(6,2), found 19.505, which would be rounded", None,
        "expected an object, found a list",
    ]  # fmt: skip
    assert (rows[1]["id"], rows[1]["place"], rows[2]["id"]) == (2, None, None)


def test_nested_fields_change_in_their_place(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is SparkSession.active()
    schema, rows = shaped(tmp_path, [GOOD, None], {"rename": {"place.city": "town", "topic": "about"}})
    assert schema["data"].dataType.simpleString() == (
        "struct<id:bigint,cents:string,place:struct<town:string,zip:int>,tags:array<string>,about:string>"
    )
    assert rows[0]["data"]["place"]["town"] == "Oslo"
    assert rows[1]["data"] is None


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (
            {"top_level": True},
            "columns.top_level: the field topic of the values has the name of one of the record's own columns (topic, ",
        ),
        ({"select": ["ID"]}, "columns.select: there is no field ID: values have id, cents, place, tags, topic"),
        ({"select": ["id.x"]}, "columns.select: there is no field id.x: id has no fields: it is bigint"),
        ({"rename": {"place.x": "y"}}, "columns.rename: there is no field place.x: place has city, zip"),
        ({"cast": {"cents": "money"}}, "columns.cast.cents: 'money' is no type, such as int, decimal(12,2) or string"),
        ({"cast": {"id": "date"}}, "columns.cast.id: no cast from bigint to date: a number is cast to another type of"),
        ({"cast": {"tags": "string"}}, "columns.cast.tags: no cast from array<string> to string"),
        (
            {"rename": {"id": "Cents"}},
            "columns.select: two fields would be columns Cents and cents: give one another name in [columns] rename",
        ),
        ({"filter": "data.nothing = 1"}, "columns.filter: [FIELD_NOT_FOUND]"),
        ({"filter": "data.id ="}, "columns.filter: [PARSE_SYNTAX_ERROR]"),
        ({"filter": "data.id"}, "columns.filter: 'data.id' is no condition: it gives bigint"),
    ],
)
def test_what_does_not_fit_the_values_is_one_line(
    spark: SparkSession, tmp_path: Path, columns: dict[str, Any], error: str
) -> None:
    assert spark is SparkSession.active()
    found = refused(tmp_path, columns)
    assert found.startswith(error)
    assert "\n" not in found


def test_columns_of_the_table_take_names_from_the_fields(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is SparkSession.active()
    columns = {"top_level": True, "rename": {"topic": "event_time"}}
    assert "the field event_time of" in refused(tmp_path, columns, table={"event_time": "timestamp"})
    columns = {"top_level": True, "rename": {"topic": "Value"}}
    assert "the field Value of" in refused(tmp_path, columns, table={"keep_value": True})
    with pytest.raises(UnusableSchema):  # it stops no other topic
        shaped(tmp_path, [], columns, table={"keep_value": True})


def test_a_filter_knows_the_record_as_it_was_decoded(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is SparkSession.active()
    condition = "data.place.city = 'Oslo' AND key IS NULL AND headers IS NULL AND offset < 9 AND topic = 't'"
    columns = {"filter": condition, "select": ["id"]}
    bad = b'{"id": "x"}'
    values = [GOOD, GOOD.replace(b"Oslo", b"Rome"), b"{}", None, bad]
    _, rows = shaped(tmp_path, values, columns, key={"format": "text"})
    assert [row["why"] for row in rows] == [None, "", "", "", "id: expected bigint, found the text 'x'"]


def test_a_record_that_deletes_its_row_has_no_fields(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is SparkSession.active()
    values = [GOOD, GOOD.replace(b"Oslo", b"Rome"), None]
    columns = {"filter": "data.place.city = 'Oslo'", "top_level": True, "rename": {"topic": "about"}}
    _, rows = shaped(tmp_path, values, columns, keys=True, table={"mode": "upsert", "deletes": "mark"})
    assert [(row["id"], row["deleted"], row["why"]) for row in rows] == [
        (1, False, None), (None, True, None), (None, True, None),
    ]  # fmt: skip


@pytest.mark.interop
@FORMATS
def test_a_table_with_keys_and_top_level_columns(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    def pipeline(**columns: Any) -> PipelineSettings:
        shape = {"top_level": True, "rename": {"name": "deleted"}, "cast": {"n": "string"}, **columns}
        return make_pipeline(
            servers, tmp_path, topic, table_format, columns=shape, key={"format": "text"},
            table={"mode": "upsert", "partition_by": "none", "event_time": "timestamp_seconds(data.n)"},
        )  # fmt: skip

    def change(key: str, n: Any) -> Event:
        return Event(0, b'{"n": %s, "name": "x"}' % str(n).encode(), key.encode(), JANUARY_MS)

    send(servers, topic, [change("a", 1), change("b", 2), change("c", 3), change("d", '"bad"')])
    filtered = pipeline(filter="data.n < 10")
    assert check_pipeline(spark, filtered) == []
    run(spark, filtered)
    # A row whose newest record does not meet the condition is none of the table's.
    send(servers, topic, [change("a", 10), change("b", 4)])
    run(spark, filtered)
    table, dead_letters = open_tables(spark, filtered)
    found = table.read().orderBy("key").select("key", "n", "deleted", f.unix_seconds("event_time")).collect()
    assert [tuple(row) for row in found] == [("b", "4", "x", 4), ("c", "3", "x", 3)]
    assert dead_letters.read().count() == 1
    assert "_anabranch_deleted" not in table.read().columns


@pytest.mark.interop
def test_a_record_that_the_filter_leaves_out_is_in_no_table(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "values.ddl").write_text("n INT")
    pipeline = make_pipeline(servers, tmp_path, topic, columns={"filter": "data.n > 1", "top_level": True})
    send(servers, topic, [Event(0, b'{"n": %d}' % n, None, JANUARY_MS) for n in (1, 2, 3)])
    send(servers, topic, [Event(0, b'{"n": "1"}', None, JANUARY_MS), Event(0, b'{"n": "5"}', None, JANUARY_MS)])
    run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    assert sorted(row["n"] for row in table.read().select("n").collect()) == [2, 3]
    assert dead_letters.read().count() == 2
    (tmp_path / "values.ddl").write_text("n STRING")
    mended = make_pipeline(
        servers, tmp_path, topic, columns={"filter": "data.n > 1", "top_level": True, "cast": {"n": "int"}}
    )
    done = replay(spark, mended, None, dry_run=False)
    assert (done.put_back, dict(done.reasons)) == (1, {FILTERED: 1})
    assert sorted(row["n"] for row in table.read().select("n").collect()) == [2, 3, 5]
