"""Reconciliation: the step of a member from the tasks that it holds towards its target (KIP-1071).

A task moves in three steps: the response to a member lacks it, the member reports that it no longer owns it, and only
then is it given to another. A process holds a task in one role at a time, as the state on its disk can be open once. A
member may change the role of a task of its own in one step, without giving it up.

Invariant: an active task is held by at most one member, and a task by at most one member of a process.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

from anabranch.broker.kafka.groups.streams.member import MemberState, StreamsMember
from anabranch.broker.kafka.groups.streams.tasks import NO_ASSIGNMENT, HeldTasks, Task, TaskAssignment, Tasks
from anabranch.protocol.errors import ErrorCode, KafkaError


class TaskHolders(NamedTuple):
    """Returns which processes hold a task by role, with what their members must still revoke."""

    active: Callable[[Task], str | None]
    standby: Callable[[Task], Collection[str]]
    warmup: Callable[[Task], Collection[str]]


def reconcile(
    member: StreamsMember,
    *,
    target: TaskAssignment,
    target_epoch: int,
    owned: TaskAssignment | None,
    holders: TaskHolders,
) -> StreamsMember:
    """Return the member after its next step towards its target; the same object if there is none.

    `owned` are the tasks that the member has reported, None if it has reported none: then it still owns those that it
    must revoke.
    """
    if member.is_reconciled(target_epoch):
        return member
    if member.state is MemberState.UNREVOKED:
        if member.revoking.is_any_owned(owned):
            return member
        # Not yet the target's epoch: if there is more to revoke, the member waits for that one epoch further.
        return _next_step(member, member.epoch + 1, target, target_epoch, owned, holders)
    if member.state is MemberState.UNKNOWN:
        return _next_step(member, target_epoch, target, target_epoch, owned, holders)
    return _next_step(member, member.epoch, target, target_epoch, owned, holders)


def check_state(member: StreamsMember, owned: TaskAssignment | None) -> None:
    """Raise FENCED_MEMBER_EPOCH for a member with tasks in a state that this version does not know."""
    if member.state is MemberState.UNKNOWN and owned != NO_ASSIGNMENT:
        raise KafkaError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin.",
        )


def _next_step(
    member: StreamsMember,
    epoch: int,
    target: TaskAssignment,
    target_epoch: int,
    owned: TaskAssignment | None,
    holders: TaskHolders,
) -> StreamsMember:
    """Return the member with the tasks that it keeps, and those that it must revoke first, or gets."""
    held, process_id = member.assigned, member.process_id

    def elsewhere(holding: Callable[[Task], Collection[str]], own: Tasks, task: Task) -> bool:
        """Return whether another member of the process holds the task."""
        return process_id in holding(task) and task not in own

    def is_active_taken(task: Task) -> bool:
        return (
            holders.active(task) is not None
            or elsewhere(holders.standby, held.standby, task)
            or elsewhere(holders.warmup, held.warmup, task)
        )

    def is_standby_taken(task: Task) -> bool:
        return (
            (holders.active(task) == process_id and task not in held.active)
            or process_id in holders.standby(task)
            or elsewhere(holders.warmup, held.warmup, task)
        )

    def is_warmup_taken(task: Task) -> bool:
        return (
            holders.active(task) == process_id
            or elsewhere(holders.standby, held.standby, task)
            or process_id in holders.warmup(task)
        )

    wanted = (target.active - held.active.keys(), target.standby - held.standby, target.warmup - held.warmup)
    new_active = frozenset(task for task in wanted[0] if not is_active_taken(task))
    new_standby = frozenset(task for task in wanted[1] if not is_standby_taken(task))
    new_warmup = frozenset(task for task in wanted[2] if not is_warmup_taken(task))
    waits = (new_active, new_standby, new_warmup) != wanted

    standby, lost_standby = held.standby & target.standby, held.standby - target.standby
    warmup, lost_warmup = held.warmup & target.warmup, held.warmup - target.warmup
    # Roles that change within the member: nothing is revoked, so nothing must be waited for.
    demoted = held.active.keys() & new_standby
    standby_to_warmup, warmup_to_standby = held.standby & new_warmup, held.warmup & new_standby
    standby |= demoted | warmup_to_standby
    warmup |= standby_to_warmup
    new_standby -= demoted | warmup_to_standby
    new_warmup -= standby_to_warmup
    lost_active = {task: since for task, since in held.active.items() if task not in target.active}
    revoking = HeldTasks(
        lost_active, lost_standby - standby_to_warmup - target.active, lost_warmup - warmup_to_standby - target.active
    )
    must_revoke = not revoking.is_empty and revoking.is_any_owned(owned)
    # A task stays in the role that it has until it can become active.
    granted = frozenset() if must_revoke else new_active
    standby |= (held.standby & target.active) - granted
    warmup |= (held.warmup & target.active) - granted

    kept = HeldTasks({task: since for task, since in held.active.items() if task in target.active}, standby, warmup)
    if must_revoke:
        return member.with_tasks(epoch, MemberState.UNREVOKED, kept, revoking)
    added = HeldTasks(dict.fromkeys(sorted(new_active), target_epoch), new_standby, new_warmup)
    state = MemberState.UNRELEASED if waits else MemberState.STABLE
    return member.with_tasks(target_epoch, state, kept.merged(added))
