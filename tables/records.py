"""Decodes many records at once: positions and lengths as arrays, values gathered by Arrow, no Python per record.

Records are framed by varints (see `protocol.records`), so the start of one is known only from the one before. There are
three ways to find the starts. Many short batches are walked abreast, one step in all of them at a time. In longer
batches, neighbours of equal length are found in one comparison: from a known start, equal lengths prove each other. The
rest is walked record by record. All other fields are then read for all records of all batches together.

Invariants: nothing is read past a record's end. A record that does not end where its length says raises an error that
names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.protocol.errors import InvalidRecord
from anabranch.s3stream.store.recycled import ReadBufferPool

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

VARINT_BYTES_MAX: Final = 10
RECORD_BYTES_MIN: Final = 7
ABREAST_BATCHES_MIN: Final = 96
"""Number of batches of the longest one's size from which walking abreast is cheaper than one by one."""
RUN_MIN: Final = 24
"""Records left in a batch from which neighbours of equal length are searched ..."""
WALK_RECORDS_MAX: Final = 1 << 20
"""Records walked one by one at a time, which bounds the memory of a list."""
WALK_RECORDS: Final = 64
"""... and records walked one by one after a short run, before the next search."""
RUN_BYTES_MIN: Final = 8 << 10
"""Mean size of a run of equal values from which copying runs is cheaper than copying values."""


class BatchBodies(NamedTuple):
    """The records of batches in one buffer, one array element for each batch, in order of position."""

    start: Int64s
    """Position of the first record."""
    end: Int64s
    """Position after the last record."""
    records: Int64s
    base_offset: Int64s
    base_timestamp: Int64s
    append_time: Int64s
    """Timestamp of all records, or a negative number if they have separate ones."""
    source: Int64s
    """Index of the block in the caller's list."""
    last_offset: Int64s
    """Offset that the batch ends with, also if that of its last record is smaller."""


@dataclass(slots=True)
class RecordColumns:
    """Decoded records, one array element each, with positions in the buffer."""

    data: Bytes
    batch: Int64s
    offset: Int64s
    timestamp_ms: Int64s
    key_start: Int64s
    key_bytes: Int64s
    """-1: null."""
    value_start: Int64s
    value_bytes: Int64s
    header_count: Int64s
    headers_start: Int64s
    end: Int64s

    def __len__(self) -> int:
        return len(self.offset)

    def select(self, keep: Bools) -> "RecordColumns":
        """Return the records where `keep` is true."""
        at = np.flatnonzero(keep)
        return RecordColumns(
            self.data,
            self.batch[at],
            self.offset[at],
            self.timestamp_ms[at],
            self.key_start[at],
            self.key_bytes[at],
            self.value_start[at],
            self.value_bytes[at],
            self.header_count[at],
            self.headers_start[at],
            self.end[at],
        )


def decode_records(data: Bytes, bodies: BatchBodies) -> RecordColumns:
    """Decode all records of the batches, without their headers. Raises InvalidRecord."""
    at, end = find_records(data, bodies)
    return read_records(data, bodies, np.repeat(np.arange(len(bodies.records)), bodies.records), at, end)


