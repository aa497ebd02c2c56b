"""The task assignor of streams groups, `sticky`: a pure function with the semantics of Apache Kafka 4.4.

Active tasks are balanced over members, and standby tasks of stateful subtopologies over what room is left. A task goes,
in this order, to the member that had it, to one that has restored its state, or to the process with the least load. A
process holds a task once: its members share the state on its disk. Apache Kafka 4.4 neither assigns warm-up tasks nor
uses the tags of clients, and where its order is that of a hash table, this one is that of ids.

Invariant: each task is active on exactly one member, and no process has a task twice.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from anabranch.broker.kafka.groups.streams.configured_topology import ConfiguredSubtopology
from anabranch.broker.kafka.groups.streams.tasks import NO_ASSIGNMENT, Task, TaskAssignment

STICKY: Final = "sticky"


class StreamsMemberSpec(NamedTuple):
    """A member as the assignor sees it."""

    member_id: str
    process_id: str
    target: TaskAssignment = NO_ASSIGNMENT
    """Its former target."""
    task_offsets: Mapping[Task, int] = {}
    """Offsets up to which it has restored the state of tasks, as it has reported."""


class _Holder(NamedTuple):
    """A member, and the process it belongs to."""

    process: "_Process"
    member_id: str

    @property
    def task_count(self) -> int:
        return self.process.task_counts[self.member_id]


@dataclass(slots=True)
class _Process:
    """Members of one process, and the tasks that they are assigned."""

    process_id: str
    task_counts: dict[str, int] = field(default_factory=dict)
    """Number of tasks by member."""
    tasks: set[Task] = field(default_factory=set)
    task_count: int = 0

    @property
    def load(self) -> float:
        """Tasks for each member."""
        return self.task_count / len(self.task_counts)

    def least_loaded(self) -> _Holder:
        return _Holder(self, min(self.task_counts, key=lambda member_id: (self.task_counts[member_id], member_id)))


class _Quota:
    """Number of tasks up to which a member keeps what it had: those that are left, for each member with room."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self._set()

    def _set(self) -> None:
        self.per_member = -(-self._tasks // self._members) if self._members else 0

    def note(self, task_count: int) -> None:
        """Note that a member has so many tasks now. One that has reached the quota takes them out of it."""
        if task_count == self.per_member:
            self._members -= 1
            self._tasks -= task_count
            self._set()


def assign_sticky(
    members: Sequence[StreamsMemberSpec], subtopologies: Mapping[str, ConfiguredSubtopology], standby_replicas: int
) -> dict[str, TaskAssignment]:
    """Return the active and standby tasks of each member.

    `standby_replicas` is the number of standby tasks of a stateful task, as far as there are enough processes.
    """
    if not members:
        return {}
    assignment = _Assignment(members, subtopologies, standby_replicas)
    assignment.assign_active()
    assignment.assign_standby()
    return assignment.result()


class _Assignment:
    """An assignment that is being computed."""

    def __init__(
        self,
        members: Sequence[StreamsMemberSpec],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        standby_replicas: int,
    ) -> None:
        self._standby_replicas = standby_replicas
        self._active_tasks = list(_tasks(subtopologies))
        stateful = {name: each for name, each in subtopologies.items() if each.is_stateful}
        self._stateful_tasks = list(_tasks(stateful))
        self._active_quota = _Quota(len(self._active_tasks), len(members))
        total = len(self._active_tasks) + len(self._stateful_tasks) * standby_replicas
        self._quota = _Quota(total, len(members))
        self._processes: dict[str, _Process] = {}
        self._found: dict[str, tuple[set[Task], set[Task]]] = {}
        """Active and standby tasks by member."""
        self._former_active: dict[Task, _Holder] = {}
        self._former_standby: dict[Task, list[_Holder]] = {}
        """Members with state of a task, the best first."""
        self._note_former(sorted(members))

    def _note_former(self, members: Sequence[StreamsMemberSpec]) -> None:
        restored: dict[Task, list[tuple[bool, int, _Holder]]] = {}
        for member in members:
            process = self._processes.setdefault(member.process_id, _Process(member.process_id))
            process.task_counts[member.member_id] = 0
            self._found[member.member_id] = (set(), set())
            holder = _Holder(process, member.member_id)
            self._former_active.update(dict.fromkeys(member.target.active, holder))
            for task in member.target.standby | member.task_offsets.keys():
                # A member that only reports offsets has restarted, perhaps; its state counts less than a standby task.
                is_standby = task in member.target.standby
                restored.setdefault(task, []).append((not is_standby, -member.task_offsets.get(task, 0), holder))
        for task, holders in restored.items():
            holders.sort(key=lambda each: each[:2])
            self._former_standby[task] = [holder for _, _, holder in holders]

    # -- Active tasks ------------------------------------------------------------------------------------------------

    def assign_active(self) -> None:
        """Assign each task as an active one."""
        # By partition first, so that one member gets the same partitions of several subtopologies.
        left = sorted(self._active_tasks, key=_by_partition)
        left = [task for task in left if not self._give_back(task, self._former_active.get(task))]
        left = [
            task for task in left if not self._give_back(task, self._least_loaded(self._former_standby.get(task, ())))
        ]
        heap = self._heap()
        for task in sorted(left):
            _, process_id = heappop(heap)
            process = self._processes[process_id]
            self._add(task, process.least_loaded(), standby=False)
            heappush(heap, (process.load, process_id))

    def _give_back(self, task: Task, holder: _Holder | None) -> bool:
        """Assign an active task to a member that had it, if it has room. Returns whether it has."""
        if holder is None or holder.task_count >= self._active_quota.per_member:
            return False
        self._add(task, holder, standby=False)
        return True

    # -- Standby tasks -----------------------------------------------------------------------------------------------

    def assign_standby(self) -> None:
        """Assign the standby tasks of stateful tasks, as far as there are processes without them."""
        left: list[tuple[Task, int]] = []
        for task in sorted(self._stateful_tasks, key=_by_partition, reverse=True):
            given = 0
            while given < self._standby_replicas and self._keep_standby(task):
                given += 1
            if given < self._standby_replicas:
                left.append((task, self._standby_replicas - given))
        heap = self._heap()
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._place_standby(task, heap):
                    break

    def _keep_standby(self, task: Task) -> bool:
        """Assign a standby task to a member that had the task, if it has room. Returns whether there is one."""
        former = self._former_active.get(task)
        if former is not None and task not in former.process.tasks and self._has_room(former):
            self._add(task, former, standby=True)
            return True
        others = [each for each in self._former_standby.get(task, ()) if task not in each.process.tasks]
        holder = self._least_loaded(others)
        if holder is not None and self._has_room(holder):
            self._add(task, holder, standby=True)
            return True
        return False

    def _has_room(self, holder: _Holder) -> bool:
        return holder.task_count < self._quota.per_member

    def _place_standby(self, task: Task, heap: list[tuple[float, str]]) -> bool:
        """Assign a standby task to the process with the least load that has not got the task."""
        passed = []
        placed = False
        while heap and not placed:
            _, process_id = heappop(heap)
            process = self._processes[process_id]
            if task not in process.tasks:
                self._add(task, process.least_loaded(), standby=True)
                placed = True
            passed.append((process.load, process_id))
        for entry in passed:
            heappush(heap, entry)
        return placed

    # -- Both --------------------------------------------------------------------------------------------------------

    def _least_loaded(self, holders: Collection[_Holder]) -> _Holder | None:
        """Return the first of these members than which none is less loaded, itself and its process."""
        found: _Holder | None = None
        for holder in holders:
            if found is None or (holder.process.load < found.process.load and holder.task_count < found.task_count):
                found = holder
        return found

    def _heap(self) -> list[tuple[float, str]]:
        heap = [(process.load, process_id) for process_id, process in self._processes.items()]
        heapify(heap)
        return heap

    def _add(self, task: Task, holder: _Holder, *, standby: bool) -> None:
        process, member_id = holder
        process.tasks.add(task)
        process.task_count += 1
        process.task_counts[member_id] += 1
        self._found[member_id][standby].add(task)
        if not standby:
            self._active_quota.note(process.task_counts[member_id])
        self._quota.note(process.task_counts[member_id])

    def result(self) -> dict[str, TaskAssignment]:
        """Return the tasks of each member."""
        return {
            member_id: TaskAssignment(frozenset(active), frozenset(standby))
            for member_id, (active, standby) in self._found.items()
        }


def _tasks(subtopologies: Mapping[str, ConfiguredSubtopology]) -> Iterable[Task]:
    return (Task(name, index) for name, each in subtopologies.items() for index in range(each.task_count))


def _by_partition(task: Task) -> tuple[int, str]:
    return task.partition, task.subtopology_id
