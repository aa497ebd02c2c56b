"""Strict JSON as Arrow columns: values come out as they were sent, or the record has an error.

Many texts are parsed as one list, by Python's own parser, in which all numbers stay as they are written. Arrow makes
columns of texts from that, and casts them. In any doubt, `json_values` decodes each text by itself: it alone decides
what is refused, and why. Both return the same values.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import concat
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
)

from anabranch.spark.pipeline.arrow_values import arrow_type, decode_column
from anabranch.spark.pipeline.avro import SchemaError
from anabranch.spark.pipeline.json_values import (
    DATE,
    INTEGER_BITS,
    LOCAL_TIME,
    SCALARS,
    ZONE,
    from_base64,
    in_zone,
    json_reader,
    refuse_constant,
)

ROWS = 1024
"""Rows that are decoded together, or each by itself if any of them is in doubt."""
BYTES_MAX = 8 << 20
"""Size of the texts that are decoded together. Parsed, they take several times as much."""
NUMBER_MARK = "\0"
"""Comes before each number, and cannot be in a text that has no escape for it."""
ESCAPED_MARK = r"\u0000"
_marked = partial(concat, NUMBER_MARK)
"""Twice as fast as a function of Python."""
WHOLE_MAX: Mapping[type[DataType], int] = {DoubleType: 1 << 53, FloatType: 1 << 24}
"""Up to here all whole numbers are numbers of the type."""
YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999. Python and most readers of tables have no others."""
YEAR_1_DAYS = -719_162
OUTER = (StructType, ArrayType, MapType)


class _Doubt(Exception):
    """Something that is not decoded here."""


class _Repeated:
    """An object that has a name twice."""


def check_json_type(kind: DataType, path: str = "") -> None:
    """Raise SchemaError for a type that strict JSON does not have."""
    if isinstance(kind, StructType):
        for part in kind.fields:
            check_json_type(part.dataType, f"{path}.{part.name}" if path else part.name)
    elif isinstance(kind, ArrayType):
        check_json_type(kind.elementType, path)
    elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        check_json_type(kind.valueType, path)
    elif type(kind) not in SCALARS:
        raise SchemaError(f"{path}: strict JSON has no {kind.simpleString()}")


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Decodes texts of a schema whose types are checked."""

    schema: StructType
    zone: str
    """That of times without one."""

    def __call__(self, texts: pa.Array) -> pa.Array:
        """Return a column of `decoded_type` from a binary column."""
        starts = range(0, max(1, len(texts)), ROWS)
        return pa.concat_arrays([self._decoded(texts[start : start + ROWS]) for start in starts])

    def _decoded(self, texts: pa.Array) -> pa.Array:
        try:
            return self._together(texts)
        except (_Doubt, ValueError, TypeError, OverflowError, RecursionError, pa.ArrowException):
            return decode_column(texts, json_reader(self.schema, self.zone), self.schema)

    def _together(self, texts: pa.Array) -> pa.Array:
        """Return the column for some texts. Raises _Doubt, and what Python's JSON and Arrow raise."""
        if texts.nbytes > BYTES_MAX:
            raise _Doubt
        rows = _parsed(texts.to_pylist(), has_maps=_has_maps(self.schema))
        _refuse_others(rows, self.schema)
        # A text is no boolean here, and neither is an object, a list or a boolean a text.
        transported = pa.array(rows, _transported(self.schema))
        if transported.null_count != texts.null_count:
            raise _Doubt
        data = _converted(transported, self.schema, arrow_type(self.schema), self.zone)
        return pa.StructArray.from_arrays([data, pa.nulls(len(texts), pa.string())], names=["data", "error"])


def _has_maps(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_maps(part.dataType) for part in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and _has_maps(kind.elementType))


def _parsed(texts: list[bytes | None], *, has_maps: bool) -> list[Any]:
    """Return values of texts. Raises _Doubt and ValueError.

    The texts are separated by an unguessable one: if a text were not a whole value, the separators would be misplaced.
    """
    mark = token_hex(16)
    between = f',"{mark}",'.encode()
    text = b"".join(
        (b"[", between.join([b"null" if each is None else each for each in texts]), between[:-1], b"]")
    ).decode()
    if ESCAPED_MARK in text:
        raise _Doubt
    decoder = json.JSONDecoder(
        parse_constant=refuse_constant,
        parse_int=_marked,
        parse_float=_marked,
        object_pairs_hook=_object if has_maps else None,
    )
    found: list[Any] = decoder.decode(text)
    if len(found) != 2 * len(texts) or found[1::2] != [mark] * len(texts):
        raise _Doubt
    return found[::2]


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated()


