"""Configs of share groups: durations as Java parses them, limits in Apache Kafka's words, values of one group."""

import pytest

from anabranch.broker.kafka.configs.group import GROUP_CONFIGS, OffsetReset, check_group_configs, parse_offset_reset
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import KafkaError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", OffsetReset("earliest")),
        ("latest", OffsetReset("latest")),
        ("by_duration:PT1H", OffsetReset("", 3_600_000)),
        ("by_duration:P2DT3H4M5.678S", OffsetReset("", 183_845_678)),
        ("by_duration:pt1,5s", OffsetReset("", 1_500)),
        ("by_duration:PT0S", OffsetReset("", 0)),
        ("by_duration:-PT-1M", OffsetReset("", 60_000)),
        ("by_duration:PT-1S", None),
        ("by_duration:-PT1H", None),
        ("by_duration:P", None),
        ("by_duration:PT", None),
        ("by_duration:P1DT", None),
        ("by_duration:P1Y", None),
        ("by_duration:", None),
        ("BY_DURATION:PT1H", None),
        ("EARLIEST", None),
        ("none", None),
    ],
)
def test_offset_resets(text: str, expected: OffsetReset | None) -> None:
    row = GROUP_CONFIGS["share.auto.offset.reset"]
    if expected is None:
        with pytest.raises(KafkaError, match="The value must be either 'earliest', 'latest' or of the format"):
            row.normalize(text)
    else:
        assert parse_offset_reset(text) == expected
        assert row.normalize(text) == text


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("share.session.timeout.ms", 1, "45000 to 60000"),
        ("share.heartbeat.interval.ms", 15_001, "5000 to 15000"),
        ("share.record.lock.duration.ms", 1_000, "15000 to 60000"),
        ("share.delivery.count.limit", 11, "2 to 10"),
        ("share.partition.max.record.locks", 4_001, "100 to 4000"),
    ],
)
def test_values_outside_the_nodes_limits_are_refused(name: str, value: int, limits: str) -> None:
    with pytest.raises(KafkaError, match=f"{name} must be in the range {limits} inclusive"):
        check_group_configs({name: str(value)}, GroupSettings())


def test_a_session_lasts_longer_than_the_interval_of_heartbeats() -> None:
    settings = GroupSettings(share_session_timeout_min_ms=1)
    with pytest.raises(
        KafkaError, match=r"share\.session\.timeout\.ms must be greater than share\.heartbeat\.interval\.ms"
    ):
        check_group_configs({"share.session.timeout.ms": "5000"}, settings)
    check_group_configs({"share.session.timeout.ms": "5001"}, settings)


def test_a_dead_letter_topic_is_no_internal_one() -> None:
    with pytest.raises(KafkaError, match="DLQ topic name must not start with '__'"):
        check_group_configs({"errors.deadletterqueue.topic.name": "__x"}, GroupSettings())
