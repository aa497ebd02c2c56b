"""Strict decoding of JSON, in the real Spark and without it, and the reasons that dead letters get."""

import json
import re
from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from anabranch.spark.pipeline.decode import make_decoding
from anabranch.spark.pipeline.errors import SettingError
from anabranch.spark.pipeline.sections import DecodeSection
from anabranch.tables.framing import Framing
from tests.support.wheel import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCHEMA = (
    b"a INT, s STRING, t TIMESTAMP, d DECIMAL(4,2), r ARRAY<INT>, m STRUCT<x: INT>, p MAP<STRING, BOOLEAN>, n DOUBLE"
)
GOOD = (
    b'{"a":1}',
    b'{"a":null,"unknown":1}',
    b' {"a":1}\n',
    b'{"s":5}',
    b'{"s":{"q":1}}',
    b'{"t":"2020-01-01T00:00:00Z"}',
    b'{"d":12.34,"r":[1,null],"m":{"x":1},"p":{"k":true},"n":1e3}',
    b"{}",
)
BAD = {
    b"": "not JSON at character 0: expecting value",
    b"null": "expected an object, found null",
    b"5": "expected an object, found 5",
    b'[{"a":1}]': "expected an object, found a list",
    b'{"a":1} {"a":2}': "text after the value, at character 8: '{\"a\":2}'",
    b'{"a":1},{"a":2}': "text after the value, at character 7: ',{\"a\":2}'",
    b'{"a":1}]': "text after the value, at character 7: ']'",
    b'{"a":1}]}': "text after the value, at character 7: ']}'",
    b'{"a":1}],"v":[{"a":2}': 'text after the value, at character 7: \'],"v":[{"a":2}\'',
    b'{"a":1},': "text after the value, at character 7: ','",
    b'{"a":1}, "b":2': "text after the value, at character 7: ', \"b\":2'",
    b'{"s":"\xff"}': "not valid UTF-8 at byte 6",
    b'{"n":NaN}': "not JSON: NaN is no number of JSON",
    b"{'a':1}": "not JSON at character 1: expecting property name enclosed in double quotes",
    b'{"a":"x"}': "a: expected int, found the text 'x'",
    b'{"a":1.5}': "a: expected int, found 1.5",
    b'{"a":3000000000}': "a: expected int, found 3000000000",
    b'{"a":true}': "a: expected int, found true",
    b'{"t":"soon"}': "t: expected timestamp, found the text 'soon'",
    b'{"d":123.4}': "d: expected decimal(4,2), found 123.4, which is too large",
    b'{"r":[1,"x"]}': "r[1]: expected int, found the text 'x'",
    b'{"r":{}}': "r: expected array<int>, found an object",
    b'{"m":{"x":[]}}': "m.x: expected int, found a list",
    b'{"p":{"k":1}}': "p['k']: expected boolean, found 1",
}


def test_what_is_not_json_of_the_schema_is_an_error_with_its_reason(spark: SparkSession) -> None:
    decoding = make_decoding(DecodeSection(format="json", schema_file="given"), SCHEMA, None)
    rows = [(bytearray(value),) for value in (*GOOD, *BAD)]
    values = spark.createDataFrame([*rows, (None,)], "value binary")
    decoded = values.withColumn("_d", decoding.column(f.col("value"))).select("value", "_d.data", "_d.error")
    *found, tombstone = decoded.collect()
    assert (tombstone["data"], tombstone["error"]) == (None, None)
    assert [(bytes(row["value"]), row["error"]) for row in found if row["error"] is not None] == list(BAD.items())
    assert [bytes(row["value"]) for row in found if row["data"] is not None] == list(GOOD)
    assert found[0]["data"].asDict() == {"a": 1, **dict.fromkeys(("s", "t", "d", "r", "m", "p", "n"))}


def test_a_header_is_not_part_of_the_text(spark: SparkSession) -> None:
    settings = DecodeSection(format="json", schema_file="given", header=Framing.CONFLUENT)
    decoding = make_decoding(settings, b"a INT", None)
    values = spark.createDataFrame([(bytearray(b"\0\0\0\0\1" + body),) for body in (b'{"a":1}', b"x")], "value binary")
    good, bad = values.select(decoding.column(f.col("value")).alias("_d")).select("_d.data", "_d.error").collect()
    assert (good["data"]["a"], good["error"]) == (1, None)
    assert bad["error"] == "not JSON at character 0: expecting value"
    values = spark.createDataFrame([(bytearray(each),) for each in (b'XXXXX{"a":1}', b"\0\0", b"")], "value binary")
    rows = values.select(decoding.column(f.col("value")).alias("_d")).select("_d.data", "_d.error").collect()
    assert [tuple(row) for row in rows] == [
        (None, "no schema header: 12 bytes that begin with '5858585858'"),
        (None, "no schema header: 2 bytes that begin with '0000'"),
        (None, "no schema header: 0 bytes that begin with ''"),
    ]


