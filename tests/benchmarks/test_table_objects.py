"""Objects with two views, as the benchmark makes them by hand."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record
from anabranch.s3stream.object.format import decode_block
from anabranch.s3stream.store.local import LocalStore
from benchmarks.lab.columns import raw_table, records_of
from benchmarks.lab.table_files import (
    Made,
    Topic,
    batches_of,
    blocks_at,
    blocks_first,
    columns_first,
    numbered,
    read_index_2,
    stored,
    version_1,
)

RECORDS = [Record(b"k", f'{{"n":{n}}}'.encode(), n) for n in range(10_000)]


def made_objects() -> tuple[pa.Table, list[Made]]:
    """The columns, and the objects of each layout."""
    batches = batches_of(Topic("t", RECORDS, pa.schema([])))
    blocks = blocks_at(stored(batches, Compression.NONE), 0)
    raw = raw_table(pa.Table.from_batches(records_of(b"".join(blocks.parts), blocks.entries)))
    table = raw.cast(numbered(raw.schema))
    packed = stored(batches, Compression.LZ4)
    return table, [version_1(packed), columns_first(packed, table, 3_000), blocks_first(packed, table, 3_000)]


async def test_both_views_hold_the_records(tmp_path: Path) -> None:
    """Blocks are found by the index whatever surrounds them, and Parquet's readers find the columns."""
    table, objects = made_objects()
    assert table["value"].to_pylist() == [record.value for record in RECORDS]
    store = LocalStore("local", tmp_path)
    await store.open()
    try:
        for each in objects:
            await store.put(each.name, [each.data], writer_id="test")
            index, gets = await read_index_2(store, each.name, len(each.data))
            assert gets == 1
            ends = [0]
            for entry in index:
                data = await store.get(each.name, entry.position, entry.end_position)
                for batch in decode_block(data, entry, where=each.name):
                    assert batch.base_offset == ends[-1]
                    ends.append(batch.end_offset)
            assert ends[-1] == len(RECORDS)
    finally:
        await store.close()
    for each in objects[1:]:
        assert pq.read_table(pa.BufferReader(each.data)).equals(table)
