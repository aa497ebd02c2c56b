"""The Delta WAL: appends records to blocks, which a `BlockWriter` writes and acks in order; recovers, trims and closes.

An append copies its record into the current block and returns. The block is written when a writer is free, at the end
of the current turn of the event loop at the earliest, so that the appends of one turn share a write. Invariants, at
every await:

- A block's `Durable` completes only when its write and the writes of all blocks before it are complete and, with
  strict fencing, both copies of the header, read after the write, still name this node.
- No byte at or past the head offset that is durable in both copies of the header is overwritten.
- No byte of a new file is handed to the device before zeros were written there (`wal/prewriter.py`).
- No byte past the window bound that is durable in both copies of the header is handed to the device.
- After the first failure nothing is acked, and every call raises that failure.
"""

from asyncio import AbstractEventLoop, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Final

import structlog

from anabranch.native import native_part
from anabranch.wal.block import BlockBufferPool, WalBlock, aligned_buffer
from anabranch.wal.block_writer import BlockWriter
from anabranch.wal.budget import Budget
from anabranch.wal.claim import claim
from anabranch.wal.format import (
    CATALOG_UNKNOWN,
    GAPS_MAX,
    HEADER_COPIES,
    PADDING_BYTES_MIN,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RING_POSITION,
    Header,
    LogGap,
    Shutdown,
    encode_skip_into,
    page_up,
    record_salt,
    wal_id_of,
)
from anabranch.wal.interface import (
    AppendedRecord,
    Buffer,
    Durable,
    OverCapacity,
    QueueFull,
    RecordTooLarge,
    RecoveredRecord,
    WalError,
    WalFailed,
)
from anabranch.wal.owner import HeaderWriter, Owner, confirm_owner
from anabranch.wal.prewriter import Prewriter
from anabranch.wal.reader import read_ring
from anabranch.wal.recovery import BlockSpan, Scan, ScanEnd
from anabranch.wal.requests import Device, IoKind, perform
from anabranch.wal.settings import WalSettings
from anabranch.wal.stats import WalStats
from anabranch.wal.window import SlidingWindow

