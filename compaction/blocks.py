"""Blocks of input objects: references, merged reads and totals. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from crc32c import crc32c

from anabranch.compaction.proof import BlockTotals
from anabranch.s3stream.object.format import BLOCK_HEADER, IndexEntry

BLOCK_COST_BYTES = 16 * 1024
"""Cost of handling a block, in bytes, in addition to its size."""


class LiveBlock(NamedTuple):
    """A live block of an input and the stream it is written for. A clone gets separate copies."""

    object_id: int
    entry: IndexEntry
    stream_id: int


class BlockRead(NamedTuple):
    """Adjacent blocks of one object, to be read by one ranged GET."""

    object_id: int
    start: int
    end: int
    entries: Sequence[IndexEntry]


def live_entries(entries: Iterable[IndexEntry], stream_start: int) -> list[IndexEntry]:
    """Return the entries of blocks that end past the stream's start."""
    return [entry for entry in entries if entry.end_offset > stream_start]


def merge_reads(blocks: Iterable[LiveBlock]) -> list[BlockRead]:
    """Return one read for each run of adjacent blocks, by object. An object's blocks come in order of position."""
    reads: dict[int, list[list[IndexEntry]]] = {}
    add_to_reads(reads, blocks)
    return reads_of(reads)


def add_to_reads(reads: dict[int, list[list[IndexEntry]]], blocks: Iterable[LiveBlock]) -> None:
    """Append blocks to `reads`, which holds groups of adjacent entries by object."""
    for object_id, entry, _ in blocks:
        groups = reads.get(object_id)
        if groups is None:
            reads[object_id] = [[entry]]
            continue
        last = groups[-1]
        before = last[-1]
        if before.position + before.size_bytes == entry.position:
            last.append(entry)
        else:
            groups.append([entry])


def reads_of(reads: Mapping[int, Sequence[Sequence[IndexEntry]]]) -> list[BlockRead]:
    """Return the reads that `add_to_reads` has grouped."""
    return [_read(object_id, entries) for object_id in sorted(reads) for entries in reads[object_id]]


def cut_read(read: BlockRead, bytes_max: int) -> Iterator[BlockRead]:
    """Cut a long read at block boundaries. A longer block stays whole."""
    entries: list[IndexEntry] = []
    for entry in read.entries:
        if entries and entry.end_position - entries[0].position > bytes_max:
            yield _read(read.object_id, entries)
            entries = []
        entries.append(entry)
    if entries:
        yield _read(read.object_id, entries)


def _read(object_id: int, entries: Sequence[IndexEntry]) -> BlockRead:
    return BlockRead(object_id, entries[0].position, entries[-1].end_position, entries)


def totals_of(entries: Sequence[IndexEntry]) -> BlockTotals:
    """Return the totals of some blocks."""
    return BlockTotals(
        len(entries), sum(entry.record_count for entry in entries), sum(entry.size_bytes for entry in entries)
    )


def renumber_block(entry: IndexEntry, data: memoryview, stream_id: int) -> tuple[IndexEntry, bytes]:
    """Return a checked block with another stream's id: a rewritten clone gets separate data."""
    magic, count, _ = BLOCK_HEADER.unpack_from(data)
    block = b"".join([BLOCK_HEADER.pack(magic, count, stream_id), data[BLOCK_HEADER.size :]])
    return entry._replace(stream_id=stream_id, crc=crc32c(block)), block
