"""Strict JSON as Arrow columns, without a session: many texts at once are decoded as each by itself, or not at all."""

import json
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.tables import json_blocks, json_columns
from anabranch.tables.json_columns import JsonDecoder
from anabranch.tables.json_values import json_reader
from anabranch.tables.types import LOCAL_TIMESTAMP, TIMESTAMP, list_of, map_of, type_name
from anabranch.tables.values import decode_column

NESTED = pa.struct([("m", map_of(pa.string(), list_of(pa.int64()))), ("t", TIMESTAMP)])
KINDS = (
    pa.string(), pa.bool_(), pa.int8(), pa.int32(), pa.int64(), pa.float64(), pa.float32(), pa.decimal128(4, 2),
    pa.decimal128(38, 0), pa.decimal128(38, 37), pa.decimal128(2, 2), TIMESTAMP, LOCAL_TIMESTAMP, pa.date32(),
    pa.binary(), list_of(pa.decimal128(4, 2)), map_of(pa.string(), pa.date32()), list_of(NESTED), list_of(pa.float64()),
    pa.struct([("x", pa.int8())]), pa.struct([("x", list_of(pa.string()))]),
)  # fmt: skip
TEXTS = (
    "null", "true", "false", "0", "-0", "0.0", "0e5", "1", "127", "128", "-128", "1.0", "1e3", "1.5e1", "100e-2",
    "1.10", "1.500", "1.005", "99.99", "100", "123.4", "0.5", "3000000000", "9223372036854775807",
    "9223372036854775808", "16777216", "16777217", "9007199254740992", "9007199254740993", "1e23", "1" + "0" * 23,
    "1e39", "1e-60", "1e-300", "1e400", "1e-400", "-1e400", "1e999", "1e-999", "0e999", "1e-999999999", "9" * 38,
    "9" * 39, "9" * 400, "9" * 5000, "1" + "0" * 308, "0." + "0" * 330 + "1", "12345678901234567890.5", '""', '"a"',
    '"5"', '"1.5"', '"01"',
    '"+1"',
    '" 1"', '"1 "', '"1,5"', '"NaN"', '"true"', '"12.34"', '"20130101"', '"15706"', '"YWI="', '"YWJ="', '"YW I="',
    '"\\ud800"',
    '"\\udc00"', '"\\ud83d\\ude00"', '"\\u0000"', '"\\u00005"', '"\\u0662020-01-01"', '"2020-01-01"', '"2020-1-1"',
    '"2020-02-30"', '"0000-01-01"', '"0001-01-01"', '"9999-12-31"', '"2020-01-01\\n"', '"2020-01-01T00:00:00Z"',
    '"2020-01-01t00:00:00z"', '"2020-01-01 02:00:00.1234560+02:00"', '"2020-01-01T00:00"', '"2020-01-01T00"',
    '"2020-01-01T00:00:00.123456789Z"', '"2020-01-01T00:00:00.Z"', '"2020-02-30T00:00:00Z"', '"2020-01-01T24:00:00Z"',
    '"2020-01-01T23:59:60Z"', '"2020-01-01T00:00:00+0200"', '"2020-01-01T00:00:00+02"', '"2020-01-01T00:00:00+24:00"',
    '"2020-01-01T00:00:00-23:59"', '"2020-03-29T02:30:00"', '"2020-10-25T02:30:00"', '"0001-01-01T00:00:00+01:00"',
    '"0001-01-01T00:00:00"', '"0000-01-01T00:00:00Z"', '"9999-12-31T23:59:59-01:00"', '"9999-12-31T23:59:59.999999Z"',
    '"10:00:00"', "[]", "[ ]", "[[]]", "[1.5, null]", "[1.005]", '["a", "1"]', "{}", '{"x": 1}', '{"x": 200}',
    '{"x": 1, "x": 2}', '{"x": []}', '{"x": ""}', '{"x": "ab"}', '{"a": "2020-01-01"}', '{"a": "1"}', '{"a": null}',
    '{"a": null, "a": null}', '{"\\ud800": "2020-01-01"}', '{"\\u0000": "2020-01-01"}',
    '[{"m": {"k": [1, null]}, "t": "2020-01-01T00:00:00Z"}, null, {}]', '[{"m": {}}]', '[{"m": []}]', '[{"m": ""}]',
    '[{"m": {"k": [1.5]}}]', '[{"m": {"k": "12"}}]', '[{"m": {"k": null}}]',
    "NaN", "-Infinity", "01", "+1", ".5", "5.", "-", "1e", "nul", '"a', "'a'", "{", "}", "[", "]", "[1,]", '{"a":1,}',
    '1, "c": 2', '1} {"c": 2', '1}, {"c": 2', '"\t"', '"\\x"', "[" * 500 + "]" * 500, "[" * 100_000 + "]" * 100_000,
)  # fmt: skip


