"""Avro, protobuf and JSON Schema: types and values, without a session."""

import io
import json
import math
import pickle
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.message_factory import GetMessageClass
from pyspark import cloudpickle
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from anabranch.broker.node.settings.known import ADMIN_PORT
from anabranch.broker.operator.admin.paths import REGISTRY_PREFIX
from anabranch.spark.pipeline import source_options
from anabranch.spark.pipeline.decode import DecoderFactory, RecordDecoder, make_decoding, open_registry
from anabranch.spark.pipeline.errors import PipelineError
from anabranch.spark.pipeline.json_schema import check_json_type, parse_json_schema
from anabranch.spark.pipeline.sections import DecodeSection, SourceSection
from anabranch.tables.avro import AvroDecoder, avro_type, parse_avro, safe_bytes
from anabranch.tables.errors import NotDecodableError, RegistryError, SchemaError, UnknownSchemaError
from anabranch.tables.framing import Framing
from anabranch.tables.protobuf import (
    ProtobufDecoder,
    descriptor_set,
    find_message,
    protobuf_type,
    registered_set,
    split_indexes,
)
from anabranch.tables.registry import RegisteredSchema, SchemaRegistry, split_header
from anabranch.tables.types import nullable, type_name
from anabranch.tables.values import decode_column
from tests.spark.pipeline.registry_server import RegistryServer, running_registry
from tests.spark.pipeline.support import make_pipeline
from tests.support.wheel import ROOT

PLAIN = {"type": "record", "name": "Flight", "fields": [
    {"name": "carrier", "type": "string"},
    {"name": "delay", "type": ["null", "int"], "default": None},
]}  # fmt: skip
NEWER = {**PLAIN, "fields": [*PLAIN["fields"], {"name": "gate", "type": ["null", "string"], "default": None}]}


ID = "00000000-0000-0000-0000-000000000000"
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "float"}]}


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def with_id(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def test_every_avro_type_has_a_column() -> None:
    schema = {"type": "record", "name": "All", "namespace": "x", "fields": [
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {"name": "wide", "type": ["int", "long", "null"]},
        {"name": "inner", "type": ["null", INNER]},
        {"name": "raw", "type": {"type": "fixed", "name": "Raw", "size": 2}},
    ]}  # fmt: skip
    text = json.dumps(schema)
    kind = avro_type(parse_avro(text))
    assert type_name(kind) == (
        "struct<time:timestamp,clock:bigint,price:decimal(9,2),id:string,kind:string,again:string,"
        "tags:map<string,array<int>>,wide:bigint,inner:struct<x:float>,raw:binary>"
    )
    value = {
        "time": datetime(2013, 1, 1, tzinfo=UTC), "clock": 5, "price": Decimal("1.50"), "id": ID,
        "kind": "A", "again": "B", "tags": {"t": [1, 2]}, "wide": 2**40, "inner": {"x": 0.5}, "raw": b"ab",
    }  # fmt: skip
    body = avro(parse_avro(text), value)
    decoder = AvroDecoder(RegisteredSchema(-1, "AVRO", text), None, framing=Framing.NONE)
    (row,) = decode_column([body], decoder, kind).to_pylist()
    assert row["error"] is None
    assert row["data"] == {**value, "tags": [("t", [1, 2])]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('["string", "int"]', "a union of more than"),
        ("nothing", "not an Avro schema"),
        ('{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]}', "R contains itself"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "n", "type": ["string", "int"]}]}',
            "a union of more than",
        ),
        ('{"type": "record", "name": "R", "fields": [{"name": "n", "type": "Unknown"}]}', "not an Avro schema"),
    ],
)
def test_an_avro_schema_without_columns_is_refused(schema: str, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        avro_type(parse_avro(schema))


def test_avro_is_read_with_the_schema_it_was_written_with() -> None:
    with running_registry() as server:
        old, new = server.add("flights-value", PLAIN), server.add("flights-value", NEWER)
        registry = SchemaRegistry(server.url)
        reader = registry.latest("flights-value")
        assert reader.schema_id == new
        decoder = pickle.loads(pickle.dumps(AvroDecoder(reader, registry, framing=Framing.CONFLUENT)))
        values = [
            with_id(old, avro(PLAIN, {"carrier": "AA", "delay": 3})),
            with_id(new, avro(NEWER, {"carrier": "UA", "delay": None, "gate": "B7"})),
            None,
            b"{}",
            with_id(77, b""),
            with_id(new, b"\xff\xff"),
            with_id(old, avro(PLAIN, {"carrier": "AA", "delay": 3}) + b"more"),
        ]
        asked = len(server.requests)
        rows = decode_column(values * 10, decoder, avro_type(parse_avro(reader.text))).to_pylist()
        # The newest is cached already; each of the others is requested once, the missing one included.
        assert server.requests[asked:] == [f"/schemas/ids/{old}", "/schemas/ids/77"]
    assert [row["data"] for row in rows[:3]] == [
        {"carrier": "AA", "delay": 3, "gate": None}, {"carrier": "UA", "delay": None, "gate": "B7"}, None
    ]  # fmt: skip
    assert rows[2] == {"data": None, "error": None}
    wanted = ["no schema header: 2 bytes", "has no /schemas/ids/77", "not Avro of this schema", "4 bytes are left over"]
    for row, words in zip(rows[3:7], wanted, strict=True):
        assert row["data"] is None
        assert words in row["error"]


def nested(depth: int) -> dict[str, Any]:
    """A record of no bytes with 10 ** depth values."""
    schema: dict[str, Any] = {}
    for level in range(depth):
        inner = [schema or "null", *[f"L{level - 1}" if level else "null"] * 9]
        fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(inner)]
        schema = {"type": "record", "name": f"L{level}", "fields": fields}
    return schema


