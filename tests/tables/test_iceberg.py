"""Versions of tables as engines read them: by pyiceberg and DuckDB, and against a plain model."""

import random
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import StaticTable

from anabranch.tables.errors import SnapshotError
from anabranch.tables.iceberg import OLDER_OFFSETS_BYTES_MAX
from anabranch.tables.schema import KAFKA
from tests.tables.versions import TABLE_ID, TableFolder, kafka_rows

STEPS = 200
"""Random commits."""


def loaded(table: TableFolder) -> StaticTable:
    """Return a table as pyiceberg loads it."""
    return StaticTable.from_metadata(f"file://{table.metadata}")


def planned(table: TableFolder, snapshot_id: int | None = None, **asked: Any) -> set[str]:
    """Return the files that pyiceberg plans to read."""
    return {task.file.file_path for task in loaded(table).scan(snapshot_id=snapshot_id, **asked).plan_files()}


def read(table: TableFolder, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    """Return a table's rows in the order of partitions and offsets."""
    rows: list[dict[str, Any]] = loaded(table).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row[KAFKA]["partition"], row[KAFKA]["offset"]))


def manifests(table: TableFolder) -> list[Any]:
    """Return the manifests of the current snapshot, newest first."""
    snapshot = loaded(table).current_snapshot()
    return [] if snapshot is None else snapshot.manifests(PyArrowFileIO())


def operation(table: TableFolder) -> str:
    """Return what the current snapshot does."""
    snapshot = loaded(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return snapshot.summary.operation.value


@pytest.fixture
def table(tmp_path: Path) -> TableFolder:
    return TableFolder(tmp_path)


def append(table: TableFolder, offsets: range, partition: int = 0) -> str:
    """Append a file of rows, and return its URI."""
    rows = kafka_rows(table.schema, partition, list(offsets), n=[each * 2 for each in offsets])
    file = table.add_rows(rows)
    table.commit([file])
    return file.uri


def test_a_table_without_a_snapshot_is_empty(table: TableFolder) -> None:
    report = table.commit(has_snapshot=False)
    assert (report.manifest, report.manifest_list, report.total_files) == (None, None, 0)
    assert read(table) == []
    found = loaded(table)
    assert found.current_snapshot() is None
    assert found.metadata.table_uuid.hex == TABLE_ID
    assert found.properties == {"owner": "anabranch"}


def test_appended_rows_are_read(table: TableFolder) -> None:
    append(table, range(3))
    append(table, range(3, 5))
    assert [(row["n"], row[KAFKA]["offset"]) for row in read(table)] == [(each * 2, each) for each in range(5)]
    snapshot = loaded(table).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "append"
    assert snapshot.summary["anabranch.offsets"] == "2"
    assert {name: snapshot.summary[name] for name in ("added-records", "total-records", "total-data-files")} == {
        "added-records": "2",
        "total-records": "5",
        "total-data-files": "2",
    }
    assert (snapshot.parent_snapshot_id, snapshot.sequence_number, snapshot.schema_id) == (1001, 2, 1)


def summaries(table: TableFolder, name: str) -> list[str | None]:
    """Return an entry of the summaries of all snapshots, oldest first."""
    return [None if each.summary is None else each.summary[name] for each in loaded(table).metadata.snapshots]


def test_objects_of_log_compaction_are_named_by_the_current_snapshot_alone(table: TableFolder) -> None:
    for at in range(3):
        table.commit(summary={"anabranch.offsets": str(at), "anabranch.cleaned": f"[{at}]"})
    assert summaries(table, "anabranch.cleaned") == [None, None, "[2]"]
    table.commit(has_snapshot=False)  # the next commit reads it
    assert summaries(table, "anabranch.cleaned") == [None, None, "[2]"]
    assert summaries(table, "anabranch.offsets") == ["0", "1", "2"]


def test_offsets_of_many_partitions_are_those_of_the_newest_snapshots(table: TableFolder) -> None:
    offsets = "x" * (OLDER_OFFSETS_BYTES_MAX // 3)
    for at in range(6):
        table.commit(summary={"anabranch.offsets": f"{offsets}{at}"[1:]})
    found = summaries(table, "anabranch.offsets")
    assert [text and text[-1] for text in found] == [None, None, "2", "3", "4", "5"]


def test_nothing_of_a_table_says_where_local_copies_lie(table: TableFolder) -> None:
    first = append(table, range(3))
    table.commit(removed=[first])
    for path in (table.folder / "table").iterdir():
        assert b"copies" not in path.read_bytes()


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        ([range(6)], "replace"),
        ([range(3), range(3, 6)], "replace"),
        ([range(5)], "overwrite"),
        ([range(1, 7)], "overwrite"),
        ([], "delete"),
    ],
)
def test_an_operation_follows_from_the_contents(table: TableFolder, added: list[range], expected: str) -> None:
    first, second = append(table, range(3)), append(table, range(3, 6))
    files = [table.add_rows(kafka_rows(table.schema, 0, list(each))) for each in added]
    report = table.commit(files, [first, second])
    assert operation(table) == expected
    assert planned(table) == {each.uri for each in files}
    assert (report.removed_records, report.added_records) == (6, sum(map(len, added)))
    assert report.total_records == sum(map(len, added))


