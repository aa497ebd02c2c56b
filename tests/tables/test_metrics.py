"""Statistics of tables' files: engines skip a file by them, so no bound may leave out a value."""

import base64
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes

from anabranch.tables import row_files
from anabranch.tables.iceberg_schema import iceberg_schema
from anabranch.tables.metrics import COLUMNS_MAX, _bytes_above, _text_above
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import ShareReport
from anabranch.tables.row_files import write_rows
from anabranch.tables.schema import KAFKA, evolve
from anabranch.tables.types import list_of
from tests.tables.versions import kafka_rows

PLACE = PartitionRange("t", 3, 0, 100)


def report_of(path: Path, schema: pa.Schema, *rows: pa.RecordBatch) -> ShareReport:
    """Return the report of a file of rows."""
    return write_rows(iter(rows), schema, PLACE, path, "zstd")


def bounds(metrics: dict[str, Any], schema: pa.Schema) -> dict[str, tuple[Any, Any]]:
    """Return the bounds of each column that has any, as pyiceberg reads them; None: there is none."""
    known = iceberg_schema(schema, 1)
    found: dict[str, tuple[Any, Any]] = {}
    for field_id in {*metrics["lower_bounds"], *metrics["upper_bounds"]}:
        kind: Any = known.find_type(int(field_id))
        low, high = (
            None if each is None else from_bytes(kind, base64.b64decode(each))
            for each in (metrics[name].get(field_id) for name in ("lower_bounds", "upper_bounds"))
        )
        found[str(known.find_column_name(int(field_id)))] = low, high
    return found


def schema_of(*columns: pa.Field) -> pa.Schema:
    return evolve(None, pa.struct(columns), None).schema


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.bool_(), [True, None, False], (False, True)),
        (pa.int32(), [5, -(1 << 31), None], (-(1 << 31), 5)),
        (pa.int64(), [1 << 40, -1], (-1, 1 << 40)),
        (pa.float32(), [0.5, float("nan"), -2.0], (-2.0, 0.5)),
        (pa.float64(), [0.0, 1e300], (-0.0, 1e300)),
        (pa.float64(), [float("nan")], None),
        (pa.string(), ["b", "ä" * 17, None], ("b", "ä" * 15 + "å")),
        (pa.string(), [""], ("", "")),
        (pa.string(), ["x" * 5000], None),
        (pa.binary(), [b"\xff" * 20, b"\x00" * 20], (b"\x00" * 16, None)),
        (pa.binary(), [b"a\xff" * 10], (b"a\xff" * 8, b"a\xff" * 7 + b"b")),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], (-719162, 2932896)),
        (pa.timestamp("us", "UTC"), [datetime(1970, 1, 1, 0, 0, 1, 5, UTC)], (1_000_005, 1_000_005)),
        (pa.timestamp("us"), [datetime(1969, 12, 31, 23, 59, 59)], (-1_000_000, -1_000_000)),  # noqa: DTZ001
        (pa.decimal128(9, 2), [Decimal("-1.23"), Decimal("300.00")], (Decimal("-1.23"), Decimal("300.00"))),
        (pa.decimal128(38, 0), [Decimal(10**37), Decimal(-129)], (Decimal(-129), Decimal(10**37))),
        (pa.int32(), [None, None], None),
    ],
)
def test_bounds_are_those_of_the_values(tmp_path: Path, kind: pa.DataType, values: list[Any], expected: Any) -> None:
    schema = schema_of(pa.field("c", kind))
    rows = kafka_rows(schema, 3, range(len(values)), c=values)
    metrics = report_of(tmp_path / "f", schema, rows).metrics
    assert bounds(metrics, schema).get("c") == expected
    assert metrics["value_counts"]["1"] == len(values)
    assert metrics["null_value_counts"]["1"] == values.count(None)
    assert metrics["column_sizes"]["1"] > 0


