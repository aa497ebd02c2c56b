"""Joins of tables' files: the same rows in the same order, in the columns of the current schema."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.tables import row_files
from anabranch.tables.errors import JoinError
from anabranch.tables.joins import make_join
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.row_files import write_rows
from anabranch.tables.schema import KAFKA, encode_schema, evolve, field_ids
from anabranch.tables.snapshots import Join
from anabranch.tables.upkeep.options import CODECS
from tests.tables.versions import FIRST, kafka_rows

DEEP = pa.struct([pa.field("a", pa.int32()), pa.field("tags", pa.list_(pa.field("element", pa.int32())))])
OLD = evolve(None, pa.struct([pa.field("n", pa.int32()), pa.field("in", DEEP)]), None).schema
WIDER = pa.struct([
    pa.field("a", pa.int64()), pa.field("tags", pa.list_(pa.field("element", pa.int64()))), pa.field("b", pa.string()),
])  # fmt: skip
NEW = evolve(OLD, pa.struct([pa.field("n", pa.int64()), pa.field("in", WIDER), pa.field("x", pa.bool_())]), None).schema


def written(path: Path, *rows: pa.RecordBatch, schema: pa.Schema = FIRST) -> str:
    """Write a file of rows, and return its path."""
    write_rows(iter(rows), schema, PartitionRange("t", 0, 0, 100), path, "zstd")
    return str(path)


def rows_of(offsets: range, schema: pa.Schema = FIRST, partition: int = 0) -> pa.RecordBatch:
    return kafka_rows(schema, partition, list(offsets), n=list(offsets))


def join_of(tmp_path: Path, *sources: str, start: int = 0, end: int = 100, schema: pa.Schema = FIRST) -> Join:
    place = PartitionRange("t", 0, start, end)
    return Join(sources, encode_schema(schema), place, str(tmp_path / "joined.parquet"))


def test_rows_of_several_files_become_one_file(tmp_path: Path) -> None:
    first = written(tmp_path / "first", rows_of(range(5)), rows_of(range(5, 9)))
    second = written(tmp_path / "second", rows_of(range(10, 19)))
    join = join_of(tmp_path, first, written(tmp_path / "empty"), second)
    report = make_join(join)
    assert (report.rows, report.errors, report.metrics["record_count"]) == (18, 0, 18)
    assert report.size_bytes == Path(join.target).stat().st_size
    found = pq.read_table(join.target)
    found.validate(full=True)
    assert found["n"].to_pylist() == [*range(9), *range(10, 19)]
    made = Path(join.target).read_bytes()
    assert make_join(join) == report
    assert Path(join.target).read_bytes() == made


@pytest.mark.parametrize("codec", CODECS)
def test_a_join_has_the_compression_that_is_asked_for(tmp_path: Path, codec: str) -> None:
    join = replace(join_of(tmp_path, written(tmp_path / "first", rows_of(range(5)))), codec=codec)
    make_join(join)
    found = pq.read_metadata(join.target).row_group(0).column(0).compression
    assert found == ("UNCOMPRESSED" if codec == "none" else codec.upper())
    assert pq.read_table(join.target)["n"].to_pylist() == [*range(5)]


def test_a_join_has_the_same_rows_as_its_sources_at_a_newer_schema(tmp_path: Path) -> None:
    values = [None, {"a": None, "tags": None}, {"a": 1, "tags": [1, None]}]
    old = written(tmp_path / "old", kafka_rows(OLD, 0, [0, 1, 2], n=[5, None, 7], **{"in": values}), schema=OLD)
    new = written(tmp_path / "new", kafka_rows(NEW, 0, [3], n=[1 << 40], x=[True]), schema=NEW)
    join = join_of(tmp_path, old, new, schema=NEW)
    make_join(join)
    found = pq.read_table(join.target)
    found.validate(full=True)
    assert found["n"].to_pylist() == [5, None, 7, 1 << 40]
    assert found["x"].to_pylist() == [None, None, None, True]
    wider = [None if each is None else {**each, "b": None} for each in values]
    assert found["in"].to_pylist() == [*wider, None]
    assert list(field_ids(pq.read_schema(join.target))) == list(field_ids(NEW))


@pytest.mark.parametrize(("start", "end"), [(0, 100), (3, 100), (0, 4), (7, 13), (10, 10), (4, 10)])
def test_a_cut_leaves_out_rows_outside_of_its_range(tmp_path: Path, start: int, end: int) -> None:
    source = written(tmp_path / "source", rows_of(range(4)), rows_of(range(10, 14)))
    join = join_of(tmp_path, source, start=start, end=end)
    report = make_join(join)
    expected = [each for each in (*range(4), *range(10, 14)) if start <= each < end]
    assert pq.read_table(join.target)["n"].to_pylist() == expected
    assert report.rows == len(expected)


def test_rows_with_an_error_are_counted(tmp_path: Path) -> None:
    rows = [{"n": None, KAFKA: {"partition": 0, "offset": 0, "timestamp_type": 0, "error": "bad"}}]
    source = written(tmp_path / "source", pa.RecordBatch.from_pylist(rows, schema=FIRST))
    report = make_join(join_of(tmp_path, source))
    assert (report.errors, report.reasons) == (1, ["bad"])


def test_small_row_groups_become_larger_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [written(tmp_path / str(at), rows_of(range(at * 10, at * 10 + 10))) for at in range(8)]
    join = join_of(tmp_path, *sources)
    make_join(join)
    assert pq.read_metadata(join.target).num_row_groups == 1
    monkeypatch.setattr(row_files, "GROUP_BYTES_MAX", 2 * rows_of(range(10)).nbytes)
    make_join(join)
    assert pq.read_metadata(join.target).num_row_groups > 2


def test_files_out_of_order_are_refused(tmp_path: Path) -> None:
    first, second = written(tmp_path / "1", rows_of(range(4))), written(tmp_path / "2", rows_of(range(3, 6)))
    join = join_of(tmp_path, first, second)
    with pytest.raises(JoinError, match="/2 has offset 3 after 3: the files are not in order"):
        make_join(join)
    assert not Path(join.target).exists()


def test_a_file_of_another_partition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JoinError, match="another partition than 0"):
        make_join(join_of(tmp_path, written(tmp_path / "1", rows_of(range(4), partition=1))))


def test_a_column_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    other = evolve(None, pa.struct([pa.field("n", pa.string()), pa.field("s", pa.string())]), None).schema
    source = written(tmp_path / "1", kafka_rows(other, 0, [0], n=["x"]), schema=other)
    with pytest.raises(JoinError, match="/1 does not fit the table's schema: n: string is no int"):
        make_join(join_of(tmp_path, source))


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    source = Path(written(tmp_path / "1", rows_of(range(400))))
    data = bytearray(source.read_bytes())
    data[60] ^= 255
    source.write_bytes(data)
    with pytest.raises(JoinError, match="/1 cannot be read"):
        make_join(join_of(tmp_path, str(source)))
