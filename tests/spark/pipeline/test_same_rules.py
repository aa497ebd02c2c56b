"""Pipelines on Spark and topics as tables decode the same values in the same way: both by `anabranch.tables`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from anabranch.protocol.records import Record, build_batch
from anabranch.spark.pipeline.decode import make_decoding
from anabranch.spark.pipeline.sections import DecodeSection
from anabranch.tables.framing import Framing
from anabranch.tables.requests import Asked
from tests.tables.shares import made, question, share_of
from tests.tables.test_share import GOOD, HOSTILE, SCHEMA

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("header", ["none", "confluent"])
def test_each_value_is_the_same_row_or_has_the_same_error(spark: SparkSession, tmp_path: Path, header: Any) -> None:
    schema = json.dumps(SCHEMA).encode()
    values = [None, GOOD, *HOSTILE, *(b"\0\0\0\0\1" + each for each in (GOOD, *HOSTILE))]
    section = DecodeSection(format="json", schema_file="given", header=header)
    decoding = make_decoding(section, schema, None)
    given = spark.createDataFrame(
        [(at, None if value is None else bytearray(value)) for at, value in enumerate(values)], "at int, value binary"
    )
    decoded = given.withColumn("_d", decoding.column(f.col("value"))).select("at", f.to_json("_d.data"), "_d.error")
    by_spark = [(row[1], row[2]) for row in decoded.orderBy("at").collect()]
    finding = question(Asked("json", schema))
    part = finding.value if header == "none" else replace(finding.value, framing=Framing.CONFLUENT)
    share = share_of(
        tmp_path, [bytes(build_batch([Record(None, value, 5) for value in values]))], replace(finding, value=part)
    )
    _, rows = made(share)
    table = spark.read.parquet(share.target).orderBy("_kafka.offset")
    fields = f.struct(*SCHEMA["properties"])
    by_table = [(row[0], row[1]) for row in table.select(f.to_json(fields), "_kafka.error").collect()]
    assert [error for _, error in by_table] == [error for _, error in by_spark]
    assert [data for data, error in by_table if error is None] == [
        data or "{}" for data, error in by_spark if error is None
    ]
    assert len(rows) == len(values)
