"""Blocks on their way to the device: handed over as writers, window and budget allow, and acked in order.

Writes complete in any order. The blocks of a write that completes early wait for the writes before it. The log decides
what a failure means: the writer reports it and, once stopped, hands nothing over and acks nothing.
"""

from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from collections import deque
from functools import partial
from typing import Final, Protocol

from anabranch.wal.block import WalBlock
from anabranch.wal.budget import Budget, io_count
from anabranch.wal.interface import WalError, WalFailed
from anabranch.wal.owner import HeaderWriter, confirm_owner
from anabranch.wal.requests import Device, IoKind, IoRequest
from anabranch.wal.settings import WalSettings
from anabranch.wal.stats import WalStats
from anabranch.wal.window import SlidingWindow

_BLOCKS_PER_WRITE: Final = 4
"""Blocks that wait for a writer share one system call, up to 1 MiB at the default size: a call costs as much as copying
a block, and a disk is no faster with more."""


class BlockProducer(Protocol):
    """The log that blocks come from and go back to."""

    open_block: WalBlock | None
    """Block that is not sealed yet and could be written."""

    def seal_open_block(self) -> None:
        """Seal the open block and `add` it."""
        ...

    def block_durable(self, block: WalBlock) -> None:
        """Take a block whose write and all writes before it are complete, just before it is acked."""
        ...

    def failed(self, error: WalError) -> None:
        """Stop the log and the writer: everything not acked fails with `error`."""
        ...


