"""Groups of the consumer protocol (KIP-848)."""

from collections.abc import Sequence
from typing import Any

from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.differential.script import Script
from tests.differential.scripts.groups import coordinator

MEMBER_A = "AAAAAAAAAAAAAAAAAAAAAA"
MEMBER_B = "BBBBBBBBBBBBBBBBBBBBBA"


def _beat(group: str, member: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)


def _join(group: str, member: str, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    wanted: dict[str, Any] = {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": topics,
        "topic_partitions": (),
        **fields,
    }
    return _beat(group, member, 0, **wanted)


def _owned(topic_id: bytes, partitions: Sequence[int]) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=topic_id, partitions=partitions)]


def _assignable(script: Script, topic: str) -> None:
    """Wait until groups know a topic: Apache Kafka's coordinator hears of it after its partitions serve.

    A member that joined earlier would be told of the topic, and get a higher epoch, at a moment of its own.
    """
    group = f"see-{topic}"
    script.until(
        _join(group, MEMBER_A, topic), 1, lambda answer: answer.assignment and answer.assignment.topic_partitions
    )
    script.ask(_beat(group, MEMBER_A, -1), 1)


def consumer_group_life(script: Script) -> None:
    coordinator(script)
    topic_id = script.topic("kg-a", 4)
    _assignable(script, "kg-a")
    group = "kg"
    first = script.call("first joins", _join(group, MEMBER_A, "kg-a"), 1)
    script.call("described", ConsumerGroupDescribeRequest(group_ids=[group]), 0, 1)
    script.call(
        "with operations", ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=True), 1
    )
    script.call("nothing new", _beat(group, MEMBER_A, first.member_epoch), 0, 1)
    script.call(
        "owns it all", _beat(group, MEMBER_A, first.member_epoch, topic_partitions=_owned(topic_id, range(4))), 1
    )
    script.call("an old epoch", _beat(group, MEMBER_A, first.member_epoch - 1 or 7), 1)
    script.call("a later epoch", _beat(group, MEMBER_A, first.member_epoch + 5), 1)
    script.call("a stranger", _beat(group, MEMBER_B, 1), 1)
    script.call("described as a classic group", DescribeGroupsRequest(groups=[group]), 5, 6)
    script.call("listed", ListGroupsRequest(types_filter=["consumer"]), 5, own="kg")
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"x")]
    classic = JoinGroupRequest(group_id=group, session_timeout_ms=60_000, protocol_type="consumer", protocols=protocols)

    def commit(name: str, member: str, epoch: int, *versions: int) -> None:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=5, committed_metadata="")
        request = OffsetCommitRequest(
            group_id=group,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            topics=[OffsetCommitRequestTopic(name="kg-a", partitions=[partition])],
        )
        script.call(name, request, *versions)

    commit("commit", MEMBER_A, first.member_epoch, 8, 9)
    commit("commit of a later epoch", MEMBER_A, first.member_epoch + 3, 9)
    commit("commit of a stranger", MEMBER_B, first.member_epoch, 9)
    commit("commit from outside", "", -1, 9)
    second = script.call("second joins", _join(group, MEMBER_B, "kg-a"), 1)
    assert second is not None
    told = script.call("first is to give up half", _beat(group, MEMBER_A, first.member_epoch), 1)
    assert told.assignment is not None, f"{script.peer.name}: {told}"
    kept = told.assignment.topic_partitions[0].partitions
    given = script.call(
        "first gives up half", _beat(group, MEMBER_A, told.member_epoch, topic_partitions=_owned(topic_id, kept)), 1
    )
    script.call("second gets it", _beat(group, MEMBER_B, second.member_epoch), 1)
    script.call("described with two", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.call("delete while it has members", DeleteGroupsRequest(groups_names=[group]), 2)
    script.call("first leaves", _beat(group, MEMBER_A, -1), 1)
    script.call("a classic member with bad metadata", classic, 9)
    script.call("first is gone", _beat(group, MEMBER_A, given.member_epoch), 1)
    script.call("second leaves", _beat(group, MEMBER_B, -1), 1)
    script.call("described when empty", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.call("deleted", DeleteGroupsRequest(groups_names=[group]), 2)
    script.call("described when deleted", ConsumerGroupDescribeRequest(group_ids=[group, ""]), 1)


def consumer_group_refusals(script: Script) -> None:
    coordinator(script)
    script.topic("kr-a")
    _assignable(script, "kr-a")
    script.call("no group", _join("", MEMBER_A, "kr-a"), 0, 1)
    script.call("no member id", _join("kr", "", "kr-a"), 1)
    script.call("no subscription", _join("kr", MEMBER_A, subscribed_topic_names=None), 0, 1)
    script.call("no rebalance timeout", _join("kr", MEMBER_A, "kr-a", rebalance_timeout_ms=-1), 1)
    script.call("no owned partitions", _join("kr", MEMBER_A, "kr-a", topic_partitions=None), 1)
    script.call("an unknown assignor", _join("kr", MEMBER_A, "kr-a", server_assignor="nonsense"), 1)
    script.call("an empty instance", _join("kr", MEMBER_A, "kr-a", instance_id=""), 1)
    script.call("an empty rack", _join("kr", MEMBER_A, "kr-a", rack_id=""), 1)
    script.call("a bad expression", _join("kr", MEMBER_A, subscribed_topic_names=None, subscribed_topic_regex="["), 1)
    script.call("epoch -5", _beat("kr", MEMBER_A, -5), 1)
    script.call("leaves a group that is not there", _beat("kr-x", MEMBER_A, -1), 1)
    script.call("goes on in a group that is not there", _beat("kr-x", MEMBER_A, 3), 1)
    script.call("leaves for a while without an instance", _beat("kr-x", MEMBER_A, -2), 1)
    script.call("an unknown topic", _join("kr-topics", MEMBER_A, "kr-nothing"), 1)
    script.call("described with an unknown topic", ConsumerGroupDescribeRequest(group_ids=["kr-topics"]), 1)
    script.call("range", _join("kr-range", MEMBER_A, "kr-a", server_assignor="range"), 1)
    script.call("described with range", ConsumerGroupDescribeRequest(group_ids=["kr-range", "kr-x"]), 1)


SCRIPTS = (consumer_group_life, consumer_group_refusals)
