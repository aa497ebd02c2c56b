"""The next version of a table in Apache Iceberg's format, version 2: manifest, manifest list and metadata.json.

The files depend on the request and on what the version before it has, but not on where the local copies lie. A commit
reads the metadata, the manifest list, and the manifests that its own one replaces (`manifests`), one entry at a time.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from anabranch.tables.errors import SnapshotError
from anabranch.tables.iceberg_schema import iceberg_schema
from anabranch.tables.manifests import (
    FORMAT_VERSION,
    Contents,
    add_manifest,
    add_manifest_list,
    iceberg_file,
    live_files,
    read_manifests,
    replaced_manifests,
)
from anabranch.tables.row_files import written
from anabranch.tables.schema import KAFKA, decode_schema, field_ids
from anabranch.tables.snapshots import CLEANED, OFFSETS, TOPIC_ID, SnapshotReport, SnapshotRequest, Written

METADATA_LOG_MAX: Final = 100
"""Entries of the log of older metadata: Iceberg's `write.metadata.previous-versions-max`."""
OLDER_OFFSETS_BYTES_MAX: Final = 256 << 10
"""Size of the ends of partitions in all summaries but the current one's: each commit writes all of them anew."""


def write_snapshot(request: SnapshotRequest) -> SnapshotReport:
    """Write the files of a table's next version, which are removed again after an error.

    Raises SnapshotError if the request does not fit the version before it, and OSError.
    """
    before = _Version.read(request)
    targets = [Path(request.metadata_target)]
    targets += [Path(each.path) for each in (request.manifest_target, request.manifest_list_target) if each is not None]
    with ExitStack() as undo:
        for each in targets:
            undo.callback(each.unlink, missing_ok=True)
        report = _write(request, before)
        undo.pop_all()
    return report


class _Version:
    """A version of a table, as its metadata.json has it: JSON, whose names are the specification's."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self.sequence_number: int = found.get("last-sequence-number", 0)
        self.updated_ms: int = found.get("last-updated-ms", 0)
        self.snapshots: list[dict[str, Any]] = found.get("snapshots", [])
        self.snapshot_id: int | None = found.get("current-snapshot-id")
        self.snapshot_log: list[dict[str, Any]] = found.get("snapshot-log", [])
        self.metadata_log: list[dict[str, Any]] = found.get("metadata-log", [])

    @classmethod
    def read(cls, request: SnapshotRequest) -> "_Version":
        """Return the version before a request."""
        if request.metadata is None:
            found = cls({})
        else:
            content = json.loads(Path(request.metadata).read_bytes())
            if content["table-uuid"] != str(UUID(request.table_id)):
                raise SnapshotError(f"{request.metadata_uri} is of table {content['table-uuid']}")
            found = cls(content)
        if request.version <= found.sequence_number:
            raise SnapshotError(
                f"version {request.version} is not after {found.sequence_number}, the current snapshot's"
            )
        if any(each["snapshot-id"] == request.snapshot_id for each in found.snapshots):
            raise SnapshotError(f"the table has a snapshot {request.snapshot_id} already")
        return found

    def current(self) -> dict[str, Any] | None:
        """Return the current snapshot."""
        return next((each for each in self.snapshots if each["snapshot-id"] == self.snapshot_id), None)

    def total(self, name: str) -> int:
        """Return a total of the current snapshot; 0 without one."""
        snapshot = self.current()
        return 0 if snapshot is None else int(snapshot["summary"][name])


def _write(request: SnapshotRequest, before: _Version) -> SnapshotReport:
    now_ms = max(request.now_ms, before.updated_ms + 1)
    kept = {*request.kept, *(() if request.snapshot_id else (before.snapshot_id,))}
    snapshots = [each for each in before.snapshots if each["snapshot-id"] in kept]
    snapshot_log = before.snapshot_log
    report = SnapshotReport(
        manifest=None,
        manifest_list=None,
        metadata=Written(0, 0),
        replaced=[],
        added_records=0,
        removed_records=0,
        total_records=before.total("total-records"),
        total_files=before.total("total-data-files"),
        total_bytes=before.total("total-files-size"),
    )
    if request.snapshot_id:
        snapshots.append(_add_snapshot(request, before, now_ms, report))
        snapshot_log = [*snapshot_log, {"snapshot-id": request.snapshot_id, "timestamp-ms": now_ms}]
    elif request.added or request.removed:
        raise SnapshotError("a commit without a snapshot cannot add or remove files")
    shown = [*_shortened(snapshots[:-1]), *snapshots[-1:]]
    content = _metadata(request, before, now_ms, shown, snapshot_log)
    target = Path(request.metadata_target)
    target.write_text(TableMetadataV2.model_validate(content).model_dump_json(), "utf-8")
    report.metadata = written(target)
    return report


def _shortened(older: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return older snapshots without what is read of the current one alone, and with the offsets of the newest."""
    left = OLDER_OFFSETS_BYTES_MAX
    found: list[Mapping[str, Any]] = []
    for each in reversed(older):
        summary = {name: text for name, text in each["summary"].items() if name not in {CLEANED, TOPIC_ID}}
        left -= len(summary.get(OFFSETS, ""))
        if left < 0:
            summary.pop(OFFSETS, None)
        found.append({**each, "summary": summary})
    return found[::-1]


