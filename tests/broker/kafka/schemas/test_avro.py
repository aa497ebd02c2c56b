"""Avro: text as Java writes it, what is invalid, and which changes are compatible.

The cases of compatibility are those of Confluent's documentation ("Schema Evolution and Compatibility") and of the
specification's rules of resolution.
"""

import json
from typing import Any, Final

import pytest

from anabranch.broker.kafka.schemas.formats import avro
from anabranch.broker.kafka.schemas.formats.avro import AvroSchema
from anabranch.broker.kafka.schemas.model import InvalidSchema, Kind, Resolved, Schema, Steps, TooComplex


def parsed(source: Any, **references: Any) -> AvroSchema:
    text = source if isinstance(source, str) and source[:1] in {'"', "{", "["} else json.dumps(source)
    texts = {name: json.dumps(each) for name, each in references.items()}
    return AvroSchema(Resolved(Schema(Kind.AVRO, text), texts))


def kinds(writer: Any, reader: Any) -> list[str]:
    return [each.kind for each in avro.differences(parsed(writer), parsed(reader), Steps())]


def record(*fields: Any, name: str = "Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "Colour", "symbols": list(symbols), **more}


def test_a_schema_that_takes_too_many_steps_is_refused() -> None:
    branches = [record(field("f", ["null", "A", "B"]), name=name) for name in ("A", "B")]
    default: Any = 1
    for _ in range(40):
        default = {"f": default}
    holder = record(field("a", branches[0]), name="H")  # A refers to B before it is defined
    with pytest.raises(InvalidSchema):
        parsed(holder)
    first = record(field("f", ["null", "A", record(field("f", ["null", "A", "B"]), name="B")]), name="A")
    with pytest.raises(InvalidSchema, match="too many steps"):
        parsed(record(field("x", first), field("y", ["A", "B"], default=default), name="H"))


@pytest.mark.parametrize(
    "source",
    [
        record(field("a", "int", aliases=5)),
        record(field("a", "int", aliases=[[]])),
        record(field("a", "double", default=[])),
        record(field("a", enum("A"), default=[])),
    ],
)
def test_values_of_another_type_are_invalid(source: Any) -> None:
    with pytest.raises(InvalidSchema):
        parsed(source)


def test_a_record_may_be_named_like_a_kind_of_type() -> None:
    assert parsed(["null", record(name="union")]).type.kind == "union"


def test_a_comparison_counts_fields() -> None:
    fields = [field(f"f{n}", "int", default=1) for n in range(3000)]
    with pytest.raises(TooComplex):  # the pair is compared again in each field, since it is found to differ
        kinds(
            record(field("w", record(field("z", "int"), name="W")), *(field(f"g{n}", "W") for n in range(300))),
            record(
                field("w", [record(field("z", "string"), *fields, name="W")]),
                *(field(f"g{n}", ["W"]) for n in range(300)),
            ),
        )


BASE: Final = record(field("f1", "string"))
READABLE: Final = {
    "the same": (BASE, BASE),
    "a field with a default is added": (BASE, record(field("f1", "string"), field("f2", "string", default="x"))),
    "a field is removed": (record(field("f1", "string"), field("f2", "string")), BASE),
    "a field becomes optional": (BASE, record(field("f1", ["null", "string"]))),
    "a union gets another branch": (record(field("f", ["null", "int"])), record(field("f", ["null", "int", "string"]))),
    "a field is renamed, with an alias": (BASE, record(field("g", "string", aliases=["f1"]))),
    "a record is renamed, with an alias": (BASE, record(field("f1", "string"), name="Sale", aliases=["Order"])),
    "a record moves to another namespace": (BASE, {**BASE, "namespace": "shop"}),
    "int to long": ("int", "long"),
    "int to float": ("int", "float"),
    "long to double": ("long", "double"),
    "float to double": ("float", "double"),
    "string to bytes": ("string", "bytes"),
    "bytes to string": ("bytes", "string"),
    "one branch to what all branches are": (["int", "long"], "long"),
    "int within a union of long": ("int", ["null", "long"]),
    "items are promoted": ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}),
    "values are promoted": ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}),
    "an enum gets a symbol": (enum("A"), enum("A", "B")),
    "an enum with a default loses a symbol": (enum("A", "B"), enum("A", default="A")),
    "a field of an enum with a default is added": (
        BASE,
        record(field("f1", "string"), field("c", enum("A", default="A"))),
    ),
    "a record that contains itself": (
        record(field("next", ["null", "Order"])),
        record(field("next", ["null", "Order"]), field("n", "int", default=0)),
    ),
}
UNREADABLE: Final = {
    "a field without a default is added": (
        BASE,
        record(field("f1", "string"), field("f2", "string")),
        "READER_FIELD_MISSING_DEFAULT_VALUE",
    ),
    "a field is renamed": (BASE, record(field("g", "string")), "READER_FIELD_MISSING_DEFAULT_VALUE"),
    "a field has another type": (BASE, record(field("f1", "int")), "TYPE_MISMATCH"),
    "a union loses a branch": (["null", "int", "string"], ["null", "int"], "MISSING_UNION_BRANCH"),
    "an optional field becomes required": (
        record(field("f", ["null", "int"])),
        record(field("f", "int")),
        "TYPE_MISMATCH",
    ),
    "long to int": ("long", "int", "TYPE_MISMATCH"),
    "double to float": ("double", "float", "TYPE_MISMATCH"),
    "int to string": ("int", "string", "TYPE_MISMATCH"),
    "a record has another name": (BASE, record(field("f1", "string"), name="Sale"), "NAME_MISMATCH"),
    "an enum loses a symbol": (enum("A", "B"), enum("A"), "MISSING_ENUM_SYMBOLS"),
    "a fixed has another size": (
        {"type": "fixed", "name": "H", "size": 4},
        {"type": "fixed", "name": "H", "size": 8},
        "FIXED_SIZE_MISMATCH",
    ),
    "items have another type": (
        {"type": "array", "items": "string"},
        {"type": "array", "items": "int"},
        "TYPE_MISMATCH",
    ),
    "a record in a union is changed": (
        ["null", BASE],
        ["null", record(field("f1", "string"), field("f2", "int"))],
        "MISSING_UNION_BRANCH",
    ),
    "a record that contains itself needs more": (
        record(field("next", ["null", "Order"])),
        record(field("next", ["null", "Order"]), field("n", "int")),
        "READER_FIELD_MISSING_DEFAULT_VALUE",
    ),
}


