"""Schemas that records were written with, in files instead of a registry."""

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.tables.errors import UnknownSchemaError
from anabranch.tables.registry import RegisteredSchema, SchemaKey


@dataclass(frozen=True, slots=True)
class SchemaFiles:
    """Schemas of Avro by the text of their key, in lower case."""

    texts: Mapping[str, str]

    def by_key(self, key: SchemaKey, *, protobuf: bool = False) -> RegisteredSchema:  # noqa: ARG002 - as a registry
        """Return a schema. Raises UnknownSchemaError."""
        text = self.texts.get(str(key).lower())
        if text is None:
            raise UnknownSchemaError(f"no file for the schema {key}")
        return RegisteredSchema(-1, "AVRO", text)
