"""Describes a group for tests: its state, its members, and what it has consumed."""

from collections.abc import Iterable, Mapping
from typing import Final

from anabranch.broker.api.handlers.local import LocalRequests, User
from anabranch.broker.kafka.groups.consumer.embedded_protocol import assigned_partitions
from anabranch.protocol.errors import ErrorCode, KafkaError, MalformedMessage
from anabranch.protocol.messages import consumer_group_describe, describe_groups
from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

Place = tuple[str, int]
"""Topic and partition."""
_ABSENT: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Errors of a group that does not exist, or whose coordinator is another node, or still starting."""


async def describe_group(local: LocalRequests, group_id: str, user: User) -> Mapping[str, object] | None:
    """Return state, number of members, and offsets of a group of either protocol; None if there is no such group yet.

    Offsets are rows of topic, partition and committed offset (None: none) of each partition that is assigned or has a
    committed offset. Raises KafkaError, and as `LocalRequests.call`.
    """
    (classic,) = (await local.call(DescribeGroupsRequest(groups=[group_id]), user)).groups
    if classic.error_code in _ABSENT:
        (group,) = (await local.call(ConsumerGroupDescribeRequest(group_ids=[group_id]), user)).groups
        if group.error_code in _ABSENT:
            return None
        places = _assigned_of_consumer(group)
    else:
        group = classic
        places = _assigned_of_classic(group)
    _check(group.error_code)
    committed = await _committed(local, group_id, user)
    offsets = [[*place, committed.get(place)] for place in sorted({*places, *committed})]
    return {"state": group.group_state, "members": len(group.members), "offsets": offsets}


def _check(code: int) -> None:
    if code:
        raise KafkaError(ErrorCode(code))


async def _committed(local: LocalRequests, group_id: str, user: User) -> Mapping[Place, int]:
    asked = OffsetFetchRequestGroup(group_id=group_id, topics=None)
    (group,) = (await local.call(OffsetFetchRequest(groups=[asked]), user)).groups
    _check(group.error_code)
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in group.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


def _assigned_of_classic(group: describe_groups.DescribedGroup) -> Iterable[Place]:
    if group.protocol_type != "consumer":
        return []
    found: list[Place] = []
    for member in group.members:
        try:
            found += assigned_partitions(member.member_assignment)
        except MalformedMessage:
            continue  # a client's own format
    return found


def _assigned_of_consumer(group: consumer_group_describe.DescribedGroup) -> Iterable[Place]:
    return [
        (topic.topic_name, index)
        for member in group.members
        for topic in member.assignment.topic_partitions
        for index in topic.partitions
    ]
