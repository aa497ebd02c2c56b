"""Anomalies in what the clients of a Kafka cluster saw, after the Kafka workload of the Jepsen tests.

The histories are lists of operations of processes. A process is one client: it sends records and polls them, inside or
outside of transactions. The checks need unique values. They assume that at the end a client has polled every partition
from its beginning to its end, which makes a record that nobody polled a lost one.

What is checked, with Jepsen's names:

- inconsistent offsets: an offset of a partition has two values; duplicate: a value has two offsets
- lost write: an acked value that nobody polled, below an offset that somebody polled; unseen: above all of them
- group skip: a value that was polled, but by no member of a group that must have polled all
- reader skip (not Jepsen's): a value that one of those polled who read all at the end, as from the leader and from
  replicas, and not another one
- aborted read (G1a): a value of a transaction that aborted was polled with READ_COMMITTED; torn: only a part of a
  transaction was
- poll skip: a consumer that kept its assignment went over an offset that others polled; non-monotonic poll: it went
  back
- non-monotonic send: what a process sent to a partition later has a lower offset. The order of acks is free: when a
  leader goes, a client sends several batches again, and the answer that a later one is there already may come first
- G1c: transactions that polled what the other one wrote, in a ring
- G0 (writes of transactions in different order in two partitions) is counted only: Kafka does not prevent it
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias

Partition: TypeAlias = tuple[str, int]
G0_NEIGHBOURS = 50
"""Number of transactions that one is compared with: those that began to write next."""


class Kind(Enum):
    """Kind of an operation."""

    SEND = "send"
    POLL = "poll"
    ASSIGN = "assign"
    """The consumer's assignment or position changed: its next poll may begin anywhere."""


