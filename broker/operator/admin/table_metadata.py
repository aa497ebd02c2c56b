"""Iceberg's metadata of a table, read from the store: the catalog knows which file has it, and not what it says.

It is JSON, so nothing of Iceberg is imported.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from anabranch.s3stream.catalog.table_values import TableFileKind, TableInfo, table_file_key
from anabranch.s3stream.errors import StoreError
from anabranch.s3stream.store.interface import ObjectStore

METADATA_BYTES_MAX: Final = 64 << 20


def metadata_key(info: TableInfo) -> str | None:
    """Return the key of a table's current metadata; None before the first commit."""
    return table_file_key(info.location, TableFileKind.METADATA, info.metadata_file) if info.metadata_file else None


def location_of(stores: Mapping[str, ObjectStore], info: TableInfo, key: str) -> str | None:
    """Return the URI of a file for engines; None if this node does not have the store of the table."""
    store = stores.get(info.store)
    return None if store is None else store.uri(key)


async def read_metadata(stores: Mapping[str, ObjectStore], info: TableInfo) -> dict[str, Any] | None:
    """Return a table's current metadata; None before the first commit. Raises StoreError."""
    key = metadata_key(info)
    if key is None:
        return None
    store = stores.get(info.store)
    if store is None:
        raise StoreError(f"table {info.name} is in the store {info.store}, which is not configured here")
    found = await store.get_tail(key, METADATA_BYTES_MAX)
    if found.size_bytes > METADATA_BYTES_MAX:
        raise StoreError(f"{info.store}:{key}: {found.size_bytes} bytes, more than metadata may have")
    metadata: dict[str, Any] = json.loads(bytes(found.data))
    return metadata


def current_fields(metadata: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the columns of the current schema as Iceberg has them: `id`, `name`, `required`, `type`."""
    for schema in metadata["schemas"]:
        if schema["schema-id"] == metadata["current-schema-id"]:
            yield from schema["fields"]


def type_text(kind: Any) -> str:
    """Return an Iceberg type in one line: `list<struct<key: string, value: binary>>`."""
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "struct":
            fields = (f"{each['name']}: {type_text(each['type'])}" for each in kind["fields"])
            return f"struct<{', '.join(fields)}>"
        case "list":
            return f"list<{type_text(kind['element'])}>"
        case "map":
            return f"map<{type_text(kind['key'])}, {type_text(kind['value'])}>"
    return str(kind["type"])