BOMBS: list[tuple[Any, bytes]] = [
    ({"type": "array", "items": "null"}, b"\xfe" + b"\xff" * 8 + b"\x01\0"),
    ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}, b"\xfe" + b"\xff" * 8 + b"\x01\0"),
    ({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}, b"\xfe" + b"\xff" * 8 + b"\x01\0"),
    (nested(9), b""),
    (["null", nested(9)], b"\x02"),
    ({"type": "map", "values": nested(6)}, b"\x02\x02a\0"),
    ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}, b""),
    ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, b"\x02" * 200_000 + b"\0"),
]
"""Types of a field, and few bytes of it that would take all memory, never end, or crash fastavro."""


@pytest.mark.parametrize(("kind", "body"), BOMBS)
def test_a_record_that_may_become_too_many_values_is_not_begun(kind: Any, body: bytes) -> None:
    bomb = {**PLAIN, "fields": [{"name": "bomb", "type": kind}, *PLAIN["fields"]]}
    with running_registry() as server:
        hostile, _ = server.add("s", bomb), server.add("s", PLAIN)
        registry = SchemaRegistry(server.url)
        decoder = AvroDecoder(registry.latest("s"), registry, framing=Framing.CONFLUENT)
        with pytest.raises(NotDecodableError, match=r"by its schema, \d+ bytes may become too many values"):
            decoder(with_id(hostile, body + avro(PLAIN, {"carrier": "AA", "delay": 3})))


def test_records_with_some_nulls_or_that_contain_themselves_are_read() -> None:
    node = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    extra = [{"name": "empty", "type": "null"}, {"name": "list", "type": node}, {"name": "again", "type": "N"}]
    older = {**PLAIN, "fields": [*extra, *PLAIN["fields"]]}
    assert safe_bytes(parse_avro(json.dumps(PLAIN))) == math.inf
    assert safe_bytes(parse_avro(json.dumps(older))) == 4096
    with running_registry() as server:
        old, _ = server.add("s", older), server.add("s", PLAIN)
        registry = SchemaRegistry(server.url)
        decoder = AvroDecoder(registry.latest("s"), registry, framing=Framing.CONFLUENT)
        value = {"empty": None, "list": {"n": {"n": None}}, "again": {"n": None}, "carrier": "AA", "delay": 3}
        assert decoder(with_id(old, avro(older, value))) == {"carrier": "AA", "delay": 3}


def test_a_registry_that_does_not_answer_fails_the_task_not_the_record() -> None:
    with running_registry() as server:
        old, _ = server.add("s", PLAIN), server.add("s", NEWER)
        decoder = AvroDecoder(
            SchemaRegistry(server.url).latest("s"), SchemaRegistry(server.url), framing=Framing.CONFLUENT
        )
    with pytest.raises(RegistryError, match=r"the schema registry http://127.0.0.1:\d+ does not answer"):
        decode_column([with_id(old, b"")], decoder, avro_type(parse_avro(json.dumps(NEWER))))


