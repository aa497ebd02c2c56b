"""All kinds of clients on one node, and the verdict on what they saw."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tests.chaos.checker import Kind, Verdict, check, polled_values
from tests.chaos.clients import (
    COPIES,
    COPY_GROUP,
    PARTITIONS,
    TOPIC,
    Actor,
    Copier,
    GroupActor,
    GroupMember,
    Member,
    Poller,
    Recorder,
    Sender,
    TransactionalSender,
    original_of,
    read_to_the_end,
)
from tests.support.events import create_topic, is_stable
from tests.support.waiting import expect_before, wait_until

SETTINGS: dict[str, object] = {
    "storage_upload_age_ms": 200,
    "storage_gc_period_ms": 500,
    "storage_delete_delay_ms": 2_000,
    "compaction_period_ms": 1_000,
    "catalog_lease_ms": 2_000,
    "group_session_timeout_min_ms": 1_000,
    "transaction_abort_interval_ms": 1_000,
    "wal_capacity_bytes": 64 << 20,
}
PROGRESS_S = 90
"""Longest time without an acked record while no fault is there."""
COPIES_S = 300
"""Longest time without a copied record: a copier that a fault has stopped may wait for its calls and for time-outs."""
KINDS: tuple[type[Actor], ...] = (
    Sender,
    Sender,
    TransactionalSender,
    TransactionalSender,
    Poller,
    GroupMember,
    GroupMember,
    Copier,
    Copier,
)
LAST_MEMBER, LAST_COPIER, READER = 97, 98, 99
"""Processes that work when all others have ended. Members of further groups have the numbers below, readers with a rack
those above."""


class Served(Protocol):
    """A node, or the nodes of a cluster."""

    @property
    def bootstrap(self) -> str:
        """Addresses for clients."""

    def kill9(self) -> None:
        """Kill what runs."""

    def start(self) -> None:
        """Start it, and wait until it serves."""

    def terminate(self) -> int:
        """Stop it cleanly; returns 0 if it did."""


@dataclass(slots=True)
class Chaos:
    """Clients at work on a node or a cluster."""

    node: Served
    recorder: Recorder = field(default_factory=Recorder)
    actors: list[Actor] = field(default_factory=list)
    groups: dict[str, set[int]] = field(default_factory=dict)
    """Processes that have polled the topic as members of a group, by group."""
    began: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Create the topics, and start all clients."""
        for topic in (TOPIC, COPIES):
            create_topic(self.node.bootstrap, topic, PARTITIONS, factor=-1)
        for number, kind in enumerate(KINDS, 1):
            self.add(kind(self.recorder, number, self.node.bootstrap))

    def add(self, actor: Actor) -> None:
        """Start one more client."""
        self.actors.append(actor)
        if isinstance(actor, Member):
            self.groups.setdefault(actor.group, set()).add(actor.process)
        actor.start()

    def wait_for_acks(self, count: int) -> None:
        """Return when so many more records were acked: the node serves."""
        wanted = self.recorder.acked + count
        end = time.monotonic() + PROGRESS_S
        while self.recorder.acked < wanted:
            expect_before(end, f"{self.recorder.acked} records acked, {wanted} expected; {self.recorder.errors[:3]}")
            assert not self.recorder.errors, self.recorder.errors[:3]
            time.sleep(0.01)

    def wait_for_copies(self, count: int) -> None:
        """Return when so many more records were copied and committed: groups and transactions work, too."""
        wanted = self.recorder.copied + count
        wait_until(lambda: self.recorder.copied >= wanted, f"{wanted} records are copied", timeout_s=COPIES_S)

    def stop(self) -> None:
        """Stop the clients; then let the groups go on to the end, and read everything once more."""
        recorder, bootstrap = self.recorder, self.node.bootstrap
        for actor in self.actors:
            actor.stopping.set()
        for actor in self.actors:
            actor.finish()
        assert not recorder.errors, recorder.errors[:5]
        wait_until(lambda: all(is_stable(bootstrap, topic) for topic in (TOPIC, COPIES)), "no transaction is left open")
        last: list[Actor] = [Copier(recorder, LAST_COPIER, bootstrap, to_the_end=True)]
        for at, group in enumerate(sorted(self.groups.keys() - {COPY_GROUP})):
            last.append(GroupMember(recorder, LAST_MEMBER - at, bootstrap, to_the_end=True, group=group))
        for actor in last:
            self.add(actor)
            actor.join()
        for process, rack in self.readers.items():
            for topic in (TOPIC, COPIES):
                read_to_the_end(recorder, process, bootstrap, topic, rack)

    @property
    def readers(self) -> Mapping[int, str]:
        """Racks of those who read all at the end: the first one has none, and reads from leaders."""
        return dict(enumerate(("", *self.recorder.racks), READER))

    def end(self) -> None:
        """Check that after a fault the node serves again, restarts, and kept all it had promised."""
        self.wait_for_acks(100)
        self.wait_for_copies(1)
        self.node.kill9()
        self.node.start()
        self.stop()
        assert self.node.terminate() == 0
        self.judge()

    def judge(self) -> str:
        """Fail the test if the history has an anomaly; returns its figures in one line."""
        recorder = self.recorder
        assert not recorder.errors, recorder.errors[:5]
        anomalies = check(
            recorder.history,
            outcomes=recorder.outcomes,
            groups={group: (TOPIC, members) for group, members in self.groups.items()},
            readers=self.readers,
        )
        originals, copies = (polled_values(recorder.history, topic=topic) for topic in (TOPIC, COPIES))
        for value, difference in (Counter(map(original_of, copies)) - Counter(originals)).items():
            anomalies.add("copied too often", f"{value!r}: {difference} more than once")
        for value in originals - set(map(original_of, copies)):
            anomalies.add("not copied", value)
        assert not anomalies.found, {name: (len(texts), texts[:3]) for name, texts in anomalies.found.items()}
        assert len(originals) > 0
        produced = sum(len(each.entries) for each in recorder.history if each.kind is Kind.SEND)
        return (
            f"{produced} records produced, {recorder.acked} acked, {recorder.polled[READER]} read at the end and "
            f"{sum(recorder.polled.values())} in all, {len(copies)} copied; transactions: "
            f"{recorder.count(Verdict.OK)} committed, {recorder.count(Verdict.FAILED)} aborted, "
            f"{recorder.count(Verdict.UNKNOWN)} unknown; G0: {anomalies.g0}; "
            f"fatal to transactional producers: {dict(recorder.lives)}; {time.monotonic() - self.began:.0f} s"
        )


@contextmanager
def clients_on(node: Served, recorder: Recorder | None = None) -> Iterator[Chaos]:
    """Start all clients on a node, and wait until all of them have worked; the caller stops and judges them."""
    chaos = Chaos(node, recorder or Recorder())
    chaos.start()
    try:
        chaos.wait_for_acks(50)
        chaos.wait_for_copies(1)
        alone = {actor.process for actor in chaos.actors if not isinstance(actor, GroupActor)}
        wait_until(lambda: alone <= chaos.recorder.active, "each client that has no partner has worked")
        yield chaos
    finally:
        for actor in chaos.actors:
            actor.stopping.set()
