"""Shares of tables: every record that READ_COMMITTED shows is exactly one row, whatever its value."""

import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.protocol.batch import HEADER_BYTES, TRANSACTIONAL_MASK, write_crc
from anabranch.protocol.compression import Compression, compress
from anabranch.protocol.records import ControlType, Record, build_batch, build_marker
from anabranch.s3stream.errors import CorruptObject
from anabranch.tables import blocks
from anabranch.tables.errors import NotDecodableError
from anabranch.tables.json_schema import json_schema_type
from anabranch.tables.json_values import json_reader
from anabranch.tables.ranges import AbortedTransaction
from anabranch.tables.requests import Asked, Share
from anabranch.tables.row_files import RANGE
from anabranch.tables.schema import field_ids
from anabranch.tables.share import NOT_DECODED, make_share
from tests.tables.shares import RAW, file_schema, made, question, read_rows, share_of

DEEP = {"type": "object", "properties": {"y": {"type": "number"}}}
SCHEMA: dict[str, Any] = {"properties": {
    "n": {"type": "integer"}, "x": {"type": "number"}, "s": {"type": "string"},
    "at": {"type": "string", "format": "date-time"}, "ok": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "in": {"type": "object", "properties": {"d": {"type": "string", "format": "date"},
                                            "deep": {"type": "array", "items": DEEP}}},
}}  # fmt: skip
JSON = Asked("json", json.dumps(SCHEMA).encode())
READ = json_reader(json_schema_type(json.dumps(SCHEMA)), "UTC")
GOOD = (
    b'{"n": 5, "x": 0.5, "s": "\xc3\xa9", "at": "2020-01-01T00:00:00Z", "ok": true, "tags": ["a", null],'
    b'"in": {"d": "2020-01-01"}}'
)
HOSTILE = (
    b"", b"\xff", b'{"s": "\xff"}', b'{"u": "\xff"}', b"{", b"[]", b"null", b'{"n": NaN}',
    b'{"u": -Infinity}', b'{"x": 1e999}', b'{"n": 1.5}', b'{"n": "5"}',
    b'{"n": 9223372036854775808}', b'{"x": 1e-999}', b'{"x": 9007199254740993}', b'{"n": 1, "n": 2}', b'{"s": 5}',
    b'{"s": {"a": [1]}}', b'{"s": "\\ud800"}', b'{"s": "\\u0000"}', b'{"s": "\x00"}', b"{}{}", b"{}\x00{}", b"{} {}",
    b'{"in": []}', b'{"in": {"deep": [{"y": 1}, {"y": "1"}]}}', b'{"in": {"deep": [null, {"y": null}, {}]}}',
    b'{"in": null}', b'{"tags": ["a", 1]}', b'{"tags": {}}', b'{"at": 5}',
    b'{"at": "2020-02-30T00:00:00Z"}', b'{"at": "2020-01-01T00:00:00"}',
    b"[" * 5000, b'{"u": ' + b"[" * 3000 + b"]" * 3000 + b"}", b'{"s": "' + b"x" * 100_000 + b'"}',
    b"1" * 5000, b" " + GOOD, GOOD + b"\n",
    b'{"s": "a\nb"}', b'{"s": "}\n{"}', b"{\n}", b'{"unknown": {"any": [1, {}]}, "n": 7}', b"\x00\x00\x00\x00\x01{}",
    b"{'n': 1}",
)  # fmt: skip
VALUES = st.none() | st.just(GOOD) | st.sampled_from(HOSTILE) | st.binary(max_size=20)
RECORDS = st.lists(
    st.builds(
        Record,
        st.none() | st.binary(max_size=5),
        VALUES,
        st.sampled_from([-1, 0, 1_500_000_000_000, 2**60]),
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=12,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.sampled_from([-1, 1, 2, 3]), RECORDS, st.sampled_from(list(Compression))),
        st.tuples(st.just("end"), st.sampled_from([1, 2, 3]), st.booleans()),
    ),
    max_size=14,
)
MS_MAX = (2**63 - 1) // 1000


class Log(NamedTuple):
    """Batches of a partition, and what READ_COMMITTED shows of them."""

    batches: list[bytes]
    stable_offset: int
    aborted: list[AbortedTransaction]
    shown: list[Record]


