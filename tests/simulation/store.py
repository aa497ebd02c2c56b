"""An object store that fails as a real one does: slow, refusing, silent after success, and late.

`ObjectStore` is what is left after the retries of a real store's client. So an error here means that the client has
given up, and leaves open whether the call took effect, or will.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.model import parse_object_key
from anabranch.s3stream.store.interface import CallCounts, MultipartUpload, PartReceipt, StoredObject, TailRead
from anabranch.wal.interface import Buffer
from tests.simulation.loop import SimLoop
from tests.support.memory_store import MemoryStore

CALL_S = (0.002, 0.03)
TAIL_SHARE = 0.02
TAIL_S = (0.2, 3.0)
TIMEOUT_S = 30.0
"""Longest time of a call on its way: a client of a real store gives up."""
LOGS = "wal/"
"""Prefix of the keys of logs."""
PROMPT_S = 1.0
"""A PUT that takes longer may land after a wrong clock has made another node give up its object."""


@dataclass(slots=True)
class StoreFaults:
    """Probabilities of faults per call."""

    refused: float = 0.0
    """The call has no effect, and raises."""
    lost: float = 0.0
    """The call takes effect, and raises."""
    late: float = 0.0
    """A PUT raises, and takes effect later."""
    away: bool = False
    """All calls are refused, after a while."""
    logs_refused: bool = False
    """PUTs of logs are refused, as when a policy of the bucket forbids them."""
    slow: float = 1.0
    """Factor of all times."""
    rot: float = 0.0
    """A bit of the bytes that a GET returns is wrong."""


class StoreDisk:
    """The objects of a store, which all nodes share, and the faults of the way there."""

    def __init__(self, loop: SimLoop, random: Random, name: str) -> None:
        self.loop = loop
        self.random = random
        self.objects = MemoryStore(name, now_ms=lambda: int(loop.time() * 1000))
        self.faults = StoreFaults()
        self.rotten_answers = 0
        self.live_s: dict[int, float] = {}
        """Time at which an object was last known to hold data of a stream, by its id."""
        self.delete_delay_s = 0.0
        """Time that an object is kept after it was live, less what its process may be paused."""
        self.landed_late: set[str] = set()
        """Keys of objects that landed after their clients had given up, or long after they began, as in a pause."""
        self.early: list[str] = []
        """Deletions that came too early."""
        self.check_deletion: Callable[[str], str | None] = lambda _key: None
        """Returns why an object may not be deleted now."""
        self.late = 0
        """PUTs that will land later."""
        self.late_s_max = 1.0
        """Longest time after which a PUT lands whose client has given up. An object that lands after its deletion stays
        for good: so less than the delay of deletions, and less than half of the time that a prepared object has."""

    def rotten(self, data: memoryview) -> memoryview:
        """Return what a GET found, at times with one bit of it wrong."""
        random = self.random
        if not self.faults.rot or not len(data) or random.random() >= self.faults.rot:
            return data
        damaged = bytearray(data)
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
        self.rotten_answers += 1
        return memoryview(bytes(damaged))

    def note_deletion(self, key: str) -> None:
        """Check that an object is deleted only so long after a reader may have found it."""
        why = self.check_deletion(key)
        if why is not None:
            self.early.append(why)
        parsed = parse_object_key(key)
        live_s = None if parsed is None else self.live_s.get(parsed[1])
        if live_s is not None and self.loop.time() < live_s + self.delete_delay_s:
            self.early.append(f"{key} was deleted {self.loop.time() - live_s:.1f} s after it was live")

    def note_landing(self, key: str, began_s: float) -> None:
        """Note an object whose PUT began long ago: its process was paused, or the store slow."""
        if self.loop.time() - began_s > PROMPT_S:
            self.landed_late.add(key)

    def later(self, key: str, work: Any) -> None:
        """Let a call take effect minutes later, whatever becomes of the process that made it."""
        self.late += 1

        async def land() -> None:
            await asyncio.sleep(self.random.uniform(0.5, self.late_s_max))
            try:
                await work()
                self.landed_late.add(key)
            except StoreError:
                pass  # for instance, the key is another writer's by now
            finally:
                self.late -= 1

        context = Context()
        self.loop.call_soon(lambda: self.loop.create_task(land(), context=context), context=context)


@dataclass(frozen=True, slots=True)
class Way:
    """The way from a node to the store."""

    disk: StoreDisk
    is_cut: Callable[[], bool]
    """Returns True while no call gets through."""

    async def reach(self, call: str, key: str) -> None:
        """Spend the time of a call on its way there. Raises StoreError if it is refused."""
        faults, random = self.disk.faults, self.disk.random
        tail = random.random() < TAIL_SHARE
        delay_s = random.uniform(*(TAIL_S if tail else CALL_S)) * faults.slow
        await asyncio.sleep(min(delay_s, TIMEOUT_S))
        if delay_s > TIMEOUT_S:
            raise StoreError(f"{self.disk.objects.name}:{key}: simulated: {call} timed out")
        if self.disk.faults.away or self.is_cut():
            await asyncio.sleep(random.uniform(0.5, 10.0))
        if faults.logs_refused and call == "put" and key.startswith(LOGS):
            raise StoreError(f"{self.disk.objects.name}:{key}: simulated: AccessDenied")
        if self.disk.faults.away or self.is_cut() or random.random() < faults.refused:
            raise StoreError(f"{self.disk.objects.name}:{key}: simulated: {call} was refused")

    async def answer(self, call: str, key: str) -> None:
        """Spend the time of the answer. Raises StoreError if it is lost."""
        random = self.disk.random
        await asyncio.sleep(random.uniform(*CALL_S) * self.disk.faults.slow)
        if self.is_cut() or random.random() < self.disk.faults.lost:
            raise StoreError(f"{self.disk.objects.name}:{key}: simulated: no answer to {call}")


class SimStore:
    """The client of one process."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._disk = way.disk
        self._objects = way.disk.objects

    @property
    def name(self) -> str:
        return self._objects.name

    @property
    def calls(self) -> CallCounts:
        return self._objects.calls

    def uri(self, key: str) -> str:
        return self._objects.uri(key)

    async def open(self) -> None:
        await self._way.reach("open", "")

    async def close(self) -> None:
        pass

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        data = [b"".join(parts)]
        if pace is not None:
            async with pace.piece(len(data[0])):
                pass
        disk = self._disk
        began_s = disk.loop.time()
        await self._way.reach("put", key)
        if disk.random.random() < disk.faults.late:
            disk.later(key, lambda: self._objects.put(key, data, writer_id=writer_id))
            raise StoreError(f"{self.name}:{key}: simulated: put timed out")
        await self._objects.put(key, data, writer_id=writer_id)
        disk.note_landing(key, began_s)
        await self._way.answer("put", key)

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        await self._way.reach("multipart", key)
        upload = await self._objects.start_multipart(key, writer_id=writer_id)
        await self._way.answer("multipart", key)
        return cast("MultipartUpload", _SimUpload(self._way, upload, key))

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        await self._way.reach("abort", key)
        await self._objects.abort_multipart(key, upload_id)
        await self._way.answer("abort", key)

    async def get(self, key: str, start: int, end: int) -> memoryview:
        await self._way.reach("get", key)
        found = await self._objects.get(key, start, end)
        await self._way.answer("get", key)
        return self._disk.rotten(found)

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        await self._way.reach("get", key)
        found = await self._objects.get_tail(key, size_bytes)
        await self._way.answer("get", key)
        return found._replace(data=self._disk.rotten(found.data))

    async def writer_id(self, key: str) -> str | None:
        await self._way.reach("head", key)
        found = await self._objects.writer_id(key)
        await self._way.answer("head", key)
        return found

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        failed: dict[str, StoreError] = {}
        for key in keys:
            try:
                await self._way.reach("delete", key)
                self._disk.note_deletion(key)
                failed |= await self._objects.delete([key])
                await self._way.answer("delete", key)
            except StoreError as error:
                failed[key] = error
        return failed

    async def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        await self._way.reach("list", prefix)
        found = [each async for each in self._objects.list(prefix)]
        for each in found:
            yield each


