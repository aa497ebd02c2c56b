"""Values of tables that the catalog takes and returns. `TABLES.md` describes them.

Times are ms since 1970 and are always passed in; `delete_after_ms` and `deadline_ms` are such times, not durations.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple
from uuid import UUID

from anabranch.s3stream.model import NodeIdentity, ObjectState


class TableFileKind(IntEnum):
    """Kind of a file of a table."""

    DATA = 1
    """Parquet: the rows of a range of a partition."""
    MANIFEST = 2
    """Avro: a manifest of Iceberg, or a list of manifests."""
    METADATA = 3
    """JSON: Iceberg's metadata of the table at one version."""


class TableRetention(IntEnum):
    """Fate of files whose offsets the topic has left."""

    TOPIC = 1
    """They leave the table, too, and the table is dropped with its topic."""
    KEEP = 2
    """They stay in the table, which outlives its topic."""


class OffsetBounds(NamedTuple):
    """Offsets [start, end) of a partition."""

    start_offset: int
    end_offset: int


class TableSnapshot(NamedTuple):
    """An unexpired snapshot of a table."""

    version: int
    """Version of the table that its commit made."""
    snapshot_id: int
    committed_ms: int


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table to be created for a topic."""

    table_id: bytes
    """16 random bytes, Iceberg's UUID of the table; they distinguish a repeated command from another one."""
    topic_id: bytes
    name: str
    store: str
    """Name of the object store of its files."""
    location: str
    """Prefix of the keys of its files, without a slash at its end. No other table has it, now or ever."""
    schema: str
    """Its first schema, with the ids of the fields, as its writers encode it."""
    retention: TableRetention = TableRetention.TOPIC
    options: Mapping[str, str] = field(default_factory=dict)
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    """Configs that the topic must have then: they may have changed since the writer has read them."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table as the catalog lists it."""

    table_id: bytes
    topic_id: bytes
    """Topic that it was made for, which may be deleted or detached."""
    name: str
    store: str
    location: str
    retention: TableRetention
    options: Mapping[str, str]
    """Notes of its committers."""
    created_ms: int
    version: int
    """Number of its commits."""
    metadata_file: int
    """File id of its current metadata; 0 before the first commit."""
    snapshot_id: int
    """Its current snapshot; 0: none."""


class TableTotals(NamedTuple):
    """Data files of a table's current snapshot, counted."""

    files: int = 0
    records: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one moment, without its files."""

    info: TableInfo
    schemas: Sequence[str]
    """By schema id, from 1."""
    bounds: Mapping[int, OffsetBounds]
    """Offsets that the table has, by partition."""
    snapshots: Sequence[TableSnapshot]
    """Unexpired ones, oldest first."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table as the catalog lists it."""

    file_id: int
    table_id: bytes
    kind: TableFileKind
    state: ObjectState
    store: str
    file_key: str
    size_bytes: int
    """0 until it is committed, like the fields from `crc32c` to `schema_id`."""
    crc32c: int
    idx: int
    """Partition of its rows; -1: it is no data."""
    start_offset: int
    end_offset: int
    record_count: int
    schema_id: int
    node_id: int
    """Node that has prepared it."""
    writer_id: str
    """Id of the writer, also in the file's metadata in the store."""
    upload_id: str
    """Multipart upload of a prepared file; empty: none."""
    deadline_ms: int
    """Prepared: time at which it expires. Destroyed: time at which it is deleted. Committed: 0."""
    committed_ms: int
    """0: it was never committed."""
    added: int
    """Version of the table whose commit has added it; 0 until then."""
    removed: int
    """Version whose commit has removed it; 0: none has."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table that was looked up by its name."""

    info: TableInfo
    metadata: TableFile | None
    """Its current metadata; None before the first commit."""


@dataclass(frozen=True, slots=True)
class NewTableFile:
    """A file to be committed: prepared, and its bytes complete in the store. Manifests and metadata have no range."""

    file_id: int
    size_bytes: int
    crc32c: int
    idx: int = -1
    start_offset: int = 0
    end_offset: int = 0
    record_count: int = 0
    schema_id: int = 0

    @property
    def bounds(self) -> OffsetBounds:
        """Its offsets."""
        return OffsetBounds(self.start_offset, self.end_offset)


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A change of a table from one version to the next."""

    node: NodeIdentity
    table_id: bytes
    version: int
    """Version that it replaces."""
    added: Sequence[NewTableFile]
    """Exactly one of them is of the kind METADATA. It takes the place of the one before."""
    now_ms: int
    delete_after_ms: int
    """Time from which files that no snapshot needs any more may be deleted."""
    removed: Collection[int] = ()
    """Ids of data files and manifests that the new snapshot does not have."""
    snapshot_id: int = 0
    """Snapshot that it begins; 0: none, and then it changes no data."""
    schema: str = ""
    """The next version of the schema; empty: none."""
    expire_before: int = 0
    """Snapshots of versions below this one expire. The current one may not be among them."""


FILE_PLACES: Final[Mapping[TableFileKind, tuple[str, str]]] = {
    TableFileKind.DATA: ("data", ".parquet"),
    TableFileKind.MANIFEST: ("metadata", ".avro"),
    TableFileKind.METADATA: ("metadata", ".metadata.json"),
}
"""Folder and end of the names of files."""


LOCATION_PARTS: Final = 3
TABLE_KEYS: Final = "table/"
"""Beginning of the keys of all files of tables."""


class TableKey(NamedTuple):
    """Parts of the key of a table's file."""

    location: str
    cluster: str
    kind: TableFileKind
    file_id: int


def table_location(cluster: str, table_id: bytes) -> str:
    """Return the location of a cluster's table, whose id is a UUID."""
    return f"{TABLE_KEYS}{cluster}/{UUID(bytes=table_id)}"


def parse_table_key(key: str) -> TableKey | None:
    """Return the parts of a key made by `table_file_key` for a `table_location`; None for any other key."""
    parts = key.split("/")
    if not key.startswith(TABLE_KEYS) or len(parts) != LOCATION_PARTS + 2:
        return None
    location, digits = "/".join(parts[:LOCATION_PARTS]), parts[-1].partition(".")[0]
    if not digits.isascii() or not digits.isalnum():
        return None
    try:
        file_id = int(digits, 16)
    except ValueError:
        return None
    kinds = [kind for kind in TableFileKind if table_file_key(location, kind, file_id) == key]
    return TableKey(location, parts[1], kinds[0], file_id) if kinds else None


def table_file_key(location: str, kind: TableFileKind, file_id: int) -> str:
    """Return the key of a file of the table with this location."""
    folder, suffix = FILE_PLACES[kind]
    return f"{location}/{folder}/{file_id:016x}{suffix}"
