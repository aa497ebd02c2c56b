"""Plans the first level of compaction: stream set objects (SSO) to at most one SSO and many stream objects (SO).

Pure: indexes in, reads and writes out. After the article on AutoMQ's compaction: live blocks are sorted by (stream,
offset); contiguous runs of at least the split size become SOs, the others go to one new SSO, in stream order; the work
is cut into iterations that fit the memory, and a run in two where the bound falls (its halves are two SOs).

What it keeps true: each live block is written exactly once (`compaction.proof` checks it again from the outputs), an
iteration's blocks fit the memory unless a single block is longer, the number of SSOs never grows, and a second plan
over the outputs of the first does nothing. Plans are generated an iteration at a time: five million index entries take
their packed 56 bytes and 8 more each.
"""

from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from compaction.blocks import Piece, Read, _add_reads, _reads_of
from compaction.settings import CompactionSettings
from s3stream.errors import StorageError
from s3stream.model import ObjectKind
from s3stream.object.format import IndexEntry, iter_raw
from s3stream.object.reader import ObjectIndex

SLICE_BLOCKS = 100
"""Blocks planned in one go: about half a millisecond's work."""


class PlanRefused(StorageError):
    """The inputs contradict each other: two hold the same offsets. Names the stream and the objects."""


class Entries(Protocol):
    """Index entries of an object in order, as `s3stream.object.reader.ObjectIndex` has them."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[IndexEntry]: ...
    def __getitem__(self, number: int, /) -> IndexEntry: ...


class Source(NamedTuple):
    """An input object."""

    object_id: int
    entries: Entries
    born_ms: int
    """When its oldest data came into a stream set object."""
    size_bytes: int
    clones: Mapping[int, Sequence[int]] = {}
    """For a stream id in the entries, the other streams that refer to its data here (a topic was cloned)."""


class Write(NamedTuple):
    """What an iteration adds to an output."""

    kind: ObjectKind
    number: int
    """Stream objects are counted from 0; the one stream set object is number 0 of its kind."""
    pieces: Sequence[Piece]
    """Neighbours in stream order."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """What is in memory at once. A stream object is written whole; the stream set object goes on in the next one."""

    reads: Sequence[Read]
    writes: Sequence[Write]
    size_bytes: int


class Survey:
    """The live blocks of the inputs, by stream: those past their stream's start."""

    def __init__(self, starts: Mapping[int, int], own_streams: Container[int] = frozenset()) -> None:
        """Streams that `starts` does not name are gone; runs of `own_streams` become stream objects at any size."""
        self._starts = starts
        self.own_streams = own_streams
        self.sources: list[Source] = []
        self.blocks: dict[int, array[int]] = {}
        """For each stream, packed numbers: source << 32 | entry."""
        self.live_bytes = 0
        self.dead_bytes = 0
        self.live_blocks = 0
        self.live_records = 0

    def add(self, source: Source) -> None:
        """Take in the entries of one more input."""
        for _ in self.scan(source):
            pass

    def scan(self, source: Source) -> Iterator[None]:
        """The same in slices: yields now and then, so that the caller can let others run."""
        base = len(self.sources) << 32
        self.sources.append(source)
        last_stream = -1
        wanted: list[tuple[array[int], int]] = []
        for at, (stream_id, _, end_offset, records, _, _, size, _) in enumerate(_raw(source.entries)):
            if at % SLICE_BLOCKS == SLICE_BLOCKS - 1:
                yield
            if stream_id != last_stream:
                last_stream = stream_id
                wanted = self._wanted(source, stream_id)
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

    def _wanted(self, source: Source, stream_id: int) -> "list[tuple[array[int], int]]":
        """Where to note blocks under a stream's id, and from which offset on they count."""
        found = []
        for each in (stream_id, *source.clones.get(stream_id, ())):
            start = self._starts.get(each)
            if start is not None:
                blocks = self.blocks.get(each)
                if blocks is None:
                    blocks = self.blocks[each] = array("Q")
                found.append((blocks, start))
        return found


class Run(NamedTuple):
    """Contiguous live blocks of one stream."""

    pieces: Sequence[Piece]
    size_bytes: int
    born_ms: int


def is_worthwhile(found: Survey, settings: CompactionSettings, now_ms: int) -> bool:
    """Whether compaction would change anything: several inputs, or one that can be split or is largely dead."""
    if len(found.sources) != 1:
        return len(found.sources) > 1
    if found.dead_bytes > found.live_bytes // 3:
        return True
    return any(_is_own_object(run, found, settings, now_ms) for run in runs(found))


def select(sources: Sequence[Source], settings: CompactionSettings, now_ms: int) -> Sequence[Source]:
    """What a timed run takes: without the largest object while it outweighs the others, unless it is due to split."""
    chosen = sorted(sources, key=lambda source: source.size_bytes)
    while len(chosen) > 1:
        largest = chosen[-1]
        others = sum(source.size_bytes for source in chosen[:-1])
        if largest.size_bytes <= settings.lone_ratio * others or now_ms - largest.born_ms >= settings.force_split_ms:
            break
        chosen.pop()
    kept = {source.object_id for source in chosen}
    return [source for source in sources if source.object_id in kept]


