"""Records as rows of a table: each record is exactly one, also if its value cannot be decoded."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.blocks import COLUMN_TYPES
from anabranch.tables.conform import conform
from anabranch.tables.decoding import Decoder
from anabranch.tables.framing import RecordPart
from anabranch.tables.header_ids import with_header_ids
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
        values, keys, errors = records["value"], records["key"], records["error"]
        headers = records["headers"]
        data, value_errors = _decoded(self.value, _where(errors.is_null(), values), headers, "value")
        if self.value is None:
            data = pa.StructArray.from_arrays([data], names=[RAW_VALUE])
        columns = pa.struct([part for part in self.schema if part.name != KAFKA])
        data, value_errors = _fitted(data, value_errors, columns)
        errors = _joined(errors, value_errors)
        wanted = self.schema.field(KAFKA).type
        key_type = wanted.field("key").type if wanted.get_field_index("key") >= 0 else pa.struct([])
        key, key_errors = _fitted(*_decoded(self.key, keys, headers, "key"), key_type)
        kafka = {
            "partition": records["partition"],
            "offset": records["offset"],
            "timestamp": records["timestamp"],
            "timestamp_type": records["timestampType"],
            "key": key,
            "headers": headers,
            "error": _joined(errors, pc.binary_join_element_wise("key: ", key_errors, "")),
            "value_raw": _where(errors.is_valid(), values),
            "key_raw": _where(key_errors.is_valid(), keys),
        }
        found = dict(zip((part.name for part in columns), data.flatten(), strict=True))
        found[KAFKA] = pa.StructArray.from_arrays([kafka[part.name] for part in wanted], fields=list(wanted))
        return pa.RecordBatch.from_arrays([found[part.name] for part in self.schema], schema=self.schema)


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


def _decoded(
    decoder: Decoder | None, values: pa.Array, headers: pa.Array, part: RecordPart
) -> tuple[pa.Array, pa.Array]:
    """Return values as their decoder's type, null where they cannot be decoded, and the errors."""
    if decoder is None:
        return values, pa.nulls(len(values), pa.string())
    if decoder.framing.uses_headers:
        values = with_header_ids(values, headers, decoder.framing, part)
    decoded = decoder.column(values)
    return decoded.field("data"), decoded.field("error")


def _fitted(data: pa.Array, errors: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return values as a type of the table, null where they do not fit, and the errors."""
    found, misfits = conform(data, kind)
    if not misfits:
        return found, errors
    texts: list[str | None] = errors.to_pylist()
    is_lost = np.array(found.is_null())
    for rows, reason in misfits:
        is_lost |= rows
        for at in np.flatnonzero(rows).tolist():
            texts[at] = texts[at] or reason[:ERROR_CHARS_MAX]
    if pa.types.is_struct(kind):
        found = pa.StructArray.from_arrays(found.flatten(), fields=list(kind), mask=pa.array(is_lost))
    return found, pa.array(texts, pa.string())
