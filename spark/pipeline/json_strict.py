"""Strict JSON: what comes out is what was sent, or the record is refused.

Spark's `from_json` reads numbers, times and texts as well as it can: it rounds, cuts, overflows and completes. So it
gets another schema, in which what it would change is text or wider, and expressions turn that into the columns.
All of it runs in Spark.

A number in a column of texts comes through a double. Where that, or the double of a number, may not be what was sent,
the text is read a second time: with each number and boolean as a text of its own between marks that nobody can guess.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as f
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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)


def bound(value: Column, use: Callable[[Column], Column]) -> Column:
    """Return what is made of a value that is computed once, however often it is used.

    Spark finds equal parts only of what is small.
    """
    return f.transform(f.array(value), use).getItem(0)


Leaf = Callable[[Column, DataType], Column | None]
"""Gives something about a scalar of a type; None: nothing."""

DATE = r"(?!0000)\d{4}-\d\d-\d\d"
LOCAL_TIME = DATE + r"[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6}0*)?)?"
TIME_WITH_ZONE = LOCAL_TIME + r"(?:[Zz]|[+-]\d\d:\d\d)"
NUMBER = r"(-?(?:0|[1-9]\d*))(?:\.(\d+))?(?:[eE]([+-]?\d{1,3}))?"
"""A number of JSON, as it is after Spark has read it: whole part, fraction and exponent."""
NUMBER_LENGTH_MAX = 400
YEARS_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The years 1 to 9999. Python and most readers of tables have no others."""

FLOAT_INSIDE = r"[:\[,]\s*-?\d+[.eE]"
"""Found in each text with a number that is not whole, and in some others."""
LONG_FLOAT_INSIDE = r"[:\[,]\s*-?(?=\d+[.eE])(?:[\d.]{17}|[\d.]+[eE][-+]?\d{3})"
"""The same for numbers that a double may change: it keeps 15 digits."""
TINY_INSIDE = r"[eE]-\d\d|\.\d{30}"
"""The same for numbers that a double or float may make 0."""
FROM_FLOAT = r"\A(?:[{\[]|\"?-?(?:Infinity|\d+\.\d))"
"""Beginning of a text that may come from such a number, or from a list or object with one."""
NOT_A_TEXT = r"\A(?:-?\d+|true)\z"
"""Pattern of what looks like Base64, and may have been a number or a boolean."""
WHOLE_MAX: Mapping[type[DataType], int] = {DoubleType: 1 << 53, FloatType: 1 << 24}
"""Up to here all whole numbers are numbers of the type."""
SURROGATE_PAIR = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
SURROGATE = r"\\u[dD][89a-fA-F]"
READ_AS_TEXT = (DecimalType, TimestampType, TimestampNTZType, DateType, BinaryType)
MARKED = (*READ_AS_TEXT, BooleanType, ByteType, ShortType, IntegerType, LongType, DoubleType, FloatType, StringType)


def first_schema(kind: DataType) -> DataType:
    """Return the type that `from_json` is to read for a column."""

    def of_leaf(leaf: DataType) -> DataType:
        if isinstance(leaf, ByteType):
            return ShortType()  # Spark's own reading of a byte takes 200 for -56
        return StringType() if isinstance(leaf, READ_AS_TEXT) else leaf

    return _with_leaves(kind, of_leaf)


def second_schema(kind: DataType) -> DataType:
    """Return the type that `from_json` is to read for a column from a text with marks."""
    return _with_leaves(kind, lambda leaf: StringType() if isinstance(leaf, MARKED) else leaf)


def with_marks(text: Column, mark: str) -> Column:
    """Return JSON with a text for each number and boolean, between marks."""
    # Without what is escaped, each second part between quotes is a text.
    slash, quote = f"{mark}s", f"{mark}q"
    hidden = f.replace(f.replace(text, f.lit("\\\\"), f.lit(slash)), f.lit('\\"'), f.lit(quote))

    def marked(part: Column, n: Column) -> Column:
        found = f.regexp_replace(part, r"-?\d[\d.eE+-]*|true|false", f'"{mark}$0{mark}"')
        return f.when(n % 2 == 0, found).otherwise(part)

    parts = f.array_join(f.transform(f.split(hidden, '"'), marked), '"')
    return f.replace(f.replace(parts, f.lit(quote), f.lit('\\"')), f.lit(slash), f.lit("\\\\"))


