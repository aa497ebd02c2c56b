"""A share partition: the records of one partition that are in flight in one share group (KIP-932).

Pure: no I/O, and no clock; times are arguments. Records between `start_offset` and `end_offset` are in flight. Each is
available, acquired by one member until its lock ends, acknowledged or archived. A method that changes states returns a
`Change`; the caller writes its batches together with `start_offset` and `delivery_complete_count`, and then calls
`complete`. Until then nobody else gets these records, and the answer to the member waits.

Invariants:

- S1: an acknowledgement that was answered with success is durable: the record is never delivered again.
- S2: a record from the start offset on is never lost: it is acknowledged, archived, or delivered again.
- S3: a record is acquired by one member at a time.
- S4: what is durable of delivery counts never falls, also when another leader takes over.
- S5: a fenced leader acknowledges nothing: each write carries the state epoch and the leader epoch.
- S6: a group that reads committed records gets none of an aborted transaction. Members drop control records.
- S7: with a dead-letter topic (KIP-1191), a record that was rejected, or whose deliveries are used up, is archived only
  after its dead letter was written, or given up. It is ARCHIVING until then, durably, so another leader goes on.

Where the KIP is silent, the rules are those of Apache Kafka 4.3: how batches are formed (`acquire`), and that records
are delivered alone after many deliveries, so that one that crashes its consumers spares its neighbours.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from anabranch.broker.kafka.share.interface import DeliveryState, StateBatch
from anabranch.broker.kafka.share.partition.in_flight import NOBODY, TERMINAL, Batch, Change, Run
from anabranch.protocol.errors import ErrorCode, KafkaError

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""Types of acknowledgement. A gap is an offset at which the member has found no record."""
NEVER_MS: Final = 2**63 - 1
ISOLATED_FROM: Final = 2
"""Least delivery count from which records are delivered in smaller batches."""
_FIRST_OFFSET = attrgetter("first_offset")


class ShareLimits(NamedTuple):
    """Limits of one group."""

    records_max: int
    """Largest number of records in flight in a share partition."""
    deliveries_max: int
    """Number of deliveries after which a record is archived."""
    lock_ms: int
    """Duration of an acquisition lock."""
    has_dead_letters: bool = False
    """True if records are written to a dead-letter topic before they are archived."""
    may_renew: bool = True
    """True if members may renew locks."""


class OffsetRange(NamedTuple):
    """Offsets of a batch of the log. Both are included."""

    first_offset: int
    last_offset: int


class DeadLetter(NamedTuple):
    """Records to be written to the dead-letter topic. Both offsets are included."""

    first_offset: int
    last_offset: int
    delivery_count: int
    is_rejected: bool
    """False if their deliveries are used up."""

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last_offset - self.first_offset + 1


class OffsetCount(NamedTuple):
    """Number of available offsets before an end."""

    offsets: int
    end_offset: int


class Acquired(NamedTuple):
    """Records that a member has acquired. Both offsets are included."""

    first_offset: int
    last_offset: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """Acknowledgement of offsets, both included: of one type, or with a type for each offset."""

    first_offset: int
    last_offset: int
    types: Sequence[int]

    def segments(self) -> Iterator[tuple[int, int, int]]:
        """Yield first offset, last offset and type of each run of one type."""
        if len(self.types) == 1:
            yield self.first_offset, self.last_offset, self.types[0]
            return
        offset = self.first_offset
        for kind, same in groupby(self.types):
            count = sum(1 for _ in same)
            yield offset, offset + count - 1, kind
            offset += count


