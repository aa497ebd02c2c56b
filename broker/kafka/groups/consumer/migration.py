"""Conversion of a group with members from one protocol to the other (KIP-848, "online migration").

A classic group of consumers becomes a consumer group when the first member of the consumer protocol joins it, and a
classic group again when the last one has left. Members keep their ids, their partitions and their epoch, which is the
generation of a classic group. The next rebalance continues from there. These are pure functions.
"""

from anabranch.broker.kafka.configs.group_times import GroupTimesGetter
from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.member import ClassicMember
from anabranch.broker.kafka.groups.consumer.embedded_protocol import (
    ClassicSubscription,
    assignment_bytes,
    known_version,
    parse_assignment,
    parse_subscription,
)
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.member import ClassicMemberMetadata, ConsumerMember
from anabranch.broker.kafka.groups.modern.topic_image import NO_PARTITIONS, Partitions, TopicIdPartition, TopicImage
from anabranch.broker.kafka.groups.requests import Now
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError, MalformedMessage


def to_consumer_group(
    classic: ClassicGroup,
    settings: GroupSettings,
    topics: TopicImage,
    now: Now,
    times: GroupTimesGetter | None = None,
) -> ConsumerGroup:
    """Return a classic group as a consumer group. Raises KafkaError, in Kafka's words, if it cannot be converted."""
    if settings.consumer_migration_policy not in {"bidirectional", "upgrade"}:
        raise _refused(classic, "online upgrade is disabled")
    if classic.protocol_type != "consumer":
        raise _refused(classic, "the group does not use the consumer embedded protocol")
    if len(classic.members) > settings.members_max:
        raise _refused(classic, "the group size exceeds the consumer group maximum size")
    members: list[ConsumerMember] = []
    taken: set[TopicIdPartition] = set()
    for member in classic.members.values():
        subscription, assigned = _read(classic, member, topics)
        # If a leader has assigned a partition twice, only the first member holds it.
        assigned -= taken
        taken |= assigned
        members.append(_consumer_member(member, subscription, assigned, classic))
    return ConsumerGroup.converted(classic.group_id, settings, classic.generation, members, topics, now, times)


def _read(classic: ClassicGroup, member: ClassicMember, topics: TopicImage) -> tuple[ClassicSubscription, Partitions]:
    metadata = member.metadata(classic.protocol_name) or member.protocols[0].metadata
    try:
        subscription = parse_subscription(metadata, topics)
        assigned, user_data = parse_assignment(member.assignment, topics)
        known_version(member.protocols[0].metadata)  # that of the assignments which the member gets
    except MalformedMessage as error:
        raise _refused(classic, "the embedded consumer protocol is malformed") from error
    if user_data:
        raise _refused(
            classic,
            "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
            "assignor before re-attempting the upgrade",
        )
    return subscription, assigned


def _consumer_member(
    member: ClassicMember, subscription: ClassicSubscription, assigned: Partitions, classic: ClassicGroup
) -> ConsumerMember:
    return ConsumerMember(
        member_id=member.member_id,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        topic_names=subscription.topic_names,
        epoch=classic.generation,
        previous_epoch=classic.generation,
        assigned=dict.fromkeys(sorted(assigned), classic.generation),
        classic=ClassicMemberMetadata(member.session_timeout_ms, tuple(member.protocols)),
    )


def _refused(classic: ClassicGroup, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {why}.",
    )


def to_classic_group(group: ConsumerGroup, topics: TopicImage, now: Now) -> ClassicGroup:
    """Return a consumer group, all of whose members use the classic protocol, as a classic group.

    Its generation is the assignment epoch, which all members that are up to date have reached.
    """
    members = [
        _classic_member(member, member.classic, group.targets.get(member.member_id, NO_PARTITIONS), topics)
        for member in group.members.values()
        if member.classic is not None
    ]
    return ClassicGroup.converted(group.group_id, group.assignment_epoch, members, now)


def _classic_member(
    member: ConsumerMember, classic: ClassicMemberMetadata, target: Partitions, topics: TopicImage
) -> ClassicMember:
    return ClassicMember(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=classic.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        protocols=classic.protocols,
        assignment=assignment_bytes(target, topics, classic.protocols[0].metadata),
    )
