"""Plans the commit of a table, or refuses it; selects snapshots that expire. Pure: `TABLES.md` has the rules.

`plan_table_commit` proves that the data files of each partition go on following each other: it knows the bounds that
the table has of a partition, and a commit's own files, and that is enough.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from anabranch.s3stream.catalog.table_values import (
    NewTableFile,
    OffsetBounds,
    TableCommit,
    TableFile,
    TableFileKind,
    TableInfo,
    TableRetention,
    TableSnapshot,
)
from anabranch.s3stream.errors import CatalogError, NotFound, TableChanged
from anabranch.s3stream.model import ObjectState

NOTHING: Final = OffsetBounds(0, 0)
"""Bounds of a partition that the table has nothing of."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """State of a table and its topic in the catalog, as far as a commit needs it."""

    info: TableInfo
    schema_id: int
    """Newest version of its schema."""
    snapshot_versions: Sequence[int]
    """Of the unexpired snapshots, ascending."""
    files: Mapping[int, TableFile]
    """The commit's files that exist, added or removed ones."""
    bounds: Mapping[int, OffsetBounds]
    """Of the table's partitions."""
    streams: Mapping[int, OffsetBounds]
    """Committed bounds of the topic's partitions; empty if the topic is deleted or detached."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Changes of a commit that are not in the commit itself."""

    version: int
    metadata_file: int
    bounds: Mapping[int, OffsetBounds]
    """Of the partitions whose bounds change."""
    oldest: int
    """Version of the oldest snapshot after it; that of the table if there is none."""


def find_repeat(commit: TableCommit, files: Mapping[int, TableFile]) -> int | None:
    """Return the version that this commit has made before, None if it has not.

    Raises CatalogError if another commit has made its metadata visible.
    """
    for item in commit.added:
        info = files.get(item.file_id)
        if info is not None and info.kind is TableFileKind.METADATA and info.committed_ms:
            if (info.table_id, info.added) != (commit.table_id, commit.version + 1):
                raise CatalogError(f"file {item.file_id} was committed before, by another commit")
            return info.added
    return None


def plan_table_commit(commit: TableCommit, facts: TableFacts) -> TablePlan:
    """Check a commit against the catalog, and list its changes.

    Raises TableChanged if it does not replace the table's version, NotFound, CatalogError.
    """
    table = facts.info
    if commit.version != table.version:
        raise TableChanged(
            f"table {table.name!r} is at version {table.version}, and the commit replaces version {commit.version}: "
            "read the table again"
        )
    newest_schema = facts.schema_id + (1 if commit.schema else 0)
    added = Counter(item.file_id for item in commit.added)
    for file_id, count in added.items():
        if count > 1:
            raise CatalogError(f"table {table.name!r}: file {file_id} is added twice")
    for item in commit.added:
        _check_added(item, commit, facts, newest_schema)
    metadata = [item.file_id for item in commit.added if facts.files[item.file_id].kind is TableFileKind.METADATA]
    if len(metadata) != 1:
        raise CatalogError(f"table {table.name!r}: a commit has one file of metadata, found {len(metadata)}")
    for file_id in commit.removed:
        _check_removed(file_id, commit, facts)
    if not commit.snapshot_id and (commit.removed or len(commit.added) > 1):
        raise CatalogError(f"table {table.name!r}: a commit without a snapshot changes no data and no manifests")
    version = table.version + 1
    return TablePlan(
        version=version,
        metadata_file=metadata[0],
        bounds=_plan_bounds(commit, facts),
        oldest=_plan_expiry(commit, facts, version),
    )


