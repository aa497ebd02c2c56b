"""Avro is decoded as another implementation has written it; hostile schemas and data are refused in bounded time."""

import io
import json
import math
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.admin.api.avro import DEPTH_MAX, ITEMS_MAX, AvroError, AvroSchema

EVERYTHING: Final[dict[str, Any]] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "nothing", "type": "null"},
        {"name": "flag", "type": "boolean"},
        {"name": "number", "type": "int"},
        {"name": "long", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "float", "type": "float"},
        {"name": "double", "type": "double"},
        {"name": "data", "type": "bytes"},
        {"name": "text", "type": "string"},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "again", "type": "Colour"},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "table", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "next", "type": ["null", "shop.Order"], "default": None},
    ],
}


def written(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema, named_schemas={}), value)
    return stream.getvalue()


def test_all_types_are_decoded() -> None:
    order: dict[str, Any] = {
        "nothing": None,
        "flag": True,
        "number": -(2**31),
        "long": 2**62,
        "float": 1.5,
        "double": math.pi,
        "data": b"\x00\xff",
        "text": "ü",
        "colour": "BLUE",
        "again": "RED",
        "hash": b"ab",
        "list": [1, -1, 300],
        "table": {"a": None, "b": "c"},
        "next": None,
    }
    value = order | {"next": order | {"number": 7}}
    shown = order | {"data": "00ff", "hash": "6162"}
    found = AvroSchema(json.dumps(EVERYTHING)).decode(written(EVERYTHING, value))
    assert found == shown | {"next": shown | {"number": 7}}


@given(
    st.recursive(
        st.sampled_from([("null", st.none()), ("long", st.integers(-(2**63), 2**63 - 1)), ("string", st.text())]),
        lambda inner: inner.flatmap(
            lambda each: st.sampled_from(
                [
                    ({"type": "array", "items": each[0]}, st.lists(each[1], max_size=3)),
                    ({"type": "map", "values": each[0]}, st.dictionaries(st.text(), each[1], max_size=3)),
                ]
            )
        ),
        max_leaves=5,
    ).flatmap(lambda each: st.tuples(st.just(each[0]), each[1]))
)
def test_nested_values_are_decoded(given: tuple[Any, Any]) -> None:
    schema, value = given
    assert AvroSchema(json.dumps(schema)).decode(written(schema, value)) == value


def test_names_are_found_in_their_namespace() -> None:
    place = {"type": "record", "name": "Place", "namespace": "a.b", "fields": [{"name": "city", "type": "string"}]}
    trip = {
        "type": "record",
        "name": "a.b.Trip",
        "fields": [{"name": "from", "type": "Place"}, {"name": "to", "type": ["null", "a.b.Place"]}],
    }
    schema = AvroSchema(json.dumps(trip), [json.dumps(place)])
    assert schema.decode(b"\x02A\x02\x02B") == {"from": {"city": "A"}, "to": {"city": "B"}}
    with pytest.raises(AvroError, match=r"the schema has no type 'a\.b\.Place'"):
        AvroSchema(json.dumps(trip)).decode(b"\x02A\x00")


def test_arrays_in_blocks_with_sizes() -> None:
    schema = AvroSchema('{"type": "array", "items": "int"}')
    assert schema.decode(b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ('"string"', b"\x05a", "-3 bytes at byte 1, of 2"),
        ('"string"', b"\x10a", "8 bytes at byte 1, of 2"),
        ('"int"', b"", "1 bytes at byte 0, of 0"),
        ('"int"', b"\xff" * 11, "a number at byte 10 is too long"),
        ('"int"', b"\x02\x02", "1 bytes after the value"),
        ('["null"]', b"\x02", "index 1 at byte 1, of 1"),
        ('{"type": "array", "items": "null"}', b"\xfe\xff\xff\xff\x0f\x00", f"more than {ITEMS_MAX} items"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}', b"", "nested too deeply"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["R"]}]}', b"\x00" * 10**5, "too deeply"),
        ('{"type": "fixed", "name": "F", "size": -1}', b"", "-1 bytes at byte 0"),
    ],
)
def test_data_that_does_not_fit_is_refused(schema: str, data: bytes, reason: str) -> None:
    with pytest.raises(AvroError, match=reason):
        AvroSchema(schema).decode(data)


@pytest.mark.parametrize(
    "text", ["{", "1", "null", '{"type": 1}', '{"name": "R"}', '{"type": "record", "name": "R"}', "[" * 10**5]
)
def test_an_invalid_schema_is_refused(text: str) -> None:
    with pytest.raises(AvroError, match="invalid schema"):
        AvroSchema(text)


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = "int"
    for _ in range(DEPTH_MAX + 1):
        deep = {"type": "array", "items": deep}
    with pytest.raises(AvroError, match="nested too deeply"):
        AvroSchema(json.dumps(deep))
