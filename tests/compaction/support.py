"""Object layouts for planner tests, without objects."""

from collections.abc import Sequence

from compaction.sets.plan import Source
from s3stream.object.format import IndexEntry

Block = tuple[int, int, int]
"""Stream, start offset, end offset; a block is as many bytes long as it has offsets, unless told."""


def source(object_id: int, blocks: Sequence[Block], *, born_ms: int = 0, scale: int = 1) -> Source:
    """An object whose blocks lie in the order given."""
    entries: list[IndexEntry] = []
    position = 0
    for stream, start, end in blocks:
        size = (end - start) * scale
        entries.append(IndexEntry(stream, start, end, end - start, position, size, end, 0))
        position += size
    return Source(object_id, entries, born_ms, position)


def cut(stream: int, start: int, end: int, step: int) -> list[Block]:
    """A run in blocks of `step`."""
    return [(stream, at, min(at + step, end)) for at in range(start, end, step)]
