"""Strict decoding of JSON by the real Spark, and the reasons that dead letters get."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark.pipeline.decode import make_decoding
from spark.pipeline.settings import DecodeSection

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
    b'{"d":123.4}': "d: expected decimal(4,2), found 123.4",
    b'{"r":[1,"x"]}': "r[1]: expected int, found the text 'x'",
    b'{"r":{}}': "r: expected array<int>, found an object",
    b'{"m":{"x":[]}}': "m.x: expected int, found a list",
    b'{"p":{"k":1}}': "p['k']: expected boolean, found 1",
}


def test_what_is_not_json_of_the_schema_is_an_error_with_its_reason(spark: SparkSession) -> None:
    decoding = make_decoding(DecodeSection(format="json", schema_file="given"), SCHEMA, None)
    assert decoding.reason is not None
    rows = [(bytearray(value),) for value in (*GOOD, *BAD)]
    values = spark.createDataFrame([*rows, (None,)], "value binary")
    decoded = values.withColumn("_d", decoding.column(f.col("value"))).select("value", "_d.data", "_d.error")
    reasons = decoded.withColumn("error", decoding.reason(f.col("value"), f.col("error"))).collect()
    *found, tombstone = reasons
    assert (tombstone["data"], tombstone["error"]) == (None, None)
    assert [(bytes(row["value"]), row["error"]) for row in found if row["error"] is not None] == list(BAD.items())
    assert [bytes(row["value"]) for row in found if row["data"] is not None] == list(GOOD)
    assert found[0]["data"].asDict() == {"a": 1, **dict.fromkeys(("s", "t", "d", "r", "m", "p", "n"))}


def test_a_header_is_not_part_of_the_text(spark: SparkSession) -> None:
    settings = DecodeSection(format="json", schema_file="given", header="confluent")
    decoding = make_decoding(settings, b"a INT", None)
    assert decoding.reason is not None
    values = spark.createDataFrame([(bytearray(b"\0\0\0\0\1" + body),) for body in (b'{"a":1}', b"x")], "value binary")
    decoded = values.withColumn("_d", decoding.column(f.col("value"))).select("value", "_d.data", "_d.error")
    good, bad = decoded.withColumn("error", decoding.reason(f.col("value"), f.col("error"))).collect()
    assert (good["data"]["a"], good["error"]) == (1, None)
    assert bad["error"] == "not JSON at character 0: expecting value"
