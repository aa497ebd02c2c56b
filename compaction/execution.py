"""Reading and writing for all kinds of compaction: checked blocks and indexes in, object writers out.

Independent of the catalog, so that it also works in processes that only execute shares of a plan.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.compaction.blocks import BLOCK_COST_BYTES, BlockRead, cut_read
from anabranch.compaction.settings import CompactionSettings
from anabranch.compaction.throttle import Throttle
from anabranch.s3stream.background import Pace
from anabranch.s3stream.errors import ObjectDamage, Place, StorageError
from anabranch.s3stream.model import ObjectInfo, ObjectKind, object_key
from anabranch.s3stream.object.format import check_block
from anabranch.s3stream.object.reader import ObjectIndex, expect_object, index_tail_bytes, read_index
from anabranch.s3stream.object.writer import ObjectWriter, PartLimits
from anabranch.s3stream.object.writer_id import CompactionWriter
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.tasks import side_by_side

BACKGROUND_IN_FLIGHT = 2
"""Concurrent calls to the store in a throttled run."""
WRITER_RESERVE_PARTS = 3
"""Parts that the writer of the stream set object may buffer from one iteration to the next."""
TURN_BYTES = 1024 * 1024
"""Work between two yields to the event loop: a fraction of a millisecond."""


class UnreadableInput(StorageError):
    """An input that cannot be read. Later runs leave it out until the node restarts."""

    def __init__(self, object_id: int, cause: StorageError | str) -> None:
        super().__init__(f"compaction leaves object {object_id} alone: {cause}")
        self.object_id = object_id
        self.cause = str(cause)
        self.damage = cause if isinstance(cause, ObjectDamage) else None

    def __reduce__(self) -> tuple[type["UnreadableInput"], tuple[int, str]]:
        return UnreadableInput, (self.object_id, self.cause)


class TurnBudget:
    """Limits the work between two yields to the event loop."""

    def __init__(self) -> None:
        self._cost = self._bytes = 0

    def add(self, size_bytes: int) -> int:
        """Account for a block before it is checked or written.

        Returns 0, or the bytes of this turn when it is over and the caller should yield.
        """
        self._bytes += size_bytes
        self._cost += size_bytes + BLOCK_COST_BYTES
        if self._cost <= TURN_BYTES:
            return 0
        done = self._bytes
        self._cost = self._bytes = 0
        return done


class OutputId(NamedTuple):
    """Id of an output that is prepared in the catalog, with its writer's id."""

    object_id: int
    writer: CompactionWriter


async def _ignore_multipart(_object_id: int, _upload_id: str) -> None:
    """Record nothing. For workers without a catalog, whose outputs are one PUT each."""


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """Stores, settings and throttle that a plan is executed with."""

    store: ObjectStore
    cluster: str
    settings: CompactionSettings
    throttle: Throttle = field(default_factory=lambda: Throttle(0))
    on_multipart: Callable[[int, str], Awaitable[None]] = _ignore_multipart
    """Called with object id and upload id before the first part of a multipart upload.

    The upload is recorded, so that it can be aborted after a crash.
    """
    on_read: Callable[[int], None] = lambda _: None
    """Called with the number of bytes read."""
    target: ObjectStore | None = None
    """Store for the outputs; None: the store of the inputs."""
    pace: Pace | None = None
    """Pace of the outputs' bytes; None: no limit."""

    @property
    def in_flight(self) -> int:
        """Maximum of concurrent calls to the store. It is low in a throttled run."""
        return BACKGROUND_IN_FLIGHT if self.throttle.is_limited else self.settings.reads_in_flight

    def key(self, object_id: int) -> str:
        """Return the key of an object in its store."""
        return object_key(self.cluster, object_id)

    def writer(self, output: OutputId, kind: ObjectKind) -> ObjectWriter:
        """Return a writer for an output."""
        return ObjectWriter(
            self.target or self.store,
            self.key(output.object_id),
            object_id=output.object_id,
            kind=kind,
            writer_id=output.writer.writer_id,
            block_bytes=self.settings.block_bytes,
            parts=PartLimits(self.settings.part_bytes, max(1, self.in_flight // 2)),
            on_multipart=lambda upload_id: self.on_multipart(output.object_id, upload_id),
            pace=self.pace,
        )

    async def read_blocks(self, reads: Sequence[BlockRead]) -> dict[tuple[int, int], memoryview]:
        """Read and check blocks. Raises UnreadableInput and StoreError."""
        blocks: dict[tuple[int, int], memoryview] = {}
        slots = asyncio.Semaphore(self.in_flight)

        async def fetch(read: BlockRead) -> None:
            key = self.key(read.object_id)
            async with slots:
                await self.throttle.spend(read.end - read.start)
                try:
                    data = await self.store.get(key, read.start, read.end)
                    await self._check(read, data, blocks)
                except ObjectDamage as error:
                    error.place = Place(read.object_id, self.store.name, key, read.start)
                    raise UnreadableInput(read.object_id, error) from error
            self.on_read(read.end - read.start)

        await side_by_side(fetch(part) for read in reads for part in cut_read(read, self.settings.read_bytes_max))
        return blocks

    async def read_index(self, info: ObjectInfo) -> ObjectIndex:
        """Read the index of an input, and check it against the catalog's information.

        Raises UnreadableInput and StoreError.
        """
        key = self.key(info.object_id)
        try:
            index = await read_index(self.store, key, index_tail_bytes(info.size_bytes), object_bytes=info.size_bytes)
            expect_object(index, info.object_id)
        except ObjectDamage as error:
            error.place = Place(info.object_id, self.store.name, key, -1)
            raise UnreadableInput(info.object_id, error) from error
        return index

    async def _check(self, read: BlockRead, data: memoryview, blocks: dict[tuple[int, int], memoryview]) -> None:
        where = f"{self.store.name}:{self.key(read.object_id)}"
        turn = TurnBudget()
        for entry in read.entries:
            if turn.add(entry.size_bytes):
                await asyncio.sleep(0)
            block = data[entry.position - read.start : entry.end_position - read.start]
            check_block(block, entry, where=where)
            blocks[read.object_id, entry.position] = block


def memory_for_blocks(settings: CompactionSettings) -> int:
    """Return the share of the memory limit that the blocks of an iteration may take."""
    memory = settings.memory_bytes
    return max(memory // 2, memory - WRITER_RESERVE_PARTS * settings.part_bytes)
