"""Protobuf: files of messages, compared by the numbers of their fields.

A schema is source in `.proto`, or a serialised FileDescriptorProto in base64, as clients send it that have classes and
no source; such a one is stored as source. Sources are compiled by a compiler from outside this module
(`Compile`), since hostile ones may take any time and memory.

The rules are those of Confluent's registry, which follow "Updating A Message Type" of protobuf's guide: messages must
not be removed; a field keeps its number, and its type within the groups that share an encoding; fields may be added
and removed unless they are required; a field may move into a new oneof alone, and fields of a oneof stay together.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.kafka.schemas.model import Difference, InvalidSchema, Resolved, Steps

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto

    _MapEntries = Mapping[str, DescriptorProto]

Compile = Callable[[str, Mapping[str, str]], bytes]
"""Compiles source with sources that it imports, by name. Returns a FileDescriptorSet, the source's own file last.

Raises InvalidSchema. It may block.
"""
_GROUPS: Final[Mapping[int, str]] = {
    1: "double", 2: "float", 3: "varint", 4: "varint", 5: "varint", 6: "fixed64", 7: "fixed32", 8: "varint",
    9: "bytes", 12: "bytes", 13: "varint", 14: "varint", 15: "fixed32", 16: "fixed64", 17: "zigzag", 18: "zigzag",
}  # fmt: skip
"""Groups of scalar types that share an encoding, by their numbers in descriptors; 14 is an enum."""
_LABEL_REQUIRED: Final = 2


class ProtobufSchema:
    """A compiled schema. Raises InvalidSchema."""

    def __init__(self, resolved: Resolved, compile_source: Compile) -> None:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet

        from anabranch.broker.kafka.schemas.formats.proto_text import to_source

        sources = {name: _source_of(text) for name, text in resolved.texts.items()}
        source = _source_of(resolved.schema.text)
        files = FileDescriptorSet.FromString(compile_source(source, sources)).file
        self.file: FileDescriptorProto = files[-1]
        self._files: Sequence[FileDescriptorProto] = files
        self.normal = to_source(self.file)
        """Source written from the descriptor."""
        self.canonical = source.strip() + "\n"

    @property
    def identity(self) -> str:
        """Text that is equal for equal schemas."""
        return self.normal

    @property
    def serialized(self) -> str:
        """The file's descriptor in base64."""
        return base64.b64encode(self.file.SerializeToString()).decode()

    def messages(self) -> "Mapping[str, DescriptorProto]":
        """Return all messages of the file and of those that it imports, by their full names."""
        return {
            f".{name}": message
            for file in self._files
            for name, message in _named(file.message_type, f"{file.package}." if file.package else "")
        }

    def package_of(self, full_name: str) -> str:
        """Return the package of a message."""
        packages = (file.package for file in self._files)
        return max((each for each in packages if full_name.startswith(f".{each}.")), key=len, default="")


def _named(messages: "Sequence[DescriptorProto]", prefix: str) -> "Iterator[tuple[str, DescriptorProto]]":
    for each in messages:
        yield f"{prefix}{each.name}", each
        yield from _named(each.nested_type, f"{prefix}{each.name}.")


