"""Ids of schemas before values and in headers of records, as the serialisers of three vendors write them."""

import json
import pickle
import zlib
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from anabranch.tables import framing as module
from anabranch.tables.avro import AvroDecoder, avro_type, parse_avro
from anabranch.tables.decoding import avro_decoder, json_decoder
from anabranch.tables.errors import NotDecodableError, RegistryError, UnknownSchemaError
from anabranch.tables.framing import Framing
from anabranch.tables.header_ids import with_header_ids
from anabranch.tables.registry import RegisteredSchema, SchemaKey, SchemaRegistry
from anabranch.tables.schema import HEADERS
from anabranch.tables.schema_files import SchemaFiles
from anabranch.tables.values import decode_column
from tests.spark.pipeline.registry_server import running_registry
from tests.spark.pipeline.test_decoders import NEWER, PLAIN, avro

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
OTHER = UUID("b7b4a7f0-9c96-4e4a-a687-fb5de9ef0c63")
BODY = b'{"n": 1}'


def glue(body: bytes, compression: int = 0, version: UUID = GUID) -> bytes:
    return bytes([3, compression]) + version.bytes + body


@pytest.mark.parametrize(
    ("framing", "value", "key"),
    [
        (Framing.CONFLUENT, b"\0\0\0\1\2" + BODY, 258),
        (Framing.CONFLUENT_HEADER, b"\0\0\0\1\2" + BODY, 258),
        (Framing.CONFLUENT_HEADER, b"\1" + GUID.bytes + BODY, str(GUID)),
        (Framing.APICURIO_8_BYTE, b"\0" + (2**40).to_bytes(8, "big") + BODY, 2**40),
        (Framing.APICURIO_HEADER, b"\0" + (7).to_bytes(8, "big") + BODY, 7),
        (Framing.APICURIO_HEADER, b"\2" + (7).to_bytes(8, "big") + BODY, "globalId:7"),
        (Framing.GLUE, glue(BODY), str(GUID)),
        (Framing.GLUE, glue(zlib.compress(BODY), 5), str(GUID)),
    ],
)
def test_the_key_of_a_schema_and_the_value(framing: Framing, value: bytes, key: SchemaKey) -> None:
    assert framing.unframe(value) == (key, BODY)


@pytest.mark.parametrize(
    ("framing", "value", "error"),
    [
        (Framing.CONFLUENT, BODY, "no schema header: 8 bytes that begin with '7b226e223a'"),
        (Framing.CONFLUENT_HEADER, b"\1" + GUID.bytes[1:], "no schema header: 16 bytes that begin with '01"),
        (Framing.APICURIO_8_BYTE, b"\0\0\0\0\1{}", "no id of apicurio-8-byte: 7 bytes that begin with '0000000001'"),
        (Framing.APICURIO_8_BYTE, b"\2" + bytes(8), "no id of apicurio-8-byte: 9 bytes that begin with '0200000000'"),
        (Framing.APICURIO_HEADER, b"\xff{}", "no schema id in the headers of apicurio-header, but '7b7d'"),
        (Framing.GLUE, b"\0\0\0\0\1{}", "no id of glue: 7 bytes that begin with '0000000001'"),
        (Framing.GLUE, glue(b"")[:-1], "no id of glue: 17 bytes that begin with '0300897917'"),
        (Framing.GLUE, glue(b"x", 4), "unknown compression 4 of glue"),
        (Framing.GLUE, glue(b"xyz", 5), "the value's compression is broken: Error -3"),
        (Framing.GLUE, glue(zlib.compress(BODY)[:-1], 5), "the value's compression is broken: it has no end within"),
        (Framing.GLUE, glue(zlib.compress(BODY) + b"x", 5), "the value's compression is broken: it is longer than"),
        (Framing.GLUE, b"", "no id of glue: 0 bytes"),
    ],
)
def test_what_has_no_key_is_an_error(framing: Framing, value: bytes, error: str) -> None:
    with pytest.raises(NotDecodableError) as caught:
        framing.unframe(value)
    assert str(caught.value).startswith(error)


def test_a_small_value_does_not_unfold_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNFOLDED_BYTES_MAX", 1 << 20)
    assert len(Framing.GLUE.unframe(glue(zlib.compress(bytes(1 << 20)), 5))[1]) == 1 << 20
    with pytest.raises(NotDecodableError, match="no end within 1 MiB"):
        Framing.GLUE.unframe(glue(zlib.compress(bytes(1 << 24)), 5))


def framed(framing: Framing, part: Any, rows: list[tuple[bytes | None, list[tuple[str, bytes | None]] | None]]) -> Any:
    values = pa.array([value for value, _ in rows], pa.binary())
    headers = [None if each is None else [{"key": key, "value": content} for key, content in each] for _, each in rows]
    found = with_header_ids(values, pa.array([None, *headers], HEADERS)[1:], framing, part)
    return found.to_pylist()


