"""Schemas of JSON values as Spark's type: DDL, Spark's own JSON, or JSON Schema."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from anabranch.spark.pipeline.avro import SchemaError

PLAIN: Mapping[str, DataType] = {
    "string": StringType(), "integer": LongType(), "number": DoubleType(), "boolean": BooleanType(),
}  # fmt: skip
FORMATS: Mapping[str, DataType] = {"date-time": TimestampType(), "date": DateType()}


def parse_json_schema(text: str) -> StructType:
    """Parse a schema in any of the three formats; DDL needs a running session. Raises SchemaError."""
    try:
        if not text.lstrip().startswith("{"):
            kind = DataType.fromDDL(text)
        else:
            values = json.loads(text)
            spark_own = values.get("type") == "struct" or "fields" in values
            kind = StructType.fromJson(values) if spark_own else _of_json_schema(values, values, ())
    except (ParseException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SchemaError(f"the schema can't be read: {reason}") from error
    if not isinstance(kind, StructType):
        raise SchemaError(f"the schema must list columns, but it is a {kind.simpleString()}")
    return kind


def _of_json_schema(schema: Any, root: Mapping[str, Any], inside: tuple[str, ...]) -> DataType:
    if not isinstance(schema, dict):
        return StringType()
    if "allOf" in schema:
        raise SchemaError("a schema with allOf can't be read: list the properties in one place")
    if reference := schema.get("$ref"):
        if reference in inside:
            raise SchemaError(f"{reference} contains itself, which a table cannot")
        return _of_json_schema(_resolve(reference, root), root, (*inside, reference))
    for word in ("oneOf", "anyOf"):
        if word in schema:
            members = [part for part in schema[word] if part != {"type": "null"}]
            # Several types: a string column takes the text of any JSON.
            return _of_json_schema(members[0], root, inside) if len(members) == 1 else StringType()
    names = schema.get("type")
    kinds = [name for name in (names if isinstance(names, list) else [names]) if name != "null"]
    kind = kinds[0] if len(kinds) == 1 else None
    if kind == "object" or (kind is None and "properties" in schema):
        return _object(schema, root, inside)
    if kind == "array":
        return ArrayType(_of_json_schema(schema.get("items"), root, inside))
    if kind == "string" and schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    return PLAIN.get(str(kind), StringType())


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], inside: tuple[str, ...]) -> DataType:
    if properties := schema.get("properties"):
        return StructType([StructField(name, _of_json_schema(part, root, inside)) for name, part in properties.items()])
    extra = schema.get("additionalProperties")
    return MapType(StringType(), _of_json_schema(extra, root, inside)) if isinstance(extra, dict) else StringType()


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#/"):
        raise SchemaError(f"{reference}: only references inside the schema are followed")
    found: Any = root
    for part in reference[2:].split("/"):
        found = found[part]
    return found
