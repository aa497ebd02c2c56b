"""History of what clients sent, heard and read, and its checks: the promises of a Kafka broker."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import itemgetter
from typing import TypeAlias

from anabranch.protocol.batch import BatchHeader
from anabranch.protocol.records import decode_records

TopicPartition: TypeAlias = tuple[str, int]


def raw_identity(value: bytes) -> str:
    """Return the value that a record has before its padding."""
    return value.partition(b"|")[0].decode()


class Violation(AssertionError):
    """A promise was broken."""


class Outcome(Enum):
    """Knowledge of how a transaction ended."""

    OPEN = "open"
    COMMITTING = "commit was asked for"
    COMMITTED = "committed"
    ABORTED = "abort was asked for, or it was never ended"
    UNKNOWN = "commit was asked for, and its outcome was never learned"


@dataclass(slots=True)
class Transaction:
    """A transaction of one producer."""

    name: str
    outcome: Outcome = Outcome.OPEN
    acked: list[tuple[TopicPartition, int, str]] = field(default_factory=list)
    """Partition, offset and value of each acked record."""
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets that it commits for a group."""


@dataclass(slots=True)
class PartitionHistory:
    """Knowledge of one partition."""

    values: dict[int, str] = field(default_factory=dict)
    """Value at each offset, as acks and reads told."""
    acked: dict[int, str] = field(default_factory=dict)
    start: int = 0
    """Newest log start offset that a client was told of."""
    asked_start: int = 0
    """Highest offset up to which a client asked to delete records."""
    end: int = 0
    """Highest high watermark that a client was told of."""
    starts: list[tuple[int, int]] = field(default_factory=list)
    """Log start offsets, with the time at which a client was first told of each."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """High watermarks, likewise."""


class History:
    """Everything that clients know."""

    def __init__(
        self,
        note: Callable[..., None],
        now_ms: Callable[[], int],
        *,
        first_offset: int = 0,
        identify: Callable[[bytes], str] = raw_identity,
    ) -> None:
        """`first_offset` is the first one of each partition; `identify` returns a value, given what a record has."""
        self.first_offset = first_offset
        self.identify = identify
        self._note = note
        self._now_ms = now_ms
        self.partitions: dict[TopicPartition, PartitionHistory] = defaultdict(
            lambda: PartitionHistory(start=first_offset, asked_start=first_offset)
        )
        self.places: dict[str, tuple[TopicPartition, int]] = {}
        """Partition and offset of each value."""
        self.sent: dict[str, TopicPartition] = {}
        """Partition that each value was sent to, whatever became of it."""
        self.transaction_of: dict[str, Transaction] = {}
        self.key_of: dict[str, bytes | None] = {}
        """Key of each value sent to a topic that is cleaned by key."""
        self.compacted: set[str] = set()
        """Topics whose records are cleaned by key."""
        self.expiring: dict[str, int] = {}
        """Topics whose records expire, with the age in ms that no record is deleted before."""
        self.sent_ms: dict[str, int] = {}
        """Time of each value sent to such a topic."""
        self._values: dict[tuple[int, int, int], Sequence[tuple[int, str]]] = {}

    def values_of(self, header: BatchHeader, batch: memoryview) -> Sequence[tuple[int, str]]:
        """Return offsets and values of the records in a batch whose checksum is right; equal batches are read once."""
        key = header.base_offset, header.crc, header.length
        found = self._values.get(key)
        if found is None:
            found = self._values[key] = [
                (record.offset, self.identify(bytes(record.value or b""))) for record in decode_records(batch)
            ]
        return found

    def send(self, where: TopicPartition, values: Sequence[str], transaction: Transaction | None = None) -> None:
        """Values that are about to be sent."""
        for value in values:
            self.sent[value] = where
            if where[0] in self.expiring:
                self.sent_ms[value] = self._now_ms()
            if transaction is not None:
                self.transaction_of[value] = transaction

    def ack(self, where: TopicPartition, base_offset: int, values: Sequence[str]) -> None:
        """Values that were acked at these offsets."""
        for offset, value in enumerate(values, base_offset):
            self._place(where, offset, value, "acked")
            self.partitions[where].acked[offset] = value
            transaction = self.transaction_of.get(value)
            if transaction is not None:
                transaction.acked.append((where, offset, value))

    def read(self, where: TopicPartition, offset: int, value: str, *, committed: bool) -> None:
        """A value that was read, as committed or not."""
        if self.sent.get(value) != where:
            raise Violation(f"{where} offset {offset}: read {value!r}, which was sent to {self.sent.get(value)}")
        self._place(where, offset, value, "read")
        transaction = self.transaction_of.get(value)
        if committed and transaction is not None and transaction.outcome in {Outcome.OPEN, Outcome.ABORTED}:
            raise Violation(
                f"{where} offset {offset}: {value!r} of {transaction.name} ({transaction.outcome}) "
                "was read as committed"
            )

    def _place(self, where: TopicPartition, offset: int, value: str, how: str) -> None:
        known = self.partitions[where].values.setdefault(offset, value)
        if known != value:
            raise Violation(f"{where} offset {offset}: {how} {value!r}, known as {known!r}")
        place = self.places.setdefault(value, (where, offset))
        if place != (where, offset):
            raise Violation(f"{value!r}: {how} at {where} offset {offset}, known at {place}")

    def of_clone(self, topic: str, clone: str) -> "History":
        """Return the history of a clone of a topic that nothing was written to since."""
        history = History(self._note, self._now_ms, first_offset=self.first_offset, identify=self.identify)
        history.sent = {value: (clone, where[1]) for value, where in self.sent.items() if where[0] == topic}
        history.partitions.update(
            ((clone, where[1]), replace(known, values=dict(known.values)))
            for where, known in self.partitions.items()
            if where[0] == topic
        )
        return history

    def log_start(self, where: TopicPartition, start: int) -> None:
        """A log start offset that a client was told of."""
        known = self.partitions[where]
        before, known.start = known.start, max(start, known.start)
        if start > before:
            known.starts.append((self._now_ms(), start))
        if where[0] in self.expiring:
            youngest_ms = self._now_ms() - self.expiring[where[0]]
            for offset in range(before, start):
                value = known.values.get(offset)
                if value is not None and self.sent_ms[value] > youngest_ms:
                    raise Violation(f"{where} offset {offset}: {value!r} expired before its time")
        elif start > known.asked_start:
            raise Violation(f"{where}: the log starts at {start}, deleted was asked up to {known.asked_start}")

    def start_at(self, where: TopicPartition, at_ms: int) -> int:
        """Return the highest log start offset that a client had been told of at a time."""
        return max((start for told_ms, start in self.partitions[where].starts if told_ms <= at_ms), default=0)

    def high_watermark(self, where: TopicPartition, end: int) -> None:
        """A high watermark that a client was told of. It may go back for a stale reader, never at the end."""
        known = self.partitions[where]
        if end > known.end:
            known.end = end
            known.ends.append((self._now_ms(), end))

    def end_at(self, where: TopicPartition, at_ms: int) -> int:
        """Return the highest high watermark that a client had been told of at a time."""
        ends = self.partitions[where].ends
        at = bisect_right(ends, at_ms, key=itemgetter(0))
        return ends[at - 1][1] if at else 0

    def check_final(
        self,
        where: TopicPartition,
        start: int,
        end: int,
        uncommitted: dict[int, str],
        committed: dict[int, str],
    ) -> None:
        """Check a whole partition, read when all faults are over."""
        known = self.partitions[where]
        if start < known.start:
            raise Violation(f"{where}: the log start went back from {known.start} to {start}")
        if end < known.end:
            raise Violation(f"{where}: the high watermark went back from {known.end} to {end}")
        if where[0] in self.compacted:
            return  # checked by key
        for offset, value in known.acked.items():
            if offset >= start and uncommitted.get(offset) != value:
                raise Violation(f"{where} offset {offset}: acked {value!r} is lost: found {uncommitted.get(offset)!r}")
        for offset, value in known.values.items():
            if offset >= start and uncommitted.get(offset) != value:
                raise Violation(f"{where} offset {offset}: {value!r} was read before and is lost")
        for offset, value in uncommitted.items():
            if offset >= start and value not in self.transaction_of and committed.get(offset) != value:
                raise Violation(f"{where} offset {offset}: {value!r}, of no transaction, is not committed")

    def check_cleaned(self, where: TopicPartition, found: dict[int, str], committed: dict[int, str]) -> None:
        """Check that a partition cleaned by key has the newest committed value of each key that is known."""
        newest: dict[bytes | None, int] = {}
        for offset, value in self.partitions[where].values.items():
            transaction = self.transaction_of.get(value)
            if transaction is None or transaction.outcome is Outcome.COMMITTED or committed.get(offset) == value:
                key = self.key_of[value]
                newest[key] = max(offset, newest.get(key, -1))
        for key, offset in newest.items():
            value = self.partitions[where].values[offset]
            if found.get(offset) != value or committed.get(offset) != value:
                raise Violation(f"{where} offset {offset}: {value!r}, the newest of key {key!r}, is gone")

    def check_transactions(
        self, starts: dict[TopicPartition, int], committed: dict[TopicPartition, dict[int, str]]
    ) -> None:
        """Check that each transaction is there as a whole, or not at all."""
        for transaction in {id(each): each for each in self.transaction_of.values()}.values():
            here = [
                (w, o, v)
                for w, o, v in transaction.acked
                if w in starts and o >= starts[w] and w[0] not in self.compacted
            ]
            seen = [value for where, offset, value in here if committed[where].get(offset) == value]
            if transaction.outcome is Outcome.COMMITTED and len(seen) < len(here):
                missing = sorted({value for _, _, value in here} - set(seen))
                raise Violation(f"{transaction.name} is committed, and {missing[:5]} cannot be read")
            if seen and len(seen) < len(here):
                raise Violation(
                    f"{transaction.name} ({transaction.outcome}): {len(seen)} of {len(here)} records are committed"
                )

    def check_order(self, names: Callable[[str], tuple[str, int]]) -> None:
        """Check that the records of each producer lie in the order in which it sent them."""
        for where, known in self.partitions.items():
            newest: dict[str, tuple[int, str]] = {}
            for offset in sorted(known.values):
                producer, number = names(known.values[offset])
                before = newest.get(producer, (-1, ""))
                if number <= before[0]:
                    raise Violation(f"{where} offset {offset}: {known.values[offset]!r} after {before[1]!r}")
                newest[producer] = (number, known.values[offset])
