"""Readers of the tables of topics: every snapshot has exactly what consumers of committed records may see.

They read as engines do: `metadata.json`, manifest lists, manifests and Parquet files, whose columns they find by their
ids. The catalog and the store are asked directly, without faults. The numbers B1, B2, ... are those of `docs/adr/0041`.
"""

import asyncio
import io
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import fastavro
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.s3stream.catalog.table_values import TABLE_KEYS, TableFileKind, TableRetention, parse_table_key
from anabranch.s3stream.model import ObjectState
from tests.simulation.consumers import Reader
from tests.simulation.formats import Values
from tests.simulation.history import History, Outcome, TopicPartition, Violation
from tests.simulation.node import STORE
from tests.simulation.world import World

LOOK_S = 1.0
SETTLES_S = 5.0
COMPACTED_TRIES = 20
"""Comparisons of a topic that is cleaned by key with its table, until they must agree."""
UNDECIDED = (Outcome.OPEN, Outcome.COMMITTING, Outcome.UNKNOWN)
"""Outcomes of transactions whose records may replace others."""
DELETED = 2
"""Status of an entry of a manifest whose file left with it."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a table in the catalog."""

    file_id: int
    key: str
    kind: TableFileKind
    state: ObjectState
    idx: int
    start: int
    end: int
    records: int
    size_bytes: int
    added: int
    removed: int

    def is_data_of(self, idx: int) -> bool:
        """Return whether it has rows of a partition."""
        return self.kind is TableFileKind.DATA and self.idx == idx

    def is_in(self, version: int) -> bool:
        """Return whether the table has it at a version."""
        return 0 < self.added <= version and (not self.removed or version < self.removed)


@dataclass(slots=True)
class Table:
    """A table in the catalog, at one moment."""

    table_id: bytes
    topic_id: bytes
    name: str
    retention: TableRetention
    version: int
    snapshot_id: int
    metadata_file: int
    snapshots: dict[int, tuple[int, int]]
    """Snapshot ids of the unexpired snapshots, and times of their commits, by version."""
    bounds: dict[int, tuple[int, int]]
    streams: dict[int, tuple[int, int]]
    """Starts and committed ends of the topic's partitions."""
    files: list[File] = field(default_factory=list)

    @property
    def oldest(self) -> int:
        """Version of the oldest snapshot."""
        return min(self.snapshots, default=self.version)

    def needs(self, file: File) -> bool:
        """Return whether an unexpired snapshot names a file."""
        return file.added > 0 and (not file.removed or file.removed > self.oldest)

    def covers(self, idx: int, offset: int) -> bool:
        """Return whether a data file of the current snapshot spans an offset of a partition."""
        return any(
            file.is_data_of(idx) and file.is_in(self.version) and file.start <= offset < file.end for file in self.files
        )


@dataclass(slots=True)
class Expected:
    """Knowledge of a topic that is a table, from its creation to its deletion."""

    history: History
    values: Values | None = None
    """Its values; None: bytes."""
    retentions: set[TableRetention] = field(default_factory=lambda: {TableRetention.TOPIC})
    """Those that its table may have been created with."""
    is_doubtful: bool = False
    """True if a change whose answer was lost may take effect at any time."""
    is_dropping: bool = False
    """True while its table may be dropped."""
    must_be_gone: bool = False
    """True from the answer to a drop until the topic may be a table again."""
    is_deleting: bool = False
    is_deleted: bool = False


