"""Schemas of JSON values as Spark's type: DDL, Spark's own JSON, or JSON Schema."""

import json

from pyspark.errors import ParseException
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from anabranch.spark.pipeline.arrow_values import SCALARS, spark_type
from anabranch.tables.errors import SchemaError
from anabranch.tables.json_schema import json_schema_type


def parse_json_schema(text: str) -> StructType:
    """Parse a schema in any of the three formats; DDL needs a running session. Raises SchemaError."""
    try:
        if not text.lstrip().startswith("{"):
            kind = DataType.fromDDL(text)
        else:
            values = json.loads(text)
            if values.get("type") != "struct" and "fields" not in values:
                return spark_type(json_schema_type(text))
            kind = StructType.fromJson(values)
    except SchemaError:
        raise
    except (ParseException, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SchemaError(f"the schema can't be read: {reason}") from error
    if not isinstance(kind, StructType):
        raise SchemaError(f"the schema must list columns, but it is a {kind.simpleString()}")
    return kind


def check_json_type(kind: DataType, path: str = "") -> None:
    """Raise SchemaError for a type that strict JSON does not have."""
    if isinstance(kind, StructType):
        for part in kind.fields:
            check_json_type(part.dataType, f"{path}.{part.name}" if path else part.name)
    elif isinstance(kind, ArrayType):
        check_json_type(kind.elementType, path)
    elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        check_json_type(kind.valueType, path)
    elif type(kind) not in SCALARS:
        raise SchemaError(f"{path}: strict JSON has no {kind.simpleString()}")
