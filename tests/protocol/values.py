"""Random messages for a version, and the conversion of another implementation's objects.

The other implementation is kio: separate dataclasses per version, generated from Apache Kafka's schema files, read and
written by native code. Its fields have the same order as in this project, so both are traversed in parallel.
"""

import dataclasses
import datetime as dt
import importlib
import pkgutil
import re
import uuid
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as TheirCode

import anabranch.protocol.messages
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.wire import OWN_TAGS_FROM, ZERO_UUID, Field, Kind, schema_of

MILLISECOND = dt.timedelta(milliseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
# kio refuses errors that were added after its schema files.
ERROR_CODES = st.sampled_from(sorted({int(code) for code in ErrorCode} & {int(code) for code in TheirCode}))
TEXT = st.text(max_size=8)

PRIMITIVES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOLEAN: st.booleans(),
    Kind.INT8: st.integers(-(2**7), 2**7 - 1),
    Kind.INT16: st.integers(-(2**15), 2**15 - 1),
    Kind.INT32: st.integers(-(2**31), 2**31 - 1),
    Kind.INT64: st.integers(-(2**63), 2**63 - 1),
    Kind.UINT16: st.integers(0, 2**16 - 1),
    Kind.UINT32: st.integers(0, 2**32 - 1),
    Kind.FLOAT64: st.floats(allow_nan=False, allow_infinity=False),
    Kind.UUID: st.binary(min_size=16, max_size=16),
    # Beyond 127 bytes the lengths of compact strings take two bytes.
    Kind.STRING: st.one_of(TEXT, st.just("name" * 40)),
    Kind.BYTES: st.one_of(st.binary(max_size=8), st.just(bytes(200))),
    Kind.RECORDS: st.one_of(st.binary(max_size=8), st.just(bytes(3000))),
}

# The ranges of kio's own types: durations and times lose precision or overflow outside of these.
NARROWED: dict[str, st.SearchStrategy[Any]] = {
    "error_code": ERROR_CODES,
    "timedelta_i32": st.integers(-(2**31), 2**31 - 1),
    "timedelta_i64": st.integers(-(10**12), 10**12),
    "datetime_i64": st.integers(0, 10**12).map(lambda seconds: seconds // 1000 * 1000),
}


def message_types() -> Iterator[type]:
    """Every message of the package and its folders that is not only a structure inside another."""
    for module in pkgutil.walk_packages(anabranch.protocol.messages.__path__, "anabranch.protocol.messages."):
        names = vars(importlib.import_module(module.name))
        yield from (c for c in names.values() if hasattr(c, "__wire_schema__") and schema_of(c).versions)


def message_versions() -> list[tuple[type, int]]:
    """Every message in each of its versions."""
    pairs = []
    for message_type in message_types():
        versions = schema_of(message_type).versions
        assert versions is not None
        pairs += [(message_type, version) for version in range(versions.first, versions.last + 1)]
    return pairs


@cache
def peer_of(message_type: type, version: int) -> type | None:
    """The class kio has for a message in a version, or None."""
    name = message_type.__name__
    side = "request" if name.endswith("Request") else "response" if name.endswith("Response") else "data"
    folder = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name.removesuffix("Request").removesuffix("Response")).lower()
    try:
        module = importlib.import_module(f"kio.schema.{folder}.v{version}.{side}")
    except ModuleNotFoundError:
        return None
    peer: type = getattr(module, name)
    return peer


def fields_of(message_type: type, version: int) -> list[Field]:
    """The fields that Apache Kafka has, too."""
    return [f for f in schema_of(message_type).fields if version in f.versions and f.tag < OWN_TAGS_FROM]


@cache
def messages(message_type: type, version: int) -> st.SearchStrategy[Any]:
    """Messages with a value in every field of the version, within the ranges of kio's types."""
    return _structures(message_type, version, peer_of(message_type, version))


def _structures(message_type: type, version: int, peer: type | None) -> st.SearchStrategy[Any]:
    ours = fields_of(message_type, version)
    theirs: list[Any] = [None] * len(ours) if peer is None else list(dataclasses.fields(peer))
    hints = {} if peer is None else get_type_hints(peer)
    assert len(ours) == len(theirs), (message_type, version)
    values = {
        field.name: _values(field, version, other, None if other is None else hints[other.name])
        for field, other in zip(ours, theirs, strict=True)
    }
    return st.builds(message_type, **values)


def _peer_struct(hint: Any) -> type | None:
    """The dataclass inside ``X | None`` or ``tuple[X, ...]``, if there is one."""
    if isinstance(hint, UnionType) or get_args(hint):
        found = [_peer_struct(inner) for inner in get_args(hint)]
        return next((f for f in found if f is not None), None)
    return hint if dataclasses.is_dataclass(hint) and isinstance(hint, type) else None


def _values(field: Field, version: int, other: Any, hint: Any) -> st.SearchStrategy[Any]:
    values: st.SearchStrategy[Any]
    if isinstance(field.element, Kind):
        narrowed = None if other is None else NARROWED.get(other.metadata.get("kafka_type"))
        values = PRIMITIVES[field.element] if narrowed is None else narrowed
    else:
        values = _structures(field.element, version, _peer_struct(hint))
    if field.is_array:
        values = st.lists(values, max_size=3).map(tuple)
    if version in field.nullable:
        values = st.one_of(st.none(), values)
    return values


def assert_same(ours: Any, theirs: Any, version: int) -> None:
    """Assert that a message of this project and one of kio's are equal, field by field."""
    pairs = zip(fields_of(type(ours), version), dataclasses.fields(theirs), strict=True)
    for field, other in pairs:
        assert field.name.startswith(other.name) or _loose(field.name) == _loose(other.name), (field.name, other.name)
        _assert_value(getattr(ours, field.name), getattr(theirs, other.name), version)


def _loose(name: str) -> str:
    """A field's name without the parts that kio omits: units, which its types express, and suffixes of keywords."""
    return re.sub(r"(_ms|_timestamp_ms|_)$", "", name)


def _assert_value(ours: Any, theirs: Any, version: int) -> None:
    if isinstance(ours, tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            _assert_value(one, other, version)
    elif dataclasses.is_dataclass(ours):
        assert_same(ours, theirs, version)
    else:
        assert ours == plain(theirs, ours)


def plain(theirs: Any, ours: Any) -> Any:
    """A primitive value of kio's, converted to this project's type."""
    match theirs:
        case IntEnum():
            return int(theirs)
        case dt.timedelta():
            return round(theirs / MILLISECOND)
        case dt.datetime():
            return (theirs - EPOCH) // MILLISECOND
        case uuid.UUID():
            return theirs.bytes
        case None if ours == ZERO_UUID:
            return ZERO_UUID
        case _:
            return theirs
