"""Configs of topics that are tables: what can be checked of them without Arrow, when a client sets them.

Schemas are read in full by a process of its own, later; what it refuses is in the status of the table.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from anabranch.broker.kafka.configs.definitions import invalid_config
from anabranch.broker.node.settings.model import Settings
from anabranch.extras import install_command, is_installed

if TYPE_CHECKING:
    from anabranch.tables.upkeep.options import PartOptions

PREFIX: Final = "table."
ENABLE: Final = "table.enable"
REASON_CHARACTERS_MAX: Final = 500
JSON_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def is_enabled(configs: Mapping[str, str]) -> bool:
    """Return whether a topic with these configs is a table."""
    return configs.get(ENABLE) == "true"


def check_table_configs(configs: Mapping[str, str], settings: Settings, *, internal: bool) -> None:
    """Check the configs of a topic together. `internal`: it is one of Kafka's own. Raises INVALID_CONFIG."""
    if not any(name.startswith(PREFIX) for name in configs):
        return
    # Imported late: a node without tables does without it.
    from anabranch.tables.upkeep.options import DEFAULTS, TableOptions

    if is_enabled(configs):
        if internal:
            raise invalid_config(f"{ENABLE}=true: an internal topic cannot be a table")
        if not is_installed("tables"):
            raise invalid_config(f"{ENABLE}=true needs packages that this node lacks: {install_command('tables')}")
    has_registry = settings.schema_registry.enabled or settings.tables.registry is not None
    try:
        options = TableOptions.parse(lambda name: "true" if name == ENABLE else configs.get(name, DEFAULTS[name]))
        assert options is not None, "it is enabled"
        for prefix, part in (("table.key", options.key), ("table.value", options.value)):
            _check_part(prefix, part, has_registry=has_registry)
    except ValueError as error:
        line = " ".join(str(error).split())  # it may have the whole schema
        raise invalid_config(
            line if len(line) <= REASON_CHARACTERS_MAX else f"{line[:REASON_CHARACTERS_MAX]}..."
        ) from None


def _check_part(prefix: str, part: "PartOptions", *, has_registry: bool) -> None:
    """Check the configs of keys or values. Raises ValueError with the reason."""
    if part.message and part.format != "protobuf":
        raise ValueError(f"{prefix}.message: set, but {prefix}={part.format} has no messages")
    if part.subject and (part.format == "raw" or part.schema):
        other = f"{prefix}.schema" if part.schema else f"{prefix}=raw"
        raise ValueError(f"{prefix}.subject: set, but {other} needs no registry")
    if part.schema:
        if (reason := _problem(part)) is not None:
            raise ValueError(f"{prefix}.schema: {reason}")
    elif not has_registry and (part.subject or part.format in {"avro", "protobuf", "auto"}):
        raise ValueError(
            f"{prefix}={part.format} needs {prefix}.schema: this node has no schema registry (tables.registry)"
        )


def _problem(part: "PartOptions") -> str | None:
    """Return what is wrong with a schema, in one line; None: nothing that can be seen here."""
    if part.format == "protobuf":
        return _protobuf_problem(part.schema_bytes() or b"")
    try:
        schema = json.loads(part.schema)
    except (ValueError, RecursionError) as error:
        return f"expected JSON: {error}"
    if part.format == "json":
        return _json_problem(schema)
    return _avro_problem(schema)


def _json_problem(schema: Any) -> str | None:
    """Return what is wrong with a JSON Schema. A misspelt type would make a column of texts."""
    if not isinstance(schema, dict):
        return "expected a JSON Schema, which is an object"
    parts: list[tuple[str, Any]] = [("", schema)]
    for path, part in parts:  # which grows meanwhile
        if not isinstance(part, dict):
            continue
        named = part.get("type", [])
        for kind in named if isinstance(named, list) else [named]:
            if kind not in JSON_TYPES:
                place = f"the type of {path}" if path else "its type"
                return f"{place} is {json.dumps(kind)}, expected one of {', '.join(JSON_TYPES)}"
        for word in ("properties", "$defs", "definitions"):
            inner = part.get(word)
            if isinstance(inner, dict):
                parts += [(f"{path}.{name}" if path else name, each) for name, each in inner.items()]
        for word in ("items", "additionalProperties", "anyOf", "oneOf"):
            inner = part.get(word)
            parts += [(path, each) for each in (inner if isinstance(inner, list) else [inner])]
    return None


def _avro_problem(schema: Any) -> str | None:
    if not is_installed("avro"):
        return None
    import fastavro
    from fastavro.schema import SchemaParseException

    try:
        fastavro.parse_schema(schema)
    except (ValueError, SchemaParseException, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"not an Avro schema: {error}"
    return None


def _protobuf_problem(data: bytes) -> str | None:
    if not is_installed("tables"):
        return None
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        if FileDescriptorSet.FromString(data).file:
            return None
    except DecodeError:
        pass
    return "expected the base64 of a file that `protoc --include_imports --descriptor_set_out=FILE` has written"
