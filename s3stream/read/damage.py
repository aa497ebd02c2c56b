"""Keeps a list of the committed objects that could not be read because they are corrupt or missing.

An outage passes; damage stays until an operator restores the object or gives it up. So each damaged position is listed
in the node's status and logged once. It is forgotten when the place can be read again, or when the catalog no longer
lists the object.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CorruptObject, ObjectDamage, ObjectNotFound, Place
from anabranch.s3stream.model import ObjectState

log = structlog.get_logger("storage")

ENTRIES_MAX: Final = 1000
"""Places kept; reads of further ones are only counted."""
STREAMS_MAX: Final = 100
"""Streams kept of one place."""
LINES_MAX: Final = 10
"""Log lines within `LINES_MS`."""
LINES_MS: Final = 60_000
WHOLE: Final = -1
"""Position of damage to an object as a whole: a missing object, or its index."""
ADVICE: Final = "`anabranch storage verify --deep` lists all damage; restore the object under its key, or read past it"


@dataclass(slots=True)
class Damage:
    """Damage at one place, and the streams whose reads found it."""

    place: Place
    position: int
    """Position of the damage in the object; -1: the object as a whole."""
    expected: str
    found: str
    reason: str
    since_ms: int
    last_ms: int
    times: int = 0
    streams: set[str] = field(default_factory=set)
    """Labels of the streams."""

    def as_json(self) -> dict[str, Any]:
        """Return the entry of the `/api/v1/status` page."""
        return {
            "store": self.place.store,
            "key": self.place.key,
            "object_id": self.place.object_id,
            "position": None if self.position < 0 else self.position,
            "expected": self.expected,
            "found": self.found,
            "reason": self.reason,
            "since_ms": self.since_ms,
            "last_ms": self.last_ms,
            "times": self.times,
            "partitions": sorted(self.streams),
            "advice": ADVICE,
        }


class DamagedObjects:
    """The damage that reads have found since the node started, and that may still exist."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._entries: dict[Place, Damage] = {}
        self._lines_from_ms = 0
        self._lines = 0
        self.reads = 0
        """Reads that failed because of damage."""

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> Iterable[Damage]:
        """Return the known damage, the oldest first."""
        return self._entries.values()

    def note(self, error: ObjectDamage, stream: str = "") -> None:
        """Note the damage that made a read fail; log it if a stream's label is given, else the caller logs it."""
        self.reads += 1
        place = error.place
        if place is None:
            return
        if isinstance(error, ObjectNotFound):
            place = place._replace(position=WHOLE)
        now_ms = self._now_ms()
        entry = self._entries.get(place)
        if entry is None:
            if len(self._entries) >= ENTRIES_MAX:
                return
            entry = self._entries[place] = _describe(place, error, now_ms)
        if stream and not entry.streams:
            self._log(entry, stream, now_ms)
        entry.last_ms = now_ms
        entry.times += 1
        if stream and len(entry.streams) < STREAMS_MAX:
            entry.streams.add(stream)

    def mark_readable(self, place: Place) -> None:
        """Forget the damage of a place that was read and checked. Cheap while there is no damage."""
        if self._entries:
            whole = place._replace(position=WHOLE)
            for each in {place, whole}:
                entry = self._entries.get(each)
                if entry is not None and (each == place or entry.found == _MISSING):
                    del self._entries[each]
                    log.info("a damaged object can be read again", store=place.store, key=place.key)

    @contextmanager
    def noting(self, stream: str) -> Iterator[None]:
        """Note the damage that the body raises when it reads for a stream, given by its label."""
        try:
            yield
        except ObjectDamage as error:
            self.note(error, stream)
            raise

    async def forget_removed(self, catalog: Catalog) -> None:
        """Forget the objects that are no longer committed, and so no longer read. Raises CatalogError."""
        if places := list(self._entries):
            known = await catalog.get_objects(sorted({place.object_id for place in places}))
            committed = {object_id for object_id, info in known.items() if info.state is ObjectState.COMMITTED}
            for place in places:
                if place.object_id not in committed:
                    self._entries.pop(place, None)

    def _log(self, entry: Damage, stream: str, now_ms: int) -> None:
        if not 0 <= now_ms - self._lines_from_ms < LINES_MS:
            self._lines_from_ms, self._lines = now_ms, 0
        self._lines += 1
        if self._lines <= LINES_MAX:
            log.error("an object is damaged", partition=stream, reason=entry.reason, advice=ADVICE)


_MISSING: Final = "no object"


def _describe(place: Place, error: ObjectDamage, now_ms: int) -> Damage:
    position, expected, found = place.position, "an object of the committed size", str(error)
    if isinstance(error, CorruptObject):
        position, expected, found = error.position, error.expected, error.found
    elif isinstance(error, ObjectNotFound):
        position, expected, found = WHOLE, "a committed object", _MISSING
    return Damage(place, position, expected, found, str(error), now_ms, now_ms)