def test_a_zone_that_is_not_known_here_is_a_wrong_setting(spark: SparkSession) -> None:
    decoding = make_decoding(DecodeSection(format="json", schema_file="given"), b"a TIMESTAMP", None)
    before = spark.conf.get("spark.sql.session.timeZone")
    assert before is not None
    spark.conf.set("spark.sql.session.timeZone", "GMT+8")
    try:
        with pytest.raises(SettingError, match=r"spark\.sql\.session\.timeZone 'GMT\+8'"):
            decoding.column(f.col("value"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_lenient_dead_letters_have_a_reason(spark: SparkSession) -> None:
    decoding = make_decoding(DecodeSection(format="json", schema_file="given", strict=False), b"a INT", None)
    assert decoding.reason is not None
    values = spark.createDataFrame([(bytearray(body),) for body in (b'{"a":1} x', b'{"a":"x"}')], "value binary")
    decoded = values.withColumn("_d", decoding.column(f.col("value"))).select("value", "_d.data", "_d.error")
    good, bad = decoded.withColumn("error", decoding.reason(f.col("value"), f.col("error"))).collect()
    assert (good["data"]["a"], good["error"]) == (1, None)
    assert bad["error"] == "a: expected int, found the text 'x'"


TAKEN = {
    "STRING": {'"a"': "a", '""': "", "5": "5", "1.10": "1.10", "12345678901234567890.5": "12345678901234567890.5",
               "1e400": "1e400", "true": "true", '{"x": 1.10}': '{"x":1.10}', '[1, "1.0"]': '[1,"1.0"]'},
    "BOOLEAN": {"true": "true", "false": "false"},
    "TINYINT": {"127": "127", "-128": "-128"},
    "INT": {"5": "5"},
    "BIGINT": {"9223372036854775807": "9223372036854775807"},
    "DOUBLE": {"0.1": "0.1", "1e3": "1000.0", "-0.0": "-0.0", "1e-300": "1.0E-300",
               "9007199254740992": "9.007199254740992E15", "100000000000000000000": "1.0E20"},
    "FLOAT": {"0.1": "0.1", "16777216": "1.6777216E7"},
    "DECIMAL(4,2)": {"12.34": "12.34", '"12.34"': "12.34", "1": "1.00", "1.500": "1.50", "1.5e1": "15.00",
                     "100e-2": "1.00", "0": "0.00"},
    "DECIMAL(38,0)": {"12345678901234567890123456789012345678": "12345678901234567890123456789012345678",
                      "1e37": f"1{'0' * 37}"},
    "TIMESTAMP": {'"2020-01-01T00:00:00Z"': "2020-01-01 00:00:00", '"2020-01-01t00:00:00z"': "2020-01-01 00:00:00",
                  '"2020-01-01 02:00:00.1234560+02:00"': "2020-01-01 00:00:00.123456",
                  '"2020-01-01T00:00"': "2020-01-01 00:00:00"},
    "TIMESTAMP_NTZ": {'"2020-01-01T00:00:00.5"': "2020-01-01 00:00:00.5"},
    "DATE": {'"2020-01-01"': "2020-01-01"},
    "BINARY": {'"YWI="': "ab"},
    "ARRAY<DECIMAL(4,2)>": {"[1.5, null]": "[1.50, null]"},
    "MAP<STRING, DATE>": {'{"a": "2020-01-01"}': "{a -> 2020-01-01}"},
    "STRUCT<x: TINYINT>": {'{"x": 1}': "{1}", "{}": "{null}"},
}  # fmt: skip
"""Texts of Spark of what each spelling becomes."""
REASONS = {
    "128": "found 128", "1577836800000": "found 1577836800000, which does not say its unit",
    "1e400": "found 1e400, which would be infinite", "1e-400": "found 1e-400, which would be 0",
    "9007199254740993": "found 9007199254740993, which would be 9007199254740992",
    "1.005": "found 1.005, which would be rounded", '"1,5"': "found the text '1,5'",
    '{"a": null, "a": null}': "the key 'a' is there twice",
    '"\\ud800"': "half of a surrogate pair, at character 0: '\\ud800'",
}  # fmt: skip
"""Ends of the errors of some dead letters, after the name of the field."""


def spellings(guide: str) -> dict[str, tuple[Sequence[str], Sequence[str]]]:
    """Spellings that are taken and refused by the guide's table, by types."""
    table = guide.split("| column | taken | refused |\n|---|---|---|\n")[1].split("\n\n", maxsplit=1)[0]
    rows = [[re.findall("`([^`]+)`", cell) for cell in line.split(" | ")] for line in table.splitlines()]
    return {kind[0]: (taken, refused) for kind, taken, refused in rows}


def test_what_comes_out_is_what_was_sent(spark: SparkSession) -> None:
    guide = spellings((ROOT / "docs" / "spark.md").read_text())
    assert {kind: list(taken) for kind, taken in TAKEN.items()} == {kind: cells[0] for kind, cells in guide.items()}
    names = {kind: f"c{n}" for n, kind in enumerate(guide)}
    schema = ", ".join(f"{name} {kind}" for kind, name in names.items())
    decoding = make_decoding(DecodeSection(format="json", schema_file="given"), schema.encode(), None)
    cases = [
        (kind, text, is_taken) for kind, cells in guide.items() for is_taken in (1, 0) for text in cells[1 - is_taken]
    ]
    rows = [
        (n, bytearray(f'{{"{names[kind]}" : {text}}}'.encode()), names[kind]) for n, (kind, text, _) in enumerate(cases)
    ]
    values = spark.createDataFrame(rows, "n INT, value BINARY, name STRING").withColumn(
        "d", decoding.column(f.col("value"))
    )
    columns = f.create_map(
        *(part for each in names.values() for part in (f.lit(each), f.col(f"d.data.{each}").cast("string")))
    )
    found = values.select("n", columns[f.col("name")].alias("text"), "d.error").orderBy("n").collect()
    for (kind, text, is_taken), row in zip(cases, found, strict=True):
        if is_taken:
            assert (row["error"], row["text"]) == (None, TAKEN[kind][text]), (kind, text)
        else:
            assert row["text"] is None, (kind, text)
            assert row["error"].startswith(names[kind]), (kind, text)
            assert row["error"].endswith(REASONS.get(text, "")), (kind, text)


def test_numbers_stay_as_they_are_in_texts_of_all_depths(spark: SparkSession) -> None:
    decoding = make_decoding(
        DecodeSection(format="json", schema_file="given"),
        b"s ARRAY<STRING>, m MAP<STRING, STRUCT<s: STRING, d: DECIMAL(30,20)>>, i INT, b BOOLEAN",
        None,
    )
    value = (
        '{"s":["1.1",1.10,"\\\\",":1.10","\\"",null,{"a":[1.10,"1.10",true]}],"i":5,"b":true,'
        '"m":{"k1.10":{"s":"\\u00e9","d":1234567890.01234567890123456789}}}'
    )
    (row,) = (
        spark.createDataFrame([(bytearray(value.encode()),)], "v BINARY").select(decoding.column(f.col("v"))).collect()
    )
    (found,) = row
    assert found["error"] is None
    assert found["data"]["s"] == ["1.1", "1.10", "\\", ":1.10", '"', None, '{"a":[1.10,"1.10",true]}']
    assert (found["data"]["i"], found["data"]["b"]) == (5, True)
    assert found["data"]["m"]["k1.10"]["s"] == "é"
    assert str(found["data"]["m"]["k1.10"]["d"]) == "1234567890.01234567890123456789"


def test_a_local_time_that_the_zone_leaves_out_is_refused(spark: SparkSession) -> None:
    decoding = make_decoding(DecodeSection(format="json", schema_file="given"), b"t TIMESTAMP", None)
    times = ["2020-03-29T02:30:00", "2020-03-29T02:30:00Z", "2020-03-29T03:30:00", "2020-10-25T02:30:00"]
    rows = [(bytearray(json.dumps({"t": time}).encode()),) for time in times]
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        found = spark.createDataFrame(rows, "v BINARY").select(decoding.column(f.col("v")).alias("d"))
        texts = [row[0] for row in found.select(f.col("d.data.t").cast("string")).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    assert texts == [None, "2020-03-29 04:30:00", "2020-03-29 03:30:00", "2020-10-25 02:30:00"]
