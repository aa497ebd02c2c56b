"""Valid options, and invalid ones that are refused by name."""

import pytest

from anabranch.spark.direct.options import EARLIEST, LATEST, OffsetBound, OptionError, parse_options


def test_the_defaults_are_the_kafka_sources() -> None:
    found = parse_options({"subscribe": "a, b"})
    assert (found.topics, found.starting, found.ending) == (["a", "b"], OffsetBound(EARLIEST), OffsetBound(LATEST))
    assert not found.committed
    assert "headers" not in found.columns
    assert parse_options({"subscribe": "a"}, streaming=True).starting == OffsetBound(LATEST)


def test_offsets_and_times() -> None:
    found = parse_options({
        "assign": '{"a": [0, 2]}', "startingOffsets": '{"a": {"0": 5, "2": -2}}', "endingTimestamp": "77",
        "includeHeaders": "true", "kafka.isolation.level": "read_committed",
    })  # fmt: skip
    assert found.assigned == {"a": [0, 2]}
    assert found.starting == OffsetBound(EARLIEST, {"a": {0: 5, 2: -2}})
    assert found.ending == OffsetBound(timestamp_ms=77, or_latest=True)
    assert found.committed
    assert found.columns[-1] == "headers"
    times = parse_options({
        "subscribe": "a", "startingOffsetsByTimestamp": '{"a": {"0": 5}}', "columns": "offset, TIMESTAMPTYPE",
    })  # fmt: skip
    assert times.starting == OffsetBound(timestamps_ms={"a": {0: 5}})
    assert times.columns == ["offset", "timestampType"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "subscribe, subscribePattern and assign; found none"),
        ({"subscribe": "a", "subscribePattern": "b"}, "found subscribe, subscribePattern"),
        ({"subscribe": " ,"}, "no topic"),
        ({"subscribe": "a", "startingOffsets": "first"}, "startingOffsets"),
        ({"subscribe": "a", "startingOffsets": '{"a": 5}'}, "startingOffsets"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets"),
        ({"subscribe": "a", "startingTimestamp": "noon"}, "startingTimestamp"),
        ({"subscribe": "a", "startingOffsetsByTimestampStrategy": "x"}, "Strategy"),
        ({"subscribe": "a", "columns": "values"}, "columns"),
        ({"subscribe": "a", "includeHeaders": "maybe"}, "includeHeaders"),
        ({"subscribe": "a", "minPartitions": "0"}, "minPartitions"),
        ({"subscribe": "a", "kafka.isolation.level": "serializable"}, "isolation"),
        ({"assign": "[1]"}, "assign"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        parse_options(options)
