"""Records for tables of topics, made once as batches, and sent to partitions as often as wanted."""

import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.connection import Connection
from anabranch.protocol.compression import Compression
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.records import Record, build_batch
from benchmarks.lab.tables.node import TIMEOUT_S, TableNode
from benchmarks.table_columns import KINDS, filled, schema_of, small, wide

BATCH_BYTES = 16 << 10
"""Bytes of the values of a batch, before compression: the default of producers."""
KEYS = 9_999


@dataclass(frozen=True)
class Kind:
    """A kind of records: values that follow each other, and the JSON Schema of all of them."""

    name: str
    values: Sequence[bytes]
    schema: bytes
    """Empty: they are not JSON."""

    @property
    def value_bytes(self) -> float:
        """Mean size of a value."""
        return sum(map(len, self.values)) / len(self.values)

    def configs(self, *, typed: bool) -> Mapping[str, str]:
        """Return the configs of a topic whose table has the values as columns, or as bytes."""
        form = {"table.value": "json", "table.value.schema": self.schema.decode()} if typed else {}
        return {"table.enable": "true", **form}


def small_kind(count: int, size: int = 174) -> Kind:
    """Return records of a shop, with eight fields."""
    return _sized("small", small(random.Random(7)), count, size)


def wide_kind(count: int, size: int = 738) -> Kind:
    """Return records with 32 fields."""
    return _sized("wide", wide(random.Random(7)), count, size)


def kib_kind(count: int) -> Kind:
    """Return records of 1 KiB with 33 fields, the last of which is text that compresses to a half."""
    dice = random.Random(7)
    documents = list(itertools.islice(wide(dice), count))
    values = []
    for document in documents:
        text = {**document, "text": dice.randbytes(200).hex()}
        values.append(filled(text, 1024))
    return Kind("1 KiB", values, schema_of({**documents[0], "text": "", "note": ""}))


def _sized(name: str, documents: Iterator[dict[str, Any]], count: int, size: int) -> Kind:
    some = list(itertools.islice(documents, count))
    return Kind(name, [filled(each, size) for each in some], schema_of({**some[0], "note": ""}))


def json_kind(name: str, values: Sequence[bytes]) -> Kind:
    """Return a kind of JSON objects, whose schema is made from all of them."""
    kinds: dict[str, set[type]] = {}
    for value in values:
        for field, found in json.loads(value).items():
            kinds.setdefault(field, set()).add(type(found))
    properties = {field: KINDS[_widest(found - {type(None)})] for field, found in kinds.items()}
    return Kind(name, values, json.dumps({"type": "object", "properties": properties}).encode())


def _widest(found: set[type]) -> type:
    if found and found <= {int, float}:
        return float if float in found else int
    return found.pop() if len(found) == 1 else str


def batches_of(values: Iterable[bytes], codec: Compression = Compression.LZ4) -> list[bytes]:
    """Return values as batches with the present time, each record with a key."""
    now_ms = time.time_ns() // 1_000_000
    batches, some, size = [], [], 0
    for number, value in enumerate(values):
        some.append(Record(b"k%05d" % (number % KEYS), value, now_ms))
        size += len(value)
        if size >= BATCH_BYTES:
            batches.append(bytes(build_batch(some, compression=codec)))
            some, size = [], 0
    if some:
        batches.append(bytes(build_batch(some, compression=codec)))
    return batches


class Sender:
    """A connection that sends batches to partitions of a topic, and waits until they are acknowledged."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        (found,) = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=topic)])).topics
        self._name, self._id = topic, found.topic_id

    def send(self, batches: Mapping[int, bytes]) -> dict[int, int]:
        """Send a batch to each of some partitions. Returns its offset by partition."""
        data = [PartitionProduceData(index=idx, records=batch) for idx, batch in batches.items()]
        topics = [TopicProduceData(name=self._name, topic_id=self._id, partition_data=data)]
        answer = self._connection.call(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics))
        results = answer.responses[0].partition_responses
        assert not any(each.error_code for each in results), answer
        return {each.index: each.base_offset for each in results}


def fill(node: TableNode, topic: str, batches: Sequence[bytes], partitions: int) -> None:
    """Send the batches to each partition, and wait until they are in objects."""
    with node.connect() as connection:
        sender = Sender(connection, topic)
        for batch in batches:
            sender.send(dict.fromkeys(range(partitions), batch))
    ends = node.ends(topic)
    wait(lambda: node.pointer.committed(topic) == ends, f"{topic}: its records are not in objects")


def enable(node: TableNode, topic: str, configs: Mapping[str, str]) -> None:
    """Let a topic become a table, wait until it has all rows, and let it rest."""
    ends = node.ends(topic)
    node.set_configs(topic, configs)
    wait(lambda: node.pointer.table_ends(topic) == ends, f"{topic}: its table is not complete", timeout_s=300)
    node.set_configs(topic, {"table.enable": "false"})


def wait(is_done: Callable[[], bool], reason: str, *, timeout_s: float = TIMEOUT_S, pause_s: float = 0.05) -> None:
    """Wait until something is done. Raises RuntimeError."""
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{reason} after {timeout_s:.0f} s")
        time.sleep(pause_s)