def test_rows_of_another_partition_do_not_replace_any(table: TableFolder) -> None:
    first = append(table, range(3))
    table.commit([table.add_rows(kafka_rows(table.schema, 1, [0, 1, 2]))], [first])
    assert operation(table) == "overwrite"


def test_a_removed_file_is_a_deleted_entry_of_one_snapshot_only(table: TableFolder) -> None:
    first, second = append(table, range(3)), append(table, range(3, 6))
    table.commit(removed=[first])
    (manifest,) = manifests(table)
    entries = manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False)
    assert {(each.data_file.file_path, each.status.name, each.snapshot_id) for each in entries} == {
        (first, "DELETED", 1003),
        (second, "EXISTING", 1002),
    }
    assert {each.data_file.file_path: each.sequence_number for each in entries} == {first: 1, second: 2}
    append(table, range(6, 9))
    (manifest,) = manifests(table)
    entries = manifest.fetch_manifest_entry(PyArrowFileIO(), discard_deleted=False)
    assert [each.status.name for each in entries] == ["ADDED", "EXISTING"]


def test_a_manifest_without_live_files_leaves_the_table(table: TableFolder) -> None:
    table.commit(removed=[append(table, range(3))])
    assert [each.deleted_files_count for each in manifests(table)] == [1]
    report = table.commit()
    assert (report.manifest, len(report.replaced)) == (None, 1)
    assert manifests(table) == []
    assert read(table) == []


def test_older_snapshots_are_read_until_they_expire(table: TableFolder) -> None:
    first = append(table, range(3))
    table.commit(removed=[first])
    assert len(read(table, 1001)) == 3
    table.commit(kept=[1002], has_snapshot=False)
    found = loaded(table).metadata
    assert [each.snapshot_id for each in found.snapshots] == [1002]
    assert [each.snapshot_id for each in found.snapshot_log] == [1002]
    assert not table.path(first).exists()
    assert read(table) == []


def test_the_current_snapshot_stays_without_a_new_one(table: TableFolder) -> None:
    append(table, range(3))
    table.commit(kept=[], has_snapshot=False)
    assert len(read(table)) == 3


def test_the_log_of_metadata_names_only_files_that_are_there(table: TableFolder) -> None:
    for start in range(0, 12, 3):
        append(table, range(start, start + 3))
    named = [each.metadata_file for each in loaded(table).metadata.metadata_log]
    assert len(named) == 3
    assert all(table.path(each).exists() for each in named)
    table.commit(kept=[1003, 1004], has_snapshot=False)
    named = [each.metadata_file for each in loaded(table).metadata.metadata_log]
    assert len(named) == 2
    assert all(table.path(each).exists() for each in named)


