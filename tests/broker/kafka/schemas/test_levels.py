"""The seven levels for the three formats: which changes each allows, after one version and after several.

The changes are those of Confluent's documentation ("Schema Evolution and Compatibility"): fields that are added and
deleted, optional and required ones, and the rules of each format. Defaults make fields of Avro optional, content models
decide for JSON Schema, and fields of Protobuf are optional unless they are `required`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from anabranch.broker.kafka.schemas.model import Kind, Level
from anabranch.broker.kafka.schemas.parser import SchemaParser
from tests.broker.kafka.schemas.test_avro import enum, field, record
from tests.broker.kafka.schemas.test_json_schema import INTEGER, NUMBER, STRING, obj
from tests.broker.kafka.schemas.test_protobuf import HEAD, compile_source
from tests.broker.kafka.schemas.test_registry import Client, OneTopic

NOTHING: Final[frozenset[Level]] = frozenset()
BACKWARD: Final = frozenset({Level.BACKWARD, Level.BACKWARD_TRANSITIVE})
FORWARD: Final = frozenset({Level.FORWARD, Level.FORWARD_TRANSITIVE})
ALL: Final = BACKWARD | FORWARD | {Level.FULL, Level.FULL_TRANSITIVE}
LAST_ONLY: Final = frozenset({Level.BACKWARD, Level.FORWARD, Level.FULL})
"""Levels that look at the last version only."""

Case = tuple[list[Any], Any, frozenset[Level]]
"""Versions that there are, a new one, and the levels besides NONE at which it may be registered."""

A: Final = field("a", "string")
REQUIRED: Final = record(A, field("b", "string"))
OPTIONAL: Final = record(A, field("b", "string", default=""))
AVRO: Final[dict[str, Case]] = {
    "an optional field is added": ([record(A)], OPTIONAL, ALL),
    "a required field is added": ([record(A)], REQUIRED, FORWARD),
    "an optional field is deleted": ([OPTIONAL], record(A), ALL),
    "a required field is deleted": ([REQUIRED], record(A), BACKWARD),
    "a field becomes optional": ([REQUIRED], OPTIONAL, ALL),
    "a field becomes required": ([OPTIONAL], REQUIRED, ALL),
    "a field is added, and then required": ([record(A), OPTIONAL], REQUIRED, LAST_ONLY | FORWARD),
    "a field becomes optional, and is then deleted": ([REQUIRED, OPTIONAL], record(A), LAST_ONLY | BACKWARD),
    "optional fields are added one by one": (
        [record(A), OPTIONAL],
        record(*OPTIONAL["fields"], field("c", "int", default=0)),
        ALL,
    ),
    "a field is deleted, and comes back as another type": (
        [record(A, field("b", "int", default=0)), record(A)],
        OPTIONAL,
        LAST_ONLY,
    ),
    "a field is renamed": ([record(A)], record(field("b", "string")), NOTHING),
    "a field is renamed, with an alias": ([record(A)], record(field("b", "string", aliases=["a"])), BACKWARD),
    "a field has another type": ([record(A)], record(field("a", "int")), NOTHING),
    "a type is promoted": (["int"], "long", BACKWARD),
    "a type is narrowed": (["long"], "int", FORWARD),
    "a type is promoted twice": (["int", "long"], "double", BACKWARD),
    "string and bytes": (["string"], "bytes", ALL),
    "a field becomes a union": ([record(A)], record(field("a", ["null", "string"])), BACKWARD),
    "a union gets a branch": ([["null", "int"]], ["null", "int", "string"], BACKWARD),
    "a union loses a branch": ([["null", "int", "string"]], ["null", "int"], FORWARD),
    "an enum gets a symbol": ([enum("A")], enum("A", "B"), BACKWARD),
    "an enum loses a symbol": ([enum("A", "B")], enum("A"), FORWARD),
    "an enum with a default gets a symbol": ([enum("A", default="A")], enum("A", "B", default="A"), ALL),
    "a record has another name": ([record(A)], record(A, name="Sale"), NOTHING),
}

CLOSED: Final = obj(a=STRING, model=False)
CLOSED_AND_B: Final = obj(a=STRING, b=STRING, model=False)
PARTIAL: Final = obj(model=STRING)
SHORT: Final = {**STRING, "maxLength": 5}
JSON: Final[dict[str, Case]] = {
    "an optional property is added to a closed model": ([CLOSED], CLOSED_AND_B, BACKWARD),
    "a property is deleted from a closed model": ([CLOSED_AND_B], CLOSED, FORWARD),
    "a required property is added to a closed model": ([CLOSED], {**CLOSED_AND_B, "required": ["b"]}, NOTHING),
    "a required property with a default is added to a closed model": (
        [CLOSED],
        obj("b", a=STRING, b={**STRING, "default": ""}, model=False),
        BACKWARD,
    ),
    "a property is added to an open model": ([obj(a=STRING)], obj(a=STRING, b=STRING), FORWARD),
    "a property is deleted from an open model": ([obj(a=STRING, b=STRING)], obj(a=STRING), BACKWARD),
    "a property within a partially open model is added": ([PARTIAL], obj(a=STRING, model=STRING), ALL),
    "a property within a partially open model is deleted": ([obj(a=STRING, model=STRING)], PARTIAL, ALL),
    "a property outside a partially open model is added": ([PARTIAL], obj(a=INTEGER, model=STRING), NOTHING),
    "a required property is added to an open model": ([obj(a=STRING)], obj("b", a=STRING, b=STRING), FORWARD),
    "a required property is deleted from an open model": ([obj("b", a=STRING, b=STRING)], obj(a=STRING), BACKWARD),
    "a required property is deleted from a closed model": ([{**CLOSED_AND_B, "required": ["b"]}], CLOSED, NOTHING),
    "a property is renamed in an open model": ([obj(a=STRING)], obj(b=STRING), NOTHING),
    "a property is renamed in a closed model": ([CLOSED], obj(b=STRING, model=False), NOTHING),
    "a model is closed": ([obj(a=STRING)], CLOSED, FORWARD),
    "a model is opened": ([CLOSED], obj(a=STRING), BACKWARD),
    "a property comes back without a bound": (
        [obj(a=SHORT, model=STRING), PARTIAL],
        obj(a=STRING, model=STRING),
        LAST_ONLY | BACKWARD,
    ),
    "a property is deleted, and comes back as another type": (
        [obj(a=INTEGER, model=False), obj(model=False)],
        CLOSED,
        frozenset({Level.BACKWARD}),
    ),
    "a property becomes required": ([obj(a=STRING)], obj("a", a=STRING), FORWARD),
    "a property becomes optional": ([obj("a", a=STRING)], obj(a=STRING), BACKWARD),
    "a property has another type": ([obj(a=STRING)], obj(a=INTEGER), NOTHING),
    "an annotation": ([obj(a=STRING)], {**obj(a=STRING), "description": "d"}, ALL),
    "integer to number": ([INTEGER], NUMBER, BACKWARD),
    "number to integer": ([NUMBER], INTEGER, FORWARD),
    "a bound is new": ([STRING], SHORT, FORWARD),
    "a bound is wider": ([SHORT], {**STRING, "maxLength": 9}, BACKWARD),
    "an enum gets a value": ([{"enum": ["a"]}], {"enum": ["a", "b"]}, BACKWARD),
    "an enum loses a value": ([{"enum": ["a", "b"]}], {"enum": ["a"]}, FORWARD),
    "a union gets an alternative": (
        [{"oneOf": [STRING, INTEGER]}],
        {"oneOf": [STRING, INTEGER, {"type": "null"}]},
        BACKWARD,
    ),
}

ONE: Final = "message M { int32 a = 1; }"
PROTO2: Final = 'syntax = "proto2"; message M {'
PROTOBUF: Final[dict[str, Case]] = {
    "a field is added": ([ONE], "message M { int32 a = 1; string b = 2; }", ALL),
    "a field is deleted": (["message M { int32 a = 1; string b = 2; }"], ONE, ALL),
    "a field is renamed": ([ONE], "message M { int32 b = 1; }", ALL),
    "a field has another type": ([ONE], "message M { string a = 1; }", NOTHING),
    "a type of the same encoding": ([ONE], "message M { int64 a = 1; }", ALL),
    "a field is deleted, and its number gets another type": (
        [ONE, "message M {}"],
        "message M { string a = 1; }",
        LAST_ONLY,
    ),
    "a required field is added": ([PROTO2 + "}"], PROTO2 + " required int32 a = 1; }", NOTHING),
    "a required field is deleted": ([PROTO2 + " required int32 a = 1; }"], PROTO2 + "}", NOTHING),
    "a message is added": ([ONE], ONE + " message N {}", BACKWARD),
    "a message is deleted": ([ONE + " message N {}"], ONE, FORWARD),
    "an enum gets a constant": (["enum E { A = 0; }"], "enum E { A = 0; B = 1; }", ALL),
    "an enum loses a constant": (["enum E { A = 0; B = 1; }"], "enum E { A = 0; }", ALL),
    "the package is another one": ([ONE], HEAD.replace("shop", "store") + ONE, NOTHING),
    "a field moves to a new oneof": ([ONE], "message M { oneof o { int32 a = 1; } }", ALL),
    "a field moves to a new oneof with others": (
        [ONE],
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        BACKWARD,
    ),
    "two fields move to a oneof": (
        ["message M { int32 a = 1; int32 b = 2; }"],
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        FORWARD,
    ),
    "a oneof is renamed": (["message M { oneof o { int32 a = 1; } }"], "message M { oneof p { int32 a = 1; } }", ALL),
    "two oneofs become one": (
        ["message M { oneof o { int32 a = 1; } oneof p { int32 b = 2; } }"],
        "message M { oneof q { int32 a = 1; int32 b = 2; } }",
        FORWARD,
    ),
    "a oneof is deleted": (["message M { oneof o { int32 a = 1; int32 b = 2; } }"], "message M {}", ALL),
    "a oneof gets a field": (
        ["message M { oneof o { int32 a = 1; } }"],
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        BACKWARD,
    ),
    "a oneof loses a field": (
        ["message M { oneof o { int32 a = 1; int32 b = 2; } }"],
        "message M { oneof o { int32 a = 1; } }",
        FORWARD,
    ),
    "a text becomes repeated": (["message M { string a = 1; }"], "message M { repeated string a = 1; }", ALL),
    "a number becomes repeated": ([ONE], "message M { repeated int32 a = 1; }", NOTHING),
}

TABLE: Final = {
    "an optional field is added": (
        "an optional field is added",
        "an optional property is added to a closed model",
        "a property is added to an open model",
        "a field is added",
    ),
    "an optional field is deleted": (
        "an optional field is deleted",
        "a property is deleted from a closed model",
        "a property is deleted from an open model",
        "a field is deleted",
    ),
    "a required field is added": (
        "a required field is added",
        "a required property is added to a closed model",
        "a required property is added to an open model",
        "a required field is added",
    ),
    "a required field is deleted": (
        "a required field is deleted",
        "a required property is deleted from a closed model",
        "a required property is deleted from an open model",
        "a required field is deleted",
    ),
    "a field is renamed": (
        "a field is renamed",
        "a property is renamed in a closed model",
        "a property is renamed in an open model",
        "a field is renamed",
    ),
    "a field has another type": (
        "a field has another type",
        "a property has another type",
        "a property has another type",
        "a field has another type",
    ),
    "a type becomes wider": (
        "a type is promoted",
        "integer to number",
        "integer to number",
        "a type of the same encoding",
    ),
    "an enum gets a value": (
        "an enum gets a symbol",
        "an enum gets a value",
        "an enum gets a value",
        "an enum gets a constant",
    ),
    "an enum loses a value": (
        "an enum loses a symbol",
        "an enum loses a value",
        "an enum loses a value",
        "an enum loses a constant",
    ),
}
"""The table of the guide: a change, and the cases of Avro, of JSON Schema, closed and open, and of Protobuf."""
WORDS: Final = {ALL: "full", BACKWARD: "backward", FORWARD: "forward", NOTHING: "no"}
GUIDE: Final = Path(__file__).parents[4] / "docs" / "schema-registry.md"


def cases() -> Iterator[Any]:
    for kind, of_kind in ((Kind.AVRO, AVRO), (Kind.JSON, JSON), (Kind.PROTOBUF, PROTOBUF)):
        for name, case in of_kind.items():
            yield pytest.param(kind, *case, id=f"{kind}: {name}")


def body(kind: Kind, source: Any) -> dict[str, Any]:
    text = (source if "syntax" in source else HEAD + source) if kind is Kind.PROTOBUF else json.dumps(source)
    return {"schemaType": kind, "schema": text}


@pytest.mark.parametrize(("kind", "versions", "new", "allowed"), list(cases()))
async def test_a_level_allows_a_change(kind: Kind, versions: list[Any], new: Any, allowed: frozenset[Level]) -> None:
    client = Client(OneTopic(), SchemaParser(compile_source))
    found = set()
    for level in Level:
        subject = f"/subjects/{level}"
        await client.ok("PUT", f"/config/{level}", {"compatibility": Level.NONE})
        for each in versions:
            await client.ok("POST", f"{subject}/versions", body(kind, each))
        await client.ok("PUT", f"/config/{level}", {"compatibility": level})
        told = await client.ok("POST", f"/compatibility{subject}/versions", body(kind, new))
        status, _ = await client.send("POST", f"{subject}/versions", body(kind, new))
        assert status == (200 if told["is_compatible"] else 409), level
        if told["is_compatible"]:
            found.add(level)
    assert found == allowed | {Level.NONE}


def test_the_guide_says_what_the_levels_allow() -> None:
    lines = GUIDE.read_text().splitlines()
    for change, names in TABLE.items():
        cells = [WORDS[of_kind[name][2]] for of_kind, name in zip((AVRO, JSON, JSON, PROTOBUF), names, strict=True)]
        assert f"| {change} | {' | '.join(cells)} |" in lines
