"""Casts of decoded values, without a session: what a type has not is an error, and nothing is rounded."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from anabranch.tables.casts import cast_column, check_cast
from anabranch.tables.errors import SchemaError
from anabranch.tables.types import LOCAL_TIMESTAMP, TIMESTAMP

MONEY = pa.decimal128(6, 2)
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("source", "value", "target", "wanted"),
    [
        (pa.string(), "12", pa.int32(), 12),
        (pa.string(), "12.50", MONEY, Decimal("12.50")),
        (pa.string(), "2020-01-01T12:00:00Z", TIMESTAMP, NOON),
        (pa.string(), "2020-01-01", pa.date32(), date(2020, 1, 1)),
        (pa.string(), "YWI=", pa.binary(), b"ab"),
        (pa.int32(), 7, pa.int64(), 7),
        (pa.int64(), 7, pa.int32(), 7),
        (pa.int64(), 7, MONEY, Decimal("7.00")),
        (pa.int64(), 7, pa.string(), "7"),
        (pa.float64(), 1.5, MONEY, Decimal("1.50")),
        (pa.float64(), 3.0, pa.int32(), 3),
        (pa.float64(), 0.1, pa.string(), "0.1"),
        (MONEY, Decimal("7.00"), pa.int32(), 7),
        (MONEY, Decimal("7.10"), pa.string(), "7.10"),
        (MONEY, Decimal("7.10"), pa.float64(), 7.1),
        (pa.bool_(), True, pa.string(), "true"),
        (TIMESTAMP, NOON, pa.string(), "2020-01-01T12:00:00Z"),
        (LOCAL_TIMESTAMP, datetime(2020, 1, 1, 12), pa.string(), "2020-01-01T12:00:00"),  # noqa: DTZ001 - it is local
        (pa.date32(), date(2020, 1, 1), pa.string(), "2020-01-01"),
    ],
)
def test_a_value_in_another_type(source: pa.DataType, value: Any, target: pa.DataType, wanted: Any) -> None:
    check_cast("c", source, target)
    found, errors = cast_column(pa.array([value, None], source), "c", target, "UTC")
    assert (found.type, found.to_pylist(), errors) == (target, [wanted, None], [None, None])


@pytest.mark.parametrize(
    ("source", "value", "target", "error"),
    [
        (pa.string(), "1.005", MONEY, "c: expected decimal(6,2), found 1.005, which would be rounded"),
        (pa.string(), " 12", pa.int32(), "c: expected int, found the text ' 12'"),
        (pa.string(), "12.5", pa.int32(), "c: expected int, found 12.5"),
        (pa.string(), "2020", pa.date32(), "c: expected date, found the text '2020'"),
        (pa.int64(), 3_000_000_000, pa.int32(), "c: expected int, found 3000000000"),
        (pa.float64(), 1.5, pa.int32(), "c: expected int, found 1.5"),
        (pa.float64(), float("nan"), MONEY, "c: expected decimal(6,2), found nan"),
        (MONEY, Decimal("7.10"), pa.int64(), "c: expected bigint, found 7.10"),
    ],
)
def test_what_a_type_does_not_have(source: pa.DataType, value: Any, target: pa.DataType, error: str) -> None:
    found, errors = cast_column(pa.array([value], source), "c", target, "UTC")
    assert (found.to_pylist(), errors) == ([None], [error])


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        (pa.struct([("x", pa.int32())]), pa.string(), "struct<x:int> is no type of a single value"),
        (TIMESTAMP, pa.date32(), "a date or time is cast to string only"),
        (pa.int64(), TIMESTAMP, "a number is cast to another type of numbers, or to string, only"),
        (pa.bool_(), pa.int32(), "a boolean is cast to string only"),
        (pa.binary(), pa.string(), "bytes have no text: say in the schema what they are"),
    ],
)
def test_casts_that_would_guess_are_refused(source: pa.DataType, target: pa.DataType, why: str) -> None:
    with pytest.raises(SchemaError, match="no cast from") as caught:
        check_cast("c", source, target)
    assert str(caught.value).endswith(f": {why}")
