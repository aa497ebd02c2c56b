"""Faults that a test asks for, and the places where they act: the handlers of requests, and the object stores.

A node without requested faults has none of this; `broker.cluster.membership.environment` installs them.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from anabranch.broker.operator.dev.request_faults import RequestFaults
from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.interface import CallCounts, MultipartUpload, ObjectStore, StoredObject, TailRead
from anabranch.wal.interface import Buffer


class Faults:
    """The faults in force."""

    def __init__(self) -> None:
        self.store_delay_s = 0.0
        self.requests = RequestFaults()

    def clear(self) -> None:
        """End all faults."""
        self.store_delay_s = 0.0
        self.requests.clear()

    def wrap_stores(self, stores: Mapping[str, ObjectStore]) -> Mapping[str, ObjectStore]:
        """Return stores that are as slow as they should be."""
        return {name: _SlowStore(store, self) for name, store in stores.items()}


class _SlowStore:
    """A store each of whose calls takes longer. Parts of a multipart upload count with its start."""

    def __init__(self, store: ObjectStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def calls(self) -> CallCounts:
        return self._store.calls

    async def _delay(self) -> None:
        if self._faults.store_delay_s:
            await asyncio.sleep(self._faults.store_delay_s)

    def uri(self, key: str) -> str:
        return self._store.uri(key)

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        await self._store.close()

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        await self._delay()
        await self._store.put(key, parts, writer_id=writer_id, pace=pace)

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        await self._delay()
        return await self._store.start_multipart(key, writer_id=writer_id)

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        await self._delay()
        await self._store.abort_multipart(key, upload_id)

    async def get(self, key: str, start: int, end: int) -> memoryview:
        await self._delay()
        return await self._store.get(key, start, end)

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        await self._delay()
        return await self._store.get_tail(key, size_bytes)

    async def writer_id(self, key: str) -> str | None:
        await self._delay()
        return await self._store.writer_id(key)

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        await self._delay()
        return await self._store.delete(keys)

    async def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        await self._delay()
        async for found in self._store.list(prefix):
            yield found
