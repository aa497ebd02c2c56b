"""Checks that tables are what the catalog says: their metadata and manifests, and with `deep` their rows.

A table's rows are compared with the records of their offsets, as READ_COMMITTED shows them, as far as the topic still
has them. Values and keys that were decoded are decoded again if that takes no registry and the schema has never
changed; else they are compared where the row has their bytes. Works while nodes run: a table that has changed meanwhile
is looked at again.
"""

import asyncio
import io
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from crc32c import crc32c

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_values import TABLE_KEYS, TableFile, TableFileKind, parse_table_key
from anabranch.s3stream.catalog.values import TopicInfo
from anabranch.s3stream.errors import CorruptObject, NotFound, StorageError, StoreError
from anabranch.s3stream.maintain.findings import Finding, FindingKind, VerifyReport
from anabranch.s3stream.maintain.verify_files import check_crc
from anabranch.s3stream.model import ObjectState
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.tables.errors import RegistryError, SchemaError
from anabranch.tables.parts import answer
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import RAW, Question, Share
from anabranch.tables.requests import Finding as Decoding
from anabranch.tables.row_files import RANGE
from anabranch.tables.schema import KAFKA, RAW_VALUE, encode_schema, evolve
from anabranch.tables.share import NOT_DECODED, make_share
from anabranch.tables.transactions import read_transactions
from anabranch.tables.upkeep.options import DEFAULTS, TableOptions
from anabranch.tables.upkeep.plan import SHARE_BYTES_MAX
from anabranch.tables.upkeep.source import BlockSource, RowsGone
from anabranch.tables.upkeep.transfers import TableFiles
from anabranch.tables.upkeep.view import TableView

ATTEMPTS: Final = 5
"""Looks at a table that changes all the time."""
DELETED: Final = 2
"""Status of an entry of a manifest whose file has left with it."""
ROWS_MAX: Final = 8192
_COMPARED: Final = ("timestamp", "timestamp_type", "headers")
"""Fields of `_kafka` that are in each table as they were in the record."""


class _TableError(Exception):
    """A table is not what the catalog says. The text says how."""


async def verify_tables(
    *,
    catalog: Catalog,
    stores: Mapping[str, ObjectStore],
    cluster: str,
    report: VerifyReport,
    folder: Path,
    on_progress: Callable[[VerifyReport], None] | None = None,
) -> None:
    """Check all tables, and add what is found to a report; with its `deep` rows are compared. `folder` is for copies.

    The files themselves are `s3stream.maintain.verify_files`' business.
    """
    topics = {topic.topic_id: topic for topic in await catalog.list_topics()}
    for info in await catalog.tables.list():
        for attempt in range(ATTEMPTS):
            try:
                view = await TableView.read(catalog.tables, info.table_id)
            except NotFound:  # dropped
                break
            check = _Check(catalog, stores, cluster, view, topics.get(info.topic_id), folder)
            found = await check.run(deep=report.deep)
            with suppress(NotFound):
                now = await catalog.tables.read(info.table_id)
                if found and now.info.version != view.info.version and attempt < ATTEMPTS - 1:
                    continue
            known = {each.where for each in report.findings}
            for finding in found:
                if finding.where not in known:  # the file itself may be at fault
                    report.add(*finding)
            report.table_rows += check.rows
            break
        if on_progress is not None:
            on_progress(report)


