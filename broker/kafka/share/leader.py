"""A share partition that this node leads: its state machine with durable writes, timers and waiting requests.

Changes of one turn of the event loop are written together, and while a write is in progress further ones gather for
the next. Requests wait here for records, first come, first served: whenever something was released, completed or
appended, those at the front look again, as long as there is something for them.

Dead letters are written one batch after the other, from the first that is due, and their records archived then.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple, Protocol

import structlog

from anabranch.broker.kafka.configs.group import EARLIEST, LATEST, GroupConfigs
from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.broker.kafka.share.dead_letters.batches import split_letters
from anabranch.broker.kafka.share.dead_letters.writer import DeadLetterWriter
from anabranch.broker.kafka.share.interface import (
    UNINITIALIZED_START_OFFSET,
    DeliveryState,
    ShareKey,
    SharePersister,
    StateBatch,
)
from anabranch.broker.kafka.share.partition.in_flight import Change
from anabranch.broker.kafka.share.partition.machine import (
    NEVER_MS,
    Acknowledgement,
    Acquired,
    DeadLetter,
    OffsetCount,
    OffsetRange,
    ShareLimits,
    SharePartition,
)
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageError

_log = structlog.get_logger("share")
Done = Callable[[KafkaError | None], None]
"""Called when a change is durable, or with the error that prevented it."""
_COORDINATOR: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
_FENCED: Final = frozenset({ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH})
_ENDING: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""Errors after which a share partition must be loaded again."""


class ShareFigures(NamedTuple):
    """Numbers of records of a share partition."""

    start_offset: int
    in_flight: int
    """Offsets from the start offset on that were delivered."""
    acquired: int
    archiving: int
    """Records that wait for their dead letters."""
    lag: int
    """Offsets up to the end whose delivery is not complete."""
    deliveries: int
    """Deliveries since it was loaded."""


class Waiter(Protocol):
    """A request that waits for records."""

    def look_again(self) -> None:
        """Acquire records if there are some now."""
        ...


