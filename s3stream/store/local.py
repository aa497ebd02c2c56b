"""An object store in a local directory: `s3stream.store.files` on a small thread pool."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.direct import PAGE_BYTES, cut
from anabranch.s3stream.store.files import NewFile, ObjectFiles, UploadFiles
from anabranch.s3stream.store.interface import CallCounts, MultipartUpload, PartReceipt, StoredObject, TailRead
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.s3stream.store.rules import check_range
from anabranch.wal.interface import Buffer

R = TypeVar("R")

LIST_PAGE = 1000


class _Threads:
    """Runs file calls and counts their errors. A cancelled caller waits until its call has ended."""

    def __init__(self, name: str, count: int, calls: CallCounts) -> None:
        self._name = name
        self._count = count
        self._calls = calls
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix=f"store-{self._name}")

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)

    async def run(self, call: Callable[[], R]) -> R:
        if self._pool is None:
            raise StoreError(f"{self._name}: the store is not open")
        # Not as the future's result: an executor's future is in a reference cycle, and would keep the memory of a read
        # until the next garbage collection.
        results: list[R] = []
        future = asyncio.get_running_loop().run_in_executor(self._pool, lambda: results.append(call()))
        try:
            await asyncio.shield(future)
            return results.pop()
        except asyncio.CancelledError:
            await asyncio.wait([future])
            future.exception()  # otherwise asyncio would report that it was never retrieved
            raise
        except StoreError:
            self._calls.errors += 1
            raise


class LocalStore:
    """Objects as files under `root`, which is created if it is missing; at most `threads` concurrent calls.

    With `read_only`, opening it changes nothing: the directory must exist, and read access is sufficient. No log is
    beside it then, so that long reads do not pause. `memory` is what reads return, by default the store's own.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        *,
        threads: int = 4,
        read_only: bool = False,
        memory: ReadBufferPool | None = None,
    ) -> None:
        self._read_only = read_only
        self._files = ObjectFiles(name, root, memory=memory, beside_log=not read_only)
        self._calls = CallCounts()
        self._threads = _Threads(name, threads, self._calls)

    @property
    def name(self) -> str:
        """Name of the store in the catalog."""
        return self._files.name

    @property
    def calls(self) -> CallCounts:
        """Counters since the store was created. Each call counts as the corresponding S3 call."""
        return self._calls

    def uri(self, key: str) -> str:
        """Return the address of an object's file. Nothing in it is percent-encoded, as Iceberg has it."""
        return f"file://{self._files.path(key).absolute()}"

    async def open(self) -> None:
        """Create the directory, check that it can be written, and remove old temporary files."""
        self._threads.open()
        await self._threads.run(self._files.check if self._read_only else self._files.prepare)

    async def close(self) -> None:
        """Stop the threads."""
        self._threads.close()

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        """Create the object as the concatenation of `parts`."""
        self._calls.put += 1
        run = self._threads.run
        if pace is None:
            self._calls.bytes_written += await run(lambda: self._files.put(key, parts, writer_id))
            return
        file = NewFile(self._files, key, writer_id)
        try:
            await run(file.open)
            for piece in cut(parts, _piece_sizes(0, pace)):
                async with pace.piece(sum(len(view) for view in piece)):
                    await run(partial(file.write, piece))
            async with pace.piece(0):
                await run(file.publish)
        finally:
            await run(file.close)
        self._calls.bytes_written += file.size_bytes

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        """Start a multipart upload."""
        self._calls.multipart += 1
        upload = await self._threads.run(lambda: self._files.start_upload(key, writer_id))
        return _LocalUpload(self, self._threads, upload, key)

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort an upload that a crashed process left behind. An upload that does not exist is no error."""
        self._calls.multipart += 1
        await self._threads.run(lambda: self._files.drop_upload(key, upload_id))

    async def get(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes [start, end)."""
        self._calls.get += 1
        data = await self._threads.run(lambda: self._files.read(key, start, end))
        self._calls.bytes_read += len(data)
        return data

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        """Return the last `size_bytes`, or all of a shorter object."""
        self._calls.get += 1
        data, size = await self._threads.run(lambda: self._files.read_tail(key, size_bytes))
        self._calls.bytes_read += len(data)
        return TailRead(memoryview(data), size)

    async def writer_id(self, key: str) -> str | None:
        """Return the id of the object's writer, None if there is no such object."""
        self._calls.head += 1
        return await self._threads.run(lambda: self._files.writer_id(key))

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete; absent keys are no error."""
        if not keys:
            return {}
        self._calls.delete += 1
        failed = await self._threads.run(lambda: self._files.delete(keys))
        self._calls.errors += len(failed)
        return failed

    async def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """Yield all objects whose keys begin with `prefix`, in key order."""
        walk = self._files.walk(prefix)
        while True:
            self._calls.list += 1
            page = await self._threads.run(lambda: list(islice(walk, LIST_PAGE)))
            for each in page:
                yield each
            if len(page) < LIST_PAGE:
                return


class _LocalUpload:
    """A multipart upload in progress."""

    def __init__(self, store: LocalStore, threads: _Threads, files: UploadFiles, key: str) -> None:
        self._store = store
        self._threads = threads
        self._files = files
        self._key = key

    @property
    def upload_id(self) -> str:
        """The store's id of the upload."""
        return self._files.upload_id

    async def put_part(self, number: int, parts: Sequence[Buffer], *, pace: Pace | None = None) -> PartReceipt:
        """Send part `number` (from 1)."""
        size = sum(len(part) for part in parts)
        offset = self._files.place(number, size)
        self._store.calls.part += 1
        self._store.calls.bytes_written += size
        if pace is None or offset is None:
            await self._threads.run(lambda: self._files.write_part(number, offset, parts))
        else:
            for piece in cut(parts, _piece_sizes(offset, pace)):
                piece_bytes = sum(len(view) for view in piece)
                async with pace.piece(piece_bytes):
                    await self._threads.run(partial(self._files.write_part, number, offset, piece))
                offset += piece_bytes
        return PartReceipt(number, str(size), size)

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        """Copy bytes [start, end) of another object into part `number`, inside the kernel."""
        check_range(start, end, where=f"{self._store.name}:{source_key}")
        offset = self._files.place(number, end - start)
        self._store.calls.part_copy += 1
        await self._threads.run(lambda: self._files.copy_part(number, offset, source_key, start, end))
        return PartReceipt(number, str(end - start), end - start)

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Make the object visible, whole and durable."""
        self._store.calls.multipart += 1
        await self._threads.run(lambda: self._files.complete(receipts))

    async def abort(self) -> None:
        """Abort the upload."""
        await self._store.abort_multipart(self._key, self._files.upload_id)


def _piece_sizes(offset: int, pace: Pace) -> Iterator[int]:
    """Yield the sizes of pieces that are written from `offset` on: all but the last end at a page's end."""
    yield pace.piece_bytes - offset % PAGE_BYTES
    while True:
        yield pace.piece_bytes
