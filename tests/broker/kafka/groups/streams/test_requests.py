"""Heartbeats that are refused before their group sees them, in Apache Kafka's words."""

from dataclasses import replace
from typing import Any

import pytest

from anabranch.broker.api.handlers.streams_group_heartbeat import check_names, check_request, topic_names
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)

TASKS = [TaskIds(subtopology_id="0", partitions=[0])]
JOIN = StreamsGroupHeartbeatRequest(
    group_id="g",
    member_id="m",
    rebalance_timeout_ms=1,
    topology=Topology(subtopologies=[]),
    process_id="p",
    active_tasks=(),
    standby_tasks=(),
    warmup_tasks=(),
)
BEAT = StreamsGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=1)


def topology(*, sources: tuple[str, ...] = ("a",), changelog: int = 0, regex: tuple[str, ...] = ()) -> Topology:
    subtopology = Subtopology(
        subtopology_id="0",
        source_topics=sources,
        source_topic_regex=regex,
        repartition_sink_topics=["r"],
        repartition_source_topics=[TopicInfo(name="r")],
        state_changelog_topics=[TopicInfo(name="c", partitions=changelog)],
    )
    return Topology(subtopologies=[subtopology])


@pytest.mark.parametrize(
    ("request_", "changes", "problem"),
    [
        (JOIN, {"member_id": ""}, "MemberId can't be empty."),
        (JOIN, {"group_id": ""}, "GroupId can't be empty."),
        (JOIN, {"instance_id": ""}, "InstanceId can't be empty."),
        (JOIN, {"rack_id": ""}, "RackId can't be empty."),
        (JOIN, {"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        (JOIN, {"active_tasks": TASKS}, "ActiveTasks must be empty when (re-)joining."),
        (JOIN, {"standby_tasks": TASKS}, "StandbyTasks must be empty when (re-)joining."),
        (JOIN, {"warmup_tasks": TASKS}, "WarmupTasks must be empty when (re-)joining."),
        (JOIN, {"topology": None}, "Topology must be non-null when (re-)joining."),
        (JOIN, {"topology": topology(regex=("x",))}, "Regular expressions for source topics are not supported yet."),
        (JOIN, {"standby_tasks": None}, "StandbyTasks must be empty when (re-)joining."),
        (BEAT, {"active_tasks": []}, "If one task-type is non-null, all must be non-null."),
        (BEAT, {"member_epoch": -2}, "InstanceId can't be null."),
        (BEAT, {"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (BEAT, {"topology": topology()}, "Topology can only be provided when (re-)joining."),
    ],
)
def test_invalid_requests_are_refused(
    request_: StreamsGroupHeartbeatRequest, changes: dict[str, Any], problem: str
) -> None:
    check_request(request_)
    with pytest.raises(KafkaError) as error:
        check_request(replace(request_, **changes))
    assert (error.value.code, error.value.message) == (ErrorCode.INVALID_REQUEST, problem)


def test_a_changelog_has_no_number_of_partitions() -> None:
    with pytest.raises(KafkaError) as error:
        check_request(replace(JOIN, topology=topology(changelog=2)))
    assert error.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_a_topology_names_its_topics_once_and_in_order() -> None:
    assert topic_names(replace(JOIN, topology=topology(sources=("b", "a", "b")))) == ["b", "a", "r", "c"]
    assert topic_names(BEAT) == ()


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        (
            ("a", "__consumer_offsets", "__transaction_state"),
            (
                "Use of Kafka internal topics __consumer_offsets,__transaction_state in a Kafka Streams topology is "
                "prohibited."
            ),
        ),
        (("a", "b/", ".."), "Topic names b/,.. are not valid topic names."),
    ],
)
def test_names_that_a_topology_must_not_have_are_refused(sources: tuple[str, ...], problem: str) -> None:
    with pytest.raises(KafkaError) as error:
        check_names(replace(JOIN, topology=topology(sources=sources)))
    assert (error.value.code, error.value.message) == (ErrorCode.STREAMS_INVALID_TOPOLOGY, problem)
    check_names(replace(JOIN, topology=topology()))
