"""Deletes ends of epochs that a node's log no longer needs, and objects whose PUTs took effect too late.

Otherwise an end is kept forever: it keeps a former owner, however long it was paused, from acknowledging a record that
nobody will read. So a sweep is the decision of a person, who knows that no process and no request is left from before a
certain age. `OBJECT_FORMAT.md` ("Sweep") says why nothing else depends on what is deleted. Invariants:

- Nothing of the first live position's epoch, or of a later one, is deleted: neither an end that a recovery counts on,
  nor the newest object, which names the first live position.
- Nothing younger than the age is deleted, by the store's own clock: the age is that before the newest object of any log
  in this store, so that no clocks are compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.wal.interface import WalCorrupt
from anabranch.wal.object.format import END_BYTES, HEADER_BYTES, Flags, LogName, Position, decode_header
from anabranch.wal.object.store import ListedObject, LogStore

DAY_MS: Final = 86_400_000
_LISTINGS_MAX: Final = 10
"""Listings until one is found whose newest object still exists: its owner trims meanwhile."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Objects of one node's log that a sweep deletes."""

    name: LogName
    first_live: Position
    """Beginning of the log, by its newest object."""
    ends: Sequence[Position]
    """Fences and closed objects of earlier epochs."""
    orphans: Sequence[Position]
    """Objects of earlier epochs that are not ends: their PUTs took effect after their epoch was read and dropped."""
    young: int
    """Objects of earlier epochs that are kept because of their age."""
    kept: int
    """Objects of the first live epoch and later ones."""

    async def execute(self, store: LogStore) -> Sequence[Position]:
        """Delete, orphans first; return what may be left. Raises StoreAway."""
        positions = [*self.orphans, *self.ends]
        left = set(await store.delete([self.name.key(position) for position in positions])) if positions else set()
        return [position for position in positions if self.name.key(position) in left]


async def plan_sweep(store: LogStore, name: LogName, *, before_ms: int) -> Sweep | None:
    """Return what may be deleted of a node's log that was last changed before a time of the store's clock.

    None if the log has no object that names a first live position. Raises WalCorrupt for a damaged object, StoreAway.
    """
    for _ in range(_LISTINGS_MAX):
        listing = {
            position: each
            async for each in store.list(name.prefix)
            if (position := name.parse_key(each.key)) is not None
        }
        try:
            first_live = await _first_live(store, name, listing)
        except _ListedObjectGone:
            continue
        return None if first_live is None else _plan(name, listing, first_live, before_ms)
    raise WalCorrupt(f"{store.name}:{name.prefix}: objects are deleted faster than they can be listed")


def _plan(name: LogName, listing: Mapping[Position, ListedObject], first_live: Position, before_ms: int) -> Sweep:
    earlier = {position: each for position, each in listing.items() if position.epoch < first_live.epoch}
    old = {position: each for position, each in sorted(earlier.items()) if each.modified_ms < before_ms}
    return Sweep(
        name,
        first_live,
        ends=[position for position, each in old.items() if each.size_bytes == END_BYTES],
        orphans=[position for position, each in old.items() if each.size_bytes != END_BYTES],
        young=len(earlier) - len(old),
        kept=len(listing) - len(earlier),
    )


async def _first_live(store: LogStore, name: LogName, listing: Mapping[Position, ListedObject]) -> Position | None:
    """Return what the newest object that is no fence names."""
    for position in sorted(listing, reverse=True):
        key = name.key(position)
        data = await store.read(key, HEADER_BYTES)
        if data is None:
            raise _ListedObjectGone
        header = decode_header(name, position, data)
        if isinstance(header, str):
            raise WalCorrupt(f"{store.name}:{key}: object log: {header}: nothing was swept")
        if not header.flags & Flags.FENCE:
            return header.first_live
    return None


async def newest_ms(store: LogStore, prefix: str) -> int:
    """Return the time of the newest object below a prefix, by the store's clock; 0 without any. Raises StoreAway."""
    newest = 0
    async for each in store.list(prefix):
        newest = max(newest, each.modified_ms)
    return newest


class _ListedObjectGone(Exception):
    """An object was deleted since it was listed."""
