"""The object store of a node's log, as the object log (`wal.object`) asks for it."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from anabranch.s3stream.errors import ObjectExists, ObjectNotFound, ObjectTooShort, StoreError
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import Buffer
from anabranch.wal.object.store import ListedObject, StoreAway


class ObjectLogStore:
    """A `LogStore` in an object store, for one writer.

    `writer_id` must differ at each start of a node: it distinguishes the writer's own objects, whose PUT was not
    answered, from those of others.
    """

    def __init__(self, store: ObjectStore, writer_id: str) -> None:
        self._store: Final = store
        self._writer_id: Final = writer_id

    @property
    def name(self) -> str:
        """Name of the store in the node's settings."""
        return self._store.name

    async def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        """Create the object unless there is one; False if the key has an object of another writer."""
        try:
            await self._store.put(key, parts, writer_id=self._writer_id)
        except ObjectExists:
            return False
        except StoreError as error:
            raise StoreAway(str(error)) from error
        return True

    async def read(self, key: str, size_bytes: int) -> memoryview | None:
        """Return the first `size_bytes` of an object, fewer if it is shorter; None if there is no such object."""
        try:
            try:
                return await self._store.get(key, 0, size_bytes)
            except ObjectTooShort:
                return (await self._store.get_tail(key, size_bytes)).data
        except ObjectNotFound:
            return None
        except StoreError as error:
            raise StoreAway(str(error)) from error

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        """Delete objects; return the keys that may be left."""
        try:
            return list(await self._store.delete(keys))
        except StoreError as error:
            raise StoreAway(str(error)) from error

    async def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        """Yield all objects whose keys begin with `prefix`, in key order."""
        try:
            async for stored in self._store.list(prefix):
                yield ListedObject(stored.key, stored.size_bytes, stored.modified_ms)
        except StoreError as error:
            raise StoreAway(str(error)) from error
