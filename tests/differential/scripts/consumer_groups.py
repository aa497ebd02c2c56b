"""Consumer groups (KIP-848): heartbeats valid and invalid, epochs, static members, patterns, describing, commits.

Scripts choose the member ids. The scripts do not record which of two members has which half of the partitions, because
that depends on the order in which Apache Kafka's assignors visit members.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anabranch.protocol.codec import encode_versioned
from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.embedded.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    TopicPartitionResponse,
)
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from anabranch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from anabranch.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.differential.script import Script
from tests.differential.scripts.groups import coordinator
from tests.differential.scripts.resources import setting_of_group


def _beat(group: str, member: str, epoch: int = 0, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    wanted: dict[str, Any] = {"group_id": group, "member_id": member, "member_epoch": epoch}
    if epoch == 0:
        wanted |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [group], "topic_partitions": []}
    return ConsumerGroupHeartbeatRequest(**{**wanted, **fields})


def _owned(topic_id: bytes, *partitions: int) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=topic_id, partitions=partitions)] if partitions else []


def _topic(script: Script, name: str, partitions: int = 1) -> bytes:
    """Create a topic and wait until the coordinator has heard of it, which Apache Kafka's does a moment later."""
    topic_id = script.topic(name, partitions)
    probe = _beat(f"{name}-probe", "probe", subscribed_topic_names=[name])
    script.until(probe, 1, lambda answer: answer.assignment is not None and answer.assignment.topic_partitions)
    script.ask(_beat(f"{name}-probe", "probe", -1), 1)
    script.ask(DeleteGroupsRequest(groups_names=[f"{name}-probe"]), 2)
    return topic_id


def consumer_heartbeats_refused(script: Script) -> None:
    coordinator(script)
    _topic(script, "cg-refused")
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
    topic_id = _topic(script, group, 3)
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
    script.call("delete", DeleteGroupsRequest(groups_names=[group]), 2, 3)
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
    topic_id = _topic(script, group, 2)
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


