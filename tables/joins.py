"""A larger file of a partition from neighbouring ones, or a cut of one.

Rows are read and written a row group at a time, and come out as they went in, in the columns of a schema that may be
newer: what the older one did not have is null, and types are promoted.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.tables.conform import conform
from anabranch.tables.errors import JoinError
from anabranch.tables.requests import ShareReport
from anabranch.tables.row_files import ROWS_MAX, write_rows
from anabranch.tables.schema import KAFKA, decode_schema
from anabranch.tables.snapshots import Join


def make_join(join: Join) -> ShareReport:
    """Write the file of a join, which is removed again after an error. The file depends on the request alone.

    Raises JoinError for files that cannot be joined or read, and OSError.
    """
    schema = decode_schema(join.schema)
    return write_rows(_rows(join, schema), schema, join.range, Path(join.target), join.codec)


def _rows(join: Join, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    last = -1
    for source in join.sources:
        for rows in _read(source):
            kafka = rows[KAFKA]
            offsets = kafka.field("offset").to_numpy()
            partitions = kafka.field("partition").to_numpy()
            if (partitions != join.range.partition).any():
                raise JoinError(f"{source} has rows of another partition than {join.range.partition}")
            follows = np.diff(offsets, prepend=last) > 0
            if not follows.all():
                at = int(np.flatnonzero(~follows)[0])
                before = offsets[at - 1] if at else last
                raise JoinError(f"{source} has offset {offsets[at]} after {before}: the files are not in order")
            last = int(offsets[-1])
            inside = np.flatnonzero((offsets >= join.range.start_offset) & (offsets < join.range.end_offset))
            if inside.size:
                yield _conformed(rows.slice(int(inside[0]), int(inside.size)), schema, source)


def _read(source: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file, some at a time, and never those of several row groups together."""
    try:
        with pq.ParquetFile(source, memory_map=True, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                yield from file.iter_batches(ROWS_MAX, row_groups=[group], use_threads=False)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, and not of what the file has
            raise
        raise JoinError(f"{source} cannot be read: {error}") from None


def _conformed(rows: pa.RecordBatch, schema: pa.Schema, source: str) -> pa.RecordBatch:
    """Return rows in the columns of a newer schema."""
    found, misfits = conform(rows.to_struct_array(), pa.struct(list(schema)))
    if misfits:
        raise JoinError(f"{source} does not fit the table's schema: {misfits[0].reason}")
    return pa.RecordBatch.from_arrays(found.flatten(), schema=schema)
