"""Expiry of snapshots, and keys of files. Plans of commits: `test_tables.py` and `test_table_model.py`."""

import pytest

from anabranch.s3stream.catalog.table_plans import oldest_to_keep
from anabranch.s3stream.catalog.table_values import TableFileKind, TableSnapshot, table_file_key

SNAPSHOTS = [TableSnapshot(version, 100 + version, time) for version, time in ((2, 10), (3, 1_000), (5, 2_000))]


@pytest.mark.parametrize(
    ("now_ms", "retention_ms", "count_max", "kept"),
    [
        (2_000, 5_000, 10, 2),
        (3_000, 2_000, 10, 3),  # the first was replaced at 1,000: its age does not count
        (2_999, 2_000, 10, 2),
        (4_000, 2_000, 10, 5),
        (1 << 40, 0, 10, 5),  # the current one stays
        (2_000, 5_000, 2, 3),
        (2_000, 5_000, 1, 5),
        (2_000, 5_000, 0, 5),
    ],
)
def test_a_snapshot_expires_by_the_time_since_it_was_replaced_and_by_their_number(
    now_ms: int, retention_ms: int, count_max: int, kept: int
) -> None:
    assert oldest_to_keep(SNAPSHOTS, now_ms, retention_ms=retention_ms, count_max=count_max) == kept


def test_a_table_without_snapshots_keeps_none() -> None:
    assert oldest_to_keep([], 1, retention_ms=0, count_max=1) == 0


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (TableFileKind.DATA, "a/b/data/000000000000001f.parquet"),
        (TableFileKind.MANIFEST, "a/b/metadata/000000000000001f.avro"),
        (TableFileKind.METADATA, "a/b/metadata/000000000000001f.metadata.json"),
    ],
)
def test_keys_are_those_that_engines_expect(kind: TableFileKind, key: str) -> None:
    assert table_file_key("a/b", kind, 31) == key
