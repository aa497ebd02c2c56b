"""Random members that join, restart, stay silent, leave and lose responses, over changes of coordinators and topics.

At all times no two members own an active task, and no two members of a process own a task in any role. At the end of
the changes all members reach their targets, which hold all tasks.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from anabranch.broker.kafka.groups.streams.group import StreamsGroupState
from anabranch.broker.kafka.groups.streams.tasks import NO_ASSIGNMENT, Task, TaskAssignment
from anabranch.broker.kafka.groups.streams.topology import Subtopology, TopicDescription, Topology
from anabranch.protocol.errors import ErrorCode, KafkaError
from tests.broker.kafka.groups.streams.test_machine import NO_DELAY, Client

SECOND = Subtopology(
    "1",
    changelogs=(TopicDescription("log", 0, 0),),
    repartition_sources=(TopicDescription("mid", 0, 0),),
)
TOPOLOGY = Topology(1, (Subtopology("0", ("in",), repartition_sinks=("mid",)), SECOND))
REFUSALS = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED}
HISTORIES = 60
PROCESSES = ("p", "p", "q", "r")
STEPS = ("beat", "beat", "beat", "lose", "leave", "silence", "failover", "grow", "standby", "time")


@dataclass
class Thread:
    """A member as a client runs it."""

    member_id: str
    process_id: str
    epoch: int = 0
    told: TaskAssignment = NO_ASSIGNMENT
    """Tasks of the last response that had any."""
    owned: TaskAssignment = NO_ASSIGNMENT
    """Tasks that it works on: it takes its time to give up and begin what it was told to, and reports them after."""


@dataclass
class Application:
    """An application, and the coordinator of its group."""

    random: Random
    client: Client = field(default_factory=lambda: Client(NO_DELAY, **{"in": 2, "mid": 2, "log": 2}))
    threads: dict[int, Thread] = field(default_factory=dict)
    started: int = 0
    diligence: float = 0.5
    """Probability that a member has done what it was told to before its next heartbeat."""

    def start(self, index: int) -> Thread:
        self.started += 1
        thread = self.threads[index] = Thread(f"m{self.started}", PROCESSES[index])
        return thread

    def beat(self, index: int, *, lose: bool = False) -> None:
        thread = self.threads.get(index) or self.start(index)
        joins = thread.epoch == 0
        if self.random.random() < self.diligence:
            thread.owned = thread.told
            self.check()
        try:
            response = self.client.beat(
                thread.member_id,
                thread.epoch,
                process_id=thread.process_id,
                owned=thread.owned if thread.owned == thread.told else None,
                **({"topology": TOPOLOGY} if joins else {}),
            )
        except KafkaError as error:
            if error.code not in REFUSALS:
                raise
            del self.threads[index]
            return
        if not lose:
            thread.epoch = response.epoch
            thread.told = thread.told if response.assignment is None else response.assignment

    def step(self, step: str) -> None:
        index = self.random.randrange(len(PROCESSES))
        if self.client.machine is None:
            step = "beat"
        match step:
            case "beat":
                self.beat(index)
            case "lose":
                self.beat(index, lose=True)
            case "leave" if index in self.threads and self.threads[index].epoch:
                self.client.beat(self.threads.pop(index).member_id, -1)
            case "silence":
                self.threads.pop(index, None)
            case "failover":
                self.client.failover()
            case "grow":
                count = min(5, self.client.topics.by_name["in"].partitions + self.random.randrange(2))
                self.client.set_topics(**{"in": count, "mid": count, "log": count})
            case "standby":
                self.client.configs = replace(NO_DELAY, standby_replicas=self.random.randrange(3))
            case "time":
                self.silent_members_stop()
                self.client.tick(60_000)

    def silent_members_stop(self) -> None:
        """Let members whose session ends stop, as clients do that cannot reach their coordinator."""
        self.threads.clear()

    def check(self) -> None:
        active = Counter(task for each in self.threads.values() for task in each.owned.active)
        assert set(active.values()) <= {1}, "an active task is owned once"
        held = Counter(
            (each.process_id, task)
            for each in self.threads.values()
            for task in {*each.owned.active, *each.owned.standby, *each.owned.warmup}
        )
        assert set(held.values()) <= {1}, "a process owns a task once"

    def settle(self) -> None:
        self.diligence = 1
        self.silent_members_stop()
        if self.client.machine is not None:
            self.client.tick(60_000)
        for _ in range(10):
            for index in range(2):
                self.beat(index)


@pytest.mark.parametrize("first", range(0, HISTORIES, 20))
def test_members_own_tasks_once_and_converge(first: int) -> None:
    for seed in range(first, first + 20):
        random = Random(seed)
        application = Application(random)
        for _ in range(random.randrange(80)):
            application.step(random.choice(STEPS))
        application.settle()
        group = application.client.group
        assert group.state is StreamsGroupState.STABLE, seed
        count = application.client.topics.by_name["in"].partitions
        owned = Counter(task for each in application.threads.values() for task in each.owned.active)
        assert owned == Counter(Task(name, index) for name in "01" for index in range(count)), seed
        for thread in application.threads.values():
            assert thread.owned == group.targets[thread.member_id], seed


def test_the_check_finds_a_task_that_is_owned_twice() -> None:
    application = Application(Random(0))
    for index in (0, 2):
        application.start(index).owned = TaskAssignment(frozenset({Task("0", 0)}))
    with pytest.raises(AssertionError, match="owned once"):
        application.check()