def _check_added(item: NewTableFile, commit: TableCommit, facts: TableFacts, newest_schema: int) -> None:
    """Check that the commit's node has prepared the file for the table, and that it did not expire since."""
    info = facts.files.get(item.file_id)
    if info is None:
        raise NotFound(f"file {item.file_id} is unknown: never prepared, or reaped after its deadline")
    if info.table_id != commit.table_id:
        raise CatalogError(f"file {item.file_id} was prepared for another table")
    if info.state is not ObjectState.PREPARED:
        reaped = info.state is ObjectState.DESTROYED and not info.committed_ms
        kind = NotFound if reaped else CatalogError
        raise kind(f"file {item.file_id} must be PREPARED to be committed, found {info.state.name}")
    if info.node_id != commit.node.node_id:
        raise CatalogError(
            f"file {item.file_id} was prepared by node {info.node_id}, not by node {commit.node.node_id}"
        )
    if item.size_bytes <= 0:
        raise CatalogError(f"file {item.file_id} is empty: {item.size_bytes} bytes")
    if info.kind is not TableFileKind.DATA:
        return
    if item.idx < 0 or not 0 <= item.start_offset < item.end_offset:
        raise CatalogError(
            f"file {item.file_id} has the empty range [{item.start_offset}, {item.end_offset}) of partition {item.idx}"
        )
    if not 1 <= item.schema_id <= newest_schema:
        raise CatalogError(f"file {item.file_id} has schema {item.schema_id}, and the newest is {newest_schema}")


def _check_removed(file_id: int, commit: TableCommit, facts: TableFacts) -> None:
    info = facts.files.get(file_id)
    is_there = info is not None and info.table_id == commit.table_id and info.state is ObjectState.COMMITTED
    if info is None or not is_there or info.removed:
        raise CatalogError(f"file {file_id} is not in table {facts.info.name!r}: it cannot be removed")
    if info.kind is TableFileKind.METADATA:
        raise CatalogError(f"file {file_id} is metadata, which only its successor removes")


def _plan_expiry(commit: TableCommit, facts: TableFacts, version: int) -> int:
    versions = [*facts.snapshot_versions, *([version] if commit.snapshot_id else [])]
    kept = [each for each in versions if each >= commit.expire_before]
    if versions and not kept:
        raise CatalogError(
            f"table {facts.info.name!r}: the current snapshot, of version {versions[-1]}, cannot expire before version "
            f"{commit.expire_before}"
        )
    return kept[0] if kept else version


def _plan_bounds(commit: TableCommit, facts: TableFacts) -> Mapping[int, OffsetBounds]:
    added: dict[int, list[OffsetBounds]] = defaultdict(list)
    removed: dict[int, list[OffsetBounds]] = defaultdict(list)
    for item in commit.added:
        if facts.files[item.file_id].kind is TableFileKind.DATA:
            added[item.idx].append(item.bounds)
    for info in (facts.files[file_id] for file_id in commit.removed):
        if info.kind is TableFileKind.DATA:
            removed[info.idx].append(OffsetBounds(info.start_offset, info.end_offset))
    planned = {
        idx: _Partition(
            where=f"table {facts.info.name!r}: partition {idx}",
            bounds=facts.bounds.get(idx, NOTHING),
            stream=facts.streams.get(idx),
            keeps=facts.info.retention is TableRetention.KEEP,
        ).plan(removed[idx], sorted(added[idx]))
        for idx in sorted({*added, *removed})
    }
    return {idx: bounds for idx, bounds in planned.items() if bounds != facts.bounds.get(idx)}


