"""The sticky task assignor: balance, stickiness, standby tasks."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.groups.streams.assignor import StreamsMemberSpec, assign_sticky
from anabranch.broker.kafka.groups.streams.configured_topology import ConfiguredSubtopology, InternalTopic
from anabranch.broker.kafka.groups.streams.tasks import Task, TaskAssignment, Tasks

CHANGELOG = {"c": InternalTopic("c", 1, 0, {})}


def subtopology(tasks: int, *, stateful: bool = False) -> ConfiguredSubtopology:
    return ConfiguredSubtopology(tasks, frozenset(), {}, frozenset(), CHANGELOG if stateful else {})


def tasks(name: str, *partitions: int) -> Tasks:
    return frozenset(Task(name, partition) for partition in partitions)


def members(*names: str, former: Mapping[str, TaskAssignment] | None = None) -> list[StreamsMemberSpec]:
    """Return members, each alone in its process, or with a process before a dot in its name."""
    return [StreamsMemberSpec(each, each.split(".")[0], (former or {}).get(each, TaskAssignment())) for each in names]


def test_nobody_is_assigned_nothing() -> None:
    assert assign_sticky([], {"0": subtopology(2)}, 1) == {}


def test_tasks_are_balanced_in_ranges() -> None:
    found = assign_sticky(members("a", "b"), {"0": subtopology(2), "1": subtopology(2)}, 0)
    assert found == {
        "a": TaskAssignment(tasks("0", 0) | tasks("1", 0)),
        "b": TaskAssignment(tasks("0", 1) | tasks("1", 1)),
    }


def test_a_process_with_more_members_gets_more_tasks() -> None:
    found = assign_sticky(members("a.1", "a.2", "b"), {"0": subtopology(6)}, 0)
    assert {name: len(each.active) for name, each in found.items()} == {"a.1": 2, "a.2": 2, "b": 2}


def test_tasks_stay_and_a_new_member_gets_its_part() -> None:
    shape = {"0": subtopology(6)}
    before = assign_sticky(members("a", "b"), shape, 0)
    after = assign_sticky(members("a", "b", "c", former=before), shape, 0)
    assert all(len(each.active) == 2 for each in after.values())
    assert after["a"].active < before["a"].active
    assert after["b"].active < before["b"].active


def test_stateful_tasks_have_standby_tasks_in_other_processes() -> None:
    found = assign_sticky(members("a.1", "a.2", "b"), {"0": subtopology(2, stateful=True), "1": subtopology(1)}, 1)
    for task in tasks("0", 0, 1):
        [active] = [name for name, each in found.items() if task in each.active]
        [standby] = [name for name, each in found.items() if task in each.standby]
        assert active.split(".")[0] != standby.split(".")[0]
    assert not any(task.subtopology_id == "1" for each in found.values() for task in each.standby)


def test_there_are_no_more_standby_tasks_than_other_processes() -> None:
    found = assign_sticky(members("a", "b"), {"0": subtopology(2, stateful=True)}, 5)
    assert {name: (len(each.active), len(each.standby)) for name, each in found.items()} == {"a": (1, 1), "b": (1, 1)}


def test_a_standby_task_becomes_active_when_its_member_is_gone() -> None:
    shape = {"0": subtopology(4, stateful=True)}
    before = assign_sticky(members("a", "b", "c", "d"), shape, 1)
    gone = before.pop("a")
    after = assign_sticky(members("b", "c", "d", former=before), shape, 1)
    [lost] = gone.active
    [heir] = [name for name, each in before.items() if lost in each.standby]
    assert lost in after[heir].active


def test_a_restarted_member_gets_the_tasks_whose_state_it_has() -> None:
    offsets = {Task("0", 1): 50, Task("0", 3): 60}
    specs = [StreamsMemberSpec("a", "a"), StreamsMemberSpec("b", "b", task_offsets=offsets)]
    assert assign_sticky(specs, {"0": subtopology(4, stateful=True)}, 0)["b"].active == tasks("0", 1, 3)


def test_the_member_that_has_restored_more_is_preferred() -> None:
    specs = [
        StreamsMemberSpec("a", "a", task_offsets={Task("0", 0): 10}),
        StreamsMemberSpec("b", "b", task_offsets={Task("0", 0): 90}),
    ]
    found = assign_sticky(specs, {"0": subtopology(1, stateful=True)}, 0)
    assert found["b"].active == tasks("0", 0)


def test_a_standby_task_counts_more_than_reported_offsets() -> None:
    specs = [
        StreamsMemberSpec("a", "a", TaskAssignment(standby=tasks("0", 0))),
        StreamsMemberSpec("b", "b", task_offsets={Task("0", 0): 90}),
    ]
    found = assign_sticky(specs, {"0": subtopology(1, stateful=True)}, 0)
    assert found["a"].active == tasks("0", 0)


NAMES = st.tuples(st.sampled_from("pqr"), st.integers(0, 9)).map(lambda pair: f"{pair[0]}.{pair[1]}")
SUBTOPOLOGIES = st.builds(
    lambda count, stateful: subtopology(count, stateful=stateful), st.integers(1, 7), st.booleans()
)
SHAPES = st.dictionaries(st.sampled_from("012"), SUBTOPOLOGIES, min_size=1)


@given(
    st.lists(st.sets(NAMES, min_size=1, max_size=6), min_size=1, max_size=3),
    st.lists(SHAPES, min_size=3, max_size=3),
    st.integers(0, 2),
)
def test_each_task_is_active_once_and_no_process_has_it_twice(
    rounds: list[set[str]], shapes: list[Mapping[str, ConfiguredSubtopology]], replicas: int
) -> None:
    former: Mapping[str, TaskAssignment] = {}
    for names, shape in zip(rounds, shapes, strict=False):
        former = found = assign_sticky(members(*sorted(names), former=former), shape, replicas)
        assert found.keys() == names
        active = Counter(task for each in found.values() for task in each.active)
        assert active == Counter(Task(name, n) for name, each in shape.items() for n in range(each.task_count))
        processes = Counter(name.split(".")[0] for name in names)
        held = Counter(
            (name.split(".")[0], task) for name, each in found.items() for task in (*each.active, *each.standby)
        )
        assert set(held.values()) <= {1}
        standby = Counter(task for each in found.values() for task in each.standby)
        for task in active:
            wanted = min(replicas, len(processes) - 1) if shape[task.subtopology_id].is_stateful else 0
            assert standby[task] == wanted


@given(st.sets(NAMES, min_size=1, max_size=6), SHAPES, st.integers(0, 2))
def test_an_assignment_that_fits_does_not_change(
    names: set[str], shape: Mapping[str, ConfiguredSubtopology], replicas: int
) -> None:
    before = assign_sticky(members(*sorted(names)), shape, replicas)
    after = assign_sticky(members(*sorted(names), former=before), shape, replicas)
    assert {name: each.active for name, each in after.items()} == {name: each.active for name, each in before.items()}
