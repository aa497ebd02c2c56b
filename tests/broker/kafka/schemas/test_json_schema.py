"""JSON Schema: which changes are compatible, by the content models of Confluent's documentation; what is invalid."""

import json
import sys
from typing import Any, Final
from urllib.parse import unquote

import pytest

from anabranch.broker.kafka.schemas.formats import json_schema
from anabranch.broker.kafka.schemas.formats.json_schema import JsonSchema
from anabranch.broker.kafka.schemas.model import InvalidSchema, Kind, Resolved, Schema, Steps, TooComplex


def parsed(source: Any, **references: Any) -> JsonSchema:
    texts = {name: json.dumps(each) for name, each in references.items()}
    return JsonSchema(Resolved(Schema(Kind.JSON, json.dumps(source)), texts))


def kinds(writer: Any, reader: Any) -> list[str]:
    return [each.kind for each in json_schema.differences(parsed(writer), parsed(reader), Steps())]


def obj(*required: str, model: Any = None, patterns: Any = None, **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        found["required"] = list(required)
    if model is not None:
        found["additionalProperties"] = model
    if patterns is not None:
        found["patternProperties"] = patterns
    return found


@pytest.mark.parametrize(
    "source",
    [
        {"exclusiveMaximum": "1"},
        {"maximum": 10**400},
        {"dependencies": {"a": [{}]}},
        {"dependentRequired": {"a": 1}},
        {"$id": "x" * 3000},
        {"$id": "x" * 1000 + "/", "properties": {"a": {"$id": "y" * 1000 + "/", "not": {"$id": "z" * 1000}}}},
    ],
)
def test_values_that_make_no_sense_are_invalid(source: Any) -> None:
    with pytest.raises(InvalidSchema):
        parsed(source)


def test_a_chain_of_references_is_followed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []

    def count(fragment: str) -> str:
        followed.append(fragment)
        return unquote(fragment)

    monkeypatch.setattr(json_schema, "unquote", count)
    length = 200
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    parsed({"$defs": {**chain, f"d{length}": {"type": "integer"}}})
    assert len(followed) == length


def test_a_pattern_needs_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    patterns = {"type": "object", "patternProperties": {"^a": {}}}
    with pytest.raises(InvalidSchema, match=r"pip install 'anabranch\[security\]'"):
        kinds(patterns, {"type": "object", "properties": {"b": {"type": "string"}}})
    assert kinds(patterns, patterns) == [], "no name has to be matched"


def test_a_comparison_counts_patterns_and_values() -> None:
    names = {f"a{n}": {"type": "string"} for n in range(200)}
    patterns: dict[str, Any] = {f"b{n}": {} for n in range(200)}
    with pytest.raises(TooComplex):
        kinds({"type": "object", "patternProperties": patterns}, {"type": "object", "properties": names})
    values = {"enum": list(range(2000))}
    references = {f"p{n}": {"$ref": "#/$defs/e"} for n in range(200)}
    listed = {"$defs": {"e": values}, "type": "object", "properties": references}
    with pytest.raises(TooComplex):
        kinds(listed, listed)


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
SHORT: Final = {**STRING, "maxLength": 5}
VAGUE: Final = {**obj(a=STRING), "unevaluatedProperties": False, "allOf": [obj(b=STRING)]}
ACCEPTED: Final = {
    "the same": (obj(a=STRING), obj(a=STRING)),
    "the values of an enum are of the type": ({**STRING, "enum": ["a", "b"]}, STRING),
    "whole numbers and others": ({"enum": [1, 2.5]}, NUMBER),
    "one of all schemas is enough": ({"allOf": [NUMBER, SHORT]}, STRING),
    "all schemas to any of fewer": ({"allOf": [NUMBER, STRING]}, {"anyOf": [STRING]}),
    "all schemas to one of one": ({"allOf": [NUMBER, STRING]}, {"oneOf": [STRING]}),
    "a property is added where unevaluated ones are refused": (
        {**obj(a=STRING), "unevaluatedProperties": False},
        {**obj(a=STRING, b=INTEGER), "unevaluatedProperties": False},
    ),
    "the same, where others say what is unevaluated": (VAGUE, VAGUE),
    "an item is added that unevaluated ones are": (
        {"prefixItems": [STRING], "unevaluatedItems": NUMBER},
        {"prefixItems": [STRING, NUMBER], "unevaluatedItems": NUMBER},
    ),
    "annotations": (obj(a=STRING), {**obj(a={**STRING, "description": "d", "title": "t"}), "$id": "x"}),
    "a property is removed from an open model": (obj(a=STRING, b=STRING), obj(a=STRING)),
    "an optional property is added to a closed model": (
        obj(a=STRING, model=False),
        obj(a=STRING, b=STRING, model=False),
    ),
    "a required property with a default is added to a closed model": (
        obj(a=STRING, model=False),
        obj("b", a=STRING, b={**STRING, "default": "x"}, model=False),
    ),
    "a property that accepts everything is added to an open model": (obj(a=STRING), obj(a=STRING, b={})),
    "a property within a partially open model is added": (obj(model=STRING), obj(a=STRING, model=STRING)),
    "a property within a partially open model is removed": (obj(a=STRING, model=STRING), obj(model=STRING)),
    "a closed model is opened": (obj(a=STRING, model=False), obj(a=STRING)),
    "a partially open model is opened": (obj(model=STRING), obj()),
    "a property is required no more": (obj("a", a=STRING), obj(a=STRING)),
    "a property with a default is required now": (
        obj(a={**STRING, "default": "x"}),
        obj("a", a={**STRING, "default": "x"}),
    ),
    "integer to number": (INTEGER, NUMBER),
    "a type to a union with it": (STRING, {"oneOf": [STRING, INTEGER]}),
    "a type to a list of types": (STRING, {"type": ["string", "null"]}),
    "a union gets another part": ({"oneOf": [STRING]}, {"oneOf": [STRING, INTEGER]}),
    "oneOf to anyOf": ({"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
    "allOf loses a part": ({"allOf": [STRING, {"minLength": 1}]}, {"allOf": [STRING]}),
    "an enum gets a value": ({"enum": ["a"]}, {"enum": ["a", "b"]}),
    "bounds are wider": ({**STRING, "maxLength": 5, "minLength": 2}, {**STRING, "maxLength": 9, "minLength": 1}),
    "bounds are removed": ({**NUMBER, "maximum": 5, "exclusiveMinimum": 1, "multipleOf": 4}, NUMBER),
    "multipleOf becomes a divisor": ({**INTEGER, "multipleOf": 4}, {**INTEGER, "multipleOf": 2}),
    "a pattern is removed": ({**STRING, "pattern": "a"}, STRING),
    "items must be unique no more": ({"type": "array", "uniqueItems": True}, {"type": "array"}),
    "an item is added to a closed array": (
        {"type": "array", "items": [STRING], "additionalItems": False},
        {"type": "array", "items": [STRING, INTEGER], "additionalItems": False},
    ),
    "an item is removed from an open array": (
        {"type": "array", "items": [STRING, INTEGER]},
        {"type": "array", "items": [STRING]},
    ),
    "prefixItems are items by position": (
        {"type": "array", "items": [STRING]},
        {"type": "array", "prefixItems": [STRING]},
    ),
    "a dependency is removed": ({**obj(a=STRING), "dependencies": {"a": ["b"]}}, obj(a=STRING)),
    "not of less": ({"not": {"type": "number"}}, {"not": {"type": "integer"}}),
    "a schema that excludes itself": ({"not": {"$ref": "#"}}, {"not": {"$ref": "#"}}),
    "a property that excludes its object": (obj(a={"not": {"$ref": "#"}}), obj(a={"not": {"$ref": "#"}})),
    "everything": (STRING, True),
    "nothing is written": (False, STRING),
    "a schema that contains itself": (
        {"$ref": "#/definitions/n", "definitions": {"n": obj(next={"$ref": "#/definitions/n"})}},
        {"$ref": "#/$defs/n", "$defs": {"n": obj(next={"$ref": "#/$defs/n"})}},
    ),
}
REFUSED: Final = {
    "a property is added to an open model": (
        obj(a=STRING),
        obj(a=STRING, b=STRING),
        "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
    ),
    "a property is removed from a closed model": (
        obj(a=STRING, b=STRING, model=False),
        obj(a=STRING, model=False),
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    ),
    "a required property is added to a closed model": (
        obj(model=False),
        obj("a", a=STRING, model=False),
        "REQUIRED_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
    ),
    "a property outside a partially open model is added": (
        obj(model=STRING),
        obj(a=INTEGER, model=STRING),
        "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    "a property outside a partially open model is removed": (
        obj(a=INTEGER, patterns={"^a": STRING}, model=False),
        obj(patterns={"^a": STRING}, model=False),
        "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    "an open model is closed": (obj(a=STRING), obj(a=STRING, model=False), "ADDITIONAL_PROPERTIES_REMOVED"),
    "an open model is narrowed": (obj(a=STRING), obj(a=STRING, model=STRING), "ADDITIONAL_PROPERTIES_NARROWED"),
    "a property is required now": (obj(a=STRING), obj("a", a=STRING), "REQUIRED_ATTRIBUTE_ADDED"),
    "a property has another type": (obj(a=STRING), obj(a=INTEGER), "TYPE_CHANGED"),
    "number to integer": (NUMBER, INTEGER, "TYPE_NARROWED"),
    "a union loses a part": ({"oneOf": [STRING, INTEGER]}, {"oneOf": [STRING]}, "SUM_TYPE_NARROWED"),
    "allOf gets a part": (
        {"allOf": [STRING, INTEGER]},
        {"allOf": [STRING, INTEGER, {"type": "null"}]},
        "PRODUCT_TYPE_EXTENDED",
    ),
    "anyOf to oneOf": ({"anyOf": [STRING, INTEGER]}, {"oneOf": [STRING, INTEGER]}, "COMBINED_TYPE_CHANGED"),
    "a part of a union has another type": (
        {"oneOf": [STRING, INTEGER]},
        {"oneOf": [STRING, {"type": "null"}]},
        "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
    ),
    "an enum loses a value": ({"enum": ["a", "b"]}, {"enum": ["a"]}, "ENUM_ARRAY_NARROWED"),
    "an enum has other values": ({"enum": ["a", "b"]}, {"enum": ["a", "c"]}, "ENUM_ARRAY_CHANGED"),
    "maxLength is new": (STRING, {**STRING, "maxLength": 5}, "MAX_LENGTH_ADDED"),
    "maxLength is less": ({**STRING, "maxLength": 9}, {**STRING, "maxLength": 5}, "MAX_LENGTH_DECREASED"),
    "minimum is more": ({**NUMBER, "minimum": 1}, {**NUMBER, "minimum": 2}, "MINIMUM_INCREASED"),
    "exclusiveMaximum is new": (NUMBER, {**NUMBER, "exclusiveMaximum": 2}, "EXCLUSIVE_MAXIMUM_ADDED"),
    "exclusiveMaximum of draft 4": (
        NUMBER,
        {**NUMBER, "maximum": 2, "exclusiveMaximum": True},
        "EXCLUSIVE_MAXIMUM_ADDED",
    ),
    "a value of an enum is not of the type": ({"enum": ["a", 1]}, STRING, "TYPE_CHANGED"),
    "a fraction is no integer": ({"enum": [2.5]}, INTEGER, "TYPE_CHANGED"),
    "true is no number": ({"enum": [True]}, NUMBER, "TYPE_CHANGED"),
    "an enum to a type with bounds": ({"enum": ["a"]}, SHORT, "TYPE_CHANGED"),
    "no schema at all to one": ({"allOf": []}, STRING, "TYPE_CHANGED"),
    "all schemas to any of others": (
        {"allOf": [NUMBER, STRING]},
        {"anyOf": [{"type": "null"}]},
        "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
    ),
    "unevaluated properties are refused now": (
        obj(a=STRING),
        {**obj(a=STRING), "unevaluatedProperties": False},
        "ADDITIONAL_PROPERTIES_REMOVED",
    ),
    "a property is removed where unevaluated ones are refused": (
        {**obj(a=STRING, b=STRING), "unevaluatedProperties": False},
        {**obj(a=STRING), "unevaluatedProperties": False},
        "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    ),
    "a property is added that another schema may have": (
        VAGUE,
        {**VAGUE, **obj(a=STRING, b=INTEGER)},
        "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
    ),
    "an item is removed that unevaluated ones are not": (
        {"prefixItems": [STRING, NUMBER], "unevaluatedItems": STRING},
        {"prefixItems": [STRING], "unevaluatedItems": STRING},
        "ITEM_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    ),
    "minContains is more": (
        {"contains": NUMBER, "minContains": 1},
        {"contains": NUMBER, "minContains": 2},
        "MIN_CONTAINS_INCREASED",
    ),
    "a pattern is another one": ({**STRING, "pattern": "a"}, {**STRING, "pattern": "b"}, "PATTERN_CHANGED"),
    "multipleOf is new": (INTEGER, {**INTEGER, "multipleOf": 2}, "MULTIPLE_OF_ADDED"),
    "multipleOf grows": ({**INTEGER, "multipleOf": 2}, {**INTEGER, "multipleOf": 4}, "MULTIPLE_OF_EXPANDED"),
    "items must be unique now": ({"type": "array"}, {"type": "array", "uniqueItems": True}, "UNIQUE_ITEMS_ADDED"),
    "items have another type": (
        {"type": "array", "items": STRING},
        {"type": "array", "items": INTEGER},
        "TYPE_CHANGED",
    ),
    "an item is added to an open array": (
        {"type": "array", "items": [STRING]},
        {"type": "array", "items": [STRING, INTEGER]},
        "ITEM_ADDED_TO_OPEN_CONTENT_MODEL",
    ),
    "a dependency is added": (obj(a=STRING), {**obj(a=STRING), "dependencies": {"a": ["b"]}}, "DEPENDENCY_ARRAY_ADDED"),
    "not of more": ({"not": {"type": "integer"}}, {"not": {"type": "number"}}, "NOT_TYPE_EXTENDED"),
    "string to object": (STRING, obj(), "TYPE_CHANGED"),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_is_accepted(case: str) -> None:
    assert kinds(*ACCEPTED[case]) == []


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not(case: str) -> None:
    writer, reader, kind = REFUSED[case]
    assert kind in kinds(writer, reader)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ([], "must be an object"),
        ({"type": "text"}, "no type"),
        ({"type": []}, "no type"),
        ({"properties": []}, "properties must be an object"),
        ({"properties": {"a": 1}}, "no schema"),
        ({"allOf": {}}, "allOf must be a list"),
        ({"maxLength": -1}, "maxLength must be a count"),
        ({"maximum": "1"}, "maximum must be a number"),
        ({"multipleOf": 0}, "multipleOf must be greater than 0"),
        ({"required": "a"}, "required must be a list"),
        ({"$ref": 1}, "must be a string"),
    ],
)
def test_what_is_invalid_is_one_line(source: Any, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason) as caught:
        parsed(source)
    assert "\n" not in str(caught.value)


def test_references_lead_to_other_schemas() -> None:
    writer = parsed(obj(a={"$ref": "address.json"}), **{"address.json": obj(city=STRING)})
    reader = parsed(obj(a={"$ref": "address.json#/definitions/b"}), **{"address.json": {"definitions": {"b": STRING}}})
    found = json_schema.differences(writer, reader, Steps())
    assert [(each.kind, each.path) for each in found] == [("TYPE_CHANGED", "#/properties/a")]


@pytest.mark.parametrize("place", ["#/definitions/x", "other.json", "#x", "#/type"])
def test_a_reference_leads_somewhere(place: str) -> None:
    with pytest.raises(InvalidSchema, match=rf"\$ref to (nothing|an unknown schema): {place}"):
        parsed({"type": "object", "properties": {"a": {"$ref": place}}})


def test_a_comparison_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Steps, "MAX", 1000)
    many = {"anyOf": [{"anyOf": [{"type": "string", "maxLength": n + m} for n in range(10)]} for m in range(10)]}
    with pytest.raises(TooComplex):
        kinds(many, {"anyOf": [{"anyOf": [{"type": "integer"}] * 10}] * 10})


def test_texts_differ_in_order_until_they_are_normal() -> None:
    one, other = parsed({"type": "string", "minLength": 1}), parsed({"minLength": 1, "type": "string"})
    assert one.canonical == '{"type":"string","minLength":1}' != other.canonical
    assert one.normal == other.normal
