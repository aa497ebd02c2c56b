"""Turns blocks of an object into Arrow batches of records: checks, selects, decompresses and decodes.

It processes a whole read at a time. The headers of all batches are parsed as arrays. Batches without requested records
are dropped before their records are touched: markers, aborted transactions, other offsets, too old. The records of the
others are decoded together. Uncompressed batches are decoded in place.

A producer may send a batch whose records cannot be decoded: nodes check its header only. It stops a reader who does not
ask for the column `error`; to one who does it is a row, and so is a batch of very many records.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from anabranch.protocol.batch import (
    CONTROL_MASK,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TIMESTAMP_TYPE_MASK,
    TRANSACTIONAL_MASK,
)
from anabranch.protocol.compression import compression_of, decompress
from anabranch.protocol.errors import InvalidRecord, KafkaError
from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.object.format import (
    BATCH_HEADER,
    BLOCK_HEADER,
    BLOCK_MAGIC,
    INT64_MAX,
    IndexEntry,
    check_block,
    corrupt,
)
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.records import (
    MS_MAX,
    BatchBodies,
    Bools,
    Bytes,
    Int64s,
    RecordColumns,
    decode_records,
    find_records,
    gather,
    gather_headers,
    read_records,
    repeat_text,
    timestamps,
)
from anabranch.tables.types import TIMESTAMP, list_of

UNFOLDED_BYTES_MAX: Final = 16 << 20
"""Compressed batches are decompressed up to this size, or one batch, at a time."""
COMPRESSION_MASK: Final = 7
RECORDS_MAX: Final = 4_000_000
"""Records of a batch that become rows. Finding them takes 32 bytes a record, and 128 MiB may hold 19 million."""
ROWS_MAX: Final = 131_072
"""Maximum rows of an Arrow batch, and records that are decoded together, with some 200 bytes each."""
COLUMN_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": list_of(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])),
    "error": pa.string(),
}
"""Columns that a decoder makes, named as in the Kafka source of Spark, and `error`."""

_BLOCK_BATCH = np.dtype([("base", "<i8"), ("end", "<i8"), ("timestamp", "<i8"), ("count", "<u4"), ("bytes", "<u4")])
_BATCH_HEAD = np.dtype([
    ("base_offset", ">i8"), ("length", ">i4"), ("epoch", ">i4"), ("magic", "i1"), ("crc", ">u4"),
    ("attributes", ">i2"), ("last_delta", ">i4"), ("base_timestamp", ">i8"), ("max_timestamp", ">i8"),
    ("producer_id", ">i8"), ("producer_epoch", ">i2"), ("sequence", ">i4"), ("count", ">i4"),
])  # fmt: skip

assert _BLOCK_BATCH.itemsize == BATCH_HEADER.size, "as s3stream.object.format has it"
assert _BATCH_HEAD.itemsize == HEADER_BYTES, "as protocol.batch has it"


class RequestedBlock(NamedTuple):
    """A block within a read, and the range of a partition that it was read for."""

    entry: IndexEntry
    start: int
    """Position of the block within the read."""
    partition_range: PartitionRange


@dataclass(frozen=True, slots=True)
class _BatchHeaders:
    """Headers of the batches of a read, one array element each."""

    start: Int64s
    """Position of the batch within the read."""
    end: Int64s
    source: Int64s
    """Index of its block."""
    fields: Any
    """Kafka's batch headers."""


