"""Ends a node's log of all earlier epochs and reads it: the same code at the node's own start and for a takeover.

The caller has raised the node's epoch in the catalog *before*: so the former owner commits nothing any more, and trims
nothing that it had not acked by then (`OBJECT_FORMAT.md`, "Why no acked record is lost"). Invariants:

- `end_log` returns when every earlier epoch that may hold records has an end.
- Until `drop`, which the caller calls when a later object names the first live one, only fences were written.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog

from anabranch.wal.interface import RecoveredRecord, WalCorrupt, WalError, WalFenced
from anabranch.wal.object.format import (
    END_BYTES,
    HEADER_BYTES,
    EndedBy,
    Flags,
    LogName,
    ObjectHeader,
    Position,
    decode_body,
    decode_header,
    encode_end,
    new_end,
)
from anabranch.wal.object.store import LogStore

_LOG = structlog.get_logger(__name__)
_CALLS_MAX: Final = 64
"""Calls of the store side by side."""
_READ_BYTES_MAX: Final = 64 << 20
"""Bytes read side by side, unless one object is larger."""
_LISTINGS_MAX: Final = 10
"""Listings until one is found whose newest object still exists: the former owner trims what it had committed."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ObjectLogTail:
    """The log of a node's epochs before `epoch`: ended, and ready to be read."""

    store: LogStore
    name: LogName
    epoch: int
    first_live: Position
    trim_offset: int
    """Records at this logical offset and below are trimmed; -1: none."""
    end_offset: int
    """Logical offset at which the log continues."""
    live: Sequence[tuple[Position, int]]
    """Objects to read, in order, with their sizes in bytes."""
    dropped: Sequence[Position]
    """Objects that are neither read nor ends: trimmed, or never acked."""

    async def objects(self) -> AsyncIterator[tuple[ObjectHeader, Sequence[RecoveredRecord]]]:
        """Yield the live objects in order, and the records of each that are not trimmed. Call it once.

        Raises WalCorrupt for damage, naming the object; WalFenced when a later epoch has the log; StoreAway.
        """
        try:
            async for found in self._objects():
                yield found
        except WalCorrupt:
            await list_log(self.store, self.name, self.epoch)  # who has the log by now may have deleted what is missing
            raise

    async def _objects(self) -> AsyncIterator[tuple[ObjectHeader, Sequence[RecoveredRecord]]]:
        offset = -1
        for some in _rounds(self.live):
            for (position, _), data in zip(some, await _all(self._read(*each) for each in some), strict=True):
                header, records = self._decode(position, data)
                if offset not in (-1, header.first_offset):
                    raise _corrupt(self, position, f"begins at offset {header.first_offset}, expected {offset}")
                offset = header.end_offset
                yield header, [record for record in records if record.offset > self.trim_offset]
        if offset not in (-1, self.end_offset):
            raise _corrupt(self, self.live[-1][0], f"ends at offset {offset}, expected {self.end_offset}")

    async def records(self) -> AsyncIterator[RecoveredRecord]:
        """Yield the records that are not trimmed, in order. Raises as `objects`."""
        async for _, records in self.objects():
            for record in records:
                yield record

    async def drop(self) -> None:
        """Delete what is not read: for a caller that has put a later object, which names the first live one."""
        await self.store.delete([self.name.key(position) for position in self.dropped])

    async def finish(self, by: EndedBy) -> None:
        """Mark the log as empty up to `epoch`, durably, and delete all its objects except the ends.

        For a takeover by the node `by`, which owns `epoch`, once everything that was read is committed. Raises
        WalFenced when another node has taken the log over meanwhile; StoreAway.
        """
        position = Position(self.epoch, 0)
        header = new_end(Flags.CLOSED, position, position, trim_offset=self.end_offset - 1, offset=self.end_offset)
        key = self.name.key(position)
        if not await self.store.create(key, [encode_end(self.name, header, by)]):
            raise WalFenced(f"{self.store.name}:{key}: another node has taken this log over")
        live = [position for position, _ in self.live]
        await self.store.delete([self.name.key(each) for each in (*self.dropped, *live)])

    async def _read(self, position: Position, size_bytes: int) -> memoryview:
        data = await self.store.read(self.name.key(position), size_bytes)
        if data is None:
            raise _corrupt(self, position, "is missing: it was deleted since it was listed")
        return data

    def _decode(self, position: Position, data: memoryview) -> tuple[ObjectHeader, Sequence[RecoveredRecord]]:
        header = decode_header(self.name, position, data)
        if isinstance(header, str):
            raise _corrupt(self, position, header)
        records = decode_body(self.name, header, data)
        if isinstance(records, str):
            raise _corrupt(self, position, records)
        return header, records


