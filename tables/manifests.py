"""Manifests of a table, and how a new one takes in older ones.

A commit writes one manifest. It has the files that the commit adds, the live ones of the manifests that it replaces,
and those that the commit removes, as deleted. It replaces each manifest that a removal touches. And as in a
log-structured merge tree, it takes in the next older manifests while they have less than twice the files that it has
so far. So the number of manifests is logarithmic in that of files, and an entry is rewritten as often at most, but for
removals. Manifests of `MANIFEST_BYTES_MAX` are complete: only removals rewrite them.

Manifests are in the order of a manifest list: the newest first.
"""

import base64
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import InputFile, InputStream, OutputFile, OutputStream
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER_ID
from pyiceberg.typedef import Record

from anabranch.tables.errors import SnapshotError
from anabranch.tables.schema import id_of
from anabranch.tables.snapshots import DataFile, Target

FORMAT_VERSION: Final = 2
MANIFEST_BYTES_MAX: Final = 2 << 20
"""Size from which a manifest is complete: some thousand files. A removal rewrites it, which takes up to a second, and
would take the longer the larger it is; Iceberg's default is 8 MiB."""
_CODEC: Final = "deflate"


class LocalFile(InputFile, OutputFile):
    """A local copy of a file of the store: only its URI is written into other files."""

    def __init__(self, target: Target) -> None:
        """Name it; nothing is opened."""
        super().__init__(target.uri)
        self._path = Path(target.path)

    def __len__(self) -> int:
        """Return its size in bytes."""
        return self._path.stat().st_size

    def exists(self) -> bool:
        """Return whether it is there."""
        return self._path.exists()

    def open(self, seekable: bool = True) -> InputStream:  # noqa: ARG002, FBT001, FBT002 - pyiceberg's
        """Open it to be read."""
        return cast("InputStream", self._path.open("rb"))

    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: ARG002, FBT001, FBT002 - pyiceberg's
        """Open it to be written, from nothing."""
        return cast("OutputStream", self._path.open("wb"))

    def to_input_file(self) -> InputFile:
        """Return it."""
        return self


@dataclass(frozen=True, slots=True)
class Manifests:
    """Manifests of a snapshot."""

    files: Sequence[ManifestFile]
    paths: Mapping[str, str]
    """Local copies, by URI."""

    def live_entries(self, manifest: ManifestFile) -> Iterator[ManifestEntry]:
        """Yield the entries of files that the snapshot has, with what they inherit from their manifest.

        Raises SnapshotError without a local copy.
        """
        uri = manifest.manifest_path
        if uri not in self.paths:
            raise SnapshotError(f"there is no local copy of the manifest {uri}")
        file = LocalFile(Target(self.paths[uri], uri))
        enums: dict[int, Callable[..., Enum]] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
        schema = MANIFEST_ENTRY_SCHEMAS[FORMAT_VERSION]
        with AvroFile[ManifestEntry](file, schema, {-1: ManifestEntry, 2: IcebergFile}, enums) as reader:
            for entry in reader:
                if entry.status == ManifestEntryStatus.DELETED:
                    continue
                if entry.sequence_number is None:
                    entry.sequence_number = manifest.sequence_number
                if entry.file_sequence_number is None:
                    entry.file_sequence_number = manifest.sequence_number
                yield entry

    def with_any(self, uris: Collection[str]) -> set[str]:
        """Return the URIs of the manifests that have any of these files. Raises SnapshotError if one has none."""
        left = set(uris)
        found = set()
        for manifest in self.files:
            if not left:
                break
            here = left.intersection(entry.data_file.file_path for entry in self.live_entries(manifest))
            if here:
                found.add(manifest.manifest_path)
                left -= here
        if left:
            raise SnapshotError(f"the current snapshot has no file {min(left)}, which is to be removed")
        return found


def read_manifests(manifest_list: str | None, paths: Mapping[str, str]) -> Manifests:
    """Return the manifests of a snapshot, from a local copy of its list; None: there is no snapshot."""
    if manifest_list is None:
        return Manifests([], paths)
    return Manifests(list(read_manifest_list(LocalFile(Target(manifest_list, "")))), paths)


