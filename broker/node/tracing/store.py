"""An object store whose calls are traced. Calls of maintenance (delete, list, abort) pass through."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.interface import (
    CallCounts,
    MultipartUpload,
    ObjectStore,
    PartReceipt,
    StoredObject,
    TailRead,
)
from anabranch.wal.interface import Buffer

TraceCall = Callable[[str, str, str, int], AbstractContextManager[None]]
"""Encloses a call, given its name, the store's name, the object's key and the number of bytes."""


class TracedStore:
    """A store that encloses each call."""

    def __init__(self, store: ObjectStore, trace: TraceCall) -> None:
        self._store = store
        self._trace = trace

    @property
    def name(self) -> str:
        """Name of the store in the catalog."""
        return self._store.name

    @property
    def calls(self) -> CallCounts:
        """Counters since the store was opened."""
        return self._store.calls

    def uri(self, key: str) -> str:
        """Return the address of an object for other programs."""
        return self._store.uri(key)

    async def open(self) -> None:
        """Open the store."""
        await self._store.open()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        """Create an object."""
        with self._trace("PUT", self.name, key, sum(map(len, parts))):
            await self._store.put(key, parts, writer_id=writer_id, pace=pace)

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        """Start a multipart upload."""
        with self._trace("start multipart", self.name, key, 0):
            upload = await self._store.start_multipart(key, writer_id=writer_id)
        return _TracedUpload(upload, self.name, key, self._trace)

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort an upload that a crashed process left behind."""
        await self._store.abort_multipart(key, upload_id)

    async def get(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes [start, end)."""
        with self._trace("GET", self.name, key, end - start):
            return await self._store.get(key, start, end)

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        """Return the last bytes."""
        with self._trace("GET", self.name, key, size_bytes):
            return await self._store.get_tail(key, size_bytes)

    async def writer_id(self, key: str) -> str | None:
        """Return the id of the object's writer."""
        return await self._store.writer_id(key)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete objects."""
        return await self._store.delete(keys)

    def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """Yield the objects with a prefix."""
        return self._store.list(prefix)


class _TracedUpload:
    """A multipart upload that encloses each call."""

    def __init__(self, upload: MultipartUpload, store: str, key: str, trace: TraceCall) -> None:
        self._upload = upload
        self._store = store
        self._key = key
        self._trace = trace

    @property
    def upload_id(self) -> str:
        """The store's id of the upload."""
        return self._upload.upload_id

    async def put_part(self, number: int, parts: Sequence[Buffer], *, pace: Pace | None = None) -> PartReceipt:
        """Send a part."""
        with self._trace("PUT part", self._store, self._key, sum(map(len, parts))):
            return await self._upload.put_part(number, parts, pace=pace)

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        """Copy bytes of another object into a part."""
        with self._trace("COPY part", self._store, self._key, end - start):
            return await self._upload.copy_part(number, source_key, start, end)

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Make the object visible."""
        with self._trace("complete multipart", self._store, self._key, sum(each.size_bytes for each in receipts)):
            await self._upload.complete(receipts)

    async def abort(self) -> None:
        """Abort the upload."""
        await self._upload.abort()
