"""Pipelines of JSON with encoded fields, and of Debezium's values with their schemas."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.decode import DecoderFactory, make_decoding
from anabranch.spark.pipeline.errors import UnusableSchema
from anabranch.spark.pipeline.sections import DecodeSection
from anabranch.spark.pipeline.tables import open_tables
from tests.spark.pipeline.support import FORMATS, JANUARY_MS, make_pipeline, run
from tests.support.events import Event, send
from tests.tables.test_connect_schema import AFTER, ROW, TIME, changed, value

JSON_SCHEMA = '{"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}'


def test_encodings_are_compared_with_the_schema(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(JSON_SCHEMA)
    for encodings, error in (
        ({"day": "seconds"}, "decode.encodings.day: seconds gives timestamp or timestamp_ntz, and the column is date"),
        ({"dy": "days"}, "decode.encodings.dy: there is no field dy: day"),
    ):
        section = DecodeSection(format="json", schema_file=str(file), encodings=encodings)
        with pytest.raises(UnusableSchema) as caught:
            DecoderFactory("decode", section, "").current()
        assert str(caught.value) == error
    file.write_text(json.dumps(changed(0, type="int128")))
    with pytest.raises(UnusableSchema, match=r"^decode.schema_file: .*: after.id: Kafka Connect has no type int128$"):
        DecoderFactory("decode", DecodeSection(format="json", schema_file=str(file)), "").current()


@pytest.mark.parametrize(
    ("section", "error"),
    [
        ({"format": "avro", "encodings": {"a": "days"}}, "has no effect: only format json has them"),
        (
            {"format": "json", "strict": False, "encodings": {"a": "days"}},
            "values are converted by strict decoding only",
        ),
    ],
)
def test_encodings_are_those_of_strict_json(section: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        DecodeSection.model_validate(section)


@pytest.mark.spark
@pytest.mark.slow
def test_encoded_fields_become_sparks_values(spark: SparkSession) -> None:
    section = DecodeSection(
        format="json",
        schema_file="given",
        encodings={"at": "milliseconds", "l.day": "%d/%m/%Y", "o": f"{TIME}MicroTime"},
    )
    ddl = b"at TIMESTAMP, l ARRAY<STRUCT<day: DATE>>, o STRING"
    values = [b'{"at": 1577880000000, "l": [{"day": "01/02/2020"}], "o": 0}', b'{"at": "x"}', None]
    decoding = make_decoding(section, ddl, None)
    given = spark.createDataFrame(
        [(at, each and bytearray(each)) for at, each in enumerate(values)], "at int, v binary"
    )
    rows = given.select("at", decoding.column(f.col("v")).alias("d")).orderBy("at").select(
        f.unix_millis("d.data.at"), "d.data.l", "d.data.o", "d.error"
    ).collect()  # fmt: skip
    assert tuple(rows[0]) == (1577880000000, [(date(2020, 2, 1),)], "00:00:00.000000", None)
    assert tuple(rows[1]) == (None, None, None, "at: expected bigint, found the text 'x'")
    assert tuple(rows[2]) == (None, None, None, None)


@pytest.mark.spark
@pytest.mark.interop
@pytest.mark.slow
@FORMATS
def test_a_changelog_of_debezium_with_schemas(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    file = tmp_path / "value.json"
    file.write_bytes(value({"after": None, "op": "r"}))  # as it was consumed
    pipeline = make_pipeline(
        servers, tmp_path, topic, table_format, key={"format": "text"}, columns={"top_level": True},
        table={"mode": "changelog", "partition_by": "none"}, decode={"schema_file": str(file)},
    )  # fmt: skip
    milliseconds = {"after": {"id": 8, "made": 1577880000000}, "op": "u"}
    other = changed(1, name=None)
    events = [
        ("a", value({"after": AFTER, "op": "c"})), ("b", value({"after": AFTER, "op": "c"})),
        ("b", value({"after": None, "op": "d"})), ("b", None), ("d", value({"after": {"id": 1}, "op": "c"}, other)),
        ("c", value(milliseconds, changed(1, name=f"{TIME}Timestamp"))),
    ]  # fmt: skip
    send(servers, topic, [Event(0, each, key.encode(), JANUARY_MS) for key, each in events])
    run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    types = {each.name: each.dataType.simpleString() for each in table.read().schema}
    assert types["made"] == "timestamp_ntz"
    assert types["price"] == "decimal(6,2)"
    seen = f.unix_micros("seen").alias("seen")
    rows = table.read().orderBy("key").select("key", "id", "made", "day", "opens", seen, "price", "days").collect()
    micros = int(datetime(2020, 1, 1, 12, tzinfo=UTC).timestamp()) * 1_000_000 + 1
    assert [tuple(row) for row in rows] == [
        ("a", 7, ROW["made"], date(2020, 1, 1), "12:00:00.000000", micros, Decimal("19.50"), [date(2020, 1, 1)]),
        ("c", 8, datetime(2020, 1, 1, 12), None, None, None, None, None),  # noqa: DTZ001 - it is local
    ]
    assert [row["error"] for row in dead_letters.read().collect()] == [
        f"after.made: the value's schema says no logical type, and the file {TIME}MicroTimestamp"
    ]
