"""Parquet files of tables' rows: the layout is the same for those made from batches and those made from other files.

Rows become row groups of about `GROUP_BYTES_MAX`, so memory is bounded by that and by the batch that is added.
"""

import json
import mmap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from anabranch.tables.metrics import file_metrics
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import ShareReport
from anabranch.tables.schema import KAFKA
from anabranch.tables.snapshots import Written

GROUP_BYTES_MAX: Final = 32 << 20
"""Size in Arrow's memory from which rows are written as a row group."""
ROWS_MAX: Final = 8192
"""Rows that are made together: a table may have very many columns, which take memory for nulls, too."""
REASONS_MAX: Final = 10
RANGE: Final = "anabranch.range"
"""Entry of a file's metadata that says where its rows are from: an object of JSON with the fields of ..."""
PLACE: Final = ("topic", "partition", "start_offset", "end_offset")
"""... a range of a partition. So a catalog can be rebuilt from the files."""
_SORTED: Final = (f"{KAFKA}.offset", f"{KAFKA}.timestamp")
"""Columns whose values differ little from one row to the next."""
_DISTINCT: Final = (f"{KAFKA}.value_raw", f"{KAFKA}.key_raw", "value")
"""Columns whose values are rarely repeated."""


def write_rows(
    rows: Iterable[pa.RecordBatch], schema: pa.Schema, of: PartitionRange, path: Path, codec: str
) -> ShareReport:
    """Write a file of rows, which are in the order of offsets. It is removed again after an error.

    Raises OSError, and what the rows do.
    """
    report = ShareReport()
    with ExitStack() as undo, path.open("wb") as sink:
        undo.callback(path.unlink, missing_ok=True)
        with _writer(sink, schema, codec) as writer:
            group: list[pa.RecordBatch] = []
            size = 0
            for some in rows:
                _count(report, some)
                group.append(some)
                size += some.nbytes
                if size >= GROUP_BYTES_MAX:
                    _write_group(writer, group, schema)
                    group, size = [], 0
            _write_group(writer, group, schema)
            place = of._asdict()
            writer.add_key_value_metadata({RANGE: json.dumps({name: place[name] for name in PLACE})})
        sink.flush()
        report.size_bytes, report.crc = written(path)
        report.metrics = file_metrics(pq.read_metadata(path), schema)
        undo.pop_all()
    return report


def written(path: Path) -> Written:
    """Return size and checksum of a file. Raises OSError."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return Written(len(data), crc32c(data))


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


def _count(report: ShareReport, rows: pa.RecordBatch) -> None:
    report.rows += len(rows)
    errors = rows[KAFKA].field("error")
    report.errors += len(errors) - errors.null_count
    if len(report.reasons) < REASONS_MAX and errors.null_count < len(errors):
        new = (each for each in errors.drop_null().unique().to_pylist() if each not in report.reasons)
        report.reasons += list(new)[: REASONS_MAX - len(report.reasons)]
