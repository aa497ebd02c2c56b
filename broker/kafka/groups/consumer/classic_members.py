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
from anabranch.broker.kafka.groups.consumer.group_base import ConsumerGroupBase
from anabranch.broker.kafka.groups.consumer.member import ClassicMemberMetadata, ConsumerMember, MemberState
from anabranch.broker.kafka.groups.consumer.topic_image import TopicImage
from anabranch.broker.kafka.groups.requests import JoinRequest, JoinResponse, Now, SyncRequest, SyncResponse
from anabranch.protocol.errors import ErrorCode, KafkaError, MalformedMessage


class ClassicMemberRequests(ConsumerGroupBase):
    """A consumer group with the requests of its classic members."""

    @property
    def should_downgrade(self) -> bool:
        """True if all members use the classic protocol, and the settings allow to convert the group to it."""
        return (
            bool(self.members)
            and self._settings.consumer_migration_policy in {"bidirectional", "downgrade"}
            and all(member.classic is not None for member in self.members.values())
        )

    @property
    def is_assignment_outdated(self) -> bool:
        """True if the group epoch is ahead of the assignment epoch: the target assignment must be recomputed."""
        return self.epoch > self.assignment_epoch

    def join_classic_member(self, request: JoinRequest, topics: TopicImage, now: Now) -> JoinResponse:
        """Handle JoinGroup. Raises KafkaError, with nothing changed."""
        self._check_room(request.member_id)
        self._check_protocols(request)
        if not request.member_id and request.group_instance_id is None and request.member_id_required:
            return JoinResponse(ErrorCode.MEMBER_ID_REQUIRED, request.new_member_id)
        try:
            subscription = parse_subscription(request.protocols[0].metadata, topics)
        except MalformedMessage as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
        member_id = request.member_id or request.new_member_id
        former = self._classic_predecessor(request)
        before = former or ConsumerMember(member_id)
        member = _joined(before, member_id, request, subscription)
        # -- no error is raised from here on
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
        """Return whether a member has an old epoch, must revoke partitions, or can get all partitions it waits for."""
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
        """Raise KafkaError unless all classic members support at least one of the request's protocols."""
        offered = {protocol.name for protocol in request.protocols}
        for member in self.members.values():
            if member.classic is not None:
                offered &= {protocol.name for protocol in member.classic.protocols}
        if request.protocol_type != self.protocol_type or not offered:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _classic_predecessor(self, request: JoinRequest) -> ConsumerMember | None:
        """Return the member that joins again, or that a static member replaces; None for a new one.

        Raises KafkaError.
        """
        if request.group_instance_id is None:
            return self.members.get(request.member_id)
        if request.member_id:
            return self._static_member(request.group_instance_id, request.member_id)
        return self.members.get(self.static.get(request.group_instance_id, ""))

    def _ensure_rebalance_timeout(self, member: ConsumerMember, now: Now) -> None:
        if member.member_id not in self._rebalance_deadlines_ms:
            self._start_rebalance_timeout(member, now)


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
