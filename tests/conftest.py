"""Fixtures and settings that all tests share."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Machines are shared and slow at times: how long an example takes says nothing about the code.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("soak", deadline=None, max_examples=2_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The one Spark session of a test run; skipped (or failed, where tools are required) without Java or jars."""
    from spark.jars import cached_jars, installed_spark_version
    from spark.session import DRIVER_OPTIONS, build_session
    from tests.support import tools

    tools.java()
    if cached_jars(installed_spark_version()) is None:
        tools.missing("Spark's Kafka source")
    folder: Path = tmp_path_factory.mktemp("spark")
    settings = {
        DRIVER_OPTIONS: f"{QUICK_JVM} -Dderby.system.home={folder}",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    session = build_session("anabranch tests", master="local[2]", settings=settings)
    yield session
    session.stop()
