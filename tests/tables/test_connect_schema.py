"""Kafka Connect's JSON, as Debezium writes it: types from the schema, and values that carry their own."""

import base64
import json
import pickle
from collections.abc import Sequence
from copy import deepcopy
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from anabranch.tables import connect_schema
from anabranch.tables.connect_schema import parse_connect
from anabranch.tables.decoding import connect_json_decoder
from anabranch.tables.errors import SchemaError
from anabranch.tables.framing import Framing
from anabranch.tables.parts import answer
from anabranch.tables.requests import Asked, Question
from anabranch.tables.types import type_name

TIME, DATA = "io.debezium.time.", "org.apache.kafka.connect.data."
FIELDS: list[dict[str, Any]] = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "int64", "optional": True, "name": f"{TIME}MicroTimestamp", "version": 1, "field": "made"},
    {"type": "int32", "optional": True, "name": f"{TIME}Date", "version": 1, "field": "day"},
    {"type": "int32", "optional": True, "name": f"{TIME}Time", "version": 1, "field": "opens"},
    {"type": "string", "optional": True, "name": f"{TIME}ZonedTimestamp", "version": 1, "field": "seen"},
    {"type": "int64", "optional": True, "name": f"{DATA}Timestamp", "version": 1, "field": "sent"},
    {"type": "bytes", "name": f"{DATA}Decimal", "version": 1, "field": "price",
     "parameters": {"scale": "2", "connect.decimal.precision": "6"}},
    {"type": "array", "items": {"type": "int32", "name": f"{TIME}Date"}, "field": "days"},
    {"type": "map", "keys": {"type": "string"}, "values": {"type": "double"}, "field": "rates"},
    {"type": "string", "optional": True, "name": "io.debezium.data.Json", "field": "about"},
]  # fmt: skip
SCHEMA: dict[str, Any] = {"type": "struct", "optional": False, "name": "shop.Envelope", "fields": [
    {"type": "struct", "fields": FIELDS, "optional": True, "name": "shop.Value", "field": "after"},
    {"type": "string", "optional": False, "field": "op"},
]}  # fmt: skip
AFTER = {
    "id": 7, "made": 1577880000000001, "day": 18262, "opens": 43200000, "seen": "2020-01-01T12:00:00.000001Z",
    "sent": 1577880000000, "price": base64.b64encode((1950).to_bytes(2, "big")).decode(), "days": [18262],
    "rates": {"x": 0.5}, "about": "{}",
}  # fmt: skip
NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
ROW = {
    "id": 7, "made": NOON.replace(tzinfo=None, microsecond=1), "day": date(2020, 1, 1), "opens": "12:00:00.000000",
    "seen": NOON.replace(microsecond=1), "sent": NOON, "price": Decimal("19.50"), "days": [date(2020, 1, 1)],
    "rates": [("x", 0.5)], "about": "{}",
}  # fmt: skip


def value(payload: Any, schema: Any = SCHEMA, **spaces: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}, **{"separators": (",", ":"), **spaces}).encode()


def decoded(file: Any, values: Sequence[bytes | None]) -> list[Any]:
    schema = parse_connect(json.dumps(file))
    assert schema is not None
    decoder = pickle.loads(pickle.dumps(connect_json_decoder(schema, "UTC", framing=Framing.NONE)))
    found = decoder.column(pa.array(values, pa.binary()))
    found.validate(full=True)
    assert found.type.field(0).type == schema.kind
    rows: list[Any] = found.to_pylist()
    return rows


def changed(field: int, **parts: Any) -> Any:
    """The schema with another field of `after`."""
    schema = deepcopy(SCHEMA)
    schema["fields"][0]["fields"][field] |= parts
    return schema


def test_columns_are_those_of_logical_types() -> None:
    schema = parse_connect(json.dumps(SCHEMA))
    assert schema is not None
    assert not schema.is_wrapped
    assert type_name(schema.kind) == (
        "struct<after:struct<id:bigint,made:timestamp_ntz,day:date,opens:string,seen:timestamp,sent:timestamp,"
        "price:decimal(6,2),days:array<date>,rates:map<string,double>,about:string>,op:string>"
    )
    whole = parse_connect(value(None).decode())
    assert whole is not None
    assert whole.is_wrapped
    assert whole.kind == schema.kind
    for other in ('{"type": "object"}', '{"type": "struct", "fields": [{"name": "x"}]}', "x INT", "[]", "5"):
        assert parse_connect(other) is None


def test_payloads_alone() -> None:
    bare = [
        json.dumps({"after": AFTER, "op": "c"}).encode(),
        None,
        b'{"after": null, "op": "d"}',
        b'{"after": {"day": 9e9}}',
    ]
    rows = decoded(SCHEMA, bare)
    assert [row["data"] for row in rows] == [{"after": ROW, "op": "c"}, None, {"after": None, "op": "d"}, None]
    assert rows[3]["error"] == "after.day: expected bigint, found 9e9"


