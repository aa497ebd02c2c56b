"""Execution of a task: reads its slices of objects with few merged GETs, and yields Arrow batches.

An event loop in a thread of its own reads ahead, while records are decoded and Spark takes them.

A plan may be outdated: compaction replaces objects, which stay readable for the delete delay, ten minutes by default.
If an object of a slice is gone, the slice is looked up in the catalog again, and reading continues after the records
that were already returned. If the task cannot reach the catalog, it fails with an error that says so. Running the same
query again makes a new plan.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Coroutine, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from anabranch.s3stream.errors import CatalogError, ObjectNotFound, StorageError
from anabranch.s3stream.model import object_key
from anabranch.s3stream.object.reader import ObjectIndex, expect_object, index_tail_bytes, read_index
from anabranch.s3stream.read.io_plan import ByteRange, plan_gets
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.spark.direct.offsets import cut_slices, find_locations
from anabranch.spark.direct.plan import INT64_MAX, ObjectSlice, ReadTask, join_neighbours
from anabranch.spark.storage import StorageLocation, opened_catalog, opened_stores
from anabranch.tables.blocks import BlockDecoder, RequestedBlock

Result = TypeVar("Result")

OBJECTS_AT_ONCE: Final = 8
"""Objects whose indexes are read concurrently."""
READ_BYTES_MAX: Final = 8 << 20
"""Maximum size of a GET, unless a single block is larger."""
AHEAD_BYTES_MAX: Final = 24 << 20
"""Maximum size of the GETs that are under way or wait to be decoded, which bounds the memory of a task."""
MEMORY_BYTES_MAX: Final = 64 << 20
"""Free memory that a worker keeps for its next reads: those ahead and one more, and the values of two Arrow batches."""
GAP_BYTES_MAX: Final = 256 << 10
"""Requested ranges with a gap up to this size are merged into one GET."""
RELOCATIONS_MAX: Final = 5


@cache
def read_memory() -> ReadBufferPool:
    """Return the memory of reads and values for all tasks of this process, one after the other.

    Fresh memory for each task or Arrow batch would cost a tenth of the worker's CPU. The memory stays until Spark ends
    the idle worker, after a minute by default.
    """
    return ReadBufferPool(MEMORY_BYTES_MAX)


class ObjectGoneError(StorageError):
    """Planned data has been moved or deleted, and could not be located. Running the query again makes a new plan."""


class _Get(NamedTuple):
    """A GET, and the blocks that it brings."""

    store: str
    key: str
    start: int
    end: int
    blocks: Sequence[RequestedBlock]
    slices: Sequence[ObjectSlice]
    """Slice of each block."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.end - self.start


