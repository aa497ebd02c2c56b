"""The state of one share partition as its log has it, and the records by which requests change it.

Each function checks a request against the stored state, in the order of Apache Kafka's checks, and returns the record
to append together with the state after it. Replay derives the state from the record by the same code.

A record is a snapshot, which has all of the state, or an update, which has what a write has changed. A write becomes a
snapshot when its share partition has had enough updates.

Two numbers never fall, whatever arrives late: the start offset, within a state epoch, and the highest leader epoch that
has read the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from anabranch.broker.kafka.share.interface import (
    UNINITIALIZED_START_OFFSET,
    UNKNOWN_COUNT,
    InitialState,
    ShareState,
    ShareSummary,
    StateBatch,
)
from anabranch.broker.kafka.share.state.batches import combine
from anabranch.protocol.errors import ErrorCode, KafkaError


class StateWrite(NamedTuple):
    """Changes of a share partition, as its leader writes them."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    """-1: as it is."""
    delivery_complete_count: int
    batches: Sequence[StateBatch]


class Update(NamedTuple):
    """Contents of an update record."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: Sequence[StateBatch]


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state of a share partition. Its contents are those of a snapshot record."""

    snapshot_epoch: int
    """Number of the last snapshot."""
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    create_ms: int
    write_ms: int
    batches: Sequence[StateBatch]
    leader_fence: int = 0
    """Highest leader epoch that was recorded: `leader_epoch` begins with 0 in each state epoch, this does not."""
    updates: int = 0
    """Updates that count towards the next snapshot."""

    @property
    def as_read(self) -> ShareState:
        """The state as leaders read it."""
        return ShareState(self.state_epoch, self.start_offset, self.batches)

    @property
    def summary(self) -> ShareSummary:
        """The state without its batches."""
        return ShareSummary(self.state_epoch, self.leader_epoch, self.start_offset, self.delivery_complete_count)

    @property
    def kept(self) -> "StoredState":
        """The state as a rewritten log has it, in which nothing else tells the highest leader epoch."""
        return replace(self, leader_epoch=self.leader_fence)


class Change(NamedTuple):
    """A record to append, and the state with it."""

    record: StoredState | Update
    state: StoredState


# -- Replay ----------------------------------------------------------------------------------------------------------


def with_snapshot(before: StoredState | None, snapshot: StoredState, updates_per_snapshot: int) -> StoredState:
    """Return the state after a snapshot record."""
    if before is None:
        return replace(snapshot, leader_fence=max(snapshot.leader_epoch, 0))
    updates = 0 if before.updates >= updates_per_snapshot else before.updates
    return replace(snapshot, leader_fence=max(before.leader_fence, snapshot.leader_epoch), updates=updates)


def with_update(before: StoredState | None, update: Update) -> StoredState:
    """Return the state after an update record. Without a snapshot before it, it is all that is known."""
    if before is None:
        return StoredState(
            update.snapshot_epoch,
            0,
            update.leader_epoch,
            update.start_offset,
            update.delivery_complete_count,
            0,
            0,
            combine((), update.batches, update.start_offset),
            leader_fence=max(update.leader_epoch, 0),
            updates=1,
        )
    start_offset = before.start_offset if update.start_offset == UNINITIALIZED_START_OFFSET else update.start_offset
    return replace(
        before,
        leader_epoch=before.leader_epoch if update.leader_epoch == -1 else update.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=update.delivery_complete_count,
        batches=combine(before.batches, update.batches, start_offset),
        leader_fence=max(before.leader_fence, update.leader_epoch),
        updates=before.updates + 1,
    )


# -- Requests --------------------------------------------------------------------------------------------------------


def initialize(
    before: StoredState | None, initial: InitialState, updates_per_snapshot: int, now_ms: int
) -> Change | None:
    """Begin a state epoch. Returns None if it has begun: what asks for it may come late. Raises FENCED_STATE_EPOCH.

    Apache Kafka begins the same state epoch again from another start offset, and so forgets acknowledgements.
    """
    if before is not None and initial.state_epoch <= before.state_epoch:
        if initial.state_epoch < before.state_epoch:
            raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
        return None
    snapshot = StoredState(
        snapshot_epoch=0 if before is None else before.snapshot_epoch + 1,
        state_epoch=initial.state_epoch,
        leader_epoch=0,
        start_offset=initial.start_offset,
        delivery_complete_count=UNKNOWN_COUNT if initial.start_offset == UNINITIALIZED_START_OFFSET else 0,
        create_ms=now_ms,
        write_ms=now_ms,
        batches=(),
    )
    return Change(snapshot, with_snapshot(before, snapshot, updates_per_snapshot))


def write(before: StoredState, wanted: StateWrite, updates_per_snapshot: int, now_ms: int) -> Change:
    """Write what a leader has changed. Raises FENCED_LEADER_EPOCH, FENCED_STATE_EPOCH."""
    if wanted.leader_epoch < before.leader_fence:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if wanted.state_epoch < before.state_epoch:
        raise KafkaError(ErrorCode.FENCED_STATE_EPOCH)
    # Only a read changes the leader epoch.
    return _change(before, wanted._replace(leader_epoch=before.leader_epoch), updates_per_snapshot, now_ms)


def read(before: StoredState, leader_epoch: int, updates_per_snapshot: int, now_ms: int) -> Change | None:
    """Record the leader epoch of a reader, unless it is the present one. Raises FENCED_LEADER_EPOCH."""
    if leader_epoch < before.leader_fence:
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH)
    if leader_epoch == before.leader_fence:
        return None
    unchanged = StateWrite(
        before.state_epoch, leader_epoch, before.start_offset, before.delivery_complete_count, batches=()
    )
    return _change(before, unchanged, updates_per_snapshot, now_ms)


def _change(before: StoredState, wanted: StateWrite, updates_per_snapshot: int, now_ms: int) -> Change:
    start_offset = max(wanted.start_offset, before.start_offset)
    count = _delivery_complete_count(before, wanted)
    if before.updates < updates_per_snapshot:
        batches = combine((), wanted.batches, start_offset)
        update = Update(before.snapshot_epoch, wanted.leader_epoch, start_offset, count, batches)
        return Change(update, with_update(before, update))
    snapshot = StoredState(
        snapshot_epoch=before.snapshot_epoch + 1,
        state_epoch=before.state_epoch,
        leader_epoch=wanted.leader_epoch,
        start_offset=start_offset,
        delivery_complete_count=count,
        create_ms=now_ms,
        write_ms=now_ms,
        batches=combine(before.batches, wanted.batches, start_offset),
    )
    return Change(snapshot, with_snapshot(before, snapshot, updates_per_snapshot))


def _delivery_complete_count(before: StoredState, wanted: StateWrite) -> int:
    """Return the count of the write that is further."""
    if wanted.start_offset == before.start_offset:
        return max(wanted.delivery_complete_count, before.delivery_complete_count)
    return (
        wanted.delivery_complete_count if wanted.start_offset > before.start_offset else before.delivery_complete_count
    )