async def end_log(store: LogStore, name: LogName, epoch: int, by: EndedBy, *, first_epoch: int = 1) -> ObjectLogTail:
    """Fence the node's log up to the epoch before `epoch`, and return what it holds.

    `epoch` is the node's newest one, in force in the catalog already; `by` is the node that recovers, which may be the
    same. Epochs before `first_epoch` are known to have no log. Raises WalFenced when there is an object of `epoch` or a
    later one, WalCorrupt for damage, StoreAway.
    """
    recovery = _Recovery(store, name, epoch, by, Position(first_epoch, 0))
    try:
        listing, newest = await recovery.list_all()
        await recovery.fence(listing, recovery.first_live(newest))
        listing, newest = await recovery.list_all()
        return await recovery.tail(listing, newest)
    except WalCorrupt:
        await list_log(store, name, epoch)
        raise


async def list_log(store: LogStore, name: LogName, epoch: int) -> Mapping[Position, int]:
    """Return the log's objects with their sizes. Raises WalFenced if one is of `epoch` or a later one; StoreAway."""
    listing: dict[Position, int] = {}
    async for each in store.list(name.prefix):
        position = name.parse_key(each.key)
        if position is not None:
            listing[position] = each.size_bytes
    newest = max(listing, default=None)
    if newest is not None and newest.epoch >= epoch:
        raise WalFenced(
            f"{store.name}:{name.key(newest)}: the log was claimed with node epoch {newest.epoch}, this node's is "
            f"{epoch}: this node refuses writes"
        )
    return listing