def schema_of(kind: pa.DataType) -> pa.StructType:
    return pa.struct([("c", kind), ("z", pa.int32())])


def by_itself(text: bytes, schema: pa.StructType, zone: str) -> pa.Array:
    return decode_column([text], json_reader(schema, zone), schema)


@pytest.mark.parametrize(
    ("kind", "zone"),
    [*((kind, "UTC") for kind in KINDS), *((TIMESTAMP, zone) for zone in ("Europe/Berlin", "+02:00"))],
    ids=lambda each: each if isinstance(each, str) else type_name(each),
)
def test_together_is_as_each_by_itself(kind: pa.DataType, zone: str) -> None:
    schema = schema_of(kind)
    texts = [f'{{"{name}": {text}, "z": 7}}'.encode() for text in TEXTS for name in ("c", "unknown")]
    alone = [by_itself(text, schema, zone) for text in texts]
    for text, wanted in zip(texts, alone, strict=True):
        found = JsonDecoder(schema, zone)(pa.array([text, b'{"c": null}', None], pa.binary()))
        found.validate(full=True)
        assert found.type == wanted.type
        assert str(found[:1].to_pylist()) == str(wanted.to_pylist()), text
    assert str(JsonDecoder(schema, zone)(pa.array(texts, pa.binary())).to_pylist()) == str(
        pa.concat_arrays(alone).to_pylist()
    )


@pytest.mark.parametrize("by_arrow", [True, False], ids=["by Arrow", "by Python"])
def test_good_rows_are_decoded_together(monkeypatch: pytest.MonkeyPatch, *, by_arrow: bool) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("decoded by itself")

    monkeypatch.setattr(json_columns, "json_reader", fail)
    if by_arrow:
        monkeypatch.setattr(json_columns, "_parsed", fail)
    kinds = {"i": pa.int64(), "n": pa.float64(), "d": pa.decimal128(4, 2), "e": pa.decimal128(4, 2), "s": pa.string(),
             "t": TIMESTAMP, "l": LOCAL_TIMESTAMP, "day": pa.date32(), "b": pa.binary(), "ok": pa.bool_(),
             "r": list_of(pa.decimal128(4, 2)), "m": map_of(pa.string(), pa.string()), "o": NESTED}  # fmt: skip
    value = {"i": 5, "n": 0, "d": 1.5, "e": "1.50", "s": "é", "t": "2020-01-01T00:00:00.5+01:00", "ok": True,
             "l": "2020-01-01 00:00", "day": "2020-01-01", "b": "YWI=", "r": [], "m": {}, "o": {"m": None}}  # fmt: skip
    if by_arrow:  # it does not read objects with any names, and exact decimals
        kinds = {name: kind for name, kind in kinds.items() if json_blocks.reads(kind)}
    schema = pa.struct(list(kinds.items()))
    text = json.dumps(value, indent=1).encode()
    some = [text, text if by_arrow else None, text]
    rows = JsonDecoder(schema, "UTC")(pa.array(some * 1000, pa.binary())).to_pylist()
    assert [row["error"] for row in rows] == [None] * 3000
    assert [row["data"] is None for row in rows] == [each is None for each in some] * 1000
    assert set(rows[0]["data"]) == set(kinds)


