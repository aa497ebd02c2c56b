"""Errors of the storage engine. Each message names the problem, its place, and what was expected there."""

from typing import NamedTuple


class StorageError(Exception):
    """Any error of the storage engine."""


class StorageFull(StorageError):
    """No room for the append until an upload has freed some. Nothing was appended; the caller waits and retries."""


class LogStalled(StorageFull):
    """The log does not acknowledge what it has taken. Nothing was appended; clients are to try again later."""


class StreamSealed(StorageFull):
    """The stream is being handed over to another node. Nothing was appended: wait for the outcome, and repeat."""


class HandoverRefused(StorageError):
    """A stream cannot be handed over, or received, at the moment. Nothing has changed."""


class AppendTooLarge(StorageError):
    """The append is larger than the WAL ever accepts. Nothing was appended; waiting does not help."""


class StorageStopped(StorageError):
    """The engine refuses appends: the WAL failed, the node was fenced, or it is closing. The message is the reason."""


class StreamFenced(StorageError):
    """The caller's stream epoch or node epoch is older than the catalog's."""


class StreamNotFound(StorageError):
    """The catalog has no such stream; it may have been deleted."""


class OffsetOutOfRange(StorageError):
    """A read outside [start offset, confirmed offset], or an append that does not start at the end."""


class Place(NamedTuple):
    """Part of an object that is read and checked as a whole."""

    object_id: int
    store: str
    key: str
    position: int
    """Position of a block; -1: the object as a whole, or its index."""


class ObjectDamage(StorageError):
    """An object is corrupt or missing. If it is committed, waiting does not help, in contrast to an outage."""

    place: Place | None = None
    """Place that was read, if it is known."""


class CorruptObject(ObjectDamage):
    """An object's bytes do not match their checksum or format. Names object, position, expected and found."""

    def __init__(self, message: str, *, position: int = -1, expected: str = "", found: str = "") -> None:
        """`position` in the object, or -1 for the object as a whole."""
        super().__init__(message)
        self.position = position
        self.expected = expected
        self.found = found


class Discontinuity(StorageError):
    """A gap between what is committed and what was recovered: the stream is stopped (invariant 11)."""


class UnknownStreams(StorageError):
    """The WAL holds records of streams that the catalog never created: one of the two is the wrong one."""


class CatalogError(StorageError):
    """The catalog refused a command (stale range, unknown object, illegal state change): nothing has changed.

    Its subclasses are such refusals, except `CatalogUnavailable` and `CatalogDamaged`.
    """


class CatalogUnavailable(CatalogError):
    """The catalog cannot be reached or cannot work at the moment (disk full, shutdown): the call may succeed later."""


class OutcomeUnknown(CatalogUnavailable):
    """A command may or may not have taken effect: its commit was not answered, and repeating it did not show it either.

    Never undo what belongs to such a command: repeat it, or look its outcome up in the catalog.
    """


class CatalogDamaged(CatalogError):
    """The catalog's database is damaged or not a catalog: nothing more is written to it. The message names remedies."""


class CatalogWentBack(CatalogDamaged):
    """The catalog lacks what it had committed: its database is an earlier state. Nothing more is written to it."""


class NodeFenced(CatalogError):
    """Another process has registered with this node's id and a higher epoch."""


class NodeStopped(CatalogError):
    """The node has stopped cleanly, and its streams are released. Its process must not open new ones."""


class NodeInUse(CatalogError):
    """The node cannot be removed, because it is running or leads partitions."""


class NodeUnavailable(CatalogError):
    """The node cannot lead partitions: it is not registered, or is being drained."""


class EndMoved(CatalogError):
    """A stream's committed end is not where the command expects it: look it up again, and repeat."""


class TableChanged(CatalogError):
    """Another commit has changed the table: read it again, and make a new one."""


class AlreadyExists(CatalogError):
    """A topic, partition or table of that name exists."""


class StreamHeld(CatalogError):
    """A stream cannot be opened: another log may hold acknowledged records past its end, or another node leads it."""


class NotFound(CatalogError):
    """No such topic, partition, object or table."""


class StoreError(StorageError):
    """An object store call failed: it must not be retried, or its retries ran out."""


class ObjectNotFound(StoreError, ObjectDamage):
    """The store has no object under that key."""


class ObjectTooShort(StoreError, ObjectDamage):
    """The object under that key ends before the requested bytes."""


class ObjectExists(StoreError):
    """A conditional PUT found an object of another writer under the key."""