@dataclass(frozen=True, slots=True)
class _Partition:
    """A partition of a table, before a commit."""

    where: str
    bounds: OffsetBounds
    stream: OffsetBounds | None
    """Bounds of its stream; None: the topic has no such partition, or is gone."""
    keeps: bool

    def plan(self, removed: Sequence[OffsetBounds], added: Sequence[OffsetBounds]) -> OffsetBounds:
        """Return the bounds after a commit. `added` is sorted."""
        for before, after in pairwise(added):
            if after.start_offset < before.end_offset:
                twice = OffsetBounds(after.start_offset, min(before.end_offset, after.end_offset))
                raise CatalogError(f"{self.where}: offsets {_shown(twice)} are in two new files")
        end = self.bounds.end_offset
        replacing = [OffsetBounds(low, min(high, end)) for low, high in added if low < end]
        appended = [OffsetBounds(max(low, end), high) for low, high in added if high > end]
        twice_there = _without(replacing, removed)
        if twice_there:
            raise CatalogError(f"{self.where}: offsets {_shown(twice_there[0])} are in the table already, or left it")
        start = self._drop(_without(removed, replacing))
        return self._append(start, appended) if appended else OffsetBounds(start, end)

    def _drop(self, dropped: Sequence[OffsetBounds]) -> int:
        """Return the start of the table's offsets without those that are removed and not replaced."""
        if not dropped:
            return self.bounds.start_offset
        if self.keeps:
            raise CatalogError(f"{self.where}: offsets {_shown(dropped[0])} are removed, and the table keeps its files")
        if self.stream is None or dropped[-1].end_offset > self.stream.start_offset:
            live = "are no longer known" if self.stream is None else f"begin at {self.stream.start_offset}"
            raise CatalogError(
                f"{self.where}: offsets {_shown(dropped[-1])} are removed and not replaced, and the topic's {live}"
            )
        if len(dropped) > 1 or dropped[0].start_offset != self.bounds.start_offset:
            raise CatalogError(
                f"{self.where}: offsets {_shown(dropped[-1])} are removed, and earlier ones are not: the table begins "
                f"at {self.bounds.start_offset}"
            )
        return dropped[0].end_offset

    def _append(self, start: int, appended: Sequence[OffsetBounds]) -> OffsetBounds:
        end, first, last = self.bounds.end_offset, appended[0].start_offset, appended[-1].end_offset
        if self.stream is None:
            raise NotFound(f"{self.where}: the topic has no such partition, or is gone: nothing can be appended")
        for before, after in pairwise(appended):
            if before.end_offset != after.start_offset:
                self._refuse_gap(before.end_offset, after.start_offset)
        if first > end and first > self.stream.start_offset:
            self._refuse_gap(end, first)
        if last > self.stream.end_offset:
            raise CatalogError(
                f"{self.where}: a file ends at {last}, past the topic's committed end {self.stream.end_offset}"
            )
        is_empty = start == end
        if first > end and not is_empty and not self.keeps:
            # All before it are gone from the topic: they leave in the same snapshot, or there would be a hole.
            self._refuse_gap(end, first)
        return OffsetBounds(first if is_empty else start, last)

    def _refuse_gap(self, low: int, high: int) -> None:
        raise CatalogError(f"{self.where}: a gap: no file has the offsets {_shown(OffsetBounds(low, high))}")


def _shown(bounds: OffsetBounds) -> str:
    return f"[{bounds.start_offset}, {bounds.end_offset})"


def _without(spans: Iterable[OffsetBounds], others: Iterable[OffsetBounds]) -> list[OffsetBounds]:
    """Return the offsets of the spans that none of the others has, as maximal intervals in order."""
    left: list[OffsetBounds] = []
    cuts = sorted(others)
    for low, high in sorted(spans):
        for cut_low, cut_high in cuts:
            if cut_high <= low or cut_low >= high:
                continue
            if cut_low > low:
                _extend(left, low, cut_low)
            low = min(high, cut_high)
        if low < high:
            _extend(left, low, high)
    return left


def _extend(spans: list[OffsetBounds], low: int, high: int) -> None:
    if spans and spans[-1].end_offset == low:
        spans[-1] = OffsetBounds(spans[-1].start_offset, high)
    else:
        spans.append(OffsetBounds(low, high))


def oldest_to_keep(snapshots: Sequence[TableSnapshot], now_ms: int, *, retention_ms: int, count_max: int) -> int:
    """Return the version of the oldest snapshot that does not expire, 0 if there is none.

    A snapshot expires `retention_ms` after another one has replaced it, because until then new scans begin with it, and
    earlier if more than `count_max` would be kept. The current one never does. `snapshots` are in order.
    """
    kept = list(snapshots[-max(1, count_max) :])
    while len(kept) > 1 and kept[1].committed_ms <= now_ms - retention_ms:
        del kept[0]
    return kept[0].version if kept else 0
