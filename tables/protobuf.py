"""Protobuf values: a message's descriptor as a type of columns, and a decoder.

A schema file is a descriptor set (`protoc --include_imports --descriptor_set_out`). A registry returns descriptors with
`format=serialized`. Fields without presence have their default when they were not sent, as in every language; messages,
`optional` fields and members of a `oneof` are null. Enums become their names, and `uint64` a decimal.

Confluent's header names the message by its indexes in the writer's schema, so they are looked up there. The bytes are
read with the newest schema, by protobuf's rules of evolution.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from textwrap import shorten
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from anabranch.tables.errors import NotDecodableError, SchemaError, UnknownSchemaError
from anabranch.tables.field_limit import FieldCount
from anabranch.tables.framing import Framing
from anabranch.tables.registry import RegisteredSchema, SchemaKey, WriterSchemas
from anabranch.tables.types import TIMESTAMP, list_of, map_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Convert = Callable[[Any], Any]
_AS_JSON = {"google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue", "google.protobuf.Any"}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_CPP: dict[str, tuple[pa.DataType, Convert]] = {
    "int32": (pa.int32(), int), "int64": (pa.int64(), int), "uint32": (pa.int64(), int),
    "uint64": (pa.decimal128(20, 0), Decimal), "double": (pa.float64(), float), "float": (pa.float32(), float),
    "bool": (pa.bool_(), bool),
}  # fmt: skip
_CPP_NAMES = {1: "int32", 2: "int64", 3: "uint32", 4: "uint64", 5: "double", 6: "float", 7: "bool"}
_CPP_ENUM, _CPP_STRING, _CPP_MESSAGE = 8, 9, 10
_TYPE_BYTES = 12
_LISTED_CHARS_MAX = 300
INDEXES_MAX = 100
"""Indexes of a message in a header: its depth in the schema, which compilers limit to a third of this."""
WRITERS_MAX = 1_000
"""Schemas that records were written with, or reasons why one is unknown, that are kept."""


def descriptor_set(data: bytes) -> bytes:
    """Check a descriptor set from a file. Raises SchemaError."""
    try:
        if FileDescriptorSet.FromString(data).file:
            return data
    except DecodeError:
        pass
    raise SchemaError("not a descriptor set, as `protoc --include_imports --descriptor_set_out=FILE` writes it")


def registered_set(schema: RegisteredSchema) -> bytes:
    """Return the descriptor set of a registered schema and its references, its own file last. Raises SchemaError."""
    found = FileDescriptorSet()
    try:
        for name, text in (*schema.references, ("", schema.text)):
            proto = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
            proto.name = name or proto.name or "schema.proto"
            found.file.append(proto)
    except (DecodeError, ValueError) as error:
        raise SchemaError("the registry did not give a serialised descriptor") from error
    return bytes(found.SerializeToString())


def find_message(data: bytes, wanted: str | None) -> Any:
    """Return the descriptor of a message, by default the first of the set's last file. Raises SchemaError."""
    pool = _pool(data)
    files = FileDescriptorSet.FromString(data).file
    try:
        messages = pool.FindFileByName(files[-1].name).message_types_by_name
        if wanted:
            return pool.FindMessageTypeByName(wanted)
    except (KeyError, TypeError) as error:
        raise SchemaError(f"no message {wanted or 'at all'} in the schema: {error}") from error
    if not files[-1].message_type:
        raise SchemaError(f"no message in {files[-1].name}")
    return messages[files[-1].message_type[0].name]


def find_only_message(data: bytes) -> Any:
    """Return the descriptor of the set's last file's only message. Raises SchemaError, also if there are several."""
    names = [name.full for path, name in message_names(data).items() if len(path) == 1]
    if len(names) > 1:
        # The first may be another one in the next version.
        listed = shorten(", ".join(names), _LISTED_CHARS_MAX, placeholder=" ...")
        raise SchemaError(f"the schema has several messages: set `message` to one of {listed}")
    return find_message(data, None)


class MessageName(NamedTuple):
    """Name of a message."""

    full: str
    own: str
    """Without the package, which a later version may change."""


def message_names(data: bytes) -> dict[tuple[int, ...], MessageName]:
    """Return the names of all messages of the set's last file, by their indexes."""
    file = FileDescriptorSet.FromString(data).file[-1]
    package = f"{file.package}." if file.package else ""
    found: dict[tuple[int, ...], MessageName] = {}

    def add(messages: Sequence[Any], inside: tuple[int, ...], prefix: str) -> None:
        for index, message in enumerate(messages):
            path, name = (*inside, index), f"{prefix}{message.name}"
            found[path] = MessageName(package + name, name)
            add(message.nested_type, path, f"{name}.")

    add(file.message_type, (), "")
    return found


