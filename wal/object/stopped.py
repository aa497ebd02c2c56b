"""Reads the log of a node that has stopped, without ending or changing it."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.wal.interface import RecoveredRecord, WalCorrupt
from anabranch.wal.object.format import (
    END_BYTES,
    HEADER_BYTES,
    Flags,
    LogName,
    ObjectHeader,
    Position,
    decode_body,
    decode_header,
)
from anabranch.wal.object.store import LogStore


@dataclass(frozen=True, slots=True)
class StoppedLog:
    """The objects of a node's log in a listing."""

    store: LogStore
    name: LogName
    newest: ObjectHeader
    """Header of the newest object."""
    live: Sequence[tuple[Position, int]]
    """Objects with records, with their sizes in bytes."""

    @property
    def is_empty(self) -> bool:
        """True if the log was closed, and nothing in it was left to recover."""
        return bool(self.newest.flags & Flags.CLOSED) and self.newest.first_live == self.newest.position

    async def records(self) -> AsyncIterator[RecoveredRecord]:
        """Yield all records, trimmed or not. Raises WalCorrupt for damage, naming the object; StoreAway."""
        for position, size_bytes in self.live:
            data = await self.store.read(self.name.key(position), size_bytes)
            header = _header(self.store, self.name, position, data)
            assert data is not None, "it has a header"
            records = decode_body(self.name, header, data)
            if isinstance(records, str):
                raise _corrupt(self.store, self.name, position, records)
            for record in records:
                yield record


async def find_stopped(store: LogStore, name: LogName) -> StoppedLog | None:
    """Find a node's log; None if there is none. Raises WalCorrupt if its newest object is invalid, StoreAway."""
    found: Final = [
        (position, each.size_bytes)
        async for each in store.list(name.prefix)
        if (position := name.parse_key(each.key)) is not None
    ]
    if not found:
        return None
    newest, _ = found[-1]
    header = _header(store, name, newest, await store.read(name.key(newest), HEADER_BYTES))
    return StoppedLog(store, name, header, [each for each in found if each[1] != END_BYTES])


def _header(store: LogStore, name: LogName, position: Position, data: memoryview | None) -> ObjectHeader:
    header = "it is missing: the node may be running" if data is None else decode_header(name, position, data)
    if isinstance(header, str):
        raise _corrupt(store, name, position, header)
    return header


def _corrupt(store: LogStore, name: LogName, position: Position, found: str) -> WalCorrupt:
    return WalCorrupt(f"{store.name}:{name.key(position)}: object log: {found}")