class _Check:
    """A check of a table at one version."""

    def __init__(
        self,
        catalog: Catalog,
        stores: Mapping[str, ObjectStore],
        cluster: str,
        view: TableView,
        topic: TopicInfo | None,
        folder: Path,
    ) -> None:
        self._catalog = catalog
        self._stores = stores
        self._view = view
        self._topic = topic
        self._folder = folder
        self._files = TableFiles(catalog.tables, stores, None)
        self._source = BlockSource(catalog, stores, cluster)
        self._decoding = _decoding_of(view, topic)
        self.rows = 0
        """Rows that were compared with records."""

    async def run(self, *, deep: bool) -> list[Finding]:
        """Return what is wrong."""
        view = self._view
        if view.metadata is None or view.info.store not in self._stores:
            return []
        found = []
        try:
            await self._check_metadata(deep=deep)
        except (_TableError, CorruptObject) as error:
            found.append(Finding(FindingKind.TABLE, f"table {view.info.name}", str(error)))
        except StoreError as error:
            found.append(Finding(FindingKind.UNREADABLE, f"table {view.info.name}", str(error)))
        if not deep:
            return found
        for file in (file for files in view.files.values() for file in files):
            where = f"{file.store}:{file.file_key}"
            try:
                await self._check_file(file)
            except _TableError as error:
                found.append(Finding(FindingKind.ROWS, where, str(error)))
            except (CorruptObject, pa.ArrowInvalid) as error:
                found.append(Finding(FindingKind.CORRUPT, where, str(error)))
            except StorageError as error:
                found.append(Finding(FindingKind.UNREADABLE, where, str(error)))
        return found

    # metadata

    async def _check_metadata(self, *, deep: bool) -> None:
        view = self._view
        assert view.metadata is not None, "a table without commits has nothing to check"
        content = json.loads(await self._read(view.metadata))
        snapshots = {each["snapshot-id"]: each for each in content.get("snapshots", ())}
        expected = {each.snapshot_id: each.version for each in view.snapshots}
        if content["table-uuid"].replace("-", "") != view.info.table_id.hex():
            raise _TableError(f"its metadata is of table {content['table-uuid']}")
        if snapshots.keys() != expected.keys():
            raise _TableError(f"its metadata has snapshots {sorted(snapshots)}, the catalog {sorted(expected)}")
        if (content.get("current-snapshot-id") or 0) != view.info.snapshot_id:
            raise _TableError(
                f"its metadata has the current snapshot {content.get('current-snapshot-id')}, the catalog "
                f"{view.info.snapshot_id}"
            )
        entries: dict[str, Sequence[Mapping[str, Any]]] = {}
        for snapshot_id, version in expected.items():
            is_current = snapshot_id == view.info.snapshot_id
            if deep or is_current:
                await self._check_snapshot(snapshots[snapshot_id], version, entries, is_current=is_current)

    async def _check_snapshot(
        self,
        snapshot: Mapping[str, Any],
        version: int,
        entries: dict[str, Sequence[Mapping[str, Any]]],
        *,
        is_current: bool,
    ) -> None:
        """Check that the files of a snapshot are those that the catalog has for it; `entries` are of those before."""
        which = f"snapshot {snapshot['snapshot-id']} of version {version}"
        list_key = self._key(snapshot["manifest-list"])
        (listing,) = await self._find([list_key], TableFileKind.MANIFEST, version, which)
        manifests = [self._key(each["manifest_path"]) for each in await self._avro(listing, entries)]
        named: dict[str, Mapping[str, Any]] = {}
        for file in await self._find(manifests, TableFileKind.MANIFEST, version, which):
            for entry in await self._avro(file, entries):
                if entry["status"] == DELETED:
                    continue
                key = self._key(entry["data_file"]["file_path"])
                if key in named:
                    raise _TableError(f"{which} has {key} twice")
                named[key] = entry["data_file"]
        for file in await self._find(list(named), TableFileKind.DATA, version, which):
            entry = named[file.file_key]
            for name, value in (("record_count", file.record_count), ("file_size_in_bytes", file.size_bytes)):
                if entry[name] != value:
                    raise _TableError(f"{which}: {file.file_key}: {name}: expected {value}, found {entry[name]}")
        if is_current:
            live = {file.file_key for files in self._view.files.values() for file in files}
            _expect_same(f"{which}: data files", named.keys(), live)
            listed = {file.file_key for file in self._view.manifests}
            _expect_same(f"{which}: manifests", {list_key, *manifests}, listed)

    async def _find(self, keys: Sequence[str], kind: TableFileKind, version: int, which: str) -> Sequence[TableFile]:
        """Return the files with these keys. Raises _TableError for one that the catalog does not have at a version."""
        ids = {key: place.file_id for key in keys if (place := parse_table_key(key)) is not None}
        found = await self._catalog.tables.get_files(list(ids.values()))
        files = []
        for key in keys:
            file = found.get(ids.get(key, 0))
            is_there = (
                file is not None
                and (file.file_key, file.kind, file.state) == (key, kind, ObjectState.COMMITTED)
                and file.table_id == self._view.info.table_id
                and file.added <= version
                and not 0 < file.removed <= version
            )
            if file is None or not is_there:
                raise _TableError(f"{which} names {key}, which the catalog does not have in it")
            files.append(file)
        return files

    async def _avro(
        self, file: TableFile, entries: dict[str, Sequence[Mapping[str, Any]]]
    ) -> Sequence[Mapping[str, Any]]:
        if file.file_key not in entries:
            data = await self._read(file)
            try:
                entries[file.file_key] = list(fastavro.reader(io.BytesIO(data)))  # type: ignore[arg-type]
            except (ValueError, EOFError, KeyError) as error:
                raise _TableError(f"{file.file_key} is not an Avro file: {error}") from None
        return entries[file.file_key]

    async def _read(self, file: TableFile) -> bytes:
        store = self._files.store(file.store)
        data = bytes(await store.get(file.file_key, 0, file.size_bytes))
        check_crc(file, crc32c(data), f"{store.name}:{file.file_key}")
        return data

    def _key(self, uri: str) -> str:
        """Return the key of a file in the store. Raises _TableError if it is not in the table's store."""
        at = uri.find(TABLE_KEYS)
        while at >= 0 and self._files.store(self._view.info.store).uri(uri[at:]) != uri:
            at = uri.find(TABLE_KEYS, at + 1)
        if at < 0:
            raise _TableError(f"{uri} is not in the table's store {self._view.info.store}")
        return uri[at:]

    # rows

    async def _check_file(self, file: TableFile) -> None:
        """Check the rows of a data file. Raises _TableError, StorageError."""
        path, blocks, made = (self._folder / name for name in ("file", "blocks", "made"))
        await self._files.fetch(file, path)
        rows = await asyncio.to_thread(_Rows, path, file)
        streams = {} if self._topic is None else {each.index: each.stream_id for each in self._topic.partitions}
        stream_id = streams.get(file.idx)
        at = file.start_offset
        while stream_id is not None and at < file.end_offset:
            stream = (await self._catalog.get_streams([stream_id])).get(stream_id)
            if stream is None or stream.start_offset >= file.end_offset:
                break
            at = max(at, stream.start_offset)
            try:
                copied = await self._source.copy(stream_id, at, file.end_offset, blocks, bytes_max=SHARE_BYTES_MAX)
            except RowsGone:
                continue
            transactions = read_transactions(stream)
            if transactions.stable_offset < copied.end_offset:
                raise _TableError(
                    f"it has offsets up to {copied.end_offset}, and committed are {transactions.stable_offset}"
                )
            share = Share(
                str(blocks),
                copied.entries,
                PartitionRange(
                    self._view.info.name,
                    file.idx,
                    copied.start_offset,
                    copied.end_offset,
                    transactions.aborted_between(copied.start_offset, copied.end_offset),
                ),
                self._decoding.schema,
                self._decoding.value,
                self._decoding.key,
                str(made),
            )
            is_cleaned = bool(copied.cleaned)
            await asyncio.to_thread(self._compare, rows, share, is_cleaned=is_cleaned)
            at = copied.end_offset
        await asyncio.to_thread(rows.finish)

    def _compare(self, rows: "_Rows", share: Share, *, is_cleaned: bool) -> None:
        """Compare the rows of a file with the records of a share."""
        make_share(share, {})
        expected = pq.read_table(share.target, use_threads=False)
        found = rows.take(share.range.start_offset, share.range.end_offset)
        wanted = expected[KAFKA].combine_chunks().field("offset")
        offsets = found[KAFKA].combine_chunks().field("offset")
        if is_cleaned:
            # Log compaction may have removed others by now, which the table shows after its next commit.
            found = found.filter(pc.is_in(offsets, wanted))
            offsets = found[KAFKA].combine_chunks().field("offset")
        if not offsets.equals(wanted):
            raise _TableError(_different_offsets(offsets.to_pylist(), wanted.to_pylist()))
        self.rows += len(found)
        for name, ours, theirs, which in _columns(found, expected):
            at = first_difference(ours, theirs)
            if at is not None:
                offset = (wanted if which is None else wanted.filter(which))[at]
                raise _TableError(f"offset {offset}: {name} is {_shown(ours[at])}, in the record {_shown(theirs[at])}")


