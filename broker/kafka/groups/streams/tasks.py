"""Tasks of a streams application, and the three roles in which members hold them (KIP-1071).

A task is one partition of a subtopology. It is active on one member, which processes its records. Standby and warm-up
tasks restore the state of a task on other processes: standby tasks stay, warm-up tasks prepare a move.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias


class Task(NamedTuple):
    """A partition of a subtopology."""

    subtopology_id: str
    partition: int


Tasks: TypeAlias = frozenset[Task]
NO_TASKS: Tasks = frozenset()


class TaskAssignment(NamedTuple):
    """Tasks of a member by role, without epochs: a target, or what a member reports that it owns."""

    active: Tasks = NO_TASKS
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS


NO_ASSIGNMENT = TaskAssignment()


class HeldTasks(NamedTuple):
    """Tasks that a member holds by role; active ones with the epoch in which each was assigned (KIP-1251)."""

    active: Mapping[Task, int] = {}
    standby: Tasks = NO_TASKS
    warmup: Tasks = NO_TASKS

    @property
    def is_empty(self) -> bool:
        """True if it has no task in any role."""
        return not (self.active or self.standby or self.warmup)

    @property
    def assignment(self) -> TaskAssignment:
        """The tasks without epochs."""
        return TaskAssignment(frozenset(self.active), self.standby, self.warmup)

    def is_any_owned(self, owned: TaskAssignment | None) -> bool:
        """Return whether a member still owns one of these tasks in its role. None: it has not reported any."""
        if owned is None:
            return True
        return not (
            owned.active.isdisjoint(self.active)
            and owned.standby.isdisjoint(self.standby)
            and owned.warmup.isdisjoint(self.warmup)
        )

    def merged(self, other: "HeldTasks") -> "HeldTasks":
        """Return these tasks and the other ones."""
        return HeldTasks({**self.active, **other.active}, self.standby | other.standby, self.warmup | other.warmup)


NO_HELD = HeldTasks()


def by_subtopology(tasks: Iterable[Task]) -> list[tuple[str, list[int]]]:
    """Group tasks by subtopology, in order, as messages and records list them."""
    found: dict[str, list[int]] = {}
    for subtopology_id, partition in sorted(tasks):
        found.setdefault(subtopology_id, []).append(partition)
    return list(found.items())


def tasks_of(listed: Iterable[Any]) -> Tasks:
    """Return the tasks of a message, which lists partitions by subtopology."""
    return frozenset(Task(each.subtopology_id, partition) for each in listed for partition in each.partitions)
