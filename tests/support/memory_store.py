"""An object store in memory, for tests: the reference for the behaviour of the others."""

import bisect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import ObjectExists, ObjectNotFound, ObjectTooShort, StoreError
from anabranch.s3stream.store.interface import CallCounts, MultipartUpload, PartReceipt, StoredObject, TailRead
from anabranch.s3stream.store.rules import check_key, check_range, check_receipts
from anabranch.wal.interface import Buffer

Hook = Callable[[str, str], Awaitable[None]]


async def let_through(_call: str, _key: str) -> None:
    """Let every call through."""


@dataclass(slots=True)
class _MemoryState:
    """State that the store and its uploads share."""

    name: str
    now_ms: Callable[[], int]
    hook: Hook
    calls: CallCounts = field(default_factory=CallCounts)
    objects: dict[str, tuple[bytes, str, int]] = field(default_factory=dict)
    uploads: set[str] = field(default_factory=set)
    uploads_started: int = 0

    async def call(self, call: str, key: str) -> None:
        """Pass the call to the hook."""
        try:
            await self.hook(call, key)
        except StoreError:
            self.calls.errors += 1
            raise

    def fail(self, error: StoreError) -> StoreError:
        """Count an error."""
        self.calls.errors += 1
        return error

    def data(self, key: str) -> bytes:
        """Bytes of an object."""
        found = self.objects.get(key)
        if found is None:
            raise self.fail(ObjectNotFound(f"{self.name}:{key}: no such object"))
        return found[0]

    def create(self, key: str, data: bytes, writer_id: str) -> None:
        """Make an object visible."""
        found = self.objects.get(key)
        if found is None:
            self.objects[key] = (data, writer_id, self.now_ms())
        elif found[1] != writer_id:
            raise self.fail(ObjectExists(f"{self.name}:{key}: written by {found[1]!r}, not {writer_id!r}"))


