"""Columns of a topic's blocks, for measurements of layouts. `benchmarks.table_columns` measures how they are made."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from anabranch.s3stream.object.format import IndexEntry
from anabranch.s3stream.store.recycled import ReadBufferPool
from anabranch.tables.blocks import BlockDecoder, RequestedBlock
from anabranch.tables.json_columns import JsonDecoder
from anabranch.tables.ranges import PartitionRange
from anabranch.wal.interface import Buffer

RECORD = pa.schema([
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
])  # fmt: skip
READ_BYTES = 8 << 20


def records_of(data: Buffer, entries: Sequence[IndexEntry]) -> Iterator[pa.RecordBatch]:
    """Yield the records of an object's blocks, checked, a read of 8 MiB at a time."""
    decoder = BlockDecoder(RECORD, ReadBufferPool())
    some: list[IndexEntry] = []
    for entry in (*entries, None):
        if some and (entry is None or entry.end_position - some[0].position > READ_BYTES):
            start = some[0].position
            wanted = PartitionRange("events", 0, some[0].start_offset, some[-1].end_offset)
            blocks = [RequestedBlock(each, each.position - start, wanted) for each in some]
            yield from decoder.decode(memoryview(data)[start : some[-1].end_position], blocks, where="object")
            some = []
        if entry is not None:
            some.append(entry)


def kafka_column(records: pa.Table) -> pa.Array:
    """Return the struct of what is not the value."""
    count = len(records)
    columns = {
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": records["offset"],
        "timestamp": records["timestamp"],
        "timestamp_type": records["timestampType"],
        "key": records["key"],
        "headers": records["headers"],
        "error": pa.nulls(count, pa.string()),
        "value_raw": pa.nulls(count, pa.binary()),
    }
    arrays = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in columns.values()]
    return pa.StructArray.from_arrays(arrays, names=list(columns))


def raw_table(records: pa.Table) -> pa.Table:
    """Return the columns of a table whose values stay bytes."""
    return pa.table({"value": records["value"], "_kafka": kafka_column(records)})


def typed_table(records: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the columns of a table of JSON, decoded as a table's worker does. Each value has to fit."""
    found = JsonDecoder(pa.struct(columns), "UTC")(records["value"].combine_chunks())
    assert found.field("error").null_count == len(found)
    typed = pa.Table.from_arrays(found.field("data").flatten(), schema=columns)
    return typed.append_column("_kafka", kafka_column(records))
