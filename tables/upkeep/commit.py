"""One commit of a table: files are written and sent, then the catalog makes them visible together.

Nothing is half visible: all files are prepared in the catalog, which collects those that no commit has named. A commit
whose outcome is unknown is repeated as it was, until it is known.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import structlog

from anabranch.s3stream.catalog.table_plans import oldest_to_keep
from anabranch.s3stream.catalog.table_values import (
    NewTableFile,
    TableCommit,
    TableFile,
    TableFileKind,
    TableSnapshot,
)
from anabranch.s3stream.errors import CatalogUnavailable, StorageError
from anabranch.s3stream.tasks import side_by_side
from anabranch.tables.snapshots import DataFile, SnapshotReport, SnapshotRequest, Target, Written
from anabranch.tables.upkeep.context import UpkeepContext
from anabranch.tables.upkeep.data_files import MadeFile
from anabranch.tables.upkeep.transfers import TableFiles
from anabranch.tables.upkeep.view import TableView

log = structlog.get_logger(__name__)

PROPERTIES: Final = {"gc.enabled": "false"}
"""Iceberg's properties of all tables: no engine deletes files, also if another catalog shows the table."""
SCRATCH_BYTES_MAX: Final = 256 << 20
"""Size of the data files of a commit that wait on this machine, before they are sent."""
SNAPSHOTS_MAX: Final = 1_500
"""Snapshots of a table: metadata.json, which each commit writes anew, has a line of each."""
RETENTION_PROPERTY: Final = "history.expire.max-snapshot-age-ms"
"""Iceberg's property of a table for the time that snapshots stay. It outlives the configs of a topic."""
SENDS_MAX: Final = 4
"""Files that are sent at the same time."""
RETRY_S_MIN: Final = 0.5
"""Pause before a commit whose outcome is unknown is repeated; it doubles each time, up to ..."""
RETRY_S_MAX: Final = 10.0


@dataclass(slots=True)
class Draft:
    """Contents of a commit that is being made."""

    removed: Sequence[TableFile] = ()
    schema: str = ""
    """The next version of the schema; empty: it stays."""
    waiting: list[MadeFile] = field(default_factory=list)
    """Files that are not sent yet."""
    sent: list[tuple[TableFile, MadeFile]] = field(default_factory=list)
    prepared: dict[int, TableFile] = field(default_factory=dict)

    @property
    def waiting_bytes(self) -> int:
        """Size of the files that are not sent yet."""
        return sum(each.report.size_bytes for each in self.waiting)


