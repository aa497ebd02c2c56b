"""Schemas of tables: ids that stay, columns that are added and grow, and values that do not fit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from pyiceberg.table import StaticTable

from anabranch.protocol.records import Record, build_batch
from anabranch.tables.avro import avro_type, parse_avro
from anabranch.tables.conform import conform
from anabranch.tables.errors import SchemaError
from anabranch.tables.field_limit import FIELDS_MAX
from anabranch.tables.iceberg import write_snapshot
from anabranch.tables.iceberg_schema import iceberg_schema
from anabranch.tables.json_schema import json_schema_type
from anabranch.tables.parts import answer
from anabranch.tables.protobuf import find_message, protobuf_type
from anabranch.tables.requests import Asked, Question, Share
from anabranch.tables.schema import (
    LEVELS_MAX,
    decode_schema,
    encode_schema,
    evolve,
    field_ids,
    id_of,
)
from anabranch.tables.snapshots import SnapshotRequest
from anabranch.tables.types import TIMESTAMP, list_of, map_of
from tests.tables.shares import RAW, file_schema, made, question, share_of

INNER = pa.struct([pa.field("x", pa.float32()), pa.field("tags", map_of(pa.string(), pa.int32()))])
FIRST = pa.struct([
    pa.field("n", pa.int32()), pa.field("d", pa.decimal128(5, 2)), pa.field("in", INNER), pa.field("l", list_of(INNER)),
    pa.field("gone", pa.string()), pa.field("other", pa.int64()),
])  # fmt: skip
WIDER = pa.struct(
    [pa.field("x", pa.float64()), pa.field("tags", map_of(pa.string(), pa.int64())), pa.field("new", pa.string())]
)
SECOND = pa.struct([
    pa.field("n", pa.int64()), pa.field("d", pa.decimal128(9, 2)), pa.field("in", WIDER), pa.field("l", list_of(WIDER)),
    pa.field("other", pa.string()), pa.field("added", TIMESTAMP),
])  # fmt: skip


def ids(schema: pa.Schema) -> dict[str, int]:
    """Return the ids by the paths of fields."""
    found: dict[str, int] = {}

    def add(parts: Any, path: str) -> None:
        for part in parts:
            found[f"{path}{part.name}"] = id_of(part)
            kind = part.type
            if pa.types.is_struct(kind):
                add(kind, f"{path}{part.name}.")
            elif pa.types.is_map(kind):
                add([kind.key_field, kind.item_field], f"{path}{part.name}.")
            elif pa.types.is_list(kind):
                add([kind.value_field], f"{path}{part.name}.")

    add(schema, "")
    return found


def test_ids_are_given_once_and_stay() -> None:
    first = evolve(None, FIRST, None).schema
    second = evolve(first, SECOND, None)
    before, after = ids(first), ids(second.schema)
    assert sorted(before.values()) == list(range(1, len(before) + 1))
    assert {name: after[name] for name in before} == before
    assert sorted(after.values()) == list(range(1, len(after) + 1))
    assert list(field_ids(decode_schema(encode_schema(second.schema)))) == list(field_ids(second.schema))


def test_columns_are_added_and_grow_by_the_rules_of_iceberg() -> None:
    found = evolve(evolve(None, FIRST, None).schema, SECOND, None)
    assert found.added == ["in.new", "l.element.new", "added"]
    assert found.promoted == [
        "n: int to bigint", "d: decimal(5,2) to decimal(9,2)", "in.x: float to double", "in.tags.value: int to bigint",
        "l.element.x: float to double", "l.element.tags.value: int to bigint",
    ]  # fmt: skip
    assert found.unfit == ["other: string is no bigint"]
    assert found.schema.names == ["n", "d", "in", "l", "gone", "other", "_kafka", "added"]
    again = evolve(found.schema, SECOND, None)
    assert (again.schema, again.added, again.promoted) == (found.schema, [], [])
    back = evolve(found.schema, FIRST, None)
    assert (back.schema, back.added, back.promoted, back.unfit) == (found.schema, [], [], [])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.struct([("_kafka", pa.string())]), "a field _kafka, which is the table's own"),
        (pa.struct([("a", pa.string()), ("A", pa.string())]), "fields a and A, which engines that ignore case"),
        (pa.struct([("x", pa.struct([("a", pa.string()), ("A", pa.string())]))]), r"fields x\.a and x\.A"),
        (pa.struct([("x.a", pa.string()), ("x", pa.struct([("a", pa.string())]))]), r"two fields x\.a: "),
        (pa.struct([("X.Element", pa.string()), ("x", list_of(pa.string()))]), r"fields X\.Element and x\.element"),
        (pa.struct([("_kafka.offset", pa.int64())]), r"two fields _kafka\.offset: "),
    ],
)
def test_schemas_that_engines_cannot_read_are_refused(kind: pa.StructType, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        evolve(None, kind, None)


def nested(levels: int) -> pa.StructType:
    """Return a type whose innermost field is at this level."""
    kind: pa.DataType = pa.int64()
    for at in range(levels):
        kind = pa.struct([("a", kind)]) if at % 2 or at == levels - 1 else list_of(kind)
    assert pa.types.is_struct(kind)
    return kind


def test_a_schema_has_limits() -> None:
    with pytest.raises(SchemaError, match=r"fields of more than 50 levels, such as a\.a\.element"):
        evolve(None, nested(LEVELS_MAX + 1), None)
    schema = evolve(None, nested(LEVELS_MAX), None).schema
    assert decode_schema(encode_schema(schema)) == schema
    assert evolve(schema, nested(LEVELS_MAX), None).schema == schema
    assert iceberg_schema(schema, 1).highest_field_id == max(field_ids(schema))
    many = [(f"c{at}", pa.int32()) for at in range(FIELDS_MAX)]
    with pytest.raises(SchemaError, match="more than 20,000 fields, which are the most that a table has"):
        evolve(None, pa.struct(many), None)
    kafka = len(list(field_ids(evolve(None, None, None).schema))) - 1
    evolve(None, pa.struct(many[kafka:]), None)


DOUBLINGS = 40
"""Levels of schemas that have two fields of the next level each."""


def doubling_json() -> pa.StructType:
    levels = {
        f"l{at}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/l{at + 1}"} for name in "ab"}}
        for at in range(DOUBLINGS)
    }
    last = {f"l{DOUBLINGS}": {"type": "integer"}}
    return json_schema_type(json.dumps({"$ref": "#/$defs/l0", "$defs": levels | last}))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "object"}, "the schema must have properties, which are the columns"),
        ({"type": "string"}, "the schema must have properties, which are the columns"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "#/$defs/a: the schema has nothing there"),
        (
            {"properties": {"a": {"$ref": "#/properties/a/type/b"}}},
            "#/properties/a/type/b: the schema has nothing there",
        ),
        ({"properties": {"a": {"$ref": "#"}}}, "# contains itself, which a table cannot"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "other.json: only references inside the schema are followed"),
    ],
    ids=str,
)
def test_a_json_schema_that_makes_no_columns_is_refused_with_the_reason(schema: object, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        json_schema_type(json.dumps(schema))
    assert str(caught.value).endswith(reason)


def doubling_avro() -> pa.StructType:
    schema: Any = "int"
    for at in reversed(range(DOUBLINGS)):
        name = schema if isinstance(schema, str) else schema["name"]
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": name}]
        schema = {"type": "record", "name": f"l{at}", "fields": fields}
    return avro_type(parse_avro(json.dumps(schema)))


def doubling_protobuf() -> pa.StructType:
    file = FileDescriptorProto(name="l.proto", syntax="proto3")
    for at in range(DOUBLINGS + 1):
        message = file.message_type.add(name=f"l{at}")
        for number, name in enumerate("ab" if at < DOUBLINGS else "", 1):
            message.field.add(
                name=name,
                number=number,
                type=FieldDescriptorProto.TYPE_MESSAGE,
                type_name=f".l{at + 1}",
                label=FieldDescriptorProto.LABEL_OPTIONAL,
            )
    return protobuf_type(find_message(FileDescriptorSet(file=[file]).SerializeToString(), "l0"))


@pytest.mark.parametrize("doubling", [doubling_json, doubling_avro, doubling_protobuf])
def test_a_small_schema_of_very_many_fields_does_not_become_them(doubling: Callable[[], pa.StructType]) -> None:
    with pytest.raises(SchemaError, match="more than 20,000 fields, which are the most that a table has"):
        doubling()


def test_the_deepest_schema_can_be_written_and_read(tmp_path: Path) -> None:
    kind: pa.DataType = pa.int64()
    for _ in range(LEVELS_MAX):
        kind = pa.struct([("a", kind)])
    assert pa.types.is_struct(kind)
    target = tmp_path / "v1.metadata.json"
    write_snapshot(
        SnapshotRequest(
            table_id=UUID(int=1).hex,
            location=f"file://{tmp_path}",
            schemas=[encode_schema(evolve(None, kind, None).schema)],
            properties={},
            version=1,
            now_ms=1_000,
            metadata=None,
            metadata_uri=None,
            snapshot_id=0,
            manifest_list=None,
            manifests={},
            added=[],
            removed=[],
            summary={},
            kept=[],
            metadata_target=str(target),
            manifest_target=None,
            manifest_list_target=None,
        )
    )
    assert StaticTable.from_metadata(f"file://{target}").scan().to_arrow().num_rows == 0


@pytest.mark.parametrize(
    "logical",
    [
        {"logicalType": "decimal", "precision": 0},
        {"logicalType": "decimal"},
        {"logicalType": ["date"]},
        {"logicalType": {"date": 1}},
    ],
)
def test_an_avro_schema_of_odd_logical_types_is_refused(logical: Any) -> None:
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "bytes", **logical}}]})
    with pytest.raises(SchemaError, match="an Avro schema that can't be read: "):
        avro_type(parse_avro(text))


def test_a_new_name_that_differs_from_an_old_one_in_case_only_is_refused() -> None:
    first = evolve(None, pa.struct([("in", pa.struct([("Id", pa.int64())]))]), None).schema
    with pytest.raises(SchemaError, match=r"fields in\.Id and in\.id, which engines that ignore case"):
        evolve(first, pa.struct([("in", pa.struct([("id", pa.int64())]))]), None)


def test_a_new_name_with_dots_that_is_the_path_of_an_old_field_is_refused() -> None:
    first = evolve(None, pa.struct([("in", pa.struct([("id", pa.int64())]))]), None).schema
    with pytest.raises(SchemaError, match=r"two fields in\.id: Iceberg finds fields by such a path"):
        evolve(first, pa.struct([("in.id", pa.int64())]), None)


def test_small_integers_grow_and_fields_without_anything_inside_are_left_out() -> None:
    kind = pa.struct(
        [("s", pa.int16()), ("e", pa.struct([])), ("l", list_of(pa.struct([]))), ("b", pa.struct([("t", pa.int8())]))]
    )
    schema = evolve(None, kind, None).schema
    assert schema.names == ["s", "b", "_kafka"]
    assert (schema.field("s").type, schema.field("b").type.field("t").type) == (pa.int32(), pa.int32())


def test_values_conform_to_a_wider_schema() -> None:
    rows = [
        {"n": 1, "in": {"x": 0.5, "tags": [("a", 1)]}, "l": [{"x": 1.5}, None], "gone": "g", "other": 5},
        None,
        {"n": None, "in": None, "l": None},
    ]
    wider = pa.struct(
        [part for part in evolve(evolve(None, FIRST, None).schema, SECOND, None).schema if part.name != "_kafka"]
    )
    found, misfits = conform(pa.array(rows, FIRST)[0:], wider)
    found.validate(full=True)
    assert not misfits
    assert found.to_pylist()[0] == {
        "n": 1, "d": None, "in": {"x": 0.5, "tags": [("a", 1)], "new": None},
        "l": [{"x": 1.5, "tags": None, "new": None}, None], "gone": "g", "other": 5, "added": None,
    }  # fmt: skip
    assert found.to_pylist()[1] is None
    assert found.slice(2).to_pylist()[0]["in"] is None


def test_values_that_do_not_fit_are_rows_with_an_error(tmp_path: Path) -> None:
    first = {"properties": {"n": {"type": "integer"}, "l": {"type": "array", "items": {"type": "integer"}}}}
    second = {
        "properties": {
            "n": {"type": "string"},
            "l": {"type": "array", "items": {"type": "string"}},
            "m": {"type": "integer"},
        }
    }
    before = question(Asked("json", json.dumps(first).encode()))
    after = answer(
        Question(Asked("json", json.dumps(second).encode()), RAW, before.schema, before.value, before.key), {}
    )
    assert after.unfit == ["n: string is no bigint", "l.element: string is no bigint"]
    values = [b'{"m": 1}', b'{"n": "x", "m": 2}', b'{"l": [null], "m": 3}', b'{"l": [null, "y"]}', b"x", None, b"{}"]
    share = share_of(tmp_path, [bytes(build_batch([Record(None, value, 5) for value in values]))], after)
    _, rows = made(share)
    assert [row["m"] for row in rows] == [1, None, 3, None, None, None, None]
    assert [row["l"] for row in rows] == [None, None, [None], None, None, None, None]
    errors = [row["_kafka"]["error"] for row in rows]
    assert errors[1] == "n: string is no bigint, which the column is"
    assert errors[3] == "l.element: string is no bigint, which the column is"
    assert errors[4].startswith("not JSON")
    assert [error is None for error in errors] == [True, False, True, False, False, True, True]
    assert [row["_kafka"]["value_raw"] for row in rows] == [None, values[1], None, values[3], values[4], None, None]
    assert ids(decode_schema(before.schema)).items() <= ids(file_schema(share)).items()


def test_items_of_a_map_that_do_not_fit_are_rows_with_an_error(tmp_path: Path) -> None:
    def of(kind: str) -> Asked:
        parts = {"m": {"type": "object", "additionalProperties": {"type": kind}}}
        return Asked("json", json.dumps({"properties": parts}).encode())

    after = answer(Question(of("string"), RAW, question(of("integer")).schema), {})
    values = [b'{"m": {}}', b'{"m": {"a": null, "b": "x"}}', None, b'{"m": null}', b'{"m": {"a": null}}', b"x"]
    _, rows = made(share_of(tmp_path, [bytes(build_batch([Record(None, each, 5) for each in values]))], after))
    assert [row["m"] for row in rows] == [[], None, None, None, [("a", None)], None]
    assert [row["_kafka"]["value_raw"] for row in rows] == [None, values[1], None, None, None, b"x"]
    assert rows[1]["_kafka"]["error"] == "m.value: string is no bigint, which the column is"


NUMBER = Asked("json", b'{"properties": {"value": {"type": "integer"}}}')


@pytest.mark.parametrize(("before", "after"), [(RAW, NUMBER), (NUMBER, RAW)])
def test_keys_and_values_that_are_decoded_in_another_way_are_rows_with_an_error(
    tmp_path: Path, before: Asked, after: Asked
) -> None:
    first = question(before, before)
    found = answer(Question(after, after, first.schema, first.value, first.key), {})
    records = [Record(b'{"value": 1}', b'{"value": 2}', 5), Record(None, None, 6), Record(b"7", b"8", 7)]
    share = share_of(tmp_path, [bytes(build_batch(records))], found)
    report, rows = made(share)
    assert report.errors == 2
    assert [row["value"] for row in rows] == [None, None, None]
    assert [row["_kafka"]["key"] for row in rows] == [None, None, None]
    assert [row["_kafka"]["value_raw"] for row in rows] == [each.value for each in records]
    assert [row["_kafka"]["key_raw"] for row in rows] == [each.key for each in records]
    assert "which the column is; key: " in rows[0]["_kafka"]["error"]


def test_a_share_has_columns_that_its_values_no_longer_have(tmp_path: Path) -> None:
    first = question(Asked("json", b'{"properties": {"a": {"type": "string"}}}'))
    after = answer(Question(Asked("json", b'{"properties": {"b": {"type": "string"}}}'), RAW, first.schema), {})
    _, rows = made(share_of(tmp_path, [bytes(build_batch([Record(None, b'{"a": "x", "b": "y"}', 5)]))], after))
    assert [(row["a"], row["b"]) for row in rows] == [(None, "y")]


def test_a_share_survives_json(tmp_path: Path) -> None:
    share = share_of(
        tmp_path, [bytes(build_batch([Record(None, b"{}", 5)]))], question(Asked("json", b'{"properties": {"a": {}}}'))
    )
    assert Share.from_json(json.loads(json.dumps(share.to_json()))) == share