class SharePartition:
    """State of one share partition on the leader of its partition."""

    __slots__ = (
        "_batches",
        "_may_be_available",
        "_may_have_letters",
        "deliveries",
        "end_offset",
        "limits",
        "next_deadline_ms",
        "start_offset",
    )

    def __init__(self, start_offset: int, batches: Sequence[StateBatch], limits: ShareLimits) -> None:
        """Begin with the durable state. Offsets between its batches are available, and were never delivered."""
        self.limits = limits
        self.start_offset = start_offset
        """First offset that is not complete."""
        self.end_offset = start_offset
        """End of the records that were acquired so far."""
        self.deliveries = 0
        """Records that members have acquired since it was loaded, each time counted."""
        self.next_deadline_ms = NEVER_MS
        """No lock ends earlier."""
        self._batches: list[Batch] = []
        """By ascending offsets. None begins before the start offset."""
        self._may_be_available = False
        """False only if no record before the end offset is available."""
        self._may_have_letters = False
        """False only if no records wait for `take_dead_letters`."""
        for batch in batches:
            first_offset = max(batch.first_offset, self.end_offset)
            if first_offset > batch.last_offset:
                continue
            if first_offset > self.end_offset:
                self._batches.append(_gap(self.end_offset, first_offset - 1))
            run = Run(first_offset, batch.last_offset, DeliveryState(batch.delivery_state), batch.delivery_count)
            if run.state == DeliveryState.ARCHIVING:
                # The cause is not written. As in Kafka, it follows from the present limit.
                run.is_rejected = run.delivery_count < limits.deliveries_max
                self._may_have_letters = True
            self._batches.append(Batch(run))
            self.end_offset = batch.last_offset + 1
        self._may_be_available = bool(self._batches)
        self._advance()

    # what is known of it

    @property
    def in_flight(self) -> int:
        """Number of offsets in flight."""
        return self.end_offset - self.start_offset if self._batches else 0

    @property
    def delivery_complete_count(self) -> int:
        """Number of offsets in flight whose delivery is complete, though offsets before them are not (KIP-1226)."""
        return sum(run.size for batch in self._batches for run in batch.runs if run.state in TERMINAL)

    def count(self, state: DeliveryState) -> int:
        """Return the number of offsets in flight in a state."""
        return sum(run.size for run in self._runs() if run.state == state)

    def _runs(self) -> Iterator[Run]:
        for batch in self._batches:
            yield from batch.runs

    def states(self) -> Iterator[tuple[int, int, DeliveryState, int, str]]:
        """Yield first offset, last offset, state, delivery count and member of each run in flight."""
        for run in self._runs():
            yield run.first_offset, run.last_offset, run.state, run.delivery_count, run.member_id

    def next_fetch_offset(self) -> int:
        """Return the first available offset: of records that were released, or of new ones."""
        if self._may_be_available:
            for run in self._runs():
                if run.is_available:
                    return run.first_offset
            self._may_be_available = False
        return self.end_offset

    def reach(self, records_max: int) -> OffsetCount:
        """Return how many offsets `acquire` can find for a request for so many records, and where they end.

        The log may have no records at some of them. Without a strict limit a batch in flight is acquired as a whole.
        """
        room = self.limits.records_max - self.in_flight
        wanted = min(records_max, room) if room > 0 else records_max
        found = 0
        for batch in self._batches if self._may_be_available else ():
            available = [run for run in batch.runs if run.is_available]
            size = sum(run.size for run in available)
            if available and found + size >= wanted:
                end_offset = available[0].first_offset + wanted - found if batch.is_gap else batch.last_offset + 1
                return OffsetCount(wanted, end_offset)
            found += size
        new = max(min(wanted - found, room), 0)
        return OffsetCount(found + new, self.end_offset + new)

    def can_acquire(self) -> bool:
        """Return whether records may be acquired, if the log has some at `next_fetch_offset`."""
        return self.in_flight < self.limits.records_max or self.next_fetch_offset() != self.end_offset

    # acquisition

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[OffsetRange],
        *,
        fetch_offset: int,
        records_max: int,
        batch_records: int,
        is_limit_strict: bool,
        now_ms: int,
        aborted: Sequence[OffsetRange] = (),
    ) -> list[Acquired]:
        """Acquire records of the batches that were read from `fetch_offset` on, until the lock of the group ends.

        At most `records_max`, but whole batches of the log, unless the limit is strict (KIP-1206). New records form a
        batch of about `batch_records`, at the bounds of the log's batches. Available records before the first batch
        are archived, because the log no longer has them, and so are those among `aborted`, whose transactions were.
        """
        if records_max <= 0 or not fetched:
            return []
        first_offset, last_offset = max(fetched[0].first_offset, self.start_offset), fetched[-1].last_offset
        allowed = min(records_max, self.limits.records_max - self.in_flight)
        if allowed <= 0:
            # Nothing new: only what was released in between.
            if fetch_offset >= self.end_offset:
                return []
            allowed = min(records_max, self.end_offset - fetch_offset)
            last_offset = min(last_offset, self.end_offset - 1)
        if fetch_offset < first_offset:
            self.archive_available(fetch_offset, first_offset - 1)
        acquisition = _Acquisition(
            self, member_id, fetched, allowed, batch_records, is_limit_strict=is_limit_strict, now_ms=now_ms
        )
        goes_on = True
        index = self._index_from(first_offset)
        while goes_on and index < len(self._batches) and self._batches[index].first_offset <= last_offset:
            batch = self._batches[index]
            if batch.is_gap:
                parts = acquisition.of_gap(batch, first_offset, last_offset)
                self._batches[index : index + 1] = parts
                index += len(parts)
                goes_on = acquisition.may_go_on
            else:
                goes_on = acquisition.of_batch(batch, first_offset, last_offset)
                index += 1
        new_offset = max(first_offset, self.end_offset)
        if goes_on and new_offset <= last_offset:
            new = acquisition.of_new(new_offset, last_offset)
            if not self._batches:
                self.start_offset = new_offset
            self._batches.extend(new)
            self.end_offset = self._batches[-1].last_offset + 1
        acquired = acquisition.acquired
        if acquired:
            self.next_deadline_ms = min(self.next_deadline_ms, acquisition.deadline_ms)
            for each in aborted:
                self._archive(each.first_offset, each.last_offset, DeliveryState.ACQUIRED, member_id)
                acquired = _without(acquired, each)
            self.deliveries += sum(each.last_offset - each.first_offset + 1 for each in acquired)
        return acquired

    def _index_from(self, offset: int) -> int:
        """Return the index of the first batch that ends at or after an offset."""
        index = bisect_right(self._batches, offset, key=_FIRST_OFFSET)
        return index - 1 if index and self._batches[index - 1].last_offset >= offset else index

    def note_available(self) -> None:
        """Note that records before the end offset may be available."""
        self._may_be_available = True

    def archive_available(self, first_offset: int, last_offset: int) -> None:
        """Archive the available records among the offsets: compaction has removed them."""
        self._archive(first_offset, last_offset, DeliveryState.AVAILABLE)

    def _archive(self, first_offset: int, last_offset: int, state: DeliveryState, member_id: str = NOBODY) -> None:
        for batch in list(self._between(first_offset, last_offset)):
            if batch.is_gap:
                batch = self._cut_gap(batch, first_offset, last_offset)
            for run in batch.split(first_offset, last_offset):
                if run.state == state and run.member_id == member_id:
                    run.archive()
            batch.tidy()
        self._advance()

    def _cut_gap(self, gap: Batch, first_offset: int, last_offset: int) -> Batch:
        """Cut the offsets out of a gap, and return them as a batch."""
        runs = list(gap.split(first_offset, last_offset))
        parts = [Batch(run, is_gap=run is not runs[0]) for run in gap.runs]
        index = self._index_from(gap.first_offset)
        self._batches[index : index + 1] = parts
        return next(part for part in parts if not part.is_gap)

    def _between(self, first_offset: int, last_offset: int) -> Sequence[Batch]:
        """Return the batches with any of the offsets."""
        return self._batches[
            self._index_from(first_offset) : bisect_right(self._batches, last_offset, key=_FIRST_OFFSET)
        ]

    # acknowledgement

    def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement], now_ms: int) -> Change:
        """Begin to acknowledge records; all, or none if it raises KafkaError.

        Raises INVALID_RECORD_STATE for records that the member has not acquired, INVALID_REQUEST for offsets past those
        in flight. What the start offset has passed is left out.
        """
        change = Change()
        try:
            for each in acknowledgements:
                if each.last_offset >= self.start_offset:
                    self._check_covered(each)
                    for first_offset, last_offset, kind in each.segments():
                        self._acknowledge(
                            change, member_id, first_offset, last_offset, kind, now_ms, splits=len(each.types) > 1
                        )
        except KafkaError:
            self.complete(change, durable=False)
            raise
        return change

    def _check_covered(self, each: Acknowledgement) -> None:
        """Raise KafkaError unless there are records in flight at the beginning and at the end."""
        first_offset = max(each.first_offset, self.start_offset)
        index = bisect_right(self._batches, each.last_offset, key=_FIRST_OFFSET)
        if not index or self._batches[0].first_offset > first_offset:
            raise KafkaError(
                ErrorCode.INVALID_RECORD_STATE,
                "Batch record not found. The request batch offsets are not found in the cache.",
            )
        last_offset = self._batches[index - 1].last_offset
        if last_offset < each.last_offset:
            what = "first" if last_offset < first_offset else "last"
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Batch record not found. The {what} offset in request is past acquired records.",
            )

    def _acknowledge(
        self,
        change: Change,
        member_id: str,
        first_offset: int,
        last_offset: int,
        kind: int,
        now_ms: int,
        *,
        splits: bool,
    ) -> None:
        for batch in self._between(max(first_offset, self.start_offset), last_offset):
            if not batch.is_split:
                _check_owned(batch.runs[0], member_id, "batch")
                batch.is_split = splits
            for run in batch.split(first_offset, last_offset):
                _check_owned(run, member_id, "offset" if batch.is_split else "batch")
                if kind == RENEW:
                    if not self.limits.may_renew:
                        message = "Renewing acquisition locks is not enabled for the group."
                        raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)
                    run.deadline_ms = now_ms + self.limits.lock_ms
                    self.next_deadline_ms = min(self.next_deadline_ms, run.deadline_ms)
                else:
                    run.begin(change, self._state_after(kind, run.delivery_count), is_rejected=kind == REJECT)

    def _state_after(self, kind: int, delivery_count: int) -> DeliveryState:
        if kind == ACCEPT:
            return DeliveryState.ACKNOWLEDGED
        if kind == RELEASE and delivery_count < self.limits.deliveries_max:
            return DeliveryState.AVAILABLE
        if kind == GAP or not self.limits.has_dead_letters:
            return DeliveryState.ARCHIVED
        self._may_have_letters = True
        return DeliveryState.ARCHIVING

    def release(self, member_id: str) -> Change:
        """Begin to release all that a member has acquired: its session has ended."""
        change = Change()
        for run in self._runs():
            if run.state == DeliveryState.ACQUIRED and run.member_id == member_id:
                run.begin(change, self._state_after(RELEASE, run.delivery_count))
        return change

    def expire(self, now_ms: int) -> Change:
        """End the locks whose time is over. Their records are available at once, or archived when used up."""
        change, next_deadline_ms = Change(), NEVER_MS
        for batch in self._batches:
            for run in batch.runs:
                if run.state != DeliveryState.ACQUIRED:
                    continue
                if run.deadline_ms > now_ms:
                    next_deadline_ms = min(next_deadline_ms, run.deadline_ms)
                    continue
                run.state = self._state_after(RELEASE, run.delivery_count)
                run.member_id = NOBODY
                change.add(run)
            batch.tidy()
        self.next_deadline_ms = next_deadline_ms
        self._may_be_available = True
        return change

    def complete(self, change: Change, *, durable: bool) -> None:
        """End a change: what it covers is in the new state, or in the one before if it could not be made durable.

        A lock whose time was over meanwhile ends with the next `expire`.
        """
        # Each batch once: the change may cover many single records of it.
        for batch in {
            batch: None
            for written in change.batches
            for batch in self._between(written.first_offset, written.last_offset)
        }:
            for run in batch.runs:
                if run.change is change:
                    run.end(durable=durable)
                    if run.state == DeliveryState.ACQUIRED:
                        self.next_deadline_ms = min(self.next_deadline_ms, run.deadline_ms)
                    elif run.is_available:
                        self._may_be_available = True
            batch.tidy()
        self._advance()

    # dead letters

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return the records that are ARCHIVING and that no earlier call has returned.

        Those whose change is not durable yet are left out. The caller writes their dead letters, and then calls
        `archive_dead`.
        """
        if not self._may_have_letters:
            return []
        letters, self._may_have_letters = [], False
        for run in self._runs():
            if run.state != DeliveryState.ARCHIVING or run.is_taken:
                continue
            if run.change is not None:
                self._may_have_letters = True
                continue
            run.is_taken = True
            letters.append(DeadLetter(run.first_offset, run.last_offset, run.delivery_count, run.is_rejected))
        return letters

    def archive_dead(self, first_offset: int, last_offset: int) -> Change:
        """Archive records whose dead letters were written, or given up.

        They stay archived if the change cannot be made durable: the next write moves the start offset past them, and a
        leader that takes over before that writes their dead letters again.
        """
        change = Change()
        for batch in self._between(first_offset, last_offset):
            for run in batch.split(first_offset, last_offset):
                if run.state == DeliveryState.ARCHIVING and run.is_taken:
                    run.archive()
                    change.add(run)
        return change

    # offsets

    def move_log_start(self, log_start_offset: int) -> None:
        """Leave out the records that the log has deleted. A member that has them may still acknowledge them."""
        if log_start_offset > self.start_offset:
            self._drop_before(log_start_offset)
            self._advance()

    def _drop_before(self, start_offset: int) -> None:
        batches = self._batches
        count = 0
        while count < len(batches) and batches[count].last_offset < start_offset:
            count += 1
        del batches[:count]
        if batches and batches[0].first_offset < start_offset:
            batches[0].trim(start_offset)
        self.start_offset = start_offset
        self.end_offset = max(self.end_offset, start_offset)

    def _advance(self) -> None:
        """Move the start offset past the records whose delivery is complete, durably."""
        for batch in self._batches:
            for run in batch.runs:
                if not run.is_complete:
                    if run.first_offset > self.start_offset:
                        self._drop_before(run.first_offset)
                    return
        if self._batches:
            self._batches.clear()
            self.start_offset = self.end_offset


def _without(acquired: Sequence[Acquired], removed: OffsetRange) -> list[Acquired]:
    left = []
    for each in acquired:
        if each.first_offset < removed.first_offset:
            left.append(each._replace(last_offset=min(each.last_offset, removed.first_offset - 1)))
        if each.last_offset > removed.last_offset:
            left.append(each._replace(first_offset=max(each.first_offset, removed.last_offset + 1)))
    return left


def _gap(first_offset: int, last_offset: int) -> Batch:
    return Batch(Run(first_offset, last_offset, DeliveryState.AVAILABLE, 0), is_gap=True)


def _check_owned(run: Run, member_id: str, what: str) -> None:
    """Raise INVALID_RECORD_STATE, with Kafka's message, unless the member has acquired the records."""
    if run.state == DeliveryState.ACQUIRED and run.member_id == member_id:
        return
    state, owned = ("not acquired", "offset") if what == "offset" else ("not in the acquired state", "batch record")
    if run.state == DeliveryState.ACQUIRED:
        message = f"Member is not the owner of {owned}"
    else:
        message = f"The {what} cannot be acknowledged. The {what} is {state}."
    raise KafkaError(ErrorCode.INVALID_RECORD_STATE, message)


