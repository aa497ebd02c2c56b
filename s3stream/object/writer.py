"""Writes one object: a small one as one PUT, a large one in parts, sent in parallel as they fill.

Invariants: entries are sorted by (stream id, start offset) and never overlap, and their blocks have the same order in
the object; an object becomes visible as a whole or not at all; no task outlives the call that started it (parts are
sent inside `write` and `finish`, a wave at a time, so that an abandoned writer leaves nothing running).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Self

from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import StorageError, StoreError
from anabranch.s3stream.model import NewObject, ObjectKind, StreamBatch
from anabranch.s3stream.object.format import (
    BATCH_HEADER,
    BLOCK_HEADER,
    IndexEntry,
    encode_block,
    encode_trailer,
    join_blocks,
    merge_ranges,
)
from anabranch.s3stream.object.hedge import PartHedge
from anabranch.s3stream.store.interface import MultipartUpload, ObjectStore, PartReceipt
from anabranch.s3stream.store.rules import PART_BYTES_MIN, PARTS_MAX
from anabranch.s3stream.tasks import side_by_side
from anabranch.wal.interface import Buffer

BLOCK_BYTES = 512 * 1024
PART_BYTES = 8 * 1024 * 1024
PARTS_IN_FLIGHT = 4
ABORT_TIMEOUT_S = 5
"""Time limit for a failed or cancelled writer to abort its upload: a node must stop even if its store is away."""
COPY_BYTES_PER_TURN = 1024 * 1024


class ObjectOrder(StorageError):
    """A block or batch does not follow the one before it, or is a second run in a stream object."""


class PartLimits(NamedTuple):
    """Size of the parts of a multipart upload, and how many are sent at the same time."""

    size_bytes: int = PART_BYTES
    in_flight: int = PARTS_IN_FLIGHT


DEFAULT_PARTS = PartLimits()


class _CopiedPart:
    """A part that the store copies from another object."""

    __slots__ = ("end", "key", "start")

    def __init__(self, key: str, start: int, end: int) -> None:
        self.key = key
        self.start = start
        self.end = end


class ObjectWriter:
    """Builds one object in `store` under `key`.

    Payloads are referenced until their part is sent: they must not change before `finish` returns. Memory held only by
    the writer is bounded by twice the parts in flight. After an error, or instead of `finish`, call `abort` (leaving an
    `async with` block without `finish` does it).
    """

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        *,
        object_id: int,
        kind: ObjectKind,
        writer_id: str,
        block_bytes: int = BLOCK_BYTES,
        parts: PartLimits = DEFAULT_PARTS,
        on_multipart: Callable[[str], Awaitable[None]] | None = None,
        hedge: PartHedge | None = None,
        pace: Pace | None = None,
    ) -> None:
        """`on_multipart(upload_id)` is awaited before the first part, to record the upload in the catalog.

        `hedge` sends slow parts twice. `pace` limits the speed of writes to the store; None: no limit.
        """
        assert parts.size_bytes >= PART_BYTES_MIN, "a part is at least 5 MiB"
        self._store = store
        self._key = key
        self._object_id = object_id
        self._kind = kind
        self._writer_id = writer_id
        self._block_bytes = block_bytes
        self._part_bytes, self._parts_in_flight = parts
        self._on_multipart = on_multipart
        self._hedge = hedge
        self._pace = pace
        self._entries: list[IndexEntry] = []
        self._position = 0
        self._block: list[StreamBatch] = []
        self._block_size = BLOCK_HEADER.size
        self._raw: list[tuple[IndexEntry, Buffer]] = []
        self._raw_size = 0
        self._part: list[Buffer] = []
        self._part_size = 0
        self._wave: list[list[Buffer] | _CopiedPart] = []
        self._upload: MultipartUpload | None = None
        self._receipts: list[PartReceipt] = []
        self._finished = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        await (self.abort() if error is None else self.abandon())

    @property
    def size_bytes(self) -> int:
        """Size of the data blocks so far."""
        return self._position + self._raw_size + (self._block_size if self._block else 0)

    @property
    def entries(self) -> Sequence[IndexEntry]:
        """Entries of the blocks so far. Complete once the writer is finished."""
        return self._entries

    async def write(self, batch: StreamBatch) -> None:
        """Add a batch. Batches must be sorted by (stream id, base offset); a gap in offsets begins a new run.

        Raises ObjectOrder, and StoreError if a full part cannot be sent.
        """
        size = BATCH_HEADER.size + len(batch.payload)
        if self._raw:
            self._seal_block()
        if self._block:
            last = self._block[-1]
            if (
                last.stream_id != batch.stream_id
                or last.end_offset != batch.base_offset
                or self._block_size + size > self._block_bytes
            ):
                self._seal_block()
        if not self._block or batch.end_offset <= batch.base_offset:
            self._check_order(batch.stream_id, batch.base_offset, batch.end_offset)
        self._block.append(batch)
        self._block_size += size
        if len(self._wave) >= 2 * self._parts_in_flight:
            await self._send_wave()

    async def write_block(self, entry: IndexEntry, data: Buffer) -> None:
        """Add a whole block of another object, checked by the caller. Its position in this object is assigned here.

        Neighbours of one stream are joined as long as they fit a block: compaction joins the blocks of small uploads.
        """
        assert len(data) == entry.size_bytes, "the block is the one its entry describes"
        last = self._raw[-1][0] if self._raw else None
        if (
            last is None
            or last.stream_id != entry.stream_id
            or last.end_offset != entry.start_offset
            or self._raw_size + entry.size_bytes > self._block_bytes
        ):
            self._seal_block()
            self._check_order(entry.stream_id, entry.start_offset, entry.end_offset)
        self._raw.append((entry, data))
        self._raw_size += entry.size_bytes
        if len(self._wave) >= 2 * self._parts_in_flight:
            await self._send_wave()

    async def detach_inputs(self) -> None:
        """Send full parts and copy the rest, so that slices of large reads do not keep the whole reads in memory."""
        if len(self._wave) > 1:
            await self._send_wave()
        self._raw = [(entry, bytes(data)) for entry, data in self._raw]
        self._block = [batch._replace(payload=bytes(batch.payload)) for batch in self._block]
        self._part = [await _copy(self._part)] if self._part else []
        self._wave = [[await _copy(part)] if isinstance(part, list) else part for part in self._wave]

    async def copy_blocks(self, entries: Sequence[IndexEntry], source_key: str) -> None:
        """Add adjacent blocks of another object of the store by a copy inside the store.

        They become a separate part: they are at least 5 MiB, and so is everything written since the last copy.
        Raises ObjectOrder otherwise.
        """
        self._seal_block()
        start, end = entries[0].position, entries[-1].end_position
        if 0 < self._part_size < PART_BYTES_MIN and self._wave and isinstance(self._wave[-1], list):
            self._wave[-1] += self._part
            self._part, self._part_size = [], 0
        if end - start < PART_BYTES_MIN or 0 < self._part_size < PART_BYTES_MIN:
            raise ObjectOrder(f"object {self._key}: a copied part and the one before it have at least 5 MiB")
        self._cut_part()
        for entry in entries:
            self._check_order(entry.stream_id, entry.start_offset, entry.end_offset)
            self._entries.append(entry._replace(position=self._position))
            self._position += entry.size_bytes
        self._wave.append(_CopiedPart(source_key, start, end))
        if len(self._wave) >= 2 * self._parts_in_flight:
            await self._send_wave()

    async def finish(self) -> NewObject:
        """Send the rest, with index and footer. The object is complete and durable when this returns."""
        assert not self._finished, "a writer is finished once"
        self._seal_block()
        if not self._entries:
            raise ObjectOrder(f"object {self._key}: nothing was written")
        trailer = encode_trailer(self._entries, kind=self._kind, object_id=self._object_id)
        size = self._position + sum(len(part) for part in trailer)
        self._part += trailer
        self._part_size += size - self._position
        if self._upload is None and all(isinstance(part, list) for part in self._wave) and len(self._wave) <= 1:
            parts = [buffer for part in self._wave if isinstance(part, list) for buffer in part] + self._part
            await self._store.put(self._key, parts, writer_id=self._writer_id, pace=self._pace)
        else:
            self._cut_part()
            await self._send_wave(last=True)
            assert self._upload is not None, "a wave opens the upload"
            await self._upload.complete(self._receipts)
        self._finished = True
        self._release()
        return NewObject(self._object_id, self._kind, size, merge_ranges(self._entries))

    async def abort(self) -> None:
        """Abort: nothing becomes visible. Does nothing after `finish`; safe to call twice."""
        if self._finished:
            return
        self._release()
        self._block, self._raw = [], []
        upload, self._upload = self._upload, None
        if upload is not None:
            await upload.abort()

    async def abandon(self) -> None:
        """Abort after a failure or a cancellation, without raising errors of its own, within seconds.

        An upload that it cannot abort is aborted later, from the record of it in the catalog.
        """
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(ABORT_TIMEOUT_S):
                await self.abort()

    def _release(self) -> None:
        self._part, self._part_size, self._wave = [], 0, []

    def _check_order(self, stream_id: int, start: int, end: int) -> None:
        where = f"object {self._key}: stream {stream_id} [{start}, {end})"
        if end <= start:
            raise ObjectOrder(f"{where} is empty")
        if not self._entries:
            return
        last = self._entries[-1]
        if (stream_id, start) < (last.stream_id, last.end_offset):
            raise ObjectOrder(f"{where} does not follow stream {last.stream_id} offset {last.end_offset}")
        if self._kind is ObjectKind.SO and (stream_id, start) != (last.stream_id, last.end_offset):
            raise ObjectOrder(f"{where} does not continue the one run of a stream object, at {last.end_offset}")

    def _seal_block(self) -> None:
        if self._block:
            entry, parts = encode_block(self._block, self._position)
            self._block = []
            self._block_size = BLOCK_HEADER.size
            self._add_block(entry, parts)
        elif self._raw:
            entry, parts = join_blocks(self._raw, self._position)
            self._raw, self._raw_size = [], 0
            self._add_block(entry, parts)

    def _add_block(self, entry: IndexEntry, parts: Sequence[Buffer]) -> None:
        self._entries.append(entry)
        self._position += entry.size_bytes
        self._part += parts
        self._part_size += entry.size_bytes
        if self._part_size >= self._part_bytes:
            self._cut_part()

    def _cut_part(self) -> None:
        if self._part:
            self._wave.append(self._part)
            self._part, self._part_size = [], 0

    async def _send_wave(self, *, last: bool = False) -> None:
        """Send the gathered parts, several at a time."""
        if self._upload is None:
            self._upload = await self._store.start_multipart(self._key, writer_id=self._writer_id)
            if self._on_multipart is not None:
                await self._on_multipart(self._upload.upload_id)
        if len(self._receipts) + len(self._wave) > PARTS_MAX:
            raise ObjectOrder(f"object {self._key}: more than {PARTS_MAX} parts")
        # The last part may still grow, by a remainder too short for a part before a copied one.
        kept = 0 if last or isinstance(self._wave[-1], _CopiedPart) else 1
        wave, self._wave = self._wave[: len(self._wave) - kept], self._wave[len(self._wave) - kept :]
        slots = asyncio.Semaphore(self._parts_in_flight)
        first = len(self._receipts) + 1
        self._receipts += await side_by_side(
            self._send_part(self._upload, first + at, part, slots) for at, part in enumerate(wave)
        )

    async def _send_part(
        self, upload: MultipartUpload, number: int, part: "list[Buffer] | _CopiedPart", slots: asyncio.Semaphore
    ) -> PartReceipt:
        async with slots:
            if isinstance(part, _CopiedPart):
                return await upload.copy_part(number, part.key, part.start, part.end)
            if self._hedge is None:
                receipt = await upload.put_part(number, part, pace=self._pace)
            else:
                size_bytes = sum(len(buffer) for buffer in part)
                send = partial(upload.put_part, number, part)
                receipt = await self._hedge.put(send, size_bytes, self._pace)
            part.clear()
            return receipt


async def _copy(parts: Sequence[Buffer]) -> Buffer:
    """Return the parts copied into one buffer, in steps, so that other tasks can run."""
    copy = bytearray(sum(len(part) for part in parts))
    at = turn = 0
    for part in parts:
        copy[at : at + len(part)] = part
        at += len(part)
        if at - turn >= COPY_BYTES_PER_TURN:
            turn = at
            await asyncio.sleep(0)
    return copy