def test_avro_references_and_credentials() -> None:
    inner = {"type": "record", "name": "shared.Place", "fields": [{"name": "city", "type": "string"}]}
    outer = {"type": "record", "name": "Trip", "fields": [{"name": "to", "type": "shared.Place"}]}
    with running_registry() as server:
        server.credentials = "me:secret"
        server.add("place", inner)
        reference = {"name": "shared.Place", "subject": "place", "version": 1}
        server.add("trips-value", outer, references=[reference])
        settings = DecodeSection(format="avro", registry=server.url, registry_credentials_env="CREDENTIALS")
        registry = open_registry(settings, "decode", {"CREDENTIALS": "me:secret"})
        assert registry is not None
        schema = registry.latest("trips-value")
        assert type_name(avro_type(parse_avro(schema.text, tuple(schema.references)))) == (
            "struct<to:struct<city:string>>"
        )
        with pytest.raises(PipelineError, match="the environment has no CREDENTIALS"):
            open_registry(settings, "decode", {})
        with pytest.raises(RegistryError, match="answers 401"):
            SchemaRegistry(server.url).latest("trips-value")
        with pytest.raises(UnknownSchemaError, match="has no /subjects/none/versions/latest"):
            registry.latest("none")


def descriptor() -> FileDescriptorSet:
    """Descriptor set, as protoc writes it, of a message with one field of each kind."""
    file = FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="LATE", number=1)
    other = file.message_type.add(name="Other")
    other.field.add(name="x", number=1, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    flight = file.message_type.add(name="Flight")
    entry = flight.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT64, label=Field.LABEL_OPTIONAL)
    single, many = Field.LABEL_OPTIONAL, Field.LABEL_REPEATED
    for name, number, type_, label, inner in (
        ("carrier", 1, Field.TYPE_STRING, single, ""),
        ("delay", 2, Field.TYPE_SINT32, single, ""),
        ("big", 3, Field.TYPE_UINT64, single, ""),
        ("kind", 4, Field.TYPE_ENUM, single, ".air.Kind"),
        ("at", 5, Field.TYPE_MESSAGE, single, ".google.protobuf.Timestamp"),
        ("tags", 6, Field.TYPE_MESSAGE, many, ".air.Flight.TagsEntry"),
        ("others", 7, Field.TYPE_MESSAGE, many, ".air.Other"),
        ("raw", 8, Field.TYPE_BYTES, single, ""),
    ):
        flight.field.add(name=name, number=number, type=type_, label=label, type_name=inner or None)
    return FileDescriptorSet(file=[file])


def test_protobuf_by_a_descriptor_set() -> None:
    data = descriptor_set(descriptor().SerializeToString())
    message = find_message(data, "air.Flight")
    kind = protobuf_type(message)
    assert type_name(kind) == (
        "struct<carrier:string,delay:int,big:decimal(20,0),kind:string,at:timestamp,tags:map<string,bigint>,"
        "others:array<struct<x:int>>,raw:binary>"
    )
    made = GetMessageClass(message)(carrier="AA", delay=-4, big=2**64 - 1, kind=1, tags={"a": 7}, others=[{"x": 1}])
    made.at.FromDatetime(datetime(2013, 5, 1, tzinfo=UTC))
    body = made.SerializeToString()
    decoder = pickle.loads(pickle.dumps(ProtobufDecoder(data, "air.Flight", framing=Framing.NONE)))
    rows = decode_column([body, b"", b"\xff", None], decoder, kind).to_pylist()
    assert rows[0]["data"] == {
        "carrier": "AA", "delay": -4, "big": Decimal(2**64 - 1), "kind": "LATE", "at": datetime(2013, 5, 1, tzinfo=UTC),
        "tags": [("a", 7)], "others": [{"x": 1}], "raw": b"",
    }  # fmt: skip
    assert (rows[1]["data"]["carrier"], rows[1]["data"]["at"], rows[1]["error"]) == ("", None, None)
    assert rows[2]["data"] is None
    assert "not a air.Flight" in rows[2]["error"]
    assert rows[3] == {"data": None, "error": None}


def test_protobuf_by_a_registry() -> None:
    file = descriptor().file[0]
    with running_registry() as server:
        server.add("flights-value", "message ...", "PROTOBUF", serialized=file.SerializeToString())
        data = registered_set(SchemaRegistry(server.url).latest("flights-value", protobuf=True))
    decoder = ProtobufDecoder(data, "air.Flight", framing=Framing.CONFLUENT)
    body = GetMessageClass(find_message(data, "air.Flight"))(carrier="UA").SerializeToString()
    # Zigzag: 2 is one index, then index 1.
    assert decoder(with_id(1, b"\x02\x02" + body))["carrier"] == "UA"
    with pytest.raises(NotDecodableError, match=r"a air\.Other, not a air\.Flight"):
        decoder(with_id(1, b"\x00"))
    with pytest.raises(NotDecodableError, match=r"no message \[40\]"):
        decoder(with_id(1, b"\x02\x50"))
    with pytest.raises(NotDecodableError, match=r"no message \[-1\]"):
        decoder(with_id(1, b"\x02\x01"))
    assert find_message(data, None).full_name == "air.Other"
    with pytest.raises(SchemaError, match=r"no message air\.None in the schema"):
        find_message(data, "air.None")
    with pytest.raises(SchemaError, match="not a descriptor set"):
        descriptor_set(b"syntax = 'proto3';")