def consumer_assignment_intervals(script: Script) -> None:
    coordinator(script)
    group = "cg-interval"
    topic_id = _topic(script, group, 2)
    other_id = _topic(script, "cg-interval-2")

    def every(interval_ms: int, heartbeat_ms: int, beat: ConsumerGroupHeartbeatRequest) -> None:
        """Set the interval, and wait until the coordinator has it: its answers show the other config."""
        times = {"consumer_assignment_interval_ms": interval_ms, "consumer_heartbeat_interval_ms": heartbeat_ms}
        script.ask(setting_of_group(group, **times), 1)
        script.until(beat, 1, lambda answer: answer.heartbeat_interval_ms == heartbeat_ms)

    every(15_000, 6000, _beat(group, "a", subscribed_topic_names=[group, "cg-interval-2"]))
    script.call("the first has all", _beat(group, "a", 2, topic_partitions=[]), 1)
    script.call("a second has nothing yet", _beat(group, "b"), 1)
    script.call("described", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.call("the first has not heard of it", _beat(group, "a", 2), 1)
    all_owned = [*_owned(topic_id, 0, 1), *_owned(other_id, 0)]
    script.call(
        "the first leaves a topic", _beat(group, "a", 2, subscribed_topic_names=[group], topic_partitions=all_owned), 1
    )
    script.call("it has let go", _beat(group, "a", 2, topic_partitions=_owned(topic_id, 0, 1)), 1)
    script.call("it comes back to the topic", _beat(group, "a", 2, subscribed_topic_names=[group, "cg-interval-2"]), 1)
    script.call("described again", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    joined = script.call("a classic one joins", _classic_join(group), 9)
    joined = script.call("with its id", _classic_join(group, joined.member_id), 9)
    sync = _classic_sync(group, joined.generation_id, joined.member_id)
    script.call("it has nothing yet", sync, 5)
    beat = HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    script.call("it waits", beat, 4)
    every(0, 7000, _beat(group, "b", 2))
    (described,) = script.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups
    targets = [member.target_assignment.topic_partitions for member in described.members]
    script.note(  # which ones depends on the id of the classic member, which is random
        "numbers of partitions at the end", sorted(sum(len(each.partitions) for each in target) for target in targets)
    )
    script.call("the classic one must join", beat, 4)
    for member in ("a", "b"):
        script.call(f"{member} leaves", _beat(group, member, -1), 1)
    script.ask(setting_of_group(group, consumer_assignment_interval_ms=None, consumer_heartbeat_interval_ms=None), 1)


def static_consumers(script: Script) -> None:
    coordinator(script)
    group = "cg-static"
    _topic(script, group, 2)
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
    _topic(script, group)
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


def commits_of_members_in_transactions(script: Script) -> None:
    """TxnOffsetCommit with the epoch of a member, or with its generation."""
    coordinator(script)
    group, classic = "cg-txn", "cg-txn-classic"
    topic_ids = {group: _topic(script, group, 2), classic: _topic(script, classic)}
    find = FindCoordinatorRequest(key="cg-txn", key_type=1)
    script.until(find, 3, lambda answer: not answer.error_code)  # Apache Kafka creates a topic now
    init = InitProducerIdRequest(transactional_id="cg-txn", transaction_timeout_ms=60_000)
    producer = script.until(init, 4, lambda answer: not answer.error_code)

    def commit(name: str, of: str, member: str, epoch: int, partition: int = 0, *, instance: str | None = None) -> None:
        wanted = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=1)
        request = TxnOffsetCommitRequest(
            transactional_id="cg-txn",
            group_id=of,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            member_id=member,
            generation_id_or_member_epoch=epoch,
            group_instance_id=instance,
            topics=[TxnOffsetCommitRequestTopic(name=of, topic_id=topic_ids[of], partitions=[wanted])],
        )
        script.call(name, request, 5, 6)

    range_: dict[str, Any] = {"server_assignor": "range"}
    script.call("first", _beat(group, "a", **range_), 1)
    commit("of the first", group, "a", 2)
    commit("of an epoch ahead", group, "a", 3)
    commit("of an epoch behind", group, "a", 1)
    commit("of a stranger", group, "b", 2)
    commit("of nobody", group, "", -1)
    commit("of a member without epoch", group, "a", -1)
    commit("of an epoch without member", group, "", 2)
    commit("of an instance", group, "a", 2, instance="i")
    script.call("second", _beat(group, "b", **range_), 1)
    script.call("first hears", _beat(group, "a", 2, topic_partitions=_owned(topic_ids[group], 0, 1)), 1)
    script.call("first lets go", _beat(group, "a", 2, topic_partitions=_owned(topic_ids[group], 0)), 1)
    commit("in the epoch before, of what is kept", group, "a", 2, 0)
    commit("in the epoch before, of what was given up", group, "a", 2, 1)
    commit("in the epoch of now", group, "a", 3, 0)
    script.call("second gets it", _beat(group, "b", 3), 1)
    commit("of the second", group, "b", 3, 1)
    commit("of the second in an epoch before it joined", group, "b", 2, 1)
    member, generation = _classic_group(script, classic, 0)
    commit("of a classic member", classic, member, generation)
    commit("of an old generation", classic, member, generation - 1)
    commit("of a later generation", classic, member, generation + 1)
    commit("of a stranger to a classic group", classic, "x", generation)
    commit("of nobody to a classic group", classic, "", -1)
    commit("of an unknown instance", classic, member, generation, instance="i")
    script.ask(LeaveGroupRequest(group_id=classic, member_id=member), 0)
    commit("of a member that has left", classic, member, generation)
    commit("of a generation to an empty group", classic, "", generation)


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
    script.call("classic join of another type", replace(join, protocol_type="connect"), 3)
    script.call("classic heartbeat", HeartbeatRequest(group_id=group, generation_id=1, member_id="a"), 4)
    script.call("classic sync", SyncGroupRequest(group_id=group, generation_id=1, member_id="a"), 5)
    script.call("leave", _beat(group, "a", -1), 1)
    joined = script.call("classic join of the empty group", join, 3)
    script.call("consumer join of a classic group", _beat(group, "a"), 1)
    script.call("consumer heartbeat of a classic group", _beat(group, "a", 2), 1)
    script.call("describe a classic group", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    script.ask(LeaveGroupRequest(group_id=group, member_id=joined.member_id), 0)
    script.call("consumer join of the empty group", _beat(group, "a"), 1)


def _classic_join(group: str, member: str = "", *, owned: Sequence[int] = (), **fields: Any) -> JoinGroupRequest:
    held = [TopicPartition(topic=group, partitions=list(owned))] if owned else []
    subscription = ConsumerProtocolSubscription(topics=[group], owned_partitions=held)
    names: Sequence[str] = fields.pop("protocols", ("range",))
    metadata = encode_versioned(subscription, 1)
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=60_000,
        member_id=member,
        protocol_type=fields.pop("protocol_type", "consumer"),
        protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in names],
        **fields,
    )


