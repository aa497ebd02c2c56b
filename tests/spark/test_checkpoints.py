"""Offsets of a checkpoint without the ids of the direct source."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from anabranch.spark.checkpoints import drop_topic_ids

pytestmark = [pytest.mark.spark, pytest.mark.slow]

METADATA = '{"batchWatermarkMs":0,"conf":{"id":"kept"}}'


def test_ids_go_and_all_else_stays(spark: SparkSession, tmp_path: Path) -> None:
    assert drop_topic_ids(spark, str(tmp_path / "none")) == 0
    folder = tmp_path / "offsets"
    folder.mkdir()
    other = '{"logOffset":5}'
    (folder / "0").write_text(f'v1\n{METADATA}\n{{"a":{{"0":5,"1":7,"id":"00ff"}},"b":{{"0":1}}}}\n{other}\n-')
    (folder / "1").write_text(f'v1\n{METADATA}\n{{"a":{{"0":9}}}}')
    (folder / "2.tmp").write_text("not of Spark")
    assert drop_topic_ids(spark, str(tmp_path)) == 1
    version, metadata, offsets, *rest = (folder / "0").read_text().split("\n")
    assert (version, metadata, rest) == ("v1", METADATA, [other, "-"])
    assert json.loads(offsets) == {"a": {"0": 5, "1": 7}, "b": {"0": 1}}
    assert drop_topic_ids(spark, str(tmp_path)) == 0