def test_older_rows_have_the_columns_of_a_newer_schema(table: TableFolder) -> None:
    append(table, range(3))
    table.evolve(pa.field("n", pa.int64()), pa.field("x", pa.struct([pa.field("y", pa.float64())])))
    table.commit(has_snapshot=False)
    assert [(row["n"], row["x"]) for row in read(table)] == [(0, None), (2, None), (4, None)]
    table.commit([table.add_rows(kafka_rows(table.schema, 0, [3], n=[1 << 40], x=[{"y": 0.5}]))])
    assert [(row["n"], row["x"]) for row in read(table)][2:] == [(4, None), (1 << 40, {"y": 0.5})]
    found = loaded(table).metadata
    assert (found.current_schema_id, found.last_column_id) == (2, 16)
    assert [each.schema_id for each in found.schemas] == [1, 2]


@pytest.mark.skipif(version("pyiceberg").startswith("0.11."), reason="its older versions cannot read such bounds")
def test_bounds_of_a_promoted_column_are_still_used(table: TableFolder) -> None:
    first = append(table, range(3))
    table.evolve(pa.field("n", pa.int64()))
    second = table.add_rows(kafka_rows(table.schema, 0, [3], n=[1 << 40]))
    table.commit([second])
    assert planned(table, row_filter="n > 100") == {second.uri}
    assert planned(table, row_filter="n < 100") == {first}
    assert planned(table, row_filter="_kafka.offset >= 3") == {second.uri}


def test_time_goes_forward_also_if_a_clock_does_not(table: TableFolder) -> None:
    append(table, range(3))
    before = loaded(table).metadata.last_updated_ms
    table.commit(now_ms=5)
    assert loaded(table).metadata.last_updated_ms == before + 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"removed": ["file:///elsewhere"]}, "no file file:///elsewhere"),
        ({"table_id": "f" * 32}, f"is of table {TABLE_ID[:8]}-"),
        ({"version": 1}, "version 1 is not after 1"),
        ({"snapshot_id": 1001}, "a snapshot 1001 already"),
        ({"manifest_list": None}, "not that of the current snapshot"),
        ({"manifests": {}, "removed": ["file:///x"]}, "no local copy of the manifest file:///"),
        ({"snapshot_id": 0, "removed": ["file:///x"]}, "without a snapshot cannot add or remove"),
        ({"manifest_target": None}, "needs a manifest"),
    ],
)
def test_a_request_that_does_not_fit_the_version_before_is_refused(
    table: TableFolder, changes: dict[str, Any], words: str
) -> None:
    append(table, range(3))
    with pytest.raises(SnapshotError, match=words):
        table.commit(**changes)
    assert {each for each in (table.folder / "copies").iterdir() if each.stat().st_nlink == 1} == set()


def test_files_of_a_version_that_fails_are_removed(table: TableFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, range(3))
    with pytest.raises(OSError, match="no-such-folder"):
        table.commit([table.add_rows(kafka_rows(table.schema, 0, [3]))], metadata_target="/no-such-folder/x")
    assert {each for each in (table.folder / "copies").iterdir() if each.stat().st_nlink == 1} == set()


