from dataclasses import replace

import pytest

from spark.ingest import IngestError, IngestSettings, source_options

SETTINGS = IngestSettings(
    bootstrap_servers="127.0.0.1:9092", table="/table", checkpoint="/checkpoint", topics=("a", "b")
)


def test_topics_become_a_subscription() -> None:
    options = source_options(SETTINGS)
    assert options["subscribe"] == "a,b"
    assert "subscribePattern" not in options
    assert "maxOffsetsPerTrigger" not in options
    assert options["kafka.bootstrap.servers"] == "127.0.0.1:9092"


def test_a_pattern_becomes_a_pattern() -> None:
    options = source_options(replace(SETTINGS, topics=(), topic_pattern="a.*", offsets_per_batch_max=7))
    assert options["subscribePattern"] == "a.*"
    assert options["maxOffsetsPerTrigger"] == "7"


@pytest.mark.parametrize("settings", [replace(SETTINGS, topics=()), replace(SETTINGS, topic_pattern="a.*")])
def test_topics_or_a_pattern(settings: IngestSettings) -> None:
    with pytest.raises(IngestError, match="either topics or a topic pattern"):
        source_options(settings)


def test_options_of_the_user_go_over_the_jobs_own() -> None:
    options = source_options(replace(SETTINGS, options={"kafka.max.poll.records": "500"}))
    assert options["kafka.max.poll.records"] == "500"
