"""Marks in the object store of how far the catalog has come: they stay when its database goes back to an earlier state.

A database may forget what it has committed: after a failover to a standby that was behind, or when a copy is restored.
What was uploaded meanwhile is in no log any more, and a catalog that does not know it gives the same offsets again. So
each upload, once it is committed and before the log is trimmed, leaves a mark: an object whose key says all, in the
default store:

    mark/<cluster>/<node id>/<newest object that the node has committed>-<newest change of the catalog that it has seen>

A catalog that has less than any mark says has gone back. One LIST compares all.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from s3stream.catalog.values import CatalogProgress
from s3stream.errors import ObjectExists
from s3stream.store.interface import ObjectStore

MARK_KEYS: Final = "mark/"
"""Beginning of the keys of all marks."""
DIGITS: Final = 20
KEPT_MAX: Final = 16
"""Marks of a node in the store: older ones are deleted together, in one call."""


class Mark(NamedTuple):
    """Lower bounds of what a catalog has."""

    node_id: int
    object_id: int
    """Newest object that an upload of the node has committed."""
    change: int
    """Number of the newest change that the node has seen."""

    def and_all_of(self, other: "Mark") -> "Mark":
        """Return the mark of the same node that says what both say."""
        return Mark(self.node_id, max(self.object_id, other.object_id), max(self.change, other.change))

    def key(self, cluster: str) -> str:
        """Return the key that says this."""
        return f"{mark_prefix(cluster)}{self.node_id}/{self.object_id:0{DIGITS}}-{self.change:0{DIGITS}}"


def mark_prefix(cluster: str) -> str:
    """Return the beginning of the keys of a cluster's marks."""
    return f"{MARK_KEYS}{cluster}/"


def parse_mark(key: str, cluster: str) -> Mark | None:
    """Return what a key says; None for any other key."""
    node, _, numbers = key.removeprefix(mark_prefix(cluster)).partition("/")
    fields = (node, *numbers.split("-"))
    if len(fields) != 3 or not all(field.isascii() and field.isdigit() for field in fields):
        return None
    mark = Mark(*map(int, fields))
    return mark if mark.key(cluster) == key else None


async def newest_marks(store: ObjectStore, cluster: str) -> Mapping[int, Mark]:
    """Return the highest numbers of each node's marks, by node id. Raises StoreError."""
    found: dict[int, Mark] = {}
    async for item in store.list(mark_prefix(cluster)):
        mark = parse_mark(item.key, cluster)
        if mark is not None:
            found[mark.node_id] = mark.and_all_of(found.get(mark.node_id, mark))
    return found


def why_behind(progress: CatalogProgress, marks: Mapping[int, Mark]) -> str:
    """Return what the catalog lacks of what the marks say; empty if nothing."""
    lacks = [
        f"the upload of object {mark.object_id} by node {mark.node_id} (it knows {progress.uploaded(mark.node_id)})"
        for mark in marks.values()
        if mark.object_id > progress.uploaded(mark.node_id)
    ]
    change = max((mark.change for mark in marks.values()), default=0)
    if change > progress.change:
        lacks.append(f"change {change} (it knows {progress.change})")
    return ", ".join(lacks)


class MarkWriter:
    """Writes the marks of one node."""

    def __init__(self, store: ObjectStore, cluster: str, node_id: int, new_writer_id: Callable[[], str]) -> None:
        self.store = store
        self._cluster = cluster
        self._node_id = node_id
        self._new_writer_id = new_writer_id
        self._newest = Mark(node_id, 0, 0)
        self._keys: list[str] | None = None

    async def write(self, object_id: int, change: int) -> None:
        """Put a mark that says this and all that earlier ones say, and sometimes delete those. Raises StoreError."""
        if self._keys is None:
            keys = [item.key async for item in self.store.list(f"{mark_prefix(self._cluster)}{self._node_id}/")]
            for mark in filter(None, (parse_mark(key, self._cluster) for key in keys)):
                self._newest = self._newest.and_all_of(mark)
            self._keys = keys
        self._newest = self._newest.and_all_of(Mark(self._node_id, object_id, change))
        key = self._newest.key(self._cluster)
        with suppress(ObjectExists):  # it says the same
            await self.store.put(key, [b"mark"], writer_id=self._new_writer_id())
        self._keys.append(key)
        if len(self._keys) > KEPT_MAX:
            old, self._keys = self._keys[:-1], self._keys[-1:]
            await self.store.delete([each for each in old if each != key])
