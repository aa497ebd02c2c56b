"""Fields of JSON whose spelling does not say what they are: times as numbers, in patterns, and Kafka Connect's types.

JSON is decoded with a type in place of the column's that takes the spelling (a number, a text, bytes), and each field
is converted afterwards: many at once, or, if any value is in doubt, each by itself. Conversions are exact: what would
be rounded, or is no time, is an error that names the field.

Names of logical types are those of Kafka Connect and of Debezium's `io.debezium.time` (its documentation, "Temporal
types").
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, ClassVar, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.errors import SchemaError
from anabranch.tables.json_casts import YEAR_1_DAYS, YEARS_US, DoubtError, any_of, demand_between
from anabranch.tables.json_columns import JsonDecoder
from anabranch.tables.time_patterns import TimePattern, parse_pattern
from anabranch.tables.types import LOCAL_TIMESTAMP, TIMESTAMP, list_of, map_of, type_name
from anabranch.tables.values import ERROR_CHARS_MAX

ROWS: Final = 1024
"""Rows that are converted together, or each by itself."""
DAY_US: Final = 86_400_000_000
YEAR_9999_DAYS: Final = 2_932_896
UNITS_NS: Final[Mapping[str, int]] = {
    "seconds": 1_000_000_000, "milliseconds": 1_000_000, "microseconds": 1_000, "nanoseconds": 1,
}  # fmt: skip
DAYS: Final = "days"
DEBEZIUM: Final = "io.debezium.time."
CONNECT: Final = "org.apache.kafka.connect.data."
EPOCHS: Final[Mapping[str, str]] = {
    f"{DEBEZIUM}Timestamp": "milliseconds", f"{DEBEZIUM}MicroTimestamp": "microseconds",
    f"{DEBEZIUM}NanoTimestamp": "nanoseconds", f"{CONNECT}Timestamp": "milliseconds",
}  # fmt: skip
TIMES_OF_DAY: Final[Mapping[str, str]] = {
    f"{DEBEZIUM}Time": "milliseconds", f"{DEBEZIUM}MicroTime": "microseconds", f"{DEBEZIUM}NanoTime": "nanoseconds",
    f"{CONNECT}Time": "milliseconds",
}  # fmt: skip
DATES: Final = (f"{DEBEZIUM}Date", f"{CONNECT}Date")
ZONED: Final = f"{DEBEZIUM}ZonedTimestamp"
DECIMAL: Final = f"{CONNECT}Decimal"
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - it is local
UNSCALED_BYTES_MAX: Final = 64
"""More than the digits of any column."""
_EXACT: Final = Context(prec=400)
_INT64, _STRING, _BINARY = pa.int64(), pa.string(), pa.binary()
_INTEGERS: Final = (pa.int32(), pa.int64())


class EncodingError(SchemaError):
    """An encoding that is unknown, or that its field's column cannot have."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class UnfitError(ValueError):
    """A value that is not of its encoding. The text is what was expected, and what was found."""


class Encoding(Protocol):
    """Conversion of one field."""

    @property
    def transport(self) -> pa.DataType:
        """Type that JSON is decoded with."""

    def column(self, found: pa.Array, zone: str) -> pa.Array:
        """Convert many values. Raises DoubtError, and what Arrow raises."""

    def value(self, found: Any, zone: str) -> Any:
        """Convert a value that is not null. Raises UnfitError."""


