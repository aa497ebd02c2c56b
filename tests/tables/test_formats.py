"""Avro, protobuf and JSON with a registry, as values and as keys of a table."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.message_factory import GetMessageClass

from anabranch.protocol.records import Record, build_batch
from anabranch.tables.errors import RegistryError, SchemaError
from anabranch.tables.framing import Framing
from anabranch.tables.parts import answer, find
from anabranch.tables.protobuf import find_message, registered_set
from anabranch.tables.registry import UNKNOWN_MAX, SchemaRegistry
from anabranch.tables.requests import Asked, Part, Question, Registry, Share
from tests.spark.pipeline.registry_server import RegistryServer, running_registry
from tests.tables.shares import RAW, made, question, share_of

FLIGHT = {"type": "record", "name": "Flight", "fields": [
    {"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "int"], "default": None},
]}  # fmt: skip
NEWER = {**FLIGHT, "fields": [*FLIGHT["fields"], {"name": "gate", "type": ["null", "string"], "default": None}]}


def with_id(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def batch_of(values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> bytes:
    pairs = zip(keys or [None] * len(values), values, strict=True)
    return bytes(build_batch([Record(key, value, 5) for key, value in pairs]))


def asked(server: RegistryServer, kind: Any = "auto", subject: str = "t-value") -> Asked:
    return Asked(kind, registry=Registry(server.url), subject=subject)


def test_avro_is_read_with_the_schema_it_was_written_with_and_hostile_bytes_are_rows(tmp_path: Path) -> None:
    with running_registry() as server:
        old = server.add("t-value", FLIGHT)
        new = server.add("t-value", NEWER)
        other = server.add("other-value", {"type": "object"}, "JSON")
        good = avro(FLIGHT, {"carrier": "AA", "delay": 4})
        newer = avro(NEWER, {"carrier": "UA", "delay": None, "gate": "B1"})
        values = [
            with_id(old, good), with_id(new, newer), None, with_id(old, good[:-1]), with_id(new, newer + b"\0"), b"",
            good, with_id(77, good), with_id(other, good), with_id(old, b"\x02\xff\x00"),
            with_id(old, b"\x7f" + b"a" * 9),
        ]  # fmt: skip
        report, rows = made(share_of(tmp_path, [batch_of(values * 30)], question(asked(server))))
        names = ("carrier", "delay", "gate")
        assert [tuple(row[name] for name in names) for row in rows[:3]] == [
            ("AA", 4, None), ("UA", None, "B1"), (None, None, None),
        ]  # fmt: skip
        assert report.errors == 30 * 8
        assert [row["_kafka"]["value_raw"] for row in rows[:11]] == [None] * 3 + values[3:]
        reasons = [row["_kafka"]["error"] for row in rows[:11]]
        assert reasons[:3] == [None] * 3
        for reason, words in zip(
            reasons[3:],
            ("not Avro", "1 bytes are left over", "no schema header: 0 bytes", "no schema header",
             "has no /schemas/ids/77", "not an Avro schema", "not valid UTF-8", "not Avro"),
            strict=True,
        ):  # fmt: skip
            assert words in reason
        assert server.requests.count("/schemas/ids/77") == 1


def test_numbers_and_texts_of_json_are_what_their_encodings_say(tmp_path: Path) -> None:
    schema = {"properties": {
        "at": {"type": "string", "format": "date-time"}, "day": {"type": "string", "format": "date"},
    }}  # fmt: skip
    text = json.dumps(schema).encode()
    encoded = Asked("json", text, encodings={"at": "milliseconds", "day": "%d/%m/%Y"})
    values = [b'{"at": 1500, "day": "03/02/2026"}', b'{"at": "1970-01-01T00:00:01Z"}', b'{"day": "31/02/2026"}']
    _, rows = made(share_of(tmp_path, [batch_of(values)], question(Asked.from_json(encoded.to_json()))))
    assert [(row["at"], row["day"]) for row in rows] == [
        (datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), date(2026, 2, 3)), (None, None), (None, None),
    ]  # fmt: skip
    assert [row["_kafka"]["error"] is None for row in rows] == [True, False, False]
    with pytest.raises(SchemaError, match="when: there is no field when"):
        question(Asked("json", text, encodings={"when": "milliseconds"}))


def test_an_avro_schema_that_is_no_record_is_one_column(tmp_path: Path) -> None:
    with running_registry() as server:
        number, text = server.add("t-key", '"long"'), server.add("t-value", ["null", "string"])
        batch = batch_of(
            [with_id(text, avro(["null", "string"], "tea")), with_id(text, avro(["null", "string"], None)), None],
            [with_id(number, avro("long", -5)), with_id(number, b""), None],
        )
        finding = question(asked(server), asked(server, "avro", "t-key"))
        report, rows = made(share_of(tmp_path, [batch], finding))
    assert [row["value"] for row in rows] == ["tea", None, None]
    assert [row["_kafka"]["key"] for row in rows] == [{"value": -5}, None, None]
    assert [row["_kafka"]["key_raw"] for row in rows] == [None, with_id(number, b""), None]
    assert report.errors == 1


def test_many_unknown_ids_are_not_looked_up_one_by_one(tmp_path: Path) -> None:
    with running_registry() as server:
        old = server.add("t-value", FLIGHT)
        values = [with_id(1_000 + number, b"") for number in range(3 * UNKNOWN_MAX)]
        values.append(with_id(old, avro(FLIGHT, {"carrier": "AA", "delay": 4})))
        report, rows = made(share_of(tmp_path, [batch_of(values)], question(asked(server))))
        assert report.errors == 3 * UNKNOWN_MAX
        assert rows[-1]["carrier"] == "AA"
        assert len([each for each in server.requests if each.startswith("/schemas/ids/1")]) == UNKNOWN_MAX


def test_protobuf_by_the_newest_schema(tmp_path: Path) -> None:
    file = FileDescriptorProto(name="flight.proto", package="air", syntax="proto3")
    message = file.message_type.add(name="Flight")
    message.field.add(
        name="carrier", number=1, type=FieldDescriptorProto.TYPE_STRING, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    with running_registry() as server:
        first = server.add("t-value", "message ...", "PROTOBUF", serialized=file.SerializeToString())
        part = find(asked(server), SchemaRegistry(server.url))
        assert (part.format, part.message) == ("protobuf", "air.Flight")
        with pytest.raises(SchemaError, match="by Confluent's headers only"):
            find(replace(asked(server), framing=Framing.APICURIO_HEADER), SchemaRegistry(server.url))
        file.message_type.add(name="Other")
        server.add("t-value", "message ...", "PROTOBUF", serialized=file.SerializeToString())
        # A further message does not change which one it is.
        found = answer(Question(asked(server), RAW, None, part), {Registry(server.url): SchemaRegistry(server.url)})
        data = registered_set(SchemaRegistry(server.url).latest("t-value", protobuf=True))
        body = GetMessageClass(find_message(data, "air.Flight"))(carrier="UA").SerializeToString()
        values = [with_id(first, b"\0" + body), with_id(first, b"\x02\x02"), with_id(first, b"\0\xff"), b"\0", None]
        _, rows = made(share_of(tmp_path, [batch_of(values)], found))
    assert [row["carrier"] for row in rows] == ["UA", None, None, None, None]
    assert [row["_kafka"]["error"] is None for row in rows] == [True, False, False, False, True]


def test_json_with_a_header(tmp_path: Path) -> None:
    with running_registry() as server:
        first = server.add("t-value", {"properties": {"n": {"type": "integer"}}}, "JSON")
        values = [
            with_id(first, b'{"n": 1}'),
            b'{"n": 2}',
            with_id(first, b"{"),
            None,
            b"\0\0",
            with_id(9, b'{"n": 3}'),
        ]
        _, rows = made(share_of(tmp_path, [batch_of(values * 50)], question(asked(server))))
    assert [row["n"] for row in rows[:6]] == [1, None, None, None, None, 3]
    errors = [row["_kafka"]["error"] for row in rows[:6]]
    assert errors[1] == "no schema header: 8 bytes that begin with '7b226e223a'"
    assert errors[2].startswith("not JSON at character 1")
    assert errors[4] == "no schema header: 2 bytes that begin with '0000'"
    assert (errors[0], errors[3], errors[5]) == (None, None, None)


def test_ids_of_schemas_are_found_in_headers_of_records(tmp_path: Path) -> None:
    guid, body = UUID(int=7), avro(FLIGHT, {"carrier": "AA", "delay": 4})
    framing = Framing.CONFLUENT_HEADER
    of_value, of_key = ((f"__{part}_schema_id", b"\1" + guid.bytes) for part in ("value", "key"))
    with running_registry() as server:
        for subject in ("t-value", "t-key"):
            server.add(subject, NEWER)
        server.guids[str(guid)] = {"schema": json.dumps(FLIGHT)}
        value, key = (replace(asked(server, subject=f"t-{part}"), framing=framing) for part in ("value", "key"))
        asking = Question(value, key)
        assert Question.from_json(json.loads(json.dumps(asking.to_json()))) == asking
        records = [Record(body, body, 5, (of_key, of_value)), Record(body, body, 5, (of_key,)), Record(None, None, 5)]
        share = share_of(tmp_path, [bytes(build_batch(records))], question(value, key))
        assert Share.from_json(json.loads(json.dumps(share.to_json()))) == share
        _, rows = made(share)
    found = {"carrier": "AA", "delay": 4, "gate": None}
    assert [row["carrier"] for row in rows] == ["AA", None, None]
    assert [row["_kafka"]["key"] for row in rows] == [found, found, None]
    assert [row["_kafka"]["value_raw"] for row in rows] == [None, body, None]
    assert rows[1]["_kafka"]["error"] == f"no schema header: {len(body)} bytes that begin with '{body[:5].hex()}'"
    assert (rows[0]["_kafka"]["error"], rows[2]["_kafka"]["error"]) == (None, None)


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_values_of_glue_are_read_with_the_schema_of_a_config(tmp_path: Path, kind: Any) -> None:
    schema = FLIGHT if kind == "avro" else {"properties": {"carrier": {"type": "string"}}}
    body = avro(FLIGHT, {"carrier": "AA", "delay": 4}) if kind == "avro" else b'{"carrier": "AA"}'
    before = bytes([3, 0]) + UUID(int=7).bytes
    finding = question(Asked(kind, json.dumps(schema).encode(), framing=Framing.GLUE))
    _, rows = made(share_of(tmp_path, [batch_of([before + body, body, None])], finding))
    assert [row["carrier"] for row in rows] == ["AA", None, None]
    assert rows[1]["_kafka"]["error"].startswith("no id of glue: ")


def test_keys_are_decoded_too(tmp_path: Path) -> None:
    with running_registry() as server:
        first = server.add("t-key", FLIGHT)
        good = with_id(first, avro(FLIGHT, {"carrier": "AA", "delay": 4}))
        finding = question(Asked("json", b'{"properties": {"n": {"type": "integer"}}}'), asked(server, subject="t-key"))
        batch = batch_of([b'{"n": 1}', b'{"n": 2}', b"x", b'{"n": 4}'], [good, b"k", b"k", None])
        _, rows = made(share_of(tmp_path, [batch], finding))
    assert [row["n"] for row in rows] == [1, 2, None, 4]
    assert [row["_kafka"]["key"] for row in rows] == [{"carrier": "AA", "delay": 4}, None, None, None]
    assert [row["_kafka"]["key_raw"] for row in rows] == [None, b"k", b"k", None]
    assert [row["_kafka"]["value_raw"] for row in rows] == [None, None, b"x", None]
    errors = [row["_kafka"]["error"] for row in rows]
    assert errors[1] == "key: no schema header: 1 bytes that begin with '6b'"
    assert errors[2] == "not JSON at character 0: expecting value; key: no schema header: 1 bytes that begin with '6b'"
    assert (errors[0], errors[3]) == (None, None)


def test_without_a_subject_values_stay_as_they_are_until_there_is_one(tmp_path: Path) -> None:
    with running_registry() as server:
        before = question(asked(server))
        _, rows = made(share_of(tmp_path, [batch_of([b"x", None])], before))
        assert [list(row) for row in rows] == [["_kafka"]] * 2
        assert [row["_kafka"]["value_raw"] for row in rows] == [b"x", None]
        assert "has no /subjects/t-value" in rows[0]["_kafka"]["error"]
        server.add("t-value", FLIGHT)
        found = answer(
            Question(asked(server), RAW, before.schema, before.value),
            {Registry(server.url): SchemaRegistry(server.url)},
        )
    assert found.added == ["carrier", "delay"]


def test_without_a_subject_keys_have_no_column_until_there_is_one(tmp_path: Path) -> None:
    batch = batch_of([b"x", b"y"], [b"k", None])
    with running_registry() as server:
        keys = asked(server, subject="t-key")
        before = question(RAW, keys)
        _, rows = made(share_of(tmp_path, [batch], before))
        assert "key" not in rows[0]["_kafka"]
        assert [row["value"] for row in rows] == [b"x", b"y"]
        assert [row["_kafka"]["key_raw"] for row in rows] == [b"k", None]
        assert "has no /subjects/t-key" in rows[0]["_kafka"]["error"]
        assert rows[1]["_kafka"]["error"] is None
        server.add("t-key", FLIGHT)
        registries = {Registry(server.url): SchemaRegistry(server.url)}
        found = answer(Question(RAW, keys, before.schema, before.value, before.key), registries)
        assert (found.added, found.unfit) == (["_kafka.key"], [])
        _, rows = made(share_of(tmp_path, [batch], found))
    assert [row["_kafka"]["key"] for row in rows] == [None, None]


def test_a_registry_that_does_not_answer_stops_the_share_and_loses_no_row(tmp_path: Path) -> None:
    with running_registry() as server:
        old = server.add("t-value", FLIGHT)
        server.add("t-value", NEWER)
        finding = question(asked(server))
    share = share_of(tmp_path, [batch_of([with_id(old, avro(FLIGHT, {"carrier": "AA", "delay": 4}))])], finding)
    with pytest.raises(RegistryError, match="does not answer"):
        made(share)


def test_parts_survive_json() -> None:
    with running_registry() as server:
        server.add("t-value", FLIGHT)
        part = find(asked(server), SchemaRegistry(server.url))
    for each in (part, Part("raw"), Part("json", b"\xff"), Part("none", reason="why")):
        assert Part.from_json(json.loads(json.dumps(each.to_json()))) == each