class ShareLeader:
    """One share partition on this node, from its load until it is closed."""

    def __init__(
        self,
        key: ShareKey,
        partition: Partition,
        persister: SharePersister,
        configs: GroupConfigs,
        dead_letters: DeadLetterWriter,
        *,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        is_wanted: Callable[[], bool],
        on_end: Callable[["ShareLeader"], None],
    ) -> None:
        """`is_wanted` returns whether members of the group have sessions here.

        `on_end` is called when the share partition has to be loaded again: it failed, was fenced, or is not wanted.
        """
        self.key = key
        self.partition = partition
        self.error: KafkaError | None = None
        """Reason why it serves no requests any more."""
        self.is_being_read = False
        """True while a request loads records that are not in memory: others wait for them."""
        self._persister = persister
        self._configs = configs
        self._dead_letters = dead_letters
        self._now_ms = now_ms
        self._steady_ms = steady_ms
        self._spawn = spawn
        self._is_wanted = is_wanted
        self._on_end = on_end
        self._machine: SharePartition | None = None
        self._state_epoch = 0
        self._leader_epoch = partition.leader_epoch
        self._changes: list[tuple[Change, Done | None]] = []
        self._writing = False
        self._letters: Sequence[DeadLetter] = ()
        """Dead letters to be written, by ascending offset."""
        self._sending = False
        """True while a task writes dead letters."""
        self._waiters: dict[Waiter, None] = {}
        self._wake: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = NEVER_MS
        spawn(self._load())

    # loading

    @property
    def is_loaded(self) -> bool:
        """True once its state is known."""
        return self._machine is not None

    @property
    def machine(self) -> SharePartition:
        """The state, once it is loaded, with the group's present limits."""
        machine = self._machine
        assert machine is not None, "it is loaded first"
        machine.limits = self.limits()
        return machine

    def limits(self) -> ShareLimits:
        """Return the present limits of the group."""
        group_id, configs = self.key.group_id, self._configs
        return ShareLimits(
            configs.share_partition_max_record_locks(group_id),
            configs.share_delivery_count_limit(group_id),
            configs.share_record_lock_duration_ms(group_id),
            self._dead_letters.is_on(group_id),
            configs.share_renew_acknowledge_enable(group_id),
        )

    async def _load(self) -> None:
        try:
            state = await self._persister.read(self.key, self._leader_epoch)
            start_offset = state.start_offset
            if start_offset == UNINITIALIZED_START_OFFSET:
                start_offset = await self._first_offset()
        except KafkaError as error:
            self.fail(_as_answer(error))
        except StorageError as error:
            self.partition.note_read(error)
            self.fail(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)))
        else:
            if self.error is None:
                self._state_epoch = state.state_epoch
                self._machine = SharePartition(start_offset, state.batches, self.limits())
                self.changed()
                self._send_dead_letters()

    async def _first_offset(self) -> int:
        """Return where a group begins that has never read the partition. Raises StorageError."""
        reset = self._configs.share_auto_offset_reset(self.key.group_id)
        partition = self.partition
        if reset.place == EARLIEST:
            return partition.log_start_offset
        if reset.place != LATEST:
            found = await partition.offset_for_time(self._now_ms() - reset.before_ms)
            if found is not None:
                return found[0]
        return partition.high_watermark

    def figures(self) -> ShareFigures | None:
        """Return its figures; None before it is loaded."""
        machine = self._machine
        if machine is None:
            return None
        incomplete = self.partition.high_watermark - machine.start_offset - machine.delivery_complete_count
        return ShareFigures(
            machine.start_offset,
            machine.in_flight,
            machine.count(DeliveryState.ACQUIRED),
            machine.count(DeliveryState.ARCHIVING),
            max(0, incomplete),
            machine.deliveries,
        )

    # requests

    @property
    def reads_committed(self) -> bool:
        """True if the group gets no records of open or aborted transactions."""
        return self._configs.share_reads_committed(self.key.group_id)

    @property
    def end_offset(self) -> int:
        """End of the records that the group may read."""
        if self.reads_committed:
            return self.partition.last_stable_offset
        return self.partition.high_watermark

    def fetch_offset(self) -> int | None:
        """Return the offset to read from; None if no records may be acquired now."""
        if self._machine is None or self.is_being_read or self.error is not None:
            return None
        machine = self._follow_log_start()
        return machine.next_fetch_offset() if machine.can_acquire() else None

    def _follow_log_start(self) -> SharePartition:
        """Forget the records that were deleted, and return the state."""
        machine = self.machine
        if machine.next_fetch_offset() < self.partition.log_start_offset:
            machine.move_log_start(self.partition.log_start_offset)
        return machine

    def reach(self, records_max: int) -> OffsetCount:
        """Return how many offsets may be acquired now, and where they end, as `SharePartition.reach` does."""
        return self.machine.reach(records_max)

    def has_records(self) -> bool:
        """Return whether a request may find records now."""
        offset = self.fetch_offset()
        return offset is not None and offset < self.end_offset

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[OffsetRange],
        *,
        fetch_offset: int,
        records_max: int,
        batch_records: int,
        is_limit_strict: bool,
        aborted: Sequence[OffsetRange],
    ) -> list[Acquired]:
        """Acquire records as `SharePartition.acquire` does, except those that were deleted since they were read.

        The partition no longer knows whether their transactions were aborted.
        """
        if self.error is not None:
            return []
        acquired = self._follow_log_start().acquire(
            member_id,
            fetched,
            fetch_offset=fetch_offset,
            records_max=records_max,
            batch_records=batch_records,
            is_limit_strict=is_limit_strict,
            now_ms=self._steady_ms(),
            aborted=aborted,
        )
        self._set_timer()
        return acquired

    def acknowledge(self, member_id: str, acknowledgements: Sequence[Acknowledgement], done: Done) -> None:
        """Acknowledge records; `done` is called now or later."""
        if self.error is not None or self._machine is None:
            done(self.error or KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        try:
            change = self.machine.acknowledge(member_id, acknowledgements, self._steady_ms())
        except KafkaError as error:
            self.changed()
            done(error)
            return
        self._set_timer()
        if change.batches:
            self._submit(change, done)
        else:
            done(None)

    def release(self, member_id: str, done: Done) -> None:
        """Release what a member has acquired: its session has ended. `done` is called now or later."""
        change = self.machine.release(member_id) if self._machine is not None and self.error is None else None
        if change is not None and change.batches:
            self._submit(change, done)
        else:
            done(self.error)

    # writing

    def _submit(self, change: Change, done: Done | None) -> None:
        if not change.batches:
            return
        self._changes.append((change, done))
        if not self._writing:
            self._writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        """Write the changes until there are no more."""
        changes: list[tuple[Change, Done | None]] = []
        error: KafkaError | None = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # if the task is cancelled
        try:
            while self._changes:
                changes, self._changes = self._changes, []
                error = await self._persist([batch for change, _ in changes for batch in change.batches])
                self._complete(changes, error)
                changes = []
        finally:
            self._writing = False
            if changes:
                self._complete(changes, error)
            self.close_unless_wanted()

    async def _persist(self, batches: Sequence[StateBatch]) -> KafkaError | None:
        machine = self.machine
        if self.error is not None:
            return self.error
        try:
            await self._persister.write(
                self.key,
                state_epoch=self._state_epoch,
                leader_epoch=self._leader_epoch,
                start_offset=machine.start_offset,
                delivery_complete_count=machine.delivery_complete_count,
                batches=batches,
            )
        except KafkaError as error:
            return _as_answer(error)
        return None

    def _complete(self, changes: Sequence[tuple[Change, Done | None]], error: KafkaError | None) -> None:
        machine = self.machine
        for change, _ in changes:
            machine.complete(change, durable=error is None)
        if error is not None and error.code in _ENDING:
            self.fail(error)
        self._set_timer()
        self.changed()
        self._send_dead_letters()
        for _, done in changes:
            if done is not None:
                done(error)

    # dead letters

    def _send_dead_letters(self) -> None:
        """Write the dead letters that are due now."""
        if self.error is not None:
            return
        letters = self.machine.take_dead_letters()
        if letters:
            self._letters = sorted([*self._letters, *letters])
            if not self._sending:
                self._sending = True
                self._spawn(self._send())

    async def _send(self) -> None:
        """Write dead letters until there are no more."""
        try:
            while self._letters and self.error is None:
                letters, self._letters = self._letters, ()
                size = await self._dead_letters.write(
                    self.key.group_id, self.partition, letters, lambda: self.error is not None
                )
                ended, rest = split_letters(letters, size)
                self._letters = sorted([*rest, *self._letters])
                for letter in ended:
                    self._submit(self.machine.archive_dead(letter.first_offset, letter.last_offset), None)
        finally:
            self._sending = False
            self.close_unless_wanted()

    # time

    def _set_timer(self) -> None:
        deadline_ms = self.machine.next_deadline_ms
        if deadline_ms >= self._timer_ms or self.error is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = deadline_ms
        delay_s = max(deadline_ms - self._steady_ms(), 0) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_ms = None, NEVER_MS
        self._submit(self.machine.expire(self._steady_ms()), None)
        self._set_timer()
        self.changed()

    # waiting requests

    @property
    def waiting(self) -> int:
        """Number of requests that wait for records."""
        return len(self._waiters)

    def wait(self, waiter: Waiter) -> None:
        """Let a request look again when there may be records for it, until `leave`."""
        if not self._waiters:
            self.partition.add_listener(self._partition_changed)
        self._waiters[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Let a request wait no longer."""
        if self._waiters.pop(waiter, waiter) is None and not self._waiters:
            self.partition.remove_listener(self._partition_changed)

    def _partition_changed(self, _: Partition) -> None:
        self.changed()

    def changed(self) -> None:
        """Let waiting requests look again, after this turn of the loop."""
        if self._waiters and self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        self._wake = None
        for waiter in list(self._waiters):
            if self.error is None and not self.has_records():
                break
            if waiter in self._waiters:
                waiter.look_again()

    # the end

    def close_unless_wanted(self) -> None:
        """Forget the share partition if nobody in the group has a session here, and nothing is being written."""
        if not self._writing and not self._sending and not self._is_wanted():
            self.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "no member of the group has a session here"))

    def fail(self, error: KafkaError) -> None:
        """Serve no more requests, and acknowledge nothing more."""
        if self.error is not None:
            return
        if error.code not in _COORDINATOR:
            _log.info(
                "share partition closed",
                group=self.key.group_id,
                partition=str(self.partition),
                reason=error.message or error.code.name,
            )
        self.error = error
        if self._timer is not None:
            self._timer.cancel()
        self.changed()
        self._on_end(self)


def _as_answer(error: KafkaError) -> KafkaError:
    """Return the error of the coordinator as members get it, as in Apache Kafka."""
    if error.code in _COORDINATOR:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    if error.code in _FENCED:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, error.message)
    if error.code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
        return error
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, error.message)
