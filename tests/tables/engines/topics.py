"""Ten topics of real and hostile records, as tables, and the rows that a consumer's records must be.

    registry = Registry(node)
    for topic in TOPICS:
        topic.create(node.bootstrap, registry)
        topic.send(node.bootstrap, registry)

What a value is decoded to is stated here, or taken from the object that the value was made of: nothing here uses the
decoders of `anabranch.tables`.
"""

import base64
import io
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import fastavro
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from scripts.demo.flights import TEXTS, Flight, encode, read_flights
from tests.support.events import QUIET, TIMEOUT_S, Event, create_topic, send

QUICK: Final[Mapping[str, str]] = {"table.enable": "true", "table.commit.interval.ms": "1000"}
START_MS: Final = 1_700_000_000_000
Columns = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Cluster that records are sent to."""

    bootstrap: str
    registry: SchemaRegistryClient | None
    """None: for topics that need none."""
    producers: list[Producer] = field(default_factory=list)
    """Producers with an open transaction."""


@dataclass(frozen=True, slots=True)
class TableTopic:
    """A topic that is a table."""

    name: str
    configs: Callable[[Cluster], Mapping[str, str]]
    send: Callable[["TableTopic", Cluster], None]
    expected: Callable[[bytes], Columns | None]
    """Returns the columns that a value is decoded to; None: it is not decoded, and has an error."""
    nothing: Columns
    """Columns of a row without a value, or without one that is decoded."""
    partitions: int = 1
    key: Callable[[bytes], Any] = bytes
    """Returns what a key is decoded to."""
    events: Callable[[], Sequence[Event]] = field(default=tuple)

    def create(self, cluster: Cluster) -> None:
        """Create the topic, with a commit of its table each second."""
        create_topic(cluster.bootstrap, self.name, self.partitions, {**QUICK, **self.configs(cluster)})


def _send_events(topic: TableTopic, cluster: Cluster) -> None:
    # Batches of several codecs and sizes.
    events = topic.events()
    third = -(-len(events) // 3)
    for codec, at in zip(("lz4", "zstd", "none"), range(0, len(events), third), strict=False):
        settings = {"compression.type": codec, "message.max.bytes": 8 << 20}
        send(cluster.bootstrap, topic.name, events[at : at + third], **settings)


def _raw(**configs: str) -> Callable[[Cluster], Mapping[str, str]]:
    return lambda _cluster: {name.replace("_", "."): value for name, value in configs.items()}


def _raw_columns(value: bytes) -> Columns:
    return {"value": value}


def _json_schema(properties: Mapping[str, Any]) -> Callable[[Cluster], Mapping[str, str]]:
    text = json.dumps({"type": "object", "properties": properties})
    return lambda _cluster: {"table.value": "json", "table.value.schema": text}


# real records as JSON


def _flights(partitions: int) -> Iterator[tuple[Flight, int]]:
    """Yield flights, each with its partition."""
    for flight in itertools.islice(read_flights(), 0, 30_000, 10):
        yield flight, sum(flight.carrier.encode()) % partitions


def _flight_events() -> Sequence[Event]:
    return [
        Event(partition, encode(flight.document), flight.carrier.encode(), flight.timestamp_ms)
        for flight, partition in _flights(3)
    ]


def _small_events() -> Sequence[Event]:
    """Return departures and arrivals as events of four fields."""
    events = []
    for flight, partition in _flights(2):
        row = flight.document
        for kind in ("dep", "arr"):
            value = {"tail": row["tailnum"], "event": kind, "at": row[f"{kind}_time"], "delay": row[f"{kind}_delay"]}
            events.append(Event(partition, encode(value), b"", flight.timestamp_ms))
    return events


FLIGHT_FIELDS: Final = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)


def _flight_type(name: str) -> Mapping[str, Any]:
    if name == "time_hour":
        return {"type": "string", "format": "date-time"}
    return {"type": ["string" if name in TEXTS else "integer", "null"]}


def _flight(value: bytes) -> Columns:
    document = json.loads(value)
    hour = datetime.fromisoformat(document["time_hour"])
    return {**document, "time_hour": int(hour.timestamp()) * 1_000_000}


FLIGHTS = TableTopic(
    "flights",
    _json_schema({name: _flight_type(name) for name in FLIGHT_FIELDS}),
    _send_events,
    _flight,
    dict.fromkeys(FLIGHT_FIELDS),
    partitions=3,
    events=_flight_events,
)

SMALL = TableTopic(
    "small.events",
    _json_schema({"tail": {"type": "string"}, "event": {}, "at": {"type": "integer"}, "delay": {"type": "number"}}),
    _send_events,
    lambda value: (found := json.loads(value)) | {"delay": None if found["delay"] is None else float(found["delay"])},
    dict.fromkeys(("tail", "event", "at", "delay")),
    partitions=2,
    events=_small_events,
)

WIDE_FIELDS: Final = tuple(f"{name}_{number}" for number in range(75) for name in ("a", "b", "c", "d"))
WIDE_TYPES: Final = {"a": "integer", "b": "number", "c": "string", "d": "boolean"}


def _wide_document(number: int) -> Mapping[str, Any]:
    values = {"a": number * 2**40, "b": number / 7, "c": f"é{number}\u2028\U0001f600", "d": bool(number % 2)}
    every = 1 + number % 9  # most fields of most records are missing
    return {name: values[name[0]] for at, name in enumerate(WIDE_FIELDS) if at % every == 0}


WIDE = TableTopic(
    "wide",
    _json_schema({name: {"type": WIDE_TYPES[name[0]]} for name in WIDE_FIELDS}),
    _send_events,
    lambda value: dict.fromkeys(WIDE_FIELDS) | json.loads(value),
    dict.fromkeys(WIDE_FIELDS),
    events=lambda: [
        Event(0, json.dumps(_wide_document(number)).encode(), b"%d" % number, START_MS + number)
        for number in range(400)
    ],
)


# hostile values

NESTED: Final = {
    "n": {"type": "integer"},
    "x": {"type": "number"},
    "s": {"type": "string"},
    "at": {"type": "string", "format": "date-time"},
    "d": {"type": "string", "format": "date"},
    "ok": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "in": {"type": "object", "properties": {"y": {"type": "number"}, "list": {"type": "array", "items": {
        "type": "object", "properties": {"z": {"type": "integer"}}}}}},
}  # fmt: skip
NO_COLUMNS: Final = dict.fromkeys(NESTED)
DECODED: Final[Mapping[bytes, Columns]] = {
    b"{}": {},
    b' {"n": 5}\n': {"n": 5},
    b'{"n": -9223372036854775808, "x": 5}': {"n": -(2**63), "x": 5.0},
    b'{"x": 1e308, "s": "\xc3\xa9\xf0\x9f\x98\x80"}': {"x": 1e308, "s": "é\U0001f600"},
    b'{"s": "\\u0000\\n\\"", "unknown": {"any": [1, {}]}}': {"s": '\0\n"'},
    b'{"at": "1969-12-31T23:59:59.999999Z"}': {"at": -1},
    b'{"at": "2262-04-11T00:00:00+02:00", "d": "0001-01-01"}': {
        "at": (9_223_286_400 - 7_200) * 1_000_000,
        "d": -719_162,
    },
    b'{"tags": ["a", null, ""], "ok": false}': {"tags": ["a", None, ""], "ok": False},
    b'{"tags": [], "in": {"y": null, "list": [{"z": 1}, null, {}]}}': {
        "tags": [],
        "in": {"y": None, "list": [{"z": 1}, None, {"z": None}]},
    },
    b'{"tags": ["a", 1]}': {"tags": ["a", "1"]},
    b'{"in": null}': {"in": None},
    b'{"s": 5}': {"s": "5"},  # a column of text takes the text of any JSON
    b'{"s": "' + b"x" * 900_000 + b'"}': {"s": "x" * 900_000},
}
UNDECODABLE: Final = (
    b"", b"\xff", b"{", b"[]", b"5", b'{"n": NaN}', b'{"n": 1.5}', b'{"n": "5"}', b'{"n": 9223372036854775808}',
    b'{"x": 1e999}', b'{"s": "\xff"}', b'{"s": "\\ud800"}', b"{}{}", b'{"in": []}',
    b'{"at": "2020-02-30T00:00:00Z"}', b"[" * 5_000, b"\0\0\0\0\1{}", b"{'n': 1}", b"\0" * 100_000,
)  # fmt: skip

HOSTILE = TableTopic(
    "hostile",
    _json_schema(NESTED),
    _send_events,
    lambda value: None if value not in DECODED else {**NO_COLUMNS, **DECODED[value]},
    NO_COLUMNS,
    partitions=2,
    events=lambda: [
        Event(number % 2, value, b"k", START_MS)
        for number, value in enumerate([*DECODED, None, *UNDECODABLE, None] * 3)
    ],
)


# formats with a registry

ORDER: Final = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "paid", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}}},
        {"name": "attributes", "type": {"type": "map", "values": "int"}},
    ],
}  # fmt: skip
LATER_ORDER: Final = {**ORDER, "fields": [*ORDER["fields"], {"name": "gate", "type": ["null", "int"], "default": None}]}
KEY: Final = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
ORDER_FIELDS: Final = ("id", "note", "price", "paid", "lines", "attributes", "gate")


def _order(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "note": None if number % 3 else f"note {number}",
        "price": (number * 199).to_bytes(6, "big", signed=True),
        "paid": START_MS + number,
        "lines": [{"sku": f"s{each}"} for each in range(number % 4)],
        "attributes": {f"k{each}": each for each in range(number % 3)},
    }


def _avro(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def _with_id(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + body


def _expected_order(value: bytes) -> Columns | None:
    if value[:1] != b"\0" or len(value) < 20:
        return None
    body = io.BytesIO(value[5:])
    found: Any = fastavro.schemaless_reader(body, fastavro.parse_schema(ORDER), None)
    rest = body.read()  # the field that the later schema has at its end: a union of null and int
    gate = None if rest[:1] in {b"", b"\0"} else int.from_bytes(rest[1:], "little") // 2
    paid = int(found["paid"].timestamp() * 1_000_000)
    return {**found, "gate": gate, "paid": paid}


def _send_avro(topic: TableTopic, cluster: Cluster) -> None:
    assert cluster.registry is not None
    subject = f"{topic.name}-value"
    first = cluster.registry.register_schema(subject, Schema(json.dumps(ORDER), "AVRO"))
    keys = cluster.registry.register_schema(f"{topic.name}-key", Schema(json.dumps(KEY), "AVRO"))

    def event(number: int, body: bytes | None) -> Event:
        return Event(number % 2, body, _with_id(keys, _avro(KEY, {"id": number})), START_MS + number)

    orders = [event(number, _with_id(first, _avro(ORDER, _order(number)))) for number in range(300)]
    send(cluster.bootstrap, topic.name, orders, **{"compression.type": "snappy"})
    later = cluster.registry.register_schema(subject, Schema(json.dumps(LATER_ORDER), "AVRO"))
    more = [
        event(
            number, _with_id(later, _avro(LATER_ORDER, _order(number) | {"gate": number % 60 if number % 2 else None}))
        )
        for number in range(300, 400)
    ]
    bad = [event(number, body) for number, body in enumerate([b"", None, b"\0", _with_id(first, b"\1"), b"{}"])]
    send(cluster.bootstrap, topic.name, [*more, *bad])


AVRO = TableTopic(
    "avro",
    lambda _cluster: {"table.value": "auto", "table.key": "avro"},
    _send_avro,
    _expected_order,
    dict.fromkeys(ORDER_FIELDS),
    partitions=2,
    key=lambda key: fastavro.schemaless_reader(io.BytesIO(key[5:]), fastavro.parse_schema(KEY), None),
)

TYPES: Final = FieldDescriptorProto
ITEM: Final = FileDescriptorProto(name="item.proto", package="shop", syntax="proto3")
_item = ITEM.message_type.add(name="Item")
for _number, (_name, _type) in enumerate(
    [
        ("sku", TYPES.TYPE_STRING),
        ("count", TYPES.TYPE_INT32),
        ("weight", TYPES.TYPE_DOUBLE),
        ("code", TYPES.TYPE_BYTES),
    ],
    1,
):
    _item.field.add(name=_name, number=_number, type=_type, label=TYPES.LABEL_OPTIONAL)
_item.field.add(name="tags", number=5, type=TYPES.TYPE_STRING, label=TYPES.LABEL_REPEATED)
_pool = DescriptorPool()
_pool.Add(ITEM)
ITEM_CLASS: Final = GetMessageClass(_pool.FindMessageTypeByName("shop.Item"))
ITEM_FIELDS: Final = ("sku", "count", "weight", "code", "tags")


def _item_of(value: bytes) -> Columns | None:
    if value.startswith(b"\xff"):
        return None
    message: Any = ITEM_CLASS.FromString(value)
    return {name: list(getattr(message, name)) if name == "tags" else getattr(message, name) for name in ITEM_FIELDS}


def _item_events() -> Sequence[Event]:
    items = [
        ITEM_CLASS(
            sku=f"sku {number}", count=number - 50, weight=number / 3, code=bytes([number]), tags=["t"] * (number % 3)
        ).SerializeToString()
        for number in range(200)
    ]
    bad = (b"\xff", b"\xff" * 20)
    return [Event(0, value, None, START_MS + number) for number, value in enumerate([*items, None, b"", *bad])]


PROTOBUF = TableTopic(
    "protobuf",
    lambda _cluster: {
        "table.value": "protobuf",
        "table.value.schema": base64.b64encode(FileDescriptorSet(file=[ITEM]).SerializeToString()).decode(),
        "table.value.message": "shop.Item",
    },
    _send_events,
    _item_of,
    dict.fromkeys(ITEM_FIELDS),
    events=_item_events,
)


# raw values


def _send_transactions(topic: TableTopic, cluster: Cluster) -> None:
    """Send transactions of three producers that overlap: a third of them is aborted, and the last one stays open."""
    producers = []
    for number in range(3):
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "transactional.id": f"{topic.name}-{number}",
                "transaction.timeout.ms": 900_000,
                "linger.ms": 1,
                **QUIET,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        producers.append(producer)
    counter = itertools.count()
    for turn in range(8):
        for producer in producers:
            producer.begin_transaction()
        for each in range(30):
            for number, producer in enumerate(producers):
                producer.produce(
                    topic.name,
                    f"turn {turn}, producer {number}, {each}".encode(),
                    b"%d" % next(counter),
                    partition=each % 2,
                    timestamp=START_MS + turn,
                )
                if each % 10 == 0:
                    producer.flush(TIMEOUT_S)
        for number, producer in enumerate(producers):
            if (turn + number) % 3 == 0:
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
            else:
                producer.commit_transaction(TIMEOUT_S)
    plain = [Event(number % 2, b"plain", b"p", START_MS) for number in range(20)]
    send(cluster.bootstrap, topic.name, plain)
    producers[0].begin_transaction()
    producers[0].produce(topic.name, b"open", partition=0)
    producers[0].flush(TIMEOUT_S)
    send(cluster.bootstrap, topic.name, plain)
    cluster.producers.append(producers[0])


TRANSACTIONS = TableTopic("transactions", _raw(), _send_transactions, _raw_columns, {"value": None}, partitions=2)


def _marked_events() -> Sequence[Event]:
    headers: list[Sequence[tuple[str, bytes | None]]] = [
        (),
        (("a", b"1"),),
        (("a", b"1"), ("a", None), ("", b""), ("é\U0001f600", b"\xff\0")),
    ]
    keys = (None, b"", b"key", b"\xff\xfe", b"k" * 10_000)
    values = (None, b"", b"value", bytes(range(256)))
    stamps = (0, 1, START_MS, START_MS + 999, 4_102_444_800_000)
    return [
        Event(number % 2, value, key, stamp, header)
        for number, (value, key, stamp, header) in enumerate(itertools.product(values, keys, stamps, headers))
    ]


MARKS = TableTopic(
    "marks",
    _raw(message_timestamp_after_max_ms=str(2**63 - 1)),
    _send_events,
    _raw_columns,
    {"value": None},
    partitions=2,
    events=_marked_events,
)

HUGE = TableTopic(
    "huge",
    _raw(max_message_bytes=str(8 << 20)),
    _send_events,
    _raw_columns,
    {"value": None},
    events=lambda: [
        Event(0, bytes([number]) * (4 << 20 if number % 4 == 0 else 10), None, START_MS) for number in range(9)
    ],
)

COMPACTED = TableTopic(
    "compacted",
    _raw(cleanup_policy="compact", min_cleanable_dirty_ratio="0"),
    _send_events,
    _raw_columns,
    {"value": None},
    events=lambda: [
        Event(0, None if number % 50 == 49 else b"value %d" % number, b"key %d" % (number % 70), START_MS + number)
        for number in range(700)
    ],
)

TOPICS: Final = (FLIGHTS, SMALL, WIDE, HOSTILE, AVRO, PROTOBUF, TRANSACTIONS, MARKS, HUGE, COMPACTED)