Encodings = Mapping[str, Encoding]
"""By path: names with dots between them, of which lists and maps have none."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Number of units since the beginning of 1970 in UTC, for a column with a time."""

    unit: str
    kind: pa.DataType
    transport: ClassVar[pa.DataType] = _INT64

    def column(self, found: pa.Array, zone: str) -> pa.Array:  # noqa: ARG002 - a number has no zone
        """Convert many values."""
        us = _whole_us(found, self.unit)
        demand_between(us, *YEARS_US)
        return us.view(self.kind)

    def value(self, found: Any, zone: str) -> Any:  # noqa: ARG002 - as above
        """Convert a value."""
        us, rest = divmod(found * UNITS_NS[self.unit], 1_000)
        if rest:
            raise UnfitError(f"expected {self.unit} that are whole microseconds, found {found}")
        if not YEARS_US[0] <= us <= YEARS_US[1]:
            raise UnfitError(f"expected {self.unit} in the years 1 to 9999, found {found}")
        local = _EPOCH + timedelta(microseconds=us)
        return local if self.kind == LOCAL_TIMESTAMP else local.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Days:
    """Number of days since the beginning of 1970, for a column with a date."""

    transport: ClassVar[pa.DataType] = _INT64

    def column(self, found: pa.Array, zone: str) -> pa.Array:  # noqa: ARG002 - a date has no zone
        """Convert many values."""
        demand_between(found, YEAR_1_DAYS, YEAR_9999_DAYS)
        return found.cast(pa.int32()).view(pa.date32())

    def value(self, found: Any, zone: str) -> Any:  # noqa: ARG002 - as above
        """Convert a value."""
        if not YEAR_1_DAYS <= found <= YEAR_9999_DAYS:
            raise UnfitError(f"expected days in the years 1 to 9999, found {found}")
        return (_EPOCH + timedelta(days=found)).date()


@dataclass(frozen=True, slots=True)
class TimeOfDay:
    """Number of units since midnight, for a column with texts such as `23:59:59.000000`."""

    unit: str
    transport: ClassVar[pa.DataType] = _INT64

    def column(self, found: pa.Array, zone: str) -> pa.Array:  # noqa: ARG002 - a time of day has no zone
        """Convert many values."""
        us = _whole_us(found, self.unit)
        demand_between(us, 0, DAY_US - 1)
        return us.view(pa.time64("us")).cast(pa.string())

    def value(self, found: Any, zone: str) -> Any:  # noqa: ARG002 - as above
        """Convert a value."""
        us, rest = divmod(found * UNITS_NS[self.unit], 1_000)
        if rest or not 0 <= us < DAY_US:
            raise UnfitError(f"expected {self.unit} since midnight, found {found}")
        return (_EPOCH + timedelta(microseconds=us)).time().isoformat("microseconds")


@dataclass(frozen=True, slots=True)
class Spelled:
    """Text in a pattern, for a column with a date or a time."""

    pattern: TimePattern
    kind: pa.DataType
    transport: ClassVar[pa.DataType] = _STRING

    def column(self, found: pa.Array, zone: str) -> pa.Array:
        """Convert many values."""
        return pa.array([None if each is None else self._value(each, zone) for each in found.to_pylist()], self.kind)

    def value(self, found: Any, zone: str) -> Any:
        """Convert a value."""
        try:
            return self._value(found, zone)
        except (ValueError, OverflowError):
            raise UnfitError(f"expected a time like {self.pattern.text!r}, found the text {found[:40]!r}") from None

    def _value(self, found: str, zone: str) -> Any:
        return self.pattern.read(found, self.kind, zone)


@dataclass(frozen=True, slots=True)
class Unscaled:
    """Digits of a decimal as the bytes of a number, in Base64 (`decimal.format=BASE64` of Kafka Connect)."""

    kind: pa.Decimal128Type
    scale: int
    transport: ClassVar[pa.DataType] = _BINARY

    def column(self, found: pa.Array, zone: str) -> pa.Array:
        """Convert many values."""
        return pa.array([None if each is None else self.value(each, zone) for each in found.to_pylist()], self.kind)

    def value(self, found: Any, zone: str) -> Any:  # noqa: ARG002 - a number has no zone
        """Convert a value."""
        if not found or len(found) > UNSCALED_BYTES_MAX:
            raise UnfitError(f"expected the bytes of a {type_name(self.kind)}, found {len(found)}")
        value = _EXACT.scaleb(Decimal(int.from_bytes(found, "big", signed=True)), -self.scale)
        if value and value.adjusted() >= self.kind.precision - self.kind.scale:
            raise UnfitError(f"expected {type_name(self.kind)}, found {value}, which is too large")
        if value != (fitted := _EXACT.quantize(value, Decimal(1).scaleb(-self.kind.scale))):
            raise UnfitError(f"expected {type_name(self.kind)}, found {value}, which would be rounded")
        return fitted


