"""Random members, requests, writes and silences against one group, checked against its invariants.

The checks are the guarantees that users of the protocol rely on. Every request is answered exactly once. Within a
generation all members get the same protocol and leader, and only the leader gets the list of members. Every assignment
in an answer is the leader's, and is durable. A group without further requests ends as Empty.
"""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.broker.kafka.groups.classic.group import ClassicGroup
from anabranch.broker.kafka.groups.classic.kind import ClassicKind
from anabranch.broker.kafka.groups.classic.machine import ClassicMachine
from anabranch.broker.kafka.groups.classic.records import parse_snapshot
from anabranch.broker.kafka.groups.classic.snapshot import GroupSnapshot
from anabranch.broker.kafka.groups.classic.state_table import ClassicGroupState
from anabranch.broker.kafka.groups.interface import Outcome
from anabranch.broker.kafka.groups.requests import (
    ClassicHeartbeat,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    MemberProtocol,
    Now,
    SyncRequest,
    SyncResponse,
)
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode
from tests.support.soak import SOAK

NAMES = "abcd"


def snapshot_of(write: Outcome) -> GroupSnapshot:
    (record,) = write.records
    assert record.value is not None
    return parse_snapshot(record.value)


def assignments_of(snapshot: GroupSnapshot) -> dict[str, bytes]:
    return {member.member_id: member.assignment for member in snapshot.members}


