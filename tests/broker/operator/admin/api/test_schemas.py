"""Records with the header of a schema registry are shown with their schemas, which a registry is asked for once."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.settings.admin_area import AdminSettings
from anabranch.broker.node.settings.area import Secret
from anabranch.broker.operator.admin.api import decoder as decoder_module
from anabranch.broker.operator.admin.api import payloads
from anabranch.broker.operator.admin.api import schemas as schemas_module
from anabranch.broker.operator.admin.api.decoder import DecodedText, SchemaDecoder, SchemaSource
from anabranch.broker.operator.admin.api.schemas import Schema, Schemas
from tests.broker.operator.admin.api.test_decoder_worker import written
from tests.spark.pipeline.registry_server import RegistryServer, running_registry
from tests.support.admin_api import ApiClient
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of

PLACE = {"type": "record", "name": "shared.Place", "fields": [{"name": "city", "type": "string"}]}
TRIP = {"type": "record", "name": "Trip", "fields": [{"name": "to", "type": "shared.Place"}]}
SECRET = "me:secret"


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    with running_registry() as server:
        server.credentials = SECRET
        yield server


@pytest.fixture
async def node(tmp_path: Path, registry: RegistryServer) -> AsyncIterator[Node]:
    settings: dict[str, Any] = {
        "admin_schema_registry_url": registry.url,
        "admin_schema_registry_credentials": Secret(SECRET),
    }
    async with running_node(tmp_path, **settings) as running:
        await running.serving.topic_commands.create("t", partitions=1, configs={})
        yield running


def with_id(schema_id: int, body: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + body


def known(schemas: Schemas) -> Mapping[int, Schema]:
    found = schemas.current()
    assert found is not None
    return found


async def values(api: ApiClient, **query: object) -> list[dict[str, Any]]:
    return [each["value"] for each in (await api.get("/topics/t/records", from_="earliest", **query))["records"]]


async def test_values_are_shown_with_their_schemas(api: ApiClient, client: RawClient, registry: RegistryServer) -> None:
    place = registry.add("place", PLACE)
    reference = {"name": "shared.Place", "subject": "place", "version": 1}
    trip = registry.add("trips-value", TRIP, references=[reference])
    tour_type = {"type": "record", "name": "Tour", "fields": [{"name": "trip", "type": "Trip"}]}
    tour = registry.add("tour", tour_type, references=[{"name": "Trip", "subject": "trips-value", "version": 1}])
    free = registry.add("free", "{}", "JSON")
    strange = registry.add("strange", "<x/>", "XML")
    city = written(PLACE, {"city": "Köln"})
    given = [
        with_id(place, city),
        with_id(trip, city),
        with_id(free, b'{"a": 1}'),
        with_id(strange, b"\0\0"),
        with_id(77, b"x"),
        with_id(place, b"\xff"),
        with_id(place, written(PLACE, {"city": "x" * 20_000})),
        b"plain",
        with_id(tour, city),
    ]
    await client.produce("t", [batch_of(*given)])
    found = await values(api)
    shown = [(each["format"], each["text"], (each["schema"] or {"id": None})["id"]) for each in found]
    assert shown[:3] == [
        ("avro", '{"city": "Köln"}', place),
        ("avro", '{"to": {"city": "Köln"}}', trip),
        ("json", '{"a": 1}', free),
    ]
    assert [each["format"] for each in found[3:6]] == ["hex"] * 3
    assert [each["error"] for each in found[3:6]] == [
        f"schema {strange}: xml is not decoded here",
        "schema 77: the schema registry does not have it",
        f"schema {place}: the payload does not fit: IndexError string index out of range",
    ]
    assert (found[6]["truncated"], len(found[6]["text"])) == (True, 16_384)
    assert shown[7:] == [("text", "plain", None), ("avro", '{"trip": {"to": {"city": "Köln"}}}', tour)]
    asked = sorted(registry.requests)
    assert asked == sorted(
        [
            *(f"/schemas/ids/{each}" for each in (place, trip, tour, free, strange, 77)),
            *["/subjects/place/versions/1"] * 2,
            "/subjects/trips-value/versions/1",
        ]
    )
    await values(api)
    assert sorted(registry.requests) == asked, "what is known is not asked for again"


async def test_avro_is_asked_for_or_left_alone(api: ApiClient, client: RawClient, registry: RegistryServer) -> None:
    place = registry.add("place", PLACE)
    await client.produce("t", [batch_of(b"plain", with_id(place, written(PLACE, {"city": "A"})))])
    plain, avro = await values(api, decode="avro")
    assert plain["error"] == "avro cannot be decoded: there is no header with the id of a schema"
    assert avro["text"] == '{"city": "A"}'
    _, left = await values(api, decode="hex")
    assert (left["format"], left["text"][:10]) == ("hex", "0000000001")


WRITTEN = [
    "000000000200080712070a0374656110021a070a054bc3b66c6e22060880e2cfaa062a0b0a0467696674120379657330013a020102",
    "00000000020400000a03746561",
    "0000000002040002090000000000000440",
    "000000000202020807",
]
"""An Order, an Item, a Discount and a Refund, as written by the ProtobufSerializer of confluent-kafka 2.16.1."""
SHOP_PLACE = 'syntax = "proto3"; package shop; message Place { string city = 1; }'
SHOP_ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "shop/place.proto";
enum Status { NEW = 0; SENT = 1; }
message Order {
  message Item { string sku = 1; int32 quantity = 2; }
  message Discount { double percent = 1; }
  int64 number = 1;
  repeated Item items = 2;
  Place to = 3;
  google.protobuf.Timestamp at = 4;
  map<string, string> notes = 5;
  Status status = 6;
  bytes seal = 7;
}
message Refund { int64 order_number = 1; }
"""


