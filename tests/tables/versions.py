"""A table in a folder, as the catalog and the store would have it: each commit is a version that the worker writes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from anabranch.tables.iceberg import write_snapshot
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import ShareReport
from anabranch.tables.row_files import write_rows
from anabranch.tables.schema import KAFKA, decode_schema, encode_schema, evolve
from anabranch.tables.snapshots import DataFile, SnapshotReport, SnapshotRequest, Target

TABLE_ID = "0123456789abcdef0123456789abcdef"
FIRST = evolve(None, pa.struct([pa.field("n", pa.int32()), pa.field("s", pa.string())]), None).schema


def kafka_rows(schema: pa.Schema, partition: int, offsets: Sequence[int], **columns: Sequence[Any]) -> pa.RecordBatch:
    """Return rows of a partition. Columns that are not given are null."""
    rows = [
        {name: values[at] for name, values in columns.items()}
        | {KAFKA: {"partition": partition, "offset": offset, "timestamp_type": 0}}
        for at, offset in enumerate(offsets)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


class TableFolder:
    """A table. Files that no unexpired snapshot names are deleted at once."""

    def __init__(self, folder: Path, schema: pa.Schema = FIRST) -> None:
        self.folder = folder
        self.location = f"file://{folder}/table"
        self.schemas = [encode_schema(schema)]
        self.version = 0
        self.metadata: Path | None = None
        self.files: dict[int, frozenset[str]] = {}
        """Data files of each unexpired snapshot, oldest first."""
        self._versions: dict[int, int] = {}
        self._metadata_files: dict[int, Path] = {}
        """Those that are there, by version."""
        self._manifests: dict[int, dict[str, str]] = {}
        """Manifests of each unexpired snapshot, and their local copies."""
        self._lists: dict[int, str] = {}
        self._names = count(1)
        for name in ("table", "copies"):
            (folder / name).mkdir()

    @property
    def schema(self) -> pa.Schema:
        """Current schema."""
        return decode_schema(self.schemas[-1])

    def evolve(self, *columns: pa.Field) -> None:
        """Add columns, or let their types grow, from the next commit on."""
        known = [part for part in self.schema if part.name != KAFKA]
        names = {part.name for part in columns}
        wanted = pa.struct([*(part for part in known if part.name not in names), *columns])
        self.schemas.append(encode_schema(evolve(self.schema, wanted, None).schema))

    def path(self, uri: str) -> Path:
        """Return the path of a file of the table."""
        return Path(uri.removeprefix("file://"))

    def new_uri(self, suffix: str) -> str:
        """Return a URI that no file has had."""
        return f"{self.location}/{next(self._names):08}{suffix}"

    def add_rows(self, *rows: pa.RecordBatch) -> DataFile:
        """Write a data file of the table."""
        uri = self.new_uri(".parquet")
        partition = rows[0][KAFKA][0].as_py()["partition"] if rows and len(rows[0]) else 0
        of = PartitionRange("t", partition, 0, 1 << 40)
        return data_file(uri, write_rows(iter(rows), rows[0].schema, of, self.path(uri), "zstd"))

    def commit(
        self,
        added: Sequence[DataFile] = (),
        removed: Sequence[str] = (),
        *,
        kept: Sequence[int] | None = None,
        has_snapshot: bool = True,
        summary: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> SnapshotReport:
        """Commit the next version. Without `kept`, all snapshots stay."""
        current = next(reversed(self.files), None)
        kept = list(self.files) if kept is None else kept
        version = self.version + 1
        snapshot_id = 1000 + version if has_snapshot else 0
        manifest, manifest_list, metadata = (self.new_uri(end) for end in (".avro", ".avro", ".metadata.json"))
        targets = [self._copy() for _ in range(3)]
        request = SnapshotRequest(
            table_id=TABLE_ID,
            location=self.location,
            schemas=self.schemas,
            properties={"owner": "anabranch"},
            version=version,
            now_ms=1_700_000_000_000 + version * 1000,
            metadata=None if self.metadata is None else str(self._copied(self.metadata)),
            metadata_uri=None if self.metadata is None else f"file://{self.metadata}",
            snapshot_id=snapshot_id,
            manifest_list=None if current is None else str(self._copied(self.path(self._lists[current]))),
            manifests={} if current is None else self._manifests[current],
            added=added,
            removed=removed,
            summary={"anabranch.offsets": str(version)} if summary is None else summary,
            kept=kept,
            metadata_target=str(targets[2]),
            manifest_target=Target(str(targets[0]), manifest),
            manifest_list_target=Target(str(targets[1]), manifest_list),
        )
        report = write_snapshot(replace(request, **changes))
        self.version = version
        self.metadata = self.path(metadata)
        targets[2].rename(self.metadata)
        self._metadata_files[version] = self.metadata
        gone = [each for each in self.files if each not in kept and (has_snapshot or each != current)]
        if has_snapshot:
            before = frozenset() if current is None else self.files[current]
            self.files[snapshot_id] = before - {*removed} | {each.uri for each in added}
            manifests = {} if current is None else dict(self._manifests[current])
            for uri in report.replaced:
                del manifests[uri]
            assert (report.manifest is not None) == targets[0].exists()
            if report.manifest is not None:
                targets[0].replace(self.path(manifest))
                manifests[manifest] = str(self._copied(self.path(manifest)))
            targets[1].replace(self.path(manifest_list))
            self._lists[snapshot_id] = manifest_list
            self._manifests[snapshot_id] = manifests
            self._versions[snapshot_id] = version
        self._expire(gone)
        return report

    def _expire(self, gone: Sequence[int]) -> None:
        was = self._named()
        for each in gone:
            for of in (self.files, self._lists, self._manifests, self._versions):
                del of[each]
        for uri in was - self._named():
            self.path(uri).unlink()
        oldest = min(self._versions.values(), default=self.version)
        for version in [each for each in self._metadata_files if each < min(oldest, self.version)]:
            self._metadata_files.pop(version).unlink()

    def _named(self) -> set[str]:
        """Return the URIs of all files that snapshots name."""
        return set().union(*self.files.values(), *self._manifests.values(), self._lists.values())

    def _copy(self) -> Path:
        return self.folder / "copies" / f"{next(self._names)}"

    def _copied(self, path: Path) -> Path:
        copy = self._copy()
        copy.hardlink_to(path)
        return copy


def data_file(uri: str, report: ShareReport) -> DataFile:
    """Return a file as a commit adds it."""
    return DataFile(uri, report.size_bytes, report.metrics)
