"""Checks that catalog and stores agree: nothing is missing, damaged, unaccounted for, or discontinuous.

Works while nodes run. Stores are listed before the catalog is read, and every difference is checked again on both sides
before it is reported: an object that was committed, compacted or collected meanwhile is not a finding.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import TABLE_KEYS
from anabranch.s3stream.errors import CorruptObject, ObjectNotFound, StoreError
from anabranch.s3stream.maintain.claim import CLAIMS
from anabranch.s3stream.maintain.findings import FindingKind, VerifyReport
from anabranch.s3stream.maintain.manifest import parse_manifest_key
from anabranch.s3stream.maintain.verify_files import FileVerification
from anabranch.s3stream.model import (
    LOG_KEYS,
    ObjectInfo,
    ObjectState,
    RangeLocation,
    StreamInfo,
    object_key,
    parse_object_key,
)
from anabranch.s3stream.object.format import IndexEntry, decode_block
from anabranch.s3stream.object.marks import MARK_KEYS
from anabranch.s3stream.object.reader import ObjectIndex, expect_object, index_tail_bytes, read_index
from anabranch.s3stream.store.interface import ObjectStore

PAGE: Final = 500
OBJECTS_IN_FLIGHT: Final = 8
READ_BYTES_MAX: Final = 8 << 20


async def verify(
    *,
    catalog: Catalog,
    stores: Mapping[str, ObjectStore],
    cluster: str,
    deep: bool = False,
    read_objects: bool = True,
    on_progress: Callable[[VerifyReport], None] | None = None,
) -> VerifyReport:
    """Compare catalog and stores; with `deep` every data block is read. `on_progress` gets the report as it grows.

    Without `read_objects` the stores are only listed, for a caller that reads the objects itself.
    """
    return await _Verification(
        catalog, stores, cluster, VerifyReport(deep), on_progress or (lambda _: None), read_objects=read_objects
    ).run()


class _Verification:
    def __init__(
        self,
        catalog: Catalog,
        stores: Mapping[str, ObjectStore],
        cluster: str,
        report: VerifyReport,
        on_progress: Callable[[VerifyReport], None],
        *,
        read_objects: bool,
    ) -> None:
        self._catalog = catalog
        self._stores = stores
        self._cluster = cluster
        self._report = report
        self._on_progress = on_progress
        self._read_objects = read_objects
        self._files = FileVerification(catalog, stores, cluster, report, read=read_objects)

    async def run(self) -> VerifyReport:
        stored: dict[str, set[int]] = {}
        for name, store in self._stores.items():
            stored[name] = await self._list_store(store)
        async for page in self._object_pages():
            await self._check_objects(page, stored)
        for name, left in stored.items():
            await self._check_unaccounted(self._stores[name], sorted(left))
        await self._check_streams()
        await self._files.run()
        self._on_progress(self._report)
        return self._report

    async def _list_store(self, store: ObjectStore) -> set[int]:
        """Return the ids of this cluster's objects in a store; a key of another form is a finding."""
        ids: set[int] = set()
        async for item in store.list():
            manifest = parse_manifest_key(item.key)
            if manifest is not None:
                self._note_manifest(manifest.cluster)
                continue
            if item.key.startswith((LOG_KEYS, CLAIMS, MARK_KEYS)):
                continue
            if item.key.startswith(TABLE_KEYS):
                self._files.add(store.name, item)
                continue
            parsed = parse_object_key(item.key)
            if parsed is None:
                self._report.add(FindingKind.UNACCOUNTED, f"{store.name}:{item.key}", "not the key of an object")
            elif parsed[0] != self._cluster:
                self._report.other_clusters += 1
            else:
                ids.add(parsed[1])
                self._report.stored_objects += 1
                self._report.stored_bytes += item.size_bytes
        return ids

    def _note_manifest(self, cluster: str) -> None:
        if cluster == self._cluster:
            self._report.manifests += 1
        else:
            self._report.other_clusters += 1

    async def _object_pages(self) -> AsyncIterator[Sequence[ObjectInfo]]:
        after = 0
        while page := await self._catalog.list_objects(after=after, limit=PAGE):
            yield page
            after = page[-1].object_id

    async def _check_objects(self, page: Sequence[ObjectInfo], stored: Mapping[str, set[int]]) -> None:
        """Check the committed objects of a page, and remove all of its objects from `stored`."""
        for info in page:
            self._report.objects[info.state] += 1
            if info.store in stored:
                stored[info.store].discard(info.object_id)
        committed = [info for info in page if info.state is ObjectState.COMMITTED]
        located = await self._catalog.object_ranges([info.object_id for info in committed])
        slots = asyncio.Semaphore(OBJECTS_IN_FLIGHT)
        async with asyncio.TaskGroup() as group:
            for info in committed:
                group.create_task(self._check_object(info, located.get(info.object_id, ()), slots))
        self._on_progress(self._report)

    async def _check_object(
        self, info: ObjectInfo, locations: Sequence[RangeLocation], slots: asyncio.Semaphore
    ) -> None:
        where = f"{info.store}:{object_key(self._cluster, info.object_id)}"
        self._report.object_bytes += info.size_bytes
        self._report.ranges += len(locations)
        store = self._stores.get(info.store)
        if store is None:
            self._report.add(FindingKind.UNKNOWN_STORE, where, f"configured: {', '.join(sorted(self._stores))}")
            return
        if not self._read_objects:
            return
        async with slots:
            try:
                await self._check_bytes(store, info, locations, where)
            except ObjectNotFound as error:
                if await self._still_committed(info):
                    self._report.add(FindingKind.MISSING, where, str(error))
            except CorruptObject as error:
                self._report.add(FindingKind.CORRUPT, where, str(error))
            except StoreError as error:
                if await self._still_committed(info):
                    self._report.add(FindingKind.UNREADABLE, where, str(error))

    async def _check_bytes(
        self, store: ObjectStore, info: ObjectInfo, locations: Sequence[RangeLocation], where: str
    ) -> None:
        key = object_key(self._cluster, info.object_id)
        hint = index_tail_bytes(info.size_bytes)
        index = await read_index(store, key, hint, object_bytes=info.size_bytes)
        expect_object(index, info.object_id)
        if index.kind is not info.kind:
            self._report.add(FindingKind.CORRUPT, where, f"kind: expected {info.kind.name}, found {index.kind.name}")
        for location in locations:
            detail = find_range_problem(location, index)
            if detail:
                self._report.add(FindingKind.RANGE, where, detail)
        self._report.blocks += len(index)
        self._report.block_bytes += index.footer.index_position
        if self._report.deep:
            for run in read_runs(index):
                data = await store.get(key, run[0].position, run[-1].end_position)
                for entry in run:
                    start = entry.position - run[0].position
                    decode_block(data[start : start + entry.size_bytes], entry, where=where)

    async def _still_committed(self, info: ObjectInfo) -> bool:
        now = (await self._catalog.get_objects([info.object_id])).get(info.object_id)
        return now is not None and now.state is ObjectState.COMMITTED

    async def _check_unaccounted(self, store: ObjectStore, suspects: Sequence[int]) -> None:
        """Check objects that were listed but are not in the catalog: collected meanwhile, or unaccounted for."""
        for start in range(0, len(suspects), PAGE):
            piece = suspects[start : start + PAGE]
            known = await self._catalog.get_objects(piece)
            for object_id in piece:
                key = object_key(self._cluster, object_id)
                in_this_store = object_id in known and known[object_id].store == store.name
                if not in_this_store and (writer := await store.writer_id(key)) is not None:
                    self._report.add(FindingKind.UNACCOUNTED, f"{store.name}:{key}", f"written by {writer!r}")

    async def _check_streams(self) -> None:
        after = 0
        while page := await self._catalog.list_streams(after=after, limit=PAGE):
            for stream in page:
                self._report.streams += 1
                detail = await self._find_stream_gap(stream)
                if detail and (now := (await self._catalog.get_streams([stream.stream_id])).get(stream.stream_id)):
                    detail = await self._find_stream_gap(now)
                    if detail:
                        self._report.add(FindingKind.DISCONTINUOUS, f"stream {stream.stream_id}", detail)
            after = page[-1].stream_id
            self._on_progress(self._report)

    async def _find_stream_gap(self, stream: StreamInfo) -> str | None:
        """Check the stream's ranges from start to end; a compaction between two pages may move their bounds."""
        cursor = stream.start_offset
        while cursor < stream.end_offset:
            found = await self._catalog.find_ranges(stream.stream_id, cursor, stream.end_offset, limit=PAGE)
            for location in found:
                if location.range.start_offset > cursor:
                    return f"no object holds [{cursor}, {location.range.start_offset})"
                cursor = location.range.end_offset
            if not found:
                return f"no object holds [{cursor}, {stream.end_offset})"
        return None


def find_range_problem(location: RangeLocation, index: ObjectIndex) -> str | None:
    """Return why the object's blocks do not hold a range of the catalog, or None if they hold it without a gap."""
    span = location.range
    entries = index.find(location.stored_stream_id, span.start_offset, span.end_offset)
    cursor, records = span.start_offset, 0
    for entry in entries:
        if entry.start_offset > cursor:
            break
        cursor = entry.end_offset
        records += entry.record_count
    else:
        if cursor >= span.end_offset:
            whole = entries[0].start_offset == span.start_offset and cursor == span.end_offset
            if whole and records != span.record_count:
                return f"stream {span.stream_id}: expected {span.record_count} records, found {records}"
            return None
    bounds = f"[{span.start_offset}, {span.end_offset})"
    return f"stream {span.stream_id}: expected blocks for {bounds}, found none at {cursor}"


def read_runs(index: ObjectIndex) -> list[list[IndexEntry]]:
    """Group the blocks of an object into reads of bounded size (a single block may be larger)."""
    runs: list[list[IndexEntry]] = []
    for entry in index:
        if runs and entry.end_position - runs[-1][0].position <= READ_BYTES_MAX:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs
