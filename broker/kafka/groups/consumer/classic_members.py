"""Members of a consumer group that use the classic protocol: JoinGroup, SyncGroup, Heartbeat (KIP-848).

During an online migration from one protocol to the other, a group has members of both. The requests of a classic
member are translated:

- Its generation is its member epoch.
- Heartbeat returns REBALANCE_IN_PROGRESS when the member must revoke partitions, or can have new ones.
- JoinGroup reports the partitions that the member owns and reconciles it. There is no barrier: the response comes at
  once.
- SyncGroup returns the assignment. The member never becomes a leader, as the broker computes assignments.

A member that does not rejoin or sync within its rebalance timeout is removed.
"""

from dataclasses import replace

from anabranch.broker.kafka.groups.consumer.embedded_protocol import (
    ClassicSubscription,
    assignment_bytes,
    parse_subscription,
)
from anabranch.broker.kafka.groups.consumer.group import ConsumerGroup
from anabranch.broker.kafka.groups.consumer.member import ClassicMemberMetadata, ConsumerMember, MemberState
from anabranch.broker.kafka.groups.modern.topic_image import TopicImage
from anabranch.broker.kafka.groups.requests import (
    ClassicHeartbeat,
    JoinRequest,
    JoinResponse,
    Now,
    SyncRequest,
    SyncResponse,
)
from anabranch.protocol.errors import ErrorCode, KafkaError, MalformedMessage


def join(group: ConsumerGroup, request: JoinRequest, topics: TopicImage, now: Now) -> JoinResponse:
    """Handle JoinGroup. Raises KafkaError, with nothing changed."""
    group.check_room(request.member_id)
    _check_protocols(group, request)
    if not request.member_id and request.group_instance_id is None and request.member_id_required:
        return JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
    try:
        subscription = parse_subscription(request.protocols[0].metadata, topics)
    except MalformedMessage as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
    member_id = request.member_id or request.new_member_id
    former = _predecessor(group, request)
    before = former or ConsumerMember(member_id)
    member = _joined(before, member_id, request, subscription)
    # -- no error is raised from here on
    if former is not None and former.member_id != member_id:
        group.rename(former, member_id)
    group.put(member)
    group.extend_session(member_id, now)
    changed = (member.topic_names, member.topic_regex) != (before.topic_names, before.topic_regex)
    group.refresh(topics, now, changed=former is None or changed)
    if group.is_assignment_outdated and not group.should_downgrade and group.may_assign(now):
        group.assign(topics, now)
    reconciled = group.reconcile(member, subscription.owned, topics, now)
    group.deadlines.begin_rebalance(reconciled, now)
    return JoinResponse(
        member_id=member_id,
        generation=reconciled.epoch,
        protocol_type=group.protocol_type,
        protocol_name=request.protocols[0].name,
    )


def sync(group: ConsumerGroup, request: SyncRequest, topics: TopicImage, now: Now) -> SyncResponse:
    """Handle SyncGroup. Raises KafkaError: with REBALANCE_IN_PROGRESS the time to join again has begun."""
    member, classic = _classic_member(group, request.member_id, request.group_instance_id, request.generation)
    chosen = classic.protocols[0]
    for theirs, ours in ((request.protocol_type, group.protocol_type), (request.protocol_name, chosen.name)):
        if theirs is not None and theirs != ours:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if _is_behind(group, member, now) and member.state is not MemberState.UNREVOKED:
        group.deadlines.ensure_rebalance(member, now)
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
    group.deadlines.end_rebalance(member.member_id)
    group.extend_session(member.member_id, now)
    assignment = assignment_bytes(member.assigned, topics, chosen.metadata)
    return SyncResponse(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment)


def heartbeat(group: ConsumerGroup, request: ClassicHeartbeat, now: Now) -> ErrorCode:
    """Handle Heartbeat. Raises KafkaError."""
    member, _ = _classic_member(group, request.member_id, request.group_instance_id, request.generation)
    group.extend_session(member.member_id, now)
    if _must_rejoin(group, member, now):
        group.deadlines.ensure_rebalance(member, now)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _is_behind(group: ConsumerGroup, member: ConsumerMember, now: Now) -> bool:
    """Return whether a member has an old epoch, and would have a newer one after JoinGroup."""
    return member.epoch < (group.epoch if group.may_assign(now) else group.assignment_epoch)


def _must_rejoin(group: ConsumerGroup, member: ConsumerMember, now: Now) -> bool:
    """Return whether a member has an old epoch, must revoke partitions, or can get all partitions it waits for."""
    if _is_behind(group, member, now) or member.state is MemberState.UNREVOKED:
        return True
    target = group.targets.get(member.member_id, frozenset())
    return member.state is MemberState.UNRELEASED and all(
        group.is_free(partition, member.member_id) for partition in target
    )


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ClassicMemberMetadata]:
    member = group.require(member_id) if instance_id is None else group.require_static(instance_id, member_id)
    if member.classic is None:
        raise group.unknown(member_id)
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member, member.classic


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    """Raise KafkaError unless all classic members support at least one of the request's protocols."""
    offered = {protocol.name for protocol in request.protocols}
    for member in group.members.values():
        if member.classic is not None:
            offered &= {protocol.name for protocol in member.classic.protocols}
    if request.protocol_type != group.protocol_type or not offered:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _predecessor(group: ConsumerGroup, request: JoinRequest) -> ConsumerMember | None:
    """Return the member that joins again, or that a static member replaces; None for a new one.

    Raises KafkaError.
    """
    if request.group_instance_id is None:
        return group.members.get(request.member_id)
    if request.member_id:
        return group.require_static(request.group_instance_id, request.member_id)
    return group.members.get(group.static.get(request.group_instance_id, ""))


def _joined(
    before: ConsumerMember, member_id: str, request: JoinRequest, subscription: ClassicSubscription
) -> ConsumerMember:
    """Return the member as it joins. A static member that replaces another one owns no partitions yet."""
    member = replace(
        before,
        member_id=member_id,
        instance_id=request.group_instance_id or before.instance_id,
        rack_id=subscription.rack_id or before.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=subscription.topic_names,
        topic_regex="",
        classic=ClassicMemberMetadata(request.session_timeout_ms, tuple(request.protocols)),
    )
    if before.member_id == member_id:
        return member
    return replace(member, epoch=0, previous_epoch=0, state=MemberState.STABLE, revoking={})