class MemoryStore:
    """Objects in a dict.

    `hook(call, key)` runs before each call takes effect (`call` is a field name of `CallCounts`, or `complete`,
    `abort`): a test delays calls there, or raises StoreError.
    """

    def __init__(self, name: str, *, now_ms: Callable[[], int] = lambda: 0, hook: Hook = let_through) -> None:
        self._state = _MemoryState(name, now_ms, hook)

    @property
    def name(self) -> str:
        """Name of the store in the catalog."""
        return self._state.name

    @property
    def calls(self) -> CallCounts:
        """Counters since the store was created."""
        return self._state.calls

    @property
    def objects(self) -> dict[str, tuple[bytes, str, int]]:
        """Data, writer id and time of each object, for tests to inspect and damage."""
        return self._state.objects

    @property
    def uploads(self) -> set[str]:
        """Ids of the multipart uploads neither completed nor aborted."""
        return self._state.uploads

    @property
    def hook(self) -> Hook:
        """Hook that each call passes."""
        return self._state.hook

    @hook.setter
    def hook(self, hook: Hook) -> None:
        self._state.hook = hook

    def uri(self, key: str) -> str:
        """Return an address that no program can open."""
        return f"memory://{self.name}/{key}"

    async def open(self) -> None:
        """Do nothing: there is no connection."""

    async def close(self) -> None:
        """Do nothing: the objects stay."""

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        """Create the object as the concatenation of `parts`."""
        check_key(key, where=self.name)
        data = await _join(parts, pace)
        self.calls.put += 1
        self.calls.bytes_written += len(data)
        await self._state.call("put", key)
        self._state.create(key, data, writer_id)

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        """Start a multipart upload."""
        check_key(key, where=self.name)
        self.calls.multipart += 1
        await self._state.call("multipart", key)
        self._state.uploads_started += 1
        upload_id = f"upload-{self._state.uploads_started}"
        self._state.uploads.add(upload_id)
        return _MemoryUpload(self._state, key, writer_id, upload_id)

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort an upload that a crashed process left behind. An upload that does not exist is no error."""
        self.calls.multipart += 1
        await self._state.call("abort", key)
        self._state.uploads.discard(upload_id)

    async def get(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes [start, end)."""
        check_range(start, end, where=f"{self.name}:{key}")
        self.calls.get += 1
        await self._state.call("get", key)
        data = self._state.data(key)
        if end > len(data):
            raise self._state.fail(
                ObjectTooShort(f"{self.name}:{key}: asked for bytes [{start}, {end}) of {len(data)}")
            )
        self.calls.bytes_read += end - start
        # A copy, as from a remote store: it does not keep the object in memory.
        return memoryview(data[start:end])

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        """Return the last `size_bytes`, or all of a shorter object."""
        self.calls.get += 1
        await self._state.call("get", key)
        data = self._state.data(key)
        tail = memoryview(data)[max(0, len(data) - size_bytes) :]
        self.calls.bytes_read += len(tail)
        return TailRead(tail, len(data))

    async def writer_id(self, key: str) -> str | None:
        """Return the id of the object's writer, None if there is no such object."""
        self.calls.head += 1
        await self._state.call("head", key)
        found = self.objects.get(key)
        return None if found is None else found[1]

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete; a hook that raises for a key makes that key fail alone."""
        failed: dict[str, StoreError] = {}
        if keys:
            self.calls.delete += 1
        for key in keys:
            try:
                await self._state.call("delete", key)
            except StoreError as error:
                failed[key] = error
            else:
                self.objects.pop(key, None)
        return failed

    async def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """Yield all objects whose keys begin with `prefix`, in key order."""
        self.calls.list += 1
        await self._state.call("list", prefix)
        keys = sorted(self.objects)
        for key in keys[bisect.bisect_left(keys, prefix) :]:
            if not key.startswith(prefix):
                break
            if key in self.objects:
                data, _, modified_ms = self.objects[key]
                yield StoredObject(key, len(data), modified_ms)


class _MemoryUpload:
    """A multipart upload of the memory store."""

    def __init__(self, state: _MemoryState, key: str, writer_id: str, upload_id: str) -> None:
        self._state = state
        self._key = key
        self._writer_id = writer_id
        self._upload_id = upload_id
        self._parts: dict[int, bytes] = {}

    @property
    def upload_id(self) -> str:
        """The store's id of the upload."""
        return self._upload_id

    async def put_part(self, number: int, parts: Sequence[Buffer], *, pace: Pace | None = None) -> PartReceipt:
        """Send part `number` (from 1)."""
        data = await _join(parts, pace)
        self._state.calls.part += 1
        self._state.calls.bytes_written += len(data)
        await self._state.call("part", self._key)
        return self._keep(number, data)

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        """Copy bytes [start, end) of another object into part `number`."""
        where = f"{self._state.name}:{source_key}"
        check_range(start, end, where=where)
        self._state.calls.part_copy += 1
        await self._state.call("part_copy", source_key)
        data = self._state.data(source_key)
        if end > len(data):
            raise self._state.fail(StoreError(f"{where}: asked to copy bytes [{start}, {end}) of {len(data)}"))
        return self._keep(number, data[start:end])

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Make the object visible; refuses small parts as S3 does."""
        where = f"{self._state.name}:{self._key}"
        check_receipts(receipts, where=where)
        self._state.calls.multipart += 1
        await self._state.call("complete", self._key)
        self._check_open()
        for receipt in receipts:
            if receipt.number not in self._parts:
                raise self._state.fail(StoreError(f"{where}: part {receipt.number} was never sent"))
        data = b"".join(self._parts[receipt.number] for receipt in receipts)
        self._state.create(self._key, data, self._writer_id)
        self._state.uploads.discard(self._upload_id)
        self._parts.clear()

    async def abort(self) -> None:
        """Abort the upload."""
        self._state.calls.multipart += 1
        await self._state.call("abort", self._key)
        self._state.uploads.discard(self._upload_id)
        self._parts.clear()

    def _keep(self, number: int, data: bytes) -> PartReceipt:
        self._check_open()
        self._parts[number] = data
        return PartReceipt(number, f"{number}-{len(data)}", len(data))

    def _check_open(self) -> None:
        if self._upload_id not in self._state.uploads:
            where = f"{self._state.name}:{self._key}"
            raise self._state.fail(StoreError(f"{where}: no such upload: {self._upload_id}"))


async def _join(parts: Sequence[Buffer], pace: Pace | None) -> bytes:
    """Return the concatenation of `parts`, as one piece of `pace`."""
    data = b"".join(parts)
    if pace is not None:
        async with pace.piece(len(data)):
            pass
    return data
