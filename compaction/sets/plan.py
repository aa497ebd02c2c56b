"""Plans the first level of compaction: stream set objects (SSO) become many stream objects (SO) and at most one SSO.

Pure: indexes in, reads and writes out. It follows the article on AutoMQ's compaction. Live blocks are sorted by stream
and offset. Contiguous runs of at least the split size become SOs; the others go to one new SSO, in stream order. The
work is cut into iterations that fit the memory. A run is cut in two where an iteration ends, and becomes two SOs.

Invariants: each live block is written exactly once (`compaction.proof` checks this from the outputs). The blocks of an
iteration fit the memory unless a single block is larger. The number of SSOs never grows. Planning again over the
outputs of a plan finds nothing to do. Plans are generated one iteration at a time: of five million index entries only
the packed 56 bytes and 8 more each are in memory.
"""

from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from anabranch.compaction.blocks import BlockRead, LiveBlock, add_to_reads, reads_of
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import ObjectKind
from anabranch.s3stream.object.format import IndexEntry, iter_raw
from anabranch.s3stream.object.reader import ObjectIndex

SLICE_BLOCKS = 100
"""Blocks planned between two yields: about half a millisecond of work."""


class PlanRefused(StorageError):
    """Two inputs contain the same offsets. Names the stream and the objects."""


class IndexEntries(Protocol):
    """Index entries of an object in order. `s3stream.object.reader.ObjectIndex` implements it."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[IndexEntry]: ...
    def __getitem__(self, number: int, /) -> IndexEntry: ...


class InputObject(NamedTuple):
    """An input of the plan: a stream set object and its index."""

    object_id: int
    entries: IndexEntries
    oldest_data_ms: int
    """Time at which its oldest data first came into a stream set object."""
    size_bytes: int
    clones: Mapping[int, Sequence[int]] = {}
    """For a stream id in the entries, the other streams that refer to its data here, after a topic was cloned."""


class BlockWrite(NamedTuple):
    """Blocks that an iteration adds to one output."""

    kind: ObjectKind
    number: int
    """Number of the output among those of its kind. Stream objects count from 0; the stream set object is 0."""
    blocks: Sequence[LiveBlock]
    """Neighbouring blocks in stream order."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """Reads and writes whose blocks are in memory together.

    A stream object is written within one iteration. The stream set object continues in the next.
    """

    reads: Sequence[BlockRead]
    writes: Sequence[BlockWrite]
    size_bytes: int


class Survey:
    """The live blocks of the inputs, by stream. A block is live if it ends past its stream's start."""

    def __init__(self, starts: Mapping[int, int], split_streams: Container[int] = frozenset()) -> None:
        """Create a survey of no inputs.

        `starts` holds the start offset of each stream that still exists. Runs of `split_streams` become stream objects
        at any size.
        """
        self._starts = starts
        self.split_streams = split_streams
        self.inputs: list[InputObject] = []
        self.blocks: dict[int, array[int]] = {}
        """Packed numbers for each stream: input << 32 | entry."""
        self.live_bytes = 0
        self.dead_bytes = 0
        self.live_blocks = 0
        self.live_records = 0

    def add(self, item: InputObject) -> None:
        """Add the entries of an input."""
        for _ in self.scan(item):
            pass

    def scan(self, item: InputObject) -> Iterator[None]:
        """Add the entries of an input in slices. Yields between them, so that the caller can let other tasks run."""
        base = len(self.inputs) << 32
        self.inputs.append(item)
        last_stream = -1
        wanted: list[tuple[array[int], int]] = []
        for at, (stream_id, _, end_offset, records, _, _, size, _) in enumerate(_packed_entries(item.entries)):
            if at % SLICE_BLOCKS == SLICE_BLOCKS - 1:
                yield
            if stream_id != last_stream:
                last_stream = stream_id
                wanted = self._wanted(item, stream_id)
            is_dead = True
            for blocks, start in wanted:
                if end_offset > start:
                    is_dead = False
                    blocks.append(base | at)
                    self.live_bytes += size
                    self.live_blocks += 1
                    self.live_records += records
            if is_dead:
                self.dead_bytes += size

    def _wanted(self, item: InputObject, stream_id: int) -> "list[tuple[array[int], int]]":
        """Return, for each stream that refers to `stream_id`'s blocks, its array and its start offset."""
        found = []
        for each in (stream_id, *item.clones.get(stream_id, ())):
            start = self._starts.get(each)
            if start is not None:
                blocks = self.blocks.get(each)
                if blocks is None:
                    blocks = self.blocks[each] = array("Q")
                found.append((blocks, start))
        return found


class BlockRun(NamedTuple):
    """Contiguous live blocks of one stream."""

    blocks: Sequence[LiveBlock]
    size_bytes: int
    oldest_data_ms: int


def is_worthwhile(found: Survey, settings: CompactionSettings, now_ms: int) -> bool:
    """Return whether compaction would change anything.

    It does with several inputs, or with one that can be split or is largely dead.
    """
    if len(found.inputs) != 1:
        return len(found.inputs) > 1
    if found.dead_bytes > found.live_bytes // 3:
        return True
    return any(is_own_object(run, found, settings, now_ms) for run in contiguous_runs(found))


def select_inputs(inputs: Sequence[InputObject], settings: CompactionSettings, now_ms: int) -> Sequence[InputObject]:
    """Return the inputs for a timed run.

    The largest object is left out while it outweighs the others, unless it is due to be split.
    """
    chosen = sorted(inputs, key=lambda item: item.size_bytes)
    while len(chosen) > 1:
        largest = chosen[-1]
        others = sum(item.size_bytes for item in chosen[:-1])
        if (
            largest.size_bytes <= settings.lone_ratio * others
            or now_ms - largest.oldest_data_ms >= settings.force_split_ms
        ):
            break
        chosen.pop()
    kept = {item.object_id for item in chosen}
    return [item for item in inputs if item.object_id in kept]


