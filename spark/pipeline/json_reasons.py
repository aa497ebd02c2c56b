"""The reason why a text is not JSON of a schema: the field, what was expected there, and what was found.

Spark says only that it is not. This is a second look at a dead letter, in Python.
"""

import base64
import json
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Context, Decimal
from itertools import chain
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
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

from spark.pipeline.json_strict import DATE, LOCAL_TIME, NUMBER, NUMBER_LENGTH_MAX

FOUND_CHARS_MAX = 40
INTEGER_BITS: Mapping[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
TIMES: Mapping[type[DataType], str] = {
    TimestampType: rf"{LOCAL_TIME}(?:[Zz]|[+-]\d\d:\d\d)?",
    TimestampNTZType: LOCAL_TIME,
    DateType: DATE,
}
HALF = re.compile("[\ud800-\udfff]")


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


class _Object(dict[str, Any]):
    """An object, and the name that it has twice."""

    __slots__ = ("twice",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs]
        self.twice = next((name for n, name in enumerate(names) if len(names) > len(self) and name in names[:n]), None)


def reason_against(schema: StructType, body: bytes | None, unknown: str) -> str:
    """Return in one line why a value is not JSON of the schema, or `unknown`."""
    try:
        text = (body or b"").decode()
    except UnicodeDecodeError as error:
        return f"not valid UTF-8 at byte {error.start}"
    try:
        found = json.loads(
            text, parse_constant=_refuse, parse_int=_Number, parse_float=_Number, object_pairs_hook=_Object
        )
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
    return next(chain(_misfits("", found, schema), _halves("", found)), unknown)


class _NoNumber(Exception):
    """NaN or an infinity, which JSON does not have."""


def _refuse(name: str) -> None:
    raise _NoNumber(name)


def _halves(path: str, value: Any) -> Iterator[str]:
    """Yield texts and names with half of a surrogate pair, of fields that the schema does not have, too."""
    if isinstance(value, str) and (half := HALF.search(value)):
        yield f"{path}: half of a surrogate pair, at character {half.start()}: {_short(value)}"
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _halves(path or "the object", name)
            yield from _halves(_inside(path, name), each)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _halves(f"{path}[{index}]", item)


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _misfits(path: str, value: Any, kind: DataType) -> Iterator[str]:
    """Yield what does not fit, in the order of the schema."""
    if value is None or isinstance(kind, StringType):
        return
    match kind, value:
        case StructType(), dict():
            for field in kind.fields:
                yield from _misfits(_inside(path, field.name), value.get(field.name), field.dataType)
        case ArrayType(), list():
            for index, item in enumerate(value):
                yield from _misfits(f"{path}[{index}]", item, kind.elementType)
        case MapType(), _Object():
            if value.twice is not None:
                yield f"{path}: the key {_short(value.twice)} is there twice"
            for key, item in value.items():
                yield from _misfits(f"{path}[{_short(key)}]", item, kind.valueType)
        case _:
            if (problem := _problem(value, kind)) is not None:
                yield f"{path}: expected {kind.simpleString()}, found {_described(value)}{problem}"


def _problem(value: Any, kind: DataType) -> str | None:
    """Return what is wrong with a scalar, as the end of the reason, where that is not obvious; None: nothing."""
    is_number, is_text = isinstance(value, _Number), isinstance(value, str) and not isinstance(value, _Number)
    if isinstance(kind, BooleanType):
        return None if isinstance(value, bool) else ""
    if (bits := INTEGER_BITS.get(type(kind))) is not None:
        is_whole = is_number and re.fullmatch(r"-?\d{1,40}", value)
        return None if is_whole and -(1 << (bits - 1)) <= int(value) < 1 << (bits - 1) else ""
    if isinstance(kind, DecimalType):
        return _decimal_problem(value, kind) if isinstance(value, str) else ""
    if isinstance(kind, FloatType | DoubleType):
        return _float_problem(value, kind) if is_number else ""
    if (pattern := TIMES.get(type(kind))) is not None:
        if is_number:
            return ", which does not say its unit"
        return None if is_text and re.fullmatch(pattern, value) and _is_time(value) else ""
    if isinstance(kind, BinaryType):
        return None if is_text and _is_base64(value) else ""
    return "" if isinstance(kind, StructType | ArrayType | MapType) else None


def _decimal_problem(text: str, kind: DecimalType) -> str | None:
    if len(text) > NUMBER_LENGTH_MAX or not re.fullmatch(NUMBER, text):
        return ""
    context = Context(prec=NUMBER_LENGTH_MAX)
    _, digits, exponent = context.create_decimal(text).normalize(context).as_tuple()
    assert isinstance(exponent, int), "a number"
    if digits == (0,):
        return None
    if len(digits) + exponent > kind.precision - kind.scale:
        return ", which is too large"
    return ", which would be rounded" if -exponent > kind.scale else None


def _float_problem(text: str, kind: DataType) -> str | None:
    if len(text) > NUMBER_LENGTH_MAX:
        return None
    read = float(text)
    if isinstance(kind, FloatType):
        try:
            (read,) = struct.unpack("<f", struct.pack("<f", read))
        except OverflowError:
            return ", which would be infinite"
    if math.isinf(read):
        return ", which would be infinite"
    if read == 0 and re.match(r"-?[0.]*[1-9]", text):
        return ", which would be 0"
    if re.fullmatch(r"-?\d+", text) and int(text) not in {int(read), int(Decimal(repr(read)))}:
        return f", which would be {int(read)}"
    return None


def _is_time(text: str) -> bool:
    try:
        time = datetime.fromisoformat(text.upper())
        return time.tzinfo is None or time.astimezone(UTC).year > 0
    except (ValueError, OverflowError):
        return False


def _is_base64(text: str) -> bool:
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode() == text
    except ValueError:
        return False


_KINDS: Mapping[type, Callable[[Any], str]] = {
    list: lambda _: "a list",
    str: lambda value: f"the text {_short(value)}",
    _Object: lambda _: "an object",
    _Number: lambda value: value if len(value) <= FOUND_CHARS_MAX else f"{value[:FOUND_CHARS_MAX]}...",
    bool: lambda value: str(value).lower(),
}


def _described(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), str)(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= FOUND_CHARS_MAX else f"{text[:FOUND_CHARS_MAX]}...")