def has_lone_surrogate(text: Column) -> Column:
    """Return whether JSON has one half of a surrogate pair, which is no character."""
    escapes = f.replace(text, f.lit("\\\\"), f.lit("x"))
    lone = f.regexp_replace(escapes, SURROGATE_PAIR, "x").rlike(SURROGATE)
    return (f.contains(text, f.lit("\\ud")) | f.contains(text, f.lit("\\uD"))) & lone


def is_doubtful(row: Column, kind: DataType, text: Column) -> Column | None:
    """Return whether a row of the first schema may have a number that is not what was sent; None if it cannot."""

    def of_leaf(value: Column, leaf: DataType) -> Column | None:
        if isinstance(leaf, StringType):
            may_be = (value < ":") | value.startswith("[") | value.startswith("{")
            return may_be & value.rlike(FROM_FLOAT) & text.rlike(FLOAT_INSIDE)
        if isinstance(leaf, DecimalType):
            return value.isNotNull() & text.rlike(LONG_FLOAT_INSIDE)
        if isinstance(leaf, BinaryType):
            return value.rlike(NOT_A_TEXT)
        if isinstance(leaf, DoubleType | FloatType):
            return (f.abs(value) >= WHOLE_MAX[type(leaf)]) | ((value == 0) & text.rlike(TINY_INSIDE))
        return None

    return _anywhere(row, kind, of_leaf)


def from_first(row: Column, kind: DataType) -> tuple[Column, Column]:
    """Return a row of the first schema in the type that is wanted, and whether something in it is wrong."""
    return _converted(row, kind, _value_of_text)


def from_second(row: Column, kind: DataType, mark: str) -> tuple[Column, Column]:
    """Return the same for a row of the second schema."""

    def of_leaf(value: Column, leaf: DataType) -> Column | None:
        if not isinstance(leaf, MARKED):
            return None
        if isinstance(leaf, StringType):  # its own mark, and the quotes around those in an object or a list
            return f.regexp_replace(value, f'"?{mark}"?', "")
        inner = f.replace(value, f.lit(mark), f.lit(""))
        if isinstance(leaf, DecimalType):
            return _decimal(inner, leaf)
        if isinstance(leaf, READ_AS_TEXT):
            return f.when(~value.startswith(mark), _value_of_text(value, leaf))
        number = _float(inner, leaf) if isinstance(leaf, DoubleType | FloatType) else inner.try_cast(leaf)
        return f.when(value.startswith(mark), number)

    return _converted(row, kind, of_leaf)


def _value_of_text(value: Column, leaf: DataType) -> Column | None:
    """Return a scalar of the first schema in its type; null if it is not one."""
    if isinstance(leaf, ByteType):
        return f.when(value.between(-128, 127), value.cast(leaf))
    if isinstance(leaf, DecimalType):
        return _decimal(value, leaf)
    if isinstance(leaf, DateType):
        return f.when(_is(value, DATE), value.try_cast(leaf))
    if isinstance(leaf, TimestampNTZType):
        return f.when(_is(value, LOCAL_TIME), f.upper(value).try_cast(leaf))
    if isinstance(leaf, TimestampType):
        return _timestamp(value)
    if isinstance(leaf, BinaryType):
        read = f.try_to_binary(value, f.lit("base64"))
        return f.when(f.base64(read) == value, read)
    return None


def _timestamp(text: Column) -> Column:
    upper = f.upper(text)
    # A local time that the session's zone leaves out would be moved.
    local = upper.try_cast("timestamp_ntz")
    of_local = f.when(local.cast("timestamp").cast("timestamp_ntz") == local, local.cast("timestamp"))
    read = f.when(_is(text, TIME_WITH_ZONE), upper.try_cast("timestamp")).when(_is(text, LOCAL_TIME), of_local)
    return f.when(f.unix_micros(read).between(*YEARS_US), read)