class GroupModel(RuleBasedStateMachine):
    """Up to four clients, some of them static, whose behaviour is arbitrary."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.machine = ClassicMachine(ClassicGroup("g"), GroupSettings(initial_rebalance_delay_ms=0))
        self.ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.waiting: set[str] = set()
        self.answered: Counter[str] = Counter()
        self.owners: dict[str, str] = {}
        self.writes: list[Outcome] = []
        self.durable: dict[int, dict[str, bytes]] = {}
        self.assigned: dict[int, list[dict[str, bytes]]] = {}
        self.agreed: dict[int, tuple[str | None, str]] = {}
        self.stored: dict[bytes, bytes] = {}
        self.requests = 0
        self.last_generation = 0

    @initialize(delay_ms=st.sampled_from([0, 3000]), members_max=st.sampled_from([2, 100]))
    def start(self, delay_ms: int, members_max: int) -> None:
        self.settings = GroupSettings(initial_rebalance_delay_ms=delay_ms, members_max=members_max)
        self.machine = ClassicMachine(ClassicGroup("g"), self.settings)

    @property
    def group(self) -> ClassicGroup:
        return self.machine.group

    @property
    def now(self) -> Now:
        return Now(self.now_ms, self.now_ms)

    def ticket(self, name: str) -> str:
        self.requests += 1
        ticket = f"{name}{self.requests}"
        self.waiting.add(ticket)
        self.owners[ticket] = name
        return ticket

    @rule(
        name=st.sampled_from(NAMES),
        static=st.booleans(),
        forget=st.booleans(),
        version=st.sampled_from([3, 8, 9]),
        protocols=st.sampled_from([("range",), ("range", "sticky"), ("sticky", "range"), ("sticky",)]),
    )
    def join(self, name: str, static: bool, forget: bool, version: int, protocols: tuple[str, ...]) -> None:
        if forget:
            self.ids.pop(name, None)
        request = JoinRequest(
            ticket=self.ticket(name),
            member_id=self.ids.get(name, ""),
            new_member_id=f"{name}.{self.requests}",
            group_instance_id=name.upper() if static else None,
            client_id=name,
            client_host="h",
            session_timeout_ms=6_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[MemberProtocol(protocol, b"") for protocol in protocols],
            member_id_required=version >= 4,
            can_skip_assignment=version >= 9,
        )
        self.run(self.machine.handle(request, self.now))

    @rule(name=st.sampled_from(NAMES), late=st.sampled_from([0, 0, 0, 1]))
    def sync(self, name: str, late: int) -> None:
        generation = self.generations.get(name, 0) - late
        assignments = {member_id: f"{generation}/{member_id}".encode() for member_id in self.group.members}
        request = SyncRequest(
            ticket=self.ticket(name),
            member_id=self.ids.get(name, ""),
            group_instance_id=None,
            generation=generation,
            protocol_type=None,
            protocol_name=None,
            assignments=assignments,
        )
        outcome = self.machine.handle(request, self.now)
        if outcome.records:
            self.assigned.setdefault(generation, []).append(assignments_of(snapshot_of(outcome)))
            assert self.ids[name] == self.group.leader, "only the leader assigns"
        self.run(outcome)

    @rule(name=st.sampled_from(NAMES))
    def heartbeat(self, name: str) -> None:
        heartbeat = ClassicHeartbeat(self.ids.get(name, ""), None, self.generations.get(name, 0))
        if self.machine.handle(heartbeat, self.now).answer is ErrorCode.NONE:
            assert self.group.state in {ClassicGroupState.COMPLETING, ClassicGroupState.STABLE}

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        member_id = self.ids.pop(name, "x")
        was_known = member_id in self.group.members or member_id in self.group.pending
        outcome = self.machine.handle(LeaveRequest([LeavingMember(member_id, None)]), self.now)
        assert (outcome.answer == [ErrorCode.NONE]) == was_known
        self.run(outcome)

    @precondition(lambda self: self.writes)
    @rule(error=st.sampled_from([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]))
    def written(self, error: ErrorCode) -> None:
        write = self.writes.pop(0)
        if not error:
            self.stored = {key: value for key, value in write.records if value is not None}
            snapshot = snapshot_of(write)
            self.durable[snapshot.generation] = assignments_of(snapshot)
        assert write.then is not None, "a classic group is not ahead of its log"
        self.run(write.then(error, self.now))

    @rule(ms=st.sampled_from([1, 1000, 5_999, 6_000, 10_000]))
    def wait(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while self.group.wake_ms <= end_ms:
            self.now_ms = max(self.now_ms, self.group.wake_ms)
            self.run(self.machine.tick(self.now))
        self.now_ms = end_ms

    @rule()
    def crash(self) -> None:
        """Restart the coordinator: only written records survive; open requests are lost with their connections."""
        self.waiting.clear()
        self.writes.clear()
        self.machine = ClassicKind(self.settings).restore("g", self.stored, self.now)
        self.last_generation = self.group.generation
        # Generations that were never durable are made again, by others perhaps.
        for generation in [g for g in self.agreed if g > self.group.generation]:
            del self.agreed[generation]
            self.assigned.pop(generation, None)

    def run(self, outcome: Outcome) -> None:
        assert not outcome.when_durable, "a classic group sends responses when a write has ended"
        for ticket, answer in outcome.responses:
            assert isinstance(ticket, str)
            self.answered[ticket] += 1
            assert self.answered[ticket] == 1, "a request is answered once"
            self.waiting.discard(ticket)
            if isinstance(answer, JoinResponse):
                self.check_join(self.owners[ticket], answer)
            elif isinstance(answer, SyncResponse) and not answer.error:
                self.check_assignment(self.owners[ticket], answer)
        if outcome.records:
            self.writes.append(outcome)

    def check_join(self, name: str, answer: JoinResponse) -> None:
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.ids[name] = answer.member_id
        if answer.error:
            return
        self.ids[name] = answer.member_id
        self.generations[name] = answer.generation
        if answer.members:
            assert answer.leader == answer.member_id
            assert sorted(member.member_id for member in answer.members) == sorted(self.group.members)
        elif self.group.state is ClassicGroupState.COMPLETING:
            assert answer.leader != answer.member_id, "the leader needs the members"
        if self.group.state is ClassicGroupState.COMPLETING:
            agreed = self.agreed.setdefault(answer.generation, (answer.protocol_name, answer.leader))
            assert agreed == (answer.protocol_name, answer.leader)

    def check_assignment(self, name: str, answer: SyncResponse) -> None:
        generation = self.group.generation
        assert self.group.state is ClassicGroupState.STABLE
        given = [
            assignments
            for assignments in self.assigned.get(generation, [])
            if answer.assignment in assignments.values()
        ]
        assert given or not answer.assignment, "an assignment must come from a leader"
        assert generation in self.durable, "an assignment is durable before it is handed out"

    @invariant()
    def states_agree_with_members(self) -> None:
        group = self.group
        assert group.generation >= self.last_generation
        self.last_generation = group.generation
        if group.state in {ClassicGroupState.COMPLETING, ClassicGroupState.STABLE}:
            assert group.members
            assert group.leader in group.members
        if group.state is ClassicGroupState.EMPTY:
            assert not group.members

    @invariant()
    def static_members_are_members(self) -> None:
        assert set(self.group.static.values()) <= self.group.members.keys()
        assert len(set(self.group.static.values())) == len(self.group.static)

    @invariant()
    def nobody_waits_unknown_to_the_group(self) -> None:
        held = {
            ticket
            for member in self.group.members.values()
            for ticket in (member.join_ticket, member.sync_ticket)
            if ticket is not None
        }
        assert held == self.waiting

    @invariant()
    def the_group_is_woken_in_time(self) -> None:
        deadlines = [member.deadline_ms for member in self.group.members.values()] + list(self.group.pending.values())
        assert all(self.group.wake_ms <= deadline for deadline in deadlines)

    def teardown(self) -> None:
        """Silence: writes finish, time passes, everybody gets an answer and the group ends empty."""
        for _ in range(12):
            while self.writes:
                self.written(ErrorCode.NONE)
            self.wait(60_000)
        assert not self.waiting
        assert self.group.state is ClassicGroupState.EMPTY
        assert not self.group.pending


GroupModel.TestCase.settings = settings(max_examples=3_000 if SOAK else 150, stateful_step_count=60, deadline=None)
TestGroupModel = GroupModel.TestCase
