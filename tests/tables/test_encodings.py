"""Times and decimals of JSON whose spelling needs an explanation: many at once as each by itself, and exact."""

import base64
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from anabranch.tables import encodings
from anabranch.tables.decoding import json_decoder
from anabranch.tables.encodings import EncodingError, Spelled, find_encodings
from anabranch.tables.framing import Framing
from anabranch.tables.types import LOCAL_TIMESTAMP, TIMESTAMP, list_of, map_of

NOON = datetime(2020, 1, 1, 12, tzinfo=UTC)
LOCAL = datetime(2020, 1, 1, 12)  # noqa: DTZ001 - it is local
MONEY = pa.decimal128(6, 2)


def unscaled(number: int, size: int = 2) -> str:
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


GOOD: list[tuple[str, pa.DataType, Any, Any]] = [
    ("seconds", TIMESTAMP, 1577880000, NOON),
    ("seconds", LOCAL_TIMESTAMP, 1577880000, LOCAL),
    ("seconds", TIMESTAMP, -1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ("milliseconds", TIMESTAMP, 1577880000000, NOON),
    ("microseconds", TIMESTAMP, 1577880000000001, NOON.replace(microsecond=1)),
    ("nanoseconds", TIMESTAMP, 1577880000000001000, NOON.replace(microsecond=1)),
    ("nanoseconds", TIMESTAMP, -1000, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    ("days", pa.date32(), 18262, date(2020, 1, 1)),
    ("days", pa.date32(), -1, date(1969, 12, 31)),
    ("io.debezium.time.Date", pa.date32(), 18262, date(2020, 1, 1)),
    ("io.debezium.time.Timestamp", LOCAL_TIMESTAMP, 1577880000000, LOCAL),
    ("io.debezium.time.MicroTimestamp", LOCAL_TIMESTAMP, 1577880000000000, LOCAL),
    ("io.debezium.time.NanoTimestamp", LOCAL_TIMESTAMP, 1577880000000000000, LOCAL),
    ("io.debezium.time.ZonedTimestamp", TIMESTAMP, "2020-01-01T13:00:00+01:00", NOON),
    ("io.debezium.time.Time", pa.string(), 43200001, "12:00:00.001000"),
    ("io.debezium.time.MicroTime", pa.string(), 43200000001, "12:00:00.000001"),
    ("io.debezium.time.MicroTime", pa.int64(), 43200000001, 43200000001),
    ("io.debezium.time.NanoTime", pa.string(), 43200000001000, "12:00:00.000001"),
    ("org.apache.kafka.connect.data.Date", pa.date32(), 18262, date(2020, 1, 1)),
    ("org.apache.kafka.connect.data.Time", pa.string(), 0, "00:00:00.000000"),
    ("org.apache.kafka.connect.data.Timestamp", TIMESTAMP, 1577880000000, NOON),
    ("org.apache.kafka.connect.data.Decimal", MONEY, unscaled(1950), Decimal("19.50")),
    ("org.apache.kafka.connect.data.Decimal", MONEY, unscaled(-1950), Decimal("-19.50")),
    ("org.apache.kafka.connect.data.Decimal", MONEY, unscaled(0, 1), Decimal("0.00")),
    ("org.apache.kafka.connect.data.Decimal", pa.decimal128(38, 0), unscaled(10**38 - 1, 16), Decimal(10**38 - 1)),
    ("%d/%m/%Y", pa.date32(), "01/02/2020", date(2020, 2, 1)),
    ("%Y%m%d", pa.date32(), "20200201", date(2020, 2, 1)),
    ("%Y%m%d", pa.date32(), 20200201, date(2020, 2, 1)),  # texts take numbers as they are written
    ("%-d/%-m/%Y", pa.date32(), "1/12/2020", date(2020, 12, 1)),
    ("%d %b %Y", pa.date32(), "01 Feb 2020", date(2020, 2, 1)),
    ("%B %-d, %Y", pa.date32(), "FEBRUARY 1, 2020", date(2020, 2, 1)),
    ("%d/%b/%Y:%H:%M:%S %z", TIMESTAMP, "01/Jan/2020:13:00:00 +0100", NOON),
    ("%Y-%m-%dT%H:%M:%S.%fZ", LOCAL_TIMESTAMP, "2020-01-01T12:00:00.5Z", LOCAL.replace(microsecond=500000)),
    ("%m/%d/%Y %I:%M %p", TIMESTAMP, "01/01/2020 12:00 pm", NOON),
    ("%m/%d/%Y %I:%M %p", LOCAL_TIMESTAMP, "01/01/2020 12:00 AM", LOCAL.replace(hour=0)),
    ("100%% %Y-%m-%d", pa.date32(), "100% 2020-01-01", date(2020, 1, 1)),
]
BAD: list[tuple[str, pa.DataType, Any, str]] = [
    ("seconds", TIMESTAMP, "1577880000", "t: expected bigint, found the text '1577880000'"),
    ("seconds", TIMESTAMP, 1577880000.5, "t: expected bigint, found 1577880000.5"),
    ("seconds", TIMESTAMP, 1577880000000, "t: expected seconds in the years 1 to 9999, found 1577880000000"),
    ("seconds", TIMESTAMP, 2**63 - 1, "t: expected seconds in the years 1 to 9999, found 9223372036854775807"),
    ("nanoseconds", TIMESTAMP, 1, "t: expected nanoseconds that are whole microseconds, found 1"),
    ("days", pa.date32(), 2932897, "t: expected days in the years 1 to 9999, found 2932897"),
    ("io.debezium.time.Time", pa.string(), 86400000, "t: expected milliseconds since midnight, found 86400000"),
    ("io.debezium.time.MicroTime", pa.string(), -1, "t: expected microseconds since midnight, found -1"),
    ("org.apache.kafka.connect.data.Decimal", MONEY, "12", "t: expected binary, found the text '12'"),
    ("org.apache.kafka.connect.data.Decimal", MONEY, 12.5, "t: expected binary, found 12.5"),
    ("org.apache.kafka.connect.data.Decimal", MONEY, unscaled(10**6, 4), "t: expected decimal(6,2), found 10000.00, w"),
    ("org.apache.kafka.connect.data.Decimal", MONEY, "", "t: expected the bytes of a decimal(6,2), found 0"),
    ("%d/%m/%Y", pa.date32(), "1/2/2020", "t: expected a time like '%d/%m/%Y', found the text '1/2/2020'"),
    ("%d/%m/%Y", pa.date32(), "30/02/2020", "t: expected a time like '%d/%m/%Y', found the text '30/02/2020'"),
    ("%d/%m/%Y", pa.date32(), "01/02/2020\n", "t: expected a time like '%d/%m/%Y', found the text '01/02/2020\\n'"),
    ("%d/%m/%Y", pa.date32(), "\u0660\u0661/02/2020", "t: expected a time like '%d/%m/%Y', found the text"),
    ("%Y-%m-%d %I %p", TIMESTAMP, "2020-01-01 13 pm", "t: expected a time like '%Y-%m-%d %I %p', found the text '202"),
    ("%Y-%m-%d %H:%M:%S.%f", LOCAL_TIMESTAMP, "2020-01-01 00:00:00.1234567", "t: expected a time like"),
]


def decoded(kind: pa.StructType, specs: dict[str, str], values: list[Any], zone: str = "UTC") -> list[Any]:
    texts = pa.array([None if each is None else json.dumps(each).encode() for each in values], pa.binary())
    decoder = pickle.loads(pickle.dumps(json_decoder(kind, zone, framing=Framing.NONE, encodings=specs)))
    found = decoder.column(texts)
    found.validate(full=True)
    assert found.type.field(0).type == kind
    rows: list[Any] = found.to_pylist()
    return rows


@pytest.mark.parametrize(("spec", "kind", "value", "wanted"), GOOD)
def test_a_value_by_its_encoding(
    spec: str, kind: pa.DataType, value: Any, wanted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.struct([("t", kind)])
    alone = decoded(schema, {"t": spec}, [{"t": value}, {"t": None}, {}, None, 5])
    assert [row["data"] for row in alone] == [{"t": wanted}, {"t": None}, {"t": None}, None, None]
    assert [row["error"] for row in alone] == [None, None, None, None, "expected an object, found 5"]

    def fail(*_: Any) -> None:
        raise AssertionError("converted by itself")

    monkeypatch.setattr(encodings, "_value_converter", fail)
    together = decoded(schema, {"t": spec}, [{"t": value}, None])
    assert together == [{"data": {"t": wanted}, "error": None}, {"data": None, "error": None}]


@pytest.mark.parametrize(("spec", "kind", "value", "error"), BAD)
def test_what_is_not_of_its_encoding(spec: str, kind: pa.DataType, value: Any, error: str) -> None:
    rows = decoded(pa.struct([("t", kind)]), {"t": spec}, [{"t": None}, {"t": value}, {"t": None}])
    assert [row["data"] for row in rows] == [{"t": None}, None, {"t": None}]
    assert rows[1]["error"].startswith(error)


@pytest.mark.parametrize(("spec", "kind", "value", "wanted"), [each for each in GOOD if each[2] != "01/02/2020"])
def test_a_bad_neighbour_changes_nothing(spec: str, kind: pa.DataType, value: Any, wanted: Any) -> None:
    schema = pa.struct([("t", kind), ("d", pa.date32())])
    rows = decoded(schema, {"t": spec, "d": "%d/%m/%Y"}, [{"t": value}, {"d": "x"}, {"t": value, "d": "01/02/2020"}])
    assert [row["data"] and row["data"]["t"] for row in rows] == [wanted, None, wanted]


def test_fields_inside_of_structs_lists_and_maps() -> None:
    inner = pa.struct([("at", TIMESTAMP), ("n", pa.int32())])
    kind = pa.struct([("s", inner), ("l", list_of(inner)), ("m", map_of(pa.string(), list_of(pa.date32())))])
    specs = {"s.at": "seconds", "l.at": "milliseconds", "m": "days"}
    value = {"s": {"at": 1577880000, "n": 1}, "l": [{"at": 1577880000000}, None], "m": {"k": [18262, None]}}
    wanted = {
        "s": {"at": NOON, "n": 1}, "l": [{"at": NOON, "n": None}, None], "m": [("k", [date(2020, 1, 1), None])],
    }  # fmt: skip
    wrong = {"l": [{}, {"at": 10**18}]}
    rows = decoded(kind, specs, [value, {"s": None, "l": [], "m": {}}, {}, wrong])
    assert [row["data"] for row in rows] == [
        wanted, {"s": None, "l": [], "m": []}, {"s": None, "l": None, "m": None}, None,
    ]  # fmt: skip
    assert rows[3]["error"] == f"l[1].at: expected milliseconds in the years 1 to 9999, found {10**18}"
    assert [row["data"] for row in decoded(kind, specs, [value, None])] == [wanted, None]


def test_a_time_without_a_zone_is_one_of_the_sessions() -> None:
    kind = pa.struct([("t", TIMESTAMP)])
    rows = decoded(kind, {"t": "%d/%m/%Y %H:%M"}, [{"t": "01/01/2020 13:00"}, {"t": "29/03/2020 02:30"}], "Europe/Oslo")
    assert rows[0]["data"] == {"t": NOON}
    assert rows[1]["error"].startswith("t: expected a time like")  # the clock was put forward


@pytest.mark.parametrize(
    ("spec", "kind", "error"),
    [
        (
            "second",
            TIMESTAMP,
            "t: 'second' is no encoding: expected seconds, milliseconds, microseconds, nanoseconds, d",
        ),
        ("io.debezium.time.Interval", pa.string(), "t: 'io.debezium.time.Interval' is no encoding"),
        ("seconds", pa.date32(), "t: seconds gives timestamp or timestamp_ntz, and the column is date"),
        ("days", TIMESTAMP, "t: days gives date, and the column is timestamp"),
        ("%Y", pa.date32(), "t: '%Y': a year (%Y), one month (%m, %b or %B) and a day (%d) are needed"),
        ("%d/%m/%y", pa.date32(), "t: '%d/%m/%y': %y is not read; there are %Y,"),
        ("%d/%m/%Y", TIMESTAMP, "t: '%d/%m/%Y': a time needs an hour: %H, or %I with %p; make the column a date"),
        ("%d/%m/%Y %H", pa.date32(), "t: '%d/%m/%Y %H': a date has no time of day; make the column a timestamp"),
        ("%d/%m/%Y %I", TIMESTAMP, "t: '%d/%m/%Y %I': a time needs an hour"),
        ("%d/%m/%Y %H:%S", TIMESTAMP, "t: '%d/%m/%Y %H:%S': %S needs %M"),
        ("%d/%m/%Y %H %z", LOCAL_TIMESTAMP, "t: '%d/%m/%Y %H %z': a timestamp_ntz has no zone"),
        ("%d/%d/%m/%Y", pa.date32(), "t: '%d/%d/%m/%Y': %d repeats"),
        ("%d/%m/%Y%", pa.date32(), "t: '%d/%m/%Y%': it ends with a single %"),
        ("%d/%m/%Y", pa.string(), "t: %d/%m/%Y gives date or timestamp or timestamp_ntz, and the column is string"),
        ("org.apache.kafka.connect.data.Decimal", pa.int64(), "t: org.apache.kafka.connect.data.Decimal gives decimal"),
    ],
)
def test_encodings_that_would_guess_are_refused(spec: str, kind: pa.DataType, error: str) -> None:
    with pytest.raises(EncodingError) as caught:
        find_encodings({"t": spec}, pa.struct([("t", kind)]))
    assert str(caught.value).startswith(error)


def test_fields_that_are_not_there_are_refused() -> None:
    with pytest.raises(EncodingError, match=r"a\.x: there is no field x: y"):
        find_encodings({"a.x": "days"}, pa.struct([("a", pa.struct([("y", pa.date32())]))]))
    with pytest.raises(EncodingError, match=r"a\.x: there is no field x: int"):
        find_encodings({"a.x": "days"}, pa.struct([("a", pa.int32())]))
    assert isinstance(find_encodings({"a": "%Y-%m-%d"}, pa.struct([("a", pa.date32())]))["a"], Spelled)
