"""Footers of data files, for people who look at one."""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.s3stream.catalog.table_values import TableFile
from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.tables.row_files import RANGE

TAIL_BYTES: Final = 256 << 10
"""Bytes that are read first: most footers are in them."""


async def describe_footer(store: ObjectStore, file: TableFile) -> dict[str, Any]:
    """Return what Parquet's footer says of a file. Raises StoreError, CorruptObject if there is none."""
    where = f"{store.name}:{file.file_key}"
    tail = await store.get_tail(file.file_key, TAIL_BYTES)
    footer_bytes = int.from_bytes(tail.data[-8:-4], "little") + 8
    if bytes(tail.data[-4:]) != b"PAR1" or footer_bytes > tail.size_bytes:
        raise CorruptObject(f"{where}: not a Parquet file: no footer at its end")
    data = tail.data
    if footer_bytes > len(data):
        data = (await store.get_tail(file.file_key, footer_bytes)).data
    try:
        footer = pq.read_metadata(pa.BufferReader(pa.py_buffer(bytes(data))))
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptObject(f"{where}: damaged footer: {error}") from None
    return {
        "rows": footer.num_rows,
        "row_groups": footer.num_row_groups,
        "columns": footer.num_columns,
        "bytes": footer.serialized_size,
        "written_by": footer.created_by,
        "range": json.loads((footer.metadata or {}).get(RANGE.encode(), b"null")),
    }
