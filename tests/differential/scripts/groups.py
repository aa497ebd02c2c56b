"""Classic groups through their whole life, and committed offsets."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
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
from anabranch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.differential.script import Script

CONSUMER = "consumer"
REBALANCE_IN_PROGRESS = 27
UNKNOWN_MEMBER = 25
SESSION_MS = 60_000


def coordinator(script: Script) -> None:
    """Wait until groups are coordinated."""
    script.until(FindCoordinatorRequest(key="any", key_type=0), 3, lambda answer: not answer.error_code)
    beat = HeartbeatRequest(group_id="any", generation_id=1, member_id="nobody")
    script.until(beat, 3, lambda answer: answer.error_code == UNKNOWN_MEMBER)


def _join(group: str, member: str = "", **fields: Any) -> JoinGroupRequest:
    names: Sequence[str] = fields.pop("protocols", ("range", "roundrobin"))
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=fields.pop("session_ms", SESSION_MS),
        rebalance_timeout_ms=fields.pop("rebalance_ms", SESSION_MS),
        member_id=member,
        protocol_type=fields.pop("protocol_type", CONSUMER),
        protocols=[JoinGroupRequestProtocol(name=name, metadata=name.encode()) for name in names],
        **fields,
    )


def _sync(group: str, generation: int, member: str, *assigned: str, **fields: Any) -> SyncGroupRequest:
    assignments = [
        SyncGroupRequestAssignment(member_id=other, assignment=b"assigned %d" % at) for at, other in enumerate(assigned)
    ]
    return SyncGroupRequest(
        group_id=group, generation_id=generation, member_id=member, assignments=assignments, **fields
    )


def _beat(group: str, generation: int, member: str, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id=instance)


def _leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    leavers = [MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members]
    return LeaveGroupRequest(group_id=group, members=leavers)


def find_coordinator(script: Script) -> None:
    coordinator(script)
    script.call("of a group", FindCoordinatorRequest(key="fc-group", key_type=0), 1, 2, 3)
    script.call("of a group in version 0", FindCoordinatorRequest(key="fc-group"), 0)
    script.call("of groups", FindCoordinatorRequest(coordinator_keys=["fc-a", "fc-b"]), 4, 5, 6)
    script.call("of no group", FindCoordinatorRequest(coordinator_keys=[]), 4)
    script.call("of a group without name", FindCoordinatorRequest(key="", key_type=0), 1, 3)
    script.call("of a key of type 9", FindCoordinatorRequest(key="x", key_type=9), 1, 3)
    script.call("of a key of type -1", FindCoordinatorRequest(coordinator_keys=["x"], key_type=-1), 4)


def group_life(script: Script) -> None:
    coordinator(script)
    group = "gl"
    member = script.call("first asks for an id", _join(group), 4).member_id
    script.call("another is given one, too", _join("gl-other"), 5)
    script.call("described while it is empty", DescribeGroupsRequest(groups=[group]), 5)
    joined = script.call("first joins", _join(group, member), 5)
    script.call("described before the sync", DescribeGroupsRequest(groups=[group]), 5)
    script.call("heartbeat before the sync", _beat(group, joined.generation_id, member), 3)
    script.call("sync of a later generation", _sync(group, joined.generation_id + 1, member, member), 3)
    script.call("sync of a stranger", _sync(group, joined.generation_id, "stranger"), 3)
    script.call("sync with another protocol", _sync(group, joined.generation_id, member, protocol_name="other"), 5)
    script.call("sync with another type", _sync(group, joined.generation_id, member, protocol_type="connect"), 5)
    script.call("sync", _sync(group, joined.generation_id, member, member), 3)
    script.call("sync again", _sync(group, joined.generation_id, member), 0, 3, 4, 5)
    for version in range(5):
        script.call("heartbeat", _beat(group, joined.generation_id, member), version)
    script.call("heartbeat of an old generation", _beat(group, joined.generation_id - 1, member), 0, 3)
    script.call("heartbeat of a later generation", _beat(group, joined.generation_id + 1, member), 3)
    script.call("heartbeat of a stranger", _beat(group, joined.generation_id, "stranger"), 3)
    script.call("heartbeat of an unknown group", _beat("gl-x", 1, "stranger"), 3)
    script.call("heartbeat of a group without name", _beat("", 1, "stranger"), 3)
    script.call("heartbeat with an instance", _beat(group, joined.generation_id, member, "instance"), 3)
    for version in range(7):
        script.call("described", DescribeGroupsRequest(groups=[group]), version)
    asked = DescribeGroupsRequest(groups=[group, "gl-x"], include_authorized_operations=True)
    script.call("described with operations, and one unknown", asked, 5, 6)

    other = script.ask(_join(group), 4, on="other").member_id
    script.send(_join(group, other), 5, on="other")
    beat = _beat(group, joined.generation_id, member)
    script.until(beat, 3, lambda answer: answer.error_code == REBALANCE_IN_PROGRESS)
    script.call("heartbeat while the group rebalances", beat, 3)
    script.call("described while it rebalances", DescribeGroupsRequest(groups=[group]), 5)
    script.call("sync while it rebalances", _sync(group, joined.generation_id, member, member), 3)
    script.call("commit while it rebalances", _commit(group, "gl-topic", 0, generation=1, member=member), 7)
    again = script.call("first joins again", _join(group, member), 5)
    script.receive("second has joined", JoinGroupRequest, 5, on="other")
    script.send(_sync(group, again.generation_id, other), 3, on="other")
    script.call("leader assigns", _sync(group, again.generation_id, member, member, other), 3)
    script.receive("second is assigned", SyncGroupRequest, 3, on="other")
    script.call("described with two", DescribeGroupsRequest(groups=[group]), 5)
    script.call("a follower joins again with nothing new", _join(group, other), 5, on="other")
    script.call("a join with another type", _join(group, protocol_type="connect"), 4)
    script.call("a join without a common protocol", _join(group, protocols=["sticky"]), 4)
    script.call("delete while it has members", DeleteGroupsRequest(groups_names=[group]), 2, 3)
    script.call("one unknown and one leave", _leave(group, ("stranger", None), (other, None)), 3)
    script.until(
        _beat(group, again.generation_id, member), 3, lambda answer: answer.error_code == REBALANCE_IN_PROGRESS
    )
    script.call("first joins alone", _join(group, member), 5)
    script.call("leave", LeaveGroupRequest(group_id=group, member_id=member), 2)
    script.call("leave again", LeaveGroupRequest(group_id=group, member_id=member), 0, 1, 2)
    script.call("leave again in a list", _leave(group, (member, None)), 3, 4, 5)
    script.call("described when all have left", DescribeGroupsRequest(groups=[group]), 5)
    script.call("delete", DeleteGroupsRequest(groups_names=[group]), 1)
    script.call("delete again", DeleteGroupsRequest(groups_names=[group, "gl-x", ""]), 0, 2, 3)
    script.call("described when it is gone", DescribeGroupsRequest(groups=[group]), 5, 6)


def group_joins(script: Script) -> None:
    coordinator(script)
    for version in range(4):
        joined = script.call("joins at once", _join(f"gj-{version}"), version)
        member = joined.member_id
        script.call("syncs", _sync(f"gj-{version}", joined.generation_id, member, member), min(version, 3))
        script.call("leaves", LeaveGroupRequest(group_id=f"gj-{version}", member_id=member), min(version, 2))
    for version in (4, 6, 7, 8, 9):
        script.call("is given an id", _join(f"gj-{version}"), version)
    script.call("an unknown id", _join("gj-a", "made-up"), 4, 9)
    script.call("group without name", _join(""), 3, 9)
    script.call("session too short", _join("gj-a", session_ms=10), 3, 9)
    script.call("session too long", _join("gj-a", session_ms=10_000_000), 9)
    script.call("no protocols", _join("gj-a", protocols=()), 3, 9)
    script.call("no protocol type", _join("gj-a", protocol_type=""), 3, 9)
    script.call("a rebalance timeout of zero", _join("gj-zero", rebalance_ms=0), 3)
    for version in (7, 9):
        member = script.ask(_join(f"gj-full-{version}"), version).member_id
        joined = script.call("joins with its id", _join(f"gj-full-{version}", member), version)
        sync = _sync(
            f"gj-full-{version}", joined.generation_id, member, member, protocol_type=CONSUMER, protocol_name="range"
        )
        script.call("and syncs", sync, 5)


def static_members(script: Script) -> None:
    coordinator(script)
    group = "gs"
    join = partial(_join, rebalance_ms=1_000)  # the last one waits so long for the others
    joined = script.call("joins", join(group, group_instance_id="one"), 5)
    member, generation = joined.member_id, joined.generation_id
    script.call("syncs", _sync(group, generation, member, member, group_instance_id="one"), 3)
    script.call("heartbeat", _beat(group, generation, member, "one"), 3)
    script.call("heartbeat of an unknown instance", _beat(group, generation, member, "two"), 3)
    script.call("heartbeat of another member with the instance", _beat(group, generation, "other", "one"), 3)
    script.call("described", DescribeGroupsRequest(groups=[group]), 4, 5)
    replaced = script.call("comes back with its instance", join(group, group_instance_id="one"), 5)
    script.call("the one before is fenced", _beat(group, replaced.generation_id, member, "one"), 3)
    member = replaced.member_id
    script.call("syncs after its return", _sync(group, replaced.generation_id, member, group_instance_id="one"), 3)
    script.call("comes back knowing assignments can stay", join(group, group_instance_id="one"), 9)
    script.call("an unknown id with the instance", join(group, "made-up", group_instance_id="one"), 5)
    script.call("an unknown id with a new instance", join(group, "made-up", group_instance_id="three"), 5)
    script.call("an instance without name", join(group, group_instance_id=""), 5)
    script.call("removed by its instance", _leave(group, ("", "one")), 3)
    script.call("removed again", _leave(group, ("", "one"), ("other", "two")), 3, 5)
    script.call("described when it is gone", DescribeGroupsRequest(groups=[group]), 5)


def list_groups(script: Script) -> None:
    coordinator(script)
    script.ask(_commit("lg-offsets", "lg-topic", 1), 7)
    script.topic("lg-topic")
    script.ask(_commit("lg-offsets", "lg-topic", 1), 7)
    member = script.ask(_join("lg-joined"), 4).member_id
    script.ask(_join("lg-joined", member), 5)

    def listed(name: str, request: ListGroupsRequest, *versions: int) -> None:
        script.call(name, request, *versions, own="lg-")

    listed("all", ListGroupsRequest(), 0, 1, 2, 3, 4, 5)
    for state in ("Empty", "empty", "CompletingRebalance", "Stable", "Dead", "Nonsense"):
        listed(f"in state {state}", ListGroupsRequest(states_filter=[state]), 4, 5)
    for type_ in ("classic", "Classic", "consumer", "share", "nonsense"):
        listed(f"of type {type_}", ListGroupsRequest(types_filter=[type_]), 5)
    listed("of both", ListGroupsRequest(types_filter=["classic"], states_filter=["Empty"]), 5)


def _commit(
    group: str,
    topic: str,
    *offsets: int,
    generation: int = -1,
    member: str = "",
    metadata: str | None = "note",
    **fields: Any,
) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=metadata, **fields
        )
        for index, offset in enumerate(offsets)
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[OffsetCommitRequestTopic(name=topic, partitions=partitions)],
    )


def _fetched(group: str, *topics: str, partitions: Sequence[int] = (0,)) -> OffsetFetchRequest:
    wanted = [OffsetFetchRequestTopic(name=topic, partition_indexes=partitions) for topic in topics]
    return OffsetFetchRequest(group_id=group, topics=wanted or None)


def _fetched_in_batch(*groups: tuple[str, Sequence[str] | None]) -> OffsetFetchRequest:
    return OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                topics=None
                if topics is None
                else [OffsetFetchRequestTopics(name=topic, partition_indexes=[0]) for topic in topics],
            )
            for group, topics in groups
        ]
    )


def offsets(script: Script) -> None:
    coordinator(script)
    topic_id = script.topic("go-a", 2)
    script.topic("go-b")
    group = "go"
    for version in range(2, 10):
        script.call("commit", _commit(group, "go-a", 10 + version), version)
    by_id = OffsetCommitRequestTopic(
        topic_id=topic_id,
        partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=99, committed_metadata=None)],
    )
    script.call("commit by id", OffsetCommitRequest(group_id=group, topics=[by_id]), 10)
    unknown = OffsetCommitRequestTopic(topic_id=b"\1" * 16, partitions=by_id.partitions)
    script.call("commit by unknown id", OffsetCommitRequest(group_id=group, topics=[unknown]), 10)
    stranger: dict[str, Any] = {"generation_id_or_member_epoch": 1, "member_id": "someone"}
    script.call(
        "commit by id of a member in no group", OffsetCommitRequest(group_id="go-new", topics=[by_id], **stranger), 10
    )
    script.call("commit with a leader epoch", _commit(group, "go-b", 5, committed_leader_epoch=3), 6, 9)
    script.call("commit to an unknown topic", _commit(group, "go-x", 1), 2, 9)
    script.call("commit to an unknown partition", _commit(group, "go-a", 1, 2, 3), 9)
    script.call("commit a negative offset", _commit(group, "go-b", -7), 9)
    script.call("commit no metadata", _commit(group, "go-b", 6, metadata=None), 2, 9)
    script.call("commit much metadata", _commit(group, "go-b", 7, metadata="m" * 4096), 9)
    script.call("commit too much metadata", _commit(group, "go-b", 8, metadata="m" * 4097), 9)
    script.call("commit of a member in no group", _commit("go-new", "go-b", 8, generation=1, member="someone"), 7, 8, 9)
    script.call("commit of a generation without member", _commit(group, "go-b", 8, generation=3), 7)
    script.call("commit of a member without generation", _commit(group, "go-b", 8, member="someone"), 7)
    script.call("commit for a group without name", _commit("", "go-b", 8), 7)
    script.call("commit nothing", OffsetCommitRequest(group_id=group), 7)
    for version in range(1, 8):
        script.call("fetch", _fetched(group, "go-a", "go-b", "go-x", partitions=(0, 1, 5)), version)
    for version in range(2, 8):
        script.call("fetch all", _fetched(group), version)
    script.call("fetch of an unknown group", _fetched("go-unknown", "go-a"), 1, 5, 7)
    script.call("fetch all of an unknown group", _fetched("go-unknown"), 5)
    script.call("fetch for groups", _fetched_in_batch((group, ["go-a"]), ("go-unknown", ["go-a"]), (group, None)), 8, 9)
    script.call("fetch for a group without name", _fetched_in_batch(("", ["go-a"])), 8)
    member = OffsetFetchRequestGroup(group_id=group, member_id="someone", member_epoch=4, topics=None)
    script.call("fetch of a member", OffsetFetchRequest(groups=[member]), 9)
    ids = [OffsetFetchRequestTopics(topic_id=wanted, partition_indexes=[0]) for wanted in (topic_id, b"\1" * 16)]
    fetch_ids = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=ids)])
    script.call("fetch by id", fetch_ids, 10)
    script.call(
        "fetch all by id", OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]), 10
    )

    def delete(name: str, group_id: str, topic: str, *partitions: int) -> None:
        wanted = [OffsetDeleteRequestPartition(partition_index=index) for index in partitions]
        topics = [OffsetDeleteRequestTopic(name=topic, partitions=wanted)]
        script.call(name, OffsetDeleteRequest(group_id=group_id, topics=topics), 0)

    delete("delete an offset", group, "go-b", 0)
    delete("delete it again", group, "go-b", 0)
    delete("delete offsets that are not there", group, "go-a", 1, 7)
    delete("delete offsets of an unknown topic", group, "go-x", 0)
    delete("delete offsets of an unknown group", "go-unknown", "go-a", 0)
    delete("delete no offsets", group, "go-a")
    script.call("what is left", _fetched(group), 5)
    script.call("described", DescribeGroupsRequest(groups=[group]), 5)
    script.call("delete the group", DeleteGroupsRequest(groups_names=[group]), 3)
    script.call("nothing is left", _fetched(group), 5)


def offsets_of_members(script: Script) -> None:
    coordinator(script)
    script.topic("gm-a")
    group = "gm"
    member = script.ask(_join(group), 4).member_id
    generation = script.ask(_join(group, member), 5).generation_id
    script.call("commit before the sync", _commit(group, "gm-a", 1, generation=generation, member=member), 7)
    script.ask(_sync(group, generation, member, member), 3)
    script.call("commit", _commit(group, "gm-a", 1, generation=generation, member=member), 7)
    script.call("commit of an old generation", _commit(group, "gm-a", 2, generation=generation - 1, member=member), 7)
    script.call("commit of a stranger", _commit(group, "gm-a", 2, generation=generation, member="stranger"), 7)
    script.call("commit from outside", _commit(group, "gm-a", 2), 7)
    wanted = [OffsetDeleteRequestTopic(name="gm-a", partitions=[OffsetDeleteRequestPartition(partition_index=0)])]
    script.call("delete an offset of a living group", OffsetDeleteRequest(group_id=group, topics=wanted), 0)
    script.call("fetch", _fetched(group, "gm-a"), 5)


SCRIPTS = (
    find_coordinator,
    group_life,
    group_joins,
    static_members,
    list_groups,
    offsets,
    offsets_of_members,
)