def test_confluents_header_of_a_record() -> None:
    guid = b"\1" + GUID.bytes
    name = "__value_schema_id"
    assert framed(
        Framing.CONFLUENT_HEADER, "value",
        [
            (BODY, [("a", b"x"), (name, guid)]), (BODY, [(name, b"\1" + OTHER.bytes), (name, guid), ("b", None)]),
            (BODY, [("__key_schema_id", guid)]), (BODY, None), (BODY, []), (None, [(name, guid)]),
            (BODY, [(name, b"\0\0\0\0\1")]), (BODY, [(name, b"\1\2")]), (BODY, [(name, None)]), (b"", [(name, guid)]),
        ],
    ) == [
        guid + BODY, guid + BODY, BODY, BODY, BODY, None, b"\0\0\0\0\1" + BODY, b"\xff\1\2" + BODY, BODY, guid,
    ]  # fmt: skip
    assert framed(Framing.CONFLUENT_HEADER, "key", [(BODY, [("__key_schema_id", guid)])]) == [guid + BODY]
    with pytest.raises(NotDecodableError, match=r"^no schema id in the headers of confluent-header, but '0102"):
        Framing.CONFLUENT_HEADER.unframe(b"\xff\1\2" + BODY)


def test_apicurios_headers_of_a_record() -> None:
    eight = (7).to_bytes(8, "big")
    content, unique = ("apicurio.value.contentId", eight), ("apicurio.value.globalId", eight)
    assert framed(
        Framing.APICURIO_HEADER, "value",
        [
            (BODY, [content]), (BODY, [unique]), (BODY, [content, unique]), (BODY, []), (BODY, None), (None, [content]),
            (BODY, [("apicurio.value.contentId", b"7")]), (BODY, [("apicurio.key.contentId", eight)]),
        ],
    ) == [
        b"\0" + eight + BODY, b"\2" + eight + BODY, b"\2" + eight + BODY, b"\xff" + BODY, b"\xff" + BODY, None,
        b"\xff7" + BODY, b"\xff" + BODY,
    ]  # fmt: skip


def test_json_after_each_framing() -> None:
    kind = pa.struct([("n", pa.int32())])
    for framing, value in ((Framing.GLUE, glue(BODY)), (Framing.APICURIO_8_BYTE, bytes(9) + BODY)):
        decoder = pickle.loads(pickle.dumps(json_decoder(kind, "UTC", framing=framing)))
        rows = decoder.column(pa.array([value, None, BODY, value + b"x"], pa.binary())).to_pylist()
        assert [row["data"] for row in rows] == [{"n": 1}, None, None, None]
        assert rows[2]["error"].startswith(f"no id of {framing}: 8 bytes")
        assert rows[3]["error"] == "text after the value, at character 8: 'x'"


def test_avro_is_read_with_the_schema_of_a_file() -> None:
    files = SchemaFiles({str(OTHER): json.dumps(PLAIN), str(GUID): json.dumps(NEWER)})
    decoder = avro_decoder(json.dumps(NEWER).encode(), files, framing=Framing.GLUE)
    old, new = {"carrier": "AA", "delay": 5}, {"carrier": "UA", "delay": None, "gate": "7"}
    values = [
        glue(avro(PLAIN, old), version=OTHER), glue(zlib.compress(avro(NEWER, new)), 5),
        glue(avro(PLAIN, old), version=UUID(int=5)),
    ]  # fmt: skip
    rows = decoder.column(pa.array(values, pa.binary())).to_pylist()
    assert [row["data"] for row in rows] == [{**old, "gate": None}, new, None]
    assert rows[2]["error"] == f"no file for the schema {UUID(int=5)}"


def test_a_registry_is_asked_by_guid_and_global_id() -> None:
    with running_registry() as server:
        server.add("s", NEWER)
        server.guids[str(GUID)] = {"schema": json.dumps(PLAIN)}
        server.texts["/apis/registry/v3/ids/globalIds/7?references=DEREFERENCE"] = json.dumps(PLAIN)
        registry = SchemaRegistry(server.url)
        reader = RegisteredSchema(1, "AVRO", json.dumps(NEWER))
        kind = avro_type(parse_avro(reader.text))
        body = avro(PLAIN, {"carrier": "AA", "delay": 5})
        row = {"carrier": "AA", "delay": 5, "gate": None}

        def decoded(framing: Framing, of: SchemaRegistry, *values: bytes) -> list[Any]:
            decoder = pickle.loads(pickle.dumps(AvroDecoder(reader, of, framing)))
            return decode_column(values, decoder, kind).to_pylist()  # type: ignore[no-any-return]

        guid = b"\1" + GUID.bytes + body
        assert [each["data"] for each in decoded(Framing.CONFLUENT_HEADER, registry, guid, guid)] == [row, row]
        assert server.requests == [f"/schemas/guids/{GUID}"]
        unknown = decoded(Framing.CONFLUENT_HEADER, registry, b"\1" + OTHER.bytes + body)
        assert unknown[0]["error"].endswith(f"has no /schemas/guids/{OTHER}")
        unique = b"\2" + (7).to_bytes(8, "big") + body
        apicurio = SchemaRegistry(f"{server.url}/apis/ccompat/v7")
        assert decoded(Framing.APICURIO_HEADER, apicurio, unique)[0]["data"] == row
        other = decoded(Framing.APICURIO_HEADER, registry, unique)[0]["error"]
        assert other == "schema globalId:7: the registry's URL does not end with /apis/ccompat/v7"
        with pytest.raises(UnknownSchemaError):
            apicurio.by_key("globalId:8")
    with pytest.raises(RegistryError):
        registry.by_key(str(OTHER))
