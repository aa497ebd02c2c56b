"""The test of docs/recipes.md with Spark, as it stands there, in the session of the test run."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from anabranch.testing import Broker
from tests.support.recipes import RECIPES, shown_files

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def test_a_stream_reads_a_topic_to_its_end(
    anabranch_broker: Broker, anabranch_topic: str, spark: SparkSession, tmp_path: Path
) -> None:
    recipe: dict[str, Any] = {}
    exec(shown_files(RECIPES.read_text())["test_spark.py"], recipe)
    (name,) = (name for name in recipe if name.startswith("test_"))
    recipe[name](anabranch_broker, anabranch_topic, spark, tmp_path)
