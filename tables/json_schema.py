"""JSON Schema as the type of columns."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from anabranch.tables.errors import SchemaError
from anabranch.tables.field_limit import FieldCount
from anabranch.tables.types import TIMESTAMP, list_of, map_of

PLAIN: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(),
}  # fmt: skip
FORMATS: Final[Mapping[str, pa.DataType]] = {"date-time": TIMESTAMP, "date": pa.date32()}


def json_schema_type(text: str) -> pa.StructType:
    """Return the columns of a JSON Schema. Raises SchemaError."""
    try:
        values = json.loads(text)
        kind = _Types(values).of(values, ())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SchemaError(f"the schema can't be read: {reason}") from error
    if not pa.types.is_struct(kind):
        raise SchemaError("the schema must have properties, which are the columns")
    return kind


class _Types:
    """Types of a schema's parts."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._count = FieldCount()

    def of(self, schema: Any, inside: tuple[str, ...]) -> pa.DataType:
        """Return the type of a part. `inside` are the references that it was reached by."""
        if not isinstance(schema, dict):
            return pa.string()
        if "allOf" in schema:
            raise SchemaError("a schema with allOf can't be read: list the properties in one place")
        if reference := schema.get("$ref"):
            if reference in inside:
                raise SchemaError(f"{reference} contains itself, which a table cannot")
            return self.of(self._resolve(reference), (*inside, reference))
        for word in ("oneOf", "anyOf"):
            if word in schema:
                members = [part for part in schema[word] if part != {"type": "null"}]
                # Several types: a string column takes the text of any JSON.
                return self.of(members[0], inside) if len(members) == 1 else pa.string()
        names = schema.get("type")
        kinds = [name for name in (names if isinstance(names, list) else [names]) if name != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, inside)
        if kind == "array":
            self._count.add(1)
            return list_of(self.of(schema.get("items"), inside))
        if kind == "string" and schema.get("format") in FORMATS:
            return FORMATS[schema["format"]]
        return PLAIN.get(str(kind), pa.string())

    def _object(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> pa.DataType:
        if properties := schema.get("properties"):
            self._count.add(len(properties))
            return pa.struct([pa.field(name, self.of(part, inside)) for name, part in properties.items()])
        extra = schema.get("additionalProperties")
        if not isinstance(extra, dict):
            return pa.string()
        self._count.add(2)
        return map_of(pa.string(), self.of(extra, inside))

    def _resolve(self, reference: str) -> Any:
        if not (reference == "#" or reference.startswith("#/")):
            raise SchemaError(f"{reference}: only references inside the schema are followed")
        found: Any = self._root
        for part in reference.split("/")[1:]:
            if not isinstance(found, dict) or part not in found:
                raise SchemaError(f"{reference}: the schema has nothing there")
            found = found[part]
        return found