class TableCommits:
    """Makes the commits of one table."""

    def __init__(self, context: UpkeepContext, files: TableFiles, folder: Path) -> None:
        """`folder` is scratch space of this table, for the time of a commit; manifests stay in it for the next one."""
        self._context = context
        self._files = files
        self._folder = folder

    async def add(self, view: TableView, draft: Draft, made: MadeFile) -> None:
        """Add a data file to a draft, and send those that wait if they are too large."""
        draft.waiting.append(made)
        if draft.waiting_bytes >= SCRATCH_BYTES_MAX:
            prepared = await self._prepare(view, draft, [TableFileKind.DATA] * len(draft.waiting))
            await self._send(draft, prepared)

    async def publish(
        self,
        view: TableView,
        draft: Draft,
        *,
        summary: Mapping[str, str] | None,
        snapshot_retention_ms: int,
    ) -> SnapshotReport:
        """Commit a draft, and let the view be what it has made of the table.

        `summary` is that of the new snapshot; None: there is no new one. Raises TableChanged, NodeFenced, other
        StorageErrors, ColumnsError, OSError: nothing is visible then.
        """
        context = self._context
        count = len(draft.waiting)
        listed = [] if summary is None else [TableFileKind.MANIFEST, TableFileKind.MANIFEST]
        prepared = await self._prepare(view, draft, [*[TableFileKind.DATA] * count, *listed, TableFileKind.METADATA])
        await context.step("prepared")
        await self._send(draft, prepared[:count])
        await context.step("data sent")
        next_version = self._next(view, draft, prepared[count:], summary, snapshot_retention_ms)
        report = await self._write(view, draft, next_version)
        await context.step("metadata written")
        written = [
            (file, each)
            for file, each in zip(next_version.files, _reported(report, summary), strict=True)
            if each is not None
        ]
        await side_by_side(self._files.send(self._path(file), file) for file, _ in written)
        await context.step("metadata sent")
        commit = self._commit_of(view, draft, next_version, report, written)
        await self._commit(commit)
        await context.step("committed")
        await self._discard(draft.prepared.keys() - {each.file_id for each in commit.added})
        view.advance(commit, draft.prepared)
        self._keep(view)
        return report

    def _next(
        self,
        view: TableView,
        draft: Draft,
        files: Sequence[TableFile],
        summary: Mapping[str, str] | None,
        snapshot_retention_ms: int,
    ) -> "_NextVersion":
        now_ms = self._context.now_ms()
        snapshots = [*view.snapshots]
        snapshot_id = 0
        if summary is not None:
            snapshot_id = self._new_snapshot_id({each.snapshot_id for each in snapshots})
            snapshots.append(TableSnapshot(view.info.version + 1, snapshot_id, now_ms))
        oldest = oldest_to_keep(snapshots, now_ms, retention_ms=snapshot_retention_ms, count_max=SNAPSHOTS_MAX)
        schemas = [*view.schemas, draft.schema] if draft.schema else view.schemas
        return _NextVersion(files, snapshot_id, summary or {}, now_ms, oldest, schemas, snapshot_retention_ms)

    async def _write(self, view: TableView, draft: Draft, wanted: "_NextVersion") -> SnapshotReport:
        """Let the files of metadata be written on this machine."""
        uri, store = self._files.uri, self._files.store(view.info.store)
        manifests = await self._copies(view.manifests if wanted.snapshot_id else ())
        metadata = await self._copies([] if view.metadata is None else [view.metadata])
        targets = [Target(str(self._path(file)), uri(file)) for file in wanted.files]
        request = SnapshotRequest(
            table_id=view.info.table_id.hex(),
            location=store.uri(view.info.location),
            schemas=wanted.schemas,
            properties={RETENTION_PROPERTY: str(wanted.snapshot_retention_ms), **PROPERTIES},
            version=view.info.version + 1,
            now_ms=wanted.now_ms,
            metadata=next(iter(metadata.values()), None),
            metadata_uri=next(iter(metadata), None),
            snapshot_id=wanted.snapshot_id,
            manifest_list=list(manifests.values())[-1] if manifests else None,
            manifests=dict(list(manifests.items())[:-1]),
            added=[DataFile(uri(file), made.report.size_bytes, made.report.metrics) for file, made in draft.sent],
            removed=[uri(file) for file in draft.removed],
            summary=wanted.summary,
            kept=[each.snapshot_id for each in view.snapshots if each.version >= wanted.oldest],
            metadata_target=targets[-1].path,
            manifest_target=targets[0] if wanted.snapshot_id else None,
            manifest_list_target=targets[1] if wanted.snapshot_id else None,
        )
        return await self._context.columns.ask(lambda process: process.write_snapshot(request))

    def _commit_of(
        self,
        view: TableView,
        draft: Draft,
        wanted: "_NextVersion",
        report: SnapshotReport,
        written: Sequence[tuple[TableFile, Written]],
    ) -> TableCommit:
        replaced = set(report.replaced)
        gone = [file.file_id for file in view.manifests[:-1] if self._files.uri(file) in replaced]
        if wanted.snapshot_id and view.manifests:
            gone.append(view.manifests[-1].file_id)  # the list of the snapshot before
        return TableCommit(
            node=self._context.node,
            table_id=view.info.table_id,
            version=view.info.version,
            added=[
                *(
                    NewTableFile(
                        file.file_id,
                        made.report.size_bytes,
                        made.report.crc,
                        made.idx,
                        *made.bounds,
                        made.report.rows,
                        len(wanted.schemas),
                    )
                    for file, made in draft.sent
                ),
                *(NewTableFile(file.file_id, each.size_bytes, each.crc32c) for file, each in written),
            ],
            now_ms=wanted.now_ms,
            delete_after_ms=wanted.now_ms,
            removed=[*(file.file_id for file in draft.removed), *gone],
            snapshot_id=wanted.snapshot_id,
            schema=draft.schema,
            expire_before=wanted.oldest,
        )

    async def discard(self, draft: Draft) -> None:
        """Give up a draft: its files are collected, unless a commit whose answer was lost has them."""
        for made in draft.waiting:
            made.path.unlink(missing_ok=True)
        await self._discard(draft.prepared.keys())
        await self._delete_forgotten(draft)

    async def _delete_forgotten(self, draft: Draft) -> None:
        """Delete files that the catalog no longer has, which nobody else would.

        They were sent after the collector of another node, whose clock is far ahead, had taken them for expired.
        """
        try:
            known = await self._context.catalog.tables.get_files(draft.prepared.keys())
            for file_id, file in draft.prepared.items():
                if file_id not in known:
                    await self._files.delete(file)
        except StorageError as error:
            log.warning("files of a refused commit may stay in the store", reason=str(error))

    async def _discard(self, file_ids: Collection[int]) -> None:
        if not file_ids:
            return
        now_ms = self._context.now_ms()
        try:
            await self._context.catalog.tables.discard_files(
                sorted(file_ids), now_ms=now_ms, delete_after_ms=now_ms + self._context.prepare_ttl_ms
            )
        except StorageError:
            log.debug("prepared files of a table expire by themselves", files=sorted(file_ids))

    async def _prepare(self, view: TableView, draft: Draft, kinds: Sequence[TableFileKind]) -> Sequence[TableFile]:
        now_ms = self._context.now_ms()
        found = await self._context.catalog.tables.prepare_files(
            view.info.table_id,
            kinds,
            node=self._context.node,
            writer_id=self._context.new_writer_id(),
            now_ms=now_ms,
            deadline_ms=now_ms + self._context.prepare_ttl_ms,
        )
        draft.prepared.update((file.file_id, file) for file in found)
        return found

    async def _send(self, draft: Draft, prepared: Sequence[TableFile]) -> None:
        pairs = list(zip(prepared, draft.waiting, strict=True))
        for at in range(0, len(pairs), SENDS_MAX):
            some = pairs[at : at + SENDS_MAX]
            await side_by_side(self._files.send(made.path, file) for file, made in some)
            for _, made in some:
                made.path.unlink()
            draft.sent += some
            del draft.waiting[: len(some)]

    async def _commit(self, commit: TableCommit) -> None:
        """Send a commit until its outcome is known, or the table is another node's."""
        pause_s = RETRY_S_MIN
        while True:
            # Until it takes effect, scans begin with the snapshots that expire in it.
            now_ms = max(commit.now_ms, self._context.now_ms())
            timely = replace(commit, delete_after_ms=now_ms + self._context.delete_delay_ms)
            try:
                await self._context.catalog.tables.commit(timely)
            except CatalogUnavailable as error:
                if pause_s == RETRY_S_MIN:
                    log.warning("the commit of a table waits for the catalog", reason=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
                await self._context.step("commit repeated")
            else:
                return

    def _path(self, file: TableFile) -> Path:
        return self._folder / f"{file.file_id:016x}"

    async def metadata(self, view: TableView) -> bytes:
        """Return the current metadata.json; empty if there is none. Raises StorageError, OSError."""
        if view.metadata is None:
            return b""
        (path,) = (await self._copies([view.metadata])).values()
        return await asyncio.to_thread(Path(path).read_bytes)

    async def _copies(self, files: Iterable[TableFile]) -> dict[str, str]:
        """Return the paths of copies on this machine by URI, in the same order; fetch those that are not there."""
        found = {}
        for file in files:
            path = self._path(file)
            if not path.exists():
                await self._files.fetch(file, path)
            found[self._files.uri(file)] = str(path)
        return found

    def _keep(self, view: TableView) -> None:
        """Remove copies that the next commit does not need."""
        kept = {self._path(file) for file in view.manifests}
        if view.metadata is not None:
            kept.add(self._path(view.metadata))
        for path in self._folder.iterdir():
            if path not in kept:
                path.unlink()

    def _new_snapshot_id(self, known: Collection[int]) -> int:
        """Return an id that the table's snapshots do not have: readers see its digits, so it is positive."""
        while True:
            found = int.from_bytes(self._context.new_uuid()[:8]) >> 1
            if found and found not in known:
                return found


@dataclass(frozen=True, slots=True)
class _NextVersion:
    """Next version of a table, besides its data files."""

    files: Sequence[TableFile]
    """Prepared manifest and manifest list, if there is a new snapshot, and metadata."""
    snapshot_id: int
    summary: Mapping[str, str]
    now_ms: int
    oldest: int
    """Version of the oldest snapshot that stays."""
    schemas: Sequence[str]
    snapshot_retention_ms: int


def _reported(report: SnapshotReport, summary: Mapping[str, str] | None) -> Sequence[Written | None]:
    """Return what was written of the files of metadata, in their order."""
    return [report.metadata] if summary is None else [report.manifest, report.manifest_list, report.metadata]
