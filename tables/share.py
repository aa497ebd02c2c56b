"""Columns of a share of a table: the rows of some blocks of one partition, as a Parquet file.

The file depends on the share alone, so one that is made again is the same. Memory is bounded by the sizes of a read, of
a batch's decompressed records, of a slice of some thousand rows, and of a row group. A record of more than
`RECORD_BYTES_MAX` is a row with an error, and without its contents: a small batch may be decompressed to 128 MiB.
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.s3stream.object.format import IndexEntry
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.tables.blocks import BlockDecoder, RequestedBlock
from anabranch.tables.decoding import Decoder
from anabranch.tables.parts import decoder_of
from anabranch.tables.registry import SchemaRegistry
from anabranch.tables.requests import Part, Registry, Share, ShareReport
from anabranch.tables.row_files import ROWS_MAX, write_rows
from anabranch.tables.rows import RECORD_SCHEMA, RowMaker
from anabranch.tables.schema import decode_schema

READ_BYTES_MAX: Final = 4 << 20
"""Size of the blocks that are decoded together, unless a single one is larger."""
MEMORY_BYTES_MAX: Final = 32 << 20
"""Free memory that is kept for the values of the next read."""

SLICE_BYTES_MAX: Final = 8 << 20
"""Size of the records that become rows together, unless a single one is larger."""
RECORD_BYTES_MAX: Final = 16 << 20
"""Size of a record that a table holds: Parquet's writer needs several times as much, and that of a batch besides."""
DECODED_BYTES_MAX: Final = 64 << 20
"""Size of a record's columns; a larger one is not decoded."""
NOT_DECODED: Final = "decoding it takes more memory or time than there is"
"""Error of a value over which processes have ended."""


def make_share(
    share: Share,
    registries: Mapping[Registry, SchemaRegistry],
    tell: Callable[[tuple[int, int] | None], None] = lambda _: None,
) -> ShareReport:
    """Write the file of a share, which is removed again after an error. `registries` are those of its parts.

    Tells the offsets [start, end) whose records are about to become rows, and None once they are.

    Raises CorruptObject for damaged blocks, RegistryError if a registry does not answer, SchemaError, and OSError.
    """

    def decoder(part: Part) -> Decoder | None:
        return decoder_of(part, None if part.registry is None else registries[part.registry])

    def kept_raw(part: Part) -> Part:
        return part if part.format == "raw" else Part("none", reason=NOT_DECODED)

    schema = decode_schema(share.schema)
    maker = RowMaker(schema, decoder(share.value), decoder(share.key))
    raw_maker = RowMaker(schema, decoder(kept_raw(share.value)), decoder(kept_raw(share.key)))

    def rows() -> Iterator[pa.RecordBatch]:
        for records in _slices(share):
            first, last = (records["offset"][at].as_py() for at in (0, -1))
            tell((first, last + 1))
            is_raw = any(start <= first < end for start, end in share.raw)
            made = (raw_maker if is_raw else maker).rows(records)
            if len(records) == 1 and made.nbytes > DECODED_BYTES_MAX:
                made = raw_maker.rows(records)
            tell(None)
            yield made

    return write_rows(rows(), schema, share.range, Path(share.target), share.codec)


def _slices(share: Share) -> Iterator[pa.RecordBatch]:
    """Yield the records of a share in the order of offsets, a limited number and size at a time."""
    for records in _records(share):
        ends = np.cumsum(_sizes(records))
        start = 0
        while start < len(records):
            before = int(ends[start - 1]) if start else 0
            end = int(np.searchsorted(ends, before + SLICE_BYTES_MAX, side="right"))
            end = min(max(end, start + 1), start + ROWS_MAX)
            some = records.slice(start, end - start)
            start = end
            first, last = (some["offset"][at].as_py() for at in (0, -1))
            if ends[end - 1] - before > RECORD_BYTES_MAX:
                yield _without_contents(some, int(ends[end - 1]) - before)
            elif any(begin <= last and first < stop for begin, stop in share.careful):
                yield from (some.slice(at, 1) for at in range(len(some)))
            else:
                yield some


def _sizes(records: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of each record's key, value and headers."""
    headers = records["headers"]
    bounds = headers.offsets.to_numpy()
    inside = headers.values.slice(bounds[0], bounds[-1] - bounds[0])
    ends = np.concatenate(([0], np.cumsum(sum(_lengths(inside.field(name)) for name in ("key", "value")))))
    of_headers: npt.NDArray[np.int64] = np.diff(ends[bounds - bounds[0]])
    return of_headers + _lengths(records["key"]) + _lengths(records["value"])


def _lengths(values: pa.Array) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _without_contents(record: pa.RecordBatch, size_bytes: int) -> pa.RecordBatch:
    """Return a record that is too large as an error."""
    error = (
        f"a record of {size_bytes} bytes, and {RECORD_BYTES_MAX} are the most that a table holds: "
        "its key, value and headers are left out"
    )
    columns = {"key": None, "value": None, "headers": None, "error": error}
    return pa.RecordBatch.from_arrays(
        [
            pa.array([columns[field.name]], field.type) if field.name in columns else record[field.name]
            for field in RECORD_SCHEMA
        ],
        schema=RECORD_SCHEMA,
    )


def _records(share: Share) -> Iterator[pa.RecordBatch]:
    """Yield the records of a share in the order of offsets."""
    decoder = BlockDecoder(RECORD_SCHEMA, ReadBufferPool(MEMORY_BYTES_MAX))
    if not share.blocks:
        return
    with Path(share.source).open("rb") as file:
        whole = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    for some in _reads(share.blocks):
        start = some[0].position
        blocks = [RequestedBlock(each, each.position - start, share.range) for each in some]
        data = whole[start : some[-1].end_position]
        yield from _merged(*decoder.decode_apart(data, blocks, where=share.source))


def _reads(blocks: Sequence[IndexEntry]) -> Iterator[Sequence[IndexEntry]]:
    """Yield neighbouring blocks that are decoded together."""
    some: list[IndexEntry] = []
    for block in blocks:
        if some and (block.position != some[-1].end_position or block.end_position - some[0].position > READ_BYTES_MAX):
            yield some
            some = []
        some.append(block)
    yield some


def _merged(held: Iterable[pa.RecordBatch], coming: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield records in the order of offsets, as those that are `coming` are, of which there may be very many."""
    rest = _sorted(list(held))
    offsets = rest["offset"].to_numpy()
    first = 0
    for batch in coming:
        end = int(np.searchsorted(offsets, batch["offset"][-1].as_py()))
        if end > first:
            yield from _sorted([*rest.slice(first, end - first).to_batches(), batch]).to_batches()
            first = end
        else:
            yield batch
    yield from rest.slice(first).to_batches()


def _sorted(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return records in the order of offsets."""
    records = pa.Table.from_batches(batches, RECORD_SCHEMA)
    offsets = records["offset"].to_numpy()
    if (offsets[1:] > offsets[:-1]).all():
        return records
    return records.take(pa.array(np.argsort(offsets, kind="stable")))