class _Recovery:
    """The steps of `end_log`."""

    def __init__(self, store: LogStore, name: LogName, epoch: int, by: EndedBy, first: Position) -> None:
        self.store: Final = store
        self.name: Final = name
        self._epoch: Final = epoch
        self._by: Final = by
        self._first: Final = first

    def first_live(self, newest: ObjectHeader | None) -> Position:
        """Return the first live position, given the newest header that names one."""
        return self._first if newest is None else max(self._first, newest.first_live)

    async def list_all(self) -> tuple[Mapping[Position, int], ObjectHeader | None]:
        """Return the log's objects with their sizes, and the header of the newest one that is not a fence.

        Later objects name later ones: the newest names the largest first live position of all.
        """
        for _ in range(_LISTINGS_MAX):
            listing = await list_log(self.store, self.name, self._epoch)
            try:
                return listing, await self._newest(listing)
            except _ListedObjectGone:
                continue
        raise WalCorrupt(
            f"{self.store.name}:{self.name.prefix}: objects are deleted while the log is recovered: another node "
            "recovers it, or its former owner still commits"
        )

    async def _newest(self, listing: Mapping[Position, int]) -> ObjectHeader | None:
        """Return the header of the newest object that is not a fence; None without one."""
        for position in sorted(listing, reverse=True):
            header = await self._header(position)
            if header is None:
                raise _ListedObjectGone
            if isinstance(header, str):
                raise _corrupt(self, position, header)
            if not header.flags & Flags.FENCE:
                return header
        return None

    async def _header(self, position: Position) -> ObjectHeader | str | None:
        """Return the header of an object, why it is not valid, or None if there is no such object."""
        data = await self.store.read(self.name.key(position), HEADER_BYTES)
        return None if data is None else decode_header(self.name, position, data)

    async def fence(self, listing: Mapping[Position, int], first: Position) -> None:
        """Put a fence into each epoch from the first live position on that has no end."""
        open_epochs = [
            epoch for epoch in range(first.epoch, self._epoch) if _end(listing, _start(epoch, first)) is None
        ]
        for at in range(0, len(open_epochs), _CALLS_MAX):
            await _all(self._fence(listing, _start(epoch, first)) for epoch in open_epochs[at : at + _CALLS_MAX])

    async def _fence(self, listing: Mapping[Position, int], start: Position) -> None:
        """Put a fence at the first missing sequence from `start` on, unless there is an end before it."""
        position = start
        while position in listing:
            position = _next(position)
        while True:
            key = self.name.key(position)
            if await self.store.create(
                key, [encode_end(self.name, new_end(Flags.FENCE, position, position), self._by)]
            ):
                _LOG.info("fenced the log of an earlier epoch", key=key, store=self.store.name)
                return
            header = await self._header(position)
            if isinstance(header, str):
                raise _corrupt(self, position, header)
            if header is not None and header.flags:
                return
            # The former owner's object, or one that a node which recovers the log, too, has dropped since.
            position = _next(position)

    async def tail(self, listing: Mapping[Position, int], newest: ObjectHeader | None) -> ObjectLogTail:
        """Return what the ended log holds. Raises WalCorrupt if an object is missing."""
        first = self.first_live(newest)
        starts = [_start(epoch, first) for epoch in range(first.epoch, self._epoch)]
        ends = [self._known_end(listing, start) for start in starts]
        live: list[tuple[Position, int]] = []
        for start, end in zip(starts, ends, strict=True):
            for sequence in range(start.sequence, end.sequence):
                position = Position(start.epoch, sequence)
                if position not in listing:
                    raise _corrupt(self, position, f"is missing: expected all up to the end at {self.name.key(end)}")
                live.append((position, listing[position]))
        kept = {position for position, _ in live}
        return ObjectLogTail(
            self.store,
            self.name,
            self._epoch,
            first,
            -1 if newest is None else newest.trim_offset,
            await self._end_offset(ends),
            live,
            [each for each, size_bytes in listing.items() if size_bytes != END_BYTES and each not in kept],
        )

    def _known_end(self, listing: Mapping[Position, int], start: Position) -> Position:
        end = _end(listing, start)
        if end is None:
            raise _corrupt(self, start, "its epoch has no end although one was put: an end was deleted")
        return end

    async def _end_offset(self, ends: Sequence[Position]) -> int:
        """Return the logical offset past the newest object that is part of the log."""
        for end in reversed(ends):
            header = await self._header(end)
            if not isinstance(header, ObjectHeader) or not header.flags:
                raise _corrupt(self, end, f"is no end: {header or 'is missing'}")
            if header.flags & Flags.CLOSED:
                return header.end_offset
            if end.sequence:
                before = Position(end.epoch, end.sequence - 1)
                header = await self._header(before)
                if not isinstance(header, ObjectHeader):
                    raise _corrupt(self, before, header or "is missing")
                return header.end_offset
        return 0


class _ListedObjectGone(Exception):
    """An object was deleted since it was listed: the listing is too old."""


def _start(epoch: int, first: Position) -> Position:
    """Return the first live position of an epoch."""
    return first if epoch == first.epoch else Position(epoch, 0)


def _next(position: Position) -> Position:
    return Position(position.epoch, position.sequence + 1)


def _end(listing: Mapping[Position, int], start: Position) -> Position | None:
    """Return the first end of an epoch from `start` on."""
    ends = [each for each, size in listing.items() if size == END_BYTES and each.epoch == start.epoch]
    return min((each for each in ends if each >= start), default=None)


def _rounds(objects: Sequence[tuple[Position, int]]) -> Iterator[Sequence[tuple[Position, int]]]:
    """Yield objects in groups that are read side by side."""
    some: list[tuple[Position, int]] = []
    for position, size_bytes in objects:
        if len(some) == _CALLS_MAX or (some and sum(size for _, size in some) + size_bytes > _READ_BYTES_MAX):
            yield some
            some = []
        some.append((position, size_bytes))
    if some:
        yield some


async def _all(works: Iterator[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all concurrently, and return their results in order. Raises the first WalError in that order."""

    async def outcome(work: Coroutine[Any, Any, T]) -> T | WalError:
        try:
            return await work
        except WalError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outcome(work)) for work in works]
    results: list[T] = []
    for task in tasks:
        result = task.result()
        if isinstance(result, WalError):
            raise result
        results.append(result)
    return results


def _corrupt(log: ObjectLogTail | _Recovery, position: Position, found: str) -> WalCorrupt:
    return WalCorrupt(
        f"{log.store.name}:{log.name.key(position)}: object log: {found}: acked records from there on cannot be read; "
        "bring the object back, or accept the loss with `anabranch wal give-up`"
    )
