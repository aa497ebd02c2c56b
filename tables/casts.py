"""Casts of decoded values to other types, as strict as the decoding: what comes out is what was there, or an error.

A value is cast as if it were written in JSON and read as the wanted type (see `json_values`): a text with a number is
one for numbers, and a whole number with a fraction of zeros is whole.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from anabranch.tables.errors import NotDecodableError, SchemaError
from anabranch.tables.json_values import INTEGER_BITS, NUMBER, Number, scalar_reader
from anabranch.tables.schema import promotes
from anabranch.tables.types import type_name
from anabranch.tables.values import ERROR_CHARS_MAX

Errors = list[str | None]


def check_cast(path: str, source: pa.DataType, target: pa.DataType) -> None:
    """Raise SchemaError for types that are not cast: those with parts, and times to what is no text."""
    reason = None
    for kind in (source, target):
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            reason = f"{type_name(kind)} is no type of a single value"
    if reason is None and source != target:
        if pa.types.is_binary(source):
            reason = "bytes have no text: say in the schema what they are"
        elif pa.types.is_temporal(source) and not pa.types.is_string(target):
            reason = "a date or time is cast to string only"
        elif pa.types.is_boolean(source) and not pa.types.is_string(target):
            reason = "a boolean is cast to string only"
        elif _is_number(source) and not (_is_number(target) or pa.types.is_string(target)):
            reason = "a number is cast to another type of numbers, or to string, only"
    if reason is not None:
        raise SchemaError(f"{path}: no cast from {type_name(source)} to {type_name(target)}: {reason}")


def cast_column(values: pa.Array, path: str, target: pa.DataType, zone: str) -> tuple[pa.Array, Errors]:
    """Return a column in another type, null where a value does not fit, and the error of each value.

    `path` names the field in errors, and `zone` is that of times without one.
    """
    none: Errors = [None] * len(values)
    if values.type == target:
        return values, none
    if promotes(values.type, target):
        return values.cast(target), none
    read = scalar_reader(target, zone)
    written = _writer(target)
    found: list[Any] = []
    errors: Errors = []
    for value in values.to_pylist():
        error = None
        cast = None
        if value is not None:
            try:
                cast = read(written(value))
            except NotDecodableError as failure:
                error = f"{path}: {failure}"[:ERROR_CHARS_MAX]
        found.append(cast)
        errors.append(error)
    return pa.array(found, target), errors


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _writer(target: pa.DataType) -> Callable[[Any], Any]:
    """Return a function that returns a value as JSON's parser would, for a type."""
    if pa.types.is_string(target):
        return _text
    if _is_number(target):
        is_whole = target in INTEGER_BITS
        return lambda value: _number(value, is_whole=is_whole)
    return lambda value: value


_NUMBER: Final = re.compile(NUMBER)


def _number(value: Any, *, is_whole: bool) -> Any:
    if isinstance(value, str):
        return Number(value) if _NUMBER.fullmatch(value) else value
    if is_whole and not isinstance(value, int) and value == value // 1:
        value = int(value)
    return Number(_text(value))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return value.isoformat()
        return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat()}Z"
    if isinstance(value, date):
        return value.isoformat()
    return str(value)