@pytest.mark.parametrize("case", READABLE)
def test_what_can_be_read(case: str) -> None:
    assert kinds(*READABLE[case]) == []


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read(case: str) -> None:
    writer, reader, kind = UNREADABLE[case]
    assert kind in kinds(writer, reader)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"type": "string"}, '"string"'),
        (
            {"fields": [{"type": "string", "name": "f"}], "name": "a.b.R", "type": "record"},
            '{"type":"record","name":"R","namespace":"a.b","fields":[{"name":"f","type":"string"}]}',
        ),
        (
            {
                "type": "record",
                "name": "R",
                "namespace": "a",
                "doc": "d",
                "x": 1,
                "aliases": ["Q"],
                "fields": [
                    {
                        "name": "f",
                        "type": {"type": "enum", "name": "E", "symbols": ["A"]},
                        "order": "ascending",
                        "default": "A",
                    },
                    {"name": "g", "type": "a.E", "order": "ignore"},
                ],
            },
            (
                '{"type":"record","name":"R","namespace":"a","doc":"d","fields":['
                '{"name":"f","type":{"type":"enum","name":"E","symbols":["A"]},"default":"A"},'
                '{"name":"g","type":"E","order":"ignore"}],"x":1,"aliases":["Q"]}'
            ),
        ),
        ({"type": "int", "logicalType": "date"}, '{"type":"int","logicalType":"date"}'),
        (["null", {"type": "array", "items": "long"}], '["null",{"type":"array","items":"long"}]'),
        ({"type": {"type": "map", "values": "bytes"}}, '{"type":"map","values":"bytes"}'),
    ],
)
def test_the_text_is_javas(source: Any, text: str) -> None:
    schema = parsed(source)
    assert schema.canonical == text
    assert parsed(text).canonical == text, "it is its own text"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{", "not JSON"),
        ('{"type":"int","x":NaN}', "not JSON"),
        ('{"type":"int","x":1e999}', "not JSON"),
        ("nonsense", "nonsense"),
        ({"type": "record", "fields": []}, "without a name"),
        ({"type": "record", "name": "R"}, "no fields"),
        (record(field("a", "string"), field("a", "int")), "duplicate field a"),
        (record(field("1a", "string")), "illegal name: 1a"),
        (record(field("a", "int", default="x")), "invalid default for field a"),
        (record(field("a", "int", default=2**31)), "invalid default for field a"),
        (record({"name": "a"}), "needs a name and a type"),
        (["int", "int"], "duplicate in union: int"),
        (["int", ["string"]], "a union may not contain a union"),
        (enum("A", "A"), "duplicate symbol"),
        (enum("A", default="B"), "default of enum"),
        ({"type": "fixed", "name": "F", "size": -1}, "needs a size"),
        ({"type": "array"}, "array without items"),
        (record(field("a", record(field("b", "int")))), "can't redefine: Order"),
        ({"x": 1}, "no type"),
        (1, "no type"),
    ],
)
def test_what_is_invalid_is_one_line(source: Any, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason) as caught:
        parsed(source)
    assert "\n" not in str(caught.value)


def test_a_schema_uses_the_types_that_it_refers_to() -> None:
    schema = parsed(record(field("customer", "shop.Customer")), customer=record(name="Customer", namespace="shop"))
    assert schema.canonical == '{"type":"record","name":"Order","fields":[{"name":"customer","type":"shop.Customer"}]}'


def test_deep_nesting_is_refused() -> None:
    source: Any = "int"
    for _ in range(300):
        source = {"type": "array", "items": source}
    with pytest.raises(InvalidSchema, match="nested deeper"):
        parsed(source)


def test_the_normal_form_orders_properties() -> None:
    one, other = ({"type": "int", **properties} for properties in ({"b": 1, "a": 2}, {"a": 2, "b": 1}))
    assert parsed(one).canonical != parsed(other).canonical
    assert parsed(one).normal == parsed(other).normal == '{"type":"int","a":2,"b":1}'
