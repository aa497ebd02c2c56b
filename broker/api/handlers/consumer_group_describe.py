"""ConsumerGroupDescribe (KIP-848): state, epochs and members of consumer groups, with current and target assignment."""

from collections.abc import Set as AbstractSet

from anabranch.broker.api.declaration import declare
from anabranch.broker.api.handlers.authorized_operations import GROUP_OPERATIONS, NOT_REQUESTED
from anabranch.broker.api.handlers.consumer_protocol import check_consumer_protocol
from anabranch.broker.api.handlers.described_groups import find_group, guard_of
from anabranch.broker.api.waits import groups
from anabranch.broker.cluster.serving import Serving
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.member import ConsumerMember
from anabranch.broker.kafka.groups.modern.topic_image import TopicIdPartition, by_topic
from anabranch.broker.node.net.exchange import Exchange
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.messages.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)

USES_CLASSIC_PROTOCOL, USES_CONSUMER_PROTOCOL = 0, 1


def handle(
    serving: Serving, request: ConsumerGroupDescribeRequest, _exchange: Exchange
) -> ConsumerGroupDescribeResponse:
    """Answer at once."""
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_REQUESTED
    return ConsumerGroupDescribeResponse(
        groups=[_described(serving, group_id, operations) for group_id in request.group_ids]
    )


def _described(serving: Serving, group_id: str, operations: int) -> DescribedGroup:
    try:
        check_consumer_protocol(serving)
        group = find_group(serving, group_id, ConsumerGroup, "consumer")
    except KafkaError as error:
        return DescribedGroup(error_code=error.code, error_message=error.message or None, group_id=group_id)
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(serving, group, member) for member in group.members.values()],
        authorized_operations=operations,
    )


def _member(serving: Serving, group: ConsumerGroup, member: ConsumerMember) -> Member:
    return Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_assignment(serving, member.assigned.keys()),
        target_assignment=_assignment(serving, group.targets.get(member.member_id, frozenset())),
        member_type=USES_CONSUMER_PROTOCOL if member.classic is None else USES_CLASSIC_PROTOCOL,
    )


def _assignment(serving: Serving, partitions: AbstractSet[TopicIdPartition]) -> Assignment:
    """Build an assignment with the names of topics. Deleted topics are left out."""
    topics = [
        TopicPartitions(topic_id=topic_id, topic_name=topic.name, partitions=indexes)
        for topic_id, indexes in by_topic(partitions)
        if (topic := serving.topics.get(topic_id)) is not None
    ]
    return Assignment(topic_partitions=topics)


def _assigned_topics(group: DescribedGroup) -> AbstractSet[str]:
    return {
        each.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for each in assignment.topic_partitions
    }


API = declare(
    ConsumerGroupDescribeRequest,
    handle,
    guard=guard_of(DescribedGroup, _assigned_topics),
    waits_for=groups(lambda request: request.group_ids),
    relayed=True,
)
