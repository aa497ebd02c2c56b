"""The operations of an object store that the object log needs. The node provides them over its stores."""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from anabranch.wal.interface import Buffer, WalError


class StoreAway(WalError):
    """A call of the store failed. If it was a write, it may have taken effect, or may do so later."""


class ListedObject(NamedTuple):
    """An object in a listing."""

    key: str
    size_bytes: int
    modified_ms: int
    """Time of its creation by the store's clock, ms since 1970."""


class LogStore(Protocol):
    """A flat, strongly consistent map from key to immutable bytes. All calls raise StoreAway."""

    @property
    def name(self) -> str:
        """Name of the store in the node's settings."""
        ...

    async def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Create the object unless there is one; False if the key has an object of another writer.

        The object is durable when this returns True, which it does as well when this writer has created it before.
        """
        ...

    async def read(self, key: str, size_bytes: int) -> memoryview | None:
        """Return the first `size_bytes` of an object, fewer if it is shorter; None if there is no such object."""
        ...

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete objects; return the keys that may be left. Absent keys are no error."""
        ...

    def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        """Yield all objects whose keys begin with `prefix`, in key order."""
        ...
