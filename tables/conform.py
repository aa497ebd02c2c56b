"""Decoded values as the columns of a table, whose schema may be older or wider than that of the values."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.tables.schema import promotes
from anabranch.tables.types import type_name

Bools = npt.NDArray[np.bool_]


class Misfit(NamedTuple):
    """Values that do not fit their column."""

    rows: Bools
    reason: str


def conform(data: pa.Array, kind: pa.DataType, path: str = "") -> tuple[pa.Array, list[Misfit]]:
    """Return a column of a type, null where a value does not fit, and the misfits.

    Fields that the type does not have are left out, and others of it are null.
    """
    if data.type == kind:
        return data, []
    if pa.types.is_struct(kind) and pa.types.is_struct(data.type):
        return _struct(data, kind, path)
    if pa.types.is_list(kind) and pa.types.is_list(data.type):
        data = pa.concat_arrays([data])  # so that the offsets begin at 0
        items, misfits = conform(data.values, kind.value_type, f"{path}.element")
        found = pa.Array.from_buffers(kind, len(data), data.buffers()[:2], children=[items])
        return found, _of_rows(data, misfits)
    if pa.types.is_map(kind) and pa.types.is_map(data.type):
        data = pa.concat_arrays([data])
        items, misfits = conform(data.items, kind.item_type, f"{path}.value")
        entries = pa.StructArray.from_arrays([data.keys, items], fields=[kind.key_field, kind.item_field])
        found = pa.Array.from_buffers(kind, len(data), data.buffers()[:2], children=[entries])
        return found, _of_rows(data, misfits)
    if promotes(data.type, kind):
        return data.cast(kind), []
    rows = data.is_valid().to_numpy(zero_copy_only=False)
    reason = f"{path and f'{path}: '}{type_name(data.type)} is no {type_name(kind)}, which the column is"
    return pa.nulls(len(data), kind), [Misfit(rows, reason)] if rows.any() else []


def _struct(data: pa.StructArray, kind: pa.StructType, path: str) -> tuple[pa.Array, list[Misfit]]:
    parts: list[pa.Array] = []
    misfits: list[Misfit] = []
    # What is inside of a null is null in what `flatten` returns only.
    known = dict(zip((part.name for part in data.type), data.flatten(), strict=True))
    for part in kind:
        if part.name in known:
            found, wrong = conform(known[part.name], part.type, f"{path}.{part.name}" if path else part.name)
            misfits += wrong
        else:
            found = pa.nulls(len(data), part.type)
        parts.append(found)
    mask = data.is_null() if data.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask), misfits


def _of_rows(data: pa.Array, misfits: list[Misfit]) -> list[Misfit]:
    """Return misfits of the items of lists or maps as those of the rows that the items are in."""
    if not misfits:
        return []
    # Arrow's `list_parent_indices` ends the process over a map.
    parents = np.repeat(np.arange(len(data)), np.diff(np.asarray(data.offsets)))
    found = []
    for items, reason in misfits:
        rows = np.zeros(len(data), np.bool_)
        rows[parents[items]] = True
        found.append(Misfit(rows, reason))
    return found
