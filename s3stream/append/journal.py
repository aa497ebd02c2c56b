"""The write side that all streams of an engine share: the WAL, the log cache, and who is confirmed when.

This is the hot path of every append, so it is plain attributes and one callback per WAL block: streams that appended to
a block are noted in `pending`, and when the block is durable their confirmed offsets advance, before any callback of an
owner runs, because this callback was registered first.
"""

from asyncio import get_running_loop
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from s3stream.append.log_cache import LogCache, Run
from s3stream.errors import AppendTooLarge, StorageError, StorageFull, StorageStopped
from wal.interface import Durable, OverCapacity, QueueFull, WalError, WriteAheadLog

if TYPE_CHECKING:
    from s3stream.append.stream import Stream


class Journal:
    """Appends of all streams, in one order."""

    def __init__(
        self,
        wal: WriteAheadLog,
        cache: LogCache,
        *,
        threshold_bytes: int,
        current_bytes_max: int,
        pressure_bytes: int,
        age_s: float,
        on_due: Callable[[], None],
        on_failure: Callable[[WalError], None],
        on_taken_up: Callable[[int], None],
        on_room: Callable[[], None],
    ) -> None:
        """`on_due` is called when the current block should be sealed: by size, age, or WAL pressure.

        `on_room` is called when the WAL's device, having been behind, has written something out.
        """
        self.wal = wal
        self.cache = cache
        self.error: StorageStopped | None = None
        """Why appends are refused."""
        self.threshold_bytes = threshold_bytes
        self.current_bytes_max = current_bytes_max
        """Appends are refused above this: clients should have been slowed down long before."""
        self.durable: Durable | None = None
        """Completion of the WAL block that the last append went into."""
        self.pending: dict[Stream, int] = {}
        """Streams with appends in that block, and the end of the last one."""
        self.on_taken_up = on_taken_up
        self.full = False
        """The WAL has refused an append for want of room, and nothing was written out or uploaded since."""
        self._on_room = on_room
        self._pressure_bytes = pressure_bytes
        self._age_s = age_s
        self._on_due = on_due
        self._on_failure = on_failure

    @property
    def appends_wait(self) -> bool:
        """Whether the WAL is at work on an append."""
        return self.durable is not None and not self.durable.done

    def start_run(self, stream_id: int, start_offset: int) -> Run:
        """The stream's run in the current block; the first one of a block starts the clock of its age."""
        block = self.cache.current
        if block.age_timer is None:
            loop = get_running_loop()
            block.began_s = loop.time()
            block.age_timer = loop.call_later(self._age_s, self.request_seal)
        return self.cache.start_run(stream_id, start_offset)

    def request_seal(self) -> None:
        """Have the current block sealed soon; never inside the call: owners may be half-way through an append."""
        block = self.cache.current
        if not block.due and block.runs:
            block.due = True
            self._on_due()

    def note(self, stream: "Stream", end_offset: int, durable: Durable) -> None:
        """Remember to confirm `stream` up to `end_offset` when a WAL block seen for the first time is durable."""
        if durable.done:
            if durable.error is None:
                stream.confirmed_offset = end_offset
            return
        self.durable = durable
        self.pending = pending = {stream: end_offset}
        durable.add_done_callback(partial(self._completed, pending))

    def refuse(self, error: OverCapacity) -> StorageError:
        """What an append raises that the WAL has no room for: StorageFull if waiting may help."""
        if self.wal.used_bytes == 0:
            return AppendTooLarge(f"no append of this size will ever fit: {error}")
        self.full = True
        if isinstance(error, QueueFull):
            error.durable.add_done_callback(lambda _: self._on_room())
        else:
            self.request_seal()
        return StorageFull(f"WAL: {error}")

    def fail(self, error: WalError) -> None:
        """The WAL refused an append for good."""
        self._on_failure(error)

    def _completed(self, pending: "dict[Stream, int]", error: WalError | None) -> None:
        if error is not None:
            self._on_failure(error)
            return
        for stream, end_offset in pending.items():
            stream.confirmed_offset = end_offset
        if self.wal.used_bytes > self._pressure_bytes:
            self.request_seal()
