"""The reason why bytes are not Avro of a schema: the field, and what is wrong with it.

fastavro says only what is wrong. This is a second look at a dead letter, without logical types, and with the bytes of
texts.
"""

import io
from collections.abc import Iterator, Mapping
from typing import Any

import fastavro

SECONDS = (-62_135_596_800, 253_402_300_799)
"""The years 1 to 9999 since 1970. Python and most readers of tables have no others."""
PER_S: Mapping[str, float] = {
    "date": 1 / 86_400, "timestamp-millis": 1e3, "timestamp-micros": 1e6,
    "local-timestamp-millis": 1e3, "local-timestamp-micros": 1e6,
}  # fmt: skip
"""Units in a second, by logical types."""


def wrong_field(schema: Any, body: bytes) -> str | None:
    """Return field and reason of the first value that does not fit its type; None if all fit."""
    named = dict(schema.get("__named_schemas", {})) if isinstance(schema, dict) else {}
    try:
        value = fastavro.schemaless_reader(io.BytesIO(body), fastavro.parse_schema(_raw(schema, named, set())), None)
    except Exception:  # noqa: BLE001 - fastavro raises many kinds of errors for invalid bytes
        return None
    return next(_wrong("", schema, named, value), None)


def _raw(schema: Any, named: Mapping[str, Any], known: set[str]) -> Any:
    """Return a parsed schema with numbers and bytes in place of logical types and texts."""
    if isinstance(schema, list):
        return [_raw(part, named, known) for part in schema]
    if isinstance(schema, str):
        if schema in named and schema not in known:
            return _raw(named[schema], named, known)
        return "bytes" if schema == "string" else schema
    if "name" in schema:
        known.add(schema["name"])
    kept = {key: part for key, part in schema.items() if key in {"name", "symbols", "size", "aliases"}}
    for key in ("type", "items", "values"):
        if key in schema:
            kept[key] = _raw(schema[key], named, known)
    if "fields" in schema:
        kept["fields"] = [{"name": part["name"], "type": _raw(part["type"], named, known)} for part in schema["fields"]]
    return kept


def _wrong(path: str, schema: Any, named: Mapping[str, Any], value: Any) -> Iterator[str]:
    schema = _resolved(schema, named)
    if schema is None or value is None:
        return
    if (reason := _reason(schema, value)) is not None:
        yield f"{path}: {reason}" if path else reason
    for inner_path, inner_schema, inner in _parts(path, schema, value):
        yield from _wrong(inner_path, inner_schema, named, inner)


def _resolved(schema: Any, named: Mapping[str, Any]) -> Any:
    """Return a schema as a dict, that of a union without null; None for other unions."""
    if isinstance(schema, list):
        members = [part for part in schema if part != "null"]
        return _resolved(members[0], named) if len(members) == 1 else None
    if isinstance(schema, str):
        return named.get(schema, {"type": schema})
    kind = schema["type"]
    return _resolved(kind, named) if isinstance(kind, dict | list) or kind in named else schema


def _reason(schema: Any, value: Any) -> str | None:
    logical = schema.get("logicalType")
    if logical in PER_S:
        first, last = (limit * PER_S[logical] for limit in SECONDS)
        return None if first <= value <= last else f"{value} is no {logical} of the years 1 to 9999"
    if schema["type"] == "string":
        try:
            value.decode()
        except UnicodeDecodeError as error:
            return f"not valid UTF-8 at byte {error.start}"
    return None


def _parts(path: str, schema: Any, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield what is inside a value, with its path and schema."""
    match schema["type"]:
        case "record" | "error":
            for part in schema["fields"]:
                name = part["name"]
                yield f"{path}.{name}" if path else name, part["type"], value[name]
        case "array":
            for index, item in enumerate(value):
                yield f"{path}[{index}]", schema["items"], item
        case "map":
            for key, item in value.items():
                yield f"{path}[{key!r}]", schema["values"], item