_LOG = structlog.get_logger(__name__)
_IDLE_BUFFERS_BYTES_MAX: Final = 16 << 20
"""Idle buffers kept for the next blocks: four times what the writers hold at the default sizes."""


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
        """Result of the recovery scan, once `recover` has finished."""
        self.device: Final = device
        self._settings: Final = settings
        self._owner: Final = Owner(node_id, node_epoch, cluster, catalog_id)
        self._now_ms: Final = now_ms
        self._clock: Final = clock
        self._error: WalError | None = None
        """The failure, after which nothing is acked."""
        self._refusal: WalError | None = WalFailed(f"{device.name}: not open: recover() comes first")
        """Error that appends raise: the failure, or that the log is not open."""
        self._strict: Final = settings.fencing == "strict" or (settings.fencing == "auto" and device.shared)
        self._header: HeaderWriter
        self._loop: AbstractEventLoop
        """Set by `recover`, as the header is. Not asked for at each block: that costs a system call in Python 3.11."""
        self._budget: Final = Budget(settings.iops_max, settings.bandwidth_bytes_max, settings.header_iops)
        self._writer: Final = BlockWriter(device, settings, self, self._budget, self.stats, strict=self._strict)
        self._prewriter: Final = Prewriter(device, settings, self._budget, self._end_offset, self.failed)
        self._write_bytes_max: Final = settings.write_bytes_max
        self._pool: Final = BlockBufferPool(
            settings.write_bytes_max, min(settings.queue_bytes_max, _IDLE_BUFFERS_BYTES_MAX)
        )
        self._new_block: Final = native_part().twin(WalBlock)
        self.open_block: WalBlock | None = None
        """Block that records are appended to, not sealed yet."""
        self._live: deque[BlockSpan] = deque()
        """Durable blocks from the head on."""
        self._next_offset = 0
        """Offset of the next block, unless one is open."""
        self._trim_offset = -1
        self._flushed_trim_offset = -1
        self._flushed_head_offset = 0
        self._limit_offset = 0
        """Offset that no block may end past: derived from the head offset durable in the header."""
        self._capacity_bytes = max(0, min(settings.capacity_bytes, device.size_bytes) - RING_POSITION)
        self._record_bytes_max = 0
        self._salt = 0
        self._shutdown = Shutdown.RUNNING
        self._turn_scheduled = False
        self._take_turn: Callable[[], bool] | None = None
        """Seals and hands over the open block natively; returns False, having changed nothing, if it is unusual."""
        self._opened = False
        self._closed = False

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the ring available to records, headers and padding included. Before `recover`, as configured."""
        return self._capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes between the head in the durable header and the next offset."""
        return self._end_offset() - self._flushed_head_offset

    @property
    def is_long(self) -> bool:
        """False: the time of a recovery depends on bytes, not on the number of blocks."""
        return False

    @property
    def error(self) -> WalError | None:
        """Error that appends raise, or None."""
        return self._refusal

    @property
    def wal_id(self) -> str:
        """Unique id of the log, 16 hex digits, set when it was formatted. Available once `recover` has finished."""
        return wal_id_of(self._header.header.log_id)

    @property
    def is_strict(self) -> bool:
        """True if the header is read again before each ack, so that a claim by another host fences this node."""
        return self._strict

    @property
    def drained(self) -> bool:
        """True if the log was closed gracefully and is empty."""
        graceful = self._shutdown is Shutdown.GRACEFUL and self._error is None
        return self._closed and graceful and not self.used_bytes

    @property
    def description(self) -> str:
        """The device, its flags and guarantee, and the fencing in force, for the log text at start."""
        fence = "header re-read before each ack" if self._strict else "header re-read after header writes"
        return f"{self.device.name}: {self.device.description}; {fence}"

    async def prove_ownership(self) -> None:
        """Read the header: return if it still names this node. Raises WalFenced, after which the log has failed."""
        if self._refusal is not None:
            raise self._refusal
        copies, answer = aligned_buffer(RING_POSITION), Durable()
        await perform(self.device, IoKind.READ, [(0, copies)])
        confirm_owner(self.device, copies, self._header.header, answer.complete)
        try:
            await answer
        except WalError as error:
            self.failed(error)
            raise

    def snapshot(self) -> WalStats:
        """Update the gauges of `stats` and return it."""
        stats = self.stats
        stats.in_flight = self._writer.writes_in_flight
        stats.used_bytes = self.used_bytes
        stats.capacity_bytes = self._capacity_bytes
        stats.write_position = self._header.header.position_of(self._end_offset()) - RING_POSITION
        stats.unwritten_bytes = self._prewriter.unwritten_bytes
        stats.queued_bytes = self._queued_bytes()
        return stats

    @property
    def window(self) -> SlidingWindow:
        """The part of the ring that a recovery scans for writes under way."""
        return self._writer.window

    def _head_offset(self) -> int:
        return self._live[0].start if self._live else self._writer.window.start

    def _end_offset(self) -> int:
        return self._next_offset if self.open_block is None else self.open_block.end

    def _queued_bytes(self) -> int:
        return self._end_offset() - self._writer.window.start

    # --- recovery ----------------------------------------------------------------------------------------------------

    async def recover(self) -> AsyncIterator[RecoveredRecord]:
        """Claim the log and yield the records past the trim offset, in order. Called once, before any append.

        The bodies are views of buffers that are not reused. Appends are possible when the iteration has ended.
        Raises WalRefused, WalCorrupt, WalFenced or WalFailed.
        """
        assert not self._opened, "recover() runs once"
        self._opened = True
        self._loop = get_running_loop()
        device = self.device
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
        self._init_state(header, end, live_records=live_records)
        await self._make_end_durable(end, live_records=live_records)

    def _init_state(self, header: Header, end: ScanEnd, *, live_records: int) -> None:
        """Initialise the state from what the scan found."""
        settings = self._settings
        self.recovered = end
        self._salt = record_salt(header.log_id)
        self._capacity_bytes = header.ring_bytes
        whole_max = min(settings.window_bytes_max, settings.queue_bytes_max, header.ring_bytes // 4)
        self._record_bytes_max = whole_max - PADDING_BYTES_MIN - PAGE_BYTES
        if live_records:
            self._live.extend(end.blocks)
        self._next_offset = end.next_offset
        self._trim_offset = self._flushed_trim_offset = header.trim_offset
        self._flushed_head_offset = header.head_offset
        if live_records and end.needs_skip and len(header.gaps) < GAPS_MAX:
            header = replace(header, gaps=(*header.gaps, LogGap(end.end_offset, end.next_offset)))
        self._header = HeaderWriter(self.device, header, self._make_header, self._on_header, self.failed)
        self._writer.start(self._header, end.next_offset)
        self._use_native_lane()
        if live_records:
            self._advance_head()

    def _use_native_lane(self) -> None:
        """Let blocks take the native lane to the device and back, if nothing is to be done for each of them."""
        module = native_part().module
        if module is not None and not self._strict and self._budget.unlimited:
            self._take_turn = module.BlockLane(self, self._writer, self.device).turn

    async def _make_end_durable(self, end: ScanEnd, *, live_records: int) -> None:
        """Make durable that the log continues at the next offset, then allow appends."""
        header = self._header.header
        assert end.needs_skip or end.end_offset == end.next_offset, f"no page for a skip record: {end}"
        if live_records and end.needs_skip:
            page = aligned_buffer(PAGE_BYTES)
            at = page_up(end.end_offset)
            encode_skip_into(page, at, end.end_offset, end.next_offset, self._salt)
            await perform(self.device, IoKind.WRITE, [(header.position_of(at), page)])
            await perform(self.device, IoKind.FLUSH)
        # After the skip record, which may have been the first write of its page.
        unwritten = await self.device.unwritten()
        await self._prewriter.start(header, unwritten, end.next_offset, in_full=self._strict)
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

    def append(self, parts: Sequence[Buffer]) -> AppendedRecord:
        """Copy one record into the current block: see `WriteAheadLog.append`. Costs a few microseconds and one copy."""
        body_bytes = 0
        for part in parts:
            body_bytes += len(part)
        size_bytes = RECORD_HEADER_BYTES + body_bytes
        block = self.open_block
        if block is None or block.length + size_bytes > block.room_bytes:
            block = self._open_block(size_bytes)
        offset = block.add(parts, body_bytes)
        return AppendedRecord(offset, offset + size_bytes, block.durable)

    def _open_block(self, size_bytes: int) -> WalBlock:
        """Seal the current block and open one with room for a record of `size_bytes`."""
        if self._refusal is not None:
            raise self._refusal
        if size_bytes > self._record_bytes_max:
            raise RecordTooLarge(
                f"{self.device.name}: record of {size_bytes} bytes, the largest is {self._record_bytes_max}"
            )
        if self.open_block is not None:
            if self._take_turn is None or not self._take_turn():
                self.seal_open_block()
                self._writer.pump()
            if self._error is not None:
                raise self._error
        needed = page_up(size_bytes + PADDING_BYTES_MIN)
        offset = self._next_offset
        written_bytes = self._prewriter.limit_offset - offset
        free_bytes = min(self._limit_offset - offset, written_bytes)
        if needed > free_bytes:
            self.stats.over_capacity += 1
            if needed <= self._limit_offset - offset:
                raise QueueFull(
                    f"{self.device.name}: the new file is not written so far: record of {size_bytes} bytes, "
                    f"{written_bytes} bytes are ready for records",
                    self._prewriter.write_to(offset + needed),
                )
            raise OverCapacity(
                f"{self.device.name}: the ring is full: record of {size_bytes} bytes, {max(free_bytes, 0)} of "
                f"{self._capacity_bytes} bytes free"
            )
        if offset + needed - self._writer.window.start > self._settings.queue_bytes_max:
            self.stats.over_capacity += 1
            waiting = self._writer.oldest
            assert waiting is not None, "a record that fits an empty queue"
            raise QueueFull(
                f"{self.device.name}: the device is behind: record of {size_bytes} bytes, {self._queued_bytes()} "
                f"bytes wait for it, at most {self._settings.queue_bytes_max} may",
                waiting.durable,
            )
        room_bytes = max(needed, min(self._write_bytes_max, free_bytes))
        block = self._new_block(offset, self._pool.take(room_bytes), room_bytes, self._salt, self._clock())
        self.open_block = block
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)
        return block

    def has_room(self, size_bytes: int) -> bool:
        """Return whether records, and the rests of the blocks that they end, can take `size_bytes` in all.

        Then no append of one of them raises OverCapacity or RecordTooLarge, however they fall into blocks.
        """
        end = page_up(self._end_offset() + PADDING_BYTES_MIN) + size_bytes
        return (
            self._refusal is None
            and size_bytes <= self._record_bytes_max
            and end <= min(self._limit_offset, self._prewriter.limit_offset)
            and end - self._writer.window.start <= self._settings.queue_bytes_max
        )

    def _turn(self) -> None:
        """Write the open block, after the callbacks of the turn in which it was opened."""
        self._turn_scheduled = False
        if self._take_turn is None or not self._take_turn():
            self._writer.pump()

    def seal_open_block(self) -> None:
        """End the open block, and queue it for the device."""
        block, self.open_block = self.open_block, None
        assert block is not None, "no block is open"
        stats = self.stats
        stats.records += block.records
        stats.record_bytes += block.length
        block.seal(self._writer.window.start)
        assert block.end <= min(self._limit_offset, self._prewriter.limit_offset), f"block up to {block.end}"
        stats.blocks += 1
        stats.block_bytes += block.length
        self._next_offset = block.end
        self._writer.add(block)

    # --- completions -------------------------------------------------------------------------------------------------

    def block_durable(self, block: WalBlock) -> None:
        """Keep the offsets of a block that is about to be acked, and recycle its memory."""
        self._live.append(BlockSpan(block.offset, block.last_offset, block.end))
        self._pool.give(block.buffer)
        self.stats.observe(self._clock() - block.opened_at, block.records)

    def broken(self, block: WalBlock, error: Exception) -> None:
        """Stop permanently after a bug in the midst of handing over `block`, which nobody may have any more."""
        self.failed(WalFailed(f"{self.device.name}: a block was handed over in part: {error}"))
        if not block.durable.done:
            block.durable.complete(self._error)

    def failed(self, error: WalError) -> None:
        """Stop permanently: everything appended and not acked fails, and every later call raises `error`."""
        if self._error is not None:
            return
        self._error = self._refusal = error
        _LOG.error("the log failed and refuses appends", error=str(error))
        self._prewriter.fail(error)
        blocks = self._writer.stop()
        if self.open_block is not None:
            blocks.append(self.open_block)
            self.open_block = None
        for block in blocks:
            block.durable.complete(error)
        self._header.fail(error)

    # --- header ------------------------------------------------------------------------------------------------------

    def _make_header(self, header: Header) -> Header:
        """Return `header` with the current state of the log."""
        self.stats.header_writes += HEADER_COPIES
        self._budget.take(HEADER_COPIES * PAGE_BYTES, HEADER_COPIES)
        head_offset = self._head_offset()
        return replace(
            header,
            head_offset=head_offset,
            trim_offset=self._trim_offset,
            durable_offset=self._writer.window.start,
            window_bytes=self._writer.window_bytes_wanted,
            last_write_ms=self._now_ms(),
            shutdown=self._shutdown,
            gaps=tuple(LogGap(max(gap.start, head_offset), gap.end) for gap in header.gaps if gap.end > head_offset),
        )

    def _on_header(self, header: Header) -> None:
        """Apply the state that a header write has made durable."""
        # One page short of the ring: a recovery that finds the log's end on the last page needs the next one for its
        # skip record.
        self._limit_offset = header.head_offset + header.ring_bytes - PAGE_BYTES
        self._flushed_head_offset = header.head_offset
        self._flushed_trim_offset = header.trim_offset
        window = self._writer.window
        if header.window_bytes > window.bound:
            window.grow(header.window_bytes)

    async def trim(self, offset: int) -> None:
        """Free all records up to and including the one at `offset`, durably. Space is freed in whole blocks."""
        if self._refusal is not None:
            raise self._refusal
        assert offset < self._next_offset or self.open_block is not None, f"trim to {offset}, past the end"
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
        """Free all appended records, once they are durable."""
        await self._drain()
        if self._live:
            await self.trim(self._live[-1].last_offset)

    async def _drain(self) -> None:
        """Wait until everything appended so far is durable. Raises the log's error."""
        if self.open_block is not None:
            self.seal_open_block()
            self._writer.pump()
        newest = self._writer.newest
        if newest is not None:
            await newest.durable
        if self._error is not None:
            raise self._error

    async def close(self, *, release_device: bool = True) -> None:
        """Write what was appended, mark the shutdown graceful, release the device. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        opened = self._refusal is None
        if opened:
            self._refusal = WalFailed(f"{self.device.name}: closed")
        try:
            await self._prewriter.stop()
            if opened:
                await self._drain()
                self._shutdown = Shutdown.GRACEFUL
                await self._header.request()
        except WalError as error:
            _LOG.warning("closed without a graceful shutdown", device=self.device.name, error=str(error))
        finally:
            self._writer.cancel_timers()
            if release_device:
                await self.device.close()