INFINITE = (float("inf"), float("-inf"))
DAY = datetime(2020, 1, 1, tzinfo=UTC)
MICROS = {"millis": 1_577_836_800_000, "micros": 1_577_836_800_000_000, "nanos": 1_577_836_800_000_000_001}


def long_of(logical: str) -> Any:
    return {"type": "long", "logicalType": logical}


def decimal_of(unscaled: int) -> bytes:
    return unscaled.to_bytes(8, "big", signed=True)


AVRO: dict[str, list[tuple[Any, Any, Any, Any, str]]] = {
    "`timestamp-millis`, `timestamp-micros`": [
        (long_of(f"timestamp-{unit}"), "long", MICROS[unit], DAY, f"is no timestamp-{unit} of the years 1 to 9999")
        for unit in ("millis", "micros")
    ],
    "`local-timestamp-millis`, `local-timestamp-micros`": [
        (long_of(f"local-timestamp-{unit}"), "long", MICROS[unit], DAY.replace(tzinfo=None), "of the years 1 to 9999")
        for unit in ("millis", "micros")
    ],
    "`timestamp-nanos`, `local-timestamp-nanos`": [
        (long_of(f"{prefix}timestamp-nanos"), "long", MICROS["nanos"], MICROS["nanos"], "") for prefix in ("", "local-")
    ],
    "`time-millis`, `time-micros`, `duration`": [
        ({"type": "int", "logicalType": "time-millis"}, "int", 5, 5, ""),
        (long_of("time-micros"), "long", 5, 5, ""),
        ({"type": "fixed", "size": 12, "name": "D", "logicalType": "duration"},
         {"type": "fixed", "size": 12, "name": "D"}, b"123456789012", b"123456789012", ""),
    ],
    "`date`": [({"type": "int", "logicalType": "date"}, "int", 18_262, DAY.date(), "is no date of the years")],
    "`decimal`": [
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "bytes",
         decimal_of(1234), Decimal("12.34"), "1234567.89 has more digits than a decimal(4,2)"),
    ],
    "`uuid`": [({"type": "string", "logicalType": "uuid"}, "string", ID.replace("0", "A"), ID.replace("0", "A"), "")],
    "`float`, `double`": [(kind, kind, each, each, "") for kind in ("float", "double") for each in INFINITE],
    "`string`": [("string", "bytes", "é".encode(), "é", "not valid UTF-8 at byte 0")],
    "`map`": [
        ({"type": "map", "values": "int"},
         {"type": "array", "items": {"type": "record", "name": "Pair", "fields": [
             {"name": "key", "type": "string"}, {"name": "value", "type": "int"}]}},
         [{"key": "a", "value": 1}, {"key": "a", "value": 2}], [("a", 2)], ""),
    ],
}  # fmt: skip
"""Type and the one it is written with, a value, what it becomes, and the error of another one; by rows of the guide."""
WRONG = {"long": 10**18, "int": 2_147_000_000, "bytes": b"\xff"}


def guide_rows(kind: str) -> list[str]:
    """Types of Avro or protobuf in the guide's table."""
    lines = (ROOT / "docs" / "spark.md").read_text().splitlines()
    return [line.split(" | ")[0].removeprefix(f"| {kind} ") for line in lines if line.startswith(f"| {kind} ")]


@pytest.mark.parametrize("of", AVRO)
def test_what_comes_out_of_avro_is_what_was_written(of: str) -> None:
    assert guide_rows("Avro") == list(AVRO)
    for kind, written, value, wanted, reason in AVRO[of]:
        schemas = [
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": ["null", {"type": "array", "items": each}]}],
            }
            for each in (kind, written)
        ]
        text = json.dumps(schemas[0])
        decoder = AvroDecoder(RegisteredSchema(-1, "AVRO", text), None, framing=Framing.NONE)
        wrong = decimal_of(123_456_789) if of == "`decimal`" else WRONG.get(written if isinstance(written, str) else "")
        values = [value, wrong] if reason else [value]
        bodies = [avro(schemas[1], {"a": [each]}) for each in values]
        rows = decode_column(bodies, decoder, avro_type(parse_avro(text))).to_pylist()
        assert (rows[0]["error"], rows[0]["data"]) == (None, {"a": [wanted]})
        if reason:
            assert rows[1]["data"] is None
            assert reason in rows[1]["error"]
            assert re.search(r"\ba(\[0\])?: ", rows[1]["error"])


