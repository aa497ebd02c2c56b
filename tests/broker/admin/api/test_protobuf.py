"""Protobuf is decoded in a child process, whose end, or whose silence, is one line about one payload."""

import os
import random
import signal
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.admin.api import protobuf
from broker.admin.api.protobuf import DecoderStopped, ProtobufDecoder, ProtobufError, ProtobufSchema

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
SHOP = ProtobufSchema(ORDER, {"shop/place.proto": PLACE})


@pytest.fixture(scope="module")
def shared() -> Iterator[ProtobufDecoder]:
    decoder = ProtobufDecoder(2000)
    yield decoder
    decoder.close()


@pytest.fixture
def decoder() -> Iterator[ProtobufDecoder]:
    decoder = ProtobufDecoder(2000)
    yield decoder
    decoder.close()


def field(number: int, content: bytes) -> bytes:
    """A field of length-delimited content, of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def any_of(name: str, content: bytes) -> bytes:
    return field(1, b"type.googleapis.com/" + name.encode()) + field(2, content)


DECODED: list[tuple[ProtobufSchema, bytes, str]] = [
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
    (ProtobufSchema(OLD, {}), b"\0\x08\x01" + field(3, b"\x01\x02"), '{"number": 1, "values": [-1, 1]}'),
    (ProtobufSchema(OLD, {}), b"\0" + b"\xa2\x06\x01x", '{"[more]": "x", "values": []}'),
    (ProtobufSchema("message Bare {}", {}), b"\0", "{}"),
]
"""Schemas, payloads after the id, and their texts."""


def test_messages_are_decoded(shared: ProtobufDecoder) -> None:
    ids = {schema.text: at for at, (schema, _, _) in enumerate(DECODED)}
    for schema, data, text in DECODED:
        assert shared.decode(ids[schema.text], schema, data) == (text, False), data


INVALID: list[tuple[ProtobufSchema, bytes, str]] = [
    (SHOP, b"", "no message indexes after the id of the schema"),
    (SHOP, b"\xff" * 6, "no message indexes after the id of the schema"),
    (SHOP, b"\x01", "-1 message indexes"),
    (SHOP, b"\x02\x04", "the schema has no message [2]"),
    (SHOP, b"\x02\x01", "the schema has no message [-1]"),
    (SHOP, b"\x04\0\x04", "the schema has no message [0, 2]"),
    (SHOP, b"\0\x0a\x7f", "the payload is no message shop.Order"),
    (SHOP, b"\0" + b"\x1a\x7f" * 200, "the payload is no message shop.Order"),
    (SHOP, b"\0" + field(7, any_of("shop.Nothing", b"")), "a message shop.Order that has no JSON form: "),
    (ProtobufSchema("messag M {}", {}), b"\0", "invalid schema: schema-ID.proto:1:1: "),
    (ProtobufSchema('syntax = "proto3"; enum E { A = 0; }', {}), b"\0", "the schema has no message [0]"),
    (
        ProtobufSchema('syntax = "proto3"; import "gone.proto";', {}),
        b"\0",
        "invalid schema: gone.proto: File not found.",
    ),
    (ProtobufSchema('import "../../etc/passwd";', {}), b"\0", "invalid schema: ../../etc/passwd: "),
    (ProtobufSchema('import "/etc/passwd";', {}), b"\0", "invalid schema: /etc/passwd: File not found."),
    (ProtobufSchema(f"message {'M' * 501} {{}}", {}), b"\0", "invalid schema: a name is longer than 500 characters"),
    (
        ProtobufSchema('message A { optional string a = 1 [default = "\ud800"]; }', {}),
        b"\0",
        "invalid schema: 'utf-8' codec",
    ),
    (ProtobufSchema("message A {" * 200 + "}" * 200, {}), b"\0", "invalid schema: schema-ID.proto:1:"),
    (
        ProtobufSchema('import "a.proto";', {"a.proto": 'import "a.proto";'}),
        b"\0",
        "invalid schema: a.proto:1:1: File recursively",
    ),
]


def test_what_cannot_be_decoded_is_said_in_one_line(shared: ProtobufDecoder) -> None:
    for at, (schema, data, reason) in enumerate(INVALID):
        schema_id = 100 if schema is SHOP else 101 + at
        reason = reason.replace("schema-ID", f"schema-{schema_id}")
        for _ in range(2):
            with pytest.raises(ProtobufError) as caught:
                shared.decode(schema_id, schema, data)
            assert str(caught.value).startswith(reason)
            assert "\n" not in str(caught.value)
            assert not isinstance(caught.value, DecoderStopped)


@pytest.mark.parametrize("name", ["", "..", "../a", "a/../b", "/etc/passwd", "a//b", "a=b", "a:b", "a\0b", "a/" * 30])
def test_names_that_are_no_paths_are_refused(name: str) -> None:
    with pytest.raises(ProtobufError, match="which is no path of a file"):
        ProtobufSchema(ORDER, {name: PLACE})


def test_large_sources_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "SOURCE_CHARACTERS_MAX", len(ORDER) + len(PLACE) - 1)
    with pytest.raises(ProtobufError, match="it is longer than"):
        ProtobufSchema(ORDER, {"shop/place.proto": PLACE})


def test_a_long_text_is_cut(shared: ProtobufDecoder) -> None:
    text, is_cut = shared.decode(
        1, ProtobufSchema("message M { repeated string a = 1; }", {}), b"\0" + b"\x0a\x09any words" * 900
    )
    assert (len(text), is_cut) == (2000, True)


FIELDS = "".join(f"optional int64 f{at} = {at};" for at in range(1, 4001))
LARGE = f"message A {{ repeated B b = 1; }} message B {{ {FIELDS} }}"
"""Each empty B of two bytes takes as much memory as it has fields."""
DEEP_OPTION = f"""
import "google/protobuf/descriptor.proto";
message M {{ optional M m = 1; }}
extend google.protobuf.FileOptions {{ optional M deep = 50000; }}
option (deep) = {"{ m:" * 5000} {{}} {"}" * 5000};
"""
"""The compiler crashes over it."""


@pytest.mark.parametrize(
    ("source", "data"), [(LARGE, b"\0" + b"\x0a\0" * 100_000), (DEEP_OPTION, b"\0")], ids=["memory", "crash"]
)
def test_hostile_schemas_stop_at_most_the_decoder(decoder: ProtobufDecoder, source: str, data: bytes) -> None:
    with pytest.raises(ProtobufError, match=r"alloc failed|it ended over this payload"):
        decoder.decode(1, ProtobufSchema(source, {}), data)
    assert decoder.decode(2, ProtobufSchema("message Bare {}", {}), b"\0").text == "{}"


def test_a_decoder_that_does_not_answer_is_given_up(decoder: ProtobufDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = ProtobufSchema("message Bare {}", {})
    decoder.decode(1, bare, b"\0")
    stopped = decoder.process_id
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr(protobuf, "TIMEOUT_S", 0.01)
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
    decoder: ProtobufDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = ProtobufSchema("message Bare {}", {})
    decoder.decode(1, bare, b"\0")
    assert decoder.process_id is not None
    os.kill(decoder.process_id, signal.SIGSTOP)
    reasons, is_asked, exchange = [], threading.Event(), protobuf.exchange

    def observed(*given: Any) -> Any:
        is_asked.set()
        return exchange(*given)

    monkeypatch.setattr(protobuf, "exchange", observed)

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
    monkeypatch.setattr(protobuf, "find_spec", lambda name: None)
    with pytest.raises(ProtobufError, match=r"install anabranch\[protobuf\] on this node"):
        ProtobufDecoder(2000).decode(1, SHOP, b"\0")


def test_no_noise_stops_the_decoder(shared: ProtobufDecoder) -> None:
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
        with suppress(ProtobufError):
            shared.decode(1000 + (at if at % 3 == 0 else 0), ProtobufSchema(source, SHOP.references), bytes(data))
    assert shared.process_id == process_id
