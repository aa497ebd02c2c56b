"""Configs of streams groups: limits in Apache Kafka's words, values of one group."""

import pytest

from anabranch.broker.kafka.configs.group import GROUP_CONFIGS, check_group_configs
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import KafkaError


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("streams.session.timeout.ms", "1", "must be in the range 45000 to 60000 inclusive"),
        ("streams.heartbeat.interval.ms", "15001", "must be in the range 5000 to 15000 inclusive"),
        ("streams.assignment.interval.ms", "15001", "must be in the range 0 to 15000 inclusive"),
        ("streams.num.standby.replicas", "3", "must be less than or equal to 2"),
        ("streams.task.offset.interval.ms", "14999", "must be greater than or equal to 15000"),
        ("streams.assignor.name", "x", "'x' is not a registered task assignor. Registered assignors are: [sticky]."),
    ],
)
def test_values_outside_the_nodes_limits_are_refused(name: str, value: str, problem: str) -> None:
    with pytest.raises(KafkaError) as error:
        check_group_configs({name: value}, GroupSettings())
    assert error.value.message.startswith(f"{name} {problem}")


def test_values_within_the_limits_are_accepted() -> None:
    check_group_configs({"streams.num.standby.replicas": "2", "streams.assignor.name": "sticky"}, GroupSettings())


def test_a_session_lasts_longer_than_the_interval_of_heartbeats() -> None:
    settings = GroupSettings(streams_session_timeout_min_ms=1)
    with pytest.raises(KafkaError, match=r"streams\.session\.timeout\.ms must be greater than"):
        check_group_configs({"streams.session.timeout.ms": "5000"}, settings)


def test_tags_are_a_list() -> None:
    assert GROUP_CONFIGS["streams.rack.aware.assignment.tags"].normalize("zone, cluster,zone") == "zone,cluster"