def value_descriptor() -> FileDescriptorSet:
    """Descriptor set of a message with each kind of field that may have a value without a column."""
    file = FileDescriptorProto(name="values.proto", package="air", syntax="proto2")
    file.dependency.extend([f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "struct", "any")])
    file.enum_type.add(name="Kind").value.add(name="NONE", number=0)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="at", number=1, type=Field.TYPE_MESSAGE, label=Field.LABEL_OPTIONAL,
                    type_name=".google.protobuf.Timestamp")  # fmt: skip
    values = file.message_type.add(name="Values")
    entry = values.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=Field.TYPE_INT32, label=Field.LABEL_OPTIONAL)
    for number, (name, type_, inner) in enumerate(
        [
            ("inner", Field.TYPE_MESSAGE, ".air.Inner"),
            ("duration", Field.TYPE_MESSAGE, ".google.protobuf.Duration"),
            ("u32", Field.TYPE_UINT32, None),
            ("u64", Field.TYPE_UINT64, None),
            ("f", Field.TYPE_FLOAT, None),
            ("d", Field.TYPE_DOUBLE, None),
            ("s", Field.TYPE_STRING, None),
            ("e", Field.TYPE_ENUM, ".air.Kind"),
            ("m", Field.TYPE_MESSAGE, ".air.Values.MEntry"),
            ("json", Field.TYPE_MESSAGE, ".google.protobuf.Value"),
            ("any", Field.TYPE_MESSAGE, ".google.protobuf.Any"),
        ],
        1,
    ):
        label = Field.LABEL_REPEATED if name == "m" else Field.LABEL_OPTIONAL
        values.field.add(name=name, number=number, type=type_, label=label, type_name=inner)
    return FileDescriptorSet(file=[file])


def tagged(number: int, body: bytes) -> bytes:
    """A field of bytes on the wire."""
    return bytes([number << 3 | 2, len(body)]) + body


LAST = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
PROTOBUF: dict[str, list[tuple[bytes | dict[str, Any], Any]]] = {
    "`Timestamp`": [
        ({"inner": {"at": {"seconds": 253_402_300_799, "nanos": 999_999_000}}}, {"inner": {"at": LAST}}),
        ({"inner": {"at": {"nanos": 1}}}, "inner.at: 1 nanoseconds are not whole microseconds of a second"),
        ({"inner": {"at": {"seconds": 253_402_300_800}}}, "inner.at: date value out of range"),
    ],
    "`Duration`": [({"duration": {"nanos": 1}}, {"duration": {"seconds": 0, "nanos": 1}})],
    "`uint32`, `uint64`": [({"u32": 2**32 - 1, "u64": 2**64 - 1}, {"u32": 2**32 - 1, "u64": Decimal(2**64 - 1)})],
    "`float`, `double`": [({"f": each, "d": each}, {"f": each, "d": each}) for each in INFINITE],
    "`string`": [({"s": "é"}, {"s": "é"}), (tagged(7, b"\xff"), "s: 'utf-8' codec can't decode byte")],
    "enum": [({"e": 0}, {"e": "NONE"})],
    "`map`": [(tagged(9, tagged(1, b"a") + b"\x10\x01") + tagged(9, tagged(1, b"a") + b"\x10\x02"), {"m": [("a", 2)]})],
    "`Struct`, `Value`, `ListValue`, `Any`": [
        ({"json": {"number_value": 1.5}}, {"json": "1.5"}),
        ({"json": {"number_value": float("nan")}}, "json: "),
        ({"any": {"type_url": "x.y/Unknown", "value": b"1"}}, "any: "),
    ],
}
"""Values, and what they become or the beginning of their error; by rows of the guide."""


@pytest.mark.parametrize("of", PROTOBUF)
def test_what_comes_out_of_protobuf_is_what_was_written(of: str) -> None:
    assert guide_rows("protobuf") == list(PROTOBUF)
    data = descriptor_set(value_descriptor().SerializeToString())
    message = find_message(data, "air.Values")
    decoder = ProtobufDecoder(data, "air.Values", framing=Framing.NONE)
    for given, wanted in PROTOBUF[of]:
        body = given if isinstance(given, bytes) else GetMessageClass(message)(**given).SerializeToString()
        (row,) = decode_column([body], decoder, protobuf_type(message)).to_pylist()
        if isinstance(wanted, str):
            assert row["data"] is None
            assert row["error"].startswith(wanted)
        else:
            assert row["error"] is None
            assert {name: row["data"][name] for name in wanted} == wanted


