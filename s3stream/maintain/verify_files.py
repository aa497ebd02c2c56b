"""Checks that the catalog and the stores agree about the files of tables, and that those of a partition have no gap.

What is in the files is not looked at: their sizes, and with `deep` their CRC32C.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import (
    TABLE_KEYS,
    OffsetBounds,
    TableFile,
    TableInfo,
    TableKey,
    TableRetention,
    parse_table_key,
)
from anabranch.s3stream.errors import CorruptObject, NotFound, ObjectNotFound, StoreError
from anabranch.s3stream.maintain.findings import FindingKind, VerifyReport
from anabranch.s3stream.model import ObjectState
from anabranch.s3stream.store.interface import ObjectStore, StoredObject

PAGE: Final = 500
FILES_IN_FLIGHT: Final = 8
READ_BYTES_MAX: Final = 8 << 20


OF_ANOTHER_CATALOG: Final = re.compile(
    TABLE_KEYS + r"[^/]+/[^/]+/metadata/\d+-[0-9a-f-]{36}(\.gz)?\.metadata\.json(\.gz)?"
)
"""Names of metadata as catalogs of Iceberg write them, with a number and a UUID."""


class _Listed(NamedTuple):
    place: TableKey
    size_bytes: int


class FileVerification:
    """Checks the files of tables: first receives what the stores list, and then reads the catalog."""

    def __init__(
        self, catalog: Catalog, stores: Mapping[str, ObjectStore], cluster: str, report: VerifyReport, *, read: bool
    ) -> None:
        """Without `read` no file is read."""
        self._catalog = catalog
        self._stores = stores
        self._cluster = cluster
        self._report = report
        self._read = read
        self._stored: dict[str, dict[str, _Listed]] = {name: {} for name in stores}
        """Files in each store, by key."""

    def add(self, store: str, item: StoredObject) -> None:
        """Receive an object whose key begins like those of tables."""
        key = parse_table_key(item.key)
        if key is None and OF_ANOTHER_CATALOG.fullmatch(item.key):
            pass  # REST catalogs keep their own metadata of a published table beside ours
        elif key is None:
            self._report.add(FindingKind.UNACCOUNTED, f"{store}:{item.key}", "not the key of a table's file")
        elif key.cluster != self._cluster:
            self._report.other_clusters += 1
        else:
            self._stored[store][item.key] = _Listed(key, item.size_bytes)

    async def run(self) -> None:
        """Compare what was received with the catalog."""
        tables = await self._catalog.tables.list()
        self._report.tables = len(tables)
        slots = asyncio.Semaphore(FILES_IN_FLIGHT)
        async for page in self._pages():
            async with asyncio.TaskGroup() as group:
                for file in page:
                    self._report.table_files[file.state] += 1
                    listed = self._stored.get(file.store, {}).pop(file.file_key, None)
                    if file.state is ObjectState.COMMITTED:
                        group.create_task(self._check_file(file, listed, slots))
        locations = {table.location for table in tables}
        for name, left in self._stored.items():
            await self._check_unaccounted(self._stores[name], left, locations)
        for table in tables:
            # A commit between two reads may look like a gap, but not twice.
            if await self._find_gap(table) and (detail := await self._find_gap(table)):
                self._report.add(FindingKind.DISCONTINUOUS, f"table {table.name}", detail)

    async def _pages(self) -> AsyncIterator[Sequence[TableFile]]:
        after = 0
        while page := await self._catalog.tables.list_files(after=after, limit=PAGE):
            yield page
            after = page[-1].file_id

    async def _check_file(self, file: TableFile, listed: _Listed | None, slots: asyncio.Semaphore) -> None:
        where = f"{file.store}:{file.file_key}"
        self._report.table_bytes += file.size_bytes
        store = self._stores.get(file.store)
        if store is None:
            self._report.add(FindingKind.UNKNOWN_STORE, where, f"configured: {', '.join(sorted(self._stores))}")
            return
        async with slots:
            try:
                await self._check_bytes(store, file, listed, where)
            except ObjectNotFound as error:
                if await self._still_committed(file):
                    self._report.add(FindingKind.MISSING, where, str(error))
            except CorruptObject as error:
                self._report.add(FindingKind.CORRUPT, where, str(error))
            except StoreError as error:
                if await self._still_committed(file):
                    self._report.add(FindingKind.UNREADABLE, where, str(error))

    async def _check_bytes(self, store: ObjectStore, file: TableFile, listed: _Listed | None, where: str) -> None:
        # One that was not listed was committed meanwhile, or is not there.
        size = (await store.get_tail(file.file_key, 1)).size_bytes if listed is None else listed.size_bytes
        if size != file.size_bytes:
            raise CorruptObject(f"{where}: expected {file.size_bytes} bytes, found {size}")
        if self._read and self._report.deep:
            check_crc(file, await read_crc(store, file), where)

    async def _still_committed(self, file: TableFile) -> bool:
        now = (await self._catalog.tables.get_files([file.file_id])).get(file.file_id)
        return now is not None and now.state is ObjectState.COMMITTED

    async def _check_unaccounted(
        self, store: ObjectStore, left: Mapping[str, _Listed], locations: Collection[str]
    ) -> None:
        """Check files that were listed, and then had no row: collected meanwhile, left on purpose, or unaccounted for.

        A file has a row before it is written.
        """
        for key, listed in left.items():
            if listed.place.location not in locations:
                self._report.kept_table_files += 1
            elif (writer := await store.writer_id(key)) is not None:
                self._report.add(FindingKind.UNACCOUNTED, f"{store.name}:{key}", f"written by {writer!r}")

    async def _find_gap(self, table: TableInfo) -> str | None:
        """Return why a table's files have other offsets than the table, or the topic does not; None if all fit."""
        try:
            bounds = (await self._catalog.tables.read(table.table_id)).bounds
        except NotFound:  # dropped
            return None
        topics = {topic.topic_id: topic for topic in await self._catalog.list_topics()}
        topic = topics.get(table.topic_id)
        streams = {} if topic is None else {each.index: each.stream_id for each in topic.partitions}
        found = await self._catalog.get_streams(list(streams.values()))
        for idx, each in sorted(bounds.items()):
            where = f"partition {idx}"
            detail = await self._find_hole(table, idx, each)
            if detail:
                return f"{where}: {detail}"
            stream = found.get(streams.get(idx, -1))
            if stream is not None and stream.end_offset < each.end_offset:
                return f"{where}: has offsets up to {each.end_offset}, and the topic ends at {stream.end_offset}"
        return None

    async def _find_hole(self, table: TableInfo, idx: int, bounds: OffsetBounds) -> str | None:
        cursor = bounds.start_offset
        while cursor < bounds.end_offset:
            files = await self._catalog.tables.list_data_files(table.table_id, idx, start_offset=cursor, limit=PAGE)
            for file in files:
                is_hole = file.start_offset > cursor and table.retention is not TableRetention.KEEP
                if is_hole or file.start_offset < cursor:
                    return f"a file begins at {file.start_offset}, expected {cursor}"
                cursor = file.end_offset
            if not files:
                return f"no file has [{cursor}, {bounds.end_offset})"
        return None if cursor == bounds.end_offset else f"a file ends at {cursor}, expected {bounds.end_offset}"


async def read_crc(store: ObjectStore, file: TableFile) -> int:
    """Return the CRC32C of a file's bytes. Raises StoreError."""
    found = 0
    for start in range(0, file.size_bytes, READ_BYTES_MAX):
        end = min(start + READ_BYTES_MAX, file.size_bytes)
        found = crc32c(await store.get(file.file_key, start, end), found)
    return found


def check_crc(file: TableFile, found: int, where: str) -> None:
    """Raise CorruptObject if a file's bytes have another CRC32C than the catalog says."""
    if found != file.crc32c:
        raise CorruptObject(f"{where}: CRC32C: expected {file.crc32c:08x}, found {found:08x}")