class BlockDecoder:
    """Decodes blocks into Arrow batches with the columns of `schema`, some of `COLUMN_TYPES`."""

    def __init__(self, schema: pa.Schema, memory: ReadBufferPool, *, timestamp_ms_min: int = -INT64_MAX) -> None:
        """Create a decoder, whose values are in `memory`.

        It drops batches whose records are all older than `timestamp_ms_min`.
        """
        self._schema = schema
        self._memory = memory
        self._timestamp_ms_min = timestamp_ms_min
        self._shows_errors = "error" in schema.names

    def decode(self, data: memoryview, blocks: Sequence[RequestedBlock], *, where: str) -> Iterator[pa.RecordBatch]:
        """Yield the requested records of the blocks of a read, those of compressed batches last.

        Raises CorruptObject, and KafkaError if the schema has no `error`.
        """
        for part in self.decode_apart(data, blocks, where=where):
            yield from part

    def decode_apart(
        self, data: memoryview, blocks: Sequence[RequestedBlock], *, where: str
    ) -> tuple[Iterator[pa.RecordBatch], Iterator[pa.RecordBatch]]:
        """Return the requested records of a read: those that are in it as they are, and those of compressed batches.

        The latter are in the order of offsets, and are decompressed as they are asked for: all of them may be very much
        larger than the read. Raises CorruptObject; the iterators raise KafkaError if the schema has no `error`.
        """
        heads = _read_batch_headers(data, blocks, where)
        keep = _choose(heads, blocks, self._timestamp_ms_min)
        plain = keep & ((heads.fields["attributes"] & COMPRESSION_MASK) == 0)
        huge = keep & (heads.fields["count"] > RECORDS_MAX) & self._shows_errors
        in_place = self._in_place(data, heads, np.flatnonzero(huge), np.flatnonzero(plain & ~huge), blocks)
        return in_place, self._unfolded(data, heads, np.flatnonzero(keep & ~plain & ~huge), blocks)

    def _in_place(
        self, data: memoryview, heads: _BatchHeaders, huge: Int64s, plain: Int64s, blocks: Sequence[RequestedBlock]
    ) -> Iterator[pa.RecordBatch]:
        for number in huge.tolist():
            many = f"{heads.fields['count'][number]} records, and {RECORDS_MAX} are the most"
            yield from self._broken_batch(data, heads, number, blocks, InvalidRecord(many))
        if len(plain):
            bodies = _bodies(heads, plain, heads.start[plain] + HEADER_BYTES, heads.end[plain])
            yield from self._emit(data, bodies, blocks)

    def _unfolded(
        self, data: memoryview, heads: _BatchHeaders, folded: Int64s, blocks: Sequence[RequestedBlock]
    ) -> Iterator[pa.RecordBatch]:
        begin = 0
        while begin < len(folded):
            try:
                at, buffer, bounds = _decompress(data, heads, folded[begin:])
            except KafkaError as error:
                if not self._shows_errors:
                    raise
                yield from self._broken_batch(data, heads, int(folded[begin]), blocks, error)
                begin += 1
            else:
                yield from self._emit(buffer, _bodies(heads, at, bounds[:-1], bounds[1:]), blocks)
                begin += len(at)

    def _emit(self, data: Any, bodies: BatchBodies, blocks: Sequence[RequestedBlock]) -> Iterator[pa.RecordBatch]:
        """Decode batches, a limited number of records at a time."""
        array = np.frombuffer(data, np.uint8)
        first = 0
        total = np.cumsum(bodies.records)
        while first < len(total):
            done = int(total[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(total, done + ROWS_MAX, side="right")))
            some = BatchBodies(*(column[first:end] for column in bodies))
            yield from self._columns(data, array, some, blocks)
            first = end

    def _columns(
        self, data: Any, array: Bytes, bodies: BatchBodies, blocks: Sequence[RequestedBlock]
    ) -> Iterator[pa.RecordBatch]:
        try:
            found = _decoded(array, bodies)
        except InvalidRecord as error:
            if not self._shows_errors:
                raise
            count = len(bodies.records)
            if count == 1:
                yield from self._broken(data, bodies, blocks, error)
                return
            for some in (slice(count // 2), slice(count // 2, count)):
                yield from self._columns(data, array, BatchBodies(*(column[some] for column in bodies)), blocks)
            return
        for records in found:
            yield from self._requested(data, records, bodies, blocks)

    def _requested(
        self, data: Any, records: RecordColumns, bodies: BatchBodies, blocks: Sequence[RequestedBlock]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records that were asked for, if there are any."""
        source = bodies.source[records.batch]
        low = np.array([block.partition_range.start_offset for block in blocks], np.int64)[source]
        high = np.array([block.partition_range.end_offset for block in blocks], np.int64)[source]
        inside = (records.offset >= low) & (records.offset < high)
        if not inside.all():
            records = records.select(inside)
            source = source[inside]
        if len(records):
            columns = [self._column(field, data, records, bodies, blocks, source) for field in self._schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _broken_batch(
        self, data: Any, heads: _BatchHeaders, number: int, blocks: Sequence[RequestedBlock], error: KafkaError
    ) -> Iterator[pa.RecordBatch]:
        at = np.array([number])
        return self._broken(data, _bodies(heads, at, heads.start[at] + HEADER_BYTES, heads.end[at]), blocks, error)

    def _broken(
        self, data: Any, bodies: BatchBodies, blocks: Sequence[RequestedBlock], error: KafkaError
    ) -> Iterator[pa.RecordBatch]:
        """Yield the row of a batch whose records cannot be decoded: its value is their bytes.

        Of several ranges that a batch is in, the one with its last offset has the row: the first one may have begun
        before the partition did.
        """
        wanted = blocks[int(bodies.source[0])].partition_range
        if bodies.last_offset[0] >= wanted.end_offset:
            return
        time = int(bodies.base_timestamp[0] if bodies.append_time[0] < 0 else bodies.append_time[0])
        row = {
            "value": bytes(data[int(bodies.start[0]) : int(bodies.end[0])]),
            "topic": wanted.topic,
            "partition": wanted.partition,
            "offset": max(int(bodies.base_offset[0]), wanted.start_offset),
            "timestamp": None if abs(time) > MS_MAX else time * 1000,
            "timestampType": int(bodies.append_time[0] >= 0),
            "error": f"the batch cannot be decoded: {error.message or error}",
        }
        yield pa.RecordBatch.from_arrays(
            [pa.array([row.get(field.name)], field.type) for field in self._schema], schema=self._schema
        )

    def _column(
        self,
        field: pa.Field,
        data: Any,
        records: RecordColumns,
        bodies: BatchBodies,
        blocks: Sequence[RequestedBlock],
        source: Int64s,
    ) -> pa.Array:
        match field.name:
            case "key":
                found = gather(data, records.key_start, records.key_bytes, field.type, self._memory)
            case "value":
                found = gather(data, records.value_start, records.value_bytes, field.type, self._memory)
            case "topic":
                names = list(dict.fromkeys(block.partition_range.topic for block in blocks))
                which = np.array([names.index(block.partition_range.topic) for block in blocks], np.int64)
                found = repeat_text(names, which[source])
            case "partition":
                partitions = np.array([block.partition_range.partition for block in blocks], np.int32)
                found = pa.array(partitions[source])
            case "offset":
                found = pa.array(records.offset)
            case "timestamp":
                found = (_times if self._shows_errors else timestamps)(records, field.type)
            case "error":
                found = _time_errors(records)
            case "timestampType":
                found = pa.array((bodies.append_time[records.batch] >= 0).astype(np.int32))
            case _:
                found = gather_headers(records, bodies, field.type, self._memory)
        return found


def _times(records: RecordColumns, kind: pa.DataType) -> pa.Array:
    """Return the records' times in microseconds, null where one does not fit."""
    ms = np.clip(records.timestamp_ms, -MS_MAX, MS_MAX)
    return pa.array(ms * 1000, mask=ms != records.timestamp_ms).cast(kind)


def _time_errors(records: RecordColumns) -> pa.Array:
    """Return an error for each record whose time is null because it does not fit, and null for others."""
    wrong = np.flatnonzero((records.timestamp_ms > MS_MAX) | (records.timestamp_ms < -MS_MAX))
    if not len(wrong):
        return pa.nulls(len(records), pa.string())
    errors: list[str | None] = [None] * len(records)
    for at in wrong.tolist():
        errors[at] = f"a timestamp of {records.timestamp_ms[at]} ms, which does not fit in microseconds"
    return pa.array(errors, pa.string())


def _read_batch_headers(data: memoryview, blocks: Sequence[RequestedBlock], where: str) -> _BatchHeaders:
    """Check the blocks, and parse the headers of all their batches."""
    starts: list[Int64s] = []
    ends: list[Int64s] = []
    counts: list[int] = []
    for entry, start, _ in blocks:
        block = data[start : start + entry.size_bytes]
        check_block(block, entry, where=where)
        magic, count, stream_id = BLOCK_HEADER.unpack_from(block, 0)
        first = BLOCK_HEADER.size + count * BATCH_HEADER.size
        if magic != BLOCK_MAGIC or stream_id != entry.stream_id or first > len(block):
            expected = f"a block of stream {entry.stream_id}"
            raise corrupt(where, entry.position, "block header", expected=expected, found=f"one of stream {stream_id}")
        sizes = np.frombuffer(block, _BLOCK_BATCH, count, BLOCK_HEADER.size)["bytes"].astype(np.int64)
        end = np.cumsum(sizes) + (start + first)
        if count and end[-1] != start + len(block):
            raise corrupt(where, entry.position, "end of the last batch", expected=len(block), found=end[-1] - start)
        starts.append(end - sizes)
        ends.append(end)
        counts.append(count)
    start_of, end_of = np.concatenate(starts), np.concatenate(ends)
    if ((end_of - start_of) < HEADER_BYTES).any():
        raise CorruptObject(f"object {where}: a batch shorter than a record batch's header")
    array = np.frombuffer(data, np.uint8)
    raw = array[start_of[:, None] + np.arange(HEADER_BYTES)]
    fields = raw.view(_BATCH_HEAD).reshape(-1)
    wrong = (fields["magic"] != MAGIC) | (fields["length"] + LOG_OVERHEAD_BYTES != end_of - start_of)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise CorruptObject(
            f"object {where} at position {blocks[0].entry.position + int(start_of[at]) - blocks[0].start}: "
            f"expected a record batch of {end_of[at] - start_of[at]} bytes, found magic {fields['magic'][at]} "
            f"and length {fields['length'][at]}"
        )
    return _BatchHeaders(start_of, end_of, np.repeat(np.arange(len(blocks)), counts), fields)


def _choose(heads: _BatchHeaders, blocks: Sequence[RequestedBlock], timestamp_ms_min: int) -> Bools:
    """Return a mask of the batches that can contain a requested record."""
    fields = heads.fields
    base = fields["base_offset"].astype(np.int64)
    last = base + fields["last_delta"]
    low = np.array([block.partition_range.start_offset for block in blocks], np.int64)[heads.source]
    high = np.array([block.partition_range.end_offset for block in blocks], np.int64)[heads.source]
    keep: Bools = (last >= low) & (base < high) & ((fields["attributes"] & CONTROL_MASK) == 0) & (fields["count"] > 0)
    if timestamp_ms_min > -INT64_MAX:
        keep &= fields["max_timestamp"] >= timestamp_ms_min
    transactional = (fields["attributes"] & TRANSACTIONAL_MASK) != 0
    if not (keep & transactional).any():
        return keep
    by_range: dict[int, tuple[PartitionRange, list[int]]] = {}
    for number, block in enumerate(blocks):
        if block.partition_range.aborted:
            by_range.setdefault(id(block.partition_range), (block.partition_range, []))[1].append(number)
    for partition_range, numbers in by_range.values():
        own = transactional & np.isin(heads.source, numbers)
        for producer_id, first, end in partition_range.aborted:
            keep &= ~(own & (fields["producer_id"] == producer_id) & (base >= first) & (base < end))
    return keep


def _bodies(heads: _BatchHeaders, at: Int64s, start: Int64s, end: Int64s) -> BatchBodies:
    fields = heads.fields[at]
    stamped = (fields["attributes"] & TIMESTAMP_TYPE_MASK) != 0
    return BatchBodies(
        start,
        end,
        fields["count"].astype(np.int64),
        fields["base_offset"].astype(np.int64),
        fields["base_timestamp"].astype(np.int64),
        np.where(stamped, fields["max_timestamp"], -1).astype(np.int64),
        heads.source[at],
        fields["base_offset"] + fields["last_delta"].astype(np.int64),
    )


def _decoded(array: Bytes, bodies: BatchBodies) -> Iterable[RecordColumns]:
    """Return the records of batches, those of a very large batch a limited number at a time. Raises InvalidRecord."""
    if len(bodies.records) > 1 or bodies.records[0] <= ROWS_MAX:
        records = decode_records(array, bodies)
        _check_offsets(records, bodies, int(bodies.base_offset[0]) - 1)
        return [records]
    at, end = find_records(array, bodies)

    def parts() -> Iterator[RecordColumns]:
        for first in range(0, len(at), ROWS_MAX):
            some = slice(first, first + ROWS_MAX)
            yield read_records(array, bodies, np.zeros(len(at[some]), np.int64), at[some], end[some])

    before = int(bodies.base_offset[0]) - 1
    for records in parts():  # all of them are right, or none is shown
        _check_offsets(records, bodies, before)
        before = int(records.offset[-1])
    return parts()


def _check_offsets(records: RecordColumns, bodies: BatchBodies, before: int) -> None:
    """Raise InvalidRecord for an offset that is not in its batch, or not after the one before.

    The offsets after those of a batch are other batches', so such a record would be lost, or one of two with an offset.
    The first offset follows `before`.
    """
    batch, offset = records.batch, records.offset
    wrong = (offset < bodies.base_offset[batch]) | (offset > bodies.last_offset[batch])
    wrong[:1] |= offset[:1] <= before
    wrong[1:] |= (batch[1:] == batch[:-1]) & (offset[1:] <= offset[:-1])
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        first, last = bodies.base_offset[batch[at]], bodies.last_offset[batch[at]]
        raise InvalidRecord(
            f"record batch at offset {first}: a record has offset {offset[at]}, where one of {first} to {last} has to "
            "follow the one before"
        )


def _decompress(data: memoryview, heads: _BatchHeaders, at: Int64s) -> tuple[Int64s, bytes, Int64s]:
    """Decompress the first of the batches at `at`.

    Returns the indexes of those that were decompressed, their records in one buffer, and the bounds of each. Raises
    KafkaError if the very first cannot be.
    """
    slices: list[Any] = []
    bounds = [0]
    for number in at.tolist():
        body = data[int(heads.start[number]) + HEADER_BYTES : int(heads.end[number])]
        try:
            slices.append(decompress(compression_of(int(heads.fields["attributes"][number])), body))
        except KafkaError:
            if not slices:
                raise
            break  # it is the first of the next call
        bounds.append(bounds[-1] + len(slices[-1]))
        if bounds[-1] >= UNFOLDED_BYTES_MAX:
            break
    buffer = slices[0] if len(slices) == 1 else b"".join(slices)
    return at[: len(slices)], buffer, np.array(bounds, np.int64)
