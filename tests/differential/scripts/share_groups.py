"""Share groups (KIP-932): heartbeats valid and invalid, assignment, describing, offsets, deletion, other protocols.

Scripts choose the member ids. As with consumer groups, they do not record which of two members has which partition.
"""

from typing import Any

from anabranch.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
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
    OffsetFetchRequestTopics,
)
from anabranch.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from anabranch.protocol.messages.sync_group import SyncGroupRequest
from tests.differential.script import Script
from tests.differential.scripts.groups import coordinator
from tests.differential.scripts.resources import setting_of_group

GROUP = 32
SHARE = 2
NO_TOPIC_ID = "A" * 22


def _beat(group: str, member: str, epoch: int = 0, **fields: Any) -> ShareGroupHeartbeatRequest:
    wanted: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": epoch}
    if epoch == 0:
        wanted["subscribed_topic_names"] = [group]
    return ShareGroupHeartbeatRequest(**{**wanted, **fields})


def _describe(*groups: str) -> ShareGroupDescribeRequest:
    return ShareGroupDescribeRequest(group_ids=list(groups))


def _offsets(group: str, **topics: list[int]) -> DescribeShareGroupOffsetsRequest:
    wanted = [
        DescribeShareGroupOffsetsRequestTopic(topic_name=name.replace("_", "-"), partitions=indexes)
        for name, indexes in topics.items()
    ]
    return DescribeShareGroupOffsetsRequest(
        groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=wanted or None)]
    )


def _alter(group: str, **topics: dict[int, int]) -> AlterShareGroupOffsetsRequest:
    return AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=[
            AlterShareGroupOffsetsRequestTopic(
                topic_name=name.replace("_", "-"),
                partitions=[
                    AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
                    for index, offset in offsets.items()
                ],
            )
            for name, offsets in topics.items()
        ],
    )


def _delete(group: str, *topics: str) -> DeleteShareGroupOffsetsRequest:
    return DeleteShareGroupOffsetsRequest(
        group_id=group, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in topics]
    )


def _assigned(answer: Any) -> int:
    return sum(len(topic.partitions) for topic in answer.assignment.topic_partitions) if answer.assignment else 0


def prepared_topic(script: Script, name: str, partitions: int = 1) -> bytes:
    """Create a topic and wait until the coordinator has heard of it, and share partitions of it can be created."""
    topic_id = script.topic(name, partitions)
    group = f"{name}-probe"
    script.until(
        _beat(group, "probe", subscribed_topic_names=[name]), 1, lambda answer: _assigned(answer) == partitions
    )
    script.ask(_beat(group, "probe", -1), 1)
    script.ask(DeleteGroupsRequest(groups_names=[group]), 2)
    return topic_id


def _joined(script: Script, group: str, member: str, partitions: int) -> int:
    """Have a member join and get all partitions; returns its epoch."""
    script.ask(_beat(group, member), 1)
    answer = script.until(_beat(group, member), 1, lambda answer: _assigned(answer) == partitions)
    return int(answer.member_epoch)


def share_heartbeats_refused(script: Script) -> None:
    coordinator(script)
    prepared_topic(script, "sg-refused")
    group = "sg-refused"
    for name, request in {
        "no member id": _beat(group, ""),
        "no group id": _beat("", "m"),
        "an empty rack": _beat(group, "m", rack_id=""),
        "no topics": _beat(group, "m", subscribed_topic_names=[]),
        "unset topics": _beat(group, "m", subscribed_topic_names=None),
        "an epoch below all": _beat(group, "m", -2),
        "an unknown group": _beat(group, "m", 1),
        "leaving an unknown group": _beat(group, "m", -1),
    }.items():
        script.call(name, request, 1)
    _joined(script, group, "sgr-m", 1)
    epoch = script.ask(_beat(group, "sgr-m"), 1).member_epoch
    for name, request in {
        "an unknown member": _beat(group, "sgr-n", 1),
        "an unknown member that leaves": _beat(group, "sgr-n", -1),
        "an epoch ahead": _beat(group, "sgr-m", epoch + 1),
        "the epoch before": _beat(group, "sgr-m", epoch - 1),
        "an epoch behind": _beat(group, "sgr-m", epoch - 2),
        "no topics on joining again": _beat(group, "sgr-m", 0, subscribed_topic_names=None),
        "an empty subscription": _beat(group, "sgr-m", epoch, subscribed_topic_names=[]),
    }.items():
        script.call(name, request, 1)


