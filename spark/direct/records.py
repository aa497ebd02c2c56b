"""Decodes many records at once: positions and lengths as arrays, values gathered by Arrow, no Python per record.

A record is framed by varints (see `protocol.records`), so where one begins is known only when the one before is. Three
ways to find out, by what is at hand: batches that are many and short are walked side by side, a step for all of them at
a time; in longer ones, neighbours with the very same length are found in one comparison (equal lengths from a known
begin on prove each other); what is left is walked record by record. All the fields after that are read for all records
of all batches together. What it keeps true: nothing is read past a record's end, and a record that does not end where
its length says is an error that names it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import InvalidRecord

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

VARINT_BYTES_MAX: Final = 10
RECORD_BYTES_MIN: Final = 7
ABREAST_BATCHES_MIN: Final = 96
"""So many batches of the longest one's size make walking side by side cheaper than one after the other."""
RUN_MIN: Final = 24
"""Neighbours of equal length are looked for when so many records are left ..."""
WALK_RECORDS: Final = 64
"""... and after a short run, so many are walked one by one before the next look."""


class BatchBodies(NamedTuple):
    """The records of batches in one buffer, one array element a batch, in the order of positions."""

    start: Int64s
    """Where the first record begins."""
    end: Int64s
    """Just past the last one."""
    records: Int64s
    base_offset: Int64s
    base_timestamp: Int64s
    append_time: Int64s
    """The timestamp of all records, or a negative number when they have their own."""
    source: Int64s
    """Which partition: an index the caller knows."""


@dataclass(slots=True)
class RecordColumns:
    """Decoded records: one element each; positions are in the buffer."""

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
        """The records where `keep` is true."""
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
    """All records of the batches, but for their headers. Raises InvalidRecord."""
    impossible = np.flatnonzero(
        (bodies.records < 0) | (bodies.records > (bodies.end - bodies.start) // RECORD_BYTES_MIN)
    )
    if impossible.size:
        bad = int(impossible[0])
        raise _invalid(bodies, bad, f"{bodies.records[bad]} records in {bodies.end[bad] - bodies.start[bad]} bytes")
    at, end = _find_records(data, bodies)
    batch = np.repeat(np.arange(len(bodies.records)), bodies.records)
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
        | (key_start + key_bytes > end)
        | (value_start + value_bytes > end)
        | (headers_start + 2 * header_count > end)
        | ((header_count == 0) & (headers_start != end))
    )
    if wrong.any():
        _refuse(bodies, records, wrong)
    return records


def _refuse(bodies: BatchBodies, records: RecordColumns, bad: Bools) -> None:
    """Name the first bad record."""
    at = int(np.flatnonzero(bad)[0])
    batch = int(records.batch[at])
    number = at - int(np.searchsorted(records.batch, batch))
    raise _invalid(bodies, batch, f"record {number} of {bodies.records[batch]} does not fill its length")


def _invalid(bodies: BatchBodies, batch: int, what: str) -> InvalidRecord:
    return InvalidRecord(f"record batch at offset {bodies.base_offset[batch]}: {what}")


def read_varints(data: Bytes, at: Int64s) -> tuple[Int64s, Int64s]:
    """Zigzag varints at many positions: the values, and the positions after them. Raises InvalidRecord."""
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
    """Where each record begins, past its length, and where it ends."""
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
    """One step in every batch at a time."""
    starts = np.empty(total, np.int64)
    ends = np.empty(total, np.int64)
    row = np.cumsum(bodies.records) - bodies.records
    # Longest batches first, so that those still under way are a prefix.
    order = np.argsort(-bodies.records, kind="stable")
    counts = bodies.records[order]
    row, at, bound = row[order], bodies.start[order].copy(), bodies.end[order]
    active = len(counts)
    for step in range(int(counts[0]) if active else 0):
        if counts[active - 1] <= step:
            active = int(np.searchsorted(-counts, -step, side="left"))
        size, begin = read_varints(data, at[:active])
        after = begin + size
        if ((size < 0) | (after > bound[:active])).any():
            bad = int(order[int(np.flatnonzero((size < 0) | (after > bound[:active]))[0])])
            raise _invalid(bodies, bad, f"record {step} of {bodies.records[bad]} is longer than the batch")
        starts[row[:active] + step] = begin
        ends[row[:active] + step] = after
        at[:active] = after
    if (at != bound).any():
        bad = int(order[int(np.flatnonzero(at != bound)[0])])
        raise _invalid(bodies, bad, f"its {bodies.records[bad]} records do not fill it")
    return starts, ends


