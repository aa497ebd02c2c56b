"""Source of a file of protobuf, written from its descriptor: the one text of all sources that say the same.

Comments are not in descriptors, nor are custom options whose definitions are unknown here. Statements have a fixed
order: options, reserved, fields by their place in the source, oneofs at their first field, then nested types.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

_TYPES: Final = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string",
    10: "group", 12: "bytes", 13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip
_LABELS: Final = {FieldDescriptorProto.LABEL_REPEATED: "repeated ", FieldDescriptorProto.LABEL_REQUIRED: "required "}
_MESSAGE_RANGE_MAX: Final = 536_870_911
_ENUM_RANGE_MAX: Final = 2**31 - 1
_INDENT: Final = "  "


def to_source(file: FileDescriptorProto) -> str:
    """Return the source of a file."""
    return "\n".join(_File(file).lines()) + "\n"


class _File:
    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._syntax = file.syntax or "proto2"

    def lines(self) -> Iterator[str]:
        file = self._file
        if self._syntax == "editions":
            edition = file.DESCRIPTOR.fields_by_name["edition"].enum_type.values_by_number[file.edition].name
            yield f'edition = "{edition.removeprefix("EDITION_")}";'
        else:
            yield f'syntax = "{self._syntax}";'
        if file.package:
            yield f"package {file.package};"
        if file.dependency:
            yield ""
        public, weak = frozenset(file.public_dependency), frozenset(file.weak_dependency)
        for index, name in enumerate(file.dependency):
            kind = "public " if index in public else "weak " if index in weak else ""
            yield f"import {kind}{_quoted(name)};"
        options = list(_options(file.options))
        if options:
            yield ""
        yield from (f"option {each};" for each in options)
        for message in file.message_type:
            yield ""
            yield from self._message(message)
        for enum in file.enum_type:
            yield ""
            yield from self._enum(enum)
        yield from self._extensions(file.extension)
        for service in file.service:
            yield ""
            yield from self._service(service)

    def _message(self, message: Any) -> Iterator[str]:
        yield f"message {message.name} {{"
        yield from _indented(self._body(message))
        yield "}"

    def _body(self, message: Any) -> Iterator[str]:
        yield from (f"option {each};" for each in _options(message.options))
        yield from _reserved(message, (_range(r.start, r.end - 1, _MESSAGE_RANGE_MAX) for r in message.reserved_range))
        entries = {each.name: each for each in message.nested_type if each.options.map_entry}
        groups = {
            each.type_name.rpartition(".")[2] for each in message.field if each.type == FieldDescriptorProto.TYPE_GROUP
        }
        nested = {each.name: each for each in message.nested_type}
        members = _oneof_members(message)
        for each in message.field:
            if each.HasField("oneof_index") and not each.proto3_optional:
                if own := members.pop(each.oneof_index, None):
                    yield from self._oneof(message.oneof_decl[each.oneof_index], own, nested)
            elif each.type_name.rpartition(".")[2] in entries and each.label == FieldDescriptorProto.LABEL_REPEATED:
                yield self._map(each, entries[each.type_name.rpartition(".")[2]])
            else:
                yield from self._field(each, nested)
        for each in message.extension_range:
            yield f"extensions {_range(each.start, each.end - 1, _MESSAGE_RANGE_MAX)};"
        yield from self._extensions(message.extension)
        for each in message.nested_type:
            if each.name not in entries and each.name not in groups:
                yield from self._message(each)
        for each in message.enum_type:
            yield from self._enum(each)

    def _oneof(self, oneof: Any, members: Sequence[Any], nested: Mapping[str, Any]) -> Iterator[str]:
        yield f"oneof {oneof.name} {{"
        yield from _indented(f"option {each};" for each in _options(oneof.options))
        for each in members:
            yield from _indented(self._field(each, nested, label=""))
        yield "}"

    def _map(self, field: Any, entry: Any) -> str:
        key, value = (_type_of(each) for each in entry.field)
        return f"map<{key}, {value}> {field.name} = {field.number}{self._field_options(field)};"

    def _field(self, field: Any, nested: Any, *, label: str | None = None) -> Iterator[str]:
        if label is None:
            label = _LABELS.get(field.label, "optional " if self._syntax == "proto2" or field.proto3_optional else "")
        if field.type == FieldDescriptorProto.TYPE_GROUP:
            group = nested[field.type_name.rpartition(".")[2]]
            yield f"{label}group {group.name} = {field.number}{self._field_options(field)} {{"
            yield from _indented(self._body(group))
            yield "}"
        else:
            yield f"{label}{_type_of(field)} {field.name} = {field.number}{self._field_options(field)};"

    def _field_options(self, field: Any) -> str:
        options: list[str] = []
        if field.HasField("default_value"):
            options.append(f"default = {_default(field)}")
        if field.HasField("json_name") and field.json_name != _json_name(field.name):
            options.append(f"json_name = {_quoted(field.json_name)}")
        options += _options(field.options)
        return f" [{', '.join(options)}]" if options else ""

    def _enum(self, enum: Any) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        yield from _indented(f"option {each};" for each in _options(enum.options))
        ranges = (_range(each.start, each.end, _ENUM_RANGE_MAX) for each in enum.reserved_range)
        yield from _indented(_reserved(enum, ranges))
        for each in enum.value:
            options = ", ".join(_options(each.options))
            yield f"{_INDENT}{each.name} = {each.number}{f' [{options}]' if options else ''};"
        yield "}"

    def _extensions(self, extensions: Sequence[Any]) -> Iterator[str]:
        for each in extensions:
            yield f"extend {each.extendee} {{"
            yield from _indented(self._field(each, {}))
            yield "}"

    def _service(self, service: Any) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from _indented(f"option {each};" for each in _options(service.options))
        for each in service.method:
            sent = f"{'stream ' if each.client_streaming else ''}{each.input_type}"
            returned = f"{'stream ' if each.server_streaming else ''}{each.output_type}"
            options = list(_options(each.options))
            head = f"{_INDENT}rpc {each.name} ({sent}) returns ({returned})"
            if not options:
                yield f"{head};"
                continue
            yield f"{head} {{"
            yield from _indented(_indented(f"option {option};" for option in options))
            yield f"{_INDENT}}}"
        yield "}"


def _reserved(described: Any, ranges: Iterable[str]) -> Iterator[str]:
    """Yield the numbers and names that a message or an enum must not use."""
    if listed := ", ".join(ranges):
        yield f"reserved {listed};"
    if described.reserved_name:
        yield f"reserved {', '.join(map(_quoted, described.reserved_name))};"


def _oneof_members(message: Any) -> dict[int, list[Any]]:
    """Return the fields of each oneof, by its index; `optional` of proto3 is none."""
    members: dict[int, list[Any]] = {}
    for each in message.field:
        if each.HasField("oneof_index") and not each.proto3_optional:
            members.setdefault(each.oneof_index, []).append(each)
    return members


def _type_of(field: Any) -> str:
    return str(field.type_name) if field.type_name else _TYPES[field.type]


def _default(field: Any) -> str:
    if field.type == FieldDescriptorProto.TYPE_STRING:
        return _quoted(field.default_value)
    if field.type == FieldDescriptorProto.TYPE_BYTES:
        return f'"{field.default_value}"'  # it is escaped already
    return str(field.default_value)


def _options(options: Any) -> Iterator[str]:
    """Yield the options that are set, as `name = value`."""
    for descriptor, value in options.ListFields():
        if descriptor.name in {"map_entry", "uninterpreted_option"}:
            continue
        name = f"({descriptor.full_name})" if descriptor.is_extension else descriptor.name
        for each in value if descriptor.is_repeated else [value]:
            yield f"{name} = {_option_value(descriptor, each)}"


def _option_value(descriptor: Any, value: Any) -> str:
    if descriptor.message_type is not None:
        parts = (f"{part.name}: {_option_value(part, inner)}" for part, inner in value.ListFields())
        return f"{{ {' '.join(parts)} }}"
    if descriptor.enum_type is not None:
        return str(descriptor.enum_type.values_by_number[value].name)
    if isinstance(value, bool):
        return "true" if value else "false"
    return _quoted(value) if isinstance(value, str) else str(value)


def _range(first: int, last: int, end: int) -> str:
    if first == last:
        return str(first)
    return f"{first} to {'max' if last >= end else last}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def _json_name(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(each[:1].upper() + each[1:] for each in others)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"{_INDENT}{line}" for line in lines)
