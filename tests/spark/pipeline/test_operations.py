"""Monitoring of a pipeline: its metrics, and its offsets in Kafka's own lag tool."""

import io
import re
import time
from pathlib import Path
from urllib.request import urlopen

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from anabranch.spark.jobs import open_freshness, run_pipeline
from anabranch.spark.status import read_status
from tests.interop.test_java import cells
from tests.interop.test_java import run as run_tool
from tests.spark.pipeline.support import make_pipeline, numbered
from tests.support.events import send
from tests.support.kafka_tools import GROUPS

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]


def test_kafkas_lag_tool_and_prometheus_see_a_pipeline(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = f"{topic}-pipeline"
    pipeline = make_pipeline(
        servers, tmp_path, topic, table={"partition_by": "none"},
        operations={"metrics_port": 0, "consumer_group": group},
    )  # fmt: skip
    send(servers, topic, numbered(0, 90))
    said = io.StringIO()
    pages: list[str] = []

    def look(_running: object, _listener: object, _console: Console) -> None:
        url = re.search(r"metrics on (\S+)", said.getvalue())
        assert url is not None
        with urlopen(url[1], timeout=30) as response:
            pages.append(response.read().decode())

    monkeypatch.setattr("anabranch.spark.jobs.print_failures", look)
    run_pipeline(spark, pipeline, Console(file=said, width=200))
    assert re.search(r"batch 0: 90 rows in [\d.]+ s", said.getvalue())
    assert "90 rows from this run" in said.getvalue()
    assert f'anabranch_pipeline_rows_total{{query="{topic}"}} 90' in pages[0]
    assert f'anabranch_pipeline_offset{{query="{topic}",topic="{topic}",partition="2"}} 30' in pages[0]
    assert "anabranch_pipeline_group_commit_failures_total 0" in pages[0]
    assert f'anabranch_pipeline_lag_seconds{{query="{topic}",topic="{topic}",partition="2"}} 0.0' in pages[0]
    assert f'anabranch_pipeline_table_lag_seconds{{query="{topic}"}} 0.0' in pages[0]
    send(servers, topic, numbered(90, 96))
    before_ms = time.time_ns() // 1_000_000
    status = read_status(pipeline, before_ms)
    assert (status["batch"], status["planned"], status["lag"]) == (0, None, 6)
    assert status["committed_ms"] <= before_ms
    # The first of each partition that is not in the table.
    first = {event.partition: event.timestamp_ms for event in reversed(numbered(90, 96))}
    assert [(each["done"], each["end"], each["lag_ms"]) for each in status["partitions"]] == [
        (30, 32, before_ms - first[partition]) for partition in range(3)
    ]
    freshness = open_freshness(spark, pipeline, Console(file=said))
    assert freshness is not None
    # A driver that starts again knows what is done before its first micro-batch has ended.
    ages = freshness.ages_ms(None, before_ms)
    assert ages == {(topic, partition): before_ms - first[partition] for partition in range(3)}
    freshness.close()
    lags = [row for row in cells(run_tool(servers, GROUPS, "--describe", "--group", group)) if topic in row]
    # Group, topic, partition, current offset, end of the log, lag.
    assert sorted(row[:6] for row in lags) == [[group, topic, str(p), "30", "32", "2"] for p in range(3)]