def share_assignment(script: Script) -> None:
    coordinator(script)
    prepared_topic(script, "sg-assign", 2)
    group = "sg-assign"
    script.call("the first joins", _beat(group, "sga-1", rack_id="r"), 1)
    script.until(_beat(group, "sga-1"), 1, lambda answer: _assigned(answer) == 2)
    script.call("described", _describe(group), 1)
    script.call("nothing new", _beat(group, "sga-1", 3), 1)
    script.call("all is told", _beat(group, "sga-1", 3, subscribed_topic_names=[group]), 1)
    second = script.ask(_beat(group, "sga-2"), 1)
    first = script.ask(_beat(group, "sga-1", 3), 1)
    script.note("shared", [second.member_epoch, first.member_epoch, _assigned(second), _assigned(first)])
    third = script.ask(_beat(group, "sga-3"), 1)
    script.note("a third", [third.member_epoch, _assigned(third) > 0])
    script.call("the third leaves", _beat(group, "sga-3", -1), 1)
    script.call("the second leaves", _beat(group, "sga-2", -1), 1)
    script.call("all for the first", _beat(group, "sga-1", 4), 1)
    script.call("another subscription", _beat(group, "sga-1", 7, subscribed_topic_names=[group, "sg-none"]), 1)
    script.call("described again", _describe(group), 1)
    grown = CreatePartitionsTopic(name=group, count=3, assignments=None)
    script.ask(CreatePartitionsRequest(topics=[grown], timeout_ms=30_000), 3)
    script.serving(group, 3)
    script.until(_beat(group, "sga-1"), 1, lambda answer: _assigned(answer) == 3)
    script.call("the last leaves", _beat(group, "sga-1", -1), 1)
    script.call("the group is empty", ListGroupsRequest(types_filter=["share"]), 5, own=group)


def share_assignment_intervals(script: Script) -> None:
    coordinator(script)
    for name in ("sg-interval", "sg-interval-2"):
        prepared_topic(script, name, 2)
    group, both = "sg-interval", ["sg-interval", "sg-interval-2"]
    script.until(_beat(group, "sgi-1", subscribed_topic_names=both), 1, lambda answer: _assigned(answer) == 4)

    def every(interval_ms: int, heartbeat_ms: int, beat: ShareGroupHeartbeatRequest) -> None:
        """Set the interval, and wait until the coordinator has it: its answers show the other config."""
        times = {"share_assignment_interval_ms": interval_ms, "share_heartbeat_interval_ms": heartbeat_ms}
        script.ask(setting_of_group(group, **times), 1)
        script.until(beat, 1, lambda answer: answer.heartbeat_interval_ms == heartbeat_ms)

    def beat(step: str, member: str, epoch: int, *names: str) -> None:
        answer = script.ask(_beat(group, member, epoch, subscribed_topic_names=names or None), 1)
        script.note(step, [answer.error_code, answer.member_epoch, answer.assignment and _assigned(answer)])

    every(15_000, 6000, _beat(group, "sgi-1", 3))
    beat("a second has nothing yet", "sgi-2", 0, *both)
    beat("the first leaves a topic", "sgi-1", 3, group)
    beat("the second waits", "sgi-2", 3)
    beat("the first comes back", "sgi-1", 3, *both)
    described = script.ask(_describe(group), 1).groups[0]
    script.note("described", [described.group_epoch, described.assignment_epoch, described.group_state])
    every(0, 7000, _beat(group, "sgi-2", 3))
    beat("the first shares", "sgi-1", 3)
    described = script.ask(_describe(group), 1).groups[0]
    script.note("described at the end", [described.group_epoch, described.assignment_epoch, described.group_state])
    for member in ("sgi-1", "sgi-2"):
        script.call(f"{member} leaves", _beat(group, member, -1), 1)


