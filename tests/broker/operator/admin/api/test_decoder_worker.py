"""Avro is shown as JSON: logical types as they are stored, bytes as hex. What does not fit is one line."""

import io
import json
import math
from collections.abc import Iterable
from typing import Any, Final

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.operator.admin.api.decoder_worker import AvroSchema, InvalidError

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


def decoded(schema: Any, data: bytes, references: Iterable[Any] = ()) -> Any:
    text = "".join(AvroSchema(json.dumps(schema), map(json.dumps, references)).decode(data))
    return json.loads(text)


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
    found = decoded(EVERYTHING, written(EVERYTHING, value))
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
    assert decoded(schema, written(schema, value)) == value


def test_names_are_found_in_their_namespace() -> None:
    place = {"type": "record", "name": "Place", "namespace": "a.b", "fields": [{"name": "city", "type": "string"}]}
    trip = {
        "type": "record",
        "name": "a.b.Trip",
        "fields": [{"name": "from", "type": "Place"}, {"name": "to", "type": ["null", "a.b.Place"]}],
    }
    assert decoded(trip, b"\x02A\x02\x02B", [place]) == {"from": {"city": "A"}, "to": {"city": "B"}}
    with pytest.raises(InvalidError, match=r"invalid schema: UnknownType a\.b\.Place"):
        decoded(trip, b"\x02A\x00")


def test_arrays_in_blocks_with_sizes() -> None:
    assert decoded({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]


def test_logical_types_are_shown_as_they_are_stored() -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    union = ["null", {"type": "long", "logicalType": "timestamp-millis"}]
    schema = {"type": "record", "name": "R", "fields": [{"name": "d", "type": decimal}, {"name": "u", "type": union}]}
    assert decoded(schema, b"\x04\x01\x00\x02\x02") == {"d": "0100", "u": 1}


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("string", b"\x05a"),
        ("string", b"\x10a"),
        ("int", b""),
        ("int", b"\xff" * 11),
        ("int", b"\x02\x02"),
        (["null"], b"\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        ({"type": "fixed", "name": "F", "size": -1}, b""),
    ],
)
def test_data_that_does_not_fit_is_refused(schema: Any, data: bytes) -> None:
    with pytest.raises(InvalidError, match="the payload does not fit: "):
        decoded(schema, data)


@pytest.mark.parametrize("text", ["{", "1", "null", '{"type": 1}', '{"name": "R"}', '{"type": "record"}', "[" * 10**5])
def test_an_invalid_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="invalid schema: "):
        AvroSchema(text, ())
