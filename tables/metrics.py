"""Statistics of a table's file, as a manifest of Iceberg has them, from the footer of Parquet.

Engines skip files by them. Only columns that most queries ask for have any, which bounds a manifest: a table may have
thousands of columns.
"""

import base64
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.tables.schema import KAFKA, id_of
from anabranch.tables.types import LOCAL_TIMESTAMP, TIMESTAMP

COLUMNS_MAX: Final = 100
"""Columns with statistics, besides those of `_kafka`, as many as Iceberg's
`write.metadata.metrics.max-inferred-column-defaults`."""
TRUNCATED: Final = 16
"""Characters or bytes of a bound: Iceberg's default, `truncate(16)`."""
_FORMS: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "<?", pa.int32(): "<i", pa.int64(): "<q", pa.float32(): "<f", pa.float64(): "<d", pa.date32(): "<i",
    TIMESTAMP: "<q", LOCAL_TIMESTAMP: "<q",
}  # fmt: skip
"""Forms of single values, of those that Parquet has as numbers."""
_CODE_POINT_MAX: Final = 0x10FFFF
_SURROGATES: Final = range(0xD800, 0xE000)


def file_metrics(footer: pq.FileMetaData, schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics of a file with the columns of a table's schema.

    `record_count`, and `split_offsets` with the start of each row group; by field id, as text: `column_sizes` in bytes,
    `value_counts`, `null_value_counts`, and `lower_bounds` and `upper_bounds` in base64 of Iceberg's binary form of
    single values. Values inside of lists and maps have none, and counts of NaN are unknown. Arrow leaves the bounds out
    of columns with a smallest or largest value of more than 4 KiB.
    """
    found: dict[str, Any] = {
        "record_count": footer.num_rows,
        "split_offsets": [_start(footer.row_group(group).column(0)) for group in range(footer.num_row_groups)],
        "column_sizes": {},
        "value_counts": {},
        "null_value_counts": {},
        "nan_value_counts": {},
        "lower_bounds": {},
        "upper_bounds": {},
    }
    if not footer.num_row_groups:
        return found
    for at, part in _measured(schema):
        chunks = [footer.row_group(group).column(at) for group in range(footer.num_row_groups)]
        _add_column(found, str(id_of(part)), part.type, chunks)
    return found


def _start(chunk: pq.ColumnChunkMetaData) -> int:
    return int(chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset)


def _measured(schema: pa.Schema) -> Iterator[tuple[int, pa.Field]]:
    """Yield the fields with statistics, and the numbers of their columns.

    Names would not do: those of fields may have dots, as the paths of Parquet have.
    """
    own: list[tuple[int, pa.Field]] = []
    kafka: list[tuple[int, pa.Field]] = []
    at = 0
    for part in schema:
        (kafka if part.name == KAFKA else own).extend(_leaves(part, at))
        at += _count_columns(part.type)
    yield from own[:COLUMNS_MAX]
    yield from kafka


def _leaves(part: pa.Field, at: int) -> Iterator[tuple[int, pa.Field]]:
    """Yield a field, or those inside of a struct, with the numbers of their columns, from `at` on."""
    if pa.types.is_struct(part.type):
        for inner in part.type:
            yield from _leaves(inner, at)
            at += _count_columns(inner.type)
    elif not pa.types.is_nested(part.type):
        yield at, part


def _count_columns(kind: pa.DataType) -> int:
    """Return the number of Parquet's columns for a type."""
    if pa.types.is_struct(kind):
        return sum(_count_columns(inner.type) for inner in kind)
    if pa.types.is_map(kind):
        return _count_columns(kind.key_type) + _count_columns(kind.item_type)
    return _count_columns(kind.value_type) if pa.types.is_list(kind) else 1


def _add_column(found: dict[str, Any], field_id: str, kind: pa.DataType, chunks: list[pq.ColumnChunkMetaData]) -> None:
    found["column_sizes"][field_id] = sum(chunk.total_compressed_size for chunk in chunks)
    found["value_counts"][field_id] = sum(chunk.num_values for chunk in chunks)
    all_statistics = [chunk.statistics for chunk in chunks]
    if any(each is None or not each.has_null_count for each in all_statistics):
        return
    found["null_value_counts"][field_id] = sum(each.null_count for each in all_statistics)
    # A row group without any value has no bounds, and needs none.
    known = [each for each, chunk in zip(all_statistics, chunks, strict=True) if each.null_count < chunk.num_values]
    if known and all(each.has_min_max for each in known):
        _add_bounds(found, field_id, kind, known)


def _add_bounds(found: dict[str, Any], field_id: str, kind: pa.DataType, known: list[pq.Statistics]) -> None:
    lows, highs = [each.min_raw for each in known], [each.max_raw for each in known]
    low: bytes | None
    high: bytes | None
    if pa.types.is_string(kind):
        low, high = min(lows).decode()[:TRUNCATED].encode(), _text_above(max(highs).decode())
    elif pa.types.is_binary(kind):
        low, high = min(lows)[:TRUNCATED], _bytes_above(max(highs))
    elif pa.types.is_decimal(kind):
        low, high = _decimal(min(map(_signed, lows))), _decimal(max(map(_signed, highs)))
    else:
        form = _FORMS[kind]
        low, high = struct.pack(form, min(lows)), struct.pack(form, max(highs))
    for name, bound in (("lower_bounds", low), ("upper_bounds", high)):
        if bound is not None:
            found[name][field_id] = base64.b64encode(bound).decode()


def _text_above(text: str) -> bytes | None:
    """Return the first characters of a text, as a text that is not before it; None: there is none."""
    if len(text) <= TRUNCATED:
        return text.encode()
    for at in reversed(range(TRUNCATED)):
        point = ord(text[at]) + 1
        if point in _SURROGATES:
            point = _SURROGATES.stop
        if point <= _CODE_POINT_MAX:
            return (text[:at] + chr(point)).encode()
    return None


def _bytes_above(data: bytes) -> bytes | None:
    """Return the first bytes, as a value that is not before them; None: there is none."""
    if len(data) <= TRUNCATED:
        return data
    kept = data[:TRUNCATED].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _decimal(unscaled: int) -> bytes:
    """Return a decimal in as few bytes as it needs."""
    bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length()
    return unscaled.to_bytes(bits // 8 + 1, "big", signed=True)
