"""Records as rows of a table: each record is exactly one, also if its value cannot be decoded."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.blocks import COLUMN_TYPES
from anabranch.tables.conform import conform
from anabranch.tables.decoding import Decoder
from anabranch.tables.schema import KAFKA, RAW_VALUE
from anabranch.tables.values import ERROR_CHARS_MAX

RECORD_SCHEMA: Final = pa.schema(
    [
        pa.field(name, COLUMN_TYPES[name])
        for name in ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers", "error")
    ]
)
"""Columns of records that rows are made of."""


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Makes rows of a table's schema. Without a decoder, values or keys stay bytes."""

    schema: pa.Schema
    value: Decoder | None
    key: Decoder | None

    def rows(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of records (`RECORD_SCHEMA`), in their order."""
        count = len(records)
        values, keys, errors = records["value"], records["key"], records["error"]
        if self.value is None:
            data = {RAW_VALUE: _where(errors.is_null(), values)}
        else:
            columns = pa.struct([part for part in self.schema if part.name != KAFKA])
            found, value_errors = _decoded(self.value, _where(errors.is_null(), values), columns)
            data = dict(zip((part.name for part in columns), found.flatten(), strict=True))
            errors = _joined(errors, value_errors)
        kafka = {
            "partition": records["partition"],
            "offset": records["offset"],
            "timestamp": records["timestamp"],
            "timestamp_type": records["timestampType"],
            "key": keys,
            "headers": records["headers"],
            "value_raw": _where(errors.is_valid(), values),
        }
        wanted = self.schema.field(KAFKA).type
        if self.key is not None:
            kafka["key"], key_errors = _decoded(self.key, keys, wanted.field("key").type)
            kafka["key_raw"] = _where(key_errors.is_valid(), keys)
            errors = _joined(errors, pc.binary_join_element_wise("key: ", key_errors, ""))
        kafka["error"] = errors
        data[KAFKA] = pa.StructArray.from_arrays(_columns(kafka, wanted, count), fields=list(wanted))
        return pa.RecordBatch.from_arrays(_columns(data, self.schema, count), schema=self.schema)


def _columns(found: dict[str, pa.Array], wanted: pa.StructType | pa.Schema, count: int) -> list[pa.Array]:
    """Return the columns in their order, null where a table has more of them."""
    return [found[part.name] if part.name in found else pa.nulls(count, part.type) for part in wanted]


def _where(condition: pa.Array, values: pa.Array) -> pa.Array:
    """Return values, null where a condition is not true."""
    true = condition.true_count
    if true == len(values):
        return values
    return pc.if_else(condition, values, pa.scalar(None, values.type)) if true else pa.nulls(len(values), values.type)


def _joined(errors: pa.Array, others: pa.Array) -> pa.Array:
    """Return the errors of each row as one."""
    if others.null_count == len(others):
        return errors
    if errors.null_count == len(errors):
        return others
    return pc.coalesce(pc.binary_join_element_wise(errors, others, "; "), errors, others)


def _decoded(decoder: Decoder, values: pa.Array, kind: pa.StructType) -> tuple[pa.StructArray, pa.Array]:
    """Return values as a type of the table, null where they cannot be decoded or do not fit, and the errors."""
    decoded = decoder.column(values)
    data, errors = decoded.field("data"), decoded.field("error")
    found, misfits = conform(data, kind)
    if not misfits:
        return found, errors
    texts: list[str | None] = errors.to_pylist()
    is_lost = np.array(found.is_null())
    for rows, reason in misfits:
        is_lost |= rows
        for at in np.flatnonzero(rows).tolist():
            texts[at] = texts[at] or reason[:ERROR_CHARS_MAX]
    parts = pa.StructArray.from_arrays(found.flatten(), fields=list(kind), mask=pa.array(is_lost))
    return parts, pa.array(texts, pa.string())
