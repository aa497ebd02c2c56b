"""The bytes of an object: data blocks, index block, footer. `s3stream/object/FORMAT.md` describes it, with an example.

Pure: no IO. Writer and reader share the constants. Invariant: every byte of an object is covered by a CRC32C, and a
mismatch raises `CorruptObject` with the object, the position, and the expected and found values. Integers are
little-endian. Positions and offsets are 64 bit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.model import ObjectKind, StreamBatch, StreamRange
from anabranch.wal.interface import Buffer

FORMAT_VERSION = 1

BLOCK_MAGIC = 0x4B4C4241  # "ABLK" as bytes
BLOCK_HEADER = Struct("<IIq")  # magic, batch count, stream id
BATCH_HEADER = Struct("<qqqII")  # base offset, end offset, max timestamp, record count, payload bytes
INDEX_MAGIC = 0x58444941  # "AIDX" as bytes
INDEX_HEADER = Struct("<II")  # magic, entry count
INDEX_ENTRY = Struct("<qqqqqqII")  # stream, start, end, records, position, max timestamp, block bytes, block CRC
FOOTER = Struct("<QIIIBBHQI")  # index position, index bytes, entries, index CRC, kind, version, 0, object id, 0
FOOTER_TAIL = Struct("<I8s")  # CRC of what is before it in the footer, magic
FOOTER_MAGIC = b"ANABRNCH"
FOOTER_BYTES = FOOTER.size + FOOTER_TAIL.size

BLOCK_BYTES_MAX = (1 << 32) - 1
INT64_MAX = (1 << 63) - 1

assert FOOTER_BYTES == 48, "the footer has a fixed size"


class IndexEntry(NamedTuple):
    """Position and content of one data block: offsets [start, end) of one stream, without gap or overlap."""

    stream_id: int
    start_offset: int
    end_offset: int
    record_count: int
    position: int
    """Position of the block's first byte in the object."""
    size_bytes: int
    max_timestamp_ms: int
    crc: int
    """CRC32C of the whole block."""

    @property
    def end_position(self) -> int:
        """Position just past the block."""
        return self.position + self.size_bytes


@dataclass(frozen=True, slots=True)
class Footer:
    """Footer, the last 48 bytes of an object."""

    index_position: int
    index_bytes: int
    entry_count: int
    index_crc: int
    kind: ObjectKind
    object_id: int


class EncodedBlock(NamedTuple):
    """An encoded data block: its entry, and buffers whose concatenation is the block."""

    entry: IndexEntry
    parts: Sequence[Buffer]


def corrupt(where: str, position: int, what: str, *, expected: object, found: object) -> CorruptObject:
    """Return the error for bytes that do not match."""
    return CorruptObject(
        f"object {where} at position {position}: {what}: expected {expected}, found {found}",
        position=position,
        expected=f"{what} {expected}",
        found=str(found),
    )


def encode_block(batches: Sequence[StreamBatch], position: int) -> EncodedBlock:
    """Encode contiguous batches of one stream as the block at `position`. Payloads are not copied."""
    first, last = batches[0], batches[-1]
    headers = bytearray(BLOCK_HEADER.size + len(batches) * BATCH_HEADER.size)
    BLOCK_HEADER.pack_into(headers, 0, BLOCK_MAGIC, len(batches), first.stream_id)
    cursor, records, payload_bytes, max_timestamp = BLOCK_HEADER.size, 0, 0, -1
    parts: list[Buffer] = [headers]
    for _, base, end, count, timestamp, payload in batches:
        BATCH_HEADER.pack_into(headers, cursor, base, end, timestamp, count, len(payload))
        cursor += BATCH_HEADER.size
        records += count
        payload_bytes += len(payload)
        max_timestamp = max(max_timestamp, timestamp)
        parts.append(payload)
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    size = len(headers) + payload_bytes
    assert size <= BLOCK_BYTES_MAX, "a block is shorter than 4 GiB"
    entry = IndexEntry(first.stream_id, first.base_offset, last.end_offset, records, position, size, max_timestamp, crc)
    return EncodedBlock(entry, parts)