def play(steps: list[Any]) -> Log:
    """Return the log of some producers."""
    batches: list[bytes] = []
    appended: list[tuple[int, int, list[Record]]] = []
    begun: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    end = 0
    for kind, producer, *rest in steps:
        if kind == "append":
            records, codec = rest
            if producer > 0:
                begun.setdefault(producer, end)
            batch = build_batch(
                records,
                base_offset=end,
                compression=codec,
                producer_id=producer,
                attributes=TRANSACTIONAL_MASK if producer > 0 else 0,
            )
            appended.append((end, producer, records))
            end += len(records)
        else:
            (commits,) = rest
            first = begun.pop(producer, None)
            outcome = ControlType.COMMIT if commits else ControlType.ABORT
            batch = build_marker(
                outcome, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp_ms=5, base_offset=end
            )
            end += 1
            if first is not None and not commits:
                aborted.append(AbortedTransaction(producer, first, end))
        batches.append(bytes(batch))
    stable = min([end, *begun.values()])
    shown = [
        Record(each.key, each.value, each.timestamp_ms, each.headers, offset + at)
        for offset, producer, records in appended
        if not any(a.producer_id == producer and a.first_offset <= offset < a.end_offset for a in aborted)
        for at, each in enumerate(records)
        if offset + at < stable
    ]
    return Log(batches, stable, aborted, shown)


def row_of(record: Record) -> dict[str, Any]:
    """Return the row of a record, decoded by itself."""
    data, error = dict.fromkeys(SCHEMA["properties"]), None
    is_late = abs(record.timestamp_ms) > MS_MAX
    if is_late:
        error = f"a timestamp of {record.timestamp_ms} ms, which does not fit in microseconds"
    elif record.value is not None:
        try:
            data = READ(record.value)
        except NotDecodableError as reason:
            error = str(reason)
    kafka = {"partition": 3, "offset": record.offset, "timestamp_type": 0, "key": record.key, "error": error}
    headers = [{"key": name, "value": content} for name, content in record.headers] or None
    raw = None if error is None else record.value
    time = None if is_late else record.timestamp_ms * 1000
    return {**data, "_kafka": {**kafka, "headers": headers, "value_raw": raw, "timestamp": time}}


def comparable(row: dict[str, Any]) -> str:
    """Return a row as text, whatever object stands for UTC."""
    time, kafka = row["at"], sorted(row["_kafka"].items())
    return str({**row, "at": time and time.isoformat(), "_kafka": kafka})


def rows_of(share: Share) -> list[dict[str, Any]]:
    """Return the rows of a made share, with times as numbers of microseconds."""
    _, rows = made(share)
    times = pq.read_table(share.target)["_kafka"].combine_chunks().field("timestamp").cast(pa.int64()).to_pylist()
    for row, time in zip(rows, times, strict=True):
        row["_kafka"]["timestamp"] = time
    return rows


@pytest.mark.slow
@given(STEPS)
@settings(max_examples=100, deadline=None)
def test_every_record_of_read_committed_is_one_row(steps: list[Any]) -> None:
    log = play(steps)
    with tempfile.TemporaryDirectory() as folder:
        share = share_of(Path(folder), log.batches, question(JSON), end_offset=log.stable_offset, aborted=log.aborted)
        found = rows_of(share)
    assert [comparable(row) for row in found] == [comparable(row_of(record)) for record in log.shown]


