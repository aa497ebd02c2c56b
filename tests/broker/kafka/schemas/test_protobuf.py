"""Protobuf: source and descriptors are one schema, and which changes are compatible."""

import base64
from collections.abc import Mapping
from typing import Any, Final

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from anabranch.broker.kafka.schemas.formats import protobuf
from anabranch.broker.kafka.schemas.formats.proto_text import to_source
from anabranch.broker.kafka.schemas.formats.protobuf import ProtobufSchema
from anabranch.broker.kafka.schemas.model import InvalidSchema, Kind, Resolved, Schema, Steps
from anabranch.broker.operator.admin.api.decoder_worker import InvalidError, compile_files

HEAD: Final = 'syntax = "proto3"; package shop; '


def compile_source(text: str, references: Mapping[str, str]) -> bytes:
    try:
        return compile_files("schema.proto", text, references)
    except InvalidError as error:
        raise InvalidSchema(str(error)) from None


def parsed(text: str, texts: Mapping[str, str] | None = None) -> ProtobufSchema:
    return ProtobufSchema(Resolved(Schema(Kind.PROTOBUF, text), texts or {}), compile_source)


def kinds(writer: str, reader: str, **texts: Any) -> list[str]:
    old, new = (parsed(each if "syntax" in each else HEAD + each) for each in (writer, reader))
    return [each.kind for each in protobuf.differences(old, new, Steps())]


READABLE: Final = {
    "a field is added": ("message M { int32 a = 1; }", "message M { int32 a = 1; string b = 2; }"),
    "a field is removed": ("message M { int32 a = 1; string b = 2; }", "message M { int32 a = 1; }"),
    "a field is renamed": ("message M { int32 a = 1; }", "message M { int32 b = 1; }"),
    "a message is added": ("message M {}", "message M {} message N {}"),
    "messages change places": ("message M {} message N {}", "message N {} message M {}"),
    "int32 to int64": ("message M { int32 a = 1; }", "message M { int64 a = 1; }"),
    "bool to uint32": ("message M { bool a = 1; }", "message M { uint32 a = 1; }"),
    "enum to int32": ("enum E { A = 0; } message M { E a = 1; }", "message M { int32 a = 1; }"),
    "string to bytes": ("message M { string a = 1; }", "message M { bytes a = 1; }"),
    "string to repeated string": ("message M { string a = 1; }", "message M { repeated string a = 1; }"),
    "an enum gets a constant": ("enum E { A = 0; }", "enum E { A = 0; B = 1; }"),
    "an enum is removed": ("enum E { A = 0; } message M {}", "message M {}"),
    "a field moves to a new oneof": (
        "message M { int32 a = 1; }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
    ),
    "a oneof gets a field": (
        "message M { oneof o { int32 a = 1; } }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
    ),
    "a oneof is renamed": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { oneof p { int32 a = 1; int32 b = 2; } }",
    ),
    "the fields of a oneof leave it": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { int32 a = 1; int32 b = 2; }",
    ),
    "a oneof is removed with its fields": ("message M { oneof o { int32 a = 1; int32 b = 2; } }", "message M {}"),
    "optional": ("message M { int32 a = 1; }", "message M { optional int32 a = 1; }"),
    "the values of a map are promoted": (
        "message M { map<string, int32> a = 1; }",
        "message M { map<string, int64> a = 1; }",
    ),
    "a message that contains itself": ("message M { M a = 1; }", "message M { M a = 1; int32 b = 2; }"),
}
UNREADABLE: Final = {
    "a message is removed": ("message M {} message N {}", "message M {}", "MESSAGE_REMOVED"),
    "a nested message is removed": ("message M { message N {} }", "message M {}", "MESSAGE_REMOVED"),
    "the package is another one": (HEAD + "message M {}", 'syntax = "proto3"; message M {}', "PACKAGE_CHANGED"),
    "int32 to string": ("message M { int32 a = 1; }", "message M { string a = 1; }", "FIELD_SCALAR_KIND_CHANGED"),
    "int32 to sint32": ("message M { int32 a = 1; }", "message M { sint32 a = 1; }", "FIELD_SCALAR_KIND_CHANGED"),
    "int32 to repeated int32": (
        "message M { int32 a = 1; }",
        "message M { repeated int32 a = 1; }",
        "FIELD_NUMERIC_LABEL_CHANGED",
    ),
    "a scalar to a message": (
        "message N {} message M { int32 a = 1; }",
        "message N {} message M { N a = 1; }",
        "FIELD_KIND_CHANGED",
    ),
    "a message to another one": (
        "message N {} message O {} message M { N a = 1; }",
        "message N {} message O {} message M { O a = 1; }",
        "FIELD_NAMED_TYPE_CHANGED",
    ),
    "the keys of a map are others": (
        "message M { map<string, int32> a = 1; }",
        "message M { map<int32, int32> a = 1; }",
        "FIELD_SCALAR_KIND_CHANGED",
    ),
    "two fields move to a oneof": (
        "message M { int32 a = 1; int32 b = 2; }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
    ),
    "a field moves to a oneof that exists": (
        "message M { int32 a = 1; oneof o { int32 b = 2; } }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "FIELD_MOVED_TO_EXISTING_ONEOF",
    ),
    "a field moves from one oneof to another": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } oneof p { int32 c = 3; } }",
        "message M { oneof o { int32 a = 1; } oneof p { int32 c = 3; int32 b = 2; } }",
        "FIELD_MOVED_TO_EXISTING_ONEOF",
    ),
    "two oneofs become one": (
        "message M { oneof o { int32 a = 1; } oneof p { int32 b = 2; } }",
        "message M { oneof q { int32 a = 1; int32 b = 2; } }",
        "FIELD_MOVED_TO_EXISTING_ONEOF",
    ),
    "a oneof with another name loses a field": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { oneof p { int32 a = 1; } }",
        "ONEOF_FIELD_REMOVED",
    ),
    "a oneof loses a field": (
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
        "message M { oneof o { int32 a = 1; } }",
        "ONEOF_FIELD_REMOVED",
    ),
    "a required field is added": (
        'syntax = "proto2"; message M {}',
        'syntax = "proto2"; message M { required int32 a = 1; }',
        "REQUIRED_FIELD_ADDED",
    ),
    "a required field is removed": (
        'syntax = "proto2"; message M { required int32 a = 1; }',
        'syntax = "proto2"; message M {}',
        "REQUIRED_FIELD_REMOVED",
    ),
}