FIRST, SECOND, THIRD = b"\x00", b"\x02\x02", b"\x02\x04"
"""Message indexes: the first is a count of none, others a count of one and the index, in zigzag."""


def add_version(server: RegistryServer, *names: str, package: str = "air") -> int:
    """Register the file of `descriptor` with these messages only, in this order; unknown ones are new."""
    file = descriptor().file[0]
    known = {message.name: message for message in file.message_type}
    new = FileDescriptorProto(name=file.name, package=package, syntax=file.syntax)
    new.dependency.extend(file.dependency)
    new.enum_type.extend(file.enum_type)
    for name in names:
        new.message_type.add(name=name).MergeFrom(known.get(name, DescriptorProto()))
    return server.add("flights-value", "message ...", "PROTOBUF", serialized=new.SerializeToString())


def protobuf_factory(server: RegistryServer, message: str | None) -> DecoderFactory:
    settings = DecodeSection(format="protobuf", registry=server.url, message=message)
    return DecoderFactory("decode", settings, "flights-value")


def in_task(server: RegistryServer, message: str) -> Callable[[list[bytes]], list[Any]]:
    """The decoding by the newest version, as a task gets and calls it."""
    decoding = protobuf_factory(server, message).current()
    assert decoding is not None
    column: Any = decoding.column
    pickler: Any = cloudpickle  # its functions have no types
    function = pickle.loads(pickler.dumps(column.func))
    return lambda values: function(pa.array(values, pa.binary())).to_pylist()


def flight(carrier: str) -> bytes:
    message = find_message(descriptor().SerializeToString(), "air.Flight")
    body: bytes = GetMessageClass(message)(carrier=carrier).SerializeToString()
    return body


def test_the_message_of_a_protobuf_record_is_looked_up_in_the_schema_it_was_written_with() -> None:
    with running_registry() as server:
        old = add_version(server, "Flight", "Other")
        new = add_version(server, "New", "Flight", "Other")
        decode = in_task(server, "air.Flight")
        asked = len(server.requests)
        rows = decode([with_id(old, FIRST + flight("AA")), with_id(new, SECOND + flight("UA"))] * 10)
    assert {row["error"] for row in rows} == {None}
    assert [row["data"]["carrier"] for row in rows] == ["AA", "UA"] * 10
    # The newest is known, and the other one is requested once.
    assert server.requests[asked:] == [f"/schemas/ids/{old}", f"/schemas/ids/{old}?format=serialized"]


def test_a_protobuf_record_of_a_version_newer_than_the_known_one_is_decoded() -> None:
    with running_registry() as server:
        add_version(server, "Flight", "Other")
        decode = in_task(server, "air.Flight")
        new = add_version(server, "New", "Flight", "Other")
        (row,) = decode([with_id(new, SECOND + flight("UA"))])
    assert (row["error"], row["data"] and row["data"]["carrier"]) == (None, "UA")


def test_a_protobuf_record_of_a_package_that_was_renamed_since_is_decoded() -> None:
    other = GetMessageClass(find_message(descriptor().SerializeToString(), "air.Other"))
    one, two = (other(x=x).SerializeToString() for x in (1, 2))
    with running_registry() as server:
        old = add_version(server, "New", "Other")
        new = add_version(server, "Other", package="air.v2")
        decode = in_task(server, "air.v2.Other")
        rows = decode([with_id(old, SECOND + one), with_id(new, FIRST + two)])
        (refused,) = decode([with_id(old, FIRST)])
    assert [(row["data"] and row["data"]["x"], row["error"]) for row in rows] == [(1, None), (2, None)]
    assert refused["error"] == "a air.New, not a air.v2.Other"


def test_a_protobuf_record_of_another_message_is_refused_by_its_name() -> None:
    with running_registry() as server:
        old = add_version(server, "Flight", "Other")
        new = add_version(server, "New", "Flight", "Other")
        rows = in_task(server, "air.New")([with_id(old, FIRST + flight("AA")), with_id(new, SECOND + flight("AA"))])
        assert [row["error"] for row in rows] == ["a air.Flight, not a air.New"] * 2
        # In the newest version the same indexes are those of a flight.
        rows = in_task(server, "air.Flight")([with_id(old, SECOND), with_id(old, THIRD)])
        assert [row["error"] for row in rows] == ["a air.Other, not a air.Flight", "the schema has no message [2]"]


