"""Decodes values one by one into Arrow columns, so that a bad record does not affect others."""

from collections.abc import Callable, Iterable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.errors import NotDecodableError

DecodeValue = Callable[[bytes], Any]
"""Decodes the bytes of one value to dicts, lists and scalars. Raises NotDecodableError."""
ERROR_CHARS_MAX: Final = 500


def decoded_type(data: pa.StructType) -> pa.StructType:
    """Return the struct that a decoder returns: the data or the error, and neither for a tombstone."""
    return pa.struct([("data", data), ("error", pa.string())])


def decode_column(values: Iterable[Any], decode: DecodeValue, data_type: pa.StructType) -> pa.StructArray:
    """Return an Arrow column of `decoded_type` from a column of binary values."""
    rows: list[Any] = []
    errors: list[str | None] = []
    for value in values:
        row, error = None, None
        content = value.as_py() if hasattr(value, "as_py") else value
        if content is not None:
            try:
                row = decode(content)
            except NotDecodableError as failure:
                error = str(failure)[:ERROR_CHARS_MAX]
        rows.append(row)
        errors.append(error)
    return pa.StructArray.from_arrays(
        [_to_arrow(rows, errors, data_type), pa.array(errors, pa.string())], names=["data", "error"]
    )


def _to_arrow(rows: list[Any], errors: list[str | None], wanted: pa.DataType) -> pa.Array:
    try:
        return pa.array(rows, wanted)
    except pa.ArrowMemoryError:
        raise  # of the process: the values may fit
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        # One value does not fit its column: find it.
        for index, row in enumerate(rows):
            try:
                pa.scalar(row, wanted)
            except pa.ArrowMemoryError:
                raise
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as failure:
                rows[index] = None
                errors[index] = f"a value does not fit its column: {failure}"[:ERROR_CHARS_MAX]
        return pa.array(rows, wanted)


def refuse_column(values: pa.Array, reason: str) -> pa.StructArray:
    """Return a column of `decoded_type` without fields, in which each value that is not null has the same error."""
    errors = pc.if_else(values.is_valid(), pa.scalar(reason[:ERROR_CHARS_MAX]), pa.scalar(None, pa.string()))
    return pa.StructArray.from_arrays([pa.nulls(len(values), pa.struct([])), errors], names=["data", "error"])