@given(STEPS, st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_shares_of_a_range_join_without_a_gap(steps: list[Any], first: int, second: int) -> None:
    log = play(steps)
    cuts = sorted({0, min(first, log.stable_offset), min(second, log.stable_offset), log.stable_offset})
    offsets: list[int] = []
    for start, end in itertools.pairwise(cuts):
        with tempfile.TemporaryDirectory() as folder:
            share = share_of(
                Path(folder), log.batches, question(RAW), start_offset=start, end_offset=end, aborted=log.aborted
            )
            _, rows = made(share)
            offsets += [row["_kafka"]["offset"] for row in rows]
    assert offsets == [record.offset for record in log.shown]


def test_each_hostile_value_is_its_own_row(tmp_path: Path) -> None:
    """Among many good ones, which are read together."""
    values = [value for each in HOSTILE for value in (*[GOOD] * 40, each)]
    batch = build_batch([Record(None, value, 5) for value in values], compression=Compression.LZ4)
    found = rows_of(share_of(tmp_path, [bytes(batch)], question(JSON)))
    expected = [row_of(Record(None, value, 5, (), at)) for at, value in enumerate(values)]
    assert [comparable(row) for row in found] == [comparable(row) for row in expected]
    assert sum(row["_kafka"]["error"] is not None for row in found) > 25


def test_raw_values_are_bytes_and_tombstones_null(tmp_path: Path) -> None:
    batch = build_batch([Record(b"k", b"\xff", 7, (("h", None),)), Record(None, None, 8)])
    _, rows = made(share_of(tmp_path, [bytes(batch)], question(RAW)))
    assert [row["value"] for row in rows] == [b"\xff", None]
    assert [row["_kafka"]["key"] for row in rows] == [b"k", None]
    assert rows[0]["_kafka"]["headers"] == [{"key": "h", "value": None}]
    assert {row["_kafka"]["error"] for row in rows} == {None}
    assert [row["_kafka"]["timestamp"].isoformat() for row in rows] == [
        f"1970-01-01T00:00:00.00{ms}000+00:00" for ms in (7, 8)
    ]


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_batch_that_cannot_be_decoded_is_a_row(tmp_path: Path, compression: Compression) -> None:
    good = [bytes(build_batch([Record(None, b"a", 5)] * 3, base_offset=at, compression=compression)) for at in (0, 6)]
    broken = build_batch([Record(None, b"b", 6)] * 3, base_offset=3, compression=compression)
    broken[HEADER_BYTES + 2 :] = b"\xff" * (len(broken) - HEADER_BYTES - 2)
    write_crc(broken)
    report, rows = made(share_of(tmp_path, [good[0], bytes(broken), good[1]], question(RAW)))
    assert [row["_kafka"]["offset"] for row in rows] == [0, 1, 2, 3, 6, 7, 8]
    assert report.errors == 1
    assert rows[3]["_kafka"]["error"].startswith("the batch cannot be decoded: ")
    assert rows[3]["_kafka"]["value_raw"] == bytes(broken[HEADER_BYTES:])
    assert rows[3]["value"] is None


@pytest.mark.parametrize("deltas", [(0, 7, 2), (0, 1, 1), (0, 2, 1), (-1, 0, 1)])
@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4])
def test_a_batch_with_offsets_that_are_not_its_own_is_a_row(
    tmp_path: Path, deltas: tuple[int, ...], compression: Compression
) -> None:
    """Its records would be missing, or two with one offset."""
    batches = [
        bytes(build_batch([Record(None, b"a", 5)] * 3, base_offset=at, compression=compression)) for at in (0, 3, 6)
    ]
    records = b"".join(bytes((14, 0, 0, (delta << 1) ^ (delta >> 7), 1, 2, ord("b"), 0)) for delta in deltas)
    broken = bytearray(batches[1][:HEADER_BYTES] + compress(compression, records))
    broken[8:12] = (len(broken) - 12).to_bytes(4, "big")
    write_crc(broken)
    report, rows = made(share_of(tmp_path, [batches[0], bytes(broken), batches[2]], question(RAW)))
    assert [row["_kafka"]["offset"] for row in rows] == [0, 1, 2, 3, 6, 7, 8]
    assert report.errors == 1
    assert "where one of 3 to 5 has to follow" in report.reasons[0]


def test_a_compacted_batch_keeps_its_offsets(tmp_path: Path) -> None:
    batch = build_batch([Record(None, b"a", 5, (), at) for at in (0, 3, 4)], base_offset=0)
    batch[23:27] = (6).to_bytes(4, "big")  # the last record is gone, too
    write_crc(batch)
    _, rows = made(share_of(tmp_path, [bytes(batch)], question(RAW)))
    assert [row["_kafka"]["offset"] for row in rows] == [0, 3, 4]


def test_a_share_made_again_is_the_same(tmp_path: Path) -> None:
    batch = bytes(build_batch([Record(b"k", each, 5) for each in HOSTILE] * 20))
    share = share_of(tmp_path, [batch], question(JSON))
    made(share)
    first = Path(share.target).read_bytes()
    made(Share.from_json(json.loads(json.dumps(share.to_json()))))
    assert Path(share.target).read_bytes() == first


def test_columns_have_their_ids_in_the_file(tmp_path: Path) -> None:
    batch = bytes(build_batch([Record(None, GOOD, 5)]))
    finding = question(JSON)
    share = share_of(tmp_path, [batch], finding)
    report, _ = made(share)
    ids = list(field_ids(file_schema(share)))
    assert sorted(ids) == list(range(1, len(ids) + 1))
    data = Path(share.target).read_bytes()
    assert (report.size_bytes, report.crc) == (len(data), crc32c(data))