async def test_protobuf_is_shown_as_a_client_wrote_it(
    api: ApiClient, client: RawClient, registry: RegistryServer
) -> None:
    registry.add("shop/place.proto", SHOP_PLACE, "PROTOBUF")
    reference = {"name": "shop/place.proto", "subject": "shop/place.proto", "version": 1}
    order = registry.add("orders-value", SHOP_ORDER, "PROTOBUF", references=[reference])
    wrong = registry.add("wrong", "message M { strange }", "PROTOBUF")
    damaged = bytes.fromhex(WRITTEN[0])[:20]
    await client.produce("t", [batch_of(*map(bytes.fromhex, WRITTEN), damaged, with_id(wrong, b"\0"), b"plain")])
    *found, damaged_row, wrong_row, plain = await values(api)
    assert {(each["format"], each["schema"]["id"], each["error"]) for each in found} == {("protobuf", order, None)}
    assert [json.loads(each["text"]) for each in found] == [
        {
            "number": "7",
            "items": [{"sku": "tea", "quantity": 2}],
            "to": {"city": "Köln"},
            "at": "2023-11-14T22:13:20Z",
            "notes": {"gift": "yes"},
            "status": "SENT",
            "seal": "AQI=",
        },
        {"sku": "tea", "quantity": 0},
        {"percent": 2.5},
        {"order_number": "7"},
    ]
    assert (damaged_row["format"], damaged_row["schema"]) == ("hex", {"id": order})
    assert damaged_row["error"].startswith(f"schema {order}: the payload is no message shop.Order: ")
    assert (wrong_row["format"], wrong_row["text"]) == ("hex", "000000000300")
    assert wrong_row["error"].startswith(f"schema {wrong}: invalid schema: schema-{wrong}.proto:1:13: ")
    assert (plain["format"], plain["text"]) == ("text", "plain")
    *_, asked = await values(api, decode="protobuf")
    assert asked["error"] == "protobuf cannot be decoded: there is no header with the id of a schema"