@pytest.mark.parametrize("case", READABLE)
def test_what_can_be_read(case: str) -> None:
    assert kinds(*READABLE[case]) == []


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read(case: str) -> None:
    writer, reader, kind = UNREADABLE[case]
    assert kind in kinds(writer, reader)


def test_an_imported_message_counts() -> None:
    text = 'syntax = "proto3"; import "other.proto"; message M { other.N n = 1; }'
    sources = [f'syntax = "proto3"; package other; message N {{ {kind} a = 1; }}' for kind in ("int32", "string")]
    old, new = (parsed(text, {"other.proto": source}) for source in sources)
    assert [each.kind for each in protobuf.differences(old, new, Steps())] == ["FIELD_SCALAR_KIND_CHANGED"]
    assert protobuf.differences(old, old, Steps()) == []


WHOLE: Final = """
syntax = "proto2";
package shop.v1;
import "google/protobuf/timestamp.proto";
option java_package = "com.example";
option java_multiple_files = true;

message Order {
  reserved 10 to 12, 20;
  reserved "old";
  required string id = 1 [deprecated = true, json_name = "ID"];
  optional int32 amount = 2 [default = -5];
  optional string text = 3 [default = "a \\"b\\""];
  optional bytes data = 4 [default = "\\000x"];
  repeated int64 numbers = 5 [packed = true];
  map<string, Item> items = 6;
  oneof choice {
    string card = 7;
    group Cash = 8 { optional int32 coins = 1; }
  }
  optional google.protobuf.Timestamp at = 9;
  optional Colour colour = 13 [default = BLUE];
  extensions 100 to 199, 1000 to max;
  message Item { optional double price = 1; }
  enum Colour { option allow_alias = true; RED = 0; BLUE = 1; AZURE = 1 [deprecated = true]; reserved 5 to max; }
}
extend Order { optional int32 more = 100; }
service Shop { rpc Buy (stream Order) returns (Order) { option idempotency_level = IDEMPOTENT; } }
"""


def without_json_names(part: Any) -> Any:
    """The compiler names all fields in JSON; source names some."""
    for field in getattr(part, "field", ()):
        field.ClearField("json_name")
    for each in (*getattr(part, "message_type", ()), *getattr(part, "nested_type", ())):
        without_json_names(each)
    return part


@pytest.mark.parametrize(
    "text", [WHOLE, HEAD + "message M { optional int32 a = 1; repeated N n = 2; message N { bool b = 1; } }"]
)
def test_source_that_is_written_compiles_to_the_same(text: str) -> None:
    file = FileDescriptorSet.FromString(compile_source(text, {})).file[-1]
    again = FileDescriptorSet.FromString(compile_source(to_source(file), {})).file[-1]
    assert without_json_names(again) == without_json_names(file)
    assert to_source(again) == to_source(file)


def test_a_descriptor_in_base64_is_the_schema_of_its_source() -> None:
    schema = parsed(WHOLE)
    data = base64.b64encode(FileDescriptorProto.FromString(base64.b64decode(schema.serialized)).SerializeToString())
    sent = parsed(data.decode())
    assert sent.identity == schema.identity
    assert sent.canonical.startswith('syntax = "proto2";\n')
    assert schema.canonical == WHOLE.strip() + "\n", "source is stored as it was sent"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("message", "schema.proto"), ("QUJD", "schema.proto"), (HEAD + "message M { N n = 1; }", '"N"')],
)
def test_what_is_invalid_is_one_line(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchema, match=reason) as caught:
        parsed(text)
    assert "\n" not in str(caught.value)