def test_values_with_their_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"after": AFTER, "op": "c"}
    unusual = json.dumps({"payload": good, "schema": SCHEMA}, indent=1).encode()
    values = [
        value(good), None, unusual, value(None), b'{"schema":null,"payload":null}', value({"after": 5}),
        b'{"payload": {"op": "c"}}', value(good)[:-1], value(good) + b"\n", value(5), b"x",
        value(good)[:-1] + b',"payload":{"op":"d"}}',
    ]  # fmt: skip
    rows = decoded({"schema": SCHEMA, "payload": None}, values)
    row = {"after": ROW, "op": "c"}
    later = {"after": None, "op": "d"}
    # The last is one JSON object with a name twice, of which the last counts, as everywhere.
    assert [each["data"] for each in rows] == [row, None, row, None, None, None, None, None, row, None, None, later]
    assert [each["error"] for each in rows][5:] == [
        rows[5]["error"],
        "schema: missing beside the payload, which the schema file has it with",
        rows[7]["error"], None, rows[9]["error"], "not JSON at character 0: expecting value", None,
    ]  # fmt: skip
    assert rows[5]["error"].startswith("after: expected struct<id:bigint,made:bigint,day:bigint,")
    assert rows[7]["error"].startswith("not JSON at character")
    assert rows[9]["error"].startswith("payload: expected struct<")

    def fail(*_: Any) -> None:
        raise AssertionError("decoded by itself")

    monkeypatch.setattr(connect_schema, "decode_column", fail)
    rows = decoded({"schema": SCHEMA}, [value(good), value(None)] * 1000)
    assert [each["data"] for each in rows] == [row, None] * 1000


def test_a_value_is_converted_by_its_own_schema() -> None:
    made = {"after": {"made": 1577880000000}, "op": "c"}
    milliseconds = changed(1, name=f"{TIME}Timestamp")
    scale = changed(6, parameters={"scale": "3"})
    more = changed(0)
    more["fields"].append({"type": "int64", "field": "ts_ms"})
    price = {"after": {"price": base64.b64encode((19500).to_bytes(4, "big")).decode()}}
    rounded = {"after": {"price": base64.b64encode((19505).to_bytes(4, "big")).decode()}}
    values = [
        value(made, milliseconds), value(made), value(price, scale), value(rounded, scale),
        value(made | {"ts_ms": 5}, more),
    ]  # fmt: skip
    values += [json.dumps({"payload": made, "schema": milliseconds}).encode()]
    rows = decoded({"schema": SCHEMA}, values)
    first, usual = NOON.replace(tzinfo=None), datetime(1970, 1, 19, 6, 18)  # noqa: DTZ001 - both are local
    assert [row["data"] and row["data"]["after"]["made"] for row in rows] == [
        first, usual, None, None, usual, first,
    ]  # fmt: skip
    assert rows[2]["data"]["after"]["price"] == Decimal("19.50")
    assert rows[3]["error"] == "after.price: expected decimal(6,2), found 19.505, which would be rounded"


@pytest.mark.parametrize(
    ("schema", "error"),
    [
        (
            changed(1, name=None),
            f"after.made: the value's schema says no logical type, and the file {TIME}MicroTimestamp",
        ),
        (
            changed(1, type="string", name=f"{TIME}ZonedTimestamp"),
            f"after.made: the value's schema says {TIME}ZonedTimestamp, and the file {TIME}MicroTimestamp",
        ),
        (
            changed(0, name=f"{TIME}MicroTimestamp"),
            f"after.id: the value's schema says {TIME}MicroTimestamp, and the file no logical type",
        ),
        ({"type": "string"}, "schema: not that of a struct in Kafka Connect's notation"),
        (changed(0, type="int128"), "schema: after.id: Kafka Connect has no type int128"),
    ],
)
def test_a_schema_that_means_something_else_is_an_error(schema: Any, error: str) -> None:
    rows = decoded({"schema": SCHEMA}, [value({"after": {}}), value({"after": {"id": 1}}, schema), value(None, schema)])
    assert [row["error"] for row in rows] == [None, error, None]
    assert [row["data"] is None for row in rows] == [False, True, True]


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ({"type": "map", "keys": {"type": "int32"}, "values": {"type": "int32"}}, "x: a map with keys of type int32"),
        ({"type": "bytes", "name": f"{DATA}Decimal"}, "not a schema of Kafka Connect: KeyError: 'scale'"),
        (
            {"type": "bytes", "name": f"{DATA}Decimal", "parameters": {"scale": "39"}},
            "x: a decimal of 38 digits with sc",
        ),
        ({}, "not a schema of Kafka Connect: KeyError: 'type'"),
    ],
)
def test_what_has_no_column_is_refused(field: dict[str, Any], error: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_connect(json.dumps({"type": "struct", "fields": [{**field, "field": "x"}]}))
    assert str(caught.value).startswith(error)


def test_tables_of_topics_take_such_a_schema() -> None:
    asked = Asked("json", json.dumps({"schema": SCHEMA}).encode())
    finding = answer(Question(asked, Asked("raw")), {})
    assert finding.value.format == "json"