def _classic_sync(group: str, generation: int, member: str, **fields: Any) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        **{"protocol_type": "consumer", "protocol_name": "range", **fields},
    )


def _classic_group(script: Script, group: str, *partitions: int, **fields: Any) -> tuple[str, int]:
    """Make a classic group of one member, which has these partitions; returns its member id and generation."""
    joined = script.ask(_classic_join(group, **fields), 3 if not fields.get("group_instance_id") else 5)
    assigned = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitionResponse(topic=group, partitions=list(partitions))]
    )
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=encode_versioned(assigned, 1))
    instance = fields.get("group_instance_id")
    sync = _classic_sync(
        group, joined.generation_id, joined.member_id, assignments=[assignment], group_instance_id=instance
    )
    assert script.ask(sync, 5).error_code == 0
    return joined.member_id, joined.generation_id


def group_migrates_and_returns(script: Script) -> None:
    """A classic group takes in a member of the new protocol, shares with it, and is classic again when that leaves."""
    coordinator(script)
    group = "cg-migrates"
    topic_id = _topic(script, group, 2)
    member, generation = _classic_group(script, group, 0, 1)
    range_: dict[str, Any] = {"server_assignor": "range"}
    upgraded = script.call("the first of the new protocol", _beat(group, "A", **range_), 1)
    script.call("described", ConsumerGroupDescribeRequest(group_ids=[group]), 0, 1)
    script.call("described as classic", DescribeGroupsRequest(groups=[group]), 6)
    script.call("listed", ListGroupsRequest(types_filter=["consumer"]), 5, own=group)
    beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)
    script.call("a heartbeat", beat, 4)
    script.call("a sync", _classic_sync(group, generation, member), 5)
    script.call(
        "a heartbeat of another generation", HeartbeatRequest(group_id=group, generation_id=9, member_id=member), 4
    )
    script.call("a heartbeat of a stranger", HeartbeatRequest(group_id=group, generation_id=1, member_id="x"), 4)
    script.call("a classic heartbeat of the other", HeartbeatRequest(group_id=group, generation_id=2, member_id="A"), 4)
    script.call("a join of another type", _classic_join(group, protocol_type="connect"), 3)
    script.call("a join without a common protocol", _classic_join(group, protocols=["sticky"]), 3)
    script.call("a join that needs an id", _classic_join(group), 5)
    waiting = script.call("it joins and owns all", _classic_join(group, member, owned=[0, 1]), 5)
    script.call("a sync of another protocol", _classic_sync(group, waiting.generation_id, member, protocol_name="x"), 5)
    script.call("it syncs", _classic_sync(group, waiting.generation_id, member), 5)
    script.call("the other waits", _beat(group, "A", upgraded.member_epoch), 1)
    script.call(
        "it is told to give up",
        HeartbeatRequest(group_id=group, generation_id=waiting.generation_id, member_id=member),
        4,
    )
    joined = script.call("it joins and has let go", _classic_join(group, member, owned=[1]), 5)
    script.call("it syncs again", _classic_sync(group, joined.generation_id, member), 5)
    script.call("the other gets it", _beat(group, "A", upgraded.member_epoch), 1)
    beat = HeartbeatRequest(group_id=group, generation_id=joined.generation_id, member_id=member)
    script.call("nothing to do", beat, 4)
    script.call("described with both", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    for name, generation_id in (("commit", joined.generation_id), ("commit of another generation", 77)):
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topics = [OffsetCommitRequestTopic(name=group, partitions=[partition])]
        commit = OffsetCommitRequest(
            group_id=group, member_id=member, generation_id_or_member_epoch=generation_id, topics=topics
        )
        script.call(name, commit, 8)
    script.call("the other leaves", _beat(group, "A", -1), 1)
    script.call("it is told of it", beat, 4)
    script.call("described as classic again", DescribeGroupsRequest(groups=[group]), 6)
    script.call("described as a consumer group", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    again = script.call("it joins the classic group", _classic_join(group, member, owned=[1]), 5)
    script.call("it assigns", _classic_sync(group, again.generation_id, member), 5)
    script.call("described when all is done", DescribeGroupsRequest(groups=[group]), 6)
    assert topic_id


def eager_members_migrate(script: Script) -> None:
    """A classic member that gives up everything before it joins arrives at once."""
    coordinator(script)
    group = "cg-eager"
    first = "!"  # ranges are assigned by member id, and a classic member's id is random: this id sorts before it
    _topic(script, group, 2)
    member, _ = _classic_group(script, group, 0, 1)
    script.call("the first of the new protocol", _beat(group, first, server_assignor="range"), 1)
    joined = script.call("it joins with nothing", _classic_join(group, member), 5)
    script.call("it syncs", _classic_sync(group, joined.generation_id, member), 5)
    script.call("the other gets the rest", _beat(group, first, joined.generation_id), 1)
    leaver = MemberIdentity(member_id=member, group_instance_id=None)
    script.call("it leaves", LeaveGroupRequest(group_id=group, members=[leaver, leaver]), 5)
    script.call("the other gets all", _beat(group, first, joined.generation_id), 1)
    late = script.ask(_classic_join(group), 5)
    script.call("a classic member joins", _classic_join(group, late.member_id), 5)
    script.call("described", ConsumerGroupDescribeRequest(group_ids=[group]), 1)


def static_members_migrate(script: Script) -> None:
    """A static member returns with the other protocol, and gets its own place again."""
    coordinator(script)
    group = "cg-static-both"
    _topic(script, group, 2)
    member, generation = _classic_group(script, group, 0, 1, group_instance_id="i")
    upgraded = script.call("it comes back with the new protocol", _beat(group, "A", instance_id="i"), 1)
    script.call("described", ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    beat = HeartbeatRequest(group_id=group, generation_id=generation, member_id=member, group_instance_id="i")
    script.call("the former is fenced", beat, 4)
    script.call("it beats", _beat(group, "A", upgraded.member_epoch, instance_id="i"), 1)
    joined = script.call("it comes back with the classic one", _classic_join(group, group_instance_id="i"), 5)
    script.call("described as classic", DescribeGroupsRequest(groups=[group]), 6)
    sync = _classic_sync(group, joined.generation_id, joined.member_id, group_instance_id="i")
    script.call("it syncs", sync, 5)


def groups_that_do_not_migrate(script: Script) -> None:
    coordinator(script)
    _topic(script, "cg-other", 1)
    other = script.ask(_classic_join("cg-other", protocol_type="connect"), 3)
    sync = SyncGroupRequest(group_id="cg-other", generation_id=other.generation_id, member_id=other.member_id)
    script.ask(sync, 3)
    script.call("of another protocol type", _beat("cg-other", "A"), 1)
    _topic(script, "cg-custom", 1)
    joined = script.ask(_classic_join("cg-custom"), 3)
    assigned = encode_versioned(ConsumerProtocolAssignment(user_data=b"own"), 1)
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=assigned)
    script.ask(_classic_sync("cg-custom", joined.generation_id, joined.member_id, assignments=[assignment]), 5)
    script.call("with data of its own assignor", _beat("cg-custom", "A"), 1)
    _topic(script, "cg-malformed", 1)
    bad = _classic_join("cg-malformed")
    bad = replace(bad, protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")])
    joined = script.ask(bad, 3)
    script.ask(_classic_sync("cg-malformed", joined.generation_id, joined.member_id), 5)
    script.call("with a subscription that cannot be read", _beat("cg-malformed", "A"), 1)


SCRIPTS = (
    group_migrates_and_returns,
    eager_members_migrate,
    static_members_migrate,
    groups_that_do_not_migrate,
    consumer_heartbeats_refused,
    consumer_epochs,
    consumers_share_a_topic,
    consumer_assignment_intervals,
    static_consumers,
    consumer_commits,
    commits_of_members_in_transactions,
    consumer_and_classic,
)