class Tables:
    """Looks at all tables again and again, and at each snapshot once."""

    def __init__(
        self,
        world: World,
        history: History,
        *,
        snapshot_retention_ms: int,
        clocks_are_right: bool,
        goes_back: bool = False,
    ) -> None:
        """`history` is that of topics for which nothing else is expected; the catalog may go back to a former state."""
        self.world = world
        self.history = history
        self.snapshot_retention_ms = snapshot_retention_ms
        self.clocks_are_right = clocks_are_right
        self.goes_back = goes_back
        self._default = Expected(history)
        self._lives: dict[str, Expected] = {}
        """Expectations of the topic that has a name now, or is about to."""
        self._expected: dict[bytes, Expected] = {}
        """By topic id."""
        self._cells: dict[bytes, dict[tuple[int, int], Mapping[str, Any]]] = {}
        """Typed rows by partition and offset, as they were seen first, by table id."""
        self._named_s: dict[str, float] = {}
        """Time at which an unexpired snapshot was last known to name a file, by key."""
        self._left: set[str] = set()
        """Files that nobody may delete, because a drop has left them."""
        self._checked: set[int] = set()
        """Ids of snapshots."""
        self._rows: dict[str, Mapping[int, str]] = {}
        """Values of data files by offset, by key."""
        self._entries: dict[str, Sequence[Any]] = {}
        """Contents of manifests and lists, by key."""
        self._before: dict[bytes, Table] = {}
        """Tables of the last look, by table id."""
        self.waits_for: dict[TopicPartition, str] = {}
        """States that checks wait to change."""
        world.store.check_deletion = self._check_deletion

    async def watch(self) -> None:
        """Look at the tables while faults happen."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def catalog_rebuilt(self) -> None:
        """Forget the last look: a rebuilt catalog has an earlier state of the tables, whose versions grow past it."""
        self._before = {}

    def expect(self, topic: str, expected: Expected) -> Expected:
        """Note what is expected of the table of the next topic with this name."""
        self._lives[topic] = expected
        return expected

    def expected_of(self, table: Table) -> Expected:
        """Return what is expected of a table."""
        return self._expected.get(table.topic_id, self._default)

    def seen(self, expected: Expected) -> Table | None:
        """Return the table of a topic, as of the last look."""
        return next((each for each in self._before.values() if self.expected_of(each) is expected), None)

    def row(self, expected: Expected, idx: int, offset: int) -> Mapping[str, Any] | None:
        """Return a typed row of a topic's table, None if none was seen."""
        table = self.seen(expected)
        return None if table is None else self._cells.get(table.table_id, {}).get((idx, offset))

    def note_left(self, table: Table) -> None:
        """Note that a table was dropped, and its files are left in the store."""
        if table.table_id in self._before or not table.metadata_file:
            return
        with closing(sqlite3.connect(self.world.folder / "catalog.db")) as connection:
            query = "SELECT file_key FROM table_files WHERE table_id = ?"
            known = {key for (key,) in connection.execute(query, (table.table_id,))}
        left = {file.key for file in table.files if table.needs(file)} - known
        if not left:
            raise Violation(f"table {table.name}: it was dropped without its files, and none was left")
        self._left |= left
        self.world.count("files of tables left", len(left))

    def look(self) -> dict[str, Table]:
        """Check all snapshots that are new, and return the tables by name."""
        found = self._read_catalog()
        for table in found.values():
            self._check_life(table)
            before = self._before.get(table.table_id)
            if table.metadata_file:
                self._check_table(table)
            if before is not None:
                self._check_successor(before, table)
        for table in self._before.values():
            if table.table_id not in found:
                self._check_end(table)
        self._before = found
        return {table.name: table for table in found.values()}

    async def check_final(self, reader: Reader) -> None:
        """Wait until the table shows what a reader of committed records has found, and its log does."""
        where, found = reader.where, reader.found
        name, idx = where
        tries = 0
        while True:
            table = self.look().get(name)
            if table is not None and self.expected_of(table).history is not reader.history:
                table = None  # that of a former topic
            low, end = (0, 0) if table is None else table.bounds.get(idx, (0, 0))
            self.waits_for[where] = (
                f"table {name}: partition {idx} has [{low}, {end}), the log starts at {reader.start}, and the last "
                f"stable offset is {reader.stable}"
            )
            if table is not None and self._is_complete(table, idx, reader):
                rows = {offset: value for offset, value in self.rows(table, idx).items() if offset < reader.stable}
                start = table.streams[idx][0]  # it may have grown since, and what the table lacked then is in neither
                due = {offset: value for offset, value in found.items() if offset >= start or table.covers(idx, offset)}
                different = _difference(rows, due, max(low, reader.start))
                if not different:
                    del self.waits_for[where]
                    return
                tries += 1
                # Log compaction may remove records in between, and takes them out of the table later.
                if name not in self.history.compacted or tries > COMPACTED_TRIES:
                    raise Violation(f"table {name}: partition {idx} {different}")
                await asyncio.sleep(SETTLES_S)
                await reader.read_all()
            await asyncio.sleep(LOOK_S)

    def _is_complete(self, table: Table, idx: int, reader: Reader) -> bool:
        """Return whether a table has all that its topic has, and nothing that was deleted."""
        low, end = table.bounds.get(idx, (0, 0))
        start = table.streams[idx][0]
        if max(end, start) < reader.stable:
            return False
        if low == end or low >= reader.start or table.retention is TableRetention.KEEP:
            return True
        # Retention drops whole files; DeleteRecords cuts them.
        first = min(file.end for file in table.files if file.is_data_of(idx) and file.is_in(table.version))
        return table.name in self.history.expiring and first > reader.start

    def rows(self, table: Table, idx: int) -> dict[int, str]:
        """Return the rows of a partition in the current snapshot."""
        found: dict[int, str] = {}
        for file in table.files:
            if file.is_data_of(idx) and file.is_in(table.version):
                found |= self._rows_of(table, file)
        return found

    # the catalog

    def _read_catalog(self) -> dict[bytes, Table]:
        with closing(sqlite3.connect(self.world.folder / "catalog.db")) as connection:
            connection.execute("BEGIN")
            for topic_id, name in connection.execute("SELECT topic_id, name FROM topics"):
                if name in self._lives and not self._lives[name].is_deleted:
                    self._expected.setdefault(topic_id, self._lives[name])
            found = {table.table_id: table for table in _read_tables(connection)}
        for table in found.values():
            for file in table.files:
                if table.needs(file):
                    self._named_s[file.key] = self.world.now_s
        return found

    def _check_life(self, table: Table) -> None:
        """Check that a table exists for a reason, and is what its topic was told to be."""
        expected = self.expected_of(table)
        if expected.must_be_gone:
            raise Violation(f"table {table.name}: it was dropped, and is there")
        if expected.is_deleted and table.retention is TableRetention.TOPIC:
            raise Violation(f"table {table.name}: its topic was deleted, and it is there")
        if table.retention not in expected.retentions:
            raise Violation(f"table {table.name}: its retention is {table.retention.name}, which nobody asked for")

    def _check_end(self, table: Table) -> None:
        """Check that a table is gone for a reason."""
        expected = self.expected_of(table)
        goes_with_topic = expected.is_deleting and table.retention is TableRetention.TOPIC
        if not (expected.is_dropping or expected.is_doubtful or goes_with_topic or self.goes_back):
            raise Violation(f"table {table.name}: it is gone, and nobody has dropped it")

    def _check_successor(self, before: Table, now: Table) -> None:
        """Check what has become of a table since the last look."""
        if now.version < before.version:
            raise Violation(f"table {now.name}: its version was {before.version}, and is {now.version}")
        if self.clocks_are_right:
            self._check_expiry(before, now)
        if now.retention is not before.retention:
            raise Violation(f"table {now.name}: its retention was {before.retention.name}, and is {now.retention.name}")
        for idx, (start, end) in before.bounds.items():
            low, high = now.bounds.get(idx, (0, 0))
            if high < end or (now.retention is TableRetention.KEEP and start < end and low > start):
                raise Violation(f"table {now.name}: partition {idx} had [{start}, {end}), and has [{low}, {high})")

    def _check_table(self, table: Table) -> None:
        by_id = {file.file_id: file for file in table.files}
        content = json.loads(self._bytes(by_id[table.metadata_file], "the current metadata"))
        snapshots = {each["snapshot-id"]: each for each in content.get("snapshots", ())}
        expected = {snapshot_id for snapshot_id, _ in table.snapshots.values()}
        where = f"table {table.name} version {table.version}"
        if snapshots.keys() != expected:
            raise Violation(f"{where}: metadata has the snapshots {sorted(snapshots)}, the catalog {sorted(expected)}")
        if (content.get("current-snapshot-id") or 0) != table.snapshot_id:
            raise Violation(f"{where}: metadata has another current snapshot than the catalog")
        for idx, (low, end) in table.bounds.items():
            start, stream_end = table.streams.get(idx, (low, end))
            if end > stream_end:
                raise Violation(f"{where}: partition {idx} ends at {end}, past the topic's end (B7)")
            if start < low < end and not self.goes_back:
                raise Violation(f"{where}: partition {idx} begins at {low}, and the topic at {start}")
        self._names = _column_names(content)
        for version, (snapshot_id, _) in table.snapshots.items():
            if snapshot_id not in self._checked:
                self._check_snapshot(table, version, snapshots[snapshot_id])
                self._checked.add(snapshot_id)
                self.world.count(f"table {snapshots[snapshot_id]['summary']['operation']}")

    def _check_snapshot(self, table: Table, version: int, snapshot: Mapping[str, Any]) -> None:
        where = f"table {table.name} snapshot of version {version}"
        by_key = {file.key: file for file in table.files if file.is_in(version)}
        list_key = self._key(snapshot["manifest-list"])
        listed = [list_key, *(self._key(each["manifest_path"]) for each in self._avro(by_key, list_key, where))]
        manifests = {key for key, file in by_key.items() if file.kind is TableFileKind.MANIFEST}
        if set(listed) != manifests or len(listed) != len(manifests):
            raise Violation(f"{where}: the manifests are {sorted(listed)}, in the catalog {sorted(manifests)}")
        entries = [
            entry["data_file"]
            for key in listed[1:]
            for entry in self._avro(by_key, key, where)
            if entry["status"] != DELETED
        ]
        names = sorted(self._key(entry["file_path"]) for entry in entries)
        expected = sorted(key for key, file in by_key.items() if file.kind is TableFileKind.DATA)
        if names != expected:
            raise Violation(f"{where}: the data files are {names}, in the catalog {expected} (B2)")
        for entry in entries:
            file = by_key[self._key(entry["file_path"])]
            if (entry["record_count"], entry["file_size_in_bytes"]) != (file.records, file.size_bytes):
                raise Violation(f"{where}: {file.key} has other numbers in its manifest than in the catalog: {entry}")
        ends = json.loads(snapshot["summary"].get("anabranch.offsets", "{}"))
        files: dict[int, list[File]] = {}
        for key in expected:
            files.setdefault(by_key[key].idx, []).append(by_key[key])
        for idx, some in files.items():
            some.sort(key=lambda each: each.start)
            if int(ends.get(str(idx), -1)) != some[-1].end:
                raise Violation(f"{where}: partition {idx} ends at {some[-1].end}, the summary says {ends}")
            self._check_rows(where, table, idx, some)
        if int(snapshot["summary"]["total-records"]) != sum(by_key[key].records for key in expected):
            raise Violation(f"{where}: total-records is {snapshot['summary']['total-records']}")

    def _check_rows(self, where: str, table: Table, idx: int, files: Sequence[File]) -> None:
        """Check that a partition's rows are the committed records of its offsets (B1)."""
        partition, history = (table.name, idx), self.expected_of(table).history
        known = history.partitions[partition]
        rows: dict[int, str] = {}
        at = files[0].start
        holes: list[tuple[int, int]] = []
        for file in files:
            if file.start != at:
                # A table that keeps its files has nothing of what the topic had lost first.
                if table.retention is not TableRetention.KEEP or not at < file.start <= known.asked_start:
                    raise Violation(f"{where}: {partition}: a file begins at {file.start}, expected {at}")
                holes.append((at, file.start))
            at = file.end
            rows |= self._rows_of(table, file)
        if partition[0] in history.compacted:
            self._check_newest(where, partition, rows, files[0].start, at)
            return
        for offset, value in known.acked.items():
            if rows.get(offset) == value:
                continue
            transaction = history.transaction_of.get(value)
            is_committed = transaction is None or transaction.outcome is Outcome.COMMITTED
            is_here = files[0].start <= offset < at and not any(low <= offset < high for low, high in holes)
            if is_committed and is_here:
                raise Violation(
                    f"{where}: {partition} offset {offset}: acked {value!r} is no row: {rows.get(offset)!r}"
                )

    def _check_newest(
        self, where: str, partition: TopicPartition, rows: Mapping[int, str], start: int, end: int
    ) -> None:
        """Check that the newest value of each key is a row, unless a later one may have replaced it in the topic."""
        history = self.history
        newest: dict[bytes | None, int] = {}
        for offset, value in history.partitions[partition].values.items():
            transaction = history.transaction_of.get(value)
            if transaction is None or transaction.outcome is Outcome.COMMITTED:
                key = history.key_of[value]
                newest[key] = max(offset, newest.get(key, -1))
        undecided = {
            history.key_of[value]
            for value, to in history.sent.items()
            if to == partition
            and (
                value not in history.places
                or (value in history.transaction_of and history.transaction_of[value].outcome in UNDECIDED)
            )
        }
        for key, offset in newest.items():
            if start <= offset < end and key not in undecided and offset not in rows:
                raise Violation(f"{where}: {partition} offset {offset}, the newest of key {key!r}, is no row")

    def _check_expiry(self, before: Table, now: Table) -> None:
        """Check that a snapshot expires only so long after another one has replaced it."""
        known = before.snapshots | now.snapshots
        for version in before.snapshots.keys() - now.snapshots.keys():
            replaced_ms = min(committed_ms for other, (_, committed_ms) in known.items() if other > version)
            age_ms = self.world.now_ms() - replaced_ms
            if age_ms < self.snapshot_retention_ms:
                raise Violation(
                    f"table {now.name}: snapshot of version {version} expired {age_ms} ms after it was replaced"
                )

    def _check_deletion(self, key: str) -> str | None:
        """Return why a file of a table may not be deleted now, None if it may (B2, B3)."""
        place = parse_table_key(key)
        if place is None:
            return None
        if key in self._left:
            return f"{key} is deleted, and a drop has left it"
        named_s = self._named_s.get(key)
        if named_s is not None and self.world.now_s < named_s + self.world.store.delete_delay_s:
            return f"{key} is deleted {self.world.now_s - named_s:.1f} s after a snapshot had it"
        with closing(sqlite3.connect(self.world.folder / "catalog.db")) as connection:
            named = connection.execute(
                "SELECT f.state, s.version FROM table_files f LEFT JOIN table_snapshots s ON s.table_id = f.table_id"
                " AND f.added > 0 AND f.added <= s.version AND (f.removed = 0 OR s.version < f.removed)"
                " WHERE f.file_id = ?",
                (place.file_id,),
            ).fetchall()
        for state, version in named:
            if state == ObjectState.COMMITTED or version is not None:
                return f"{key} is deleted, and is {ObjectState(state).name}, in the snapshot of version {version}"
        return None

    # files

    def _key(self, uri: str) -> str:
        at = uri.find(TABLE_KEYS)
        if at < 0 or self.world.store.objects.uri(uri[at:]) != uri:
            raise Violation(f"{uri} is no file of a table in the store {STORE}")
        return uri[at:]

    def _bytes(self, file: File, where: str) -> bytes:
        found = self.world.store.objects.objects.get(file.key)
        if found is None:
            raise Violation(f"{where}: {file.key} is not in the store (B2)")
        if len(found[0]) != file.size_bytes:
            raise Violation(f"{where}: {file.key} has {len(found[0])} bytes, expected {file.size_bytes}")
        return found[0]

    def _avro(self, files: Mapping[str, File], key: str, where: str) -> Sequence[Any]:
        if key not in files:
            raise Violation(f"{where}: {key} is not in the table")
        data = self._bytes(files[key], where)
        if key not in self._entries:
            self._entries[key] = list(fastavro.reader(io.BytesIO(data)))
        return self._entries[key]

    def _rows_of(self, table: Table, file: File) -> Mapping[int, str]:
        data = self._bytes(file, "a snapshot")
        if file.key not in self._rows:
            expected = self.expected_of(table)
            if expected.values is None or not expected.values.is_typed:
                rows = dict(_read_rows(data, file))
            else:
                rows = self._read_typed(table, file, data, expected.values)
            self._rows[file.key] = rows
            for offset, value in rows.items():
                expected.history.read((table.name, file.idx), offset, value, committed=True)
        return self._rows[file.key]

    def _read_typed(self, table: Table, file: File, data: bytes, values: Values) -> dict[int, str]:
        """Return values by offset, as `_read_rows` yields them, of rows that are what their values become (B6)."""
        cells = self._cells.setdefault(table.table_id, {})
        found: dict[int, str] = {}
        for row in _read_columns(data, self._names):
            kafka = row.pop("_kafka")
            place = kafka["partition"], kafka["offset"]
            why = values.problem(row, kafka)
            before = cells.setdefault(place, row)
            if why is None and any(value is not None and row.get(name) != value for name, value in before.items()):
                why = f"was {before}, and is {row}"
            if why is not None:
                raise Violation(f"table {table.name}: {file.key}: the row of {place} {why}")
            found[kafka["offset"]] = (
                values.identify(kafka["value_raw"]) if kafka["error"] is not None else row["name"].strip("|")
            )
            if before is not row and values.is_newest(row):
                cells[place] = row
        if list(found) != sorted(found) or not all(file.start <= offset < file.end for offset in found):
            raise Violation(f"{file.key}: rows of {list(found)}, in a file of [{file.start}, {file.end})")
        return found