def encoding_of(spec: str, kind: pa.DataType, path: str) -> Encoding | None:
    """Return the encoding of a field by its name or pattern; None if the column's type reads it. Raises EncodingError.

    `kind` is the type of the field's column.
    """

    def demand(*kinds: str, given: bool) -> None:
        if not given:
            raise EncodingError(path, f"{spec} gives {' or '.join(kinds)}, and the column is {type_name(kind)}")

    if (unit := EPOCHS.get(spec, spec)) in UNITS_NS:
        demand("timestamp", "timestamp_ntz", given=kind in (TIMESTAMP, LOCAL_TIMESTAMP))
        return Epoch(unit, kind)
    if spec == DAYS or spec in DATES:
        demand("date", given=kind == pa.date32())
        return Days()
    if spec in TIMES_OF_DAY:
        demand("string", "int", "bigint", given=pa.types.is_string(kind) or kind in _INTEGERS)
        return TimeOfDay(TIMES_OF_DAY[spec]) if pa.types.is_string(kind) else None
    if spec == ZONED:
        demand("timestamp", given=kind == TIMESTAMP)
        return None
    if spec == DECIMAL:
        demand("decimal", given=pa.types.is_decimal(kind))
        return Unscaled(kind, kind.scale)
    if "%" not in spec:
        raise EncodingError(
            path,
            f"{spec!r} is no encoding: expected {', '.join(UNITS_NS)}, {DAYS}, a pattern such as '%d/%m/%Y', or a type "
            f"of {CONNECT}* or {DEBEZIUM}*",
        )
    demand("date", "timestamp", "timestamp_ntz", given=pa.types.is_date32(kind) or kind in (TIMESTAMP, LOCAL_TIMESTAMP))
    try:
        return Spelled(parse_pattern(spec, kind), kind)
    except ValueError as error:
        raise EncodingError(path, f"{spec!r}: {error}") from None


def find_encodings(specs: Mapping[str, str], kind: pa.StructType) -> dict[str, Encoding]:
    """Return the encodings of some fields of values. Raises EncodingError."""
    found = {path: encoding_of(spec, type_at(path, kind), path) for path, spec in specs.items()}
    return {path: encoding for path, encoding in found.items() if encoding is not None}


def type_at(path: str, kind: pa.DataType) -> pa.DataType:
    """Return the type of a field of values, or of its items if it has some. Raises EncodingError."""
    for name in path.split("."):
        kind = _items(kind)
        at = kind.get_field_index(name) if pa.types.is_struct(kind) else -1
        if at < 0:
            names = [part.name for part in kind] if pa.types.is_struct(kind) else []
            raise EncodingError(path, f"there is no field {name}: {', '.join(names) or type_name(kind)}")
        kind = kind.field(at).type
    return _items(kind)


def _items(kind: pa.DataType) -> pa.DataType:
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return kind


@dataclass(frozen=True, slots=True)
class EncodedDecoder:
    """Decoder of JSON with encoded fields, as `JsonDecoder` is one without. It can be pickled."""

    schema: pa.StructType
    zone: str
    encodings: Encodings

    def __call__(self, texts: pa.Array) -> pa.StructArray:
        """Return a column of `values.decoded_type` from a binary column."""
        decoded = JsonDecoder(transported(self.schema, self.encodings), self.zone)(texts)
        return convert(decoded, self.schema, self.encodings, self.zone)


def convert(decoded: pa.StructArray, kind: pa.StructType, encodings: Encodings, zone: str) -> pa.StructArray:
    """Return what a decoder of `transported` fields has made, with the fields of a type."""
    starts = range(0, max(1, len(decoded)), ROWS)
    return pa.concat_arrays([_converted(decoded[start : start + ROWS], kind, encodings, zone) for start in starts])


def transported(kind: pa.DataType, encodings: Encodings, path: str = "") -> pa.DataType:
    """Return the type that JSON is decoded with."""
    if pa.types.is_struct(kind):
        inside = f"{path}." if path else ""
        return pa.struct([(part.name, transported(part.type, encodings, f"{inside}{part.name}")) for part in kind])
    if pa.types.is_list(kind):
        return list_of(transported(kind.value_type, encodings, path))
    if pa.types.is_map(kind):
        return map_of(kind.key_type, transported(kind.item_type, encodings, path))
    return encodings[path].transport if path in encodings else kind


