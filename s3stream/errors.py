"""Errors of the storage engine. Each message says what, where, and what was expected."""

from typing import NamedTuple


class StorageError(Exception):
    """Any error of the storage engine."""


class StorageFull(StorageError):
    """No room for the append until an upload has freed some. Nothing was appended; the caller waits and retries."""


class AppendTooLarge(StorageError):
    """The WAL never takes an append of this size. Nothing was appended; waiting does not help."""


class StorageStopped(StorageError):
    """The engine takes no more appends: the WAL failed, the node was fenced, or it is closing. Says why."""


class StreamFenced(StorageError):
    """The caller's stream epoch or node epoch is older than the catalog's."""


class StreamNotFound(StorageError):
    """The catalog has no such stream (any more)."""


class OffsetOutOfRange(StorageError):
    """A read outside [start offset, confirmed offset], or an append that does not start at the end."""


class Place(NamedTuple):
    """Part of an object that is read, and checked, as one."""

    object_id: int
    store: str
    key: str
    position: int
    """Of a block; -1: the object as a whole, or its index."""


class ObjectDamage(StorageError):
    """An object is corrupt or missing. Where it is a committed one, waiting does not help, as it does in an outage."""

    place: Place | None = None
    """What was read, as far as it is known."""


class CorruptObject(ObjectDamage):
    """An object's bytes do not match their checksum or format. Names object, position, expected and found."""

    def __init__(self, message: str, *, position: int = -1, expected: str = "", found: str = "") -> None:
        """`position` in the object, or -1: of the object as a whole."""
        super().__init__(message)
        self.position = position
        self.expected = expected
        self.found = found


class Discontinuity(StorageError):
    """A gap between what is committed and what was recovered: the stream is stopped (invariant 11)."""


class UnknownStreams(StorageError):
    """The WAL holds records of streams that the catalog has never made: one of the two is the wrong one."""


class CatalogError(StorageError):
    """The catalog refused a command (stale range, unknown object, illegal state change): nothing has changed.

    Its subclasses are refusals of the same kind, but for `CatalogUnavailable` and `CatalogDamaged`.
    """


class CatalogUnavailable(CatalogError):
    """The catalog cannot be reached, or cannot work just now (disk full, going down): the call may succeed later."""


class OutcomeUnknown(CatalogUnavailable):
    """A command may have taken effect, or not: its commit was never answered, and repeating it has not told either.

    Never undo what belongs to such a command: repeat it, or ask the catalog what became of it.
    """


class CatalogDamaged(CatalogError):
    """The catalog's database is damaged, or is no catalog any more: no more is written to it. Says what can be done."""


class NodeFenced(CatalogError):
    """Another process registered with this node's id and a higher epoch."""


class NodeInUse(CatalogError):
    """The node lives, or leads partitions, so that it cannot be removed."""


class EndMoved(CatalogError):
    """A stream's committed end is not where the command expects it: look again, and repeat."""


class AlreadyExists(CatalogError):
    """A topic or partition of that name exists."""


class NotFound(CatalogError):
    """No such topic, partition or object."""


class StoreError(StorageError):
    """An object store call failed for good: not retried, or retries ran out."""


class ObjectNotFound(StoreError, ObjectDamage):
    """No object under that key."""


class ObjectTooShort(StoreError, ObjectDamage):
    """The object under that key ends before the bytes asked for."""


class ObjectExists(StoreError):
    """A conditional put met an object of another writer."""