def _difference(rows: Mapping[int, str], found: Mapping[int, str], start: int) -> str:
    """Describe the first offset at which rows and committed records differ; empty: none does."""
    for offset in sorted({*rows, *found}):
        if offset >= start and rows.get(offset) != found.get(offset):
            return f"offset {offset}: its row is {rows.get(offset)!r}, consumers read {found.get(offset)!r}"
    return ""


def _read_rows(data: bytes, file: File) -> Iterator[tuple[int, str]]:
    """Yield offsets and values of a data file, as `History.values_of` does of a batch."""
    table = pq.read_table(io.BytesIO(data), columns=["value", "_kafka"], use_threads=False)
    last = file.start - 1
    kafka = (pc.struct_field(table["_kafka"], name).to_pylist() for name in ("partition", "offset", "error"))
    for value, partition, offset, error in zip(table["value"].to_pylist(), *kafka, strict=True):
        if partition != file.idx or not last < offset < file.end or error is not None:
            row = f"row {partition, offset, error}"
            raise Violation(f"{file.key}: {row} after offset {last}, in a file of [{file.start}, {file.end})")
        last = offset
        yield offset, (value or b"").partition(b"|")[0].decode()


def _column_names(metadata: Mapping[str, Any]) -> Mapping[int, str]:
    """Return the names of a table's columns by id."""
    current = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
    return {each["id"]: each["name"] for each in current["fields"]}


