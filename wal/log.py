"""The Delta WAL: the thin shell that moves records through blocks to the device and acks them in order.

An append copies its record into the current block and returns; the block goes out when a writer is free, at the end of
the loop's turn at the earliest, so that the appends of one turn share a write. What it keeps true, at every await:

- A block's `Durable` completes only when its write and the writes of all blocks before it are through, and, where the
  fence is strict, both copies of the header, read after the write, still show this node.
- Nothing is written over bytes at or behind the head offset that is durable in both copies of the header.
- Nothing is handed to the device past the window bound that is durable in both copies of the header.
- After the first failure nothing is acked any more, and every call raises that failure.
"""

from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final

import structlog

from wal.block import Block, BufferPool, aligned_buffer
from wal.budget import Budget, io_count
from wal.claim import claim
from wal.format import (
    CATALOG_UNKNOWN,
    GAPS_MAX,
    HEADER_COPIES,
    PADDING_BYTES_MIN,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RING_POSITION,
    Gap,
    Header,
    Shutdown,
    encode_skip_into,
    page_up,
    record_salt,
)
from wal.interface import (
    Appended,
    Buffer,
    OverCapacity,
    QueueFull,
    RecordTooLarge,
    RecoveredRecord,
    WalError,
    WalFailed,
)
from wal.owner import HeaderWriter, Owner, confirm_owner
from wal.reader import read_ring
from wal.recovery import BlockSpan, Scan, ScanEnd
from wal.requests import Device, IoKind, IoRequest, perform
from wal.settings import WalSettings
from wal.stats import WalStats
from wal.window import SlidingWindow

_LOG = structlog.get_logger(__name__)
_IDLE_BUFFERS_BYTES_MAX: Final = 16 << 20
"""Kept for the next blocks, beside what is in flight: four times what the writers hold at the default sizes."""
_BLOCKS_PER_WRITE: Final = 4
"""Blocks that wait for a writer share one system call, up to 1 MiB at the default size: a call costs as much as copying
a block, a disk is no faster with more."""