class BlockWriter:
    """Writes the sealed blocks of one log. `start` sets the header and the window before the first block."""

    def __init__(
        self,
        device: Device,
        settings: WalSettings,
        source: BlockProducer,
        budget: Budget,
        stats: WalStats,
        *,
        strict: bool,
    ) -> None:
        self.window = SlidingWindow(0, 0, settings.window_bytes, settings.window_bytes_max)
        self.window_bytes_wanted = settings.window_bytes
        """Window bound that the next header write carries."""
        self._device: Final = device
        self._settings: Final = settings
        self._writes_max: Final = settings.writes_in_flight_max
        self._source: Final = source
        self._budget: Final = budget
        self._stats: Final = stats
        self._strict: Final = strict
        """Read the header after each write, before its blocks are acked."""
        self._header: HeaderWriter
        self._loop: AbstractEventLoop
        self._stopped = False
        self._pending: deque[WalBlock] = deque()
        self._writing: deque[WalBlock] = deque()
        """Handed to the device and not acked, in order. Some may be written and wait for the ones before them."""
        self._in_flight: dict[tuple[WalBlock, ...], float] = {}
        """Writes at the device, by the blocks they carry, and when they were handed over, in the loop's time."""
        self._overdue: tuple[WalBlock, ...] | None = None
        """The write that the last check found overdue."""
        self._budget_timer: TimerHandle | None = None
        self._timeout_timer: TimerHandle | None = None

    def start(self, header: HeaderWriter, offset: int) -> None:
        """Set the header that positions come from, and the offset of the first block."""
        self._header = header
        self._loop = get_running_loop()
        settings = self._settings
        self.window = SlidingWindow(offset, offset, settings.window_bytes, settings.window_bytes_max)

    @property
    def writes_in_flight(self) -> int:
        """Number of writes at the device."""
        return len(self._in_flight)

    @property
    def oldest(self) -> WalBlock | None:
        """The next block to become durable, None if every added block is."""
        waiting = self._writing or self._pending
        return waiting[0] if waiting else None

    @property
    def newest(self) -> WalBlock | None:
        """The last block added, None if every added block is durable."""
        waiting = self._pending or self._writing
        return waiting[-1] if waiting else None

    def add(self, block: WalBlock) -> None:
        """Queue a sealed block behind those before it."""
        self._pending.append(block)

    def pump(self) -> None:
        """Hand blocks to the device while a writer, the window and the budget allow."""
        source, pending = self._source, self._pending
        while (pending or source.open_block is not None) and not self._stopped:
            if len(self._in_flight) >= self._writes_max:
                return
            if not self._budget.unlimited and self._must_wait_for_budget():
                return
            if not pending:
                source.seal_open_block()
            block = pending[0]
            if not self.window.admits(block.end):
                self._widen_window(block.end)
                return
            self._hand_over(self._take_pending())

    def stop(self) -> list[WalBlock]:
        """Hand over and ack nothing more; return the blocks that were not acked, in order."""
        self._stopped = True
        blocks = [*self._writing, *self._pending]
        self._writing.clear()
        self._pending.clear()
        self._in_flight.clear()
        self.cancel_timers()
        return blocks

    def cancel_timers(self) -> None:
        """Stop waiting for the budget and checking for overdue writes."""
        for timer in (self._budget_timer, self._timeout_timer):
            if timer is not None:
                timer.cancel()
        self._budget_timer = self._timeout_timer = None

    # --- to the device -----------------------------------------------------------------------------------------------

    def _take_pending(self) -> tuple[WalBlock, ...]:
        """Take the blocks of the next write: one, or an equal share of what waits for the writers that are free."""
        pending = self._pending
        free = self._writes_max - len(self._in_flight)
        # Under a budget blocks are written one by one: it counts what a disk counts, and paces.
        share = min(-(-len(pending) // free), _BLOCKS_PER_WRITE) if self._budget.unlimited else 1
        blocks = [pending.popleft()]
        while len(blocks) < share and self.window.admits(pending[0].end):
            blocks.append(pending.popleft())
        return tuple(blocks)

    def _hand_over(self, blocks: tuple[WalBlock, ...]) -> None:
        self.window.hand(blocks[0].offset, blocks[-1].end)
        self._writing.extend(blocks)
        self._in_flight[blocks] = self._loop.time()
        if self._timeout_timer is None:
            self._schedule_timeout_check()
        header = self._header.header
        segments = []
        for block in blocks:
            begin = ios = 0
            for position, length in header.segments(block.offset, block.length):
                segments.append((position, block.buffer[begin : begin + length]))
                begin += length
                ios += io_count(length)
            self._stats.writes += ios
            self._budget.take(block.length, ios)
        self._device.submit(
            IoRequest(IoKind.WRITE, segments, partial(self._on_written, blocks), check_header=self._strict)
        )

    def _must_wait_for_budget(self) -> bool:
        wait_s = self._budget.wait_s(self._loop.time())
        if wait_s <= 0:
            return False
        if self._budget_timer is None:
            self._stats.budget_waits += 1
            self._budget_timer = self._loop.call_later(wait_s, self._on_budget)
        return True

    def _on_budget(self) -> None:
        self._budget_timer = None
        self.pump()

    def _widen_window(self, end: int) -> None:
        """Request a header with a larger window bound, and hand over the waiting blocks once it is durable."""
        bound = self.window.wanted_bound(end)
        if bound is not None and bound > self.window_bytes_wanted:
            self.window_bytes_wanted = bound
            self._stats.window_growths += 1
            self._header.request().add_done_callback(self._on_widened)

    def _on_widened(self, error: WalError | None) -> None:
        if error is None:
            self.pump()

    # --- completions -------------------------------------------------------------------------------------------------

    def _on_written(self, blocks: tuple[WalBlock, ...], request: IoRequest) -> None:
        """Take a completed write, once this node is known to have owned the log after it."""
        if request.error is not None:
            begin, end = blocks[0].offset, blocks[-1].end
            self._source.failed(
                WalFailed(
                    f"{self._device.name}: write of {end - begin} bytes at position {request.segments[0][0]} "
                    f"(offset {begin}) failed: {request.error}"
                )
            )
        elif request.header is None:
            self._on_durable(blocks, None)
        else:
            own = self._header.header
            confirm_owner(self._device, request.header, own, lambda error: self._on_durable(blocks, error))

    def _on_durable(self, blocks: tuple[WalBlock, ...], error: WalError | None) -> None:
        """Ack what a write completes, and hand over what waits."""
        if self._in_flight.pop(blocks, None) is None:
            return  # the log has failed in the meantime
        if error is not None:
            self._source.failed(error)
            return
        if self.window.complete(blocks[0].offset, blocks[-1].end):
            self._ack()
        self.pump()

    def _ack(self) -> None:
        """Complete, in order, the leading blocks whose writes are complete."""
        start = self.window.start
        while self._writing and self._writing[0].end <= start and not self._stopped:
            block = self._writing.popleft()
            self._source.block_durable(block)
            block.durable.complete()

    # --- time-outs ---------------------------------------------------------------------------------------------------

    def _schedule_timeout_check(self) -> None:
        self._timeout_timer = self._loop.call_later(self._settings.write_timeout_ms / 4000, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Fail the log if a write is overdue at two checks in a row.

        One check is not enough: a process that was stopped, or a loop that was held up, runs its due timers before it
        processes the completions that arrived in the meantime.
        """
        self._timeout_timer = None
        if not self._in_flight or self._stopped:
            return
        blocks, handed_at = next(iter(self._in_flight.items()))
        overdue = (self._loop.time() - handed_at) * 1000 > self._settings.write_timeout_ms
        if overdue and self._overdue is blocks:
            begin, end = blocks[0].offset, blocks[-1].end
            self._source.failed(
                WalFailed(
                    f"{self._device.name}: write of {end - begin} bytes at offset {begin} took longer than "
                    f"{self._settings.write_timeout_ms} ms"
                )
            )
            return
        self._overdue = blocks if overdue else None
        self._schedule_timeout_check()
