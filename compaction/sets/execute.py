"""Carries out a share of the first level's plan: reads blocks, checks them, writes the outputs. Knows no catalog.

A share is a value that pickles: what to read and write, and the ids of the outputs. So a run is planned, carried out
and committed in places of their own: the node does all three, a cluster of workers can carry out the shares of a plan
made elsewhere. Whoever plans prepares the ids before and commits after, once, what all shares have made.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from compaction.proof import Totals
from compaction.sets.plan import Iteration, Read, Write, cut_read, merge_reads
from compaction.settings import CompactionSettings
from compaction.throttle import Throttle
from s3stream.errors import ObjectDamage, Place, StorageError
from s3stream.model import NewObject, ObjectInfo, ObjectKind, object_key
from s3stream.object.format import BLOCK_HEADER, IndexEntry, check_block
from s3stream.object.reader import ObjectIndex, expect_object, index_tail_bytes, read_index
from s3stream.object.writer import ObjectWriter
from s3stream.store.interface import ObjectStore
from s3stream.tasks import side_by_side

BACKGROUND_IN_FLIGHT = 2
"""Calls to the store at the same time in a run that is held to a rate."""
WRITER_RESERVE_PARTS = 3
"""Parts that the writer of the stream set object may hold from one iteration to the next."""

TURN_BYTES = 1024 * 1024
BLOCK_COST_BYTES = 16 * 1024
"""A block takes the time of so many bytes beside its own."""

Blocks = Mapping[tuple[int, int], memoryview]
"""By object id and position."""


class BadInput(StorageError):
    """An input that cannot be read: it is left out of later runs until the node starts again."""

    def __init__(self, object_id: int, cause: StorageError | str) -> None:
        super().__init__(f"compaction leaves object {object_id} alone: {cause}")
        self.object_id = object_id
        self.cause = str(cause)
        self.damage = cause if isinstance(cause, ObjectDamage) else None

    def __reduce__(self) -> tuple[type["BadInput"], tuple[int, str]]:
        return BadInput, (self.object_id, self.cause)


class Turn:
    """How much is done before others have their turn on the event loop: a fraction of a millisecond's work."""

    def __init__(self) -> None:
        self._cost = self._bytes = 0

    def add(self, size_bytes: int) -> int:
        """Before a block of that size is checked or written: 0, or the turn's bytes when it is over."""
        self._bytes += size_bytes
        self._cost += size_bytes + BLOCK_COST_BYTES
        if self._cost <= TURN_BYTES:
            return 0
        done = self._bytes
        self._cost = self._bytes = 0
        return done


class OutputId(NamedTuple):
    """An output's name, prepared in the catalog."""

    object_id: int
    writer_id: str


Ids = Mapping[tuple[ObjectKind, int], OutputId]
"""By the kind and number of the plan's writes."""


class Share(NamedTuple):
    """Part of a plan that is carried out by itself; its iterations go in order, each fits the memory. It pickles."""

    iterations: Sequence[Iteration]
    ids: Ids

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return sum(each.size_bytes for each in self.iterations)


class Made(NamedTuple):
    """An output that is whole in the store, and what went into it. It pickles."""

    output: NewObject
    totals: Totals