def _source_of(text: str) -> str:
    """Return the source of a schema that may be a descriptor in base64."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    from anabranch.broker.kafka.schemas.formats.proto_text import to_source

    try:
        data = base64.b64decode(text, validate=True)
        file = FileDescriptorProto.FromString(data) if data else None
    except (binascii.Error, ValueError, DecodeError):
        return text
    if file is None or not (file.name or file.message_type or file.enum_type):
        return text
    try:
        return to_source(file)
    except (LookupError, ValueError, RecursionError):
        raise InvalidSchema("the descriptor in base64 is damaged") from None


# -- Differences -----------------------------------------------------------------------------------------------------


def differences(writer: ProtobufSchema, reader: ProtobufSchema, steps: Steps) -> list[Difference]:
    """Return the reasons why messages of the writer cannot be read with the reader. Raises TooComplex."""
    return list(_Comparison(writer, reader, steps).files())


class _Comparison:
    def __init__(self, writer: ProtobufSchema, reader: ProtobufSchema, steps: Steps) -> None:
        self._writer = writer
        self._reader = reader
        self._steps = steps
        self._writer_messages = writer.messages()
        self._reader_messages = reader.messages()
        self._local_names = [
            {f".{name}" for name, _ in _named(file.message_type, f"{file.package}." if file.package else "")}
            for file in (writer.file, reader.file)
        ]
        """Full names of the messages that are in the files themselves."""
        self._imported: set[tuple[str, str]] = set()
        """Pairs of messages of other files that were compared, or are being."""

    def files(self) -> Iterator[Difference]:
        """Yield the differences of the files."""
        old, new = self._writer.file, self._reader.file
        if old.package != new.package:
            yield Difference("PACKAGE_CHANGED", "#/", f"The package '{old.package}' has become '{new.package}'")
        yield from self._types(old.message_type, new.message_type, "#/")

    def _types(
        self, old: "Sequence[DescriptorProto]", new: "Sequence[DescriptorProto]", path: str
    ) -> Iterator[Difference]:
        by_name = {each.name: each for each in new}
        for each in old:
            if each.options.map_entry:
                continue  # compared as the type of its field
            where = f"{path}{each.name}"
            found = by_name.get(each.name)
            if found is None:
                yield Difference("MESSAGE_REMOVED", where, f"The message '{each.name}' is removed")
            else:
                yield from self._message(each, found, where)

    def _message(self, old: "DescriptorProto", new: "DescriptorProto", path: str) -> Iterator[Difference]:
        self._steps.take(1 + len(old.field) + len(new.field))
        entries = _map_entries(old), _map_entries(new)
        before, after = ({each.number: each for each in message.field} for message in (old, new))
        yield from self._oneofs(old, new, path)
        for number in sorted(before.keys() | after.keys()):
            one, other, where = before.get(number), after.get(number), f"{path}/{number}"
            if one is not None and other is not None:
                yield from self._field(one, other, entries, where)
            elif one is None and other is not None and other.label == _LABEL_REQUIRED:
                yield Difference("REQUIRED_FIELD_ADDED", where, f"The required field '{other.name}' is added")
            elif other is None and one is not None and one.label == _LABEL_REQUIRED:
                yield Difference("REQUIRED_FIELD_REMOVED", where, f"The required field '{one.name}' is removed")
        yield from self._types(old.nested_type, new.nested_type, f"{path}/")

    def _oneofs(self, old: "DescriptorProto", new: "DescriptorProto", path: str) -> Iterator[Difference]:
        before, after = _oneof_names(old), _oneof_names(new)
        existing, left = {each.number for each in old.field}, {each.number for each in new.field}
        origins: dict[str, set[str | int]] = {}
        """Oneofs, and numbers of fields outside of them, from which each oneof has members."""
        for number, name in after.items():
            if number in existing:
                origins.setdefault(name, set()).add(before.get(number, number))
        for name, found in sorted(origins.items()):
            # Each origin may be set beside the others in earlier data.
            if sum(isinstance(each, int) for each in found) > 1:
                yield Difference(
                    "MULTIPLE_FIELDS_MOVED_TO_ONEOF", f"{path}/{name}", f"Several fields have moved to oneof '{name}'"
                )
            elif len(found) > 1:
                yield Difference(
                    "FIELD_MOVED_TO_EXISTING_ONEOF", f"{path}/{name}", f"A field has moved to the oneof '{name}'"
                )
        kept = {*after.values(), *(name for number, name in before.items() if number in left)}
        for number, name in before.items():
            if number not in left and name in kept:
                yield Difference(
                    "ONEOF_FIELD_REMOVED", f"{path}/{name}/{number}", f"A field of oneof '{name}' is removed"
                )

    def _field(
        self,
        one: "FieldDescriptorProto",
        other: "FieldDescriptorProto",
        entries: "tuple[_MapEntries, _MapEntries]",
        path: str,
    ) -> Iterator[Difference]:
        maps = tuple(known.get(_short_name(field)) for known, field in zip(entries, (one, other), strict=True))
        kinds = tuple("map" if entry else _kind(field) for entry, field in zip(maps, (one, other), strict=True))
        if kinds[0] != kinds[1]:
            yield Difference("FIELD_KIND_CHANGED", path, f"The field '{other.name}' was {kinds[0]}, and is {kinds[1]}")
        elif maps[0] is not None and maps[1] is not None:
            for part, counterpart in zip(maps[0].field, maps[1].field, strict=True):
                yield from self._field(part, counterpart, ({}, {}), path)
        elif kinds[0] == "message":
            yield from self._named_type(one.type_name, other.type_name, path)
        elif _GROUPS[one.type] != _GROUPS[other.type]:
            yield Difference(
                "FIELD_SCALAR_KIND_CHANGED", path, f"The type of the field '{other.name}' has another encoding"
            )
        elif _GROUPS[one.type] != "bytes" and (one.label == 3) != (other.label == 3):
            yield Difference(
                "FIELD_NUMERIC_LABEL_CHANGED", path, f"The numeric field '{other.name}' was or is repeated"
            )

    def _named_type(self, one: str, other: str, path: str) -> Iterator[Difference]:
        packages = self._writer.package_of(one), self._reader.package_of(other)
        names = tuple(
            name.removeprefix(f".{package}.") if package else name.removeprefix(".")
            for name, package in zip((one, other), packages, strict=True)
        )
        if names[0] != names[1]:
            yield Difference("FIELD_NAMED_TYPE_CHANGED", path, f"The type has changed from {names[0]} to {names[1]}")
            return
        own = {self._writer.file.package, self._reader.file.package}
        pair = (one, other)
        if pair in self._imported or (set(packages) == own and len(own) == 1 and self._is_local(pair)):
            return
        self._imported.add(pair)
        old, new = self._writer_messages.get(one), self._reader_messages.get(other)
        if old is not None and new is not None:
            yield from self._message(old, new, path)

    def _is_local(self, pair: tuple[str, str]) -> bool:
        """Return whether a message is of both files themselves, and so compared with their types."""
        return all(name in names for name, names in zip(pair, self._local_names, strict=True))


def _oneof_names(message: "DescriptorProto") -> dict[int, str]:
    """Return the names of the oneofs that fields are in, by the fields' numbers; `optional` of proto3 is none."""
    return {
        each.number: message.oneof_decl[each.oneof_index].name
        for each in message.field
        if each.HasField("oneof_index") and not each.proto3_optional
    }


def _map_entries(message: "DescriptorProto") -> "_MapEntries":
    """Return the messages that stand for the entries of a message's maps, by their names."""
    return {each.name: each for each in message.nested_type if each.options.map_entry}


def _short_name(field: "FieldDescriptorProto") -> str:
    return str(field.type_name).rpartition(".")[2]


def _kind(field: Any) -> str:
    return "scalar" if field.type in _GROUPS else "message"
