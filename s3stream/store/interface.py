"""What the engine asks of an object store; every store passes the same contract tests."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from s3stream.errors import StoreError
from wal.interface import Buffer


class StoredObject(NamedTuple):
    """What a listing or a head call tells of an object."""

    key: str
    size_bytes: int
    modified_ms: int


class TailRead(NamedTuple):
    """The last bytes of an object, and how long the object is."""

    data: memoryview
    size_bytes: int


class PartReceipt(NamedTuple):
    """What completing a multipart upload needs of a part."""

    number: int
    """From 1, in the order of the bytes."""
    tag: str
    size_bytes: int


@dataclass(slots=True)
class CallCounts:
    """Calls made, by kind, failed and retried ones included; tests hold budgets against them."""

    get: int = 0
    put: int = 0
    head: int = 0
    list: int = 0
    delete: int = 0
    """Batch deletes count once per request."""
    multipart: int = 0
    """Create, complete and abort."""
    part: int = 0
    part_copy: int = 0
    retries: int = 0
    errors: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class MultipartUpload(Protocol):
    """An upload under way. Parts go in any order and at the same time; at least 5 MiB each but for the last."""

    @property
    def upload_id(self) -> str:
        """The store's name for the upload: kept in the catalog, for stores whose listing of uploads is unreliable."""
        ...

    async def put_part(self, number: int, parts: Sequence[Buffer]) -> PartReceipt:
        """Send part `number` (from 1)."""
        ...

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        """Make part `number` of bytes [start, end) of an object of the same store, without moving them through here."""
        ...

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Make the object visible, whole and durable."""
        ...

    async def abort(self) -> None:
        """Give up: nothing becomes visible. Safe to call twice, and after `complete` failed."""
        ...


class ObjectStore(Protocol):
    """A flat, strongly consistent map from key to immutable bytes. Raises `StoreError` and its kinds, after retries."""

    @property
    def name(self) -> str:
        """Name by which the catalog remembers where an object lies."""
        ...

    @property
    def calls(self) -> CallCounts:
        """Counters since the store was opened."""
        ...

    async def open(self) -> None:
        """Connect, and check that the store can be used; an error names what and where."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str) -> None:
        """Create the object as the concatenation of `parts`. Durable and visible as a whole when this returns.

        Raises ObjectExists when another writer's object has the key; meeting its own earlier success is a success.
        """
        ...

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        """Begin an upload in parts."""
        ...

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort an upload a crashed process left behind; no error when there is none."""
        ...

    async def get(self, key: str, start: int, end: int) -> memoryview:
        """Bytes [start, end). Raises ObjectNotFound, or ObjectTooShort."""
        ...

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        """The last `size_bytes` (or all, when it is shorter) in one call."""
        ...

    async def writer_id(self, key: str) -> str | None:
        """Who wrote the object; None when there is no such object."""
        ...

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete in batches; returns the keys that could not be deleted, each with why. Absent keys are no error."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """All objects under `prefix`, page by page, in the order of keys."""
        ...
