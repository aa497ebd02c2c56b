"""The object log: gathers appends in batches, which an `ObjectWriter` puts and acks in order; recovers, trims, closes.

An append copies its record into the open batch and returns. After idleness the batch is put at the end of the current
turn of the event loop; otherwise when it is old or large enough, or when nothing is in flight any more and the batch
before was not sealed just now: a fast store is not asked for hundreds of PUTs a second. Invariants, at every await:

- A batch's `Durable` completes only when its object and those of all earlier sequences are stored under this epoch.
- An object is deleted only when an object is durable that names a later one as the first live one. So the newest object
  stands, and whatever a recovery asks for exists.
- After the first failure nothing is acked, and every call raises that failure. An outage of the store is not a failure.
"""

import asyncio
import math
from asyncio import Handle, get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import structlog

from anabranch.wal.block import BlockBufferPool
from anabranch.wal.format import RECORD_HEADER_BYTES
from anabranch.wal.interface import (
    AppendedRecord,
    Buffer,
    OverCapacity,
    QueueFull,
    RecordTooLarge,
    RecoveredRecord,
    WalError,
    WalFailed,
)
from anabranch.wal.object.batch import Batch, StoredObject, new_block
from anabranch.wal.object.format import (
    EndedBy,
    Flags,
    LogName,
    ObjectHeader,
    Position,
    encode_end,
    encode_header,
    new_end,
)
from anabranch.wal.object.recovery import ObjectLogTail, end_log
from anabranch.wal.object.settings import ObjectWalSettings
from anabranch.wal.object.store import LogStore, StoreAway
from anabranch.wal.object.writer import ObjectWriter
from anabranch.wal.stats import WalStats

_LOG = structlog.get_logger(__name__)
_UNDELETED_MAX: Final = 10_000
"""Keys that could not be deleted and are tried again at the next trim; the next start finds the others."""


