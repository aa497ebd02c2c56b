"""The reason why a text is not JSON of a schema: the field, what was expected there, and what was found.

Spark says only that it is not. This is a second look at a dead letter, in Python.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

FOUND_CHARS_MAX = 40
INTEGER_BITS: Mapping[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
NUMBERS = (FloatType, DoubleType, DecimalType)
TIMES = (TimestampType, TimestampNTZType, DateType)


def reason_against(schema: StructType, body: bytes | None, unknown: str) -> str:
    """Return in one line why a value is not JSON of the schema, or `unknown`."""
    try:
        text = (body or b"").decode()
    except UnicodeDecodeError as error:
        return f"not valid UTF-8 at byte {error.start}"
    try:
        found = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return f"text after the value, at character {error.pos}: {_short(text[error.pos :])}"
        return f"not JSON at character {error.pos}: {error.msg[:1].lower()}{error.msg[1:]}"
    except _NoNumber as error:
        return f"not JSON: {error} is no number of JSON"
    except RecursionError:
        return "nested too deeply"
    if not isinstance(found, dict):
        return f"expected an object, found {_described(found)}"
    return next(_misfits("", found, schema), unknown)


class _NoNumber(Exception):
    """NaN or an infinity, which JSON does not have."""


def _refuse(name: str) -> None:
    raise _NoNumber(name)


def _misfits(path: str, value: Any, kind: DataType) -> Iterator[str]:
    """Yield what does not fit, in the order of the schema."""
    if value is None or isinstance(kind, StringType):
        return
    match kind, value:
        case StructType(), dict():
            for field in kind.fields:
                yield from _misfits(
                    f"{path}.{field.name}" if path else field.name, value.get(field.name), field.dataType
                )
        case ArrayType(), list():
            for index, item in enumerate(value):
                yield from _misfits(f"{path}[{index}]", item, kind.elementType)
        case MapType(), dict():
            for key, item in value.items():
                yield from _misfits(f"{path}[{_short(key)}]", item, kind.valueType)
        case _:
            if not _fits(value, kind):
                yield f"{path}: expected {kind.simpleString()}, found {_described(value)}"


def _fits(value: Any, kind: DataType) -> bool:
    if isinstance(kind, BooleanType):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if (bits := INTEGER_BITS.get(type(kind))) is not None:
        return isinstance(value, int) and -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    if isinstance(kind, DecimalType):
        return isinstance(value, int | float) and abs(value) < 10 ** (kind.precision - kind.scale)
    if isinstance(kind, NUMBERS):
        return isinstance(value, int | float)
    if isinstance(kind, TIMES):
        return isinstance(value, int) or (isinstance(value, str) and _is_time(value))
    return not isinstance(kind, StructType | ArrayType | MapType)


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


_KINDS: Mapping[type, Callable[[Any], str]] = {
    dict: lambda _: "an object",
    list: lambda _: "a list",
    str: lambda value: f"the text {_short(value)}",
    bool: lambda value: str(value).lower(),
}


def _described(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), str)(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= FOUND_CHARS_MAX else f"{text[:FOUND_CHARS_MAX]}...")
