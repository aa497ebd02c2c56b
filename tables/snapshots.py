"""Requests to a worker process that make a table's next version, or a larger file, and its answers: plain data.

Terms are those of Apache Iceberg's specification, format version 2. As in `requests`, nothing of Arrow or Iceberg is
imported here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from anabranch.tables.ranges import PartitionRange

NOTES: Final = "anabranch."
"""Beginning of our names in the summary of a snapshot."""
OFFSETS: Final = "anabranch.offsets"
"""Entry of a snapshot's summary: the end of each partition in the table, as JSON."""
TOPIC_ID: Final = "anabranch.topic-id"
"""Entry of the current snapshot's: id of the topic whose offsets these are, as Kafka's tools write it."""
CLEANED: Final = "anabranch.cleaned"
"""Entry of the current snapshot's: ids of the objects of log compaction that the table shows, by partition, as JSON."""
OFFSETS_OF: Final = "anabranch.offsets-of"
"""Property of a table in another catalog, which has the two first ones as properties, too: id of their snapshot."""


class Target(NamedTuple):
    """A file to be written."""

    path: str
    """Path of the local file that the worker writes."""
    uri: str
    """URI that the file will have in the store: the only name of it that is written into other files."""


class Written(NamedTuple):
    """A local file that was written."""

    size_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that becomes part of a table."""

    uri: str
    size_bytes: int
    metrics: Mapping[str, Any]
    """`ShareReport.metrics`, as it was."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """The next version of a table: a commit with a new snapshot, or one that changes schema or expiry alone."""

    table_id: str
    """Iceberg's UUID of the table: 32 hexadecimal digits."""
    location: str
    """URI of the table's folder."""
    schemas: Sequence[str]
    """All versions of the schema, encoded, by schema id from 1; the last one is the current one."""
    properties: Mapping[str, str]
    """Iceberg's properties of the table."""
    version: int
    """Version of the table that the commit makes, from 1. It is the sequence number of a new snapshot, too."""
    now_ms: int
    """Time of the commit. One that is not after that of the version before is moved behind it."""
    metadata: str | None
    """Path of a local copy of the current metadata.json; None: the commit is the first one."""
    metadata_uri: str | None
    snapshot_id: int
    """Id of the new snapshot, from 1; 0: there is none, and nothing is added or removed."""
    manifest_list: str | None
    """Path of a local copy of the current snapshot's manifest list; None: there is no snapshot yet, or no new one."""
    manifests: Mapping[str, str]
    """Paths of local copies of all manifests of the current snapshot, by URI."""
    added: Sequence[DataFile]
    removed: Sequence[str]
    """URIs of data files of the current snapshot."""
    summary: Mapping[str, str]
    """Properties of the new snapshot besides its operation and totals."""
    kept: Sequence[int]
    """Ids of snapshots of the current version that stay. Without a new snapshot the current one always does."""
    metadata_target: str
    """Path to write; nothing names its URI before the next version."""
    manifest_target: Target | None = None
    """None: there is no new snapshot; likewise ..."""
    manifest_list_target: Target | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "SnapshotRequest":
        """Return what `to_json` was given."""
        targets = {name: _named(Target, found[name]) for name in ("manifest_target", "manifest_list_target")}
        return cls(**dict(found) | targets | {"added": [DataFile(**each) for each in found["added"]]})


@dataclass(slots=True)
class SnapshotReport:
    """Files of the next version of a table, and what it has."""

    manifest: Written | None
    """None: no manifest was needed, and its target was not written; likewise ..."""
    manifest_list: Written | None
    metadata: Written
    replaced: Sequence[str]
    """URIs of manifests that the current snapshot has and the new one has not."""
    added_records: int
    removed_records: int
    total_records: int
    """Of the current snapshot after the commit, like the other totals."""
    total_files: int
    total_bytes: int
    """Sizes of the data files."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "SnapshotReport":
        """Return what `to_json` was given."""
        names = ("manifest", "manifest_list", "metadata")
        return cls(**dict(found) | {name: _named(Written, found[name]) for name in names})


@dataclass(frozen=True, slots=True)
class Join:
    """A file of the rows of neighbouring files of a partition. Of one file alone, it is a cut."""

    sources: Sequence[str]
    """Paths of the files, in the order of offsets."""
    schema: str
    """Schema of the new file, encoded: that of the table, which may be newer than those of the files."""
    range: PartitionRange
    """Offsets of the new file: rows outside of them are left out. Its aborted transactions are not used."""
    target: str
    """Path of the Parquet file to write."""
    codec: str = "zstd"

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"range": self.range.to_json()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Join":
        """Return what `to_json` was given."""
        return cls(**dict(found) | {"range": PartitionRange.from_json(found["range"])})


def _named(kind: type, found: Sequence[Any] | None) -> Any:
    return None if found is None else kind(*found)
