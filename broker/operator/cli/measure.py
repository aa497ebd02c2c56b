"""Measurements of the log's disk and of object stores, for `doctor` and `bench`.

The disk is measured with the node's own device, in a file beside the log that is removed afterwards: the writes have
the flags and the guarantee of the log's. Stores are measured with objects under one prefix, which are removed, too.
"""

import asyncio
import mmap
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.stores import store_configs
from anabranch.s3stream.errors import ObjectExists
from anabranch.s3stream.store.files import TEMPORARY
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.device import FileDevice, open_device
from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from anabranch.wal.interface import WalFailed
from anabranch.wal.requests import IoKind, IoRequest
from anabranch.wal.settings import WalSettings

FILE_BYTES: Final = 32 << 20
"""Size of the file that the disk is measured with."""
PREFIX: Final = "anabranch-check"
"""Prefix of the objects that stores are measured with."""
WRITER: Final = "anabranch-check-writer"


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations of equal operations, in ms, and the time that all took."""

    sorted_ms: Sequence[float]
    total_s: float

    def quantile(self, share: float) -> float:
        """Return the duration that this share of the operations does not exceed, in ms."""
        return self.sorted_ms[min(len(self.sorted_ms) - 1, int(share * len(self.sorted_ms)))]

    def rate(self, size_bytes: int) -> float:
        """Return the bytes per second of operations of this size."""
        return len(self.sorted_ms) * size_bytes / self.total_s


@contextmanager
def no_new_folders(settings: Settings) -> Iterator[None]:
    """Remove empty folders of local stores that the check has created: it leaves nothing behind."""
    wanted = [
        folder
        for config in store_configs(settings)
        if config.kind == "local" and config.path is not None
        for folder in (config.path / TEMPORARY, config.path, *config.path.parents)
    ]
    created = [folder for folder in wanted if not folder.exists()]
    try:
        yield
    finally:
        for folder in created:
            with suppress(OSError):
                folder.rmdir()


@asynccontextmanager
async def probe_file(folder: Path, settings: WalSettings, name: str) -> AsyncIterator[FileDevice]:
    """Open a file beside the log as the node would, written in full. Raises WalRefused, WalFailed."""
    path = folder / name
    sized = replace(settings, capacity_bytes=FILE_BYTES)
    try:
        device = await asyncio.to_thread(open_device, path, sized)
        try:
            # Else the first write of each page would also wait for the file system's bookkeeping.
            await write_repeatedly(device, 1 << 20, count=FILE_BYTES >> 20, in_flight=4)
            yield device
        finally:
            await device.close()
    finally:
        path.unlink(missing_ok=True)


async def write_repeatedly(device: FileDevice, size_bytes: int, *, count: int, in_flight: int) -> Durations:
    """Write `count` times, with that many writes in flight. Raises WalFailed."""
    places = (FILE_BYTES - RING_POSITION) // size_bytes
    with mmap.mmap(-1, max(size_bytes, PAGE_BYTES)) as memory, memoryview(memory)[:size_bytes] as view:
        view[:] = os.urandom(size_bytes)  # virtual disks drop zeros

        async def write(number: int) -> None:
            position = RING_POSITION + number % places * size_bytes
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def finish(request: IoRequest) -> None:
                if done.done():
                    return  # cancelled, by Ctrl-C
                if request.error is None:
                    done.set_result(None)
                else:
                    done.set_exception(WalFailed(f"{device.name}: {request.error.strerror}"))

            device.submit(IoRequest(IoKind.WRITE, [(position, view)], finish))
            await done

        return await measure(write, count=count, in_flight=in_flight)


async def measure(operation: Callable[[int], Awaitable[object]], *, count: int, in_flight: int) -> Durations:
    """Run an operation `count` times, `in_flight` at a time, and return the durations. Raises the first error."""
    found: list[float] = []
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await operation(number)
            found.append((time.perf_counter() - begun) * 1000)

    begun = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(work())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # the others have the same cause, or were cancelled for it
    return Durations(sorted(found), time.perf_counter() - begun)


class StoreProbe:
    """Objects of one measurement in a store, under a name of their own."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._keys: set[str] = set()

    def _key(self, number: int) -> str:
        key = f"{PREFIX}/{self._run_id}/{number}"
        self._keys.add(key)
        return key

    async def put(self, number: int, size_bytes: int) -> None:
        """Put an object. Raises StoreError."""
        await self._store.put(self._key(number), [os.urandom(size_bytes)], writer_id=f"{WRITER}-{number}")

    async def get(self, number: int, size_bytes: int) -> None:
        """Get the first bytes of an object. Raises StoreError."""
        await self._store.get(self._key(number), 0, size_bytes)

    async def refuses_other_writer(self, number: int) -> bool:
        """Return whether an existing object is kept when another writer puts it. Raises StoreError."""
        try:
            await self._store.put(self._key(number), [b"other"], writer_id=f"{WRITER}-other")
        except ObjectExists:
            return True
        return False

    async def remove(self) -> str | None:
        """Delete the objects; return the reason if one could not be deleted."""
        failed = await self._store.delete(sorted(self._keys))
        return next((str(error) for error in failed.values()), None)