class Model:
    """A table as a dictionary of files, and random commits of it."""

    def __init__(self, table: TableFolder, seed: int) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.rows: dict[str, list[dict[str, Any]]] = {}
        """Rows of each file, which may have left the table."""
        self.live: dict[int, list[str]] = {0: [], 1: []}
        """Files of each partition, in the order of offsets."""
        self.ends = {0: 0, 1: 0}

    def write(self, partition: int, offsets: list[int], numbers: list[int]) -> Any:
        rows = kafka_rows(self.table.schema, partition, offsets, n=numbers)
        file = self.table.add_rows(rows)
        self.rows[file.uri] = [
            {"n": number, "partition": partition, "offset": offset}
            for number, offset in zip(numbers, offsets, strict=True)
        ]
        return file

    def step(self) -> None:
        random = self.random
        partition = random.randrange(2)
        live = self.live[partition]
        kept = [each for each in self.table.files if random.random() > 0.1] if random.random() < 0.3 else None
        match random.choices(["append", "join", "drop", "rewrite", "schema"], [6, 4, 2, 2, 1])[0]:
            case "append":
                files = []
                for number in range(random.randrange(1, 4)):
                    to = (partition + number) % 2
                    offsets = sorted(random.sample(range(self.ends[to], self.ends[to] + 20), random.randrange(1, 6)))
                    self.ends[to] += 20
                    files.append(self.write(to, offsets, [random.randrange(1000) for _ in offsets]))
                    self.live[to].append(files[-1].uri)
                self.table.commit(files, kept=kept)
            case "join" if len(live) > 1:
                first = random.randrange(len(live) - 1)
                some = live[first : first + random.randrange(2, 5)]
                self.replace(partition, first, some, [row for uri in some for row in self.rows[uri]], kept)
            case "drop" if live:
                gone = live[: random.randrange(1, 3)]
                del live[: len(gone)]
                self.table.commit(removed=gone, kept=kept)
            case "rewrite" if live:
                first = random.randrange(len(live))
                self.replace(partition, first, live[first : first + 1], self.rows[live[first]][1:], kept)
            case "schema":
                self.table.evolve(pa.field(f"c{self.table.version}", pa.string()))
                self.table.commit(kept=kept, has_snapshot=random.random() < 0.5)
            case _:
                self.table.commit(kept=kept, has_snapshot=False)

    def replace(self, partition: int, first: int, some: list[str], rows: list[Any], kept: Any) -> None:
        files = [self.write(partition, [row["offset"] for row in rows], [row["n"] for row in rows])] if rows else []
        self.live[partition][first : first + len(some)] = [each.uri for each in files]
        self.table.commit(files, some, kept=kept)


@pytest.mark.slow
def test_random_commits_read_as_a_plain_model_has_them(table: TableFolder) -> None:
    model = Model(table, 7)
    operations = set()
    table.commit(has_snapshot=False)
    for step in range(STEPS):
        model.step()
        uris = [uri for live in model.live.values() for uri in live]
        rows = [row for uri in uris for row in model.rows[uri]]
        assert planned(table) == {*uris}
        if step % 10 == 0 or step == STEPS - 1:  # files never change, and to read them takes most of the time
            columns = [row[KAFKA] | {"n": row["n"]} for row in read(table)]
            assert [{name: row[name] for name in ("n", "partition", "offset")} for row in columns] == rows
        if not table.files:
            continue
        older = model.random.choice(list(table.files))
        assert planned(table, older) == table.files[older]
        metadata = loaded(table).metadata
        snapshots = metadata.snapshots
        assert [each.snapshot_id for each in snapshots] == list(table.files)
        assert all(table.path(each.metadata_file).exists() for each in metadata.metadata_log)
        (last,) = [each for each in snapshots if each.snapshot_id == next(reversed(table.files))]
        assert last.summary is not None
        assert last.summary["total-records"] == str(len(rows))
        assert last.summary["total-data-files"] == str(len(uris))
        assert last.summary["total-files-size"] == str(sum(table.path(uri).stat().st_size for uri in uris))
        operations.add(last.summary.operation.value)
    assert operations == {"append", "replace", "delete", "overwrite"}


@pytest.mark.slow
def test_a_thousand_commits_leave_few_manifests_and_metadata_as_large_as_at_first(table: TableFolder) -> None:
    sizes = []
    file = table.add_rows(kafka_rows(table.schema, 0, [0]))
    for number in range(1000):
        same = type(file)(f"{file.uri}-{number}", file.size_bytes, file.metrics)
        table.path(same.uri).touch()
        table.commit([same], kept=list(table.files)[-9:])
        assert table.metadata is not None
        sizes.append(table.metadata.stat().st_size)
        assert len(manifests(table)) <= 10
    assert max(sizes) < 1.1 * sizes[20]
    assert len(planned(table)) == 1000