def read_task(
    location: StorageLocation, task: ReadTask, schema: pa.Schema, *, timestamp_ms_min: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task. Raises StorageError, KafkaError."""
    decoder = BlockDecoder(schema, read_memory(), timestamp_ms_min=timestamp_ms_min)
    with _background_loop() as loop, _entered(loop, opened_stores(location, memory=read_memory())) as stores:
        yield from _TaskReader(loop, location, stores, task, decoder, timestamp_ms_min).read()


@contextmanager
def _background_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread. At the end, its remaining tasks are cancelled."""
    loop = asyncio.new_event_loop()

    def serve() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.get_loop().run_forever()

    with ThreadPoolExecutor(1, "anabranch-reads") as thread:
        serving = thread.submit(serve)
        try:
            yield loop
        finally:
            loop.call_soon_threadsafe(loop.stop)
    serving.result()


@contextmanager
def _entered(loop: asyncio.AbstractEventLoop, context: AbstractAsyncContextManager[Result]) -> Iterator[Result]:
    """Enter and leave an asynchronous context in a loop of another thread."""

    async def enter() -> Result:
        return await context.__aenter__()

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    entered = asyncio.run_coroutine_threadsafe(enter(), loop).result()
    try:
        yield entered
    finally:
        asyncio.run_coroutine_threadsafe(leave(), loop).result()


class _TaskReader:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        location: StorageLocation,
        stores: Mapping[str, ObjectStore],
        task: ReadTask,
        decoder: BlockDecoder,
        timestamp_ms_min: int,
    ) -> None:
        self._loop = loop
        self._location = location
        self._stores = stores
        self._task = task
        self._decoder = decoder
        self._timestamp_ms_min = timestamp_ms_min
        self._relocations = 0
        self._queue = deque(join_neighbours(task.slices))
        """Slices that are not planned yet."""
        self._left: dict[ObjectSlice, ObjectSlice] = {}
        """Rest of each planned slice, behind the records that were yielded."""

    def read(self) -> Iterator[pa.RecordBatch]:
        while self._queue:
            try:
                with closing(self._read_ahead()) as reads:
                    for get, data in reads:
                        yield from self._decoder.decode(data, get.blocks, where=f"{get.store}:{get.key}")
                        for part, block in zip(get.slices, get.blocks, strict=True):
                            start_offset = max(part.start_offset, block.entry.end_offset)
                            self._left[part] = part._replace(start_offset=start_offset)
            except ObjectNotFound as error:
                rest = [part for part in self._left.values() if part.start_offset < part.end_offset]
                self._queue.extendleft(reversed(self._start(self._relocate(rest, error)).result()))
            self._left.clear()

    def _start(self, call: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def _read_ahead(self) -> Generator[tuple[_Get, memoryview], None, None]:
        """Yield the GETs of all slices with their data, in order. The next GETs run in the background."""
        plan: Future[list[_Get]] | None = None
        gets: deque[_Get] = deque()
        reads: deque[tuple[_Get, Future[memoryview]]] = deque()
        ahead_bytes = 0
        try:
            while True:
                if plan is None and self._queue:
                    some = _take(self._queue)
                    self._left.update((part, part) for part in some)
                    plan = self._start(self._plan(some))
                if plan is not None and not gets and (not reads or plan.done()):
                    gets.extend(plan.result())
                    plan = None
                while gets and (not reads or ahead_bytes + gets[0].size <= AHEAD_BYTES_MAX):
                    get = gets.popleft()
                    reads.append((get, self._start(self._stores[get.store].get(get.key, get.start, get.end))))
                    ahead_bytes += get.size
                if reads:
                    get, read = reads.popleft()
                    ahead_bytes -= get.size
                    yield get, read.result()
                elif plan is None and not self._queue:
                    return
        finally:
            for future in (plan, *(read for _, read in reads)):
                if future is not None:
                    future.cancel()

    async def _plan(self, slices: Sequence[ObjectSlice]) -> list[_Get]:
        """Read the indexes, and plan the GETs."""
        by_object: dict[int, list[ObjectSlice]] = {}
        for part in slices:
            by_object.setdefault(part.object_id, []).append(part)
        indexes = await _all(*(self._read_index(group[0]) for group in by_object.values()))
        gets: list[_Get] = []
        for group, index in zip(by_object.values(), indexes, strict=True):
            for layer in _layers(group):
                gets += self._plan_object(layer, index)
        return gets

    async def _read_index(self, part: ObjectSlice) -> ObjectIndex:
        store, key = self._store(part), object_key(self._location.cluster, part.object_id)
        index = await read_index(store, key, index_tail_bytes(part.object_bytes), object_bytes=part.object_bytes)
        expect_object(index, part.object_id)
        return index

    def _store(self, part: ObjectSlice) -> ObjectStore:
        store = self._stores.get(part.store)
        if store is None:
            raise StorageError(f"object {part.object_id} is in the store {part.store!r}, which is not configured")
        return store

    def _plan_object(self, slices: Sequence[ObjectSlice], index: ObjectIndex) -> list[_Get]:
        blocks: list[RequestedBlock] = []
        owners: list[ObjectSlice] = []
        for part in slices:
            partition_range = self._task.ranges[part.range_index]
            partition_range = partition_range._replace(start_offset=part.start_offset, end_offset=part.end_offset)
            entries = index.find(part.stored_stream_id, part.start_offset, part.end_offset)
            if (
                not entries
                or entries[0].start_offset > part.start_offset
                or entries[-1].end_offset < part.end_offset
                or any(one.end_offset != next_.start_offset for one, next_ in itertools.pairwise(entries))
            ):
                raise StorageError(
                    f"object {index.key}: expected offsets [{part.start_offset}, {part.end_offset}) of stream "
                    f"{part.stream_id} as the catalog has them, found {len(entries)} blocks that do not hold them"
                )
            fresh = [entry for entry in entries if entry.max_timestamp_ms >= self._timestamp_ms_min]
            blocks += [RequestedBlock(entry, 0, partition_range) for entry in fresh]
            owners += [part] * len(fresh)
        spans = [ByteRange(block.entry.position, block.entry.end_position) for block in blocks]
        planned = plan_gets(
            spans, gap_bytes_max=GAP_BYTES_MAX, read_bytes_max=READ_BYTES_MAX, split_bytes_min=READ_BYTES_MAX, idle=1
        )
        return [
            _Get(
                slices[0].store,
                index.key,
                each.start,
                each.end,
                [blocks[at]._replace(start=blocks[at].entry.position - each.start) for at in each.members],
                [owners[at] for at in each.members],
            )
            for each in planned
        ]

    async def _relocate(self, slices: Sequence[ObjectSlice], cause: ObjectNotFound) -> list[ObjectSlice]:
        """Return the current slices of data whose object is gone. Raises ObjectGoneError."""
        advice = "it was replaced by compaction or expired since the query was planned; run the query again"
        self._relocations += 1
        if self._relocations > RELOCATIONS_MAX:
            raise ObjectGoneError(f"{cause}: {advice}") from cause
        found: list[ObjectSlice] = []
        try:
            async with opened_catalog(self._location) as catalog:
                for part in slices:
                    locations = await find_locations(catalog, part.stream_id, part.start_offset, part.end_offset)
                    cuts = cut_slices(locations, part.range_index, part.start_offset, part.end_offset, -INT64_MAX)
                    covered = sum(cut.end_offset - cut.start_offset for cut in cuts)
                    if covered != part.end_offset - part.start_offset:
                        partition_range = self._task.ranges[part.range_index]
                        raise ObjectGoneError(
                            f"topic {partition_range.topic} partition {partition_range.partition}: offsets "
                            f"[{part.start_offset}, {part.end_offset}) expired, or the topic was deleted, since the "
                            "query was planned; run the query again"
                        ) from cause
                    found += [cut for cut in cuts if cut.end_offset > cut.start_offset]
        except CatalogError as error:
            raise ObjectGoneError(
                f"{cause}: {advice} (its new location cannot be looked up from this task: {error})"
            ) from cause
        return join_neighbours(found)


def _layers(slices: Sequence[ObjectSlice]) -> Sequence[Sequence[ObjectSlice]]:
    """Divide slices so that no layer requests a block twice, as a topic and its clone do."""
    layers: list[list[ObjectSlice]] = []
    seen: dict[int, list[int]] = {}
    for part in slices:
        streams = seen.setdefault(part.stored_stream_id, [])
        if part.stream_id not in streams:
            streams.append(part.stream_id)
        number = streams.index(part.stream_id)
        if number == len(layers):
            layers.append([])
        layers[number].append(part)
    return layers


def _take(queue: deque[ObjectSlice]) -> list[ObjectSlice]:
    """Take the slices of the next few objects."""
    some: list[ObjectSlice] = []
    objects: set[int] = set()
    while queue and (queue[0].object_id in objects or len(objects) < OBJECTS_AT_ONCE):
        part = queue.popleft()
        objects.add(part.object_id)
        some.append(part)
    return some


async def _all(*calls: Coroutine[Any, Any, Result]) -> list[Result]:
    """Run calls concurrently, wait for all, and raise the first error."""

    async def run(call: Coroutine[Any, Any, Result]) -> Result | StorageError:
        try:
            return await call
        except StorageError as error:
            return error

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run(call)) for call in calls]
    results: list[Result] = []
    for task in tasks:
        outcome = task.result()
        if isinstance(outcome, StorageError):
            raise outcome
        results.append(outcome)
    return results
