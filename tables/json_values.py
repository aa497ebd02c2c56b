"""One JSON text as the exact value of a schema, or the reason why it does not fit: the field and its content.

`json_columns` decodes many at once, and leaves doubtful ones to this module.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.errors import NotDecodableError
from anabranch.tables.types import TIMESTAMP, type_name

FOUND_CHARS_MAX = 40
INTEGER_BITS: Mapping[Any, int] = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}
NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
"""A number of JSON, with an exponent that a decimal may have."""
NUMBER_LENGTH_MAX = 400
"""Characters of a decimal: enough for each that has a column."""
DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
LOCAL_TIME = DATE + r"[Tt ]" + CLOCK + r"(?::[0-5][0-9](?:\.[0-9]{1,6}0*)?)?"
ZONE = f"(?:[Zz]|[+-]{CLOCK})"
INTEGER_LENGTH_MAX = 20
"""Characters of a number of 64 bits."""
_EXACT = Context(prec=NUMBER_LENGTH_MAX)
HALF = re.compile("[\ud800-\udfff]")


class Number(str):
    """A number as it is written."""

    __slots__ = ()


class Object(dict[str, Any]):
    """An object. Of two values of one name it has the last."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs

    def repeated(self) -> str | None:
        """Return the first name that is there again."""
        seen: set[str] = set()
        for name, _ in self.pairs:
            if name in seen:
                return name
            seen.add(name)
        return None


class NoNumberError(ValueError):
    """NaN or an infinity, which JSON does not have. The text is its name."""


def refuse_constant(name: str) -> None:
    """Raise NoNumberError."""
    raise NoNumberError(name)


_JSON = json.JSONDecoder(parse_constant=refuse_constant, parse_int=Number, parse_float=Number, object_pairs_hook=Object)


Read = Callable[[Any], Any]
"""Returns a parsed value that is not null as a column's value for Arrow. Raises _Misfit."""


