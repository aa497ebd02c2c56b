"""ShareGroupDescribe (KIP-932): state, epochs and members of share groups with their assignment."""

from dataclasses import replace

from anabranch.broker.api.access.caller import Caller
from anabranch.broker.api.access.groups import with_operations
from anabranch.broker.api.access.guard import GROUP_DENIED, TOPIC_DENIED, Passed, Verdict, split
from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from anabranch.broker.api.handlers.consumer_group_describe import HIDDEN_TOPICS
from anabranch.broker.api.handlers.share_protocol import check_share_protocol
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.acls.model import AclOperation
from anabranch.broker.kafka.groups.consumer.records import by_topic
from anabranch.broker.kafka.groups.share.assignor import SIMPLE
from anabranch.broker.kafka.groups.share.group import ShareGroup
from anabranch.broker.kafka.groups.share.member import ShareMember
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import ErrorCode, KafkaError
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
        group = serving.groups.shard_with_id(group_id).group(group_id)
    except KafkaError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message or None, group_id=group_id)
    if not isinstance(group, ShareGroup):
        problem = "not found" if group is None else "is not a share group"
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {group_id} {problem}.", group_id=group_id
        )
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
        TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=[index for _, index in found])
        for topic_id, found in by_topic(member.assigned)
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


def guard(caller: Caller, request: ShareGroupDescribeRequest) -> Verdict:
    """Check DESCRIBE on each group and on the topics that are assigned to its members."""
    allowed, denied = split(request.group_ids, lambda group_id: caller.may_group(AclOperation.DESCRIBE, group_id))
    errors = [DescribedGroup(error_code=GROUP_DENIED, group_id=group_id) for group_id in denied]

    def shown(group: DescribedGroup) -> DescribedGroup:
        assigned = {each.topic_name for member in group.members for each in member.assignment.topic_partitions}
        if len(caller.topics(AclOperation.DESCRIBE, assigned)) < len(assigned):
            return DescribedGroup(group_id=group.group_id, error_code=TOPIC_DENIED, error_message=HIDDEN_TOPICS)
        if request.include_authorized_operations:
            described: DescribedGroup = with_operations(caller, group)
            return described
        return group

    def amend(response: ShareGroupDescribeResponse) -> ShareGroupDescribeResponse:
        return replace(response, groups=[*errors, *(shown(group) for group in response.groups)])

    return Passed(replace(request, group_ids=allowed), amend)


API = declare(
    ShareGroupDescribeRequest,
    handle,
    guard=guard,
    waits_for=groups(lambda request: request.group_ids),
    relayed=True,
)
