"""A share partition beside a model with one entry a record, over random histories with failed writes and crashes.

The model checks S1 to S4 and S7 of `broker.kafka.share.partition.machine`, and at the end of each history that every
record that is owed to the group is delivered, and every dead letter that is owed is written.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anabranch.broker.kafka.share.interface import DeliveryState, StateBatch
from anabranch.broker.kafka.share.partition.in_flight import Change
from anabranch.broker.kafka.share.partition.machine import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
    DeadLetter,
    OffsetRange,
    ShareLimits,
    SharePartition,
)
from anabranch.protocol.errors import KafkaError

LIMITS = ShareLimits(records_max=30, deliveries_max=3, lock_ms=100)
MEMBERS = ("ann", "bob")


class Held(NamedTuple):
    member_id: str
    until_ms: int


@dataclass
class Written:
    """A change whose write is in progress."""

    change: Change
    accepted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    frees: bool = True
    """True if nobody holds the records once it is durable; False if nobody has held them since it began."""


class DurableState:
    """The persisted state, an entry an offset; a batch replaces what it covers unless that is further."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.entries: dict[int, tuple[int, int]] = {}
        self.archiving: set[int] = set()
        """Records whose dead letters are owed."""

    def write(self, start_offset: int, batches: list[StateBatch]) -> None:
        self.start_offset = max(self.start_offset, start_offset)
        for batch in batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                entry = (batch.delivery_count, batch.delivery_state)
                self.entries[offset] = max(self.entries.get(offset, entry), entry)
                if batch.delivery_state == DeliveryState.ARCHIVING:
                    self.archiving.add(offset)
        self.entries = {offset: entry for offset, entry in self.entries.items() if offset >= self.start_offset}

    def batches(self) -> list[StateBatch]:
        return [StateBatch(offset, offset, state, count) for offset, (count, state) in sorted(self.entries.items())]


class SharePartitionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.log: list[OffsetRange] = []
        self.log_end = 0
        self.log_start = 0
        self.durable = DurableState()
        self.partition = SharePartition(0, [], LIMITS)
        self.held: dict[int, Held] = {}
        self.given: dict[str, list[Acquired]] = {}
        self.accepted: set[int] = set()
        """Records whose acknowledgement was answered with success."""
        self.given_up: set[int] = set()
        """Records that were rejected, with success, or whose last delivery ended."""
        self.may_be_complete: set[int] = set()
        """Records whose acknowledgement is durable, though the answer may have been an error."""
        self.deliveries: dict[int, int] = {}
        self.writes: list[Written] = []
        self.limits = LIMITS
        self.letters: list[DeadLetter] = []
        """Dead letters on their way."""
        self.taken: set[int] = set()
        """Records whose dead letters are, or were, on their way since the last crash."""
        self.dead: set[int] = set()
        """Records whose dead letters are written."""

    # the log

    @rule(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4))
    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            self.log.append(OffsetRange(self.log_end, self.log_end + size - 1))
            self.log_end += size

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        """Remove a whole batch that nobody holds, as compaction does."""
        index = data.draw(st.integers(0, len(self.log) - 1))
        del self.log[index]

    @rule(records=st.integers(1, 10))
    def delete_records(self, records: int) -> None:
        self.log_start = min(self.log_start + records, self.log_end)
        self.log = [batch for batch in self.log if batch.last_offset >= self.log_start]

    # members

    @rule(
        member=st.sampled_from(MEMBERS),
        records_max=st.integers(1, 12),
        batch_records=st.integers(1, 8),
        is_limit_strict=st.booleans(),
        batches_max=st.integers(1, 5),
    )
    def fetch(self, member: str, records_max: int, batch_records: int, is_limit_strict: bool, batches_max: int) -> None:
        self.acquire(member, records_max, batch_records, is_limit_strict, batches_max)

    def acquire(
        self, member: str, records_max: int, batch_records: int, is_limit_strict: bool, batches_max: int
    ) -> list[Acquired]:
        partition = self.partition
        if partition.next_fetch_offset() < self.log_start:
            partition.move_log_start(self.log_start)
        fetch_offset = partition.next_fetch_offset()
        if not partition.can_acquire():
            return []
        fetched = [batch for batch in self.log if batch.last_offset >= fetch_offset][:batches_max]
        acquired = partition.acquire(
            member,
            fetched,
            fetch_offset=fetch_offset,
            records_max=records_max,
            batch_records=batch_records,
            is_limit_strict=is_limit_strict,
            now_ms=self.now_ms,
        )
        count = 0
        for each in acquired:
            assert fetched[0].first_offset <= each.first_offset <= each.last_offset <= fetched[-1].last_offset
            for offset in range(each.first_offset, each.last_offset + 1):
                count += 1
                holder = self.held.get(offset)
                assert holder is None, f"S3: {offset} is held by {holder}"
                assert offset not in self.accepted, f"S1: {offset} was acknowledged"
                assert offset not in self.given_up, f"{offset} was given up"
                written = self.durable.entries.get(offset)
                assert written is None or each.delivery_count > written[0], f"S4: {offset} {written}"
                assert each.delivery_count <= LIMITS.deliveries_max
                self.held[offset] = Held(member, self.now_ms + LIMITS.lock_ms)
                self.deliveries[offset] = each.delivery_count
        assert not is_limit_strict or count <= records_max
        self.given.setdefault(member, []).extend(acquired)
        return acquired

    @rule(
        member=st.sampled_from(MEMBERS),
        records_max=st.integers(1, 12),
        kind=st.sampled_from((ACCEPT, RELEASE, RELEASE)),
        skipped=st.integers(0, 2),
    )
    def work(self, member: str, records_max: int, kind: int, skipped: int) -> None:
        """Fetch, and acknowledge all but the first batches, durably."""
        for each in self.acquire(member, records_max, 2, False, 5)[skipped:]:
            self.send(member, each.first_offset, each.last_offset, [kind])
        self.finish_all()

    @precondition(lambda self: any(self.given.values()))
    @rule(data=st.data(), whole=st.booleans(), kind=st.sampled_from((GAP, ACCEPT, ACCEPT, RELEASE, REJECT, RENEW)))
    def acknowledge(self, data: st.DataObject, whole: bool, kind: int) -> None:
        member = data.draw(st.sampled_from(sorted(member for member, given in self.given.items() if given)))
        batch = data.draw(st.sampled_from(self.given[member]))
        first, last = batch.first_offset, batch.last_offset
        if not whole:
            first = data.draw(st.integers(first, last))
            last = data.draw(st.integers(first, last))
        types = [kind]
        if not whole and data.draw(st.booleans()):
            types = data.draw(
                st.lists(
                    st.sampled_from((GAP, ACCEPT, RELEASE, REJECT)),
                    min_size=last - first + 1,
                    max_size=last - first + 1,
                )
            )
        self.send(member, first, last, types)

    @rule(member=st.sampled_from(MEMBERS), first=st.integers(0, 60), size=st.integers(1, 20), kind=st.integers(0, 4))
    def acknowledge_anything(self, member: str, first: int, size: int, kind: int) -> None:
        self.send(member, first, first + size - 1, [kind])

    def send(self, member: str, first: int, last: int, types: list[int]) -> None:
        start_offset = self.partition.start_offset
        offsets = [offset for offset in range(first, last + 1) if offset >= start_offset]
        before = list(self.partition.states())
        try:
            change = self.partition.acknowledge(member, [Acknowledgement(first, last, types)], self.now_ms)
        except KafkaError:
            if types != [RENEW]:
                passed = self.partition.start_offset  # past what has expired
                kept = {offset: state for offset, state in _by_offset(before).items() if offset >= passed}
                assert _by_offset(list(self.partition.states())) == kept, "all or nothing"
            return
        known = {offset for run in before for offset in range(run[0], run[1] + 1)}
        written = Written(change)
        for offset in offsets:
            if offset not in known:
                continue  # compacted away before it was acquired
            assert self.held[offset].member_id == member, f"{offset} is not {member}'s"
            kind = types[0] if len(types) == 1 else types[offset - first]
            if kind == RENEW:
                self.held[offset] = Held(member, self.now_ms + LIMITS.lock_ms)
            elif kind == ACCEPT:
                written.accepted.add(offset)
            elif kind == RELEASE and self.deliveries[offset] < LIMITS.deliveries_max:
                pass
            else:
                written.rejected.add(offset)
        if change.batches:
            self.writes.append(written)

    @rule(member=st.sampled_from(MEMBERS))
    def end_session(self, member: str) -> None:
        change = self.partition.release(member)
        self.given.pop(member, None)
        if change.batches:
            self.writes.append(Written(change))

    # time

    @rule(elapsed_ms=st.sampled_from((10, 60, 150)))
    def wait(self, elapsed_ms: int) -> None:
        self.now_ms += elapsed_ms
        if self.partition.next_deadline_ms <= self.now_ms:
            self.expire()

    def expire(self) -> None:
        change = self.partition.expire(self.now_ms)
        assert self.partition.next_deadline_ms > self.now_ms
        for batch in change.batches:
            for offset in range(batch.first_offset, batch.last_offset + 1):
                holder = self.held.pop(offset)
                assert holder.until_ms <= self.now_ms
                if batch.delivery_state != DeliveryState.AVAILABLE:
                    assert self.deliveries[offset] >= LIMITS.deliveries_max
        if change.batches:
            self.writes.append(Written(change, frees=False))

    # dead letters

    @rule(has_dead_letters=st.booleans())
    def set_dead_letters(self, has_dead_letters: bool) -> None:
        self.limits = self.partition.limits = LIMITS._replace(has_dead_letters=has_dead_letters)

    @rule()
    def take_dead_letters(self) -> None:
        for letter in self.partition.take_dead_letters():
            for offset in range(letter.first_offset, letter.last_offset + 1):
                assert offset not in self.taken, f"S7: the dead letter of {offset} is on its way already"
                assert offset not in self.held, f"S7: {offset} is held by {self.held[offset]}"
                assert letter.is_rejected or letter.delivery_count >= LIMITS.deliveries_max
                self.taken.add(offset)
            self.letters.append(letter)

    @precondition(lambda self: self.letters)
    @rule(part=st.integers(1, 20))
    def write_dead_letters(self, part: int) -> None:
        """Write some of the first dead letters, and archive their records."""
        letter = self.letters.pop(0)
        end = min(letter.last_offset, letter.first_offset + part - 1)
        if end < letter.last_offset:
            self.letters.insert(0, letter._replace(first_offset=end + 1))
        self.dead.update(range(letter.first_offset, end + 1))
        change = self.partition.archive_dead(letter.first_offset, end)
        if change.batches:
            self.writes.append(Written(change, frees=False))

    def write_all_dead_letters(self) -> None:
        self.take_dead_letters()
        while self.letters:
            self.write_dead_letters(20)

    # durability

    @precondition(lambda self: self.writes)
    @rule(succeeds=st.booleans(), applied=st.booleans())
    def end_write(self, succeeds: bool, applied: bool) -> None:
        """End the oldest write. One that fails may have been applied all the same."""
        self.finish(self.writes.pop(0), succeeds, applied)

    def finish(self, written: Written, succeeds: bool, applied: bool) -> None:
        if succeeds or applied:
            self.apply(written)
        self.partition.complete(written.change, durable=succeeds)
        if not succeeds:
            # Members may have these again, and their locks may end while there are no dead letters.
            self.durable.archiving -= {
                offset for offset, state in _by_offset(list(self.partition.states())).items() if state[2]
            }
        if succeeds:
            self.accepted |= written.accepted
            self.given_up |= written.rejected
        if succeeds and written.frees:
            for batch in written.change.batches:
                for offset in range(batch.first_offset, batch.last_offset + 1):
                    self.held.pop(offset, None)

    def finish_all(self) -> None:
        for written in self.writes:
            self.finish(written, succeeds=True, applied=True)
        self.writes.clear()

    def apply(self, written: Written) -> None:
        self.durable.write(self.partition.start_offset, written.change.batches)
        self.may_be_complete |= written.accepted | written.rejected

    @rule(applied=st.integers(0, 3))
    def crash(self, applied: int) -> None:
        """Lose what is not durable. Some of the writes in progress may have been applied."""
        for written in self.writes[:applied]:
            self.apply(written)
        self.writes.clear()
        self.held.clear()
        self.given.clear()
        self.letters.clear()
        self.taken.clear()
        self.partition = SharePartition(self.durable.start_offset, self.durable.batches(), self.limits)
        entries = self.durable.entries.items()
        self.durable.archiving |= {offset for offset, (_, state) in entries if state == DeliveryState.ARCHIVING}

    # checks

    @invariant()
    def records_are_in_order(self) -> None:
        partition = self.partition
        at = partition.start_offset
        for first, last, state, count, member in partition.states():
            assert at <= first <= last
            at = last + 1
            assert (state == DeliveryState.ACQUIRED) == bool(member)
            assert 0 <= count <= LIMITS.deliveries_max
        assert at <= partition.end_offset
        assert self.durable.start_offset <= max(partition.start_offset, self.log_start)

    @invariant()
    def none_is_archived_before_its_dead_letter_is_written(self) -> None:
        durable = self.durable
        for offset in durable.archiving - self.dead:
            if offset < durable.start_offset:
                assert offset < self.log_start, f"S7: the start offset has passed {offset}"
            else:
                assert durable.entries[offset][1] == DeliveryState.ARCHIVING, f"S7: {offset} was archived"

    def teardown(self) -> None:
        """Deliver all the rest: nothing that is owed may be missing (S2)."""
        self.finish_all()
        for _ in range(400):
            self.now_ms += LIMITS.lock_ms
            self.expire()
            self.finish_all()
            self.write_all_dead_letters()
            self.finish_all()
            acquired = self.acquire("ann", 5, 5, False, 5)
            if not acquired and self.partition.next_fetch_offset() >= self.log_end:
                break
            for each in acquired:
                self.send("ann", each.first_offset, each.last_offset, [ACCEPT])
            self.finish_all()
        self.write_all_dead_letters()
        unwritten = {offset for offset in self.durable.archiving - self.dead if offset >= self.log_start}
        assert not unwritten, f"S7: dead letters of {sorted(unwritten)} were never written"
        live = {
            offset
            for batch in self.log
            for offset in range(batch.first_offset, batch.last_offset + 1)
            if offset >= self.log_start
        }
        used_up = {offset for offset, count in self.deliveries.items() if count >= LIMITS.deliveries_max}
        missing = live - self.may_be_complete - used_up
        assert not missing, f"S2: {sorted(missing)} were never delivered"


def _by_offset(runs: list[tuple[int, int, DeliveryState, int, str]]) -> dict[int, tuple[DeliveryState, int, str]]:
    return {offset: run[2:] for run in runs for offset in range(run[0], run[1] + 1)}


TestSharePartition = SharePartitionModel.TestCase
TestSharePartition.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
