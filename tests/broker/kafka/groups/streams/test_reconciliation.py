"""Steps of members towards their targets: revocation before assignment, one role for each process, changes of roles."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.groups.streams.member import MemberState, StreamsMember
from anabranch.broker.kafka.groups.streams.reconciliation import TaskHolders, check_state, reconcile
from anabranch.broker.kafka.groups.streams.tasks import NO_ASSIGNMENT, NO_HELD, HeldTasks, Task, TaskAssignment, Tasks
from anabranch.protocol.errors import ErrorCode, KafkaError


def tasks(*partitions: int) -> Tasks:
    return frozenset(Task("0", partition) for partition in partitions)


def held(*active: int, standby: Tasks = frozenset(), warmup: Tasks = frozenset(), epoch: int = 2) -> HeldTasks:
    return HeldTasks({Task("0", partition): epoch for partition in active}, standby, warmup)


def holders_of(members: Mapping[str, StreamsMember]) -> TaskHolders:
    """Return who holds tasks, by looking at all members."""

    def processes(role: str, task: Task) -> list[str]:
        return [m.process_id for m in members.values() for h in (m.assigned, m.revoking) if task in getattr(h, role)]

    return TaskHolders(
        lambda task: next(iter(processes("active", task)), None),
        lambda task: processes("standby", task),
        lambda task: processes("warmup", task),
    )


def step(
    member: StreamsMember,
    target: TaskAssignment,
    *others: StreamsMember,
    owned: TaskAssignment | None = None,
    epoch: int = 3,
) -> StreamsMember:
    members = {each.member_id: each for each in (member, *others)}
    return reconcile(member, target=target, target_epoch=epoch, owned=owned, holders=holders_of(members))


def member(assigned: HeldTasks = NO_HELD, name: str = "a", process: str = "p") -> StreamsMember:
    return StreamsMember(name, process_id=process, epoch=2, previous_epoch=1, assigned=assigned)


def test_free_tasks_are_assigned_in_the_epoch_of_the_target() -> None:
    after = step(member(held(0)), TaskAssignment(tasks(0, 1), tasks(2)))
    assert after.assigned == HeldTasks({Task("0", 0): 2, Task("0", 1): 3}, tasks(2))
    assert (after.epoch, after.previous_epoch, after.state) == (3, 2, MemberState.STABLE)


def test_a_task_is_revoked_first() -> None:
    after = step(member(held(0, 1)), TaskAssignment(tasks(0, 2)))
    assert (after.epoch, after.state) == (2, MemberState.UNREVOKED)
    assert (after.assigned, after.revoking) == (held(0), held(1))
    still = step(after, TaskAssignment(tasks(0, 2)), owned=TaskAssignment(tasks(0, 1)))
    assert still is after
    done = step(after, TaskAssignment(tasks(0, 2)), owned=TaskAssignment(tasks(0)))
    assert done.assigned == HeldTasks({Task("0", 0): 2, Task("0", 2): 3})
    assert (done.epoch, done.previous_epoch, done.state) == (3, 2, MemberState.STABLE)
    assert done.revoking.is_empty


def test_a_member_that_reports_at_once_that_it_has_revoked_does_not_wait() -> None:
    after = step(member(held(0, 1)), TaskAssignment(tasks(0)), owned=TaskAssignment(tasks(0)))
    assert (after.assigned, after.state, after.epoch) == (held(0), MemberState.STABLE, 3)


def test_an_active_task_waits_until_no_member_holds_it() -> None:
    other = member(HeldTasks(), "b", "q").with_tasks(2, MemberState.UNREVOKED, HeldTasks(), held(1))
    after = step(member(held(0)), TaskAssignment(tasks(0, 1)), other)
    assert (after.assigned, after.state, after.epoch) == (held(0), MemberState.UNRELEASED, 3)
    free = step(after, TaskAssignment(tasks(0, 1)))
    assert free.assigned == HeldTasks({Task("0", 0): 2, Task("0", 1): 3})
    assert free.state is MemberState.STABLE


@pytest.mark.parametrize("role", ["active", "standby", "warmup"])
def test_a_process_holds_a_task_once(role: str) -> None:
    other = member(HeldTasks(standby=tasks(0)), "b")
    target = TaskAssignment()._replace(**{role: tasks(0)})
    assert step(member(), target, other).state is MemberState.UNRELEASED
    elsewhere = member(HeldTasks(standby=tasks(0)), "b", "q")
    assert step(member(), target, elsewhere).state is MemberState.STABLE


def test_a_standby_task_becomes_active_in_one_step() -> None:
    after = step(member(HeldTasks(standby=tasks(0))), TaskAssignment(tasks(0)))
    assert (after.assigned, after.state) == (held(0, epoch=3), MemberState.STABLE)


def test_a_standby_task_stays_one_until_the_active_one_is_free() -> None:
    other = member(held(0), "b", "q")
    after = step(member(HeldTasks(standby=tasks(0))), TaskAssignment(tasks(0)), other)
    assert (after.assigned, after.state) == (HeldTasks(standby=tasks(0)), MemberState.UNRELEASED)
    assert after.revoking.is_empty


def test_a_standby_task_stays_one_until_other_tasks_are_revoked() -> None:
    after = step(member(held(1, standby=tasks(0))), TaskAssignment(tasks(0)))
    assert after.state is MemberState.UNREVOKED
    assert (after.assigned, after.revoking) == (HeldTasks(standby=tasks(0)), held(1))


def test_an_active_task_that_becomes_a_standby_task_is_revoked_as_active() -> None:
    after = step(member(held(0)), TaskAssignment(standby=tasks(0)))
    assert after.state is MemberState.UNREVOKED
    assert (after.assigned, after.revoking) == (HeldTasks(standby=tasks(0)), held(0))


def test_replicas_change_their_role_in_one_step() -> None:
    before = member(HeldTasks(standby=tasks(0), warmup=tasks(1)))
    after = step(before, TaskAssignment(standby=tasks(1), warmup=tasks(0)))
    assert (after.assigned, after.state) == (HeldTasks(standby=tasks(1), warmup=tasks(0)), MemberState.STABLE)


def test_a_member_in_an_unknown_state_must_rejoin() -> None:
    before = member(held(0)).with_tasks(2, MemberState.UNKNOWN, held(0))
    for owned in (None, TaskAssignment(tasks(0))):
        with pytest.raises(KafkaError) as error:
            check_state(before, owned)
        assert error.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    check_state(before, NO_ASSIGNMENT)
    check_state(member(held(0)), None)
    assert step(before, TaskAssignment(tasks(0)), owned=NO_ASSIGNMENT).state is MemberState.STABLE


MEMBERS = {"a": "p", "b": "p", "c": "q", "d": "r"}


@st.composite
def targets(draw: st.DrawFn) -> dict[str, TaskAssignment]:
    """Return targets like those of an assignor: each task is active once, and at most once in a process."""
    found: dict[str, tuple[set[Task], set[Task], set[Task]]] = {name: (set(), set(), set()) for name in MEMBERS}
    for task in sorted(tasks(0, 1, 2)):
        processes = set()
        for role, name in enumerate(draw(st.permutations(list(MEMBERS)))[:3]):
            if MEMBERS[name] not in processes and (role == 0 or draw(st.booleans())):
                found[name][role].add(task)
                processes.add(MEMBERS[name])
    return {name: TaskAssignment(*map(frozenset, roles)) for name, roles in found.items()}


@given(st.lists(targets(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_members_converge_and_never_hold_a_task_twice(rounds: list[dict[str, TaskAssignment]], random: object) -> None:
    members = {name: StreamsMember(name, process_id=process) for name, process in MEMBERS.items()}
    owned = dict.fromkeys(MEMBERS, NO_ASSIGNMENT)

    def beat(name: str, target: Mapping[str, TaskAssignment], epoch: int) -> None:
        members[name] = reconcile(
            members[name], target=target[name], target_epoch=epoch, owned=owned[name], holders=holders_of(members)
        )
        owned[name] = members[name].assigned.assignment
        every = [task for each in members.values() for h in (each.assigned, each.revoking) for task in h.active]
        assert len(every) == len(set(every)), "an active task is held once"
        for process in set(MEMBERS.values()):
            of_process = [
                (task, each.member_id)
                for each in members.values()
                if each.process_id == process
                for h in (each.assigned, each.revoking)
                for task in {*h.active, *h.standby, *h.warmup}
            ]
            assert len({task for task, _ in of_process}) == len(set(of_process)), "one member of a process holds it"

    for epoch, target in enumerate(rounds, 1):
        for _ in range(random.randint(0, 6)):  # type: ignore[attr-defined]
            beat(random.choice(list(MEMBERS)), target, epoch)  # type: ignore[attr-defined]
    for _ in range(2 * len(MEMBERS)):
        for name in MEMBERS:
            beat(name, rounds[-1], len(rounds))
    assert {name: each.assigned.assignment for name, each in members.items()} == rounds[-1]
    assert all(each.is_reconciled(len(rounds)) for each in members.values())