def _read_columns(data: bytes, names: Mapping[int, str]) -> Sequence[dict[str, Any]]:
    """Return the rows of a data file, with the columns that the table has; one that the file lacks is missing."""
    table = pq.read_table(io.BytesIO(data), use_threads=False)
    found = [names.get(int(part.metadata[b"PARQUET:field_id"])) for part in table.schema]
    rows: list[dict[str, Any]] = table.rename_columns(
        [name or f"lost {at}" for at, name in enumerate(found)]
    ).to_pylist()
    return rows


def _read_tables(connection: sqlite3.Connection) -> Iterator[Table]:
    columns = "table_id, topic_id, name, retention, version, snapshot_id, metadata_file"
    for table_id, topic_id, name, retention, version, snapshot_id, metadata_file in connection.execute(
        f"SELECT {columns} FROM tables"
    ).fetchall():
        snapshots = connection.execute(
            "SELECT version, snapshot_id, committed_ms FROM table_snapshots WHERE table_id = ?", (table_id,)
        )
        bounds = connection.execute(
            "SELECT idx, start_offset, end_offset FROM table_partitions WHERE table_id = ?", (table_id,)
        )
        streams = connection.execute(
            "SELECT p.idx, s.start_offset, s.end_offset FROM topics t JOIN partitions p ON p.topic = t.name"
            " JOIN streams s ON s.stream_id = p.stream_id WHERE t.topic_id = ?",
            (topic_id,),
        )
        files = connection.execute(
            "SELECT file_id, file_key, kind, state, idx, start_offset, end_offset, record_count, size_bytes, added,"
            " removed FROM table_files WHERE table_id = ?",
            (table_id,),
        )
        yield Table(
            table_id,
            topic_id,
            name,
            TableRetention(retention),
            version,
            snapshot_id,
            metadata_file,
            {version: (snapshot_id, committed_ms) for version, snapshot_id, committed_ms in snapshots},
            {idx: (start, end) for idx, start, end in bounds},
            {idx: (start, end) for idx, start, end in streams},
            [File(a, b, TableFileKind(kind), ObjectState(state), *rest) for a, b, kind, state, *rest in files],
        )