class _Rows:
    """Rows of a data file, in the order of offsets."""

    def __init__(self, path: Path, file: TableFile) -> None:
        """Open it. Raises _TableError if its metadata is not that of the file."""
        self._file = file
        self._parquet = pq.ParquetFile(path, page_checksum_verification=True)
        self._schema = self._parquet.schema_arrow
        place = json.loads((self._parquet.metadata.metadata or {}).get(RANGE.encode(), b"{}"))
        found = place.get("partition"), place.get("start_offset"), place.get("end_offset")
        if found != (file.idx, file.start_offset, file.end_offset):
            raise _TableError(f"its metadata says that it has {place}")
        if self._parquet.metadata.num_rows != file.record_count:
            raise _TableError(f"expected {file.record_count} rows, found {self._parquet.metadata.num_rows}")
        self._batches = self._read()
        self._rest: list[pa.RecordBatch] = []

    def _read(self) -> Iterator[pa.RecordBatch]:
        last = self._file.start_offset - 1
        for rows in self._parquet.iter_batches(ROWS_MAX, use_threads=False):
            kafka = rows[KAFKA]
            offsets = pa.concat_arrays([pa.array([last], pa.int64()), kafka.field("offset")])
            follows = pc.all(pc.less(offsets[:-1], offsets[1:])).as_py() and offsets[-1].as_py() < self._file.end_offset
            if not follows or pc.any(pc.not_equal(kafka.field("partition"), self._file.idx)).as_py():
                raise _TableError(f"rows after offset {last} are not in order, or of other offsets or partitions")
            last = offsets[-1].as_py()
            yield rows

    def take(self, start: int, end: int) -> pa.Table:
        """Return the rows of [start, end), after those that were taken before. Rows between the two are passed over."""
        taken: list[pa.RecordBatch] = []
        while True:
            rows = self._rest.pop() if self._rest else next(self._batches, None)
            if rows is None:
                break
            offsets = rows[KAFKA].field("offset")
            low, high = (pc.sum(pc.less(offsets, bound)).as_py() or 0 for bound in (start, end))
            taken.append(rows.slice(low, high - low))
            if high < len(rows):
                self._rest.append(rows.slice(high))
                break
        return pa.Table.from_batches(taken, self._schema)

    def finish(self) -> None:
        """Read the rest."""
        for _ in self._batches:
            pass