def _decimal(text: Column, kind: DecimalType) -> Column:
    """Return a decimal from the text of a number; null if it is none, or has more digits than the type."""

    def part(n: int) -> Column:
        return f.regexp_extract(text, NUMBER, n)

    digits = f.concat(part(1), part(2))
    zeros = f.length(digits) - f.length(f.rtrim(digits, f.lit("0")))
    scale = f.length(part(2)) - zeros - f.coalesce(part(3).try_cast("int"), f.lit(0))
    is_plain = _is(text, rf"-?(?:0|[1-9]\d*)(?:\.\d{{0,{kind.scale}}}(?<!\.)0*)?")
    is_exact = is_plain | (_is(text, NUMBER) & ((scale <= kind.scale) | digits.rlike(r"\A-?0*\z")))
    return f.when((f.length(text) <= NUMBER_LENGTH_MAX) & is_exact, text.try_cast(kind))


def _float(text: Column, kind: DataType) -> Column:
    """Return the nearest number of a type; null if it would be infinite, 0 or another whole number."""
    read = text.try_cast(kind)
    is_lost = (read == 0) & text.rlike(r"\A-?[0.]*[1-9]")
    whole = (read.try_cast(each) == text.try_cast(each) for each in ("bigint", "decimal(38,0)"))
    is_whole = ~text.rlike(r"\A-?\d+\z") | f.coalesce(*(f.when(each, True) for each in whole), f.lit(False))
    return f.when((f.abs(read) < float("inf")) & ~is_lost & is_whole, read)


def _is(text: Column, pattern: str) -> Column:
    return text.rlike(rf"\A(?:{pattern})\z")


def _converted(row: Column, kind: DataType, value_of: Leaf) -> tuple[Column, Column]:
    def is_wrong(value: Column, leaf: DataType) -> Column | None:
        if isinstance(leaf, MapType):
            keys = f.map_keys(value)
            return f.size(f.array_distinct(keys)) < f.size(keys)
        read = value_of(value, leaf)
        return None if read is None or isinstance(leaf, StringType) else value.isNotNull() & read.isNull()

    return _or(_rebuilt(row, kind, value_of), row), _or(_anywhere(row, kind, is_wrong), f.lit(False))


def _with_leaves(kind: DataType, of_leaf: Callable[[DataType], DataType]) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, _with_leaves(each.dataType, of_leaf)) for each in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_with_leaves(kind.elementType, of_leaf))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _with_leaves(kind.valueType, of_leaf))
    return of_leaf(kind)


def _rebuilt(column: Column, kind: DataType, value_of: Leaf) -> Column | None:
    """Return a column with each scalar replaced; None if none is."""
    if isinstance(kind, StructType):
        parts = {each.name: _rebuilt(column.getField(each.name), each.dataType, value_of) for each in kind.fields}
        if all(part is None for part in parts.values()):
            return None
        fields = [_or(part, column.getField(name)).alias(name) for name, part in parts.items()]
        return f.when(column.isNotNull(), f.struct(*fields))
    if isinstance(kind, ArrayType | MapType):
        inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        if _rebuilt(f.lit(None), inner, value_of) is None:
            return None
        if isinstance(kind, ArrayType):
            return f.transform(column, lambda each: _or(_rebuilt(each, inner, value_of), each))
        return f.transform_values(column, lambda _, each: _or(_rebuilt(each, inner, value_of), each))
    return value_of(column, kind)


def _anywhere(column: Column, kind: DataType, test: Leaf) -> Column | None:
    """Return whether a scalar, or a map, meets a condition; None if none can."""
    if isinstance(kind, StructType):
        found = [_anywhere(column.getField(each.name), each.dataType, test) for each in kind.fields]
    elif isinstance(kind, ArrayType | MapType):
        inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
        values = column if isinstance(kind, ArrayType) else f.map_values(column)
        found = [test(column, kind)]
        if _anywhere(f.lit(None), inner, test) is not None:
            found.append(f.exists(values, lambda each: _or(_anywhere(each, inner, test), f.lit(False))))
    else:
        found = [test(column, kind)]
    conditions = [f.coalesce(each, f.lit(False)) for each in found if each is not None]
    return reduce(or_, conditions) if conditions else None


def _or(column: Column | None, other: Column) -> Column:
    return other if column is None else column
