"""Columns of texts from JSON as columns of a schema's types, or a doubt: what both parsers of many texts share."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.json_values import DATE, LOCAL_TIME, ZONE, from_base64, in_zone
from anabranch.tables.types import LOCAL_TIMESTAMP

YEARS_US: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999. Python and most readers of tables have no others."""
YEAR_1_DAYS: Final = -719_162
EXACT_MAX: Final[Mapping[Any, int]] = {pa.float64(): 1 << 53, pa.float32(): 1 << 24}
"""Up to here all whole numbers are numbers of the type."""
Cast = Callable[[pa.Array, pa.DataType, str], pa.Array]
"""Returns a column of parsed scalars as one of a type, in a zone. Raises DoubtError, and what Arrow raises."""


class DoubtError(Exception):
    """Something that is not decoded here, but in a slower way."""


def in_column(array: pa.Array, kind: pa.DataType, zone: str, cast: Cast) -> pa.Array:
    """Return parsed values as a column of a type, whose scalars `cast` makes. Raises what it raises."""
    if pa.types.is_struct(kind):
        # What is inside of a null is null in what `flatten` returns only.
        parts = [in_column(inner, part.type, zone, cast) for inner, part in zip(array.flatten(), kind, strict=True)]
        return pa.Array.from_buffers(kind, len(array), _whole(array).buffers()[:1], children=parts)
    if pa.types.is_list(kind):
        array = _whole(array)
        items = in_column(array.values, kind.value_type, zone, cast)
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[items])
    if pa.types.is_map(kind):
        array = _whole(array)
        items = in_column(array.items, kind.item_type, zone, cast)
        entries = pa.StructArray.from_arrays([array.keys, items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], children=[entries])
    return cast(array, kind, zone)


def _whole(array: pa.Array) -> pa.Array:
    """Return an array whose buffers begin with its first value."""
    return pa.concat_arrays([array]) if array.offset else array


def cast_texts(array: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    """Return texts as bytes, dates or times. Raises DoubtError, and what Arrow and Base64 raise."""
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else from_base64(text) for text in array.to_pylist()], kind)
    if pa.types.is_date32(kind):
        days = demand(array, DATE).cast(kind)
        demand_between(days.view(pa.int32()), YEAR_1_DAYS, None)
        return days
    return _times(array, kind, zone)


def _times(array: pa.Array, kind: pa.DataType, zone: str) -> pa.Array:
    if kind == LOCAL_TIMESTAMP:
        times = demand(array, LOCAL_TIME).cast(kind)
    elif _all_match(array, LOCAL_TIME + ZONE):
        times = array.cast(kind)
    else:
        local = demand(array, LOCAL_TIME).cast(LOCAL_TIMESTAMP)
        times = in_zone(local, zone).cast(kind)
    demand_between(times.view(pa.int64()), *YEARS_US)
    return times


def demand(array: pa.Array, pattern: str) -> pa.Array:
    """Return texts if all of them match. Raises DoubtError."""
    if not _all_match(array, pattern):
        raise DoubtError
    return array


def _all_match(array: pa.Array, pattern: str) -> bool:
    return not any_of(pc.invert(pc.match_substring_regex(array, rf"\A(?:{pattern})\z")))


def demand_between(numbers: pa.Array, first: int, last: int | None) -> None:
    """Raise DoubtError for a number that is not in a range."""
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and (found["min"] < first or (last is not None and found["max"] > last)):
        raise DoubtError


def any_of(condition: pa.Array) -> Any:
    """Return whether one is true."""
    return pc.any(condition).as_py() is True