def share_groups_described(script: Script) -> None:
    coordinator(script)
    prepared_topic(script, "sg-desc")
    group = "sg-desc"
    script.call("unknown, and without a name", _describe(group, ""), 1)
    _joined(script, group, "sgd-m", 1)
    script.call("operations", ShareGroupDescribeRequest(group_ids=[group], include_authorized_operations=True), 1)
    script.call("listed", ListGroupsRequest(), 5, own=group)
    script.call("listed by type", ListGroupsRequest(types_filter=["Share"]), 5, own=group)
    script.call("listed by state", ListGroupsRequest(states_filter=["Stable"]), 5, own=group)
    script.call("as another type", ListGroupsRequest(types_filter=["consumer"]), 5, own=group)
    script.call("as a classic one", DescribeGroupsRequest(groups=[group]), 5, 6)
    script.call("as a consumer group", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.ask(_beat(group, "sgd-m", -1), 1)


def share_group_offsets(script: Script) -> None:
    coordinator(script)
    prepared_topic(script, "sg-offsets", 2)
    group = "sg-offsets"
    script.call("of an unknown group", _offsets(group), 0, 1)
    script.call("of no group", _offsets(""), 1)
    script.call("set without a group id", _alter("", sg_offsets={0: 1}), 0)
    script.call("deleted without a group id", _delete("", group), 0)
    script.call("deleted of an unknown group", _delete(group, group), 0)
    epoch = _joined(script, group, "sgo-m", 2)
    script.call("all", _offsets(group), 0, 1)
    script.call("some", _offsets(group, sg_offsets=[1], sg_none=[0]), 0, 1)
    script.call("none may be set", _alter(group, sg_offsets={0: 1}), 0)
    script.call("none may be deleted", _delete(group, group), 0)
    script.call("the group may not be deleted", DeleteGroupsRequest(groups_names=[group]), 2)
    script.ask(_beat(group, "sgo-m", -1), 1)
    script.call("set", _alter(group, sg_offsets={0: 5, 9: 1}, sg_none={0: 1}), 0)
    script.call("nothing set", _alter(group), 0)
    script.until(
        _offsets(group, sg_offsets=[0]), 1, lambda answer: answer.groups[0].topics[0].partitions[0].start_offset == 5
    )
    script.call("as set", _offsets(group), 1)
    script.call("deleted", _delete(group, group, "sg-none"), 0)
    script.call("deleted twice", _delete(group, group), 0)
    script.call("nothing deleted", _delete(group), 0)
    script.call("nothing left", _offsets(group), 1)
    script.note("the epoch went on", epoch > 0)
    script.call("a group begins with offsets", _alter("sg-offsets-new", sg_offsets={1: 3}), 0)
    script.call("no group begins without", _alter("sg-offsets-none", sg_none={1: 3}), 0)
    script.call("there is none", _describe("sg-offsets-none"), 1)
    names = [group, "sg-offsets-new", "sg-offsets-none"]
    script.call("groups are deleted", DeleteGroupsRequest(groups_names=names), 2)
    script.call("they are gone", _describe(*names), 1)


def share_groups_and_deleted_topics(script: Script) -> None:
    coordinator(script)
    prepared_topic(script, "sg-gone")
    _joined(script, "sg-gone", "sgg-m", 1)
    script.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="sg-gone")], timeout_ms=30_000), 6)
    script.gone("sg-gone")
    script.until(_offsets("sg-gone"), 1, lambda answer: not answer.groups[0].topics)
    script.until(_beat("sg-gone", "sgg-m"), 1, lambda answer: not _assigned(answer))
    script.call("nothing is left", _offsets("sg-gone", sg_gone=[0]), 1)
    script.ask(_beat("sg-gone", "sgg-m", -1), 1)


