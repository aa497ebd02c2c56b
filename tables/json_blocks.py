"""Many JSON texts, read by Arrow's parser in one go: those that it reads as strictly as `json_values` does.

Arrow's parser takes a sequence of values, and is not strict. So a text goes through it if all of this holds:

- It begins with `{` and ends with `}`, and a line break follows it. Between `}` and `{` on two lines there is no inside
  of a value, and no text of JSON has a line break in it. So no value reaches over a line break, and there are as many
  values as texts only if each text is exactly one.
- It is valid UTF-8. The parser does not check that, but refuses escapes of halves of surrogate pairs.
- It has few brackets, if it is long: what is nested too deeply is refused in each way of reading it.
- It has no `NaN` and no infinity, which the parser takes for numbers.
- No number is rounded further than to the nearest, which means to infinity, to 0, or to another whole number.

If one of many texts does not fit, the halves are tried, down to a few, which are left to others.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from anabranch.tables.json_casts import EXACT_MAX, DoubtError, any_of, cast_texts, in_column
from anabranch.tables.json_values import INTEGER_BITS

ROWS: Final = 8192
"""Rows that are read together ..."""
BYTES_MAX: Final = 8 << 20
"""... up to this size."""
ROWS_MIN: Final = 32
"""Rows, one of which does not fit, that are not divided further."""
LONG_BYTES: Final = 1024
BRACKETS_MAX: Final = 400
"""Opening brackets of a long text, each of which may be a level."""
SMALL_NUMBER: Final = r"[:\[,]\s*-?(?:[0-9.]+[eE]-[0-9]|0\.0{30})"
"""A number that may be rounded to 0, or what looks like one inside of a text."""
NO_NUMBER: Final = re.compile(rb"[:\[,]\s*-?(?:NaN|Inf)")
"""A number of the parser that JSON does not have, or what looks like one inside of a text."""
_WHOLE = (pa.bool_(), pa.float64(), pa.float32(), *INTEGER_BITS)
"""Types of scalars that the parser itself makes."""


def reads(kind: pa.DataType) -> bool:
    """Return whether columns of a type are read here: it has no objects with any names, and no exact decimals."""
    if pa.types.is_struct(kind):
        return kind.num_fields > 0 and all(reads(part.type) for part in kind)
    if pa.types.is_list(kind):
        return reads(kind.value_type)
    return not (pa.types.is_map(kind) or pa.types.is_decimal(kind))


def read_block(texts: pa.BinaryArray, schema: pa.StructType, zone: str) -> tuple[pa.StructArray, npt.NDArray[np.bool_]]:
    """Return the values of the texts that are read here, and a mask of them."""
    is_read = _is_plain(texts)
    plain = np.flatnonzero(is_read)
    if len(plain) < len(texts):
        texts = texts.take(pa.array(plain))
    found: list[pa.StructArray] = []
    waiting = [(0, len(texts))]
    while waiting:
        first, last = waiting.pop()
        if first == last:
            continue
        some = texts[first:last]
        if (values := _read(some, schema, zone)) is not None:
            found.append(values)
        elif last - first <= ROWS_MIN:
            is_read[plain[first:last]] = False
        else:
            middle = (first + last) // 2
            waiting += [(middle, last), (first, middle)]
    return pa.concat_arrays(found) if found else pa.nulls(0, schema), is_read


def _is_plain(texts: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Return a mask of the texts that begin and end as an object, and are not nested deeply."""
    count = len(texts)
    if texts.null_count == count:
        return np.zeros(count, np.bool_)
    _, offsets, values = texts.buffers()
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + count + 1]
    data = np.frombuffer(values, np.uint8)
    size = np.diff(bounds)
    is_plain: npt.NDArray[np.bool_] = size >= len(b"{}")
    if texts.null_count:
        is_plain &= texts.is_valid().to_numpy(zero_copy_only=False)
    at = np.flatnonzero(is_plain)
    is_plain[at] = (data[bounds[at]] == ord("{")) & (data[bounds[at + 1] - 1] == ord("}"))
    long = np.flatnonzero(is_plain & (size > LONG_BYTES))
    if len(long):
        some = texts.take(pa.array(long))
        brackets = pc.add(pc.count_substring(some, "["), pc.count_substring(some, "{"))
        is_plain[long] = np.asarray(brackets) <= BRACKETS_MAX
    return is_plain


def _read(texts: pa.BinaryArray, schema: pa.StructType, zone: str) -> pa.StructArray | None:
    """Return the values, or nothing if one of the texts is in doubt."""
    lines = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), b"\n")[0].as_buffer()
    if lines.size > BYTES_MAX:
        return None
    body = b"".join((lines, b"\n"))
    # Most texts have not even the letter, and one byte is found 50 times as fast as three.
    if any(name[:1] in body and name in body for name in (b"NaN", b"Inf")) and NO_NUMBER.search(body):
        return None
    try:
        _check_utf8(lines)
        found = json.read_json(
            pa.BufferReader(pa.py_buffer(body)),
            json.ReadOptions(use_threads=False, block_size=len(body) + 1),
            json.ParseOptions(
                explicit_schema=pa.schema(list(_parsed_type(schema))), unexpected_field_behavior="ignore"
            ),
        )
        if found.num_rows != len(texts):
            return None
        rows = found.to_struct_array().combine_chunks()
        has_small_number = cache(lambda: any_of(pc.match_substring_regex(texts, SMALL_NUMBER)))
        return in_column(rows, schema, zone, partial(_cast, has_small_number=has_small_number))
    except (pa.ArrowException, DoubtError, ValueError, OverflowError):
        return None


def _check_utf8(text: pa.Buffer) -> None:
    """Raise ArrowInvalid for bytes that are not valid UTF-8."""
    bounds = pa.py_buffer(np.array([0, text.size], np.int32))
    pa.Array.from_buffers(pa.string(), 1, [None, bounds, text]).validate(full=True)


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that the parser makes for a type: texts in place of all that it would read leniently."""
    if pa.types.is_struct(kind):
        return pa.struct([(part.name, _parsed_type(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_parsed_type(kind.value_type))
    return kind if kind in _WHOLE else pa.string()


def _cast(array: pa.Array, kind: pa.DataType, zone: str, has_small_number: Callable[[], bool]) -> pa.Array:
    if kind in EXACT_MAX:
        _check_floats(array, EXACT_MAX[kind], has_small_number)
    elif not (kind in _WHOLE or pa.types.is_string(kind)):
        return cast_texts(array, kind, zone)
    return array


def _check_floats(values: pa.Array, limit: int, has_small_number: Callable[[], bool]) -> None:
    """Raise DoubtError if a number may be another one than the text has.

    All texts are searched at most once for small numbers, however many columns have a zero.
    """
    found: Any = pc.min_max(values).as_py()
    if found["min"] is None:
        return
    if found["min"] <= -limit or found["max"] >= limit:
        raise DoubtError
    has_zero = found["min"] <= 0 <= found["max"] and any_of(pc.equal(values, 0))
    if has_zero and has_small_number():
        raise DoubtError
