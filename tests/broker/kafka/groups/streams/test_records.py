"""Records of streams groups: round trips, and bytes as Apache Kafka writes them."""

from dataclasses import replace

import pytest

from anabranch.broker.kafka.groups.modern.records import RecordKey
from anabranch.broker.kafka.groups.streams import records
from anabranch.broker.kafka.groups.streams.member import MemberState, StreamsMember
from anabranch.broker.kafka.groups.streams.records import EpochMetadata
from anabranch.broker.kafka.groups.streams.requests import Endpoint
from anabranch.broker.kafka.groups.streams.tasks import HeldTasks, Task, TaskAssignment, Tasks
from anabranch.broker.kafka.groups.streams.topology import Copartition, Subtopology, TopicDescription, Topology
from anabranch.protocol.codec import encode_versioned
from anabranch.protocol.messages.embedded import streams_groups as messages


def tasks(*partitions: int) -> Tasks:
    return frozenset(Task("0", partition) for partition in partitions)


@pytest.mark.parametrize("kind", records.KINDS.key_types)
def test_a_key_names_its_kind_group_and_member(kind: int) -> None:
    member_id = "m" if kind in {records.MEMBER, records.TARGET, records.CURRENT} else ""
    key = RecordKey(kind, "g", member_id)
    raw = records.KINDS.key_bytes(key)
    assert raw[:2] == kind.to_bytes(2, "big")
    assert records.KINDS.parse_key(raw) == key


def test_other_keys_are_not_ones_of_streams_groups() -> None:
    assert records.KINDS.parse_key(b"\x00\x03\x00\x01g") is None


def test_an_epoch_is_what_it_was() -> None:
    for metadata in (EpochMetadata(), EpochMetadata(-9, 3, {"num.standby.replicas": "1"}, 4, 5)):
        assert records.parse_epoch(records.epoch_value(7, metadata)) == (7, metadata)


def test_an_epoch_without_configs_has_an_empty_list_of_them() -> None:
    # version, epoch, hash, one tag: 1, of one byte, an empty array
    assert records.epoch_value(2, EpochMetadata(1)).hex() == "000000000002000000000000000101010101"


def test_the_epoch_of_a_target_is_what_it_was() -> None:
    assert records.KINDS.parse_target_epoch(records.KINDS.target_epoch_value(7, 1234)) == (7, 1234)


def test_a_target_is_what_it_was() -> None:
    target = TaskAssignment(tasks(1, 0) | {Task("1", 4)}, tasks(2), tasks(3))
    assert records.parse_target(records.target_value(target)) == target


def test_a_member_is_what_it_was() -> None:
    member = StreamsMember(
        "m", "i", "r", "c", "/h", 5, 7, 6, 6, "p", Endpoint("host", 65_535), {"zone": "z", "cluster": "k"},
        MemberState.UNREVOKED, HeldTasks({Task("0", 1): 3, Task("0", 0): 7}, tasks(2), tasks(3)),
        HeldTasks({Task("1", 1): 2}, tasks(4), tasks(5)),
    )  # fmt: skip
    for each in (member, replace(member, endpoint=None, instance_id=None, rack_id=None, client_tags={})):
        assert records.parse_member("m", records.member_value(each), records.current_value(each)) == each


def test_a_member_without_a_current_assignment_has_no_tasks() -> None:
    member = StreamsMember("m", client_id="c")
    assert records.parse_member("m", records.member_value(member), None) == member


def test_epochs_that_do_not_match_the_tasks_are_replaced_by_the_members() -> None:
    listed = [
        messages.CurrentTaskIds(subtopology_id="0", partitions=[0, 1], assignment_epochs=[3]),
        messages.CurrentTaskIds(subtopology_id="1", partitions=[0]),
    ]
    current = messages.StreamsGroupCurrentMemberAssignmentValue(member_epoch=9, state=1, active_tasks=listed)
    member = records.parse_member("m", records.member_value(StreamsMember("m")), encode_versioned(current, 0))
    assert member.assigned.active == {Task("0", 0): 9, Task("0", 1): 9, Task("1", 0): 9}


def test_a_state_of_a_newer_version_is_unknown() -> None:
    current = messages.StreamsGroupCurrentMemberAssignmentValue(member_epoch=9, state=4)
    member = records.parse_member("m", records.member_value(StreamsMember("m")), encode_versioned(current, 0))
    assert member.state is MemberState.UNKNOWN


def test_a_topology_is_what_it_was() -> None:
    changelog = TopicDescription("c", 0, 2, (("cleanup.policy", "compact"),))
    subtopology = Subtopology(
        "1", ("a", "b"), (), (changelog,), ("s",), (TopicDescription("r", 3, 0),), (Copartition((0, 1), (), (0,)),)
    )
    topology = Topology(4, (subtopology, Subtopology("0", ("a",))))
    found = records.parse_topology(records.topology_value(topology))
    assert found == topology
    assert found.is_same(Topology(4, topology.subtopologies[::-1]))
    assert not found.is_same(Topology(4, topology.subtopologies[:1]))
    assert not found.is_same(Topology(5, topology.subtopologies))
    assert topology.required_topics() == {"a", "b", "c", "r"}
