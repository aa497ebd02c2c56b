"""ShareGroupDescribe (KIP-932): state, epochs and members of share groups with their assignment."""

from collections.abc import Set as AbstractSet

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from anabranch.broker.api.handlers.described_groups import find_group, guard_of
from anabranch.broker.api.handlers.share_protocol import check_share_protocol
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.groups.modern.topic_image import by_topic
from anabranch.broker.kafka.groups.share.assignor import SIMPLE
from anabranch.broker.kafka.groups.share.group import ShareGroup
from anabranch.broker.kafka.groups.share.member import ShareMember
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.share_group_describe import (
    Assignment,
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    TopicPartitions,
)


def handle(serving: Serving, request: ShareGroupDescribeRequest, _exchange: Exchange) -> ShareGroupDescribeResponse:
    """Answer at once."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
    return ShareGroupDescribeResponse(
        groups=[_described(serving, group_id, operations) for group_id in request.group_ids]
    )


def _described(serving: Serving, group_id: str, operations: int) -> DescribedGroup:
    try:
        check_share_protocol(serving)
        group = find_group(serving, group_id, ShareGroup, "share")
    except KafkaError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message or None, group_id=group_id)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=SIMPLE,
        members=[_member(serving, member) for member in group.members.values()],
        authorized_operations=operations,
    )


def _member(serving: Serving, member: ShareMember) -> Member:
    """Describe a member, whose deleted topics are left out."""
    topics = [
        TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=indexes)
        for topic_id, indexes in by_topic(member.assigned)
        if (topic := serving.topics.get(topic_id)) is not None
    ]
    return Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        assignment=Assignment(topic_partitions=topics),
    )


def _assigned_topics(group: DescribedGroup) -> AbstractSet[str]:
    return {each.topic_name for member in group.members for each in member.assignment.topic_partitions}


API = declare(
    ShareGroupDescribeRequest,
    handle,
    guard=guard_of(DescribedGroup, _assigned_topics),
    waits_for=groups(lambda request: request.group_ids),
    relayed=True,
)