def join_blocks(blocks: Sequence[tuple[IndexEntry, Buffer]], position: int) -> EncodedBlock:
    """Join neighbouring blocks of one stream, checked by the caller, into one at `position`."""
    first, last = blocks[0][0], blocks[-1][0]
    if len(blocks) == 1:
        return EncodedBlock(first._replace(position=position), [blocks[0][1]])
    headers: list[Buffer] = []
    payloads: list[Buffer] = []
    batch_count = 0
    for _, data in blocks:
        view = memoryview(data)
        count = BLOCK_HEADER.unpack_from(view, 0)[1]
        cut = BLOCK_HEADER.size + count * BATCH_HEADER.size
        headers.append(view[BLOCK_HEADER.size : cut])
        payloads.append(view[cut:])
        batch_count += count
    head = b"".join([BLOCK_HEADER.pack(BLOCK_MAGIC, batch_count, first.stream_id), *headers])
    crc = crc32c(head)
    for payload in payloads:
        crc = crc32c(payload, crc)
    size = len(head) + sum(len(payload) for payload in payloads)
    assert size <= BLOCK_BYTES_MAX, "a block is shorter than 4 GiB"
    entry = IndexEntry(
        first.stream_id,
        first.start_offset,
        last.end_offset,
        sum(entry.record_count for entry, _ in blocks),
        position,
        size,
        max(entry.max_timestamp_ms for entry, _ in blocks),
        crc,
    )
    return EncodedBlock(entry, [head, *payloads])


def check_block(data: Buffer, entry: IndexEntry, *, where: str) -> None:
    """Check that `data` is the block of `entry`, by length and CRC. Raises CorruptObject."""
    if len(data) != entry.size_bytes:
        raise corrupt(where, entry.position, "block length", expected=entry.size_bytes, found=len(data))
    found = crc32c(data)
    if found != entry.crc:
        raise corrupt(where, entry.position, "block CRC32C", expected=f"{entry.crc:#010x}", found=f"{found:#010x}")


def decode_block(data: Buffer, entry: IndexEntry, *, where: str) -> list[StreamBatch]:
    """Check the block of `entry` and return its batches, with payloads as views of `data`. Raises CorruptObject."""
    check_block(data, entry, where=where)
    view = memoryview(data)
    if len(view) < BLOCK_HEADER.size:
        raise corrupt(where, entry.position, "block length", expected=f">= {BLOCK_HEADER.size}", found=len(view))
    magic, count, stream_id = BLOCK_HEADER.unpack_from(view, 0)
    if magic != BLOCK_MAGIC:
        raise corrupt(where, entry.position, "block magic", expected=f"{BLOCK_MAGIC:#x}", found=f"{magic:#x}")
    if stream_id != entry.stream_id:
        raise corrupt(where, entry.position, "stream id", expected=entry.stream_id, found=stream_id)
    cursor = BLOCK_HEADER.size + count * BATCH_HEADER.size
    if cursor > len(view):
        raise corrupt(where, entry.position, "bytes of batch headers", expected=f"<= {len(view)}", found=cursor)
    batches = []
    offset = entry.start_offset
    for base, end, timestamp, records, size in BATCH_HEADER.iter_unpack(view[BLOCK_HEADER.size : cursor]):
        if base != offset or end <= base:
            found = f"[{base}, {end})"
            raise corrupt(where, entry.position, "batch range", expected=f"one from {offset}", found=found)
        batches.append(StreamBatch(stream_id, base, end, records, timestamp, view[cursor : cursor + size]))
        cursor += size
        offset = end
    if cursor != len(view):
        raise corrupt(where, entry.position, "end of the last batch", expected=len(view), found=cursor)
    if offset != entry.end_offset:
        raise corrupt(where, entry.position, "end offset", expected=entry.end_offset, found=offset)
    return batches


def encode_trailer(entries: Sequence[IndexEntry], *, kind: ObjectKind, object_id: int) -> list[Buffer]:
    """Encode index block and footer, for data blocks that end where the last entry ends."""
    index = bytearray(INDEX_HEADER.size + len(entries) * INDEX_ENTRY.size)
    INDEX_HEADER.pack_into(index, 0, INDEX_MAGIC, len(entries))
    cursor = INDEX_HEADER.size
    for stream_id, start, end, records, position, size, timestamp, crc in entries:
        INDEX_ENTRY.pack_into(index, cursor, stream_id, start, end, records, position, timestamp, size, crc)
        cursor += INDEX_ENTRY.size
    index_position = entries[-1].end_position if entries else 0
    head = FOOTER.pack(
        index_position, len(index), len(entries), crc32c(index), int(kind), FORMAT_VERSION, 0, object_id, 0
    )
    return [index, head + FOOTER_TAIL.pack(crc32c(head), FOOTER_MAGIC)]