class _Misfit(Exception):
    """A value that does not fit its type, and its path: names with a dot before them, and places in lists and maps."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(self.path).removeprefix('.')}: {self.args[0]}"


class _End(Exception):
    """A scalar that does not fit its type. The text is the end of the reason, where that is not obvious."""


def json_reader(schema: pa.StructType, zone: str) -> Callable[[bytes], Any]:
    """Return a function that returns a text as a dict for Arrow, or raises NotDecodableError.

    `zone` is that of times without one.
    """
    read = _reader(schema, zone)

    def decode(body: bytes) -> Any:
        try:
            found = _JSON.decode(body.decode())
            if not isinstance(found, Object):
                raise NotDecodableError(f"expected an object, found {_described(found)}")
            return read(found)
        except UnicodeDecodeError as error:
            raise NotDecodableError(f"not valid UTF-8 at byte {error.start}") from None
        except json.JSONDecodeError as error:
            if error.msg == "Extra data":
                reason = f"text after the value, at character {error.pos}: {_short(error.doc[error.pos :])}"
            else:
                reason = f"not JSON at character {error.pos}: {error.msg[:1].lower()}{error.msg[1:]}"
            raise NotDecodableError(reason) from None
        except NoNumberError as error:
            raise NotDecodableError(f"not JSON: {error} is no number of JSON") from None
        except _Misfit as error:
            raise NotDecodableError(str(error)) from None
        except RecursionError:
            raise NotDecodableError("nested too deeply") from None

    return decode


def _reader(kind: pa.DataType, zone: str) -> Read:
    if pa.types.is_struct(kind):
        return _of_struct(kind, zone)
    if pa.types.is_list(kind):
        return _of_array(kind, zone)
    if pa.types.is_map(kind):
        return _of_map(kind, zone)
    if pa.types.is_string(kind):
        return lambda found: _whole(found if isinstance(found, str) else _written(found))
    scalar = _scalar(kind, zone)

    def read(found: Any) -> Any:
        try:
            return scalar(found)
        except _End as error:
            raise _unexpected(kind, found, str(error)) from None

    return read


def scalar_reader(kind: pa.DataType, zone: str) -> Read:
    """Return a function that returns a parsed value, a `Number` or a text, as one of a scalar type for Arrow.

    It raises NotDecodableError. `zone` is that of times without one.
    """
    read = _reader(kind, zone)

    def checked(found: Any) -> Any:
        try:
            return read(found)
        except _Misfit as error:
            raise NotDecodableError(error.args[0]) from None

    return checked


def _unexpected(kind: pa.DataType, found: Any, end: str = "") -> _Misfit:
    return _Misfit(f"expected {type_name(kind)}, found {_described(found)}{end}")


def _inside(place: str, read: Read, found: Any) -> Any:
    """Return what is at a place of a list or object. Raises _Misfit with the place."""
    try:
        return None if found is None else read(found)
    except _Misfit as error:
        error.path.insert(0, place)
        raise


def _of_struct(kind: pa.StructType, zone: str) -> Read:
    parts = [(part.name, f".{part.name}", _reader(part.type, zone)) for part in kind]

    def read(found: Any) -> Any:
        if type(found) is not Object:
            raise _unexpected(kind, found)
        return {name: _inside(place, each, found.get(name)) for name, place, each in parts}

    return read


def _of_array(kind: pa.ListType, zone: str) -> Read:
    element = _reader(kind.value_type, zone)

    def read(found: Any) -> Any:
        if type(found) is not list:
            raise _unexpected(kind, found)
        return [_inside(f"[{index}]", element, item) for index, item in enumerate(found)]

    return read


def _of_map(kind: pa.MapType, zone: str) -> Read:
    value = _reader(kind.item_type, zone)

    def read(found: Any) -> Any:
        if type(found) is not Object:
            raise _unexpected(kind, found)
        if (name := found.repeated()) is not None:
            raise _Misfit(f"the key {_short(name)} is there twice")
        return [(_whole(name), _inside(f"[{_short(name)}]", value, item)) for name, item in found.items()]

    return read


def _whole(text: str) -> str:
    """Return a text. Raises _Misfit if it has half of a surrogate pair, which is no character."""
    if half := HALF.search(text):
        raise _Misfit(f"half of a surrogate pair, at character {half.start()}: {_short(text)}")
    return str(text)


def _written(found: Any) -> str:
    """Return JSON as it was written, without the spaces between its parts."""
    if isinstance(found, Number):
        return found
    if isinstance(found, Object):
        return f"{{{','.join(f'{_written(name)}:{_written(item)}' for name, item in found.pairs)}}}"
    if isinstance(found, list):
        return f"[{','.join(map(_written, found))}]"
    return json.dumps(found, ensure_ascii=False)


def _scalar(kind: pa.DataType, zone: str) -> Read:
    """Return a function for values of a scalar type, which raises _End."""
    if pa.types.is_boolean(kind):
        return _boolean
    if pa.types.is_decimal(kind):
        return lambda found: _decimal(found, kind)
    if pa.types.is_floating(kind):
        return _double if kind == pa.float64() else _float
    if (bits := INTEGER_BITS.get(kind)) is not None:
        limit = 1 << (bits - 1)
        return lambda found: _integer(found, limit)
    if pa.types.is_binary(kind):
        return _bytes
    if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
        return lambda found: _time(found, kind, zone)
    # Others are only in schemas that need not be strict: Spark has refused something else.
    return lambda found: found


def _boolean(found: Any) -> bool:
    if not isinstance(found, bool):
        raise _End
    return found


def _integer(found: Any, limit: int) -> int:
    if type(found) is Number and len(found) <= INTEGER_LENGTH_MAX and found.removeprefix("-").isdigit():
        value = int(found)
        if -limit <= value < limit:
            return value
    raise _End


def _bytes(found: Any) -> bytes:
    if type(found) is not str:
        raise _End
    try:
        return from_base64(found)
    except ValueError:
        raise _End from None


def from_base64(text: str) -> bytes:
    """Return bytes from their only spelling in Base64. Raises ValueError."""
    content = base64.b64decode(text, validate=True)
    if base64.b64encode(content).decode() != text:
        raise ValueError(text)
    return content


def _decimal(found: Any, kind: pa.Decimal128Type) -> Decimal:
    if not isinstance(found, str) or len(found) > NUMBER_LENGTH_MAX or not re.fullmatch(NUMBER, found):
        raise _End
    value = _EXACT.create_decimal(found).normalize(_EXACT)
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a number"
    if digits == (0,):
        return Decimal(0)
    if len(digits) + exponent > kind.precision - kind.scale:
        raise _End(", which is too large")
    if -exponent > kind.scale:
        raise _End(", which would be rounded")
    return value


def _double(found: Any) -> float:
    """Return the nearest number. Raises _End if it would be infinite, 0 or another whole number."""
    if type(found) is not Number:
        raise _End
    value = float(found)
    return value if 0 < abs(value) < 1 << 53 else _checked(found, value, str(value))


def _float(found: Any) -> float:
    """Return the same as `_double` of 32 bits."""
    if type(found) is not Number:
        raise _End
    value: float = pc.cast(pa.scalar(str(found)), pa.float32()).as_py()
    return value if 0 < abs(value) < 1 << 24 else _checked(found, value, str(np.float32(value)))


def _checked(text: str, value: float, shortest: str) -> float:
    """Return a number that may differ from its text. `shortest`, which parses to the same number, is accepted, too."""
    if math.isinf(value):
        raise _End(", which would be infinite")
    if value == 0 and re.match(r"-?[0.]*[1-9]", text):
        raise _End(", which would be 0")
    if re.fullmatch(r"-?\d+", text) and Decimal(text) not in {Decimal(int(value)), Decimal(shortest)}:
        raise _End(f", which would be {int(value)}")
    return value


def _time(found: Any, kind: pa.DataType, zone: str) -> date | datetime:
    if type(found) is Number:
        raise _End(", which does not say its unit")
    if type(found) is not str:
        raise _End
    try:
        if pa.types.is_date32(kind):
            if re.fullmatch(DATE, found):
                return date.fromisoformat(found)
            raise _End
        is_local = bool(re.fullmatch(LOCAL_TIME, found))
        if is_local or (kind == TIMESTAMP and re.fullmatch(LOCAL_TIME + ZONE, found)):
            time = datetime.fromisoformat(found.upper())
            if kind != TIMESTAMP:
                return time
            if is_local:
                moment: datetime = in_zone(pa.scalar(time, pa.timestamp("us")), zone).as_py()
                return moment.astimezone(UTC)
            return time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise _End from None
    raise _End


def in_zone(times: Any, zone: str) -> Any:
    """Return local times, a column or a single one, as times of a zone: the first of two.

    Raises ValueError for one that the zone leaves out, and for an unknown zone (see `check_zone`). UTC needs no table
    of zones, which small images lack.
    """
    if zone == "UTC":
        return times.cast(pa.timestamp("us", zone))
    return pc.assume_timezone(times, zone, ambiguous="earliest", nonexistent="raise")


def check_zone(zone: str) -> None:
    """Raise ValueError if local times cannot be decoded in a zone here."""
    in_zone(pa.scalar(datetime(2020, 1, 1), pa.timestamp("us")), zone)  # noqa: DTZ001 - it is local


_KINDS: Mapping[type, Callable[[Any], str]] = {
    list: lambda _: "a list",
    str: lambda value: f"the text {_short(value)}",
    Object: lambda _: "an object",
    Number: lambda value: value if len(value) <= FOUND_CHARS_MAX else f"{value[:FOUND_CHARS_MAX]}...",
    bool: lambda value: str(value).lower(),
}


def _described(value: Any) -> str:
    return "null" if value is None else _KINDS.get(type(value), str)(value)


def _short(text: str) -> str:
    return repr(text if len(text) <= FOUND_CHARS_MAX else f"{text[:FOUND_CHARS_MAX]}...")