def find_records(data: Bytes, bodies: BatchBodies) -> tuple[Int64s, Int64s]:
    """Return the start of each record, after its length, and its end. Raises InvalidRecord."""
    impossible = np.flatnonzero(
        (bodies.records < 0) | (bodies.records > (bodies.end - bodies.start) // RECORD_BYTES_MIN)
    )
    if impossible.size:
        bad = int(impossible[0])
        raise _invalid(bodies, bad, f"{bodies.records[bad]} records in {bodies.end[bad] - bodies.start[bad]} bytes")
    return _find_records(data, bodies)


def read_records(data: Bytes, bodies: BatchBodies, batch: Int64s, at: Int64s, end: Int64s) -> RecordColumns:
    """Decode records of the batches with these indexes, each at [at, end). Raises InvalidRecord."""
    timestamp, at = read_varints(data, at + 1)
    offset, at = read_varints(data, at)
    key_bytes, key_start = read_varints(data, at)
    value_bytes, value_start = read_varints(data, key_start + np.maximum(key_bytes, 0))
    header_count, headers_start = read_varints(data, value_start + np.maximum(value_bytes, 0))
    append_time = bodies.append_time[batch]
    records = RecordColumns(
        data,
        batch,
        bodies.base_offset[batch] + offset,
        np.where(append_time >= 0, append_time, bodies.base_timestamp[batch] + timestamp),
        key_start,
        key_bytes,
        value_start,
        value_bytes,
        header_count,
        headers_start,
        end,
    )
    wrong = (
        (key_bytes < -1)
        | (value_bytes < -1)
        | (header_count < 0)
        # A length may be any number of 64 bits: it is compared with what is left, since a sum could wrap around.
        | (key_bytes > end - key_start)
        | (value_bytes > end - value_start)
        | (header_count > (end - headers_start) // 2)
        | ((header_count == 0) & (headers_start != end))
    )
    if wrong.any():
        _refuse(bodies, records, wrong)
    return records


def _refuse(bodies: BatchBodies, records: RecordColumns, bad: Bools) -> None:
    """Raise InvalidRecord for the first bad record."""
    at = int(np.flatnonzero(bad)[0])
    batch = int(records.batch[at])
    number = at - int(np.searchsorted(records.batch, batch))
    raise _invalid(bodies, batch, f"record {number} of {bodies.records[batch]} does not fill its length")


def _invalid(bodies: BatchBodies, batch: int, what: str) -> InvalidRecord:
    return InvalidRecord(f"record batch at offset {bodies.base_offset[batch]}: {what}")


def read_varints(data: Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """Read zigzag varints at many positions. Returns the values and the positions after them. Raises InvalidRecord."""
    byte = data.take(at, mode="clip")
    at = at + 1
    value = (byte & 127).astype(np.uint64)
    shift = 7
    longer = byte > 127
    if longer.any():
        rest = np.flatnonzero(longer)
        while rest.size:
            if shift > 7 * (VARINT_BYTES_MAX - 1):
                raise InvalidRecord(f"a varint of more than {VARINT_BYTES_MAX} bytes")
            byte = data.take(at[rest], mode="clip")
            value[rest] |= (byte & 127).astype(np.uint64) << np.uint64(shift)
            at[rest] += 1
            rest = rest[byte > 127]
            shift += 7
    one = np.uint64(1)
    return ((value >> one) ^ (np.uint64(0) - (value & one))).view(np.int64), at


# where the records begin


def _find_records(data: Bytes, bodies: BatchBodies) -> tuple[Int64s, Int64s]:
    """Return what `find_records` does, of batches that may have as many records as they say."""
    total = int(bodies.records.sum())
    longest = int(bodies.records.max()) if len(bodies.records) else 0
    if total >= longest * ABREAST_BATCHES_MIN:
        return _walk_abreast(data, bodies, total)
    starts: list[Int64s] = []
    ends: list[Int64s] = []
    for number, (start, end, count) in enumerate(
        zip(bodies.start.tolist(), bodies.end.tolist(), bodies.records.tolist(), strict=True)
    ):
        if not _walk(data, start, end, count, starts, ends):
            raise _invalid(bodies, number, f"its {count} records do not fill it")
    if not starts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(starts), np.concatenate(ends)


def _walk_abreast(data: Bytes, bodies: BatchBodies, total: int) -> tuple[Int64s, Int64s]:
    """Walk one step in every batch at a time."""
    starts = np.empty(total, np.int64)
    ends = np.empty(total, np.int64)
    row = np.cumsum(bodies.records) - bodies.records
    # Longest batches first, so that the unfinished ones are a prefix.
    order = np.argsort(-bodies.records, kind="stable")
    counts = bodies.records[order]
    row, at, bound = row[order], bodies.start[order].copy(), bodies.end[order]
    active = len(counts)
    for step in range(int(counts[0]) if active else 0):
        if counts[active - 1] <= step:
            active = int(np.searchsorted(-counts, -step, side="left"))
        size, begin = read_varints(data, at[:active])
        after = begin + size
        if (wrong := (size < 0) | (size > bound[:active] - begin)).any():
            bad = int(order[int(np.flatnonzero(wrong)[0])])
            raise _invalid(bodies, bad, f"record {step} of {bodies.records[bad]} is longer than the batch")
        starts[row[:active] + step] = begin
        ends[row[:active] + step] = after
        at[:active] = after
    if (at != bound).any():
        bad = int(order[int(np.flatnonzero(at != bound)[0])])
        raise _invalid(bodies, bad, f"its {bodies.records[bad]} records do not fill it")
    return starts, ends


def _walk(data: Bytes, origin: int, end: int, left: int, starts: list[Int64s], ends: list[Int64s]) -> bool:
    """Find the records of one batch at [origin, end). Returns False if they do not fill it."""
    body: bytes | memoryview = data[origin:end].data
    at, bound = 0, len(body)
    singly = WALK_RECORDS
    while left > 0 and at < bound:
        steps = left
        if left >= RUN_MIN:
            begin, after = _step(body, at, bound)
            if after > bound:
                return False
            size = after - at
            run = _equal_run(data, origin + at, begin - at, size, min(left, (bound - at) // size))
            first = origin + begin + size * np.arange(run, dtype=np.int64)
            starts.append(first)
            ends.append(first + (after - begin))
            at += run * size
            left -= run
            singly = WALK_RECORDS if run >= RUN_MIN else min(singly * 2, WALK_RECORDS_MAX)
            steps = 0 if run >= RUN_MIN else min(left, singly)
        if steps:
            body = bytes(body)  # one copy makes each of the many steps faster
            at = _walk_singly(body, origin, at, steps, starts, ends)
            if at < 0:
                return False
            left -= steps
    return at == bound and not left


def _equal_run(data: Bytes, at: int, head_bytes: int, size: int, most: int) -> int:
    """Return how many records from `at` on have the same length bytes. Each proves the start of the next."""
    heads = data[at : at + most * size].reshape(most, size)
    same = heads[:, 0] == heads[0, 0]
    for byte in range(1, head_bytes):
        same &= heads[:, byte] == heads[0, byte]
    shortest = int(same.argmin())
    return most if same[shortest] else shortest


def _step(body: bytes | memoryview, at: int, bound: int) -> tuple[int, int]:
    """Return the start of the record at `at`, after its length, and its end. An invalid one ends past the bound."""
    value = shift = 0
    while at < bound and shift < 7 * VARINT_BYTES_MAX:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            after = at + (value >> 1)
            return (at, after) if not value & 1 else (at, bound + 1)
        shift += 7
    return bound, bound + 1


def _walk_singly(body: bytes, origin: int, at: int, count: int, starts: list[Int64s], ends: list[Int64s]) -> int:
    """Walk over `count` records. Returns the end of the last one, or -1."""
    bound = len(body)
    found = [0] * (count + 1)
    try:
        for number in range(count):
            found[number] = at
            byte = body[at]
            if byte < 128:
                at += 1 + (byte >> 1)
                continue
            second = body[at + 1]
            if second < 128:
                at += 2 + ((byte & 127 | second << 7) >> 1)
                continue
            at = _step(body, at, bound)[1]
    except IndexError:
        return -1
    if at > bound:
        return -1
    found[count] = at
    heads = np.array(found, np.int64) + origin
    sizes, begins = read_varints(np.frombuffer(body, np.uint8), heads[:-1] - origin)
    if (sizes < 0).any():
        return -1
    starts.append(begins + origin)
    ends.append(heads[1:])
    return at


# values


def gather(data: Any, start: Int64s, size: Int64s, kind: pa.DataType, memory: ReadBufferPool) -> pa.Array:
    """Return the bytes at increasing positions as an Arrow array of binary or text. A size of -1 is null."""
    null = size < 0
    if null.all():
        return pa.nulls(len(start), kind)
    length = np.maximum(size, 0)
    bounds = np.zeros(len(start) + 1, np.int64)
    np.cumsum(length, out=bounds[1:])
    first = _run_starts(start, length)
    if bounds[-1] < len(first) * RUN_BYTES_MIN:
        return _take(data, start, length, null, kind)
    values = _copy_runs(data, start, length, bounds, first, memory)
    valid = pa.array(~null).buffers()[1] if null.any() else None
    return pa.Array.from_buffers(kind, len(start), [valid, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(values)])


def _run_starts(start: Int64s, length: Int64s) -> Int64s:
    """Return the index of the first value of each run: values of equal length at equal distances."""
    step = np.diff(start)
    breaks = length[1:] != length[:-1]
    breaks[1:] |= step[1:] != step[:-1]
    return np.concatenate(([0], np.flatnonzero(breaks) + 1))


def _copy_runs(
    data: Any, start: Int64s, length: Int64s, bounds: Int64s, first: Int64s, memory: ReadBufferPool
) -> Bytes:
    """Return the values without the gaps, copied run by run into recycled memory.

    This takes a third of the CPU of Arrow's copy, which goes value by value into memory fresh from the kernel.
    """
    values = np.frombuffer(memory.take(int(bounds[-1])), np.uint8)
    end = np.append(first[1:], len(start))
    step = start[np.minimum(first + 1, end - 1)] - start[first]
    spans = (start[first], length[first], step, end - first, bounds[first], bounds[end])
    for at, size, distance, count, low, high in zip(*(span.tolist() for span in spans), strict=True):
        if size:
            values[low:high].reshape(count, size)[:] = np.ndarray((count, size), np.uint8, data, at, (distance, 1))
    return values


def _take(data: Any, start: Int64s, length: Int64s, null: Bools, kind: pa.DataType) -> pa.Array:
    """Return the values copied one by one by Arrow."""
    count = len(start)
    # An array over the unchanged buffer: every second element is a value, and those between are the gaps.
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = start
    np.add(start, length, out=bounds[1::2], casting="unsafe")
    bounds[-1] = bounds[-2]
    spread = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    wanted = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=null if null.any() else None)
    # The C library reuses its memory sooner than Arrow's default pool, which returns it to the kernel.
    return pc.take(spread, wanted, memory_pool=pa.system_memory_pool())


def gather_headers(records: RecordColumns, bodies: BatchBodies, kind: pa.DataType, memory: ReadBufferPool) -> pa.Array:
    """Return the headers of all records as a list column; null for records without. Raises InvalidRecord."""
    count = records.header_count
    total = int(count.sum())
    if not total:
        if len(records) and (records.headers_start != records.end).any():
            _refuse(bodies, records, records.headers_start != records.end)
        return pa.nulls(len(records), kind)
    bounds = np.zeros(len(records) + 1, np.int64)
    np.cumsum(count, out=bounds[1:])
    spans = [np.empty(total, np.int64) for _ in range(4)]
    at = records.headers_start.copy()
    rows = np.flatnonzero(count > 0)
    step = 0
    while rows.size:
        name_bytes, name_start = read_varints(records.data, at[rows])
        value_bytes, value_start = read_varints(records.data, name_start + np.maximum(name_bytes, 0))
        after = value_start + np.maximum(value_bytes, 0)
        left = records.end[rows]
        bad = (
            (name_bytes < 0)
            | (value_bytes < -1)
            | (name_bytes > left - name_start)
            | (value_bytes > left - value_start)
        )
        if bad.any():
            marks = np.zeros(len(records), np.bool_)
            marks[rows[bad]] = True
            _refuse(bodies, records, marks)
        slots = bounds[rows] + step
        for span, found in zip(spans, (name_start, name_bytes, value_start, value_bytes), strict=True):
            span[slots] = found
        at[rows] = after
        step += 1
        rows = rows[count[rows] > step]
    if (at != records.end).any():
        _refuse(bodies, records, at != records.end)
    names = _text(gather(records.data, spans[0], spans[1], pa.binary(), memory))
    values = gather(records.data, spans[2], spans[3], pa.binary(), memory)
    item = kind.value_type
    pairs = pa.StructArray.from_arrays([names, values], fields=[item.field(0), item.field(1)])
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pairs, type=kind, mask=pa.array(count == 0))


def _text(names: pa.Array) -> pa.Array:
    """Return bytes as text. Invalid UTF-8 is replaced, as in Kafka's client."""
    text = names.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
    return text


def timestamps(records: RecordColumns, kind: pa.DataType) -> pa.Array:
    """Return the records' times in microseconds. Raises InvalidRecord for one that does not fit."""
    ms = records.timestamp_ms
    if len(ms) and (int(ms.max()) > MS_MAX or int(ms.min()) < -MS_MAX):
        raise InvalidRecord("a timestamp that does not fit in microseconds")
    return pa.array(ms * 1000).cast(kind)


MS_MAX: Final = (2**63 - 1) // 1000


def repeat_text(texts: Sequence[str], which: Int64s) -> pa.Array:
    """Return one of a few texts for each row."""
    if len(texts) == 1:
        return pa.repeat(pa.scalar(texts[0]), len(which))
    return pc.take(pa.array(list(texts), pa.string()), pa.array(which))