def test_a_protobuf_record_whose_schema_is_unknown_or_of_another_kind_is_refused() -> None:
    with running_registry() as server:
        add_version(server, "Flight", "Other")
        other = server.add("other-value", PLAIN)
        broken = server.add("broken-value", "message ...", "PROTOBUF", serialized=b"\xff")
        decode = in_task(server, "air.Flight")
        asked = len(server.requests)
        rows = decode([with_id(schema_id, FIRST + flight("AA")) for schema_id in (77, other, broken)] * 2)
        wanted = ["77", str(other), str(broken), f"{broken}?format=serialized"]
        assert server.requests[asked:] == [f"/schemas/ids/{each}" for each in wanted]
    words = ["has no /schemas/ids/77", f"schema {other} is AVRO, not PROTOBUF", "not give a serialised descriptor"]
    for row, part in zip(rows, words * 2, strict=True):
        assert row["data"] is None
        assert part in row["error"]


def test_a_registry_that_does_not_answer_fails_the_task_not_the_protobuf_record() -> None:
    with running_registry() as server:
        old = add_version(server, "Flight", "Other")
        new = add_version(server, "New", "Flight", "Other")
        decode = in_task(server, "air.Flight")
    (row,) = decode([with_id(new, SECOND + flight("UA"))])
    assert row["error"] is None
    with pytest.raises(RegistryError, match=r"the schema registry http://127.0.0.1:\d+ does not answer"):
        decode([with_id(old, FIRST + flight("AA"))])


def test_the_message_must_be_named_if_a_registry_has_several() -> None:
    with running_registry() as server:
        add_version(server, "Other")
        decoders = protobuf_factory(server, None)
        first = decoders.current()
        assert first is not None
        assert first.schema.simpleString() == "struct<x:int>"
        newer = add_version(server, "New", "Other")
        words = r"subject flights-value: .* several messages: set `message` to one of air\.New, air\.Other$"
        with pytest.raises(PipelineError, match=words):
            protobuf_factory(server, None).current()
        # A running pipeline goes on with the message that it knows.
        second = decoders.current()
        assert second is not None
        assert isinstance(second.version, RegisteredSchema)
        assert (second.version.schema_id, second.message) == (newer, "air.Other")
        assert second.schema == first.schema
        assert protobuf_factory(server, "air.Other").current() is not None


@pytest.mark.parametrize("value", [b"", b"\xff\xff\xff\xff\xff\xff", b"\x04\x02"])
def test_broken_message_indexes(value: bytes) -> None:
    with pytest.raises(NotDecodableError, match="no message indexes"):
        split_indexes(value)


def test_very_many_message_indexes_are_not_read() -> None:
    """Each is a step over the rest of the value."""
    for count in (b"\xca\x01", b"\xfe\xff\xff\xff\x0f", b"\x01"):
        with pytest.raises(NotDecodableError, match="message indexes after the schema header"):
            split_indexes(count + b"\0" * 200)
    assert split_indexes(b"\xc8\x01" + b"\0" * 100 + b"rest") == ((0,) * 100, b"rest")