def _add_snapshot(request: SnapshotRequest, before: _Version, now_ms: int, report: SnapshotReport) -> dict[str, Any]:
    """Write manifest and manifest list of a new snapshot, and return it as the metadata has it."""
    if request.manifest_target is None or request.manifest_list_target is None:
        raise SnapshotError("a snapshot needs a manifest and a manifest list to be written")
    schema = decode_schema(request.schemas[-1])
    manifests = read_manifests(request.manifest_list, request.manifests)
    if sum(map(live_files, manifests.files)) != report.total_files:
        raise SnapshotError("the manifest list is not that of the current snapshot")
    touched = manifests.with_any(request.removed)
    replaced = replaced_manifests(manifests.files, touched, len(request.added), len(request.removed))
    files = [each for each in manifests.files if each not in replaced]
    added, gone = Contents(schema.field(KAFKA).type), Contents(schema.field(KAFKA).type)
    if request.added or any(map(live_files, replaced)):
        made = add_manifest(
            request.manifest_target,
            iceberg_schema(schema, len(request.schemas)),
            request.snapshot_id,
            added.counting(map(iceberg_file, request.added)),
            (entry for each in replaced for entry in manifests.live_entries(each)),
            frozenset(request.removed),
            gone,
        )
        files.insert(0, made)
        report.manifest = written(Path(request.manifest_target.path))
    parent = before.snapshot_id
    add_manifest_list(request.manifest_list_target, request.snapshot_id, parent, request.version, files)
    report.manifest_list = written(Path(request.manifest_list_target.path))
    report.replaced = [each.manifest_path for each in replaced]
    report.added_records, report.removed_records = added.records, gone.records
    report.total_records += added.records - gone.records
    report.total_files += added.files - gone.files
    report.total_bytes += added.size_bytes - gone.size_bytes
    return {
        "snapshot-id": request.snapshot_id,
        "parent-snapshot-id": parent,
        "sequence-number": request.version,
        "timestamp-ms": now_ms,
        "manifest-list": request.manifest_list_target.uri,
        "summary": {"operation": _operation(added, gone), **_summary(added, gone, report), **request.summary},
        "schema-id": len(request.schemas),
    }


def _operation(added: Contents, gone: Contents) -> str:
    """Return what a snapshot does, by its contents. Readers of changes take appended rows, and skip replaced ones."""
    if not gone.files:
        return "append"
    if not added.files:
        return "delete"
    return "replace" if added.rows == gone.rows else "overwrite"


def _summary(added: Contents, gone: Contents, report: SnapshotReport) -> dict[str, str]:
    changes = {
        "added-data-files": added.files,
        "added-records": added.records,
        "added-files-size": added.size_bytes,
        "deleted-data-files": gone.files,
        "deleted-records": gone.records,
        "removed-files-size": gone.size_bytes,
    }
    totals = {
        "total-data-files": report.total_files,
        "total-records": report.total_records,
        "total-files-size": report.total_bytes,
        "total-delete-files": 0,
        "total-position-deletes": 0,
        "total-equality-deletes": 0,
    }
    return {name: str(value) for name, value in changes.items() if value} | {n: str(v) for n, v in totals.items()}


def _metadata(
    request: SnapshotRequest,
    before: _Version,
    now_ms: int,
    snapshots: Sequence[Mapping[str, Any]],
    snapshot_log: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the content of metadata.json."""
    current = snapshots[-1] if snapshots else None
    # Older metadata is there as long as the snapshot that it shows.
    first = min((int(each["sequence-number"]) for each in snapshots), default=request.version)
    older = [*before.metadata_log]
    if request.metadata_uri is not None:
        older.append({"metadata-file": request.metadata_uri, "timestamp-ms": before.updated_ms})
    metadata_count = min(request.version - first, METADATA_LOG_MAX)
    used = {int(each["schema-id"]) for each in snapshots} | {len(request.schemas)}
    schemas = {schema_id: decode_schema(request.schemas[schema_id - 1]) for schema_id in sorted(used)}
    content = {
        "format-version": FORMAT_VERSION,
        "table-uuid": str(UUID(request.table_id)),
        "location": request.location,
        "last-sequence-number": request.version if request.snapshot_id else before.sequence_number,
        "last-updated-ms": now_ms,
        "last-column-id": max(field_ids(schemas[len(request.schemas)])),
        "schemas": [iceberg_schema(schema, schema_id).model_dump() for schema_id, schema in schemas.items()],
        "current-schema-id": len(request.schemas),
        "partition-specs": [UNPARTITIONED_PARTITION_SPEC.model_dump()],
        "default-spec-id": UNPARTITIONED_PARTITION_SPEC.spec_id,
        "last-partition-id": UNPARTITIONED_PARTITION_SPEC.last_assigned_field_id,
        "sort-orders": [UNSORTED_SORT_ORDER.model_dump()],
        "default-sort-order-id": UNSORTED_SORT_ORDER.order_id,
        "properties": dict(request.properties),
        "snapshots": snapshots,
        "snapshot-log": _log_of(snapshot_log, {each["snapshot-id"] for each in snapshots}),
        "metadata-log": older[-metadata_count:] if metadata_count else [],
        "refs": {},
    }
    if current is not None:
        content["current-snapshot-id"] = current["snapshot-id"]
        content["refs"] = {MAIN_BRANCH: {"snapshot-id": current["snapshot-id"], "type": "branch"}}
    return content


def _log_of(snapshot_log: Sequence[Mapping[str, Any]], present: Collection[int]) -> list[Mapping[str, Any]]:
    """Return the log from the first entry on after which no snapshot is missing."""
    start = len(snapshot_log)
    while start and snapshot_log[start - 1]["snapshot-id"] in present:
        start -= 1
    return list(snapshot_log[start:])
