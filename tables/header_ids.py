"""Ids of schemas from the headers of records, put before their values: then each value has its own (see `framing`)."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.tables.framing import GLOBAL, GUID_BYTES, LONG_BYTES, NO_ID, Framing, RecordPart


def with_header_ids(values: pa.Array, headers: pa.Array, framing: Framing, part: RecordPart) -> pa.Array:
    """Return values with the id of their schema, which is in the records' headers, before them, for `Framing.unframe`.

    `headers` is a column of lists of `key` and `value`. Of several headers of a name the last counts.
    """
    if framing is Framing.CONFLUENT_HEADER:
        found = _last(headers, f"__{part}_schema_id")
        before = pc.fill_null(pc.if_else(_begins(found, b"\0", 5), found, _guids(found)), b"")
    else:
        content, broken_content = _longs(_last(headers, f"apicurio.{part}.contentId"), b"\0")
        unique, broken_unique = _longs(_last(headers, f"apicurio.{part}.globalId"), GLOBAL)
        before = pc.coalesce(unique, content, broken_unique, broken_content, pa.scalar(NO_ID))
    return pc.binary_join_element_wise(before, values, b"")


def _last(headers: pa.Array, name: str) -> pa.Array:
    """Return the value of each record's last header of a name; null without one."""
    headers = pa.concat_arrays([headers])
    keys, values = headers.values.flatten()
    at = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(keys, name), False)))
    offsets = np.asarray(headers.offsets)
    at = at[(at >= offsets[0]) & (at < offsets[-1])]
    row = np.searchsorted(offsets, at, "right") - 1
    place = np.full(len(headers), -1, np.int64)
    place[row] = at
    return values.take(pa.array(place, mask=place < 0))


def _begins(values: pa.Array, first: bytes, size: int) -> pa.Array:
    return pc.and_(pc.starts_with(values, first), pc.greater_equal(pc.binary_length(values), size))


def _guids(values: pa.Array) -> pa.Array:
    """Return those that are GUIDs, and others with a mark before them."""
    return pc.if_else(_begins(values, b"\1", GUID_BYTES), values, _marked(values, NO_ID))


def _longs(values: pa.Array, mark: bytes) -> tuple[pa.Array, pa.Array]:
    """Return those of eight bytes, and the others, with marks before them."""
    is_long = pc.equal(pc.binary_length(values), LONG_BYTES)
    null = pa.scalar(None, values.type)
    return pc.if_else(is_long, _marked(values, mark), null), pc.if_else(is_long, null, _marked(values, NO_ID))


def _marked(values: pa.Array, mark: bytes) -> Any:
    return pc.binary_join_element_wise(pa.scalar(mark, values.type), values, b"")