def protobuf_type(descriptor: Any) -> pa.StructType:
    """Return the columns of a message. Raises SchemaError."""
    kind, _ = _message(descriptor, (), FieldCount())
    assert pa.types.is_struct(kind), "a message of its own"
    return kind


@dataclass(slots=True)
class ProtobufDecoder:
    """Decodes bytes to a dict. It is pickled to tasks, and caches the schemas it meets there."""

    descriptors: bytes
    message: str
    """Full name of the message."""
    framing: Framing
    registry: WriterSchemas | None = None
    """Without one, the indexes in headers are those of the descriptors."""
    schema_id: SchemaKey = -1
    """Id of the descriptors in the registry."""
    _writers: dict[SchemaKey, dict[tuple[int, ...], MessageName] | Exception] = field(default_factory=dict)
    """Names of the messages of each schema that records were written with, or why they are unknown."""
    _class: Any = None
    _convert: Convert | None = None
    _own: str | None = None
    """Name of the message without its package; None if it is not one of the schema's own file."""

    def __call__(self, value: bytes) -> Any:
        """Decode a value. Raises NotDecodableError, and RegistryError when the registry does not answer."""
        if self._convert is None:
            descriptor = find_message(self.descriptors, self.message)
            self._class = GetMessageClass(descriptor)
            self._convert = _message(descriptor, (), FieldCount())[1]
            names = message_names(self.descriptors).values()
            self._own = next((name.own for name in names if name.full == self.message), None)
        if self.framing is not Framing.NONE:
            schema_id, value = self.framing.unframe(value)
            path, value = split_indexes(value)
            self._check(schema_id, path)
        try:
            found = self._class.FromString(value)
        except DecodeError as error:
            raise NotDecodableError(f"not a {self.message}: {error}") from None
        return self._convert(found)

    def _check(self, schema_id: SchemaKey, path: tuple[int, ...]) -> None:
        """Check the header's message indexes. Raises NotDecodableError and RegistryError."""
        name = self._writer(schema_id).get(path)
        if name is None:
            raise NotDecodableError(f"the schema has no message {list(path)}")
        if name.full != self.message and name.own != self._own:
            raise NotDecodableError(f"a {name.full}, not a {self.message}")

    def _writer(self, schema_id: SchemaKey) -> dict[tuple[int, ...], MessageName]:
        """Return the names of the messages in a writer's schema. Raises NotDecodableError and RegistryError."""
        if self.registry is None:
            schema_id = self.schema_id
        writer = self._writers.get(schema_id)
        if writer is None:
            try:
                writer = message_names(self._descriptors_of(schema_id))
            except (UnknownSchemaError, SchemaError) as error:
                writer = error
            if len(self._writers) < WRITERS_MAX:
                self._writers[schema_id] = writer
        if isinstance(writer, Exception):
            raise NotDecodableError(str(writer))
        return writer

    def _descriptors_of(self, schema_id: SchemaKey) -> bytes:
        if self.registry is None or schema_id == self.schema_id:
            return self.descriptors
        schema = self.registry.by_key(schema_id, protobuf=True)
        if schema.kind != "PROTOBUF":
            raise SchemaError(f"schema {schema_id} is {schema.kind}, not PROTOBUF")
        return registered_set(schema)

    def __getstate__(self) -> tuple[bytes, str, Framing, WriterSchemas | None, SchemaKey]:
        """Return the state without classes made from descriptors, which cannot be pickled."""
        return self.descriptors, self.message, self.framing, self.registry, self.schema_id

    def __setstate__(self, state: tuple[bytes, str, Framing, WriterSchemas | None, SchemaKey]) -> None:
        """Restore the state; classes are made again when needed."""
        self.descriptors, self.message, self.framing, self.registry, self.schema_id = state
        self._writers = {}
        self._class = self._convert = self._own = None


def split_indexes(value: bytes) -> tuple[tuple[int, ...], bytes]:
    """Split off the message indexes after Confluent's header: zigzag varints; a single 0 means the first message.

    Raises NotDecodableError.
    """
    count, rest = _varint(value)
    if count == 0:
        return (0,), rest
    if not 0 < count <= INDEXES_MAX:
        raise NotDecodableError(f"{count} message indexes after the schema header")
    path = []
    for _ in range(count):
        index, rest = _varint(rest)
        path.append(index)
    return tuple(path), rest


def _varint(value: bytes) -> tuple[int, bytes]:
    number = 0
    for position, byte in enumerate(value[:5]):
        number |= (byte & 0x7F) << (7 * position)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), value[position + 1 :]
    raise NotDecodableError("no message indexes after the schema header")