def _converted(decoded: pa.StructArray, kind: pa.StructType, encodings: Encodings, zone: str) -> pa.StructArray:
    data, errors = decoded.field("data"), decoded.field("error")
    try:
        data = _column(pa.concat_arrays([data]), kind, encodings, zone, "")
    except (DoubtError, UnfitError, ValueError, OverflowError, pa.ArrowException):
        convert_value = _value_converter(kind, encodings, zone, "")
        rows, reasons = data.to_pylist(), errors.to_pylist()
        for at, row in enumerate(rows):
            if row is not None:
                try:
                    rows[at] = convert_value(row, "")
                except UnfitError as error:
                    rows[at], reasons[at] = None, str(error)[:ERROR_CHARS_MAX]
        data, errors = pa.array(rows, kind), pa.array(reasons, pa.string())
    return pa.StructArray.from_arrays([data, errors], names=["data", "error"])


def _column(found: pa.Array, kind: pa.DataType, encodings: Encodings, zone: str, path: str) -> pa.Array:
    """Return a column with converted fields. Raises DoubtError, and what Arrow raises."""
    if found.type == kind and path not in encodings and not _has_inside(path, encodings):
        return found
    if pa.types.is_struct(kind):
        inside = f"{path}." if path else ""
        # What is inside of a null is null in what `flatten` returns only.
        parts = [
            _column(each, part.type, encodings, zone, f"{inside}{part.name}")
            for each, part in zip(found.flatten(), kind, strict=True)
        ]
        mask = found.is_null() if found.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        found = pa.concat_arrays([found])  # so that the offsets begin at 0
        if pa.types.is_list(kind):
            child = _column(found.values, kind.value_type, encodings, zone, path)
        else:
            items = _column(found.items, kind.item_type, encodings, zone, path)
            child = pa.StructArray.from_arrays([found.keys, items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, len(found), found.buffers()[:2], children=[child])
    return encodings[path].column(found, zone)


def _has_inside(path: str, encodings: Encodings) -> bool:
    return not path or any(each.startswith(f"{path}.") for each in encodings)


def _value_converter(kind: pa.DataType, encodings: Encodings, zone: str, path: str) -> Callable[[Any, str], Any]:
    """Return a function of a value of Arrow and its place, for messages. It raises UnfitError."""
    if pa.types.is_struct(kind):
        inside = f"{path}." if path else ""
        parts = [(part.name, _value_converter(part.type, encodings, zone, f"{inside}{part.name}")) for part in kind]

        def of_struct(found: Any, place: str) -> Any:
            before = f"{place}." if place else ""
            return {name: None if found[name] is None else each(found[name], f"{before}{name}") for name, each in parts}

        return of_struct
    if pa.types.is_list(kind):
        element = _value_converter(kind.value_type, encodings, zone, path)
        return lambda found, place: [
            None if each is None else element(each, f"{place}[{at}]") for at, each in enumerate(found)
        ]
    if pa.types.is_map(kind):
        item = _value_converter(kind.item_type, encodings, zone, path)
        return lambda found, place: [
            (name, None if each is None else item(each, f"{place}[{name!r}]")) for name, each in found
        ]
    if (encoding := encodings.get(path)) is None:
        return lambda found, _: found

    def of_field(found: Any, place: str) -> Any:
        try:
            return encoding.value(found, zone)
        except UnfitError as error:
            raise UnfitError(f"{place}: {error}") from None

    return of_field


def _whole_us(found: pa.Array, unit: str) -> pa.Array:
    """Return numbers of units as microseconds. Raises DoubtError if that rounds, and what Arrow raises."""
    ns = UNITS_NS[unit]
    if ns >= 1_000:
        return pc.multiply_checked(found, ns // 1_000)
    us = pc.divide_checked(found, 1_000 // ns)
    if any_of(pc.not_equal(pc.multiply_checked(us, 1_000 // ns), found)):
        raise DoubtError
    return us
