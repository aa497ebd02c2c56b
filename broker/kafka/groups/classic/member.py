"""A member of a classic group, the choice of a protocol that all members support, and the topics of a consumer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from anabranch.broker.kafka.groups.classic.snapshot import MemberSnapshot
from anabranch.broker.kafka.groups.requests import NEVER_MS, MemberProtocol
from anabranch.protocol.codec import decode
from anabranch.protocol.errors import MalformedMessage
from anabranch.protocol.messages.embedded.consumer_protocol import ConsumerProtocolSubscription


@dataclass(slots=True)
class ClassicMember:
    """A member. `join_ticket` and `sync_ticket` identify its requests without a response yet."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Sequence[MemberProtocol]
    assignment: bytes = b""
    deadline_ms: int = NEVER_MS
    is_new: bool = False
    """True until the first response: the member cannot send heartbeats, so waiting does not extend its session."""
    sync_expected: bool = False
    join_ticket: object | None = None
    sync_ticket: object | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the subscription in the format of a protocol, empty if the member does not support it."""
        return next((protocol.metadata for protocol in self.protocols if protocol.name == protocol_name), b"")

    @classmethod
    def restore(cls, stored: MemberSnapshot, protocol_name: str) -> "ClassicMember":
        """Rebuild a member from its record."""
        return cls(
            member_id=stored.member_id,
            group_instance_id=stored.group_instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            session_timeout_ms=stored.session_timeout_ms,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            protocols=(MemberProtocol(protocol_name, stored.subscription),),
            assignment=stored.assignment,
        )

    def snapshot(self, protocol_name: str | None, assignment: bytes) -> MemberSnapshot:
        """Return the durable state of the member with this assignment."""
        return MemberSnapshot(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=assignment,
        )

    def replaced_by(self, member_id: str) -> "ClassicMember":
        """Return the same member with a new id and no request that waits."""
        return replace(
            self, member_id=member_id, deadline_ms=NEVER_MS, is_new=False, join_ticket=None, sync_ticket=None
        )


def common_protocols(members: Iterable[ClassicMember]) -> set[str]:
    """Return the names of the protocols that every member supports."""
    offers = [{protocol.name for protocol in member.protocols} for member in members]
    return set.intersection(*offers) if offers else set()


def choose_protocol(members: Sequence[ClassicMember]) -> str:
    """Return the protocol that wins the members' vote.

    Each member votes for the first of its protocols that all support. In a tie the vote of the oldest member decides.
    """
    candidates = common_protocols(members)
    votes: dict[str, int] = {}
    for member in members:
        choice = next(protocol.name for protocol in member.protocols if protocol.name in candidates)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=lambda name: votes[name])


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a consumer's subscription, None if its format is unknown.

    Topics come first in every version, and version 0 has little else: reading it is enough for all.
    """
    try:
        subscription, _ = decode(ConsumerProtocolSubscription, metadata, 0, 2)
    except MalformedMessage:
        return None
    return frozenset(subscription.topics)
