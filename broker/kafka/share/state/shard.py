"""The share partitions of one partition of `__share_group_state`: their states, and writes in progress.

A request changes the state at once, so that the next one is checked against it, and gets its answer when its record is
durable. When a write fails, those behind it fail, too (`LogWriter`), and the state is again the one that is durable.
Callbacks of the log make the changes, so that a cancelled request leaves none half done.

Invariants:

- A state that is read or summarised is durable, and so is the leader epoch that its reader has raised.
- What a leader with a lower epoch writes after that is refused.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.broker.kafka.coordination.log import KeyValue, LogWriter, is_too_large
from anabranch.broker.kafka.share.interface import InitialState, ShareKey, ShareState, ShareSummary
from anabranch.broker.kafka.share.state import stored
from anabranch.broker.kafka.share.state.records import StateRecord, UnknownRecord, parse_record, state_record
from anabranch.broker.kafka.share.state.stored import Change, StateWrite, StoredState, Update
from anabranch.protocol.errors import ErrorCode, KafkaError

Outcome = asyncio.Future[ErrorCode]
"""Gets NONE when what a request has changed or read is durable, else the error code for its client."""


@dataclass(slots=True, eq=False)
class _Entry:
    durable: StoredState | None = None
    latest: StoredState | None = None
    """The state with the writes in progress; None: it is to be deleted, or does not exist yet."""
    writes: int = 0
    """Writes in progress."""
    last_write: Outcome | None = None
    """The last of them."""


@dataclass(slots=True)
class StateCounts:
    """Records of states since the node started, for metrics."""

    snapshots: int = 0
    updates: int = 0
    deletions: int = 0
    failures: int = 0
    pending: int = 0
    """Records that are being written."""

    def ended(self, record: StoredState | Update | None, error: ErrorCode) -> None:
        """Note the end of a write."""
        self.pending -= 1
        if error:
            self.failures += 1
        elif record is None:
            self.deletions += 1
        elif isinstance(record, Update):
            self.updates += 1
        else:
            self.snapshots += 1


class StateRead(NamedTuple):
    """A state, and the outcome that tells when it is durable."""

    state: ShareState
    outcome: Outcome


class ShareStateShard:
    """The states of one partition's share partitions. `on_loaded` is called when they have been read."""

    def __init__(
        self,
        writer: LogWriter,
        *,
        updates_per_snapshot: int,
        now_ms: Callable[[], int],
        has_partition: Callable[[bytes, int], bool],
        on_loaded: Callable[[], None] = lambda: None,
        counts: StateCounts | None = None,
    ) -> None:
        """`has_partition` returns whether a topic id and a partition exist. `counts` are those of all shards."""
        self.writer = writer
        self.loaded = False
        self.unreadable = False
        """The log cannot be decoded: its states stay unavailable, and nothing is written over it."""
        self.damage = ""
        self._updates_per_snapshot = updates_per_snapshot
        self._now_ms = now_ms
        self._has_partition = has_partition
        self._on_loaded = on_loaded
        self._counts = counts or StateCounts()
        self._entries: dict[ShareKey, _Entry] = {}
        self._unknown_records: dict[bytes, bytes] = {}
        self._closed = False

    # -- Life --------------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the log. Raises StorageError, WalError, MalformedMessage."""
        states: dict[ShareKey, StoredState] = {}
        unknown_records: dict[bytes, bytes] = {}
        async for batch in self.writer.log.replay():
            for record in batch.records:
                self._replay(states, unknown_records, record)
                self.writer.written_bytes += record.size_bytes
        if self._closed:
            return
        self._entries = {key: _Entry(state, state) for key, state in states.items()}
        self._unknown_records = unknown_records
        self.loaded = True
        self._on_loaded()

    def _replay(
        self, states: dict[ShareKey, StoredState], unknown_records: dict[bytes, bytes], record: KeyValue
    ) -> None:
        match parse_record(record):
            case StateRecord(key, StoredState() as snapshot):
                states[key] = stored.with_snapshot(states.get(key), snapshot, self._updates_per_snapshot)
            case StateRecord(key, Update() as update):
                states[key] = stored.with_update(states.get(key), update)
            case StateRecord(key, None):
                states.pop(key, None)
            case UnknownRecord(unknown_key, None):
                unknown_records.pop(unknown_key, None)
            case UnknownRecord(unknown_key, bytes() as value):
                unknown_records[unknown_key] = value

    def close(self) -> None:
        """Stop coordinating: write nothing more. Requests that wait get NOT_COORDINATOR."""
        self._closed = True
        self.loaded = False
        self.writer.close()
        self._entries.clear()

    async def rewrite(self) -> None:
        """Rewrite the log to its live records. Raises StorageError."""
        await self.writer.rewrite(self.live_records)

    def live_records(self) -> Iterator[KeyValue]:
        """Yield the records that a rewritten log must hold: a snapshot of each share partition."""
        for key, entry in self._entries.items():
            if entry.durable is not None:
                yield state_record(key, entry.durable.kept)
        for unknown_key, value in self._unknown_records.items():
            yield KeyValue(unknown_key, value)

    # -- Requests: INVALID_REQUEST for negative numbers and states that are not there, UNKNOWN_TOPIC_OR_PARTITION -----

    def __len__(self) -> int:
        """Number of share partitions."""
        return len(self._entries)

    def topic_ids(self) -> Collection[bytes]:
        """Return the ids of the topics that share partitions belong to."""
        return {key.topic_id for key in self._entries}

    def initialize(self, key: ShareKey, initial: InitialState) -> Outcome:
        """Begin a state anew. Raises KafkaError, also FENCED_STATE_EPOCH."""
        _check(key, state_epoch=initial.state_epoch)
        return self._carry_out(
            key, stored.initialize(self._latest(key), initial, self._updates_per_snapshot, self._now_ms())
        )

    def write(self, key: ShareKey, wanted: StateWrite) -> Outcome:
        """Write what a leader has changed. Raises KafkaError, also FENCED_LEADER_EPOCH and FENCED_STATE_EPOCH."""
        _check(key, leader_epoch=wanted.leader_epoch, state_epoch=wanted.state_epoch)
        if any(each.last_offset < each.first_offset for each in wanted.batches):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "The last offset of a batch is before its first one.")
        before = self._initialized(key, "Write")
        return self._carry_out(key, stored.write(before, wanted, self._updates_per_snapshot, self._now_ms()))

    def read(self, key: ShareKey, leader_epoch: int) -> StateRead:
        """Read a state for a leader, and shut out those with a lower epoch.

        Raises KafkaError, also FENCED_LEADER_EPOCH.
        """
        _check(key, leader_epoch=leader_epoch)
        before = self._initialized(key, "Read")
        change = stored.read(before, leader_epoch, self._updates_per_snapshot, self._now_ms())
        return StateRead(before.as_read, self._carry_out(key, change))

    def summary(self, key: ShareKey) -> ShareSummary | None:
        """Return a state without its batches, as far as it is durable; None: it was never initialised.

        Raises KafkaError.
        """
        _check(key)
        self._check_exists(key)
        entry = self._entries.get(key)
        return None if entry is None or entry.durable is None else entry.durable.summary

    def delete(self, key: ShareKey) -> Outcome:
        """Delete a state, if there is one. Raises KafkaError."""
        _check(key)
        if self._latest(key) is None:
            return self._carry_out(key, None)
        self._check_exists(key)
        return self._append(key, None, None)

    def forget_topics(self, topic_ids: Collection[bytes]) -> None:
        """Delete the states of deleted topics."""
        for key in [key for key in self._entries if key.topic_id in topic_ids and self._latest(key)]:
            _ = self._append(key, None, None)

    def _check_exists(self, key: ShareKey) -> None:
        if not self._has_partition(key.topic_id, key.partition):
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _latest(self, key: ShareKey) -> StoredState | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.latest

    def _initialized(self, key: ShareKey, operation: str) -> StoredState:
        state = self._latest(key)
        if state is None:
            message = f"{operation} operation on uninitialized share partition not allowed."
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return state

    # -- Writes ------------------------------------------------------------------------------------------------------

    def _carry_out(self, key: ShareKey, change: Change | None) -> Outcome:
        """Append a change. Without one, the outcome is that of the last write in progress, which the answer shows."""
        self._check_exists(key)
        if change is not None:
            return self._append(key, change.record, change.state)
        entry = self._entries.get(key)
        if entry is not None and entry.last_write is not None:
            return entry.last_write
        outcome = _outcome()
        outcome.set_result(ErrorCode.NONE)
        return outcome

    def _append(self, key: ShareKey, record: StoredState | Update | None, state: StoredState | None) -> Outcome:
        written = state_record(key, record)
        if is_too_large([written]):
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        entry = self._entries.setdefault(key, _Entry())
        outcome = _outcome()
        entry.latest, entry.last_write = state, outcome
        entry.writes += 1
        self._counts.pending += 1

        def done(error: ErrorCode) -> None:
            entry.writes -= 1
            self._counts.ended(record, error)
            if error:
                entry.latest = entry.durable
            else:
                entry.durable = state
            if not entry.writes:
                entry.last_write = None
                if entry.durable is None and self._entries.get(key) is entry:
                    del self._entries[key]
            if not outcome.done():
                outcome.set_result(error)

        self.writer.write([written], done)
        return outcome


def _check(key: ShareKey, *, leader_epoch: int = 0, state_epoch: int = 0) -> None:
    numbers = {"partition id": key.partition, "leader epoch": leader_epoch, "state epoch": state_epoch}
    for name, number in numbers.items():
        if number < 0:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The {name} cannot be a negative number.")


def _outcome() -> Outcome:
    return asyncio.get_running_loop().create_future()