async def _note_nothing(_object_id: int, _upload_id: str) -> None:
    """Nobody remembers uploads: for workers without a catalog, whose outputs are one PUT each."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What carrying out needs."""

    store: ObjectStore
    cluster: str
    settings: CompactionSettings
    throttle: Throttle = field(default_factory=lambda: Throttle(0))
    on_multipart: Callable[[int, str], Awaitable[None]] = _note_nothing
    """Told of each multipart upload (object id, upload id) before its first part: a crash leaves none behind."""
    on_read: Callable[[int], None] = lambda _: None
    """Told how many bytes were read."""
    target: ObjectStore | None = None
    """Where outputs go; None: to the store of the inputs."""

    @property
    def in_flight(self) -> int:
        """Calls to the store at the same time: few when the work takes its time."""
        return BACKGROUND_IN_FLIGHT if self.throttle.is_limited else self.settings.reads_in_flight

    def key(self, object_id: int) -> str:
        """Key of an object in its store."""
        return object_key(self.cluster, object_id)

    def writer(self, output: OutputId, kind: ObjectKind) -> ObjectWriter:
        """A writer of an output."""
        return ObjectWriter(
            self.target or self.store,
            self.key(output.object_id),
            object_id=output.object_id,
            kind=kind,
            writer_id=output.writer_id,
            block_bytes=self.settings.block_bytes,
            part_bytes=self.settings.part_bytes,
            parts_in_flight=max(1, self.in_flight // 2),
            on_multipart=lambda upload_id: self.on_multipart(output.object_id, upload_id),
        )

    async def read_blocks(self, reads: Sequence[Read]) -> dict[tuple[int, int], memoryview]:
        """The blocks of the reads, checked. Raises BadInput and StoreError."""
        blocks: dict[tuple[int, int], memoryview] = {}
        slots = asyncio.Semaphore(self.in_flight)

        async def fetch(read: Read) -> None:
            key = self.key(read.object_id)
            async with slots:
                await self.throttle.spend(read.end - read.start)
                try:
                    data = await self.store.get(key, read.start, read.end)
                    await self._check(read, data, blocks)
                except ObjectDamage as error:
                    error.place = Place(read.object_id, self.store.name, key, read.start)
                    raise BadInput(read.object_id, error) from error
            self.on_read(read.end - read.start)

        await side_by_side(fetch(piece) for read in reads for piece in cut_read(read, self.settings.read_bytes_max))
        return blocks

    async def read_index(self, info: ObjectInfo) -> ObjectIndex:
        """The index of an input, checked against what the catalog knows. Raises BadInput and StoreError."""
        key = self.key(info.object_id)
        try:
            index = await read_index(self.store, key, index_tail_bytes(info.size_bytes), object_bytes=info.size_bytes)
            expect_object(index, info.object_id)
        except ObjectDamage as error:
            error.place = Place(info.object_id, self.store.name, key, -1)
            raise BadInput(info.object_id, error) from error
        return index

    async def _check(self, read: Read, data: memoryview, blocks: dict[tuple[int, int], memoryview]) -> None:
        where = f"{self.store.name}:{self.key(read.object_id)}"
        turn = Turn()
        for entry in read.entries:
            if turn.add(entry.size_bytes):
                await asyncio.sleep(0)
            block = data[entry.position - read.start : entry.end_position - read.start]
            check_block(block, entry, where=where)
            blocks[read.object_id, entry.position] = block


def memory_for_blocks(settings: CompactionSettings) -> int:
    """What the blocks of an iteration may take of the memory."""
    memory = settings.memory_bytes
    return max(memory // 2, memory - WRITER_RESERVE_PARTS * settings.part_bytes)


class Execution:
    """Carries out iterations one after the other; the stream set object's writer goes on from one to the next."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._set_writer: ObjectWriter | None = None
        self.made: list[Made] = []

    async def carry_out(self, iteration: Iteration, ids: Ids) -> None:
        """Read, check and write. Raises BadInput and StoreError; then call `abort`."""
        blocks = await self._workshop.read_blocks(iteration.reads)
        alone = [write for write in iteration.writes if write.kind is ObjectKind.SO]
        await self._write_stream_objects(alone, blocks, ids)
        for write in iteration.writes:
            if write.kind is ObjectKind.SSO:
                if self._set_writer is None:
                    self._set_writer = self._workshop.writer(ids[write.kind, write.number], write.kind)
                await _write_pieces(self._set_writer, write, blocks, self._workshop.throttle)
                await self._set_writer.settle()

    async def finish(self) -> Sequence[Made]:
        """End the stream set object, if there is one; returns all that was made."""
        if self._set_writer is not None:
            output = await self._set_writer.close()
            self.made.append(Made(output, totals_of(self._set_writer.entries)))
        return self.made

    async def abort(self) -> None:
        """Give up what is not finished; whatever ended the work counts more than how this ends."""
        if self._set_writer is not None:
            await self._set_writer.abandon()

    async def _write_stream_objects(self, writes: Sequence[Write], blocks: Blocks, ids: Ids) -> None:
        slots = asyncio.Semaphore(self._workshop.in_flight)

        async def write_one(write: Write) -> Made:
            async with slots, self._workshop.writer(ids[write.kind, write.number], write.kind) as writer:
                await _write_pieces(writer, write, blocks, self._workshop.throttle)
                output = await writer.close()
                return Made(output, totals_of(writer.entries))

        self.made += await side_by_side(write_one(write) for write in writes)


async def execute_share(share: Share, workshop: Workshop) -> Sequence[Made]:
    """Carry out a share. Raises BadInput and StoreError; what was written by then stays for who prepared its ids."""
    execution = Execution(workshop)
    try:
        for iteration in share.iterations:
            await execution.carry_out(iteration, share.ids)
        return await execution.finish()
    finally:
        await execution.abort()


def divide(iteration: Iteration) -> tuple[Iteration | None, Iteration | None]:
    """What an iteration does for stream objects, and what for the stream set object: they can be apart."""

    def only(kind: ObjectKind) -> Iteration | None:
        writes = [write for write in iteration.writes if write.kind is kind]
        pieces = [piece for write in writes for piece in write.pieces]
        if not pieces:
            return None
        return Iteration(merge_reads(pieces), writes, sum(piece.entry.size_bytes for piece in pieces))

    return only(ObjectKind.SO), only(ObjectKind.SSO)


def totals_of(entries: Sequence[IndexEntry]) -> Totals:
    """What blocks hold together."""
    return Totals(
        len(entries), sum(entry.record_count for entry in entries), sum(entry.size_bytes for entry in entries)
    )


def renumber_block(entry: IndexEntry, data: memoryview, stream_id: int) -> tuple[IndexEntry, bytes]:
    """A block, checked by the caller, under another stream's id: a clone's data is its own once it is rewritten."""
    magic, count, _ = BLOCK_HEADER.unpack_from(data)
    block = b"".join([BLOCK_HEADER.pack(magic, count, stream_id), data[BLOCK_HEADER.size :]])
    return entry._replace(stream_id=stream_id, crc=crc32c(block)), block


async def _write_pieces(writer: ObjectWriter, write: Write, blocks: Blocks, throttle: Throttle) -> None:
    turn = Turn()
    for piece in write.pieces:
        if done := turn.add(piece.entry.size_bytes):
            await throttle.spend(done)
        data = blocks[piece.object_id, piece.entry.position]
        if piece.stream_id == piece.entry.stream_id:
            await writer.write_block(piece.entry, data)
        else:
            await writer.write_block(*renumber_block(piece.entry, data, piece.stream_id))