class _SimUpload:
    def __init__(self, way: Way, upload: MultipartUpload, key: str) -> None:
        self._way = way
        self._disk = way.disk
        self._upload = upload
        self._key = key

    @property
    def upload_id(self) -> str:
        return self._upload.upload_id

    async def put_part(self, number: int, parts: Sequence[Buffer], *, pace: Pace | None = None) -> PartReceipt:
        await self._way.reach("part", self._key)
        receipt = await self._upload.put_part(number, parts, pace=pace)
        await self._way.answer("part", self._key)
        return receipt

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        await self._way.reach("part_copy", self._key)
        receipt = await self._upload.copy_part(number, source_key, start, end)
        await self._way.answer("part_copy", self._key)
        return receipt

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        disk = self._disk
        began_s = disk.loop.time()
        await self._way.reach("complete", self._key)
        if disk.random.random() < disk.faults.late:
            disk.later(self._key, lambda: self._upload.complete(receipts))
            raise StoreError(f"{disk.objects.name}:{self._key}: simulated: complete timed out")
        await self._upload.complete(receipts)
        disk.note_landing(self._key, began_s)
        await self._way.answer("complete", self._key)

    async def abort(self) -> None:
        await self._way.reach("abort", self._key)
        await self._upload.abort()
        await self._way.answer("abort", self._key)