def _pool(data: bytes) -> DescriptorPool:
    pool = DescriptorPool()
    waiting = {proto.name: proto for proto in FileDescriptorSet.FromString(data).file}

    def add(name: str) -> None:
        proto = waiting.pop(name, None)
        if proto is None:
            return
        for dependency in proto.dependency:
            if dependency.startswith("google/protobuf/") and dependency not in waiting:
                _add_well_known(pool, dependency)
            add(dependency)
        try:
            pool.Add(proto)
        except TypeError as error:
            raise SchemaError(f"{name}: {error}") from error

    for name in list(waiting):
        add(name)
    return pool


def _add_well_known(pool: DescriptorPool, name: str) -> None:
    """Add the files that are part of protobuf itself, which registries leave out."""
    from google.protobuf import any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    for module in (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2):
        if module.DESCRIPTOR.name == name:
            proto = FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(proto)
            pool.Add(proto)


def _message(descriptor: Any, inside: tuple[str, ...], count: FieldCount) -> tuple[pa.DataType, Convert]:
    name = descriptor.full_name
    if name == "google.protobuf.Timestamp":
        return TIMESTAMP, _timestamp
    if name in _AS_JSON:
        return pa.string(), lambda m: json_format.MessageToJson(m, indent=None)
    if name in _WRAPPERS:
        kind, convert = _single(descriptor.fields_by_name["value"], inside, count)
        return kind, lambda m: convert(m.value)
    if name in inside:
        raise SchemaError(f"{name} contains itself, which a table cannot")
    count.add(len(descriptor.fields))
    parts = [(part.name, *_field(part, (*inside, name), count)) for part in descriptor.fields]
    kind = pa.struct([pa.field(part_name, part_kind) for part_name, part_kind, _ in parts])

    def convert_all(m: Any) -> Any:
        try:
            return {part_name: get(m) for part_name, _, get in parts}
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - protobuf and Python raise many kinds for values that they cannot show
            raise _wrong_field(m, parts) from None

    return kind, convert_all


class _WrongField(NotDecodableError):
    """A value that has no column. The text begins with its field."""


def _wrong_field(message: Any, parts: Sequence[tuple[str, pa.DataType, Convert]]) -> _WrongField:
    """Return the error of the first field that cannot be converted."""
    for name, _, get in parts:
        try:
            get(message)
        except _WrongField as error:
            return _WrongField(f"{name}.{error}")
        except Exception as error:  # noqa: BLE001 - as above
            return _WrongField(f"{name}: {error}")
    raise AssertionError("one of them failed before")


def _timestamp(message: Any) -> datetime:
    """Return a time. Raises NotDecodableError and OverflowError."""
    if message.nanos % 1000 or not 0 <= message.nanos < 1_000_000_000:
        raise NotDecodableError(f"{message.nanos} nanoseconds are not whole microseconds of a second")
    return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)


def _field(part: Any, inside: tuple[str, ...], count: FieldCount) -> tuple[pa.DataType, Convert]:
    """Return the type of a field, and a function that gets it from a message."""
    name = part.name
    if part.message_type is not None and part.message_type.GetOptions().map_entry:
        entry = part.message_type.fields_by_name
        count.add(len(entry))
        key_kind, key = _single(entry["key"], inside, count)
        value_kind, value = _single(entry["value"], inside, count)
        return map_of(key_kind, value_kind), lambda m: [(key(k), value(v)) for k, v in getattr(m, name).items()]
    kind, convert = _single(part, inside, count)
    if part.is_repeated:
        count.add(1)
        return list_of(kind), lambda m: [convert(item) for item in getattr(m, name)]
    if part.has_presence:
        return kind, lambda m: convert(getattr(m, name)) if m.HasField(name) else None
    return kind, lambda m: convert(getattr(m, name))


def _text(value: str | bytes) -> str:
    """Return a text: protobuf gives one of proto2 that is not UTF-8 as bytes. Raises UnicodeDecodeError."""
    return value.decode() if isinstance(value, bytes) else value


def _single(part: Any, inside: tuple[str, ...], count: FieldCount) -> tuple[pa.DataType, Convert]:
    if part.cpp_type == _CPP_MESSAGE:
        return _message(part.message_type, inside, count)
    if part.cpp_type == _CPP_ENUM:
        names = {number: value.name for number, value in part.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number, str(number))
    if part.cpp_type == _CPP_STRING:
        return (pa.binary(), bytes) if part.type == _TYPE_BYTES else (pa.string(), _text)
    return _CPP[_CPP_NAMES[part.cpp_type]]
