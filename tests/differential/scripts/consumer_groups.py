"""Consumer groups (KIP-848): heartbeats valid and invalid, epochs, static members, patterns, describing, commits.

Members are named by the scripts. What depends on the order in which Apache Kafka's assignors look at members is left
out: which of two members has which half.
"""

from typing import Any

from protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from protocol.messages.delete_groups import DeleteGroupsRequest
from protocol.messages.describe_groups import DescribeGroupsRequest
from protocol.messages.heartbeat import HeartbeatRequest
from protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from protocol.messages.list_groups import ListGroupsRequest
from protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.messages.sync_group import SyncGroupRequest
from tests.differential.script import Script
from tests.differential.scripts.groups import coordinator


def _beat(group: str, member: str, epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    wanted: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": epoch}
    if epoch == 0:
        wanted |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [group], "topic_partitions": []}
    return ConsumerGroupHeartbeatRequest(**{**wanted, **fields})


def _owned(topic_id: bytes, *partitions: int) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=topic_id, partitions=partitions)] if partitions else []


def consumer_heartbeats_refused(script: Script) -> None:
    coordinator(script)
    script.topic("cg-refused")
    group = "cg-refused"
    cases: dict[str, dict[str, Any]] = {
        "no group": {"group_id": ""},
        "no member": {"member_id": ""},
        "empty instance": {"instance_id": ""},
        "empty rack": {"rack_id": ""},
        "epoch below all": {"member_epoch": -3},
        "static leave of a dynamic member": {"member_epoch": -2},
        "no rebalance timeout": {"rebalance_timeout_ms": -1},
        "no owned partitions": {"topic_partitions": None},
        "owned partitions": {"topic_partitions": _owned(bytes(15) + b"\1", 0)},
        "no subscription": {"subscribed_topic_names": None},
        "assignor": {"server_assignor": "sticky"},
        "pattern": {"subscribed_topic_regex": "("},
        "pattern with look-ahead": {"subscribed_topic_regex": "(?=a)b"},
        "unknown group": {"member_epoch": 3},
        "leave of an unknown group": {"member_epoch": -1},
    }
    for name, fields in cases.items():
        script.call(name, _beat(group, "m", **fields), 1)
    script.call("no member without an epoch in version 0", _beat(group, "", 3), 0)


def consumer_epochs(script: Script) -> None:
    coordinator(script)
    group = "cg-life"
    topic_id = script.topic(group, 3)
    script.call("join", _beat(group, "a"), 1)
    script.call("beat", _beat(group, "a", 2), 0, 1)
    script.call("full beat", _beat(group, "a", 2, **_full(group, topic_id, 0, 1, 2)), 1)
    script.call("same owned", _beat(group, "a", 2, topic_partitions=_owned(topic_id, 0, 1, 2)), 1)
    script.call("epoch ahead", _beat(group, "a", 3), 1)
    script.call("unknown member", _beat(group, "b", 2), 1)
    script.call("describe", ConsumerGroupDescribeRequest(group_ids=[group]), 0, 1)
    script.call("describe as classic", DescribeGroupsRequest(groups=[group]), 5, 6)
    script.call("list", ListGroupsRequest(types_filter=["consumer"]), 5, own=group)
    script.call(
        "list in this state", ListGroupsRequest(states_filter=["stable"], types_filter=["Consumer"]), 5, own=group
    )
    script.call("list others", ListGroupsRequest(types_filter=["classic"]), 5, own=group)
    script.call("delete", DeleteGroupsRequest(groups_names=[group]), 2)
    script.call("other subscription", _beat(group, "a", 2, subscribed_topic_names=["cg-life-none"]), 1)
    script.call("still owned", _beat(group, "a", 2, topic_partitions=_owned(topic_id, 1)), 1)
    script.call("let go", _beat(group, "a", 2, topic_partitions=[]), 1)
    script.call("subscribed to nothing", _beat(group, "a", 3, subscribed_topic_names=[]), 1)
    script.call("leave", _beat(group, "a", -1), 1)
    script.call("leave again", _beat(group, "a", -1), 1)
    script.call("describe empty", ConsumerGroupDescribeRequest(group_ids=[group, "cg-missing"]), 1)
    script.call("delete empty", DeleteGroupsRequest(groups_names=[group]), 2)
    script.call("describe deleted", ConsumerGroupDescribeRequest(group_ids=[group]), 1)


def _full(group: str, topic_id: bytes, *owned: int) -> dict[str, Any]:
    return {
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": [group],
        "topic_partitions": _owned(topic_id, *owned),
    }


