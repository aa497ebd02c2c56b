"""Stops a storage engine at any of its steps: before and after each call to the catalog, the store and WAL trim.

A run without a stop lists the steps. A further run for each step then hangs at it, like a process that dies there,
until the test discards the engine.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from anabranch.s3stream.background import Pace
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.store.interface import MultipartUpload, ObjectStore, PartReceipt
from anabranch.wal.interface import Buffer
from tests.support.memory_wal import MemoryWal

CATALOG_COMMANDS = frozenset(
    {
        "open_streams",
        "prepare_objects",
        "note_multipart",
        "commit_upload",
        "trim_stream",
        "delete_topics",
        "expire_objects",
        "forget_objects",
    }
)


class Steps:
    """Counts steps. At number `stop_at` (from 0) it sets `reached` and hangs."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.names: list[str] = []
        self.reached = asyncio.Event()
        self._stop_at = stop_at
        self._changed = asyncio.Event()
        self.gates: dict[str, asyncio.Event] = {}
        """Events that steps wait for, by name of the step."""

    async def seen(self, name: str, count: int = 1) -> None:
        """Return when steps of that name have been reached `count` times."""
        while self.names.count(name) < count:
            self._changed.clear()
            await self._changed.wait()

    async def at(self, name: str) -> None:
        """Pass a step, or hang at it forever."""
        self.names.append(name)
        self._changed.set()
        if name in self.gates:
            await self.gates[name].wait()
        if self._stop_at is not None and len(self.names) > self._stop_at:
            self.reached.set()
            await asyncio.Event().wait()

    async def around(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call, with a step before it and a step after it took effect."""
        await self.at(f"before {name}")
        result = await call()
        await self.at(f"after {name}")
        return result


class _SteppedCatalog:
    def __init__(self, catalog: Catalog, steps: Steps) -> None:
        self._catalog = catalog
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._catalog, name)
        if name not in CATALOG_COMMANDS:
            return method

        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._steps.around(name, lambda: method(*args, **kwargs))

        return call


class _SteppedUpload:
    def __init__(self, upload: MultipartUpload, steps: Steps) -> None:
        self._upload = upload
        self._steps = steps
        self.upload_id = upload.upload_id
        self.copy_part = upload.copy_part
        self.abort = upload.abort

    async def put_part(self, number: int, parts: Sequence[Buffer], *, pace: Pace | None = None) -> Any:
        return await self._steps.around("put_part", lambda: self._upload.put_part(number, parts, pace=pace))

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        await self._steps.around("complete", lambda: self._upload.complete(receipts))


class _SteppedStore:
    def __init__(self, store: ObjectStore, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        await self._steps.around("put", lambda: self._store.put(key, parts, writer_id=writer_id, pace=pace))

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        upload = await self._steps.around(
            "start_multipart", lambda: self._store.start_multipart(key, writer_id=writer_id)
        )
        return cast("MultipartUpload", _SteppedUpload(upload, self._steps))

    async def delete(self, keys: Sequence[str]) -> Any:
        return await self._steps.around("delete", lambda: self._store.delete(keys))

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        await self._steps.around("abort_multipart", lambda: self._store.abort_multipart(key, upload_id))


class _SteppedWal:
    def __init__(self, wal: MemoryWal, steps: Steps) -> None:
        self._wal = wal
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wal, name)

    async def trim(self, offset: int) -> None:
        await self._steps.around("trim", lambda: self._wal.trim(offset))


def step_catalog(catalog: Catalog, steps: Steps) -> Catalog:
    """The catalog with steps around its commands."""
    return cast("Catalog", _SteppedCatalog(catalog, steps))


def step_store(store: ObjectStore, steps: Steps) -> ObjectStore:
    """The store with steps around its writes."""
    return cast("ObjectStore", _SteppedStore(store, steps))


def step_wal(wal: MemoryWal, steps: Steps) -> MemoryWal:
    """The WAL with steps around `trim`."""
    return cast("MemoryWal", _SteppedWal(wal, steps))