def runs(found: Survey) -> Iterator[Run]:
    """Contiguous runs in the order of (stream, offset)."""
    births = {source.object_id: source.born_ms for source in found.sources}
    for stream_id in sorted(found.blocks):
        pieces = _pieces(found, stream_id)
        run: list[Piece] = []
        end = -1
        for piece in pieces:
            entry = piece.entry
            start = entry.start_offset
            if start != end and run:
                if start < end:
                    both = f"objects {run[-1].object_id} and {piece.object_id}"
                    raise PlanRefused(f"stream {stream_id}: {both} hold offsets [{start}, {end})")
                yield _run(run, births)
                run = []
            run.append(piece)
            end = entry.end_offset
        if run:
            yield _run(run, births)


def _pieces(found: Survey, stream_id: int) -> list[Piece]:
    """A stream's live blocks by offset."""
    sources = found.sources
    new, kind = tuple.__new__, Piece
    pieces = [
        new(kind, (sources[packed >> 32].object_id, sources[packed >> 32].entries[packed & 0xFFFFFFFF], stream_id))
        for packed in found.blocks[stream_id]
    ]
    pieces.sort(key=_start_offset)
    return pieces


def _start_offset(piece: Piece) -> int:
    return piece.entry.start_offset


def _raw(entries: Entries) -> Iterable[tuple[int, int, int, int, int, int, int, int]]:
    """Entries as `s3stream.object.format.INDEX_ENTRY` packs them: of an index without an object for each."""
    if isinstance(entries, ObjectIndex):
        return iter_raw(entries.data)
    return ((e.stream_id, e.start_offset, e.end_offset, e.record_count, 0, 0, e.size_bytes, 0) for e in entries)


def iterations(found: Survey, settings: CompactionSettings, memory_bytes: int, now_ms: int) -> Iterator[Iteration]:
    """The plan, an iteration at a time. `memory_bytes` bounds the blocks of one, unless a single block is longer."""
    return (each for each in plan_in_slices(found, settings, memory_bytes, now_ms) if each is not None)


def plan_in_slices(
    found: Survey, settings: CompactionSettings, memory_bytes: int, now_ms: int
) -> Iterator[Iteration | None]:
    """The same, with None now and then while the next iteration is not ready: the caller lets others run."""
    stream_objects = since_yield = 0
    gathering = _Gathering()
    for run in runs(found):
        kind = ObjectKind.SO if _is_own_object(run, found, settings, now_ms) else ObjectKind.SSO
        since_yield += len(run.pieces)
        if since_yield >= SLICE_BLOCKS:
            since_yield = 0
            yield None
        rest = run.pieces
        while rest:
            count, size = _fitting(rest, memory_bytes - gathering.size_bytes)
            if count == 0 and gathering.size_bytes:
                yield gathering.take()
                continue
            if count == 0:
                count, size = 1, rest[0].entry.size_bytes
            number = 0
            if kind is ObjectKind.SO:
                number = stream_objects
                stream_objects += 1
            gathering.add(kind, number, rest[:count], size)
            rest = rest[count:]
    if gathering.size_bytes:
        yield gathering.take()


class _Gathering:
    """The iteration being filled."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._writes: dict[tuple[ObjectKind, int], list[Piece]] = {}
        self._reads: dict[int, list[list[IndexEntry]]] = {}

    def add(self, kind: ObjectKind, number: int, pieces: Sequence[Piece], size_bytes: int) -> None:
        """Add neighbours to an output; an object's blocks come in the order of their positions."""
        self.size_bytes += size_bytes
        self._writes.setdefault((kind, number), []).extend(pieces)
        _add_reads(self._reads, pieces)

    def take(self) -> Iteration:
        """The iteration, and begin another."""
        writes = [Write(kind, number, pieces) for (kind, number), pieces in self._writes.items()]
        iteration = Iteration(_reads_of(self._reads), writes, self.size_bytes)
        self._writes, self._reads, self.size_bytes = {}, {}, 0
        return iteration


def _fitting(pieces: Sequence[Piece], room_bytes: int) -> tuple[int, int]:
    """How many of the pieces fit, and their bytes."""
    count = size = 0
    for piece in pieces:
        added = piece.entry.size_bytes
        if size + added > room_bytes:
            break
        size += added
        count += 1
    return count, size


def _is_own_object(run: Run, found: Survey, settings: CompactionSettings, now_ms: int) -> bool:
    return (
        run.size_bytes >= settings.split_bytes
        or now_ms - run.born_ms >= settings.force_split_ms
        or run.pieces[0].stream_id in found.own_streams
    )


def _run(pieces: Sequence[Piece], births: Mapping[int, int]) -> Run:
    size = sum([piece.entry.size_bytes for piece in pieces])
    return Run(pieces, size, min([births[piece.object_id] for piece in pieces]))