def consumers_share_a_topic(script: Script) -> None:
    coordinator(script)
    group = "cg-two"
    topic_id = script.topic(group, 2)
    range_: dict[str, Any] = {"server_assignor": "range"}
    script.call("first", _beat(group, "a", **range_), 1)
    script.call("second", _beat(group, "b", **range_), 1)
    script.call("second waits", _beat(group, "b", 3), 1)
    script.call("describe waiting", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.call("first hears", _beat(group, "a", 2), 1)
    script.call("first hears again", _beat(group, "a", 2, **_full(group, topic_id, 0, 1), **range_), 1)
    script.call("first lets go", _beat(group, "a", 2, topic_partitions=_owned(topic_id, 0)), 1)
    script.call("the answer was lost", _beat(group, "a", 2, topic_partitions=_owned(topic_id, 0)), 1)
    script.call("second gets it", _beat(group, "b", 3), 1)
    script.call("describe stable", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.call("first starts again", _beat(group, "a", **range_), 1)
    script.call("second leaves", _beat(group, "b", -1), 1)
    script.call("first takes over", _beat(group, "a", 3), 1)
    script.call("describe one", ConsumerGroupDescribeRequest(group_ids=[group]), 1)


def static_consumers(script: Script) -> None:
    coordinator(script)
    group = "cg-static"
    script.topic(group, 2)
    script.call("join", _beat(group, "a", instance_id="i"), 1)
    script.call("taken", _beat(group, "b", instance_id="i"), 1)
    script.call("fenced", _beat(group, "b", 2, instance_id="i"), 1)
    script.call("unknown instance", _beat(group, "a", 2, instance_id="j"), 1)
    script.call("leave as another", _beat(group, "b", -2, instance_id="i"), 1)
    script.call("leave for now", _beat(group, "a", -2, instance_id="i"), 1)
    script.call("describe", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.call("come back", _beat(group, "b", instance_id="i"), 1)
    script.call("the former", _beat(group, "a", 2, instance_id="i"), 1)
    script.call("describe again", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    leaver = MemberIdentity(member_id="", group_instance_id="i")
    script.call("remove", LeaveGroupRequest(group_id=group, members=[leaver]), 5)
    script.call("remove again", LeaveGroupRequest(group_id=group, members=[leaver]), 5)
    script.call("removed", _beat(group, "b", 2, instance_id="i"), 1)


def consumer_commits(script: Script) -> None:
    coordinator(script)
    group = "cg-commits"
    script.topic(group)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topics = [OffsetCommitRequestTopic(name=group, partitions=[partition])]

    def commit(name: str, member: str, epoch: int, *versions: int) -> None:
        request = OffsetCommitRequest(
            group_id=group, member_id=member, generation_id_or_member_epoch=epoch, topics=topics
        )
        script.call(name, request, *versions)

    script.call("join", _beat(group, "a"), 1)
    commit("commit", "a", 2, 9)
    commit("commit of an old client", "a", 2, 8)
    commit("commit of an epoch ahead", "a", 3, 9)
    commit("commit of an epoch behind", "a", 1, 9)
    commit("commit of a stranger", "b", 2, 9)
    commit("commit of nobody", "", -1, 9)
    for name, member, epoch in (("tool", None, -1), ("member", "a", 2), ("stale", "a", 1), ("stranger", "b", 2)):
        asked = OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=None)
        script.call(f"fetch of a {name}", OffsetFetchRequest(groups=[asked]), 9)
    script.call("leave", _beat(group, "a", -1), 1)
    commit("commit of nobody to an empty group", "", -1, 9)


def consumer_and_classic(script: Script) -> None:
    coordinator(script)
    group = "cg-classic"
    join = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="own", metadata=b"")],
    )
    script.call("join", _beat(group, "a"), 1)
    script.call("classic join", join, 3)
    script.call("classic heartbeat", HeartbeatRequest(group_id=group, generation_id=1, member_id="a"), 4)
    script.call("classic sync", SyncGroupRequest(group_id=group, generation_id=1, member_id="a"), 5)
    script.call("leave", _beat(group, "a", -1), 1)
    joined = script.call("classic join of the empty group", join, 3)
    script.call("consumer join of a classic group", _beat(group, "a"), 1)
    script.call("consumer heartbeat of a classic group", _beat(group, "a", 2), 1)
    script.call("describe a classic group", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.ask(LeaveGroupRequest(group_id=group, member_id=joined.member_id), 0)
    script.call("consumer join of the empty group", _beat(group, "a"), 1)


SCRIPTS = (
    consumer_heartbeats_refused,
    consumer_epochs,
    consumers_share_a_topic,
    static_consumers,
    consumer_commits,
    consumer_and_classic,
)
