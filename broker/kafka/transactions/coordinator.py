"""The transaction coordinator: handles requests, writes markers, aborts timed-out transactions and expires ids.

A transactional id belongs to the partition of `__transaction_state` that it hashes to, and to the node that leads it.
Until the partition is replayed, requests get COORDINATOR_LOAD_IN_PROGRESS.

Decisions are executed by callbacks, not in an asyncio task: the log's callback for Prepare appends the markers, and the
callback of the last marker appends Complete. `run` repeats what fails (the storage is full, a group's log is still
being loaded, another node leads the partition).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import structlog

from anabranch.broker.kafka.coordination.log import InternalTopic, LogWriter
from anabranch.broker.kafka.coordination.shards import Shards, check_loaded
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.topics.parking import Parking
from anabranch.broker.kafka.transactions import state_machine
from anabranch.broker.kafka.transactions.markers import Marker, MarkerDone
from anabranch.broker.kafka.transactions.shard import PREPARED, TransactionalIdEntry, TransactionShard
from anabranch.broker.kafka.transactions.state_machine import VERSION_2, ProducerIdNeeded, Transaction
from anabranch.broker.node.settings.client_areas import TransactionSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError
from anabranch.wal.interface import WalError

RETRY_S = 0.1
"""Interval at which markers that could not be written are tried again."""
CONCURRENT_WAIT_S = 0.5
"""Longest wait of a request for the end of a transaction, before it gets CONCURRENT_TRANSACTIONS."""
EXPIRE_IDS_PER_TURN = 1000
GIVEN_UP = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
"""Errors of a marker that no retry changes: the topic was deleted, or a newer coordinator has written a marker."""

_log = structlog.get_logger(__name__)


class MarkerAppender(Protocol):
    """Appends markers: to the partitions of all nodes, or to the logs of a test."""

    def write(self, where: TopicPartition, marker: Marker, done: MarkerDone) -> None:
        """Append a marker. Raises KafkaError or StorageError, and then does not call `done`."""
        ...


class TransactionCoordinator:
    """The transactional ids of this node. Call `start`, keep `run` running, and call `close` at the end."""

    def __init__(
        self,
        topic: InternalTopic,
        markers: MarkerAppender,
        settings: TransactionSettings,
        *,
        now_ms: Callable[[], int],
        next_producer_id: Callable[[], Awaitable[int]],
        parking: Parking | None = None,
    ) -> None:
        """`parking` is notified of shards that are being loaded."""
        self.settings = settings
        self._markers = markers
        self._now_ms = now_ms
        self._next_producer_id = next_producer_id
        self._shards = Shards(topic, "transactions", self._new_shard, parking)

    # -- Life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Coordinate the ids of those partitions of `__transaction_state` that this node leads. `run` loads them."""
        self._shards.start()

    def _new_shard(self, writer: LogWriter) -> TransactionShard:
        return TransactionShard(writer, self._advance)

    async def run(self) -> None:
        """Load shards, retry markers, abort timed-out transactions and expire ids, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._shards.run())
            group.create_task(self._every(lambda: RETRY_S, self.retry))
            group.create_task(self._every(lambda: self.settings.abort_interval_ms / 1000, self.abort_timed_out))
            group.create_task(self._every(lambda: self.settings.expire_interval_ms / 1000, self.expire))

    async def _every(self, interval_s: Callable[[], float], work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_s())
            await work()

    async def compact(self) -> None:
        """Rewrite logs that have grown well beyond their live records."""
        await self._shards.compact()

    def close(self) -> None:
        """Stop coordinating. Requests that wait get NOT_COORDINATOR."""
        self._shards.close()

    # -- Finding -----------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """True if `__transaction_state` is known. Transactions of this node may not be loaded yet."""
        return self._shards.is_open

    def is_coordinator_of(self, transactional_id: str) -> bool:
        """Return whether this node coordinates the id."""
        return self._shards.leads_shard_of(transactional_id)

    def is_loading(self, transactional_id: str) -> bool:
        """Return whether this node coordinates the id as soon as its shard is loaded."""
        return self._shards.is_loading(transactional_id)

    def shard(self, transactional_id: str) -> TransactionShard:
        """Return the loaded shard of an id.

        Raises KafkaError: COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS.
        """
        return self._shards.shard_of(transactional_id)

    def transactions(self) -> Iterator[Transaction]:
        """Yield the state of all transactional ids of this node. Raises KafkaError while some are being loaded."""
        for shard in self._shards.led_shards():
            check_loaded(shard)
            yield from (entry.state for entry in shard.entries.values())

    def describe(self, transactional_id: str) -> Transaction:
        """Return the state of a transactional id, while it ends with the partitions that have no marker yet.

        Raises KafkaError, TRANSACTIONAL_ID_NOT_FOUND among others.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        entry = self.shard(transactional_id).entries.get(transactional_id)
        if entry is None:
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        is_ending = entry.state.status in PREPARED
        return replace(entry.state, partitions=frozenset(entry.unmarked)) if is_ending else entry.state

    # -- Requests ----------------------------------------------------------------------------------------------------

    async def init(self, transactional_id: str, timeout_ms: int, expected: Producer | None) -> Producer:
        """Handle InitProducerId: return a new producer epoch, which is durable. Raises KafkaError or StorageError.

        An open transaction is aborted first. Raises CONCURRENT_TRANSACTIONS if that takes too long.
        """
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.settings.timeout_max_ms:
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        new_id: int | None = None
        while True:
            shard = self.shard(transactional_id)
            entry = shard.entries.get(transactional_id)
            if entry is None:
                if new_id is None:
                    new_id = await self._next_producer_id()
                    continue
                self._check_room()
                state = state_machine.begin(transactional_id, new_id, timeout_ms, self._now_ms())
                entry = shard.entries[transactional_id] = TransactionalIdEntry(state)
            if await self._wait_idle(entry):
                continue
            try:
                state = state_machine.init(entry.state, expected, timeout_ms, self._now_ms(), new_id)
            except ProducerIdNeeded:
                new_id = await self._next_producer_id()
                continue
            await self._write(shard, entry, state)
            if state.status not in PREPARED:
                return state.producer
            new_id = None
            # The next round waits for the abort, and gives the new epoch.

    async def add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        version: int,
        *,
        waits_for_markers: bool = True,
    ) -> None:
        """Add partitions to the open transaction, durably. Begins a transaction if none is open. Raises KafkaError.

        While the previous transaction ends it waits, or raises CONCURRENT_TRANSACTIONS unless `waits_for_markers`.
        """
        added = frozenset(partitions)
        while True:
            shard = self.shard(transactional_id)
            entry = shard.find(transactional_id)
            if not waits_for_markers and (entry.is_ending or entry.state.status in PREPARED):
                raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
            if await self._wait_idle(entry):
                continue
            state = state_machine.add(entry.state, producer, added, version, self._now_ms())
            if state is not None:
                await self._write(shard, entry, state)
            return

    def verify(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
        """Raise KafkaError unless the producer may write to the partition. Valid until the caller's next await.

        Raises TRANSACTION_ABORTABLE if the partition is not in the transaction.
        """
        entry = self.shard(transactional_id).find(transactional_id)
        state_machine.check_producer(entry.state, producer)
        if entry.is_ending:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        state_machine.verify(entry.state, producer, partition)

    async def end(self, transactional_id: str, producer: Producer, *, commit: bool, version: int) -> Producer:
        """Handle EndTxn: decide, durably. Return the producer of the next transaction.

        Raises KafkaError or StorageError.
        """
        new_id: int | None = None
        while True:
            shard = self.shard(transactional_id)
            entry = shard.find(transactional_id)
            if version < VERSION_2:
                state_machine.check_producer(entry.state, producer)
            if await self._wait_idle(entry):
                continue
            now_ms = self._now_ms()
            try:
                state = state_machine.end(
                    entry.state, producer, commit=commit, version=version, now_ms=now_ms, new_producer_id=new_id
                )
            except ProducerIdNeeded:
                new_id = await self._next_producer_id()
                continue
            if state is None:
                return entry.state.producer
            await self._write(shard, entry, state)
            return state.producer

    async def _wait_idle(self, entry: TransactionalIdEntry) -> bool:
        """Wait while a change is in progress. Return False if there was none.

        Raises CONCURRENT_TRANSACTIONS if it takes too long.
        """
        if not entry.is_busy:
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry.waiters.append(waiter)
        try:
            async with asyncio.timeout(CONCURRENT_WAIT_S):
                await waiter
        except TimeoutError:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS) from None
        finally:
            with suppress(ValueError):  # the end of the change took all waiters
                entry.waiters.remove(waiter)
        return True

    def _check_room(self) -> None:
        if sum(len(shard.entries) for shard in self._shards.led_shards()) >= self.settings.ids_max:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"too many transactional ids: {self.settings.ids_max} (transaction.ids_max)"
            )

    @staticmethod
    async def _write(shard: TransactionShard, entry: TransactionalIdEntry, state: Transaction) -> None:
        error = await shard.write(entry, state, refusable=True)
        if error == ErrorCode.MESSAGE_TOO_LARGE:
            error = ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka's code for a transaction with too many partitions
        if error:
            raise KafkaError(error)

    # -- Carrying out ------------------------------------------------------------------------------------------------

    def _advance(self, shard: TransactionShard, entry: TransactionalIdEntry) -> None:
        """Append the missing markers, or Complete if all markers are durable."""
        state = entry.state
        if shard.closed or state.status not in PREPARED:
            return
        marker = Marker(
            Producer(state.producer_id, state.epoch),
            state.is_committed,
            shard.coordinator_epoch,
            bumped=state.client_version >= VERSION_2,
        )
        for where in sorted(entry.unmarked - entry.writing):
            entry.writing.add(where)
            try:
                self._markers.write(where, marker, partial(self._marked, shard, entry, state, where))
            except (KafkaError, StorageError) as error:
                self._not_marked(shard, entry, where, error)
        if entry.state is state:
            self._complete(shard, entry)

    def _not_marked(
        self, shard: TransactionShard, entry: TransactionalIdEntry, where: TopicPartition, error: Exception
    ) -> None:
        """Give up a marker that no node can write, or note that it must be tried again."""
        entry.writing.discard(where)
        transactional_id = entry.state.transactional_id
        if isinstance(error, KafkaError) and error.code in GIVEN_UP:
            log = _log.info if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else _log.error
            log("marker not written, giving up", transactional_id=transactional_id, where=where, reason=str(error))
            entry.unmarked.discard(where)
        else:
            shard.unfinished.add(transactional_id)

    def _marked(
        self,
        shard: TransactionShard,
        entry: TransactionalIdEntry,
        state: Transaction,
        where: TopicPartition,
        error: WalError | KafkaError | None,
    ) -> None:
        if isinstance(error, WalError) or entry.state is not state or shard.closed:
            return  # the node's log has failed, and recovery continues with the Prepare record; or it is another's now
        if error is None:
            entry.unmarked.discard(where)
            entry.writing.discard(where)
        else:
            self._not_marked(shard, entry, where, error)
        self._complete(shard, entry)

    def _complete(self, shard: TransactionShard, entry: TransactionalIdEntry) -> None:
        if entry.unmarked or entry.pending is not None or shard.closed:
            return
        outcome = shard.write(entry, state_machine.complete(entry.state, self._now_ms()))
        outcome.add_done_callback(lambda done: self._completed(shard, entry, done))

    def _completed(
        self, shard: TransactionShard, entry: TransactionalIdEntry, outcome: "asyncio.Future[ErrorCode]"
    ) -> None:
        if not outcome.cancelled() and outcome.result() and not shard.closed:
            shard.unfinished.add(entry.state.transactional_id)

    async def retry(self) -> None:
        """Write the markers and Complete records again that could not be written."""
        for shard in self._shards.led_shards():
            for entry in shard.take_unfinished():
                self._advance(shard, entry)

    # -- Time --------------------------------------------------------------------------------------------------------

    async def abort_timed_out(self) -> None:
        """Abort transactions that have been open longer than their timeout, with an epoch that no producer has."""
        for shard in self._shards.led_shards():
            for transactional_id in list(shard.ongoing):
                entry = shard.entries.get(transactional_id)
                if entry is not None:
                    with suppress(StorageError):  # no new producer id: the next turn tries again
                        await self._abort_if_timed_out(shard, entry)

    async def _abort_if_timed_out(self, shard: TransactionShard, entry: TransactionalIdEntry) -> None:
        """Abort a transaction that has been open for too long. Raises StorageError."""
        new_id: int | None = None
        while not shard.closed and entry.pending is None and state_machine.is_timed_out(entry.state, self._now_ms()):
            now_ms, state = self._now_ms(), entry.state
            try:
                fenced = state_machine.fence(state, now_ms, new_id)
            except ProducerIdNeeded:
                new_id = await self._next_producer_id()
                continue
            _log.info(
                "transaction timed out",
                transactional_id=state.transactional_id,
                open_ms=now_ms - state.start_ms,
                timeout_ms=state.timeout_ms,
            )
            await shard.write(entry, fenced)
            return

    async def wait_settled(self) -> None:
        """Wait for the ends of all changes in progress: transactions that are being ended, ids that are forgotten."""
        for shard in self._shards.led_shards():
            for entry in list(shard.entries.values()):
                while not shard.closed:
                    with suppress(KafkaError):  # it takes longer than a request may wait
                        await self._wait_idle(entry)
                        break

    async def expire(self) -> None:
        """Delete transactional ids that have not been used for `id_expiration_ms`."""
        expiration_ms = self.settings.id_expiration_ms
        for shard in self._shards.led_shards():
            now_ms = self._now_ms()
            for count, (transactional_id, entry) in enumerate(list(shard.entries.items())):
                there = (
                    shard.entries.get(transactional_id) is entry
                )  # the topic may have been deleted since the last turn
                if there and not entry.is_busy and state_machine.is_expired(entry.state, now_ms, expiration_ms):
                    shard.forget(transactional_id)
                if count % EXPIRE_IDS_PER_TURN == 0:
                    await asyncio.sleep(0)