def decode_footer(data: Buffer, *, object_bytes: int, where: str) -> Footer:
    """Decode the footer of an object of `object_bytes`. Raises CorruptObject."""
    at = object_bytes - FOOTER_BYTES
    if len(data) != FOOTER_BYTES:
        raise corrupt(where, max(at, 0), "footer length", expected=FOOTER_BYTES, found=len(data))
    crc, magic = FOOTER_TAIL.unpack_from(data, FOOTER.size)
    if magic != FOOTER_MAGIC:
        raise corrupt(where, at + FOOTER.size + 4, "footer magic", expected=FOOTER_MAGIC, found=magic)
    found = crc32c(memoryview(data)[: FOOTER.size])
    if crc != found:
        raise corrupt(where, at, "footer CRC32C", expected=f"{crc:#010x}", found=f"{found:#010x}")
    position, size, count, index_crc, kind, version, _, object_id, _ = FOOTER.unpack_from(data, 0)
    if version != FORMAT_VERSION:
        raise corrupt(where, at, "format version", expected=FORMAT_VERSION, found=version)
    if kind not in {int(each) for each in ObjectKind}:
        raise corrupt(where, at, "kind", expected="1 or 2", found=kind)
    if position + size + FOOTER_BYTES != object_bytes:
        raise corrupt(where, at, "end of the index", expected=at, found=position + size)
    if size != INDEX_HEADER.size + count * INDEX_ENTRY.size:
        expected = INDEX_HEADER.size + count * INDEX_ENTRY.size
        raise corrupt(where, at, f"index bytes for {count} entries", expected=expected, found=size)
    return Footer(position, size, count, index_crc, ObjectKind(kind), object_id)


def check_index(data: Buffer, footer: Footer, *, where: str) -> None:
    """Check an index block: CRC, entries sorted without overlap, blocks contiguous from 0 to the index.

    Raises CorruptObject.
    """
    at = footer.index_position
    if len(data) != footer.index_bytes:
        raise corrupt(where, at, "index length", expected=footer.index_bytes, found=len(data))
    found = crc32c(data)
    if found != footer.index_crc:
        raise corrupt(where, at, "index CRC32C", expected=f"{footer.index_crc:#010x}", found=f"{found:#010x}")
    magic, count = INDEX_HEADER.unpack_from(data, 0)
    if magic != INDEX_MAGIC or count != footer.entry_count:
        expected = f"{INDEX_MAGIC:#x} and {footer.entry_count} entries"
        raise corrupt(where, at, "index header", expected=expected, found=f"{magic:#x} and {count} entries")
    last_stream, last_end, next_position = -1, 0, 0
    for number, (stream_id, start, end, _, position, _, size, _) in enumerate(iter_raw(data)):
        if position != next_position:
            what = f"position of block {number}"
            raise corrupt(where, at, what, expected=next_position, found=position)
        if end <= start or stream_id < last_stream or (stream_id == last_stream and start < last_end):
            expected = f"one after stream {last_stream} offset {last_end}"
            raise corrupt(where, at, f"entry {number}", expected=expected, found=f"stream {stream_id} [{start}, {end})")
        last_stream, last_end, next_position = stream_id, end, position + size
    if next_position != at:
        raise corrupt(where, at, "end of the last block", expected=at, found=next_position)


def iter_raw(data: Buffer) -> Iterator[tuple[int, int, int, int, int, int, int, int]]:
    """Yield the fields of each entry of an index block in the order of `INDEX_ENTRY`."""
    return INDEX_ENTRY.iter_unpack(memoryview(data)[INDEX_HEADER.size :])


def iter_entries(data: Buffer) -> Iterator[IndexEntry]:
    """Yield the entries of an index block, in order."""
    new, kind = tuple.__new__, IndexEntry  # half the time of calling the class; there are millions of entries
    for stream_id, start, end, records, position, timestamp, size, crc in iter_raw(data):
        yield new(kind, (stream_id, start, end, records, position, size, timestamp, crc))


def entry_at(data: Buffer, number: int) -> IndexEntry:
    """Return entry `number` (from 0) of an index block."""
    stream_id, start, end, records, position, timestamp, size, crc = INDEX_ENTRY.unpack_from(
        data, INDEX_HEADER.size + number * INDEX_ENTRY.size
    )
    return tuple.__new__(IndexEntry, (stream_id, start, end, records, position, size, timestamp, crc))


def merge_ranges(entries: Sequence[IndexEntry]) -> list[StreamRange]:
    """Return the contiguous ranges that sorted entries cover, for the catalog."""
    ranges: list[StreamRange] = []
    run: list[IndexEntry] = []
    for entry in entries:
        if run and (entry.stream_id != run[0].stream_id or entry.start_offset != run[-1].end_offset):
            ranges.append(_range_of(run))
            run = []
        run.append(entry)
    if run:
        ranges.append(_range_of(run))
    return ranges


def _range_of(run: Sequence[IndexEntry]) -> StreamRange:
    return StreamRange(
        run[0].stream_id,
        run[0].start_offset,
        run[-1].end_offset,
        sum(entry.record_count for entry in run),
        sum(entry.size_bytes for entry in run),
        max(entry.max_timestamp_ms for entry in run),
    )
