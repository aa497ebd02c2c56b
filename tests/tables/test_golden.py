"""Data files that version 1 of the format has written, which every version reads (`tables/FORMAT.md`).

Their rows, field ids, range and statistics are compared with what is expected of them, and with a file that is made of
the same records now. Their bytes are not: they change with Arrow's version. A file is written once, and never again.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.records import Record, build_batch
from anabranch.tables.joins import make_join
from anabranch.tables.metrics import file_metrics
from anabranch.tables.ranges import AbortedTransaction, PartitionRange
from anabranch.tables.requests import Asked, Share
from anabranch.tables.row_files import RANGE
from anabranch.tables.schema import KAFKA, decode_schema, field_ids, id_of
from anabranch.tables.snapshots import Join
from tests.tables.shares import RAW, made, question, read_rows, share_of

GOLDEN = Path(__file__).parent / "golden"
SCHEMA = json.dumps({
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "name": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"x": {"type": "number"}}},
    },
}).encode()  # fmt: skip
VALUES = (
    b'{"n": 1, "name": "one", "at": "2026-01-02T03:04:05.678901Z", "tags": ["a", null], "place": {"x": 1.5}}',
    b'{"n": "two"}',
    b"not JSON",
    None,
    b'{"name": "\xc3\xa4", "tags": []}',
)
FORMATS = {"raw": (RAW, RAW), "json": (Asked("json", SCHEMA), RAW), "keys": (RAW, Asked("json", SCHEMA))}
BOUNDS = ("lower_bounds", "upper_bounds")
ABORTED = AbortedTransaction(7, 5, 7)


def golden_share(folder: Path, name: str) -> Share:
    """Return the share that a golden file was made of."""
    records = [
        Record(None if at % 2 else b'{"n": %d}' % at, value, 1_000 + at, (("h", b"v"), ("null", None)))
        for at, value in enumerate(VALUES)
    ]
    aborted = [Record(b"a", b"aborted", timestamp_ms=2_000), Record(b"b", b"aborted", timestamp_ms=2_001)]
    batches = [
        bytes(build_batch(records)),
        bytes(build_batch(aborted, base_offset=5, producer_id=7, attributes=TRANSACTIONAL_MASK)),
        bytes(build_batch([Record(b"last", b'{"n": 9}', timestamp_ms=-1)], base_offset=10)),
    ]
    return share_of(folder, batches, question(*FORMATS[name]), aborted=[ABORTED], end_offset=12)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_the_past_has_what_one_of_now_has(tmp_path: Path, name: str) -> None:
    share = golden_share(tmp_path, name)
    report, rows = made(share)
    path = GOLDEN / f"{name}.parquet"
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        footer, schema = file.metadata, file.schema_arrow
        found = file.read()
    assert without_texts(found.to_pylist()) == without_texts(rows)
    assert [*field_ids(schema)] == [*field_ids(decode_schema(share.schema))]
    assert schema.equals(decode_schema(share.schema))
    place = {"topic": "t", "partition": 3, "start_offset": 0, "end_offset": 12}
    assert json.loads(footer.metadata[RANGE.encode()]) == place
    assert logical(file_metrics(footer, schema), schema) == logical(report.metrics, schema)


def without_texts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with errors, whose words may change, as true."""
    return [{**row, "_kafka": {**row["_kafka"], "error": row["_kafka"]["error"] is not None}} for row in rows]


def logical(metrics: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """Return the statistics that depend neither on Arrow's encoding nor on the words of errors."""
    error = str(id_of(schema.field(KAFKA).type.field("error")))
    counts = {name: metrics[name] for name in ("record_count", "value_counts", "null_value_counts")}
    bounds = {name: {key: metrics[name][key] for key in metrics[name] if key != error} for name in BOUNDS}
    return counts | bounds


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_the_past_is_joined_and_cut(tmp_path: Path, name: str) -> None:
    share = golden_share(tmp_path, name)
    _, rows = made(share)
    source = str(GOLDEN / f"{name}.parquet")
    make_join(Join([source], share.schema, PartitionRange("t", 3, 2, 12), share.target))
    expected = [row for row in rows if row["_kafka"]["offset"] >= 2]
    assert without_texts(read_rows(share)) == without_texts(expected)


def test_the_rows_of_a_file_of_the_past_are_these() -> None:
    """So the two sides of the other tests cannot change together."""
    rows = pq.read_table(GOLDEN / "json.parquet").to_pylist()
    assert [row["_kafka"]["offset"] for row in rows] == [0, 1, 2, 3, 4, 10]
    assert [row["n"] for row in rows] == [1, None, None, None, None, 9]
    assert (rows[0]["tags"], rows[0]["place"], rows[4]["name"]) == (["a", None], {"x": 1.5}, "ä")
    assert rows[0]["at"].isoformat() == "2026-01-02T03:04:05.678901+00:00"
    assert [row["_kafka"]["value_raw"] for row in rows] == [None, VALUES[1], VALUES[2], None, None, None]
    assert rows[1]["_kafka"]["error"] == "n: expected bigint, found the text 'two'"
    assert rows[0]["_kafka"]["headers"] == [{"key": "h", "value": b"v"}, {"key": "null", "value": None}]