def test_statistics_are_those_of_all_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "GROUP_BYTES_MAX", 1)
    schema = schema_of(pa.field("c", pa.int32()), pa.field("long", pa.string()))
    some = [
        kafka_rows(schema, 3, [0, 1], c=[7, 9], long=["a", "b"]),
        kafka_rows(schema, 3, [2], c=[None], long=[None]),
        kafka_rows(schema, 3, [5], c=[-2], long=["x" * 5000]),
    ]
    path = tmp_path / "f"
    metrics = report_of(path, schema, *some).metrics
    found = bounds(metrics, schema)
    assert found["c"] == (-2, 9)
    assert "long" not in found  # one row group has a value whose bound Arrow leaves out
    assert (found[f"{KAFKA}.partition"], found[f"{KAFKA}.offset"]) == ((3, 3), (0, 5))
    assert (metrics["record_count"], metrics["null_value_counts"]["1"]) == (4, 1)
    footer = pq.read_metadata(path)
    assert footer.num_row_groups == 3
    for group, start in enumerate(metrics["split_offsets"]):
        first = footer.row_group(group).column(0)
        assert start == min(filter(None, (first.dictionary_page_offset, first.data_page_offset)))
    assert metrics["split_offsets"][0] == 4


def test_only_the_first_columns_and_those_of_kafka_have_statistics(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(COLUMNS_MAX + 20)]
    schema = schema_of(*(pa.field(name, pa.int32()) for name in names))
    rows = kafka_rows(schema, 3, [0], **{name: [1] for name in names})
    found = bounds(report_of(tmp_path / "f", schema, rows).metrics, schema)
    assert {name for name in found if not name.startswith(KAFKA)} == {*names[:COLUMNS_MAX]}
    assert f"{KAFKA}.offset" in found


def test_fields_of_structs_have_statistics_and_items_of_lists_none(tmp_path: Path) -> None:
    deep = pa.struct([pa.field("a", pa.int32()), pa.field("list", pa.list_(pa.field("element", pa.int32())))])
    schema = schema_of(pa.field("in", deep), pa.field("map", pa.map_(pa.string(), pa.int32())))
    values: dict[str, list[Any]] = {"in": [{"a": 5, "list": [1, 2]}, None], "map": [[("k", 1)], None]}
    rows = kafka_rows(schema, 3, [0, 1], **values)
    metrics = report_of(tmp_path / "f", schema, rows).metrics
    found = bounds(metrics, schema)
    assert {name for name in found if not name.startswith(KAFKA)} == {"in.a"}
    assert found["in.a"] == (5, 5)
    field_id = str(iceberg_schema(schema, 1).find_field("in.a").field_id)
    assert (metrics["value_counts"][field_id], metrics["null_value_counts"][field_id]) == (2, 1)


def test_a_file_without_rows_has_no_statistics(tmp_path: Path) -> None:
    schema = schema_of(pa.field("c", pa.int32()))
    metrics = report_of(tmp_path / "f", schema).metrics
    assert (metrics["record_count"], metrics["split_offsets"], metrics["lower_bounds"]) == (0, [], {})


@given(st.text(max_size=40))
@settings(max_examples=300)
def test_a_truncated_text_is_not_before_the_text(text: str) -> None:
    above = _text_above(text)
    if above is None:
        assert set(text[:16]) == {chr(0x10FFFF)}
    else:
        assert above >= text.encode()
        assert len(above.decode()) <= 16


@given(st.binary(max_size=40) | st.binary(max_size=6).map(lambda some: some + b"\xff" * 20))
@settings(max_examples=300)
def test_truncated_bytes_are_not_before_the_bytes(data: bytes) -> None:
    above = _bytes_above(data)
    if above is None:
        assert data[:16] == b"\xff" * 16
    else:
        assert above >= data
        assert len(above) <= 16


@pytest.mark.parametrize(("text", "expected"), [
    ("a" * 15 + "\ud7ff" + "x", "a" * 15 + "\ue000"),  # what follows are surrogates
    ("a" * 15 + "\U0010ffff" + "x", "a" * 14 + "b"),
    ("\U0010ffff" * 17, None),
])  # fmt: skip
def test_the_next_text_is_one_that_can_be_encoded(text: str, expected: str | None) -> None:
    assert _text_above(text) == (None if expected is None else expected.encode())


def test_a_name_with_dots_is_not_taken_for_the_path_of_another_column(tmp_path: Path) -> None:
    """Parquet's footer has both columns as `a.list.element`."""
    schema = schema_of(pa.field("a.list.element", pa.int64()), pa.field("a", list_of(pa.int64())))
    values: dict[str, list[Any]] = {"a.list.element": [5, 6], "a": [[100], [200]]}
    metrics = report_of(tmp_path / "f", schema, kafka_rows(schema, 3, [0, 1], **values)).metrics
    assert bounds(metrics, schema)["a.list.element"] == (5, 6)
