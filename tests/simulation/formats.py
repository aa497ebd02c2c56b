"""Formats of values whose topics are tables: what producers send, and which columns that becomes.

The schema of a topic grows: each version adds a field to those before. Of a value of an earlier version it is null, and
of a later one that a table does not have yet, it is left out.
"""

import base64
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import fastavro
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tests.simulation.columns import SimRegistry
from tests.simulation.history import raw_identity

FORMATS: Final = ("json", "avro", "protobuf", "raw")
TYPED: Final = FORMATS[:-1]
NAME, NUMBER = "name", "number"
"""Fields of every version: the value as the history knows it, between two bars, and its number."""
_IDENTITY: Final = re.compile(rb"\|([\w.-]+:\d+)\|")


@dataclass(frozen=True, slots=True)
class Sent:
    """A value that was sent."""

    version: int
    is_bad: bool
    """True if it cannot be decoded."""


class Values:
    """Values of one life of a topic, in one format."""

    def __init__(self, format_name: str, subject: str, registry: SimRegistry) -> None:
        """The schemas of Avro and protobuf are registered, those of JSON are configs of the topic."""
        self.format = format_name
        self.version = 0
        """Newest version of the schema."""
        self.sent: dict[str, Sent] = {}
        self._subject = subject
        self._registry = registry
        self._ids: list[int] = []
        """Ids of the versions in the registry."""
        self.grow()

    @property
    def is_typed(self) -> bool:
        """True if values become columns of their own."""
        return self.format in TYPED

    def grow(self) -> None:
        """Begin the next version of the schema."""
        self.version += 1
        if self.format == "avro":
            self._ids.append(
                self._registry.register(self._subject, "AVRO", json.dumps(self._avro_schema(self.version)))
            )
        elif self.format == "protobuf":
            serialised = base64.b64encode(self._descriptor(self.version).SerializeToString()).decode()
            self._ids.append(self._registry.register(self._subject, "PROTOBUF", "message ...", serialised))

    def configs(self) -> Mapping[str, str]:
        """Return the configs of a topic with these values, which change with the version."""
        if self.format == "raw":
            return {}
        if self.format == "json":
            properties = {NAME: {"type": "string"}, NUMBER: {"type": "integer"}}
            properties |= {name: {"type": "string"} for name in added_fields(self.version)}
            schema = json.dumps({"type": "object", "properties": properties})
            return {"table.value": "json", "table.value.schema": schema}
        return {"table.value": self.format, "table.value.subject": self._subject}

    def identify(self, data: bytes) -> str:
        """Return the value that the history knows, of what is in a record."""
        if not self.is_typed:
            return raw_identity(data)
        found = _IDENTITY.search(data)
        assert found is not None, f"no value of this format: {data[:100]!r}"
        return found[1].decode()

    def encode(self, value: str, padding: bytes, *, is_bad: bool) -> bytes:
        """Return what a record has of a value."""
        self.sent[value] = Sent(self.version, is_bad)
        if not self.is_typed:
            return value.encode() + b"|" + padding
        if is_bad:
            return f"bad|{value}|".encode() + padding
        fields = {NAME: f"|{value}|", NUMBER: _number(value)}
        fields |= {name: _added(name, value) for name in added_fields(self.version)}
        if self.format == "json":
            return json.dumps(fields).encode() + b" " * len(padding)
        body = self._body(fields)
        return b"\0" + self._ids[-1].to_bytes(4, "big") + body

    def _body(self, fields: Mapping[str, Any]) -> bytes:
        if self.format == "avro":
            out = io.BytesIO()
            fastavro.schemaless_writer(out, dict(self._avro_schema(self.version)), fields)
            return out.getvalue()
        pool = DescriptorPool()
        pool.Add(self._descriptor(self.version))
        message: Any = GetMessageClass(pool.FindMessageTypeByName("sim.Value"))
        return b"\0" + bytes(message(**fields).SerializeToString())

    @staticmethod
    def _avro_schema(version: int) -> Mapping[str, Any]:
        fields: list[Mapping[str, Any]] = [{"name": NAME, "type": "string"}, {"name": NUMBER, "type": "long"}]
        fields += [{"name": name, "type": ["null", "string"], "default": None} for name in added_fields(version)]
        return {"type": "record", "name": "Value", "fields": fields}

    @staticmethod
    def _descriptor(version: int) -> FileDescriptorProto:
        file = FileDescriptorProto(name="value.proto", package="sim", syntax="proto3")
        message, kind = file.message_type.add(name="Value"), FieldDescriptorProto
        message.field.add(name=NAME, number=1, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
        message.field.add(name=NUMBER, number=2, type=kind.TYPE_INT64, label=kind.LABEL_OPTIONAL)
        for at, name in enumerate(added_fields(version), 3):
            message.field.add(name=name, number=at, type=kind.TYPE_STRING, label=kind.LABEL_OPTIONAL)
        return file

    def problem(self, row: Mapping[str, Any], kafka: Mapping[str, Any]) -> str | None:
        """Return what is wrong with a row, None if it is what its value becomes. A column may be missing so far."""
        if not self.is_typed:
            return None if kafka["error"] is None else f"has the error {kafka['error']!r}"
        if kafka["error"] is not None:
            value = None if kafka["value_raw"] is None else self.identify(kafka["value_raw"])
            if value is None or not self.sent[value].is_bad:
                return f"has the error {kafka['error']!r} for {kafka['value_raw']!r}"
            return None if row.get(NAME) is None else f"has an error and {row}"
        value = str(row.get(NAME)).strip("|")
        known = self.sent.get(value)
        if known is None or known.is_bad or row.get(NUMBER) != _number(value):
            return f"is {row}, sent was {known}"
        sent_fields = added_fields(known.version)
        for name, found in row.items():
            expected = _added(name, value) if name in sent_fields else None
            if name not in {NAME, NUMBER} and found and found != expected:
                return f"is {row}, sent was {name}={expected!r}"
        return None

    def is_newest(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row has all columns of the newest version."""
        return not self.is_typed or all(row.get(name) for name in added_fields(self.version))


def added_fields(version: int) -> list[str]:
    """Return the fields of a version that the first one does not have."""
    return [f"added{number}" for number in range(2, version + 1)]


def _number(value: str) -> int:
    return int(value.rpartition(":")[2])


def _added(name: str, value: str) -> str:
    return f"{name} of {value}"
