"""Columns of a share of a table: the rows of some blocks of one partition, as a Parquet file.

The file depends on the share alone, so one that is made again is the same. Memory is bounded by the sizes of a read, of
a batch's decompressed records, of some thousand rows, and of a row group.
"""

import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from anabranch.s3stream.object.format import IndexEntry
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.tables.blocks import BlockDecoder, RequestedBlock
from anabranch.tables.decoding import Decoder
from anabranch.tables.parts import decoder_of
from anabranch.tables.registry import SchemaRegistry
from anabranch.tables.requests import Part, Registry, Share, ShareReport
from anabranch.tables.rows import RECORD_SCHEMA, RowMaker
from anabranch.tables.schema import KAFKA, decode_schema

READ_BYTES_MAX: Final = 4 << 20
"""Size of the blocks that are decoded together, unless a single one is larger."""
GROUP_BYTES_MAX: Final = 32 << 20
"""Size in Arrow's memory from which rows are written as a row group."""
MEMORY_BYTES_MAX: Final = 32 << 20
"""Free memory that is kept for the values of the next read."""
ROWS_MAX: Final = 8192
"""Records that become rows together: a table may have very many columns, which take memory for nulls, too."""
REASONS_MAX: Final = 10
RANGE: Final = "anabranch.range"
"""Entry of a file's metadata that says where its rows are from: an object of JSON with the fields of ..."""
PLACE: Final = ("topic", "partition", "start_offset", "end_offset")
"""... a range of a partition. So a catalog can be rebuilt from the files."""
_SORTED: Final = (f"{KAFKA}.offset", f"{KAFKA}.timestamp")
"""Columns whose values differ little from one row to the next."""
_DISTINCT: Final = (f"{KAFKA}.value_raw", f"{KAFKA}.key_raw", "value")
"""Columns whose values are rarely repeated."""


def make_share(share: Share, registries: Mapping[Registry, SchemaRegistry]) -> ShareReport:
    """Write the file of a share, which is removed again after an error. `registries` are those of its parts.

    Raises CorruptObject for damaged blocks, RegistryError if a registry does not answer, SchemaError, and OSError.
    """

    def decoder(part: Part) -> Decoder | None:
        return decoder_of(part, None if part.registry is None else registries[part.registry])

    schema = decode_schema(share.schema)
    maker = RowMaker(schema, decoder(share.value), decoder(share.key))
    report = ShareReport()
    target = Path(share.target)
    with ExitStack() as undo, target.open("wb") as sink:
        undo.callback(target.unlink, missing_ok=True)
        _write(share, sink, maker, schema, report)
        sink.flush()
        with target.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as made:
            report.size_bytes, report.crc = len(made), crc32c(made)
        undo.pop_all()
    return report


def _write(share: Share, sink: BinaryIO, maker: RowMaker, schema: pa.Schema, report: ShareReport) -> None:
    with _writer(sink, schema, share.codec) as writer:
        group: list[pa.RecordBatch] = []
        size = 0
        for records in _slices(share):
            rows = maker.rows(records)
            _count(report, rows)
            group.append(rows)
            size += rows.nbytes
            if size >= GROUP_BYTES_MAX:
                _write_group(writer, group, schema)
                group, size = [], 0
        _write_group(writer, group, schema)
        place = share.range._asdict()
        writer.add_key_value_metadata({RANGE: json.dumps({name: place[name] for name in PLACE})})


def _slices(share: Share) -> Iterator[pa.RecordBatch]:
    """Yield the records of a share in the order of offsets, a limited number at a time."""
    for records in _records(share):
        for start in range(0, len(records), ROWS_MAX):
            yield records.slice(start, ROWS_MAX)


def _writer(sink: Any, schema: pa.Schema, codec: str) -> pq.ParquetWriter:
    leaves = list(_leaves(schema, ""))
    return pq.ParquetWriter(
        sink,
        schema,
        compression=codec,
        use_dictionary=[name for name in leaves if name not in _SORTED and name not in _DISTINCT],
        column_encoding=dict.fromkeys(_SORTED, "DELTA_BINARY_PACKED"),
        write_page_index=True,
        write_page_checksum=True,
        store_schema=False,
    )


def _write_group(writer: pq.ParquetWriter, group: list[pa.RecordBatch], schema: pa.Schema) -> None:
    if group:
        writer.write_table(pa.Table.from_batches(group, schema), row_group_size=sum(map(len, group)))


def _leaves(parts: Any, path: str) -> Iterator[str]:
    """Yield the paths of the columns of Parquet."""
    for part in parts:
        yield from _leaves_of(part.type, f"{path}{part.name}")


def _leaves_of(kind: pa.DataType, path: str) -> Iterator[str]:
    if pa.types.is_struct(kind):
        yield from _leaves(kind, f"{path}.")
    elif pa.types.is_map(kind):
        yield from _leaves_of(kind.key_type, f"{path}.key_value.key")
        yield from _leaves_of(kind.item_type, f"{path}.key_value.value")
    elif pa.types.is_list(kind):
        yield from _leaves_of(kind.value_type, f"{path}.list.element")
    else:
        yield path


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


def _count(report: ShareReport, rows: pa.RecordBatch) -> None:
    report.rows += len(rows)
    errors = rows[KAFKA].field("error")
    report.errors += len(errors) - errors.null_count
    if len(report.reasons) < REASONS_MAX and errors.null_count < len(errors):
        new = (each for each in errors.drop_null().unique().to_pylist() if each not in report.reasons)
        report.reasons += list(new)[: REASONS_MAX - len(report.reasons)]