class ObjectWal:
    """A `WriteAheadLog` in an object store. Open it with `recover`, which ends the log of the node's earlier epochs."""

    def __init__(self, store: LogStore, name: LogName, settings: ObjectWalSettings, *, node_epoch: int) -> None:
        self.stats: Final = WalStats()
        self._store: Final = store
        self._name: Final = name
        self._settings: Final = settings
        self._epoch: Final = node_epoch
        self._salt: Final = name.record_salt(node_epoch)
        self._where: Final = f"{store.name}:{name.prefix}"
        self._error: WalError | None = None
        """The failure, after which nothing is acked."""
        self._refusal: WalError | None = WalFailed(f"{self._where}: not open: recover() comes first")
        """Error that appends raise: the failure, or that the log is not open."""
        self._writer: Final = ObjectWriter(store, name, settings, self, self.stats)
        self._pool: Final = BlockBufferPool(settings.batch_bytes_max, 2 * settings.batch_bytes_max)
        self._open: Batch | None = None
        self._timer: Handle | None = None
        """Seals the open batch by its age."""
        self._seal_at = math.inf
        """Loop time at which that timer is due: uvloop's handle of an expired timer has no time."""
        self._sealed_at = -math.inf
        """Time of the loop's clock at which the last batch was sealed."""
        self._next_sequence = 0
        self._next_offset = 0
        """Logical offset of the next batch, unless one is open."""
        self._durable_offset = 0
        """Everything before it is durable."""
        self._live: deque[StoredObject] = deque()
        """Durable objects from the first live one on."""
        self._trim_offset = -1
        self._durable_trim_offset = -1
        """Trim offset that a durable object names."""
        self._durable_first_live = Position(0, 0)
        self._head_offset = 0
        """First live object that a durable object names, and its logical offset."""
        self._trimmed: deque[Position] = deque()
        """Durable objects before the first live one, not deleted yet, in order."""
        self._undeleted: list[str] = []
        self._opened = False
        self._closed = False
        self._drained = False

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def capacity_bytes(self) -> int:
        """Bytes of records, with their headers, that the log holds at most until it is trimmed."""
        return self._settings.capacity_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes from the first live object, as a durable object names it, to the next offset."""
        return self._end_offset() - self._head_offset

    @property
    def is_long(self) -> bool:
        """True if more objects than wanted hold records that are not trimmed."""
        return len(self._live) > self._settings.objects_wanted

    @property
    def error(self) -> WalError | None:
        """Error that appends raise, or None."""
        return self._refusal

    @property
    def wal_id(self) -> str:
        """Unique id of the log, 16 hex digits: the same in all epochs of the node."""
        return self._name.wal_id(self._store.name)

    @property
    def drained(self) -> bool:
        """True if the log was closed gracefully and is empty."""
        return self._drained and not self.used_bytes

    @property
    def description(self) -> str:
        """The store and the prefix, for the log text at start."""
        return f"{self._where}: objects, acked when they are stored; the fence is a conditional PUT"

    def snapshot(self) -> WalStats:
        """Update the gauges of `stats` and return it."""
        stats = self.stats
        stats.in_flight = self._writer.puts_in_flight
        stats.used_bytes = self.used_bytes
        stats.capacity_bytes = self.capacity_bytes
        stats.queued_bytes = self._queued_bytes()
        return stats

    def _end_offset(self) -> int:
        return self._next_offset if self._open is None else self._open.block.end

    def _queued_bytes(self) -> int:
        return self._end_offset() - self._durable_offset

    # --- recovery ----------------------------------------------------------------------------------------------------

    async def recover(self) -> AsyncIterator[RecoveredRecord]:
        """Fence the earlier epochs of the node and yield their records past the trim offset, in order. Called once.

        The node's epoch must be in force in the catalog. Appends are possible when the iteration has ended. Raises
        WalFenced when a later epoch has the log, WalCorrupt for damage, StoreAway.
        """
        assert not self._opened, "recover() runs once"
        self._opened = True
        tail = await end_log(self._store, self._name, self._epoch, self._owner)
        records = 0
        async for header, some in tail.objects():
            self._live.append(StoredObject(header.position, header.first_offset, some[-1].offset if some else -1))
            records += len(some)
            for record in some:
                yield record
        self._init_state(tail)
        self._refusal = self._error
        await self._seal().durable  # so that the newest object names the first live one, and the prefix is in use
        with suppress(StoreAway):  # the next start drops what is left
            await tail.drop()
        _LOG.info("log recovered", store=self.description, records=records, end_offset=tail.end_offset)

    def _init_state(self, tail: ObjectLogTail) -> None:
        """Initialise the state from what was found."""
        self._trim_offset = self._durable_trim_offset = tail.trim_offset
        self._next_offset = self._durable_offset = self._head_offset = tail.end_offset
        self._advance_head()
        if self._live:
            self._head_offset = self._live[0].start

    @property
    def _owner(self) -> EndedBy:
        return EndedBy(self._name.node_id, self._epoch)

    # --- appends -----------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[Buffer]) -> AppendedRecord:
        """Copy one record into the open batch: see `WriteAheadLog.append`."""
        body_bytes = 0
        for part in parts:
            body_bytes += len(part)
        size_bytes = RECORD_HEADER_BYTES + body_bytes
        self._check_room(size_bytes)
        batch = self._open
        if batch is not None and batch.block.length + size_bytes > batch.block.room_bytes:
            self._seal()
            batch = None
        if batch is None:
            batch = self._open_batch(size_bytes)
        offset = batch.block.add(parts, body_bytes)
        return AppendedRecord(offset, offset + size_bytes, batch.durable)

    def _check_room(self, size_bytes: int) -> None:
        """Raise what `append` raises unless a record of `size_bytes` can be appended."""
        if self._refusal is not None:
            raise self._refusal
        settings = self._settings
        if size_bytes > settings.record_bytes_max:
            raise RecordTooLarge(
                f"{self._where}: record of {size_bytes} bytes, the largest is {settings.record_bytes_max}"
            )
        if self.used_bytes + size_bytes > settings.capacity_bytes:
            self.stats.over_capacity += 1
            raise OverCapacity(
                f"{self._where}: the log is full: record of {size_bytes} bytes, "
                f"{settings.capacity_bytes - self.used_bytes} of {settings.capacity_bytes} bytes free"
            )
        if self._open is None and len(self._live) >= settings.objects_max:
            self.stats.over_capacity += 1
            raise OverCapacity(f"{self._where}: the log is full: {len(self._live)} objects hold what is not trimmed")
        if self._queued_bytes() + size_bytes > settings.queue_bytes_max:
            self.stats.over_capacity += 1
            waiting = self._writer.oldest or self._open
            assert waiting is not None, "a record that fits an empty queue"
            raise QueueFull(
                f"{self._where}: the store is behind: record of {size_bytes} bytes, {self._queued_bytes()} bytes wait "
                f"for it, at most {settings.queue_bytes_max} may",
                waiting.durable,
            )

    def _open_batch(self, size_bytes: int) -> Batch:
        """Open a batch with room for a record of `size_bytes`, and schedule its sealing."""
        loop = get_running_loop()
        room_bytes = max(size_bytes, self._settings.batch_bytes_max)
        batch = Batch(new_block(self._next_offset, self._pool.take(room_bytes), room_bytes, self._salt, loop.time()))
        self._open = batch
        wait_s = 0.0 if self._writer.oldest is None else self._settings.batch_ms / 1000
        # Without a wait it is sealed after this turn of the loop, whose appends share an object.
        self._seal_open_at(max(loop.time() + wait_s, self._next_put_s()))
        return batch

    def _seal_open_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._seal_at = time_s
        self._timer = get_running_loop().call_at(time_s, self._seal_open)

    def _next_put_s(self) -> float:
        """Return the time before which no batch is sealed, unless it is full or somebody waits for all."""
        return self._sealed_at + self._settings.put_interval_ms / 1000

    def _seal_open(self) -> None:
        if self._open is not None:
            self._seal()

    def _seal(self, *, closed: bool = False) -> Batch:
        """Seal the open batch, or an empty one, and queue its object, which names the first live one.

        With `closed` it is the log's last object, and no batch is open.
        """
        batch, self._open = self._open, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sealed_at = now = get_running_loop().time()
        if batch is None:
            batch = Batch(new_block(self._next_offset, memoryview(b""), 0, self._salt, now))
        block = batch.block
        position = Position(self._epoch, self._next_sequence)
        first = self._first_live(position, block.offset)
        batch.head_offset = first.start
        if closed:
            header = new_end(Flags.CLOSED, position, first.position, trim_offset=self._trim_offset, offset=block.offset)
            head = encode_end(self._name, header, self._owner)
        else:
            header = ObjectHeader(
                position, first.position, self._trim_offset, block.offset, block.length, block.records
            )
            head = encode_header(self._name, header, batch.body)
        batch.seal(header, head)
        self._next_sequence += 1
        self._next_offset = block.end
        stats = self.stats
        stats.records += block.records
        stats.record_bytes += block.length
        stats.blocks += 1
        stats.block_bytes += len(head) + block.length
        self._writer.add(batch)
        return batch

    def _first_live(self, position: Position, offset: int) -> StoredObject:
        """Return the first object with a record that is not trimmed; the next one, at `position`, if there is none."""
        if self._live:
            return self._live[0]
        oldest = self._writer.oldest
        if oldest is not None:
            return StoredObject(oldest.header.position, oldest.block.offset, -1)
        return StoredObject(position, offset, -1)

    # --- completions -------------------------------------------------------------------------------------------------

    def batch_durable(self, batch: Batch) -> None:
        """Keep the offsets of a batch that is about to be acked, and recycle its memory."""
        block, header = batch.block, batch.header
        self._live.append(StoredObject(header.position, block.offset, block.last_offset if block.records else -1))
        self._durable_offset = block.end
        self._durable_trim_offset = header.trim_offset
        self._durable_first_live = header.first_live
        self._head_offset = batch.head_offset
        self.stats.observe(get_running_loop().time() - block.opened_at, block.records)
        self._advance_head()
        if block.records and batch.recyclable:
            self._pool.give(block.buffer)

    def writer_idle(self) -> None:
        """Put the open batch, since nothing is in flight, as soon as the store may be asked again."""
        if self._timer is not None and self._seal_at > self._next_put_s():
            self._seal_open_at(max(get_running_loop().time(), self._next_put_s()))

    def failed(self, error: WalError) -> None:
        """Stop permanently: everything appended and not acked fails, and every later call raises `error`."""
        if self._error is not None:
            return
        self._error = self._refusal = error
        _LOG.error("the log failed and refuses appends", error=str(error))
        if self._timer is not None:
            self._timer.cancel()
        batches = self._writer.stop()
        if self._open is not None:
            batches.append(self._open)
            self._open = None
        for batch in batches:
            batch.durable.complete(error)

    async def prove_ownership(self) -> None:
        """Return if the log is not fenced: an object is stored after the call, or the next key has none.

        Raises WalFenced, after which the log has failed, or StoreAway.
        """
        if self._refusal is not None:
            raise self._refusal
        batch = self._open or self._writer.newest
        if batch is None:
            position = Position(self._epoch, self._next_sequence)
            if await self._store.read(self._name.key(position), 1) is None:
                return
            if self._next_sequence == position.sequence:  # not an object of this node that was put meanwhile
                fenced = await self._writer.why_fenced(position)
                self.failed(fenced)
                raise fenced
            batch = self._writer.newest
        if batch is not None:
            await batch.durable

    # --- trim and close ----------------------------------------------------------------------------------------------

    async def trim(self, offset: int) -> None:
        """Free all records up to and including the one at `offset`, durably. Space is freed in whole objects."""
        if self._refusal is not None:
            raise self._refusal
        assert offset < self._end_offset(), f"trim to {offset}, past the end"
        if offset > self._trim_offset:
            self._trim_offset = offset
            self._advance_head()
        while self._durable_trim_offset < offset:
            newest = self._writer.newest
            if newest is None or newest.header.trim_offset < offset:
                newest = self._seal()
            await newest.durable
        await self._delete_trimmed()

    def _advance_head(self) -> None:
        """Take from the live objects those whose records are all trimmed."""
        live = self._live
        while live and live[0].last_offset <= self._trim_offset:
            self._trimmed.append(live.popleft().position)

    async def _delete_trimmed(self) -> None:
        """Delete the objects before the first live one that a durable object names; those that are left, next time."""
        keys: list[str] = []
        while self._trimmed and self._trimmed[0] < self._durable_first_live:
            keys.append(self._name.key(self._trimmed.popleft()))
        keys += self._undeleted
        self._undeleted = []
        try:
            left = await self._store.delete(keys) if keys else []
        except StoreAway:
            left = keys
        if left:
            _LOG.warning("trimmed objects of the log are left; deleted at the next trim", keys=len(left), first=left[0])
            self._undeleted += left[: _UNDELETED_MAX - len(self._undeleted)]

    async def reset(self) -> None:
        """Free all appended records, once they are durable."""
        await self._drain()
        records = [each.last_offset for each in self._live if each.last_offset >= 0]
        if records:
            await self.trim(records[-1])

    async def _drain(self) -> None:
        """Wait until everything appended so far is durable. Raises the log's error."""
        self._seal_open()
        newest = self._writer.newest
        if newest is not None:
            await newest.durable
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        """Put what was appended, and an object that marks the log closed. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        opened = self._refusal is None
        if opened:
            self._refusal = WalFailed(f"{self._where}: closed")
        try:
            if opened:
                async with asyncio.timeout(self._settings.close_ms / 1000):
                    await self._drain()
                    await self._seal(closed=True).durable
                self._drained = True
        except (WalError, TimeoutError) as error:
            reason = str(error) or f"the store did not take the rest within {self._settings.close_ms} ms"
            _LOG.warning("closed without a graceful shutdown", store=self._where, error=reason)
            self.failed(WalFailed(f"{self._where}: {reason}"))
        finally:
            self._writer.stop()
            await self._writer.ended()