class DeltaWal:
    """A `WriteAheadLog` on a device. Open it with `recover`, which claims the log for this node's epoch."""

    def __init__(
        self,
        device: Device,
        settings: WalSettings,
        *,
        node_id: int,
        node_epoch: int,
        now_ms: Callable[[], int],
        cluster: str = "",
        catalog_id: bytes = CATALOG_UNKNOWN,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.stats: Final = WalStats()
        self.recovered: ScanEnd | None = None
        """What the recovery scan found, once `recover` is through."""
        self._device: Final = device
        self._settings: Final = settings
        self._owner: Final = Owner(node_id, node_epoch, cluster, catalog_id)
        self._now_ms: Final = now_ms
        self._clock: Final = clock
        self._error: WalError | None = None
        """The failure after which nothing is acked."""
        self._refusal: WalError | None = WalFailed(f"{device.name}: not open: recover() comes first")
        """Why appends are refused: the failure, or that the log is not open (any more)."""
        self._strict: Final = settings.fencing == "strict" or (settings.fencing == "auto" and device.shared)
        self._budget: Final = Budget(settings.iops_max, settings.bandwidth_bytes_max, settings.header_iops)
        self._pool: Final = BufferPool(settings.write_bytes_max, min(settings.queue_bytes_max, _IDLE_BUFFERS_BYTES_MAX))
        self._current: Block | None = None
        self._pending: deque[Block] = deque()
        self._writing: deque[Block] = deque()
        """At the device or through, in order; those through wait for the ones before them."""
        self._in_flight: dict[tuple[Block, ...], float] = {}
        """Writes at the device, as the blocks they carry, and when they went there, by the loop's clock."""
        self._overdue: tuple[Block, ...] | None = None
        """Found to take too long by the last check."""
        self._live: deque[BlockSpan] = deque()
        """Durable blocks from the head on."""
        self._next_offset = 0
        """Where the next block begins, unless one is open."""
        self._window = SlidingWindow(0, 0, settings.window_bytes, settings.window_bytes_max)
        self._window_target = settings.window_bytes
        """Bound that the next header write carries."""
        self._trim_offset = -1
        self._flushed_trim_offset = -1
        self._flushed_head_offset = 0
        self._limit_offset = 0
        """No block may end past it: follows from the head offset durable in the header."""
        self._capacity_bytes = max(0, min(settings.capacity_bytes, device.size_bytes) - RING_POSITION)
        self._record_bytes_max = 0
        self._salt = 0
        self._shutdown = Shutdown.RUNNING
        self._turn_scheduled = False
        self._timer: TimerHandle | None = None
        self._watch: TimerHandle | None = None
        self._opened = False
        self._closed = False

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the ring available to records, headers and padding included. Before `recover`, as configured."""
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes between the head in the durable header and the next offset: trimming frees when it is durable."""
        end = self._next_offset if self._current is None else self._current.end
        return end - self._flushed_head_offset

    @property
    def error(self) -> WalError | None:
        """Why the log takes no appends, or None."""
        return self._refusal

    @property
    def log_id(self) -> int:
        """Id of the log in its header, drawn when it was formatted. Once `recover` is through."""
        return self._header.header.log_id

    @property
    def drained(self) -> bool:
        """Whether the log was closed gracefully, with nothing left in it."""
        graceful = self._shutdown is Shutdown.GRACEFUL and self._error is None
        return self._closed and graceful and not self.used_bytes

    @property
    def description(self) -> str:
        """The device, its flags and guarantee, and how a newer owner is noticed: to be shown at start."""
        fence = "header re-read before each ack" if self._strict else "header re-read after header writes"
        return f"{self._device.name}: {self._device.description}; {fence}"

    def snapshot(self) -> WalStats:
        """Bring the gauges of `stats` up to date and return it."""
        stats = self.stats
        stats.in_flight = len(self._in_flight)
        stats.used_bytes = self.used_bytes
        stats.capacity_bytes = self._capacity_bytes
        stats.queued_bytes = self._queued_bytes()
        return stats

    def _head_offset(self) -> int:
        return self._live[0].start if self._live else self._window.start

    def _queued_bytes(self) -> int:
        return (self._next_offset if self._current is None else self._current.end) - self._window.start

    # --- recovery ----------------------------------------------------------------------------------------------------

    async def recover(self) -> AsyncIterator[RecoveredRecord]:
        """Claim the log and yield what lies past the trim offset, in order. Once, before any append.

        The bodies are views of buffers that are not used again. Appends are possible when the iteration has ended.
        Raises WalRefused, WalCorrupt, WalFenced or WalFailed.
        """
        assert not self._opened, "recover() runs once"
        self._opened = True
        device = self._device
        found, header = await claim(device, self._settings, self._owner, self._now_ms())
        if header.capacity_bytes != self._settings.capacity_bytes:
            _LOG.warning(
                "the log keeps the capacity it was formatted with; use resize to change it",
                device=device.name,
                capacity_bytes=header.capacity_bytes,
                configured_bytes=self._settings.capacity_bytes,
            )
        scan = Scan(found, device.name)
        live_records = 0
        async for records in read_ring(device, found, scan):
            live_records += len(records)
            for record in records:
                yield record
        end = scan.end
        assert end is not None, "the scan ran to its end"
        self._take_up(header, end, live_records=live_records)
        await self._go_on_at(end, live_records=live_records)

    def _take_up(self, header: Header, end: ScanEnd, *, live_records: int) -> None:
        """Set the state that the next append starts from."""
        settings = self._settings
        self.recovered = end
        self._salt = record_salt(header.log_id)
        self._capacity_bytes = header.ring_bytes
        whole_max = min(settings.window_bytes_max, settings.queue_bytes_max, header.ring_bytes // 4)
        self._record_bytes_max = whole_max - PADDING_BYTES_MIN - PAGE_BYTES
        if live_records:
            self._live.extend(end.blocks)
        self._next_offset = end.next_offset
        self._window = SlidingWindow(end.next_offset, end.next_offset, settings.window_bytes, settings.window_bytes_max)
        self._trim_offset = self._flushed_trim_offset = header.trim_offset
        self._flushed_head_offset = header.head_offset
        if live_records and end.needs_skip and len(header.gaps) < GAPS_MAX:
            header = replace(header, gaps=(*header.gaps, Gap(end.end_offset, end.next_offset)))
        self._header = HeaderWriter(self._device, header, self._make_header, self._on_header, self._fail)
        if live_records:
            self._advance_head()

    async def _go_on_at(self, end: ScanEnd, *, live_records: int) -> None:
        """Make durable that the log goes on at the next offset, and take appends."""
        header = self._header.header
        assert end.needs_skip or end.end_offset == end.next_offset, f"no page for a skip record: {end}"
        if live_records and end.needs_skip:
            page = aligned_buffer(PAGE_BYTES)
            at = page_up(end.end_offset)
            encode_skip_into(page, at, end.end_offset, end.next_offset, self._salt)
            await perform(self._device, IoKind.WRITE, [(header.position_of(at), page)])
        await self._header.request()
        self._refusal = self._error
        _LOG.info(
            "log recovered",
            device=self.description,
            records=live_records,
            end_offset=end.end_offset,
            next_offset=end.next_offset,
            dropped_records=end.dropped_records,
            stopped_at=end.reason,
        )

    # --- appends -----------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[Buffer]) -> Appended:
        """Copy one record into the current block; see `WriteAheadLog.append`. Costs a few microseconds and one copy."""
        body_bytes = 0
        for part in parts:
            body_bytes += len(part)
        size_bytes = RECORD_HEADER_BYTES + body_bytes
        block = self._current
        if block is None or block.length + size_bytes > block.room_bytes:
            block = self._open_block(size_bytes)
        offset = block.append(parts, body_bytes)
        return Appended(offset, offset + size_bytes, block.durable)

    def _open_block(self, size_bytes: int) -> Block:
        """Close the current block and open one that holds a record of `size_bytes` at least."""
        if self._refusal is not None:
            raise self._refusal
        if size_bytes > self._record_bytes_max:
            raise RecordTooLarge(
                f"{self._device.name}: record of {size_bytes} bytes, the largest is {self._record_bytes_max}"
            )
        if self._current is not None:
            self._seal(self._current)
            self._pump()
            if self._error is not None:
                raise self._error
        needed = page_up(size_bytes + PADDING_BYTES_MIN)
        offset = self._next_offset
        free_bytes = self._limit_offset - offset
        if needed > free_bytes:
            self.stats.over_capacity += 1
            raise OverCapacity(
                f"{self._device.name}: the ring is full: record of {size_bytes} bytes, {max(free_bytes, 0)} of "
                f"{self._capacity_bytes} bytes free"
            )
        if offset + needed - self._window.start > self._settings.queue_bytes_max:
            self.stats.over_capacity += 1
            raise QueueFull(
                f"{self._device.name}: the device is behind: record of {size_bytes} bytes, {self._queued_bytes()} "
                f"bytes wait for it, {self._settings.queue_bytes_max} may",
                (self._writing or self._pending)[0].durable,
            )
        room_bytes = max(needed, min(self._settings.write_bytes_max, free_bytes))
        block = Block(offset, self._pool.take(room_bytes), room_bytes, self._salt, self._clock())
        self._current = block
        if not self._turn_scheduled:
            self._turn_scheduled = True
            get_running_loop().call_soon(self._turn)
        return block

    def _turn(self) -> None:
        """Run after the callbacks of the turn in which a block was opened."""
        self._turn_scheduled = False
        self._pump()

    def _seal(self, block: Block) -> None:
        self._current = None
        stats = self.stats
        stats.records += block.records
        stats.record_bytes += block.length
        block.seal(self._window.start)
        stats.blocks += 1
        stats.block_bytes += block.length
        self._next_offset = block.end
        self._pending.append(block)

    def _pump(self) -> None:
        """Hand blocks to the device while a writer, the window and the budget allow."""
        while len(self._in_flight) < self._settings.writes_in_flight_max and self._error is None:
            if not self._pending and self._current is None:
                return
            if not self._budget.unlimited and self._wait_for_budget():
                return
            if not self._pending and self._current is not None:
                self._seal(self._current)
            block = self._pending[0]
            if not self._window.admits(block.end):
                self._widen(block.end)
                return
            self._hand(self._take_pending())

    def _take_pending(self) -> tuple[Block, ...]:
        """Take the blocks of the next write: one, or an equal share of what waits for the writers that are free."""
        pending = self._pending
        free = self._settings.writes_in_flight_max - len(self._in_flight)
        # Under a budget blocks go one by one: it counts what a disk counts, and paces.
        share = min(-(-len(pending) // free), _BLOCKS_PER_WRITE) if self._budget.unlimited else 1
        blocks = [pending.popleft()]
        while len(blocks) < share and self._window.admits(pending[0].end):
            blocks.append(pending.popleft())
        return tuple(blocks)

    def _hand(self, blocks: tuple[Block, ...]) -> None:
        self._window.hand(blocks[0].offset, blocks[-1].end)
        self._writing.extend(blocks)
        loop = get_running_loop()
        self._in_flight[blocks] = loop.time()
        if self._watch is None:
            self._watch_later(loop)
        segments = []
        for block in blocks:
            begin = ios = 0
            for position, length in self._header.header.segments(block.offset, block.length):
                segments.append((position, block.buffer[begin : begin + length]))
                begin += length
                ios += io_count(length)
            self.stats.writes += ios
            self._budget.take(block.length, ios)
        self._device.submit(
            IoRequest(
                IoKind.WRITE, segments, lambda request: self._on_written(blocks, request), check_header=self._strict
            )
        )

    def _wait_for_budget(self) -> bool:
        loop = get_running_loop()
        wait_s = self._budget.wait_s(loop.time())
        if wait_s <= 0:
            return False
        if self._timer is None:
            self.stats.budget_waits += 1
            self._timer = loop.call_later(wait_s, self._budget_ready)
        return True

    def _budget_ready(self) -> None:
        self._timer = None
        self._pump()

    def _widen(self, end: int) -> None:
        """Have a larger window bound written, which hands out what waits once it is durable."""
        bound = self._window.wanted_bound(end)
        if bound is not None and bound > self._window_target:
            self._window_target = bound
            self.stats.window_growths += 1
            self._header.request().add_done_callback(self._widened)

    def _widened(self, error: WalError | None) -> None:
        if error is None:
            self._pump()

    # --- completions -------------------------------------------------------------------------------------------------

    def _on_written(self, blocks: tuple[Block, ...], request: IoRequest) -> None:
        """Take one write that is through, once this node is known to have owned the log behind it."""
        if request.error is not None:
            begin, end = blocks[0].offset, blocks[-1].end
            self._fail(
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

    def _on_durable(self, blocks: tuple[Block, ...], error: WalError | None) -> None:
        """Ack what a write completes, and hand out what waits."""
        if self._in_flight.pop(blocks, None) is None:
            return  # the log failed meanwhile
        if error is not None:
            self._fail(error)
            return
        if self._window.complete(blocks[0].offset, blocks[-1].end):
            self._ack()
        self._pump()

    def _ack(self) -> None:
        """Complete the leading blocks whose writes are through, in order."""
        start = self._window.start
        now = self._clock()
        while self._writing and self._writing[0].end <= start and self._error is None:
            block = self._writing.popleft()
            self._live.append(BlockSpan(block.offset, block.last_offset, block.end))
            self._pool.give(block.buffer)
            self.stats.observe(now - block.opened_at, block.records)
            block.durable.complete()

    def _fail(self, error: WalError) -> None:
        """Stop for good: everything appended and not acked fails, every later call raises `error`."""
        if self._error is not None:
            return
        self._error = self._refusal = error
        _LOG.error("the log failed and takes no more appends", error=str(error))
        blocks = [*self._writing, *self._pending]
        if self._current is not None:
            blocks.append(self._current)
        self._current = None
        self._writing.clear()
        self._pending.clear()
        self._in_flight.clear()
        self._cancel_timers()
        for block in blocks:
            block.durable.complete(error)
        self._header.fail(error)

    # --- time-outs ---------------------------------------------------------------------------------------------------

    def _watch_later(self, loop: AbstractEventLoop) -> None:
        self._watch = loop.call_later(self._settings.write_timeout_ms / 4000, self._check_timeouts)

    def _check_timeouts(self) -> None:
        """Fail the log if a write is overdue at two checks in a row.

        In a row, because a process that was stopped or a loop that was held up finds its timers due before it has
        looked at the completions that came meanwhile.
        """
        self._watch = None
        if not self._in_flight or self._error is not None:
            return
        loop = get_running_loop()
        blocks, handed_at = next(iter(self._in_flight.items()))
        overdue = (loop.time() - handed_at) * 1000 > self._settings.write_timeout_ms
        if overdue and self._overdue is blocks:
            begin, end = blocks[0].offset, blocks[-1].end
            self._fail(
                WalFailed(
                    f"{self._device.name}: write of {end - begin} bytes at offset {begin} took longer than "
                    f"{self._settings.write_timeout_ms} ms"
                )
            )
            return
        self._overdue = blocks if overdue else None
        self._watch_later(loop)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._timer = self._watch = None

    # --- header ------------------------------------------------------------------------------------------------------

    def _make_header(self, header: Header) -> Header:
        """Return `header` with the state of this moment."""
        self.stats.header_writes += HEADER_COPIES
        self._budget.take(HEADER_COPIES * PAGE_BYTES, HEADER_COPIES)
        head_offset = self._head_offset()
        return replace(
            header,
            head_offset=head_offset,
            trim_offset=self._trim_offset,
            durable_offset=self._window.start,
            window_bytes=self._window_target,
            last_write_ms=self._now_ms(),
            shutdown=self._shutdown,
            gaps=tuple(Gap(max(gap.start, head_offset), gap.end) for gap in header.gaps if gap.end > head_offset),
        )

    def _on_header(self, header: Header) -> None:
        """Use what a header write has made durable."""
        # One page short of the ring: a recovery that finds the log's end on the last page needs the next one for its
        # skip record.
        self._limit_offset = header.head_offset + header.ring_bytes - PAGE_BYTES
        self._flushed_head_offset = header.head_offset
        self._flushed_trim_offset = header.trim_offset
        if header.window_bytes > self._window.bound:
            self._window.grow(header.window_bytes)

    async def trim(self, offset: int) -> None:
        """Free all records up to and including the one at `offset`; durable when this returns. Frees whole blocks."""
        if self._refusal is not None:
            raise self._refusal
        assert offset < self._next_offset or self._current is not None, f"trim to {offset}, past the end"
        if offset > self._trim_offset:
            self._trim_offset = offset
            self._advance_head()
        while self._flushed_trim_offset < offset:
            await self._header.request()

    def _advance_head(self) -> None:
        live = self._live
        while live and live[0].last_offset <= self._trim_offset:
            live.popleft()

    async def reset(self) -> None:
        """Free everything that was appended, once it is durable."""
        await self._drain()
        if self._live:
            await self.trim(self._live[-1].last_offset)

    async def _drain(self) -> None:
        """Wait until everything appended so far is durable; raises the log's error."""
        if self._current is not None:
            self._seal(self._current)
            self._pump()
        waiting = self._pending or self._writing
        if waiting:
            await waiting[-1].durable
        if self._error is not None:
            raise self._error

    async def close(self, *, release_device: bool = True) -> None:
        """Write out what was appended, mark the stop graceful, release the device. Again: does nothing."""
        if self._closed:
            return
        self._closed = True
        opened = self._refusal is None
        if opened:
            self._refusal = WalFailed(f"{self._device.name}: closed")
        try:
            if opened:
                await self._drain()
                self._shutdown = Shutdown.GRACEFUL
                await self._header.request()
        except WalError as error:
            _LOG.warning("closed without a graceful stop", device=self._device.name, error=str(error))
        finally:
            self._cancel_timers()
            if release_device:
                await self._device.close()
