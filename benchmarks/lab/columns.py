"""Ways from a topic's blocks to columns, for measurements: records to Arrow, and JSON to typed columns.

A way of typing takes the values of records and the columns that are wanted. It returns one row for each value, or
raises an error: a value must not shift the rows after it, and a number must come out as it was sent.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

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
Typing = Callable[[pa.Array, pa.Schema], pa.Table]


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


def kafka_column(records: pa.Table, *, error: pa.Array | None = None, raw: pa.Array | None = None) -> pa.Array:
    """Return the struct of what is not the value."""
    count = len(records)
    columns = {
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": records["offset"],
        "timestamp": records["timestamp"],
        "timestamp_type": records["timestampType"],
        "key": records["key"],
        "headers": records["headers"],
        "error": pa.nulls(count, pa.string()) if error is None else error,
        "value_raw": pa.nulls(count, pa.binary()) if raw is None else raw,
    }
    arrays = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in columns.values()]
    return pa.StructArray.from_arrays(arrays, names=list(columns))


def raw_table(records: pa.Table) -> pa.Table:
    """Return the columns of a table whose values stay bytes."""
    return pa.table({"value": records["value"], "_kafka": kafka_column(records)})


def typed_table(records: pa.Table, columns: pa.Schema, typing: Typing) -> pa.Table:
    """Return the columns of a table of JSON."""
    values = records["value"].combine_chunks()
    typed = typing(values, columns)
    assert typed.schema.names == columns.names
    assert len(typed) == len(records)
    return typed.append_column("_kafka", kafka_column(records))


# ways of typing


def by_arrow(values: pa.Array, columns: pa.Schema) -> pa.Table:
    """Type with Arrow's reader of JSON: each value in an object with the number of its row, so that none shifts."""
    arrow_json: Any = importlib.import_module("pyarrow.json")
    number, inner = f"n{token_hex(8)}", f"v{token_hex(8)}"
    rows = pa.array(range(len(values)), pa.int64())
    heads = pc.binary_join_element_wise(f'{{"{number}":', rows.cast(pa.string()), f',"{inner}":', "").cast(pa.binary())
    lines = pc.binary_join_element_wise(heads, values, b"}\n", b"")
    whole = lines.buffers()[2]
    found = arrow_json.read_json(
        pa.BufferReader(whole),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=len(whole)),
        parse_options=arrow_json.ParseOptions(
            explicit_schema=pa.schema([(number, pa.int64()), (inner, pa.struct(columns))]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    if not found[number].combine_chunks().equals(rows) or found[inner].null_count:
        raise ValueError("a value that is not one object")
    typed = pa.Table.from_arrays(found[inner].combine_chunks().flatten(), schema=columns)
    for field in columns:
        # From 2^53 on a whole number may become another one, and NaN and infinity are not below it either.
        exact = pa.types.is_floating(field.type) and pc.less(pc.abs(typed[field.name]), 1 << 53)
        if exact is not False and pc.all(exact).as_py() is False:
            raise ValueError("a number that may not be the one that was sent")
    return typed


def by_polars(values: pa.Array, columns: pa.Schema) -> pa.Table:
    """Type with Polars' reader of lines of JSON."""
    polars: Any = importlib.import_module("polars")
    lines = pc.binary_join_element_wise(values, pa.scalar(b"\n", pa.binary()), pa.scalar(b"", pa.binary())).buffers()[2]
    empty = polars.from_arrow(columns.empty_table())
    return polars.read_ndjson(lines.to_pybytes(), schema=empty.schema).to_arrow().cast(columns)


_KINDS: Mapping[pa.DataType, type] = {pa.int64(): int, pa.float64(): float, pa.string(): str}


def by_msgspec(values: pa.Array, columns: pa.Schema) -> pa.Table:
    """Type with msgspec's structs, each value alone."""
    msgspec: Any = importlib.import_module("msgspec")
    names = [f"c{number}" for number in range(len(columns))]
    kind = msgspec.defstruct(
        "Row",
        [(name, _KINDS[field.type] | None, None) for name, field in zip(names, columns, strict=True)],
        rename=dict(zip(names, columns.names, strict=True)),
    )
    decode = msgspec.json.Decoder(kind).decode
    rows = [decode(value) for value in values.to_pylist()]
    return pa.table(
        [
            pa.array([getattr(row, name) for row in rows], field.type)
            for name, field in zip(names, columns, strict=True)
        ],
        schema=columns,
    )


def by_orjson(values: pa.Array, columns: pa.Schema) -> pa.Table:
    """Type with orjson, each value alone."""
    orjson: Any = importlib.import_module("orjson")
    return pa.Table.from_pylist([orjson.loads(value) for value in values.to_pylist()], schema=columns)


def by_python(values: pa.Array, columns: pa.Schema) -> pa.Table:
    """Type with Python's own JSON, each value alone."""
    return pa.Table.from_pylist([json.loads(value) for value in values.to_pylist()], schema=columns)


def by_rules(values: pa.Array, columns: pa.Schema) -> pa.Table:
    """Type strictly, as a table's worker and `[decode] format = "json"` of a pipeline do."""
    found = JsonDecoder(pa.struct(columns), "UTC")(values)
    if found.field("error").null_count != len(found):
        raise ValueError("a value that does not fit")
    return pa.Table.from_arrays(found.field("data").flatten(), schema=columns)


RULES = "strict"
"""The way whose rules hold: others may only be faster."""
TYPINGS: Mapping[str, Typing] = {
    "pyarrow.json": by_arrow,
    "polars": by_polars,
    "msgspec": by_msgspec,
    "orjson": by_orjson,
    "Python's json": by_python,
    RULES: by_rules,
}
DOUBTFUL = (
    *(b"null", b"", b"{", b"{}", b"[]", b"1", b'{"a":1} x', b'{"a":1}{"a":2}', b'{"a":1}\n{"a":2}', b'{"a":\n1}'),
    *(b'{"a":1.0}', b'{"a":1e2}', b'{"a":01}', b'{"a":-0}', b'{"a":"1"}', b'{"a":true}', b'{"a":9223372036854775808}'),
    *(b'{"a":1,"a":2}', b'{"x":1,"x":2}', b'{"x":[{"a":7}]}', b'{"a":1,}', b'{"a":1/**/}', b"{'a':1}", b'{"A":1}'),
    *(b'{"d":NaN}', b'{"d":Infinity}', b'{"d":1e400}', b'{"d":-0.0}', b'{"d":0.10000000000000000001}', b'{"d":"1"}'),
    *(b'{"d":9007199254740993}', b'{"s":1}', b'{"s":null}', b'{"s":true}', b'{"s":{"a":1}}', b'{"s":"\\ud800"}'),
    *(b'{"s":"\xff"}', b'{"s":"\x01"}', b'{"s":"\\u0000"}', b'\xef\xbb\xbf{"a":1}', b'{"s":"2013-01-01T00:00:00Z"}'),
)
"""Values that are no rows, or that are easily read as others than were sent."""
REFUSED = "refused"
DOUBTFUL_COLUMNS = pa.schema([("a", pa.int64()), ("d", pa.float64()), ("s", pa.string())])


def outcome(typing: Typing, values: Sequence[bytes]) -> str:
    """Return the rows that a way makes of values, or that it refuses them. Raises ImportError."""
    try:
        return str(typing(pa.array(values, pa.binary()), DOUBTFUL_COLUMNS).to_pylist())
    except ImportError:
        raise
    except BaseException as error:  # Polars panics
        if isinstance(error, KeyboardInterrupt):
            raise
        return REFUSED
