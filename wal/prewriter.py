"""Writing of zeros ahead of the records of a new file, in the background, so that a new log is usable at once.

The space of a new file is reserved, but was never written. A record there would cost an update of the file system's
metadata, and a power cut before that update is durable would take the record with it. So the space is written first.

Invariants:

- Zeros go only to positions that the file system reported as never written after the log was recovered, at or past
  `limit_offset`. Blocks end at or before `limit_offset`. So zeros never overwrite a record.
- `limit_offset` moves when the zeros before it are durable, their metadata included, and never backwards.
- One write is at the device at a time. With strict fencing the next one follows when both copies of the header, read
  after it, still name this node.
"""

from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import structlog

from anabranch.wal.block import aligned_buffer
from anabranch.wal.budget import Budget, io_count
from anabranch.wal.format import PAGE_BYTES, RING_POSITION, Header, page_up
from anabranch.wal.interface import Durable, WalError, WalFailed
from anabranch.wal.owner import confirm_owner
from anabranch.wal.requests import Device, IoKind, IoRequest
from anabranch.wal.settings import WalSettings

_LOG = structlog.get_logger(__name__)
_REST: Final = 4
"""Pause after a write, as a multiple of its duration, or of the budget time that it used if that is longer. Zeros get
about a fifth of the disk's time, records the rest."""
NO_LIMIT: Final = 1 << 63
"""Value of `limit_offset` when nothing is left to write: more than any offset."""


def unwritten_offsets(header: Header, unwritten: Sequence[tuple[int, int]], next_offset: int) -> list[tuple[int, int]]:
    """Return where the log will first write positions that were never written, as offsets in order. Pure.

    `unwritten` holds ranges of positions, start and end. A page that is only partly inside a range is left out.
    """
    turn = header.position_of(next_offset)
    ranges = []
    for start, end in unwritten:
        start, end = max(page_up(start), RING_POSITION), min(end - end % PAGE_BYTES, header.capacity_bytes)
        # Positions before that of the next write come a lap later.
        for begin, stop in ((start, min(end, turn)), (max(start, turn), end)):
            if begin < stop:
                offset = next_offset + (begin - turn) % header.ring_bytes
                ranges.append((offset, offset + stop - begin))
    return sorted(ranges)