async def test_a_payload_that_stops_the_decoder_stops_it_once_a_scan(
    api: ApiClient, client: RawClient, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = registry.add("bare", "message Bare {}", "PROTOBUF")
    await client.produce("t", [batch_of(*[with_id(bare, b"\0")] * 2)])
    await client.produce("t", [batch_of(with_id(bare, b"\0"))])
    monkeypatch.setattr(decoder_module, "TIMEOUT_S", 0)
    found = await values(api)
    assert [each["error"] for each in found] == [
        f"schema {bare}: the decoder was stopped: it took longer than 0 s over this payload",
        *[f"schema {bare}: not decoded, as earlier payloads took too long: ask for fewer records"] * 2,
    ]
    monkeypatch.undo()
    assert [each["text"] for each in await values(api)] == ["{}"] * 3


async def test_schemas_that_refer_to_each_other_are_refused(registry: RegistryServer) -> None:
    registry.credentials = None
    for one, other in (("a", "b"), ("b", "a")):
        registry.add(one, "{}", "PROTOBUF", references=[{"name": other, "subject": other, "version": 1}])
    schemas = Schemas(AdminSettings(schema_registry_url=registry.url))
    await schemas.load([1])
    assert known(schemas)[1].failure == "schema 1: it refers to others over more than 20 steps"


async def test_long_names_make_no_long_texts(api: ApiClient, client: RawClient, registry: RegistryServer) -> None:
    item = {"type": "record", "name": "I", "fields": [{"name": "n" * 10_000, "type": "null"}]}
    many = registry.add("many", {"type": "array", "items": item})
    await client.produce("t", [batch_of(with_id(many, b"\xc0\x9a\x0c\0"))])  # 99,999 items without bytes
    (found,) = await values(api)
    assert (found["format"], found["truncated"], len(found["text"])) == ("avro", True, 16_384)


async def test_a_failure_is_believed_for_a_while(registry: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Schemas(AdminSettings(schema_registry_url=registry.url))
    registry.add("place", PLACE)
    await wrong.load([1])
    registry.credentials = None
    assert known(wrong)[1].failure == "schema 1: the schema registry answers 401"
    monkeypatch.setattr(schemas_module, "FAILURE_S", -1)
    assert known(wrong) == {}, "it is asked for again when the next record needs it"
    await wrong.load([1])
    assert known(wrong)[1].source is not None


async def test_a_registry_that_is_away_or_slow_or_strange_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n"]
    answers.append(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 3000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers[0])
        if answers[0]:
            writer.close()
        else:
            await reader.read()  # silent until the other side gives up
            writer.close()

    monkeypatch.setattr(schemas_module, "ANSWER_BYTES_MAX", 2000)
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        reasons = []
        for timeout_s in (0.05, 60, 60, 60):
            monkeypatch.setattr(schemas_module, "TIMEOUT_S", timeout_s)
            schemas = Schemas(AdminSettings(schema_registry_url=f"http://127.0.0.1:{port}/"))
            await schemas.load([1])
            reasons.append(known(schemas)[1].failure)
            answers.append(answers.pop(0))
    assert reasons[0].startswith("schema 1: the schema registry does not answer as it should: ")
    assert reasons[1:] == [
        "schema 1: the schema registry's answer is no object",
        "schema 1: the schema registry answers 302",
        "schema 1: the schema registry's answer is larger than 2000 bytes",
    ]
    gone = Schemas(AdminSettings(schema_registry_url=f"http://127.0.0.1:{port}"))
    await gone.load([1])
    assert "does not answer as it should" in known(gone)[1].failure


async def test_few_schemas_are_kept_and_fetched_at_once(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas_module, "SCHEMAS_MAX", 2)
    monkeypatch.setattr(schemas_module, "AT_ONCE_MAX", 3)
    registry.credentials = None
    schemas = Schemas(AdminSettings(schema_registry_url=registry.url))
    await schemas.load(range(1, 10))
    assert len(registry.requests) == 3
    assert len(known(schemas)) == 2


def test_time_and_size_of_what_is_decoded_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(SchemaDecoder):
        def decode(self, schema_id: int, schema: SchemaSource, data: bytes) -> DecodedText:
            self.cpu_s += 1.5
            return DecodedText("1", truncated=False)

    known = {1: Schema(SchemaSource("AVRO", '"int"', {}))}
    monkeypatch.setattr(payloads, "DECODED_BYTES_MAX", 2)
    decoder = payloads.PayloadDecoder("auto", "auto", known, Slow(10))
    shown = [decoder.show(with_id(1, body)) for body in (b"12", b"123", b"12", b"12")]
    assert [each and (each.format, each.error) for each in shown] == [
        ("avro", None),
        ("hex", "schema 1: a payload of more than 2 bytes is not decoded"),
        ("avro", None),
        ("hex", "schema 1: not decoded, as earlier payloads took too long: ask for fewer records"),
    ]


async def test_schemas_that_are_long_together_are_refused(registry: RegistryServer) -> None:
    registry.credentials = None
    large = {"type": "record", "name": "Large", "fields": [], "doc": "x" * 800_000}
    references = []
    for at in range(50):
        registry.add(f"large{at}", large)
        references.append({"name": f"Large{at}", "subject": f"large{at}", "version": 1})
    all_of_them = registry.add("all", PLACE, references=references)
    schemas = Schemas(AdminSettings(schema_registry_url=registry.url))
    await schemas.load([all_of_them])
    assert known(schemas)[all_of_them].failure == (
        f"schema {all_of_them}: those that it refers to are longer than 524288 characters"
    )
    assert len(registry.requests) == 2, "the others are not asked for"