def test_large_texts_are_decoded_by_themselves_and_utc_needs_no_table_of_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("asked for")

    monkeypatch.setattr(pc, "assume_timezone", fail)
    schema = pa.struct([("t", TIMESTAMP)])
    texts = [json.dumps({"t": "2020-01-01T00:00:00", "x": "y" * size}).encode() for size in (1, 100)]
    small = JsonDecoder(schema, "UTC")(pa.array(texts, pa.binary()))
    monkeypatch.setattr(json_blocks, "BYTES_MAX", 100)
    monkeypatch.setattr(json_columns, "BYTES_MAX", 100)
    monkeypatch.setattr(json_columns, "_parsed", fail)
    assert JsonDecoder(schema, "UTC")(pa.array(texts, pa.binary())) == small
    assert small.to_pylist()[0]["data"]["t"].isoformat() == "2020-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "pair",
    [
        (b'{"c": 1}, {"c": 2}', b""),
        (b'{"c": [1', b"2]}"),
        (b'{"c": "1', b'2"}'),
        (b'{"c": 1},', b'{"c": 2}'),
        (b'{"c": 1}]', b'[{"c": 2}'),
        (b"null", b"1"),
        (b"\xc3", b"\xa9"),
        (b'{"c": {}', b"{}}"),
        (b"{}{}", b"{}\0{}"),
        (b"{}\n{}", b"{}\0{}"),
        (b'{"c": "}', b'{"}'),
    ],
)
def test_a_text_does_not_reach_into_another(pair: tuple[bytes, bytes]) -> None:
    schema = schema_of(pa.string())
    found = JsonDecoder(schema, "UTC")(pa.array([b'{"c": "x"}', *pair, b'{"c": "y"}'] * 20, pa.binary())).to_pylist()
    texts = [row["data"] and row["data"]["c"] for row in found]
    assert texts == ["x", None, "2" if pair[1] == b'{"c": 2}' else None, "y"] * 20
    assert found[1]["error"]


def test_nothing_is_decoded_to_nothing() -> None:
    assert len(JsonDecoder(schema_of(pa.int64()), "UTC")(pa.array([], pa.binary()))) == 0


COLUMNS = {"n": pa.int64(), "x": pa.float64(), "f": pa.float32(), "s": pa.string(), "b": pa.bool_(), "t": TIMESTAMP,
           "a": list_of(pa.int32()), "o": pa.struct([("x", pa.float64()), ("s", list_of(pa.string()))])}  # fmt: skip
GOOD = {"n": ("1", "-0", "null"), "x": ("0.0", "1.5e3", "2"), "f": ("0", "0.5"),
        "s": ('"a"', '"}\\n{"', '"\\ud83d\\ude00"'), "b": ("true", "null"),
        "t": ('"2020-01-01T00:00:00Z"',), "a": ("[1,null]", "[]"),
        "o": ('{"x":1,"s":["b"]}', "{}"), "u": ('"any"', "[{}]", "1e999")}  # fmt: skip
PIECES = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\0", b"\n", b"\xff", b"0", b"e", b"-", b"NaN", b"{}", b" ")


@pytest.mark.slow
@given(st.integers(0, 1 << 32), st.sampled_from([0, 0.3]), st.sampled_from([0, 0.5]))
@settings(max_examples=400, deadline=None)
def test_any_texts_are_decoded_as_each_by_itself(seed: int, doubtful: float, broken: float) -> None:
    dice = random.Random(seed)
    texts = []
    for _ in range(dice.choice([1, 1, 2, 3, 40])):
        names = dice.sample(list(GOOD), dice.randrange(len(GOOD)))
        values = [dice.choice(TEXTS[:-2] if dice.random() < doubtful else GOOD[name]) for name in names]
        parts = (f'"{name}": {value}' for name, value in zip(names, values, strict=True))
        text = bytearray(f"{{{', '.join(parts)}}}".encode())
        if dice.random() < broken:
            at = dice.randrange(len(text) + 1)
            text[at : at + dice.randrange(3)] = dice.choice(PIECES)
        texts.append(bytes(text))
    schema = pa.struct(list(COLUMNS.items()))
    found = JsonDecoder(schema, "UTC")(pa.array(texts, pa.binary()))
    found.validate(full=True)
    assert str(found.to_pylist()) == str(decode_column(texts, json_reader(schema, "UTC"), schema).to_pylist())