def test_a_shortage_of_memory_is_no_error_of_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have enough of it."""
    array = pa.array

    def fail_once(*_: object) -> None:
        monkeypatch.setattr(pa, "array", array)
        raise pa.ArrowMemoryError("malloc of size 64 failed")

    schema = avro_type(parse_avro(json.dumps(PLAIN)))
    monkeypatch.setattr(pa, "array", fail_once)
    with pytest.raises(pa.ArrowMemoryError):
        decode_column([b"1"], lambda v: {"carrier": "x", "delay": int(v)}, schema)


def test_the_header_is_split() -> None:
    assert split_header(with_id(258, b"rest")) == (258, b"rest")
    with pytest.raises(NotDecodableError, match="5 bytes that begin with '7b2261223a'"):
        split_header(b'{"a":')


def test_one_value_that_does_not_fit_costs_itself_alone() -> None:
    schema = avro_type(parse_avro(json.dumps(PLAIN)))
    rows = decode_column([b"1", b"99999999999"], lambda v: {"carrier": "x", "delay": int(v)}, schema).to_pylist()
    assert rows[0]["data"]["delay"] == 1
    assert rows[1]["data"] is None
    assert "does not fit its column" in rows[1]["error"]


def test_a_json_schema_becomes_columns() -> None:
    schema = {
        "definitions": {"place": {"type": "object", "properties": {"city": {"type": ["null", "string"]}}}},
        "type": "object",
        "properties": {
            "n": {"type": "integer"}, "x": {"type": "number"}, "at": {"type": "string", "format": "date-time"},
            "to": {"$ref": "#/definitions/place"}, "tags": {"type": "array", "items": {"type": "string"}},
            "maybe": {"oneOf": [{"type": "null"}, {"type": "boolean"}]}, "any": {},
            "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
    }  # fmt: skip
    assert parse_json_schema(json.dumps(schema)).simpleString() == (
        "struct<n:bigint,x:double,at:timestamp,to:struct<city:string>,tags:array<string>,maybe:boolean,any:string,"
        "labels:map<string,bigint>>"
    )
    loop = {"type": "object", "properties": {"me": {"$ref": "#"}, "next": {"$ref": "#/properties/next"}}}
    with pytest.raises(SchemaError):
        parse_json_schema(json.dumps(loop))
    with pytest.raises(SchemaError, match="allOf"):
        parse_json_schema(json.dumps({"properties": {"x": {}}, "allOf": [{"properties": {"y": {}}}]}))
    for malformed in ({"properties": [1]}, {"properties": {"a": {"$ref": 5}}}, {"type": "struct", "fields": [5]}):
        with pytest.raises(SchemaError, match="can't be read"):
            parse_json_schema(json.dumps(malformed))


def test_a_registered_schema_of_another_kind_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"the schema is JSON, but the format is avro"):
        make_decoding(DecodeSection(format="avro", registry="http://x"), RegisteredSchema(1, "JSON", "{}"), None)


def test_without_a_registry_the_node_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = {"format": "avro", "schema_file": None}
    with running_registry() as server:
        server.add("t-value", PLAIN)
        pipeline = make_pipeline("127.0.0.1:1,node-2:1", tmp_path, "t", decode=decode)
        monkeypatch.setattr(source_options, "NODE_REGISTRY", server.url.replace("127.0.0.1", "{host}"))
        value = RecordDecoder(pipeline).current().value
        assert value is not None
        assert isinstance(value.schema, StructType)
        assert value.schema.names == ["carrier", "delay"]
    with pytest.raises(PipelineError) as away:
        RecordDecoder(pipeline).current()
    assert re.fullmatch(
        r"decode\.registry: the schema registry http://127\.0\.0\.1:\d+ does not answer: .+; it is the node's at the "
        "default admin port, since the file names neither a schema_file nor a registry: set registry if the port is "
        "another one or has TLS",
        str(away.value),
    )


def test_the_registry_of_a_node_is_at_its_admin_port() -> None:
    for servers, url in (
        ("node-1:9092,node-2:9092", "http://node-1:9644/schema-registry"),
        ("[::1]:19092", "http://[::1]:9644/schema-registry"),
    ):
        source = SourceSection(topics=("t",), bootstrap_servers=servers)
        assert source_options.node_registry(source) == url
        assert (urlsplit(url).port, urlsplit(url).path) == (ADMIN_PORT, REGISTRY_PREFIX)


def test_everything_becomes_nullable() -> None:
    inner = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    kind = pa.struct([pa.field("a", pa.list_(pa.field("item", inner, nullable=False)), nullable=False)])
    assert str(nullable(kind)) == "struct<a: list<element: struct<x: int32>>>"


def test_a_registry_that_goes_away_leaves_what_was_known(tmp_path: Path) -> None:
    with running_registry() as server:
        decode = {"format": "avro", "schema_file": None, "registry": server.url}
        pipeline = make_pipeline("", tmp_path, "t", decode=decode)
        with pytest.raises(PipelineError, match=r"subject t-value: the schema registry .* has no /subjects/t-value"):
            DecoderFactory("decode", pipeline.decode, pipeline.subject_of("value")).current()
        server.add("t-value", PLAIN)
        decoders = DecoderFactory("decode", pipeline.decode, pipeline.subject_of("value"))
        first = decoders.current()
        assert first is not None
        assert decoders.current() is first
        server.add("t-value", NEWER)
        second = decoders.current()
        assert second is not None
        assert isinstance(second.schema, StructType)
        assert second.schema.names == ["carrier", "delay", "gate"]
        server.add("t-value", ["string", "int"])
        with pytest.raises(PipelineError, match=r"subject t-value: .*a union of more than"):
            decoders.current()
    assert decoders.current() is second
    with pytest.raises(PipelineError, match="does not answer"):
        DecoderFactory("decode", pipeline.decode, pipeline.subject_of("value")).current()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ArrayType(VariantType()), "c: strict JSON has no variant"),
        (MapType(IntegerType(), StringType()), "c: strict JSON has no map<int,string>"),
    ],
)
def test_types_that_strict_json_does_not_have_are_refused(kind: DataType, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        check_json_type(StructType([StructField("c", kind)]))