class _Acquisition:
    """Records that one member acquires with one request."""

    def __init__(
        self,
        partition: SharePartition,
        member_id: str,
        fetched: Sequence[OffsetRange],
        allowed: int,
        batch_records: int,
        *,
        is_limit_strict: bool,
        now_ms: int,
    ) -> None:
        self._partition = partition
        self._member_id = member_id
        self._fetched = fetched
        self._left = allowed
        self._batch_records = batch_records
        self._is_limit_strict = is_limit_strict
        self.deadline_ms = now_ms + partition.limits.lock_ms
        self.acquired: list[Acquired] = []

    def of_batch(self, batch: Batch, first_offset: int, last_offset: int) -> bool:
        """Acquire what is available of a batch. Returns whether the request may acquire more."""
        deliveries_max = self._partition.limits.deliveries_max
        threshold = max(ISOLATED_FROM, (deliveries_max + 1) // 2)
        available = _available(batch, first_offset, last_offset)
        is_isolated = any(run.delivery_count >= threshold for run in available)
        if is_isolated and self.acquired:
            return False
        taken, taken_max, known = 0, 0, len(self.acquired)
        for run in available:
            is_last = deliveries_max > ISOLATED_FROM and run.delivery_count == deliveries_max - 1
            if is_last and taken:
                break
            if run.delivery_count >= threshold and not taken_max:
                # The more often they were delivered, the smaller the batch, until the one that fails is alone.
                taken_max = max(1, batch.size >> (run.delivery_count - threshold + 1))
            first = max(first_offset, run.first_offset)
            count = 1 if is_last else min(last_offset, run.last_offset) - first + 1
            if self._is_limit_strict:
                count = min(count, self._left - taken)
            if taken_max > taken:
                count = min(count, taken_max - taken)
            for part in batch.split(first, first + count - 1):
                self._take(part, joins=len(self.acquired) > known)
            taken += count
            if is_last or taken == taken_max or (self._is_limit_strict and taken >= self._left):
                break
        if taken:
            batch.tidy()
            self._left -= taken
        return self.may_go_on and not (is_isolated and taken)

    @property
    def may_go_on(self) -> bool:
        """True if the request may acquire more."""
        return self._left > 0

    def of_gap(self, gap: Batch, first_offset: int, last_offset: int) -> list[Batch]:
        """Acquire records of a gap. Returns what it then consists of."""
        first_offset, last_offset = max(first_offset, gap.first_offset), min(last_offset, gap.last_offset)
        parts = [_gap(gap.first_offset, first_offset - 1)] if gap.first_offset < first_offset else []
        parts += self.of_new(first_offset, last_offset)
        end_offset = parts[-1].last_offset + 1
        if end_offset <= gap.last_offset:
            parts.append(_gap(end_offset, gap.last_offset))
        return parts

    def of_new(self, first_offset: int, last_offset: int) -> list[Batch]:
        """Acquire records that were never delivered, not past the last offset. Returns their batches."""
        if self._left < last_offset - first_offset + 1:
            last_offset = min(self._end_of_batch(first_offset + self._left - 1), last_offset)
        if self._is_limit_strict:
            taken_to = min(last_offset, first_offset + self._left - 1)
            batch = Batch(Run(first_offset, last_offset, DeliveryState.AVAILABLE, 0))
            for run in batch.split(first_offset, taken_to):
                self._take(run)
            if taken_to < last_offset:
                self._partition.note_available()
            self._left -= taken_to - first_offset + 1
            return [batch]
        batches = []
        for first, last in self._cut(first_offset, last_offset):
            run = Run(first, last, DeliveryState.AVAILABLE, 0)
            self._take(run)
            batches.append(Batch(run))
        self._left -= last_offset - first_offset + 1
        return batches

    def _cut(self, first_offset: int, last_offset: int) -> Iterator[tuple[int, int]]:
        """Cut offsets at the bounds of the log's batches, so that each part has about `batch_records`."""
        if last_offset - first_offset + 1 > self._batch_records:
            for batch in self._fetched:
                if batch.first_offset > last_offset:
                    break
                if batch.first_offset - first_offset >= self._batch_records:
                    yield first_offset, batch.first_offset - 1
                    first_offset = batch.first_offset
        yield first_offset, last_offset

    def _end_of_batch(self, offset: int) -> int:
        """Return the last offset of the log's batch that holds an offset, or this one if none does."""
        index = bisect_right(self._fetched, offset, key=_FIRST_OFFSET)
        return max(offset, self._fetched[index - 1].last_offset) if index else offset

    def _take(self, run: Run, *, joins: bool = False) -> None:
        """Acquire a run. It may join the part of its batch that was acquired before it."""
        run.state = DeliveryState.ACQUIRED
        run.delivery_count += 1
        run.member_id = self._member_id
        run.deadline_ms = self.deadline_ms
        last = self.acquired[-1] if joins else None
        if last is not None and last.last_offset + 1 == run.first_offset and last.delivery_count == run.delivery_count:
            self.acquired[-1] = last._replace(last_offset=run.last_offset)
        else:
            self.acquired.append(Acquired(run.first_offset, run.last_offset, run.delivery_count))


def _available(batch: Batch, first_offset: int, last_offset: int) -> list[Run]:
    return [
        run
        for run in batch.runs
        if run.is_available and run.first_offset <= last_offset and run.last_offset >= first_offset
    ]
