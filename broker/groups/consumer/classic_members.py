"""Classic members of a consumer group: JoinGroup, SyncGroup and Heartbeat translated (KIP-848, "online migration").

While a group is on its way from one protocol to the other, members of both kinds are in it. A classic one takes part
by the requests that it knows: its generation is its member epoch; a heartbeat tells it to rejoin when there is
something to give up or to be had; a join says what it owns, reconciles it, and is answered at once, as there is no
barrier; a sync brings what it has been assigned. It never becomes a leader: the broker assigns. What it is told to do
it must do within its rebalance timeout, or it is removed.
"""

from dataclasses import replace

from broker.groups.consumer.embedded_protocol import Subscription, assignment_bytes, parse_subscription
from broker.groups.consumer.group_base import ConsumerGroupBase
from broker.groups.consumer.member import ClassicMemberMetadata, ConsumerMember, MemberState
from broker.groups.consumer.topic_image import TopicImage
from broker.groups.requests import JoinRequest, JoinResponse, Now, SyncRequest, SyncResponse
from protocol.errors import ErrorCode, KafkaError, MalformedMessage


class ClassicMemberRequests(ConsumerGroupBase):
    """The part of a consumer group that speaks the classic protocol."""

    @property
    def should_downgrade(self) -> bool:
        """Whether nobody is left who speaks the new protocol, and the group may become a classic one."""
        return (
            bool(self.members)
            and self._settings.consumer_migration_policy in {"bidirectional", "downgrade"}
            and all(member.classic is not None for member in self.members.values())
        )

    @property
    def is_assignment_outdated(self) -> bool:
        """Whether something has changed that no assignment takes into account yet."""
        return self.epoch > self.assignment_epoch

    def join_classic_member(self, request: JoinRequest, topics: TopicImage, now: Now) -> JoinResponse:
        """Handle JoinGroup. Raises KafkaError, with nothing changed."""
        self._check_room(request.member_id)
        self._check_protocols(request)
        if not request.member_id and request.group_instance_id is None and request.member_id_required:
            return JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, request.fresh_member_id)
        try:
            subscription = parse_subscription(request.protocols[0].metadata, topics)
        except MalformedMessage as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
        member_id = request.member_id or request.fresh_member_id
        former = self._classic_predecessor(request)
        before = former or ConsumerMember(member_id)
        member = _joined(before, member_id, request, subscription)
        # -- from here on nothing is refused
        if former is not None and former.member_id != member_id:
            self._rename(former, member_id)
        self._put(member)
        self._extend_session(member_id, now)
        changed = (member.topic_names, member.topic_regex) != (before.topic_names, before.topic_regex)
        self._refresh(topics, now, changed=former is None or changed)
        if self.is_assignment_outdated and not self.should_downgrade:
            self._assign(topics, now)
        reconciled = self._reconcile(member, subscription.owned, now)
        self._start_rebalance_timeout(reconciled, now)
        return JoinResponse(
            member_id=member_id,
            generation=reconciled.epoch,
            protocol_type=self.protocol_type,
            protocol_name=request.protocols[0].name,
        )

    def sync_classic_member(self, request: SyncRequest, topics: TopicImage, now: Now) -> SyncResponse:
        """Handle SyncGroup. Raises KafkaError."""
        member, classic = self._classic_member(request.member_id, request.group_instance_id, request.generation)
        chosen = classic.protocols[0]
        for theirs, ours in ((request.protocol_type, self.protocol_type), (request.protocol_name, chosen.name)):
            if theirs is not None and theirs != ours:
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self.epoch > member.epoch and member.state is not MemberState.UNREVOKED:
            self._ensure_rebalance_timeout(member, now)
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._rebalance_deadlines_ms.pop(member.member_id, None)
        self._extend_session(member.member_id, now)
        assignment = assignment_bytes(member.assigned, topics, chosen.metadata)
        return SyncResponse(ErrorCode.NONE, request.protocol_type, request.protocol_name, assignment)

    def heartbeat_classic_member(self, member_id: str, instance_id: str | None, generation: int, now: Now) -> ErrorCode:
        """Handle Heartbeat. Raises KafkaError."""
        member, _ = self._classic_member(member_id, instance_id, generation)
        self._extend_session(member_id, now)
        if self._must_rejoin(member):
            self._ensure_rebalance_timeout(member, now)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _must_rejoin(self, member: ConsumerMember) -> bool:
        """Whether a member is behind, has something to give up, or can have all that it waits for."""
        if member.epoch < self.epoch or member.state is MemberState.UNREVOKED:
            return True
        target = self.targets.get(member.member_id, frozenset())
        return member.state is MemberState.UNRELEASED and not any(
            self._holders.get(partition, member.member_id) != member.member_id for partition in target
        )

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicMemberMetadata]:
        if instance_id is not None:
            member = self._static_member(instance_id, member_id)
        elif member_id in self.members:
            member = self.members[member_id]
        else:
            raise self._unknown(member_id)
        if member.classic is None:
            raise self._unknown(member_id)
        if generation != member.epoch:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return member, member.classic

    def _check_protocols(self, request: JoinRequest) -> None:
        """Raise KafkaError unless one of the protocols, at least, is offered by all classic members."""
        offered = {protocol.name for protocol in request.protocols}
        for member in self.members.values():
            if member.classic is not None:
                offered &= {protocol.name for protocol in member.classic.protocols}
        if request.protocol_type != self.protocol_type or not offered:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _classic_predecessor(self, request: JoinRequest) -> ConsumerMember | None:
        """Return the member that joins again, or whose place it takes, or None for a new one. Raises KafkaError."""
        if request.group_instance_id is None:
            return self.members.get(request.member_id)
        if request.member_id:
            return self._static_member(request.group_instance_id, request.member_id)
        return self.members.get(self.static.get(request.group_instance_id, ""))

    def _ensure_rebalance_timeout(self, member: ConsumerMember, now: Now) -> None:
        if member.member_id not in self._rebalance_deadlines_ms:
            self._start_rebalance_timeout(member, now)


def _joined(before: ConsumerMember, member_id: str, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
    """Return the member as it joins; one that takes another's place owns nothing yet of what that had."""
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