class Verdict(Enum):
    """Knowledge that the client has of an operation, or of its transaction."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


class Entry(NamedTuple):
    """A record: where it is, if that is known (offset -1: unknown), and its value."""

    where: Partition
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Operation:
    """Operation of a process. Transactions have a name that is unique in the history."""

    process: int
    kind: Kind
    entries: Sequence[Entry] = ()
    verdict: Verdict = Verdict.OK
    transaction: str | None = None
    number: int = 0
    """Of a send: its place among the sends of the process. Those with the same number were sent as they were acked."""


@dataclass(slots=True)
class Anomalies:
    """Findings by name; each is one line."""

    found: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    g0: int = 0
    """Pairs of transactions whose writes interleave."""

    def add(self, name: str, text: str) -> None:
        self.found[name].append(text)

    @property
    def counts(self) -> Counter[str]:
        return Counter({name: len(texts) for name, texts in self.found.items()})


def check(
    history: Sequence[Operation],
    *,
    outcomes: Mapping[str, Verdict],
    groups: Mapping[str, tuple[str, Collection[int]]] | None = None,
    readers: Collection[int] = (),
) -> Anomalies:
    """Return the anomalies of a history.

    `outcomes` has the verdict of each transaction's commit (FAILED: aborted). `groups` has, by name, the topic and the
    processes of each group of consumers that polled that topic to its end. `readers` are processes each of which has
    polled everything at the end.
    """
    anomalies = Anomalies()
    places = _places(history, anomalies)
    polled = polled_values(history)
    _check_lost(history, outcomes, polled, anomalies)
    _check_transactions(history, outcomes, polled, anomalies)
    _check_order(history, anomalies)
    for name, (topic, members) in (groups or {}).items():
        for value in sorted(polled_values(history, topic=topic) - polled_values(history, processes=members)):
            anomalies.add("group skip", f"{name}: {places[value]} {value!r}")
    by_reader = {process: polled_values(history, processes=[process]) for process in readers}
    for process, values in by_reader.items():
        for value in sorted(set().union(*by_reader.values()) - values):
            anomalies.add("reader skip", f"{process}: {places[value]} {value!r}")
    _check_rings(history, anomalies)
    anomalies.g0 = _count_g0(history, places)
    return anomalies


def polled_values(
    history: Iterable[Operation], *, topic: str | None = None, processes: Collection[int] | None = None
) -> set[str]:
    """Return the values that these processes (default: all) polled, of one topic or of all."""
    return {
        entry.value
        for operation in history
        if operation.kind is Kind.POLL and (processes is None or operation.process in processes)
        for entry in operation.entries
        if topic is None or entry.where[0] == topic
    }


def _places(history: Sequence[Operation], anomalies: Anomalies) -> dict[str, tuple[Partition, int]]:
    """Return the place of each value whose place anybody saw."""
    places: dict[str, tuple[Partition, int]] = {}
    values: dict[Partition, dict[int, str]] = defaultdict(dict)
    for operation in history:
        for entry in operation.entries:
            if entry.offset < 0:
                continue
            known = values[entry.where].setdefault(entry.offset, entry.value)
            if known != entry.value:
                anomalies.add("inconsistent offsets", f"{entry.where} {entry.offset}: {known!r} and {entry.value!r}")
            place = places.setdefault(entry.value, (entry.where, entry.offset))
            if place != (entry.where, entry.offset):
                anomalies.add("duplicate", f"{entry.value!r}: {place} and {entry.where} {entry.offset}")
    return places


def _check_lost(
    history: Sequence[Operation], outcomes: Mapping[str, Verdict], polled: set[str], anomalies: Anomalies
) -> None:
    ends: dict[Partition, int] = {}
    for operation in history:
        if operation.kind is Kind.POLL:
            for entry in operation.entries:
                ends[entry.where] = max(ends.get(entry.where, -1), entry.offset)
    for operation in history:
        committed = operation.transaction is None or outcomes[operation.transaction] is Verdict.OK
        if operation.kind is not Kind.SEND or operation.verdict is not Verdict.OK or not committed:
            continue
        for entry in operation.entries:
            if entry.value not in polled:
                name = "lost write" if entry.offset < ends.get(entry.where, -1) else "unseen"
                anomalies.add(name, f"{entry.where} {entry.offset}: {entry.value!r} of process {operation.process}")


def _check_transactions(
    history: Sequence[Operation], outcomes: Mapping[str, Verdict], polled: set[str], anomalies: Anomalies
) -> None:
    acked: dict[str, list[str]] = defaultdict(list)
    seen: dict[str, list[str]] = defaultdict(list)
    for operation in history:
        if operation.kind is Kind.SEND and operation.transaction is not None:
            values = [entry.value for entry in operation.entries]
            seen[operation.transaction] += [value for value in values if value in polled]
            if operation.verdict is Verdict.OK:
                acked[operation.transaction] += values
    for transaction, values in seen.items():
        if outcomes[transaction] is Verdict.FAILED and values:
            anomalies.add("aborted read", f"{transaction}: {values[:3]}")
        elif values and not polled.issuperset(acked[transaction]):
            anomalies.add("torn transaction", f"{transaction}: without {set(acked[transaction]) - polled}")


def _check_order(history: Sequence[Operation], anomalies: Anomalies) -> None:
    values: dict[Partition, set[int]] = defaultdict(set)
    for operation in history:
        if operation.kind is Kind.POLL:
            for entry in operation.entries:
                values[entry.where].add(entry.offset)
    read: dict[tuple[int, Partition], int] = {}
    sent: dict[tuple[int, Partition], list[tuple[int, int]]] = defaultdict(list)
    for operation in history:
        process = operation.process
        if operation.kind is Kind.ASSIGN:
            read = {key: offset for key, offset in read.items() if key[0] != process}
        elif operation.kind is Kind.SEND:
            for entry in operation.entries:
                if entry.offset >= 0:
                    sent[process, entry.where].append((operation.number, entry.offset))
        else:
            for entry in operation.entries:
                key = process, entry.where
                if key in read:
                    _check_step(process, entry, read[key], values[entry.where], anomalies)
                read[key] = entry.offset
    for (process, where), sends in sent.items():
        offsets = [offset for _, offset in sorted(sends, key=itemgetter(0))]
        for before, offset in pairwise(offsets):
            if offset <= before:
                anomalies.add("non-monotonic send", f"{process} {where}: {before} to {offset}")


def _check_step(process: int, entry: Entry, before: int, values: Collection[int], anomalies: Anomalies) -> None:
    if entry.offset <= before:
        anomalies.add("non-monotonic poll", f"{process} {entry.where}: {before} to {entry.offset}")
        return
    skipped = [offset for offset in range(before + 1, entry.offset) if offset in values]
    if skipped:
        anomalies.add("poll skip", f"{process} {entry.where}: {before} to {entry.offset} over {skipped[:3]}")


def _check_rings(history: Sequence[Operation], anomalies: Anomalies) -> None:
    """Look for transactions that read from each other in a ring."""
    writer = {
        entry.value: operation.transaction
        for operation in history
        if operation.kind is Kind.SEND and operation.transaction is not None
        for entry in operation.entries
    }
    reads_from: dict[str, set[str]] = defaultdict(set)
    for operation in history:
        if operation.kind is Kind.POLL and operation.transaction is not None:
            for entry in operation.entries:
                source = writer.get(entry.value)
                if source is not None and source != operation.transaction:
                    reads_from[operation.transaction].add(source)
    for ring in rings(reads_from):
        anomalies.add("G1c", " reads from ".join(ring))


def rings(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one node, each as a list of its nodes."""
    order: list[str] = []
    seen: set[str] = set()
    back: dict[str, set[str]] = defaultdict(set)
    for node, targets in edges.items():
        for target in targets:
            back[target].add(node)
    for start in list(edges):
        stack = [(start, iter(sorted(edges.get(start, ()))))] if start not in seen else []
        seen.add(start)
        while stack:
            node, rest = stack[-1]
            for target in rest:
                if target not in seen:
                    seen.add(target)
                    stack.append((target, iter(sorted(edges.get(target, ())))))
                    break
            else:
                order.append(node)
                stack.pop()
    found = []
    placed: set[str] = set()
    for start in reversed(order):
        if start in placed:
            continue
        component, waiting = [], [start]
        placed.add(start)
        while waiting:
            node = waiting.pop()
            component.append(node)
            new = sorted(back[node] - placed)
            placed.update(new)
            waiting += new
        if len(component) > 1:
            found.append(sorted(component))
    return found


def _count_g0(history: Sequence[Operation], places: Mapping[str, tuple[Partition, int]]) -> int:
    """Count the pairs of neighbours in time of which each wrote before the other one somewhere."""
    spans: dict[str, dict[Partition, tuple[int, int]]] = defaultdict(dict)
    for operation in history:
        if operation.kind is Kind.SEND and operation.transaction is not None:
            for entry in operation.entries:
                if entry.value in places:
                    where, offset = places[entry.value]
                    low, high = spans[operation.transaction].get(where, (offset, offset))
                    spans[operation.transaction][where] = min(low, offset), max(high, offset)
    names = list(spans)
    pairs = 0
    for index, one in enumerate(names):
        for other in names[index + 1 : index + 1 + G0_NEIGHBOURS]:
            shared = spans[one].keys() & spans[other].keys()
            before = any(spans[one][where][0] < spans[other][where][1] for where in shared)
            after = any(spans[other][where][0] < spans[one][where][1] for where in shared)
            pairs += before and after
    return pairs