class Prewriter:
    """Writes the unwritten ranges of one log, in the order in which the log will reach them. Idle until `start`."""

    def __init__(
        self,
        device: Device,
        settings: WalSettings,
        budget: Budget,
        end_offset: Callable[[], int],
        failed: Callable[[WalError], None],
    ) -> None:
        self.limit_offset = NO_LIMIT
        """Offset that no block may end past: the first one that was never written."""
        self.unwritten_bytes = 0
        """Bytes left to write."""
        self._device: Final = device
        self._chunk_bytes: Final = settings.prewrite_bytes
        self._ahead_bytes: Final = settings.prewrite_ahead_bytes
        self._timeout_s: Final = settings.write_timeout_ms / 1000
        self._budget: Final = budget
        self._end_offset: Final = end_offset
        """Returns the end of the newest block: what lies before it belongs to records."""
        self._failed: Final = failed
        self._header: Header
        self._strict = False
        self._loop: AbstractEventLoop
        self._ranges: deque[tuple[int, int]] = deque()
        self._zeros = memoryview(b"")
        self._needed_offset = 0
        """Offset up to which an append waits for zeros."""
        self._progress: Durable | None = None
        """Completion of the write at the device, or of the next one during a pause. None while idle."""
        self._at_device = False
        self._error: WalError | None = None
        """Reason for which nothing more is written."""
        self._pause_timer: TimerHandle | None = None
        self._timeout_timer: TimerHandle | None = None
        self._began_s = self._chunk_began_s = 0.0

    async def start(
        self, header: Header, unwritten: Sequence[tuple[int, int]], next_offset: int, *, in_full: bool
    ) -> None:
        """Begin; return when enough is written ahead of `next_offset`, and continue in the background.

        Return when all is written if `in_full` is set: with strict fencing no zeros may be under way beside records,
        because they could reach the file after another host has claimed the log. Raises WalFailed.
        """
        self._ranges.extend(unwritten_offsets(header, unwritten, next_offset))
        if not self._ranges:
            return
        self._header = header
        self._strict = in_full
        self._loop = get_running_loop()
        self._began_s = self._loop.time()
        self._zeros = aligned_buffer(self._chunk_bytes)
        self.unwritten_bytes = all_bytes = sum(end - start for start, end in self._ranges)
        self.limit_offset = self._ranges[0][0]
        opens_at = NO_LIMIT if in_full else next_offset + self._ahead_bytes
        while self.limit_offset < opens_at:
            await self.write_to(opens_at)
        if self.unwritten_bytes:
            _LOG.info(
                "the rest of the log file is written in the background",
                device=self._device.name,
                written_bytes=all_bytes - self.unwritten_bytes,
                unwritten_bytes=self.unwritten_bytes,
            )

    def write_to(self, offset: int) -> Durable:
        """Write without pauses until `limit_offset` passes `offset`; return the completion of the next step.

        The caller is one that `limit_offset` keeps waiting. The completion fails when the log fails or is closed.
        """
        if self._error is not None:
            refused = Durable()
            refused.complete(self._error)
            return refused
        self._needed_offset = max(self._needed_offset, offset)
        if not self._at_device:
            self._continue()
        assert self._progress is not None, "a write was begun or is due"
        return self._progress

    async def stop(self) -> None:
        """Stop writing; return when no request is at the device. The next start continues."""
        self._error = self._error or WalFailed(f"{self._device.name}: closed")
        if self._at_device and self._progress is not None:
            with suppress(WalError):
                await self._progress
        self.fail(self._error)

    def fail(self, error: WalError) -> None:
        """Write nothing more; whoever waits fails with `error`."""
        self._error = self._error or error
        self._cancel_timers()
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.complete(error)

    def _cancel_timers(self) -> None:
        for timer in (self._pause_timer, self._timeout_timer):
            if timer is not None:
                timer.cancel()
        self._pause_timer = self._timeout_timer = None

    def _continue(self, took_s: float = 0.0) -> None:
        """Write the next chunk, now or after a pause that leaves the disk to records. The last one took `took_s`."""
        self._cancel_timers()
        if self._error is not None:
            return
        if self._progress is None:
            self._progress = Durable()
        ahead_offset = max(self._end_offset() + self._ahead_bytes, self._needed_offset)
        pause_s = took_s * _REST if self.limit_offset >= ahead_offset else 0.0
        if not self._budget.unlimited:
            pause_s = max(pause_s, self._budget.wait_s(self._loop.time()))
        if pause_s > 0:
            self._pause_timer = self._loop.call_later(pause_s, self._write)
        else:
            self._write()

    def _write(self) -> None:
        self._pause_timer = None
        start, end = self._ranges[0]
        end = min(end, start + self._chunk_bytes)
        assert self._end_offset() <= start == self.limit_offset, (
            f"zeros for {start}, records up to {self._end_offset()}"
        )
        segments = [(position, self._zeros[:length]) for position, length in self._header.segments(start, end - start)]
        self._at_device = True
        self._chunk_began_s = self._loop.time()
        self._timeout_timer = self._loop.call_later(self._timeout_s, self._overdue)
        self._budget.take(end - start, io_count(end - start))
        self._device.submit(IoRequest(IoKind.WRITE, segments, partial(self._written, end), check_header=self._strict))

    def _written(self, end: int, request: IoRequest) -> None:
        """Continue once this node is known to have owned the log after the write."""
        if request.error is not None:
            self._fail(f"write of zeros at position {request.segments[0][0]} failed: {request.error}")
        elif request.header is None:
            self._flush(end, None)
        else:
            confirm_owner(self._device, request.header, self._header, partial(self._flush, end))

    def _flush(self, end: int, error: WalError | None) -> None:
        """Flush the file's metadata, which a durable write need not include."""
        if error is not None:
            self._failed(error)
        elif self._progress is not None:
            self._device.submit(IoRequest(IoKind.FLUSH, (), partial(self._flushed, end)))

    def _flushed(self, end: int, request: IoRequest) -> None:
        """Allow records up to `end`."""
        self._at_device = False
        if request.error is not None:
            self._fail(f"flush of zeros up to offset {end} failed: {request.error}")
        progress, self._progress = self._progress, None
        if progress is None:
            return  # the log has failed in the meantime
        start, range_end = self._ranges.popleft()
        if end < range_end:
            self._ranges.appendleft((end, range_end))
        self.unwritten_bytes -= end - start
        self.limit_offset = self._ranges[0][0] if self._ranges else NO_LIMIT
        if self._ranges:
            # Under a budget a write may be quick and still use up the time of many records.
            cost_s = self._budget.cost_s(end - start, io_count(end - start))
            self._continue(max(self._loop.time() - self._chunk_began_s, cost_s))
        else:
            self._finish()
        progress.complete()

    def _finish(self) -> None:
        self._cancel_timers()
        self._zeros = memoryview(b"")
        seconds = round(self._loop.time() - self._began_s, 3)
        _LOG.info("the log file is written in full", device=self._device.name, seconds=seconds)

    def _overdue(self, *, again: bool = False) -> None:
        """Fail the log if a write is still overdue a little later.

        A process that was stopped runs its due timers before it processes the completions that arrived meanwhile.
        """
        if not again:
            self._timeout_timer = self._loop.call_later(self._timeout_s / 4, partial(self._overdue, again=True))
        else:
            self._fail(f"write of zeros at offset {self.limit_offset} took longer than {self._timeout_s * 1000:.0f} ms")

    def _fail(self, reason: str) -> None:
        self._failed(WalFailed(f"{self._device.name}: {reason}"))