def contiguous_runs(found: Survey) -> Iterator[BlockRun]:
    """Yield contiguous runs in the order of stream and offset. Raises PlanRefused."""
    oldest = {item.object_id: item.oldest_data_ms for item in found.inputs}
    for stream_id in sorted(found.blocks):
        blocks = _live_blocks(found, stream_id)
        run: list[LiveBlock] = []
        end = -1
        for block in blocks:
            entry = block.entry
            start = entry.start_offset
            if start != end and run:
                if start < end:
                    both = f"objects {run[-1].object_id} and {block.object_id}"
                    raise PlanRefused(f"stream {stream_id}: {both} hold offsets [{start}, {end})")
                yield _run(run, oldest)
                run = []
            run.append(block)
            end = entry.end_offset
        if run:
            yield _run(run, oldest)


def _live_blocks(found: Survey, stream_id: int) -> list[LiveBlock]:
    """Return a stream's live blocks by offset."""
    inputs = found.inputs
    new, kind = tuple.__new__, LiveBlock
    blocks = [
        new(
            kind,
            (
                inputs[packed >> 32].object_id,
                inputs[packed >> 32].entries[packed & 0xFFFFFFFF],
                stream_id,
            ),
        )
        for packed in found.blocks[stream_id]
    ]
    blocks.sort(key=_start_offset)
    return blocks


def _start_offset(block: LiveBlock) -> int:
    return block.entry.start_offset


def _packed_entries(entries: IndexEntries) -> Iterable[tuple[int, int, int, int, int, int, int, int]]:
    """Return entries as tuples in the layout of `s3stream.object.format.INDEX_ENTRY`.

    An index yields them without creating an object for each.
    """
    if isinstance(entries, ObjectIndex):
        return iter_raw(entries.data)
    return ((e.stream_id, e.start_offset, e.end_offset, e.record_count, 0, 0, e.size_bytes, 0) for e in entries)


def iterations(found: Survey, settings: CompactionSettings, memory_bytes: int, now_ms: int) -> Iterator[Iteration]:
    """Yield the plan, one iteration at a time.

    `memory_bytes` limits the blocks of an iteration, unless a single block is larger.
    """
    return (each for each in plan_in_slices(found, settings, memory_bytes, now_ms) if each is not None)


def plan_in_slices(
    found: Survey, settings: CompactionSettings, memory_bytes: int, now_ms: int
) -> Iterator[Iteration | None]:
    """Yield the plan like `iterations`, and None from time to time while the next iteration is not ready.

    The caller lets other tasks run on None.
    """
    stream_objects = since_yield = 0
    builder = IterationBuilder()
    for run in contiguous_runs(found):
        kind = ObjectKind.SO if is_own_object(run, found, settings, now_ms) else ObjectKind.SSO
        since_yield += len(run.blocks)
        if since_yield >= SLICE_BLOCKS:
            since_yield = 0
            yield None
        rest = run.blocks
        while rest:
            count, size = _fitting(rest, memory_bytes - builder.size_bytes)
            if count == 0 and builder.size_bytes:
                yield builder.take()
                continue
            if count == 0:
                count, size = 1, rest[0].entry.size_bytes
            number = 0
            if kind is ObjectKind.SO:
                number = stream_objects
                stream_objects += 1
            builder.add(kind, number, rest[:count], size)
            rest = rest[count:]
    if builder.size_bytes:
        yield builder.take()


class IterationBuilder:
    """Collects the reads and writes of the next iteration."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._writes: dict[tuple[ObjectKind, int], list[LiveBlock]] = {}
        self._reads: dict[int, list[list[IndexEntry]]] = {}

    def add(self, kind: ObjectKind, number: int, blocks: Sequence[LiveBlock], size_bytes: int) -> None:
        """Add neighbouring blocks to an output. The blocks of an object come in the order of their positions."""
        self.size_bytes += size_bytes
        self._writes.setdefault((kind, number), []).extend(blocks)
        add_to_reads(self._reads, blocks)

    def take(self) -> Iteration:
        """Return the iteration, and start the next one."""
        writes = [BlockWrite(kind, number, blocks) for (kind, number), blocks in self._writes.items()]
        iteration = Iteration(reads_of(self._reads), writes, self.size_bytes)
        self._writes, self._reads, self.size_bytes = {}, {}, 0
        return iteration


def _fitting(blocks: Sequence[LiveBlock], room_bytes: int) -> tuple[int, int]:
    """Return how many of the blocks fit, and their bytes."""
    count = size = 0
    for block in blocks:
        added = block.entry.size_bytes
        if size + added > room_bytes:
            break
        size += added
        count += 1
    return count, size


def is_own_object(run: BlockRun, found: Survey, settings: CompactionSettings, now_ms: int) -> bool:
    """Return whether a run becomes a stream object."""
    return (
        run.size_bytes >= settings.split_bytes
        or now_ms - run.oldest_data_ms >= settings.force_split_ms
        or run.blocks[0].stream_id in found.split_streams
    )


def _run(blocks: Sequence[LiveBlock], oldest: Mapping[int, int]) -> BlockRun:
    size = sum([block.entry.size_bytes for block in blocks])
    return BlockRun(blocks, size, min([oldest[block.object_id] for block in blocks]))