def share_groups_and_other_protocols(script: Script) -> None:
    coordinator(script)
    prepared_topic(script, "sg-other")
    group = "sg-other"
    epoch = _joined(script, group, "sgx-m", 1)
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    for member in ("", "x"):
        join = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member,
            protocol_type="consumer",
            protocols=protocols,
        )
        script.call(f"a classic member {member}", join, 9)
    script.call("its sync", SyncGroupRequest(group_id=group, generation_id=1, member_id="x"), 4)
    script.call("its heartbeat", HeartbeatRequest(group_id=group, generation_id=1, member_id="sgx-m"), 4)
    script.call("its leaving", LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="sgx-m")]), 5)
    consumer = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="c",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        subscribed_topic_names=[group],
        topic_partitions=[],
    )
    script.call("a consumer", consumer, 1)
    for member, generation in (("", -1), ("sgx-m", epoch)):
        offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topic = OffsetCommitRequestTopic(name=group, partitions=[offset])
        commit = OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=[topic]
        )
        script.call(f"a commit {member}", commit, 8, 9)
    asked = OffsetFetchRequestTopics(name=group, partition_indexes=[0])
    script.call(
        "committed offsets", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[asked])]), 9
    )
    script.call("all of them", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]), 9)
    gone = OffsetDeleteRequestTopic(name=group, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
    script.call("their deletion", OffsetDeleteRequest(group_id=group, topics=[gone]), 0)
    offset = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name=group, partitions=[offset])
    script.ask(OffsetCommitRequest(group_id="sg-classic", generation_id_or_member_epoch=-1, topics=[topic]), 9)
    script.call("a share consumer of a classic group", _beat("sg-classic", "m", subscribed_topic_names=[group]), 1)
    script.call("offsets of a classic group", _offsets("sg-classic"), 1)
    script.call("set in a classic group", _alter("sg-classic", sg_other={0: 1}), 0)
    script.call("deleted in a classic group", _delete("sg-classic", group), 0)
    script.call("described as one", _describe("sg-classic"), 1)
    script.ask(_beat(group, "sgx-m", -1), 1)


def share_coordinators(script: Script) -> None:
    coordinator(script)
    prepared_topic(script, "sg-coord")
    keys = [
        "g",
        "g:x:1",
        f"g:{NO_TOPIC_ID}:a",
        f":{NO_TOPIC_ID}:0",
        f"g:{NO_TOPIC_ID}:0",
        f"a:g:{NO_TOPIC_ID}:0",
        f"g:{NO_TOPIC_ID}:-1",
    ]
    script.call("of share partitions", FindCoordinatorRequest(key_type=SHARE, coordinator_keys=keys), 5, 6)
    script.call("of one", FindCoordinatorRequest(key_type=SHARE, key=keys[4]), 3)


def share_group_configs(script: Script) -> None:
    for name, value in (
        ("share.session.timeout.ms", "1"),
        ("share.session.timeout.ms", "70000"),
        ("share.heartbeat.interval.ms", "50000"),
        ("share.record.lock.duration.ms", "500"),
        ("share.record.lock.duration.ms", "1000"),
        ("share.record.lock.duration.ms", "70000"),
        ("share.delivery.count.limit", "1"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "99"),
        ("share.partition.max.record.locks", "4001"),
        ("share.auto.offset.reset", "x"),
        ("share.auto.offset.reset", "EARLIEST"),
        ("share.auto.offset.reset", "by_duration:PT1H"),
        ("share.auto.offset.reset", "by_duration:-PT1H"),
        ("share.auto.offset.reset", "by_duration:P1Y"),
        ("share.isolation.level", "READ_COMMITTED"),
        ("share.isolation.level", "read_committed"),
        ("share.renew.acknowledge.enable", "x"),
        ("share.renew.acknowledge.enable", "false"),
    ):
        config = AlterableConfig(name=name, config_operation=0, value=value)
        resource = AlterConfigsResource(resource_type=GROUP, resource_name="sg-configs", configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
        script.call(f"{name}={value}", request, 1)


SCRIPTS = (
    share_heartbeats_refused,
    share_assignment,
    share_assignment_intervals,
    share_groups_described,
    share_group_offsets,
    share_groups_and_deleted_topics,
    share_groups_and_other_protocols,
    share_coordinators,
    share_group_configs,
)
