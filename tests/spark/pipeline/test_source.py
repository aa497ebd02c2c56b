"""A pipeline's source as options of Spark's Kafka source."""

import json

import pytest

from anabranch.spark.pipeline.sections import SourceSection
from anabranch.spark.pipeline.source_options import source_options


def test_topics_become_a_subscription() -> None:
    options = source_options(SourceSection(topics=("a", "b"), bootstrap_servers="x:1"))
    assert options == {
        "kafka.bootstrap.servers": "x:1", "subscribe": "a,b", "startingOffsets": "earliest", "failOnDataLoss": "true",
        "kafka.isolation.level": "read_committed", "includeHeaders": "true", "kafka.max.poll.records": "10000",
    }  # fmt: skip


def test_a_pattern_a_limit_and_tasks() -> None:
    source = SourceSection(topic_pattern="a.*", offsets_per_batch_max=7, tasks_min=9, fail_on_data_loss=False)
    options = source_options(source)
    assert "subscribe" not in options
    assert (options["subscribePattern"], options["maxOffsetsPerTrigger"], options["minPartitions"]) == ("a.*", "7", "9")
    assert options["failOnDataLoss"] == "false"


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (SourceSection(topics=("a",), starting_offsets="latest"), {"startingOffsets": "latest"}),
        (
            SourceSection(topics=("a",), starting_offsets={"a": {"0": 5}}),
            {"startingOffsets": json.dumps({"a": {"0": 5}})},
        ),
        (
            SourceSection(topics=("a",), starting_time_ms=1_600),
            {"startingTimestamp": "1600", "startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
)
def test_where_it_begins(source: SourceSection, wanted: dict[str, str]) -> None:
    options = source_options(source)
    assert {name: value for name, value in options.items() if name.startswith("starting")} == wanted


def test_options_of_the_user_go_over_the_pipelines_own() -> None:
    options = source_options(
        SourceSection(topics=("a",), options={"kafka.max.poll.records": "500", "kafka.isolation.level": "x"})
    )
    assert (options["kafka.max.poll.records"], options["kafka.isolation.level"]) == ("500", "x")