def _transported(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a column of parsed JSON: texts in place of scalars."""
    if isinstance(kind, StructType):
        return pa.struct([(part.name, _transported(part.dataType)) for part in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(_transported(kind.elementType))
    if isinstance(kind, MapType):
        return pa.map_(pa.string(), _transported(kind.valueType))
    return pa.bool_() if isinstance(kind, BooleanType) else pa.string()


def _refuse_others(values: Iterable[Any], kind: DataType) -> None:
    """Raise _Doubt if one of the values is not the object or list of its column: Arrow makes lists of texts, too."""
    values = [each for each in values if each is not None]
    if not set(map(type, values)) <= {list if isinstance(kind, ArrayType) else dict}:
        raise _Doubt
    if isinstance(kind, StructType):
        for part in kind.fields:
            if isinstance(part.dataType, OUTER):
                _refuse_others([each.get(part.name) for each in values], part.dataType)
    elif isinstance(kind, ArrayType) and isinstance(kind.elementType, OUTER):
        _refuse_others(chain.from_iterable(values), kind.elementType)
    elif isinstance(kind, MapType) and isinstance(kind.valueType, OUTER):
        _refuse_others(chain.from_iterable(each.values() for each in values), kind.valueType)


def _converted(array: pa.Array, kind: DataType, wanted: pa.DataType, zone: str) -> pa.Array:
    """Return a column of the Arrow type that is wanted. Raises _Doubt, and what Arrow raises."""
    if isinstance(kind, StructType):
        # What is inside of a null is null in what `flatten` returns only.
        inner = zip(array.flatten(), kind.fields, wanted, strict=True)
        parts = [_converted(values, part.dataType, field.type, zone) for values, part, field in inner]
        return pa.Array.from_buffers(wanted, len(array), array.buffers()[:1], children=parts)
    if isinstance(kind, ArrayType):
        items = _converted(array.values, kind.elementType, wanted.value_type, zone)
        return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], children=[items])
    if isinstance(kind, MapType):
        items = _converted(array.items, kind.valueType, wanted.item_type, zone)
        entries = pa.StructArray.from_arrays([array.keys, items], fields=[wanted.key_field, wanted.item_field])
        return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], children=[entries])
    return array if isinstance(kind, BooleanType) else _converted_texts(array, kind, wanted, zone)


def _converted_texts(array: pa.Array, kind: DataType, wanted: pa.DataType, zone: str) -> pa.Array:
    without_marks = pc.ascii_ltrim(array, NUMBER_MARK)
    if isinstance(kind, StringType):
        return without_marks
    if isinstance(kind, DecimalType):
        return _demand(without_marks, _decimal_pattern(kind)).cast(wanted)
    is_number = pc.starts_with(array, NUMBER_MARK)
    if type(kind) in WHOLE_MAX or type(kind) in INTEGER_BITS:
        if _any(pc.invert(is_number)):
            raise _Doubt
        return _floats(without_marks, kind, wanted) if type(kind) in WHOLE_MAX else without_marks.cast(wanted)
    if _any(is_number):
        raise _Doubt
    if isinstance(kind, BinaryType):
        return pa.array([None if text is None else from_base64(text) for text in array.to_pylist()], wanted)
    if isinstance(kind, DateType):
        days = _demand(array, DATE).cast(wanted)
        _demand_between(days.view(pa.int32()), YEAR_1_DAYS, None)
        return days
    return _times(array, kind, wanted, zone)


def _decimal_pattern(kind: DecimalType) -> str:
    """Return a pattern of numbers without exponents whose digits the type has: Arrow reads longer ones wrongly."""
    before = kind.precision - kind.scale
    whole = f"(?:0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    return rf"-?{whole}(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else f"-?{whole}"


def _floats(numbers: pa.Array, kind: DataType, wanted: pa.DataType) -> pa.Array:
    values = numbers.cast(wanted)
    is_large = pc.greater_equal(pc.abs(values), WHOLE_MAX[type(kind)])
    if _any(is_large) and (
        _any(pc.is_inf(values)) or _any(pc.match_substring_regex(pc.filter(numbers, is_large), "^-?[0-9]+$"))
    ):
        raise _Doubt
    is_zero = pc.equal(values, 0)
    if _any(is_zero) and _any(pc.match_substring_regex(pc.filter(numbers, is_zero), "^-?[0.]*[1-9]")):
        raise _Doubt
    return values


def _times(array: pa.Array, kind: DataType, wanted: pa.DataType, zone: str) -> pa.Array:
    without_zone = pa.timestamp("us")
    if isinstance(kind, TimestampNTZType):
        times = _demand(array, LOCAL_TIME).cast(without_zone)
    elif _all_match(array, LOCAL_TIME + ZONE):
        times = array.cast(wanted)
    else:
        local = _demand(array, LOCAL_TIME).cast(without_zone)
        times = in_zone(local, zone).cast(wanted)
    _demand_between(times.view(pa.int64()), *YEARS_US)
    return times


def _demand(array: pa.Array, pattern: str) -> pa.Array:
    if not _all_match(array, pattern):
        raise _Doubt
    return array


def _all_match(array: pa.Array, pattern: str) -> bool:
    return not _any(pc.invert(pc.match_substring_regex(array, rf"\A(?:{pattern})\z")))


def _demand_between(numbers: pa.Array, first: int, last: int | None) -> None:
    found = pc.min_max(numbers).as_py()
    if found["min"] is not None and (found["min"] < first or (last is not None and found["max"] > last)):
        raise _Doubt


def _any(condition: pa.Array) -> bool:
    return pc.any(condition).as_py() is True