def test_a_file_says_where_its_rows_are_from(tmp_path: Path) -> None:
    batch = bytes(build_batch([Record(None, GOOD, 5)] * 9))
    share = share_of(tmp_path, [batch], question(RAW), start_offset=2, end_offset=7)
    report, _ = made(share)
    assert report.rows == 5
    place = {"topic": "t", "partition": 3, "start_offset": 2, "end_offset": 7}
    assert json.loads(pq.read_metadata(share.target).metadata[RANGE.encode()]) == place


def test_an_empty_share_is_an_empty_file(tmp_path: Path) -> None:
    report, rows = made(share_of(tmp_path, [], question(JSON)))
    assert (report.rows, rows) == (0, [])


def test_a_batch_of_very_many_records_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "RECORDS_MAX", 3)
    batches = [
        bytes(build_batch([Record(None, b"a", 5)] * count, base_offset=at, compression=Compression.ZSTD))
        for at, count in ((0, 3), (3, 4), (7, 2))
    ]
    _, rows = made(share_of(tmp_path, batches, question(RAW)))
    assert [row["_kafka"]["offset"] for row in rows] == [0, 1, 2, 3, 7, 8]
    assert rows[3]["_kafka"]["error"] == "the batch cannot be decoded: 4 records, and 3 are the most"
    assert rows[3]["_kafka"]["value_raw"] == batches[1][HEADER_BYTES:]


@pytest.mark.parametrize("bounds", [(0, 9, 20), (0, 12, 20), (0, 15, 20), (0, 12, 13, 15, 20)])
def test_shares_that_meet_inside_a_broken_batch_have_one_row_of_it(tmp_path: Path, bounds: tuple[int, ...]) -> None:
    batches = [bytes(build_batch([Record(None, b"a", 5)] * 5, base_offset=at)) for at in (0, 5, 10, 15)]
    broken = bytearray(batches[2])
    broken[HEADER_BYTES] = 0xFF
    write_crc(broken)
    batches[2] = bytes(broken)
    rows = []
    for start, end in itertools.pairwise(bounds):
        rows += made(share_of(tmp_path, batches, question(RAW), start_offset=start, end_offset=end))[1]
    offsets = [row["_kafka"]["offset"] for row in rows]
    assert len(set(offsets)) == len(offsets)
    assert [each for each in offsets if not 10 <= each < 15] == [*range(10), *range(15, 20)]
    (row,) = [row for row in rows if 10 <= row["_kafka"]["offset"] < 15]
    assert row["_kafka"]["error"].startswith("the batch cannot be decoded")


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_a_large_batch_is_decoded_in_parts(
    tmp_path: Path, compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "ROWS_MAX", 4)
    monkeypatch.setattr(blocks, "decode_records", None)  # it would be used for all records together
    records = [Record(b"k%d" % number, b"v" * number, 5 + number) for number in range(19)]
    share = share_of(
        tmp_path, [bytes(build_batch(records, base_offset=7, compression=compression))], question(RAW), start_offset=9
    )
    _, rows = made(share)
    found = [(row["_kafka"]["offset"], row["_kafka"]["key"], row["value"]) for row in rows]
    assert found == [(7 + number, b"k%d" % number, b"v" * number) for number in range(2, 19)]


@pytest.mark.parametrize("number", [16, 18])  # the first of a part, and one inside of a part
def test_a_large_batch_with_a_wrong_offset_is_a_row(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "ROWS_MAX", 4)
    body = bytearray(build_batch([Record(b"k%d" % each, b"v", 5) for each in range(19)], base_offset=7))
    at = bytes(body).rindex(b"k%d" % number) - 2
    assert body[at] == 2 * number
    body[at] = 2 * 3
    write_crc(body)
    _, rows = made(share_of(tmp_path, [bytes(body)], question(RAW)))
    assert [row["_kafka"]["offset"] for row in rows] == [7]
    assert "a record has offset 10" in rows[0]["_kafka"]["error"]


