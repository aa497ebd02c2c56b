"""Any schema reads what it has written, is its own text, and is compared with any other one without an error."""

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.kafka.schemas.compatibility import Parsed, differences
from anabranch.broker.kafka.schemas.formats.avro import PRIMITIVES, AvroSchema
from anabranch.broker.kafka.schemas.formats.json_schema import JsonSchema
from anabranch.broker.kafka.schemas.model import InvalidSchema, Kind, Resolved, Schema

NAMES = st.sampled_from(["a", "b", "c"])


def avro_types() -> st.SearchStrategy[Any]:
    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        field = st.builds(lambda name, kind: {"name": name, "type": kind}, NAMES, inner)
        return st.one_of(
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(lambda values: {"type": "map", "values": values}, inner),
            st.lists(inner, max_size=3),
            st.builds(
                lambda name, fields: {"type": "record", "name": name, "fields": fields},
                st.sampled_from(["R", "x.S", "y.T"]),
                st.lists(field, max_size=3),
            ),
        )

    return st.recursive(st.sampled_from([*sorted(PRIMITIVES), "R", "x.S"]), grow, max_leaves=8)


def json_schemas() -> st.SearchStrategy[Any]:
    leaf: st.SearchStrategy[Any] = st.one_of(
        st.booleans(),
        st.builds(lambda kind: {"type": kind}, st.sampled_from(["string", "integer", "number", "null"])),
        st.builds(lambda low: {"type": "integer", "minimum": low}, st.integers(0, 3)),
        st.builds(lambda values: {"enum": values}, st.lists(st.integers(0, 3), max_size=3)),
    )

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.builds(
                lambda properties, further: {
                    "type": "object",
                    "properties": properties,
                    "additionalProperties": further,
                },
                st.dictionaries(NAMES, inner, max_size=3),
                inner,
            ),
            st.builds(lambda items: {"type": "array", "items": items}, inner),
            st.builds(lambda items: {"type": "array", "items": items}, st.lists(inner, max_size=3)),
            st.builds(
                lambda criterion, parts: {criterion: parts},
                st.sampled_from(["allOf", "anyOf", "oneOf"]),
                st.lists(inner, min_size=1, max_size=3),
            ),
            st.builds(lambda part: {"not": part}, inner),
        )

    return st.recursive(leaf, grow, max_leaves=8)


KEYWORDS = sorted(
    {
        "type", "enum", "const", "not", "allOf", "anyOf", "oneOf", "$ref", "$id", "$anchor", "required", "properties",
        "additionalProperties", "patternProperties", "minProperties", "dependencies", "dependentRequired", "default",
        "dependentSchemas", "items", "prefixItems", "additionalItems", "minItems", "uniqueItems", "minLength",
        "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "definitions", "if",
    }
)  # fmt: skip


def odd_json_schemas() -> st.SearchStrategy[Any]:
    """Schemas whose keywords have values of any kind."""
    leaf: st.SearchStrategy[Any] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.just(10**400),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from(["", "#", "#/properties/a", "a", "object", "array", "string", "number", "integer", "(", "#a"]),
    )

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(NAMES, inner, max_size=3),
            st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
        )

    return st.dictionaries(st.sampled_from(KEYWORDS), st.recursive(leaf, grow, max_leaves=6), max_size=4)


def odd_avro_types() -> st.SearchStrategy[Any]:
    """Types whose attributes have values of any kind."""
    attributes = ["type", "name", "namespace", "fields", "symbols", "size", "items", "values", "default", "aliases"]
    leaf: st.SearchStrategy[Any] = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.sampled_from(["record", "enum", "fixed", "array", "map", "int", "R"]),
    )

    def grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        field = st.fixed_dictionaries(
            {"name": NAMES, "type": st.one_of(st.sampled_from(["int", "double", "R"]), inner)},
            optional={"default": inner, "aliases": inner, "order": inner},
        )
        return st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(attributes), inner, max_size=4),
            st.builds(lambda fields: {"type": "record", "name": "R", "fields": fields}, st.lists(field, max_size=3)),
        )

    return st.recursive(leaf, grow, max_leaves=10)


def parsed(make: Callable[[Resolved], Parsed], kind: Kind, source: Any) -> Parsed | None:
    try:
        return make(Resolved(Schema(kind, json.dumps(source)), {}))
    except InvalidSchema:
        return None


def check(make: Callable[[Resolved], Parsed], kind: Kind, one: Any, other: Any) -> None:
    schema, another = parsed(make, kind, one), parsed(make, kind, other)
    if schema is None:
        return
    assert differences(schema, schema) == []
    again = parsed(make, kind, json.loads(schema.canonical))
    assert again is not None
    assert again.canonical == schema.canonical
    assert differences(schema, again) == []
    if another is not None:
        differences(schema, another)


@given(avro_types(), avro_types())
def test_avro(one: Any, other: Any) -> None:
    check(AvroSchema, Kind.AVRO, one, other)


@given(json_schemas(), json_schemas())
def test_json_schema(one: Any, other: Any) -> None:
    check(JsonSchema, Kind.JSON, one, other)


@given(odd_json_schemas(), odd_json_schemas())
def test_any_values_of_keywords_are_refused_or_compared(one: Any, other: Any) -> None:
    schema, another = parsed(JsonSchema, Kind.JSON, one), parsed(JsonSchema, Kind.JSON, other)
    if schema is not None and another is not None:
        differences(schema, another)


@given(odd_avro_types(), odd_avro_types())
def test_any_values_of_attributes_are_refused_or_compared(one: Any, other: Any) -> None:
    schema, another = parsed(AvroSchema, Kind.AVRO, one), parsed(AvroSchema, Kind.AVRO, other)
    if schema is not None and another is not None:
        differences(schema, another)
