"""Groups in a cluster: requests to the coordinator, and to brokers that do not coordinate the group."""

from collections.abc import Sequence

from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.messages.sync_group import SyncGroupRequest
from tests.differential.cluster_script import NODES, ClusterScript


def _join(group: str, member: str = "") -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"range")],
    )


def _commit(group: str, topic: str, offset: int, *indexes: int) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="note")
        for index in indexes
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)],
    )


def _committed(group: str, topic: str, *indexes: int) -> OffsetFetchRequest:
    return OffsetFetchRequest(group_id=group, topics=[OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)])


def _committed_of(topic: str, *groups: str, everything: bool = False) -> OffsetFetchRequest:
    wanted: Sequence[OffsetFetchRequestTopics] | None = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0, 1])]
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None if everything else wanted) for group in groups]
    )


def _deletion(group: str, topic: str, *indexes: int) -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
    return OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=partitions)])


def _coordinated(script: ClusterScript, *groups: str) -> None:
    """Wait until the groups' coordinators answer for them."""
    for group in groups:
        request = HeartbeatRequest(group_id=group, generation_id=1, member_id="nobody")
        for node_id in NODES:
            if group == script.key_at(group.rpartition("-")[0], node_id):
                script.until(request, 3, lambda answer: answer.error_code == 25, on=str(node_id))


def groups_at_others(script: ClusterScript) -> None:
    """All requests of a classic group's members, sent to each broker: only broker 2 coordinates it."""
    script.place("go-a", 1, 2)
    group = script.key_at("go", 2)
    _coordinated(script, group)
    for version in range(10):
        if version != 0:
            script.call(f"join at 1, version {version}", _join(group), version, on="1")
    script.call_each("join of an unknown member", _join(group, "made-up"), 5)
    member = script.ask(_join(group), 4, on="2").member_id
    generation = script.ask(_join(group, member), 5, on="2").generation_id
    sync = SyncGroupRequest(group_id=group, generation_id=generation, member_id=member)
    script.call("sync", sync, 0, 3, on="2")
    script.call("sync elsewhere", sync, 0, 1, 2, 3, 4, on="3")
    beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    script.call_each("heartbeat", beat, 0, 1, 2, 3, 4)
    for version in range(2, 10):
        script.call_each("commit from outside", _commit(group, "go-a", 3, 0, 1), version)
    for version in range(1, 8):
        script.call_each("committed", _committed(group, "go-a", 0, 1), version)
    script.call_each("all committed", OffsetFetchRequest(group_id=group, topics=None), 2, 5, 7)
    script.call_each("committed in a batch", _committed_of("go-a", group), 8, 9)
    script.call_each("all committed in a batch", _committed_of("go-a", group, everything=True), 8, 10)
    script.call_each("described", DescribeGroupsRequest(groups=[group]), *range(7))
    with_operations = DescribeGroupsRequest(groups=[group], include_authorized_operations=True)
    script.call_each("described with operations", with_operations, 3, 5, 6)
    script.call_each("described as a consumer group", ConsumerGroupDescribeRequest(group_ids=[group]), 0, 1)
    script.call_each("offset deleted", _deletion(group, "go-a", 0), 0)
    script.call_each("deleted while it has members", DeleteGroupsRequest(groups_names=[group]), 0, 1, 2, 3)
    script.call_each("a stranger leaves", LeaveGroupRequest(group_id=group, member_id="stranger"), 0, 2)
    leave = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)])
    for node_id in (1, 3, 2):
        script.call(f"leave at {node_id}", leave, 3, 5, on=str(node_id))
    script.call_each("deleted", DeleteGroupsRequest(groups_names=[group]), 2)


def consumer_groups_at_others(script: ClusterScript) -> None:
    """The consumer protocol's requests, sent to each broker: only broker 3 coordinates the group."""
    script.place("gk-a", 1, 2, 3)
    group = script.key_at("gk", 3)
    _coordinated(script, group)

    def beat(epoch: int, *topics: str) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="member",
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            subscribed_topic_names=topics if epoch == 0 else None,
            topic_partitions=[] if epoch == 0 else None,
        )

    script.call("joins elsewhere", beat(0, "gk-a"), 0, 1, on="1")
    script.until(beat(0, "gk-a"), 1, lambda answer: answer.assignment and answer.assignment.topic_partitions, on="3")
    script.call_each("joins again", beat(0, "gk-a"), 1)
    script.call_each(
        "described", ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=True), 0, 1
    )
    script.call_each("described as a classic group", DescribeGroupsRequest(groups=[group]), 5, 6)
    for node_id in (1, 2, 3):
        script.call(f"leaves at {node_id}", beat(-1), 1, on=str(node_id))
    script.call_each("deleted", DeleteGroupsRequest(groups_names=[group]), 2)


def groups_of_all(script: ClusterScript) -> None:
    """Groups of all coordinators, named together in requests to each broker."""
    script.place("gs-a", 1, 2, 3)
    groups = [script.key_at("gs", node_id) for node_id in NODES]
    _coordinated(script, *groups)
    for node_id, group in zip(NODES, groups, strict=True):
        script.ask(_commit(group, "gs-a", 10 + node_id, 0, 1, 2), 7, on=str(node_id))
    script.call_each("listed", ListGroupsRequest(), 0, 3, 4, 5, own="gs-")
    script.call_each("listed by state", ListGroupsRequest(states_filter=["Empty"]), 4, 5, own="gs-")
    script.call_each("described", DescribeGroupsRequest(groups=[*groups, groups[0]]), 4, 5, 6)
    script.call_each("committed", _committed_of("gs-a", *groups), 8, 9)
    script.call_each("described as consumer groups", ConsumerGroupDescribeRequest(group_ids=groups), 1)
    for node_id, group in zip(NODES, groups, strict=True):
        script.call_each(f"offset of the group of {node_id} deleted", _deletion(group, "gs-a", 1, 2), 0)
    script.call_each("what is left", _committed_of("gs-a", *groups), 8)
    script.call_each("deleted", DeleteGroupsRequest(groups_names=[*groups, "gs-x"]), 1, 2, 3)
    script.call_each("listed when they are gone", ListGroupsRequest(), 4, own="gs-")


SCRIPTS = (groups_at_others, consumer_groups_at_others, groups_of_all)
