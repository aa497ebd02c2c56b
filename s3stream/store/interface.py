"""Interface of an object store. Every implementation passes the same contract tests."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import StoreError
from anabranch.wal.interface import Buffer


class StoredObject(NamedTuple):
    """An object in a listing."""

    key: str
    size_bytes: int
    modified_ms: int


class TailRead(NamedTuple):
    """The last bytes of an object, and the object's size."""

    data: memoryview
    size_bytes: int


class PartReceipt(NamedTuple):
    """Receipt of a part, needed to complete its multipart upload."""

    number: int
    """Number of the part, from 1 in the order of the bytes."""
    tag: str
    size_bytes: int


@dataclass(slots=True)
class CallCounts:
    """Calls by kind, including failed and retried ones. Tests compare them with budgets."""

    get: int = 0
    put: int = 0
    head: int = 0
    list: int = 0
    delete: int = 0
    """Batch deletes, counted once per request."""
    multipart: int = 0
    """Calls to create, complete and abort multipart uploads."""
    part: int = 0
    part_copy: int = 0
    retries: int = 0
    errors: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class MultipartUpload(Protocol):
    """A multipart upload. Parts are sent in any order and concurrently; all but the last have at least 5 MiB."""

    @property
    def upload_id(self) -> str:
        """The store's id of the upload. The catalog records it, because some stores list uploads unreliably."""
        ...

    async def put_part(self, number: int, parts: Sequence[Buffer], *, pace: Pace | None = None) -> PartReceipt:
        """Send part `number` (from 1), no faster than `pace`."""
        ...

    async def copy_part(self, number: int, source_key: str, start: int, end: int) -> PartReceipt:
        """Copy bytes [start, end) of an object of the same store into part `number`, inside the store."""
        ...

    async def complete(self, receipts: Sequence[PartReceipt]) -> None:
        """Make the complete object visible and durable."""
        ...

    async def abort(self) -> None:
        """Abort: nothing becomes visible. Safe to call twice, and after `complete` failed."""
        ...


class ObjectStore(Protocol):
    """A flat, strongly consistent map from key to immutable bytes. Raises `StoreError` or a subclass, after retries."""

    @property
    def name(self) -> str:
        """Name of the store in the catalog."""
        ...

    @property
    def calls(self) -> CallCounts:
        """Counters since the store was opened."""
        ...

    def uri(self, key: str) -> str:
        """Return the address of an object for other programs, as `s3://bucket/key` or `file:///directory/key`."""
        ...

    async def open(self) -> None:
        """Connect, and check that the store can be used. Raises StoreError, which names the store and the reason."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...

    async def put(self, key: str, parts: Sequence[Buffer], *, writer_id: str, pace: Pace | None = None) -> None:
        """Create the object as the concatenation of `parts`. It is durable and visible as a whole when this returns.

        The bytes are written no faster than `pace`.
        Raises ObjectExists if another writer's object has the key. An object of the same writer is a success.
        """
        ...

    async def start_multipart(self, key: str, *, writer_id: str) -> MultipartUpload:
        """Start a multipart upload."""
        ...

    async def abort_multipart(self, key: str, upload_id: str) -> None:
        """Abort an upload that a crashed process left behind. An upload that does not exist is no error."""
        ...

    async def get(self, key: str, start: int, end: int) -> memoryview:
        """Return bytes [start, end). Raises ObjectNotFound or ObjectTooShort."""
        ...

    async def get_tail(self, key: str, size_bytes: int) -> TailRead:
        """Return the last `size_bytes`, or all of a shorter object, in one call. Raises ObjectNotFound."""
        ...

    async def writer_id(self, key: str) -> str | None:
        """Return the id of the object's writer, None if there is no such object."""
        ...

    async def delete(self, keys: Sequence[str]) -> Mapping[str, StoreError]:
        """Delete in batches; return an error for each key that could not be deleted. Absent keys are no error."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[StoredObject]:
        """Yield all objects whose keys begin with `prefix`, in key order."""
        ...
