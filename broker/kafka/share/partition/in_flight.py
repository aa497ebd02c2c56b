"""Batches of records in flight, as runs of neighbouring records with one state.

A batch is acquired, acknowledged and released as one run as long as its members treat it as a whole. A run is split
only where they do not, and runs are joined again when they have become equal.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from anabranch.broker.kafka.share.interface import DeliveryState, StateBatch

TERMINAL = frozenset({DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED})
"""States that records never leave."""
NOBODY = ""
"""Stands for the member of records that are not acquired."""
_LAST_OFFSET = attrgetter("last_offset")


@dataclass(slots=True, eq=False)
class Change:
    """Changes of delivery states that are made durable together."""

    batches: list[StateBatch] = field(default_factory=list)
    """States to be written."""

    def add(self, run: "Run") -> None:
        """Note the present state of a run."""
        _extend(self.batches, run)


def _extend(batches: list[StateBatch], run: "Run") -> None:
    """Append a run, joined with the last batch if they are neighbours in one state."""
    state, count = run.state, run.delivery_count
    if batches:
        last = batches[-1]
        if last.last_offset + 1 == run.first_offset and (last.delivery_state, last.delivery_count) == (state, count):
            batches[-1] = StateBatch(last.first_offset, run.last_offset, state, count)
            return
    batches.append(StateBatch(run.first_offset, run.last_offset, state, count))


@dataclass(slots=True, eq=False)
class Run:
    """Neighbouring records of one batch with the same state. Both offsets are included."""

    first_offset: int
    last_offset: int
    state: DeliveryState
    delivery_count: int
    member_id: str = NOBODY
    deadline_ms: int = 0
    """End of the acquisition lock, if the records are acquired."""
    is_rejected: bool = False
    """True if a member has rejected the records; of those that are archived otherwise, the deliveries are used up."""
    is_taken: bool = False
    """True once the dead letters of records that are being archived are on their way."""
    change: Change | None = None
    """The change that led to this state, until it is durable."""
    before: "Run | None" = None
    """State before `change`, to which the records return if it fails."""

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.last_offset - self.first_offset + 1

    @property
    def is_available(self) -> bool:
        """True if the records can be acquired now."""
        return self.state == DeliveryState.AVAILABLE and self.change is None

    @property
    def is_complete(self) -> bool:
        """True if the records will never be delivered again, durably."""
        return self.change is None and self.state in TERMINAL

    def part(self, first_offset: int, last_offset: int) -> "Run":
        """Return the same state for a part of the records."""
        return Run(
            first_offset,
            last_offset,
            self.state,
            self.delivery_count,
            self.member_id,
            self.deadline_ms,
            self.is_rejected,
            self.is_taken,
            self.change,
            self.before,
        )

    def begin(self, change: Change, state: DeliveryState, *, is_rejected: bool = False) -> None:
        """Change the state as a part of `change`, which is not durable yet."""
        self.before = self.part(self.first_offset, self.last_offset)
        self.change, self.state, self.member_id, self.is_rejected = change, state, NOBODY, is_rejected
        change.add(self)

    def end(self, *, durable: bool) -> None:
        """End the change: keep the state, or return to the one before."""
        before = self.before
        assert before is not None, "a change keeps what was before"
        if not durable:
            self.state, self.member_id, self.is_rejected = before.state, before.member_id, before.is_rejected
        self.change = self.before = None

    def archive(self) -> None:
        """Give the records up, whatever becomes of a change in progress."""
        self.state, self.member_id = DeliveryState.ARCHIVED, NOBODY
        self.is_rejected = self.is_taken = False
        self.change = self.before = None

    def joins(self, other: "Run") -> bool:
        """Return whether the records before and after are in one state."""
        return (
            self.change is None
            and other.change is None
            and self.state == other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and (self.is_rejected, self.is_taken) == (other.is_rejected, other.is_taken)
            and (self.state != DeliveryState.ACQUIRED or self.deadline_ms == other.deadline_ms)
        )


class Batch:
    """Records that were acquired together, or a gap: records that this leader has not delivered yet."""

    __slots__ = ("is_gap", "is_split", "runs", "size")

    def __init__(self, run: Run, *, is_gap: bool = False) -> None:
        self.runs = [run]
        self.size = run.size
        """Number of offsets when it began."""
        self.is_gap = is_gap
        """True if its records are to be acquired as new ones are: in batches as the log has them."""
        self.is_split = False
        """True once a part of it was in another state than the rest. Errors tell, as in Kafka."""

    @property
    def first_offset(self) -> int:
        """First offset that the start offset has not passed."""
        return self.runs[0].first_offset

    @property
    def last_offset(self) -> int:
        """Last offset."""
        return self.runs[-1].last_offset

    def split(self, first_offset: int, last_offset: int) -> Iterator[Run]:
        """Split runs so that the offsets from first to last consist of whole ones, and yield these.

        The caller may change a run that was yielded, not the list.
        """
        for index in self._indexes(first_offset, last_offset):
            yield self.runs[index]

    def _indexes(self, first_offset: int, last_offset: int) -> Iterator[int]:
        runs = self.runs
        index = bisect_left(runs, first_offset, key=_LAST_OFFSET)
        while index < len(runs) and runs[index].first_offset <= last_offset:
            run = runs[index]
            self.is_split = self.is_split or run.first_offset < first_offset or run.last_offset > last_offset
            if run.first_offset < first_offset:
                runs.insert(index, run.part(run.first_offset, first_offset - 1))
                run.first_offset = first_offset
                index += 1
            if run.last_offset > last_offset:
                runs.insert(index + 1, run.part(last_offset + 1, run.last_offset))
                run.last_offset = last_offset
            yield index
            index += 1

    def trim(self, start_offset: int) -> None:
        """Drop the records below an offset of the batch."""
        runs = self.runs
        while runs[0].last_offset < start_offset:
            del runs[0]
        runs[0].first_offset = max(runs[0].first_offset, start_offset)
        self.is_split = True

    def tidy(self) -> None:
        """Join runs that have become equal."""
        runs = self.runs
        if len(runs) == 1:
            return
        joined = [runs[0]]
        for run in runs[1:]:
            if joined[-1].joins(run):
                joined[-1].last_offset = run.last_offset
            else:
                joined.append(run)
        self.runs = joined
