"""Requests made from the declarations of their fields, with values as strangers choose them."""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from anabranch.broker.api.handlers import HANDLERS
from anabranch.protocol.api import Api
from anabranch.protocol.batch import TRANSACTIONAL_MASK
from anabranch.protocol.codec import encode
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record, build_batch
from anabranch.protocol.registry import APIS
from anabranch.protocol.wire import Field, Kind, schema_of
from tests.support.raw_client import request_frame

TOPICS: Final = ("t", "compacted", "timed", "packed", "new", "__consumer_offsets", "__transaction_state")
TOPIC_IDS: Final = tuple(f"id of topic no {at}:".encode() for at in range(3))
"""Stand for the ids of the first topics; who knows the ids replaces them."""
NASTY: Final = (
    "", ".", "..", "../x", "/etc/passwd", "a\nb", "\x1b[2J\x1b[31m", "\0", "é\U0001f600", "x" * 249, "x" * 3000, "a b",
    "*", "(", ".*", "(a|a)*$", "\u2028", "%s%n", "{0}", "-1", "1", "99999999999999999999", "true", "compact", "delete",
    "gzip", "consumer", "range", "uniform", "roundrobin", "connect", "anonymous", "9092", "INFO",
)  # fmt: skip
NAMES: Final = {
    "group": ("g", "h", "i"),
    "member": ("", "m", "n"),
    "transactional_id": ("x", "y"),
    "instance": ("s",),
    "protocol": ("consumer", "range"),
    "topic": TOPICS,
    "resource_name": (*TOPICS, "1", "g", "", "INFO"),
}
LIMITS: Final = {
    Kind.INT8: 7, Kind.INT16: 15, Kind.INT32: 31, Kind.INT64: 63, Kind.UINT16: 16, Kind.UINT32: 32
}  # fmt: skip
BATCH_FIELDS: Final[tuple[dict[str, int], ...]] = ({}, {"producer_id": 0, "producer_epoch": 0, "base_sequence": 0})


def random_batch(random: Random) -> bytes:
    """Return a valid record batch."""
    records = [
        Record(
            key=random.choice((None, b"", b"k", b"key" * 30)),
            value=random.choice((None, b"", b"v", bytes(300))),
            timestamp_ms=random.choice((-1, 0, 1_700_000_000_000, 1_760_000_000_000, 2**62)),
            headers=random.choice(((), (("h", None),), (("h", b"x"), ("", b"")))),
        )
        for _ in range(random.choice((1, 1, 2, 30)))
    ]
    fields = random.choice(BATCH_FIELDS)
    attributes = TRANSACTIONAL_MASK if fields and random.random() < 0.3 else 0
    return bytes(build_batch(records, compression=random.choice(list(Compression)), attributes=attributes, **fields))


def random_message(message_type: type, version: int, random: Random) -> Any:
    """Return a message with a value in each field of the version."""
    fields = [field for field in schema_of(message_type).fields if version in field.versions]
    return message_type(**{field.name: _value(field, version, random) for field in fields})


def _value(field: Field, version: int, random: Random) -> Any:
    if version in field.nullable and random.random() < 0.15:
        return None
    if field.is_array:
        return tuple(_element(field, version, random) for _ in range(random.choice((0, 1, 1, 1, 2, 3))))
    return _element(field, version, random)


def _element(field: Field, version: int, random: Random) -> Any:
    kind = field.element
    if not isinstance(kind, Kind):
        return random_message(kind, version, random)
    match kind:
        case Kind.BOOLEAN:
            return random.random() < 0.5
        case Kind.FLOAT64:
            return random.choice((0.0, -1.5, float("nan"), float("inf")))
        case Kind.UUID:
            return random.choice((bytes(16), *TOPIC_IDS, random.randbytes(16)))
        case Kind.STRING:
            return _text(field.name, random)
        case Kind.BYTES:
            return random.choice((b"", b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff", random.randbytes(random.randrange(40))))
        case Kind.RECORDS:
            return random_batch(random)
    bits = LIMITS[kind]
    signed = kind not in {Kind.UINT16, Kind.UINT32}
    return random.choice((0, 0, 0, 1, 1, 2, 3, 100, 2**bits - 1, *((-1, -1, -2, -(2**bits)) if signed else ())))


def _text(name: str, random: Random) -> str:
    if random.random() < 0.2:
        return random.choice(NASTY)
    known = next((values for part, values in NAMES.items() if part in name), None)
    if known is None:
        known = random.choice((TOPICS, ("g", "x"), NASTY))
    return random.choice(known)


def served_apis() -> list[Api]:
    return [APIS[key] for key in HANDLERS]


def random_frame(random: Random, apis: Sequence[Api] | None = None) -> bytes:
    """Return a request of any version of one of these APIs, by default those that clients are served."""
    api = random.choice(apis or served_apis())
    version = random.randint(api.min_version, api.max_version)
    body = encode(random_message(api.request, version, random), version)
    client_id = random.choice(("raw", "raw", "", random.choice(NASTY)))
    return request_frame(api.key, version, body, correlation_id=random.randrange(100), client_id=client_id)
