"""Marks in the object store of how far the catalog has come. They stay when its database goes back to an earlier state.

A database may forget what it has committed: after a failover to a standby that was behind, or when a copy is put in its
place. The records that were uploaded meanwhile are in no log any more, and a catalog that does not know them gives
their offsets again. So each upload leaves a mark after its commit and before the log is trimmed: a small object in the
default store, whose key has all its content:

    mark/<cluster>/<catalog id>/<node id>/<uploads that the node has committed>-<newest change that it has seen>

A catalog that is behind any of its marks has gone back. One LIST compares them all. Marks of owners
(`object/owner_marks.py`) have longer keys, which say the same, and a content.

Invariants:

- A mark is put only for a state that the catalog has reported as committed, so a catalog that keeps its commits has it.
- A mark of an upload is deleted only after another one of its node, of at least the same state, is in the store.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

import structlog

from anabranch.s3stream.catalog.progress import CatalogProgress
from anabranch.s3stream.errors import ObjectExists, StoreError
from anabranch.s3stream.store.interface import ObjectStore

MARK_KEYS: Final = "mark/"
"""Beginning of the keys of all marks."""
DIGITS: Final = 20
TIDIED_EVERY: Final = 16
"""Marks that a process puts between two deletions of older ones."""

log = structlog.get_logger(__name__)


class Mark(NamedTuple):
    """Lower bounds of what a catalog has."""

    node_id: int
    uploads: int
    """Number of uploads that the catalog has committed for the node."""
    change: int
    """Number of the newest change that the node has seen."""
    opened: tuple[int, int] | None = None
    """Of a mark of owners, one of its streams and that stream's epoch; None: of an upload."""

    def includes(self, other: "Mark") -> bool:
        """Return whether this says all that another mark of the node says."""
        return self.uploads >= other.uploads and self.change >= other.change


class MarkPlace(NamedTuple):
    """Place of the marks of a catalog in a store."""

    store: ObjectStore
    """The default store."""
    cluster: str
    catalog_id: bytes

    @property
    def prefix(self) -> str:
        """Beginning of the keys."""
        return f"{MARK_KEYS}{self.cluster}/{self.catalog_id.hex()}/"

    def key(self, mark: Mark) -> str:
        """Return the key that says what the mark says."""
        end = "".join(f"-{number}" for number in mark.opened or ())
        return f"{self.prefix}{mark.node_id}/{mark.uploads:0{DIGITS}}-{mark.change:0{DIGITS}}{end}"

    def parse(self, key: str) -> Mark | None:
        """Return what a key says; None for any other key."""
        node, _, numbers = key.removeprefix(self.prefix).partition("/")
        fields = (node, *numbers.split("-"))
        if len(fields) not in {3, 5} or not all(field.isascii() and field.isdigit() for field in fields):
            return None
        node_id, uploads, change, *opened = map(int, fields)
        mark = Mark(node_id, uploads, change, (opened[0], opened[1]) if opened else None)
        return mark if self.key(mark) == key else None

    async def list(self, node_id: int | None = None) -> list[Mark]:
        """Return the marks of one node or of all, in one listing. Raises StoreError."""
        prefix = self.prefix if node_id is None else f"{self.prefix}{node_id}/"
        return [mark async for item in self.store.list(prefix) if (mark := self.parse(item.key)) is not None]

    async def read(self) -> CatalogProgress:
        """Return what all marks say together. Raises StoreError."""
        found = CatalogProgress()
        for mark in await self.list():
            found = found.joined(CatalogProgress(mark.change, {mark.node_id: mark.uploads}))
        return found


class MarkWriter:
    """Writes the marks of one node."""

    def __init__(self, place: MarkPlace, node_id: int, new_writer_id: Callable[[], str]) -> None:
        self.place = place
        self._node_id = node_id
        self._new_writer_id = new_writer_id
        self._written = 0

    async def write(self, seen: CatalogProgress) -> None:
        """Put a mark of the state that the catalog was seen to have. Raises StoreError.

        The first mark of a process, and one of some later ones, deletes older ones.
        """
        mark = Mark(self._node_id, seen.uploads.get(self._node_id, 0), seen.change)
        with suppress(ObjectExists):  # it says the same
            await self.place.store.put(self.place.key(mark), [b"mark"], writer_id=self._new_writer_id())
        self._written += 1
        if self._written % TIDIED_EVERY == 1:
            await self._delete_older(mark)

    async def _delete_older(self, newest: Mark) -> None:
        """Delete marks that the newest one includes. Failed deletions are repeated the next time."""
        try:
            marks = [mark for mark in await self.place.list(self._node_id) if mark.opened is None]
            older = [self.place.key(mark) for mark in marks if mark != newest and newest.includes(mark)]
            failures = await self.place.store.delete(older) if older else {}
        except StoreError as error:
            log.warning("older marks of uploads are left in the store", reason=str(error))
        else:
            for key, failure in failures.items():
                log.warning("an older mark of an upload is left in the store", key=key, reason=str(failure))