def _decoding_of(view: TableView, topic: TopicInfo | None) -> Decoding:
    """Return how records are decoded to compare them: as the table's were if that can be known, else not at all."""
    raw = Decoding(encode_schema(evolve(None, None, None).schema), RAW, RAW)
    if topic is None or len(view.schemas) != 1:
        return raw
    try:
        options = TableOptions.parse(lambda name: topic.configs.get(name, DEFAULTS[name]))
        if options is None:
            return raw
        found = answer(Question(options.value.asked("", None), options.key.asked("", None)), {})
    except (ValueError, SchemaError, RegistryError):
        return raw
    return found if found.schema == view.schemas[0] else raw


def _columns(found: pa.Table, expected: pa.Table) -> Iterator[tuple[str, pa.Array, pa.Array, pa.Array | None]]:
    """Yield what can be compared of the same rows: name, values of both, and which rows they are of; None: of all."""
    ours, theirs = found[KAFKA].combine_chunks(), expected[KAFKA].combine_chunks()
    for name in _COMPARED:
        yield f"{KAFKA}.{name}", ours.field(name), theirs.field(name), None
    if not _is_raw(expected.schema):
        decoded = pc.fill_null(pc.invert(pc.match_substring(ours.field("error"), NOT_DECODED)), fill_value=True)
        for name in found.column_names:
            yield (
                name,
                found[name].combine_chunks().filter(decoded),
                expected[name].combine_chunks().filter(decoded),
                decoded,
            )
        return
    values = expected[RAW_VALUE].combine_chunks()
    if _is_raw(found.schema):
        yield RAW_VALUE, found[RAW_VALUE].combine_chunks(), values, None
    else:
        yield from _where_kept(ours, "value_raw", values)
    if ours.type.get_field_index("key_raw") >= 0:
        yield from _where_kept(ours, "key_raw", theirs.field("key"))
    else:
        yield f"{KAFKA}.key", ours.field("key"), theirs.field("key"), None


def _where_kept(
    kafka: pa.StructArray, name: str, values: pa.Array
) -> Iterator[tuple[str, pa.Array, pa.Array, pa.Array | None]]:
    """Yield the bytes that rows have because they could not be decoded, and those of their records."""
    kept = kafka.field(name).is_valid()
    yield f"{KAFKA}.{name}", kafka.field(name).filter(kept), values.filter(kept), kept


def _is_raw(schema: pa.Schema) -> bool:
    """Return whether values are columns of bytes."""
    return [part.name for part in schema] == [RAW_VALUE, KAFKA] and pa.types.is_binary(schema.field(RAW_VALUE).type)


def first_difference(ours: pa.Array, theirs: pa.Array) -> int | None:
    """Return the first place at which arrays of one length differ; None: nowhere. NaN is equal to itself here."""
    if ours.equals(theirs):
        return None
    return next((at for at in range(len(ours)) if repr(ours[at].as_py()) != repr(theirs[at].as_py())), None)


def _different_offsets(found: Sequence[int], expected: Sequence[int]) -> str:
    missing, more = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing:
        return f"no row has offset {missing[0]}, one of {len(missing)} that a reader of committed records gets"
    return f"it has a row of offset {more[0]}, one of {len(more)} that no reader of committed records gets"


def _expect_same(what: str, found: Collection[str], expected: Collection[str]) -> None:
    if set(found) != set(expected):
        more, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
        raise _TableError(f"{what}: not in the catalog: {more[:3]}; only in the catalog: {missing[:3]}")


def _shown(value: pa.Scalar) -> str:
    return repr(value.as_py())[:80]
