"""Payloads are decoded in a child process, whose end, or whose silence, is one line about one payload."""

import json
import os
import random
import signal
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from anabranch.broker.operator.admin.api import decoder as decoder_module
from anabranch.broker.operator.admin.api.decoder import DecodeError, DecoderStopped, SchemaDecoder, SchemaSource

ORDER = """
syntax = "proto3";
package shop;
import "google/protobuf/any.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "shop/place.proto";
enum Status { NEW = 0; SENT = 1; }
message Order {
  message Item { string sku = 1; int32 quantity = 2; }
  map<string, int64> notes = 1;
  message Gift { Item item = 1; }
  Status status = 2;
  Place to = 3;
  google.protobuf.Timestamp at = 4;
  google.protobuf.StringValue wish = 5;
  google.protobuf.Struct free = 6;
  google.protobuf.Any other = 7;
  bytes seal = 8;
  oneof how { string mail = 9; uint64 phone = 10; }
}
message Fee { double amount = 1; }
"""
PLACE = 'syntax = "proto3"; package shop; message Place { string city = 1; Place near = 2; }'
OLD = """
syntax = "proto2";
message Old {
  required int32 number = 1;
  optional string name = 2 [default = "none"];
  repeated sint32 values = 3 [packed = true];
  extensions 100 to 200;
}
extend Old { optional string more = 100; }
"""


def proto(text: str, references: Mapping[str, str]) -> SchemaSource:
    return SchemaSource("PROTOBUF", text, references)


def avro(schema: object) -> SchemaSource:
    return SchemaSource("AVRO", json.dumps(schema), {})


SHOP = proto(ORDER, {"shop/place.proto": PLACE})


@pytest.fixture(scope="module")
def shared() -> Iterator[SchemaDecoder]:
    decoder = SchemaDecoder(2000)
    yield decoder
    decoder.close()


@pytest.fixture
def decoder() -> Iterator[SchemaDecoder]:
    decoder = SchemaDecoder(2000)
    yield decoder
    decoder.close()