def test_what_is_raw_is_not_decoded_and_what_is_careful_is_decoded_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.tables.share.ROWS_MAX", 4)
    batch = bytes(build_batch([Record(b"k", b'{"n": %d}' % number, 5) for number in range(10)]))
    share = share_of(tmp_path, [batch], question(JSON))
    share = replace(share, careful=[(4, 8)], raw=[(5, 6), (8, 10)])
    told: list[tuple[int, int] | None] = []
    report = make_share(share, {}, told.append)
    assert told[::2] == [(0, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 10)]
    assert {*told[1::2]} == {None}
    rows = read_rows(share)
    assert [row["n"] for row in rows] == [0, 1, 2, 3, 4, None, 6, 7, None, None]
    assert (report.errors, report.reasons) == (3, [NOT_DECODED])
    assert [row["_kafka"]["value_raw"] for row in rows if row["n"] is None] == [b'{"n": %d}' % at for at in (5, 8, 9)]
    assert {row["_kafka"]["key"] for row in rows} == {b"k"}


def test_records_become_rows_by_their_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.tables.share.SLICE_BYTES_MAX", 100)
    records = [Record(None, b"v" * 40, 5)] * 2 + [Record(b"k" * 60, None, 5)] + [Record(None, b"v" * 120, 5)]
    records += [Record(None, b"v", 5, (("h" * 30, b"x" * 30), ("i", None)))] * 2 + [Record(None, None, 5)]
    share = share_of(tmp_path, [bytes(build_batch(records))], question(RAW))
    told: list[tuple[int, int] | None] = []
    make_share(share, {}, told.append)
    assert told[::2] == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 7)]
    assert [row["value"] for row in read_rows(share)] == [each.value for each in records]


def test_a_record_that_is_too_large_is_a_row_without_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.tables.share.SLICE_BYTES_MAX", 50)
    monkeypatch.setattr("anabranch.tables.share.RECORD_BYTES_MAX", 100)
    header = (("h", b"x" * 90),)
    records = [Record(b"k", b"v" * 99, 5), Record(b"k", b"v" * 100, 5), Record(b"k", None, 6, header)]
    records += [Record(b"k" * 10, b"v", 7, header), Record(None, b"v", 8)]
    _, rows = made(share_of(tmp_path, [bytes(build_batch(records))], question(RAW)))
    error = "and 100 are the most that a table holds: its key, value and headers are left out"
    assert [row["_kafka"]["error"] for row in rows] == [
        None,
        f"a record of 101 bytes, {error}",
        None,
        f"a record of 102 bytes, {error}",
        None,
    ]
    assert [row["value"] for row in rows] == [b"v" * 99, None, None, None, b"v"]
    assert [row["_kafka"]["key"] for row in rows] == [b"k", None, b"k", None, None]
    assert [bool(row["_kafka"]["headers"]) for row in rows] == [False, False, True, False, False]
    assert [row["_kafka"]["timestamp"].microsecond for row in rows] == [5000, 5000, 6000, 7000, 8000]


def test_a_value_whose_columns_are_too_large_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.tables.share.SLICE_BYTES_MAX", 1)
    monkeypatch.setattr("anabranch.tables.share.DECODED_BYTES_MAX", 1000)
    tags = b'{"tags": [' + b'"",' * 400 + b'""]}'
    batch = bytes(build_batch([Record(None, each, 5) for each in (tags, b'{"n": 1}')]))
    report, rows = made(share_of(tmp_path, [batch], question(JSON)))
    assert (report.errors, report.reasons) == (1, [NOT_DECODED])
    assert (rows[0]["tags"], rows[0]["_kafka"]["value_raw"], rows[1]["n"]) == (None, tags, 1)


def test_json_without_a_schema_is_a_column_of_texts(tmp_path: Path) -> None:
    values = [GOOD, None, b"[]", b"\xff", b' {"a": 1}\n', b"{}{}"]
    _, rows = made(
        share_of(tmp_path, [bytes(build_batch([Record(None, each, 5) for each in values]))], question(Asked("json")))
    )
    assert [row["value"] for row in rows] == [GOOD.decode(), None, None, None, ' {"a": 1}\n', None]
    assert [row["_kafka"]["error"] is None for row in rows] == [True, True, False, False, True, False]
    assert rows[2]["_kafka"]["value_raw"] == b"[]"


def test_nothing_is_left_of_a_share_of_damaged_blocks(tmp_path: Path) -> None:
    share = share_of(tmp_path, [bytes(build_batch([Record(None, GOOD, 5)]))], question(JSON, RAW))
    with Path(share.source).open("r+b") as file:
        file.seek(share.blocks[0].position + 100)
        file.write(b"?")
    with pytest.raises(CorruptObject):
        make_share(share, {})
    assert not Path(share.target).exists()
