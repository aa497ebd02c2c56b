"""A table as its committer sees it: state, data files and manifests of one version."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.catalog.table_values import (
    NewTableFile,
    OffsetBounds,
    TableCommit,
    TableFile,
    TableFileKind,
    TableInfo,
    TableSnapshot,
    TableState,
)
from anabranch.s3stream.model import ObjectState

FILES_PAGE: Final = 1_000
NOTHING: Final = OffsetBounds(0, 0)


@dataclass(slots=True)
class TableView:
    """A table at one version. `advance` makes it the next one."""

    info: TableInfo
    schemas: list[str]
    bounds: dict[int, OffsetBounds]
    snapshots: list[TableSnapshot]
    files: dict[int, list[TableFile]] = field(default_factory=lambda: defaultdict(list))
    """Data files by partition, in the order of offsets."""
    manifests: list[TableFile] = field(default_factory=list)
    """Manifests of the current snapshot, and its manifest list, the last one."""
    metadata: TableFile | None = None

    @classmethod
    async def read(cls, tables: TableCatalog, table_id: bytes) -> "TableView":
        """Read a table. Raises NotFound."""
        while True:
            state = await tables.read(table_id)
            view = cls._of(state)
            after = (-1, -1)
            while page := await tables.list_live_files(table_id, after=after, limit=FILES_PAGE):
                for file in page:
                    view.files[file.idx].append(file)
                after = (page[-1].idx, page[-1].start_offset)
            if state.info.metadata_file:
                view.manifests = list(await tables.list_manifests(table_id))
                found = await tables.get_files([state.info.metadata_file])
                view.metadata = found.get(state.info.metadata_file)
            if (await tables.read(table_id)).info.version == state.info.version:
                return view

    @classmethod
    def _of(cls, state: TableState) -> "TableView":
        return cls(state.info, list(state.schemas), dict(state.bounds), list(state.snapshots))

    @property
    def data_files(self) -> int:
        """Number of data files."""
        return sum(map(len, self.files.values()))

    def bounds_of(self, idx: int) -> OffsetBounds:
        """Return the offsets that the table has of a partition."""
        return self.bounds.get(idx, NOTHING)

    def advance(self, commit: TableCommit, prepared: Mapping[int, TableFile]) -> None:
        """Become what a commit has made of the table. `prepared` are its added files as they were before."""
        version = commit.version + 1
        removed = set(commit.removed)
        grown = {item.idx for item in commit.added}
        for item in commit.added:
            file = _committed(prepared[item.file_id], item, version, commit.now_ms)
            match file.kind:
                case TableFileKind.DATA:
                    self.files[file.idx].append(file)
                case TableFileKind.MANIFEST:
                    self.manifests.append(file)
                case TableFileKind.METADATA:
                    self.metadata = file
                    self.info = replace(self.info, version=version, metadata_file=file.file_id)
        for idx, files in self.files.items():
            left = [file for file in files if file.file_id not in removed]
            if idx not in grown and len(left) == len(files):
                continue  # of a large table, most
            left.sort(key=lambda each: each.start_offset)
            end = self.bounds_of(idx).end_offset
            self.files[idx] = left
            self.bounds[idx] = (
                OffsetBounds(left[0].start_offset, left[-1].end_offset) if left else OffsetBounds(end, end)
            )
        self.manifests = [file for file in self.manifests if file.file_id not in removed]
        if commit.schema:
            self.schemas.append(commit.schema)
        if commit.snapshot_id:
            self.info = replace(self.info, snapshot_id=commit.snapshot_id)
            self.snapshots.append(TableSnapshot(version, commit.snapshot_id, commit.now_ms))
        self.snapshots = [each for each in self.snapshots if each.version >= commit.expire_before]


def _committed(file: TableFile, item: NewTableFile, version: int, now_ms: int) -> TableFile:
    return replace(
        file,
        state=ObjectState.COMMITTED,
        size_bytes=item.size_bytes,
        crc32c=item.crc32c,
        idx=item.idx,
        start_offset=item.start_offset,
        end_offset=item.end_offset,
        record_count=item.record_count,
        schema_id=item.schema_id,
        deadline_ms=0,
        upload_id="",
        committed_ms=now_ms,
        added=version,
    )


def current_summary(metadata: bytes) -> Mapping[str, str]:
    """Return the summary of the current snapshot that a metadata.json has; empty if there is none."""
    found: dict[str, Any] = json.loads(metadata)
    current = found.get("current-snapshot-id")
    for snapshot in found.get("snapshots", ()):
        if snapshot["snapshot-id"] == current:
            summary: Mapping[str, str] = snapshot.get("summary", {})
            return summary
    return {}