def field(number: int, content: bytes) -> bytes:
    """A field of length-delimited content, of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def any_of(name: str, content: bytes) -> bytes:
    return field(1, b"type.googleapis.com/" + name.encode()) + field(2, content)


DECODED: list[tuple[SchemaSource, bytes, str]] = [
    (SHOP, b"\0", '{"notes": {}, "status": "NEW", "seal": ""}'),
    (SHOP, b"\x02\0", '{"notes": {}, "status": "NEW", "seal": ""}'),
    (SHOP, b"\0" + field(1, field(1, b"a") + b"\x10\x05"), '{"notes": {"a": "5"}, "status": "NEW", "seal": ""}'),
    (SHOP, b"\0\x10\x07", '{"status": 7, "notes": {}, "seal": ""}'),
    (
        SHOP,
        b"\0" + field(3, field(1, "Köln".encode())),
        '{"to": {"city": "Köln"}, "notes": {}, "status": "NEW", "seal": ""}',
    ),
    (SHOP, b"\0" + field(4, b"\x08\x01"), '{"at": "1970-01-01T00:00:01Z", "notes": {}, "status": "NEW", "seal": ""}'),
    (SHOP, b"\0" + field(5, field(1, b"tea")), '{"wish": "tea", "notes": {}, "status": "NEW", "seal": ""}'),
    (SHOP, b"\0" + field(6, b""), '{"free": {}, "notes": {}, "status": "NEW", "seal": ""}'),
    (SHOP, b"\0" + field(8, b"\xff") + field(9, b"m"), '{"seal": "/w==", "mail": "m", "notes": {}, "status": "NEW"}'),
    (
        SHOP,
        b"\0" + field(7, any_of("shop.Fee", b"\x09" + struct.pack("<d", 2.5))),
        '{"other": {"@type": "type.googleapis.com/shop.Fee", "amount": 2.5}, "notes": {}, "status": "NEW", "seal": ""}',
    ),
    (SHOP, b"\x04\0\0" + field(1, b"tea"), '{"sku": "tea", "quantity": 0}'),
    (SHOP, b"\x04\0\x02" + field(1, field(1, b"tea")), '{"item": {"sku": "tea", "quantity": 0}}'),
    (SHOP, b"\x02\x02", '{"amount": 0.0}'),
    (proto(OLD, {}), b"\0\x08\x01" + field(3, b"\x01\x02"), '{"number": 1, "values": [-1, 1]}'),
    (proto(OLD, {}), b"\0" + b"\xa2\x06\x01x", '{"[more]": "x", "values": []}'),
    (proto("message Bare {}", {}), b"\0", "{}"),
]
"""Schemas, payloads after the id, and their texts."""


def test_messages_are_decoded(shared: SchemaDecoder) -> None:
    ids = {schema.text: at for at, (schema, _, _) in enumerate(DECODED)}
    for schema, data, text in DECODED:
        assert shared.decode(ids[schema.text], schema, data) == (text, False), data


INVALID: list[tuple[SchemaSource, bytes, str]] = [
    (SHOP, b"", "no message indexes after the id of the schema"),
    (SHOP, b"\xff" * 6, "no message indexes after the id of the schema"),
    (SHOP, b"\x01", "-1 message indexes"),
    (SHOP, b"\x02\x04", "the schema has no message [2]"),
    (SHOP, b"\x02\x01", "the schema has no message [-1]"),
    (SHOP, b"\x04\0\x04", "the schema has no message [0, 2]"),
    (SHOP, b"\0\x0a\x7f", "the payload is no message shop.Order"),
    (SHOP, b"\0" + b"\x1a\x7f" * 200, "the payload is no message shop.Order"),
    (SHOP, b"\0" + field(7, any_of("shop.Nothing", b"")), "a message shop.Order that has no JSON form: "),
    (proto("messag M {}", {}), b"\0", "invalid schema: schema-ID.proto:1:1: "),
    (proto('syntax = "proto3"; enum E { A = 0; }', {}), b"\0", "the schema has no message [0]"),
    (
        proto('syntax = "proto3"; import "gone.proto";', {}),
        b"\0",
        "invalid schema: gone.proto: File not found.",
    ),
    (proto('import "../../etc/passwd";', {}), b"\0", "invalid schema: ../../etc/passwd: "),
    (proto('import "/etc/passwd";', {}), b"\0", "invalid schema: /etc/passwd: File not found."),
    (proto(f"message {'M' * 501} {{}}", {}), b"\0", "invalid schema: a name is longer than 500 characters"),
    (
        proto('message A { optional string a = 1 [default = "\ud800"]; }', {}),
        b"\0",
        "invalid schema: 'utf-8' codec",
    ),
    (proto("message A {" * 200 + "}" * 200, {}), b"\0", "invalid schema: schema-ID.proto:1:"),
    (
        proto('import "a.proto";', {"a.proto": 'import "a.proto";'}),
        b"\0",
        "invalid schema: a.proto:1:1: File recursively",
    ),
]


def test_what_cannot_be_decoded_is_said_in_one_line(shared: SchemaDecoder) -> None:
    for at, (schema, data, reason) in enumerate(INVALID):
        schema_id = 100 if schema is SHOP else 101 + at
        reason = reason.replace("schema-ID", f"schema-{schema_id}")
        for _ in range(2):
            with pytest.raises(DecodeError) as caught:
                shared.decode(schema_id, schema, data)
            assert str(caught.value).startswith(reason)
            assert "\n" not in str(caught.value)
            assert not isinstance(caught.value, DecoderStopped)


@pytest.mark.parametrize("name", ["", "..", "../a", "a/../b", "/etc/passwd", "a//b", "a=b", "a:b", "a\0b", "a/" * 30])
def test_names_that_are_no_paths_are_refused(name: str) -> None:
    with pytest.raises(DecodeError, match="which is no path of a file"):
        proto(ORDER, {name: PLACE})


def test_large_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "SOURCE_CHARACTERS_MAX", len(ORDER) + len(PLACE) - 1)
    with pytest.raises(DecodeError, match="it is longer than"):
        proto(ORDER, {"shop/place.proto": PLACE})


def test_a_long_text_is_cut(shared: SchemaDecoder) -> None:
    text, is_cut = shared.decode(
        1, proto("message M { repeated string a = 1; }", {}), b"\0" + b"\x0a\x09any words" * 900
    )
    assert (len(text), is_cut) == (2000, True)


FIELDS = "".join(f"optional int64 f{at} = {at};" for at in range(1, 4001))
LARGE = f"message A {{ repeated B b = 1; }} message B {{ {FIELDS} }}"
"""Each empty B of two bytes takes as much memory as it has fields."""
PRINTED = 'syntax = "proto3";' + LARGE.replace("optional ", "")
"""Here each of them is shown, too."""
DEEP_OPTION = f"""
import "google/protobuf/descriptor.proto";
message M {{ optional M m = 1; }}
extend google.protobuf.FileOptions {{ optional M deep = 50000; }}
option (deep) = {"{ m:" * 5000} {{}} {"}" * 5000};
"""
"""The compiler crashes over it."""


def nested_records(depth: int, fields: int) -> dict[str, object]:
    """A schema of Avro whose records of no bytes have fields ** depth values."""
    schema: dict[str, object] = {}
    for level in range(depth):
        inner = [schema or "null", *[f"L{level - 1}" if level else "null"] * (fields - 1)]
        schema = {"type": "record", "name": f"L{level}"}
        schema["fields"] = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(inner)]
    return schema


HOSTILE: Final[Mapping[str, tuple[SchemaSource, bytes]]] = {
    "protobuf that takes memory": (proto(LARGE, {}), b"\0" + b"\x0a\0" * 100_000),
    "protobuf that takes time": (proto(PRINTED, {}), b"\0" + b"\x0a\0" * 2000),
    "protobuf that crashes the compiler": (proto(DEEP_OPTION, {}), b"\0"),
    "nested records of nulls": (avro(nested_records(9, 10)), b"7 bytes"),
    "an array of nulls": (avro({"type": "array", "items": "null"}), b"\xfe" + b"\xff" * 8 + b"\x01\0"),
    "a deep list": (
        avro({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}),
        b"\x02" * 500_000 + b"\0",
    ),
    "a record that contains itself": (
        avro({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}),
        b"\0",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", [each for each in HOSTILE if each != "nested records of nulls"])  # a node has those
def test_hostile_payloads_stop_at_most_the_decoder(decoder: SchemaDecoder, what: str) -> None:
    with pytest.raises(DecodeError, match=r"alloc failed|ended over this|longer than 2 s|512 MiB|RecursionError"):
        decoder.decode(1, *HOSTILE[what])
    assert decoder.decode(2, avro("int"), b"\x02").text == "1"


def test_a_process_that_holds_much_memory_is_replaced(decoder: SchemaDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoder.decode(1, avro("int"), b"\x02").text == "1"
    assert decoder.process_id is not None
    exchange = decoder_module.exchange
    monkeypatch.setattr(decoder_module, "exchange", lambda *given: exchange(*given) | {"worn": True})
    assert decoder.decode(1, avro("int"), b"\x02").text == "1"
    assert decoder.process_id is None


def test_a_decoder_that_does_not_answer_is_given_up(decoder: SchemaDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = proto("message Bare {}", {})
    decoder.decode(1, bare, b"\0")
    stopped = decoder.process_id
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(decoder_module, "TIMEOUT_S", 0.01)
    with pytest.raises(DecoderStopped, match=r"it took longer than 0\.01 s over this payload"):
        decoder.decode(1, bare, b"\0" * 500_000)
    assert not Path(f"/proc/{stopped}").exists()
    monkeypatch.undo()
    assert decoder.decode(1, bare, b"\0").text == "{}"
    assert decoder.process_id is not None
    os.kill(decoder.process_id, signal.SIGKILL)
    with pytest.raises(DecoderStopped):
        decoder.decode(1, bare, b"\0")


def test_a_decoder_that_is_closed_gives_up_what_it_does(
    decoder: SchemaDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = proto("message Bare {}", {})
    decoder.decode(1, bare, b"\0")
    assert decoder.process_id is not None
    os.kill(decoder.process_id, signal.SIGSTOP)
    reasons, is_asked, exchange = [], threading.Event(), decoder_module.exchange

    def observed(*given: Any) -> Any:
        is_asked.set()
        return exchange(*given)

    monkeypatch.setattr(decoder_module, "exchange", observed)

    def decode() -> None:
        with pytest.raises(DecoderStopped) as caught:
            decoder.decode(1, bare, b"\0")
        reasons.append(str(caught.value))

    thread = threading.Thread(target=decode)
    thread.start()
    assert is_asked.wait(60)
    decoder.close()
    thread.join()
    assert reasons == ["the node is stopping"]
    with pytest.raises(DecoderStopped, match="the node is stopping"):
        decoder.decode(1, bare, b"\0")


def test_without_the_extra_packages_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "is_installed", lambda extra: False)
    for kind, schema in (("protobuf", SHOP), ("avro", avro("int"))):
        said = rf"^{kind} is not decoded here: pip install 'anabranch\[{kind}\]' on this node"
        with pytest.raises(DecodeError, match=said):
            SchemaDecoder(2000).decode(1, schema, b"\0")


def test_no_noise_stops_the_decoder(shared: SchemaDecoder) -> None:
    """Damaged sources and payloads, from a fixed seed."""
    shared.decode(0, SHOP, b"\0")
    process_id = shared.process_id
    chosen = random.Random(7)
    payloads = [data for schema, data, _ in DECODED if schema is SHOP]
    for at in range(300):
        data = bytearray(chosen.choice(payloads) + chosen.randbytes(chosen.randrange(40)))
        for _ in range(chosen.randrange(4)):
            data[chosen.randrange(len(data))] = chosen.randrange(256)
        source = ORDER
        if at % 3 == 0:
            begin = chosen.randrange(len(ORDER))
            source = (
                ORDER[:begin] + chosen.choice(["{", "}", ";", "=", '"', "message", "\0", "9" * 30]) + ORDER[begin + 3 :]
            )
        with suppress(DecodeError):
            shared.decode(1000 + (at if at % 3 == 0 else 0), proto(source, SHOP.references), bytes(data))
    assert shared.process_id == process_id