def _walk(data: Bytes, origin: int, end: int, left: int, starts: list[Int64s], ends: list[Int64s]) -> bool:
    """The records of one batch, which is [origin, end); False when they do not fill it."""
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
            singly = WALK_RECORDS if run >= RUN_MIN else singly * 2
            steps = 0 if run >= RUN_MIN else min(left, singly)
        if steps:
            body = bytes(body)  # once, for many steps: each is quicker there
            at = _walk_singly(body, origin, at, steps, starts, ends)
            if at < 0:
                return False
            left -= steps
    return at == bound and not left


def _equal_run(data: Bytes, at: int, head_bytes: int, size: int, most: int) -> int:
    """How many records from `at` on have the very same length, as bytes: each proves where the next begins."""
    heads = data[at : at + most * size].reshape(most, size)
    same = heads[:, 0] == heads[0, 0]
    for byte in range(1, head_bytes):
        same &= heads[:, byte] == heads[0, byte]
    shortest = int(same.argmin())
    return most if same[shortest] else shortest


def _step(body: bytes | memoryview, at: int, bound: int) -> tuple[int, int]:
    """Where the record at `at` begins, past its length, and where it ends (past the bound when it is none)."""
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
    """Walk over `count` records; returns where the last one ends, or -1."""
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


def gather(data: Any, start: Int64s, size: Int64s, kind: pa.DataType) -> pa.Array:
    """The bytes at rising positions as an Arrow array of binary or text; a size of -1 is null."""
    count = len(start)
    # Every second element is one wanted, those between are the gaps: an array over the buffer as it is.
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = start
    np.add(start, np.maximum(size, 0), out=bounds[1::2], casting="unsafe")
    bounds[-1] = bounds[-2] if count else 0
    spread = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    null = size < 0
    wanted = pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=null if null.any() else None)
    return spread.take(wanted)


HEADER_TYPE = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])


def gather_headers(records: RecordColumns, bodies: BatchBodies, kind: pa.DataType) -> pa.Array:
    """The headers of all records as a list column; null where there are none. Raises InvalidRecord."""
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
        bad = (name_bytes < 0) | (value_bytes < -1) | (after > records.end[rows])
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
    names = _text(gather(records.data, spans[0], spans[1], pa.binary()))
    values = gather(records.data, spans[2], spans[3], pa.binary())
    item = kind.value_type
    pairs = pa.StructArray.from_arrays([names, values], fields=[item.field(0), item.field(1)])
    return pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), pairs, type=kind, mask=pa.array(count == 0))


def _text(names: pa.Array) -> pa.Array:
    """Bytes as text; what is no UTF-8 is replaced, as Kafka's own client does."""
    text = names.view(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
    return text


def timestamps(records: RecordColumns, kind: pa.DataType) -> pa.Array:
    """The records' times in microseconds. Raises InvalidRecord for one that does not fit."""
    ms = records.timestamp_ms
    if len(ms) and (int(ms.max()) > MS_MAX or int(ms.min()) < -MS_MAX):
        raise InvalidRecord("a timestamp beyond what microseconds can say")
    return pa.array(ms * 1000).cast(kind)


MS_MAX: Final = (2**63 - 1) // 1000


def repeat_text(texts: Sequence[str], which: Int64s) -> pa.Array:
    """One of a few texts for each row."""
    if len(texts) == 1:
        return pa.repeat(pa.scalar(texts[0]), len(which))
    return pc.take(pa.array(list(texts), pa.string()), pa.array(which))