def live_files(manifest: ManifestFile) -> int:
    """Return the number of files that a snapshot has by a manifest."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def replaced_manifests(
    manifests: Sequence[ManifestFile], touched: Collection[str], added: int, removed: int
) -> list[ManifestFile]:
    """Return the manifests that a commit's own replaces, and those that have no live file any more.

    The commit adds and removes these numbers of files, of the manifests with the URIs `touched`.
    """
    files = added - removed + sum(live_files(each) for each in manifests if each.manifest_path in touched)
    replaced = []
    is_merging = added > 0 or removed > 0
    for manifest in manifests:
        live = live_files(manifest)
        if manifest.manifest_path in touched or not live:
            replaced.append(manifest)
        elif is_merging and live < 2 * files and manifest.manifest_length < MANIFEST_BYTES_MAX:
            replaced.append(manifest)
            files += live
        else:
            is_merging = False
    return replaced


class Contents:
    """Data files that a commit adds, or those that it removes: how many, and the rows that they are of."""

    def __init__(self, kafka: pa.StructType) -> None:
        """Count nothing yet; `kafka` is the type of the column `_kafka`."""
        self._partition, self._offset = (id_of(kafka.field(name)) for name in ("partition", "offset"))
        self.files = 0
        self.records = 0
        self.size_bytes = 0
        self.rows: dict[int, tuple[int, int, int]] = {}
        """Number of rows, and first and last offset, by partition."""

    def add(self, file: IcebergFile) -> None:
        """Count a file."""
        self.files += 1
        self.records += file.record_count
        self.size_bytes += file.file_size_in_bytes
        if file.record_count:
            partition, first = (_number(file.lower_bounds, which) for which in (self._partition, self._offset))
            last = _number(file.upper_bounds, self._offset)
            records, low, high = self.rows.get(partition, (0, first, last))
            self.rows[partition] = records + file.record_count, min(low, first), max(high, last)

    def counting(self, files: Iterable[IcebergFile]) -> Iterator[IcebergFile]:
        """Yield files as they are counted."""
        for file in files:
            self.add(file)
            yield file


def _number(bounds: Mapping[int, bytes], field_id: int) -> int:
    return int.from_bytes(bounds[field_id], "little", signed=True)


def add_manifest(
    target: Target,
    schema: Schema,
    snapshot_id: int,
    added: Iterable[IcebergFile],
    older: Iterable[ManifestEntry],
    removed: Collection[str],
    gone: Contents,
) -> ManifestFile:
    """Write a commit's manifest: what it adds, and entries of those that it replaces; count the files that are gone."""
    file = LocalFile(target)
    with write_manifest(FORMAT_VERSION, UNPARTITIONED_PARTITION_SPEC, schema, file, snapshot_id, _CODEC) as writer:
        for each in added:  # their sequence number is the manifest's
            writer.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=each))
        for entry in older:
            if entry.data_file.file_path in removed:
                writer.delete(entry)
                gone.add(entry.data_file)
            else:
                writer.existing(entry)
    return writer.to_manifest_file()


def add_manifest_list(
    target: Target, snapshot_id: int, parent_id: int | None, sequence_number: int, manifests: Sequence[ManifestFile]
) -> None:
    """Write the list of a snapshot's manifests."""
    file = LocalFile(target)
    with write_manifest_list(FORMAT_VERSION, file, snapshot_id, parent_id, sequence_number, _CODEC) as writer:
        if manifests:
            writer.add_manifests(list(manifests))


def iceberg_file(file: DataFile) -> IcebergFile:
    """Return a data file as a manifest has it."""
    metrics = file.metrics
    by_field: dict[str, Any] = {
        name: {int(field_id): number for field_id, number in metrics[name].items()}
        for name in ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
    }
    for name in ("lower_bounds", "upper_bounds"):
        by_field[name] = {int(field_id): base64.b64decode(bound) for field_id, bound in metrics[name].items()}
    return IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.uri,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=metrics["record_count"],
        file_size_in_bytes=file.size_bytes,
        split_offsets=metrics["split_offsets"],
        sort_order_id=UNSORTED_SORT_ORDER_ID,
        **by_field,
    )
