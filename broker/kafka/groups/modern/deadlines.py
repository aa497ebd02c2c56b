"""Deadlines of the members of a group: the ends of sessions, and of rebalance timeouts that have begun."""

from collections.abc import Collection
from typing import Self

from anabranch.broker.kafka.groups.modern.member import ModernMember
from anabranch.broker.kafka.groups.requests import NEVER_MS, Now


class MemberDeadlines:
    """Times on the steady clock by which members must do what is expected of them, or are removed."""

    def __init__(self) -> None:
        self.wake_ms = NEVER_MS
        """A lower bound of the earliest."""
        self.sessions: dict[str, int] = {}
        """Deadline of the next heartbeat, by member id."""
        self.rebalances: dict[str, int] = {}
        """Deadline by which a member must have revoked partitions, or a classic one joined or synced, by member id."""

    def begin_session(self, member_id: str, timeout_ms: int, now: Now) -> None:
        """Begin a new session of a member."""
        deadline_ms = self.sessions[member_id] = now.steady_ms + timeout_ms
        self.wake_ms = min(self.wake_ms, deadline_ms)

    def begin_rebalance(self, member: ModernMember, now: Now) -> None:
        """Begin the time within which a member must have revoked partitions, or a classic one joined or synced."""
        deadline_ms = self.rebalances[member.member_id] = now.steady_ms + member.rebalance_timeout_ms
        self.wake_ms = min(self.wake_ms, deadline_ms)

    def ensure_rebalance(self, member: ModernMember, now: Now) -> None:
        """Begin a member's rebalance timeout unless it has begun."""
        if member.member_id not in self.rebalances:
            self.begin_rebalance(member, now)

    def end_rebalance(self, member_id: str) -> None:
        """End a member's rebalance timeout: it has done what was expected of it."""
        self.rebalances.pop(member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove the deadlines of a member."""
        self.sessions.pop(member_id, None)
        self.rebalances.pop(member_id, None)

    def silent_members(self, now: Now) -> list[str]:
        """Return the members whose session or rebalance timeout has ended."""
        deadlines = (self.sessions, self.rebalances)
        now_ms = now.steady_ms
        return sorted({name for each in deadlines for name, deadline_ms in each.items() if deadline_ms <= now_ms})

    def find_next(self) -> None:
        """Set `wake_ms` to the earliest deadline."""
        self.wake_ms = min(
            min(self.sessions.values(), default=NEVER_MS), min(self.rebalances.values(), default=NEVER_MS)
        )

    def keep(self, former: Self, classic: Collection[str]) -> None:
        """Continue the deadlines of the group before it was restored.

        Records tell who must revoke partitions, but not which `classic` members must join or sync.
        """
        for member_id in former.sessions.keys() & self.sessions.keys():
            self.sessions[member_id] = former.sessions[member_id]
        for member_id in former.rebalances.keys() & {*self.rebalances, *classic}:
            self.rebalances[member_id] = former.rebalances[member_id]
        self.find_next()
