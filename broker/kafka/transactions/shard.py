"""The transactional ids of one partition of `__transaction_state`: their durable states and writes in progress.

Memory shows durable state only: a state changes when its record is in the log, and then the request gets its response.
While a write is in progress the id is *pending*, and other requests wait. Callbacks of the log make the changes, so
that a cancelled request leaves no change half done.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from anabranch.broker.kafka.coordination.log import KeyValue, LogWriter
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.transactions.records import parse_record, transaction_record
from anabranch.broker.kafka.transactions.state_machine import NO_EPOCH, Transaction
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.protocol.errors import ErrorCode, KafkaError

PREPARED = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})


@dataclass(slots=True)
class TransactionalIdEntry:
    """A transactional id with its durable state and the change in progress."""

    state: Transaction
    pending: Transaction | None = None
    """The state whose record is on its way to the log."""
    unmarked: set[TopicPartition] = field(default_factory=set)
    """Partitions of a prepared transaction whose marker is not durable yet."""
    writing: set[TopicPartition] = field(default_factory=set)
    """Partitions among these whose marker has been appended."""
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    """Requests that wait until no change is in progress."""

    @property
    def is_busy(self) -> bool:
        """True while a change is being written, or a decision carried out."""
        return self.pending is not None or self.state.status in PREPARED

    @property
    def is_ending(self) -> bool:
        """True while the record of a decision is on its way to the log."""
        return self.pending is not None and self.pending.status is not TransactionStatus.ONGOING

    def wake(self) -> None:
        """Wake the requests that wait, so that they check the state again."""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class TransactionShard:
    """Transactional ids that hash to one partition. `prepared` is called with an id whose decision is durable."""

    def __init__(self, writer: LogWriter, prepared: Callable[["TransactionShard", TransactionalIdEntry], None]) -> None:
        self.writer = writer
        self.loaded = False
        self.unreadable = False
        """The log cannot be decoded: its ids stay unavailable, and nothing is written over it."""
        self.damage = ""
        self.closed = False
        self.entries: dict[str, TransactionalIdEntry] = {}
        self.ongoing: set[str] = set()
        """Ids with an open transaction, which may time out."""
        self.unfinished: set[str] = set()
        """Ids with a decision whose markers or Complete record could not be written."""
        self._prepared = prepared

    @property
    def coordinator_epoch(self) -> int:
        """Epoch that markers contain. Partitions refuse markers of a coordinator with a lower one."""
        return self.writer.log.leader_epoch

    async def load(self) -> None:
        """Replay the log and continue with prepared transactions. Raises StorageError, MalformedMessage."""
        states: dict[str, Transaction] = {}
        async for batch in self.writer.log.replay():
            for record in batch.records:
                transactional_id, state = parse_record(record)
                if state is None:
                    states.pop(transactional_id, None)
                else:
                    states[transactional_id] = state
                self.writer.written_bytes += record.size_bytes
        if self.closed:
            return
        self.entries = {transactional_id: TransactionalIdEntry(state) for transactional_id, state in states.items()}
        self.loaded = True
        for entry in self.entries.values():
            self._changed(entry)

    def close(self) -> None:
        """Stop coordinating: write nothing more. Requests that wait get NOT_COORDINATOR."""
        self.closed = True
        self.loaded = False
        self.writer.close()
        for entry in self.entries.values():
            entry.wake()
        self.entries.clear()
        self.ongoing.clear()

    async def rewrite(self) -> None:
        """Rewrite the log to its live records. Raises StorageError."""
        await self.writer.rewrite(self.live_records)

    def live_records(self) -> Iterator[KeyValue]:
        """Yield the records that a rewritten log must hold: the durable states and nothing else."""
        for transactional_id, entry in self.entries.items():
            if entry.state.epoch != NO_EPOCH:
                yield transaction_record(transactional_id, entry.state)

    def write(
        self, entry: TransactionalIdEntry, state: Transaction, *, refusable: bool = False
    ) -> asyncio.Future[ErrorCode]:
        """Write the next state. The future gets the error code when the state has taken effect, or failed.

        `refusable`: the write fails while the log has stalled, because a client can ask for it again.
        """
        assert entry.pending is None, "one change at a time"
        entry.pending = state
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(error: ErrorCode) -> None:
            entry.pending = None
            if self.closed:
                error = ErrorCode.NOT_COORDINATOR
            elif not error:
                entry.state = state
                self._changed(entry)
            elif entry.state.epoch == NO_EPOCH:
                del self.entries[state.transactional_id]  # it has no record in the log
            if not outcome.done():
                outcome.set_result(error)
            if not entry.is_busy:
                entry.wake()

        self.writer.write([transaction_record(state.transactional_id, state)], done, refusable=refusable)
        return outcome

    def forget(self, transactional_id: str) -> None:
        """Delete an expired id."""
        entry = self.entries[transactional_id]
        entry.pending = replace(entry.state, status=TransactionStatus.DEAD)

        def done(error: ErrorCode) -> None:
            entry.pending = None
            if not error and self.entries.get(transactional_id) is entry:
                del self.entries[transactional_id]
            entry.wake()

        self.writer.write([transaction_record(transactional_id, None)], done)

    def take_unfinished(self) -> list[TransactionalIdEntry]:
        """Return the ids whose decision has to be carried out, and forget that."""
        unfinished, self.unfinished = self.unfinished, set()
        return [entry for name in unfinished if (entry := self.entries.get(name)) is not None]

    def find(self, transactional_id: str) -> TransactionalIdEntry:
        """Return the entry of an id. Raises INVALID_PRODUCER_ID_MAPPING."""
        entry = self.entries.get(transactional_id)
        if entry is None:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        return entry

    def _changed(self, entry: TransactionalIdEntry) -> None:
        state = entry.state
        if state.status is TransactionStatus.ONGOING:
            self.ongoing.add(state.transactional_id)
        else:
            self.ongoing.discard(state.transactional_id)
        if state.status in PREPARED:
            entry.unmarked = set(state.partitions)
            entry.writing = set()
            self._prepared(self, entry)
