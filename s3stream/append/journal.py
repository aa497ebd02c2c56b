"""The write side that all streams of an engine share: the WAL, the log cache, and the confirmation of durable appends.

This is the hot path of every append, so it uses plain attributes and one callback per WAL block. `pending` has
the streams that appended to the block. When the block is durable, their confirmed offsets advance. That happens before
any callback of an owner runs, because the journal's callback was registered first.
"""

from asyncio import get_running_loop
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog

from anabranch.s3stream.append.admission import Admission, AdmissionState
from anabranch.s3stream.append.log_cache import EVICT_BATCHES_MAX, LogCache, UploadRun
from anabranch.s3stream.append.log_watch import LogWatch
from anabranch.s3stream.append.sealer import Sealer
from anabranch.s3stream.errors import AppendTooLarge, StorageError, StorageFull, StorageStopped
from anabranch.wal.interface import AppendedRecord, Buffer, Durable, OverCapacity, QueueFull, WalError, WriteAheadLog

log = structlog.get_logger(__name__)


class Confirmable(Protocol):
    """A stream whose appends the journal confirms."""

    confirmed_offset: int


class Journal:
    """Appends of all streams, in one order."""

    def __init__(
        self,
        wal: WriteAheadLog,
        cache: LogCache,
        admission: Admission,
        sealer: Sealer,
        watch: LogWatch,
        *,
        threshold_bytes: int,
        current_bytes_max: int,
        pressure_bytes: int,
        age_s: float,
    ) -> None:
        """Request a seal when the current block has `threshold_bytes`, is `age_s` old, or the WAL has `pressure_bytes`.

        The last, or that the WAL is long, only while no block is being uploaded.
        Above `current_bytes_max` in the current block appends raise StorageFull: clients must be slowed down before.
        """
        self.wal = wal
        self.cache = cache
        self.admission = admission
        self.sealer = sealer
        self.watch = watch
        self.threshold_bytes = threshold_bytes
        self.current_bytes_max = current_bytes_max
        self.durable: Durable | None = None
        """Completion of the WAL block that the last append went into."""
        self.pending: dict[Confirmable, int] = {}
        """Streams with appends in that block, and the end of the last one."""
        self._pressure_bytes = pressure_bytes
        self.age_s = age_s

    @property
    def is_writing(self) -> bool:
        """True while the WAL is at work on an append."""
        return self.durable is not None and not self.durable.done

    def start_run(self, stream_id: int, start_offset: int) -> UploadRun:
        """Return the stream's run in the current block; the first run of a block starts the clock of its age."""
        block = self.cache.current
        if not block.runs or block.age_timer is None:  # a timer may have run out while its runs were removed
            self.start_age()
        return self.cache.start_run(stream_id, start_offset)

    def start_age(self) -> None:
        """Start the clock of the current block's age."""
        self.sealer.stop_timer()
        loop, block = get_running_loop(), self.cache.current
        block.began_s = loop.time()
        block.age_timer = loop.call_later(self.age_s, self.sealer.request)

    def note(self, stream: Confirmable, end_offset: int, durable: Durable) -> None:
        """Remember to confirm `stream` up to `end_offset` when a WAL block seen for the first time is durable."""
        if durable.done:
            if durable.error is None:
                stream.confirmed_offset = end_offset
            return
        self._begin_block(durable, {stream: end_offset})

    def append_unconfirmed(self, parts: Sequence[Buffer]) -> AppendedRecord:
        """Append a record that confirms nothing of a stream: a RESET, or records that are void as yet. Raises WalError.

        A log that does not acknowledge it has stalled like any other.
        """
        appended = self.wal.append(parts)
        if appended.durable is not self.durable and not appended.durable.done:
            self._begin_block(appended.durable, {})
        return appended

    def _begin_block(self, durable: Durable, pending: dict[Confirmable, int]) -> None:
        self.durable, self.pending = durable, pending
        self.watch.appended()
        durable.add_done_callback(partial(self._completed, pending))

    async def wait_writable(self) -> None:
        """Return when clients may send more appends. Raises StorageStopped or LogStalled when appends are refused."""
        admission = self.admission
        while not admission.is_writable:
            if admission.is_stalled:
                raise admission.stalled()
            if admission.state is AdmissionState.OPEN:
                self.sealer.request()
            await admission.wait_change()

    def no_room(self, error: OverCapacity) -> StorageError:
        """Return the error of an append that the WAL has no room for: StorageFull if waiting may help."""
        if isinstance(error, QueueFull):
            self.admission.wal_full(needs_upload=False)
            error.durable.add_done_callback(lambda _: self.admission.made_room())
        elif self.wal.used_bytes == 0:
            return AppendTooLarge(f"no append of this size will ever fit: {error}")
        else:
            self.admission.wal_full()
            self.sealer.request()
        return StorageFull(f"WAL: {error}")

    def wal_failed(self, error: WalError) -> None:
        """Stop because the WAL has failed permanently."""
        self.stop(StorageStopped(f"the WAL failed: {error}"))

    def stop(self, error: StorageStopped) -> None:
        """Refuse all appends and seal no more blocks; only the first failure counts.

        What is sealed and durable is still uploaded, if it can be. Reads continue.
        """
        if self.admission.fail(error):
            log.error("storage stopped", reason=str(error))
            self.sealer.abandon_current(error)

    def _completed(self, pending: dict[Confirmable, int], error: WalError | None) -> None:
        self.watch.completed()
        if error is not None:
            self.wal_failed(error)
            return
        for stream, end_offset in pending.items():
            stream.confirmed_offset = end_offset
        self.cache.evict(EVICT_BATCHES_MAX + 2 * len(pending))  # more than came, or the cache would grow
        # An upload under way relieves the pressure. A second one, of what came since, would make both hurry.
        wal = self.wal
        if (wal.used_bytes > self._pressure_bytes or wal.is_long) and not self.cache.sealed_bytes:
            self.sealer.request()
