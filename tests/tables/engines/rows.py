"""Rows in one form, whatever read them: plain values of Python, times in microseconds, maps as dictionaries."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tests.support.events import QUIET, TIMEOUT_S
from tests.tables.engines.topics import TableTopic

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Row = Mapping[str, Any]


class Read(NamedTuple):
    """A record as a consumer reads it."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Committed(NamedTuple):
    """Records of a topic that a READ_COMMITTED consumer shows."""

    records: Sequence[Read]
    """By partition and offset."""
    ends: Mapping[int, int]
    """Offset behind the last one that it may read, by partition."""


def committed_records(bootstrap: str, topic: str, partitions: int) -> Committed:
    """Return what a READ_COMMITTED consumer shows of a topic now."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False,
        "isolation.level": "read_committed", "enable.partition.eof": True, **QUIET,
    })  # fmt: skip
    found: list[Read] = []
    ends: dict[int, int] = {}
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        while len(ends) < partitions:
            message: Any = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no answer for some partitions of {topic}: {ends}"
            if error := message.error():
                if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - public in spite of its name
                    raise KafkaException(error)
                ends[message.partition()] = message.offset()
                continue
            kind, stamp = message.timestamp()
            assert kind != TIMESTAMP_NOT_AVAILABLE
            found.append(
                Read(
                    message.partition(),
                    message.offset(),
                    stamp,
                    kind - 1,
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                )
            )
    finally:
        consumer.close()
    return Committed(sorted(found, key=lambda record: record[:2]), ends)


def expected_rows(topic: TableTopic, records: Sequence[Read]) -> list[Row]:
    """Return the rows that records must be."""
    return [canonical(_row(topic, record)) for record in records]


def _row(topic: TableTopic, record: Read) -> Row:
    columns = None if record.value is None else topic.expected(record.value)
    failed = record.value is not None and columns is None
    kafka = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms * 1000,
        "timestamp_type": record.timestamp_type,
        "key": None if record.key is None else topic.key(record.key),
        "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        "error": failed,
        "value_raw": record.value if failed else None,
    }
    return {**topic.nothing, **(columns or {}), "_kafka": kafka}


def engine_rows(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the rows that an engine has read, by partition and offset, in the same form."""
    found = []
    for row in map(canonical, rows):
        kafka = dict(row["_kafka"])
        assert kafka["error"] != "", "an error has a reason"
        kafka["error"] = kafka["error"] is not None
        assert kafka.pop("key_raw", None) is None
        found.append({**row, "_kafka": kafka})
    return sorted(found, key=lambda row: (row["_kafka"]["partition"], row["_kafka"]["offset"]))


def canonical(value: Any) -> Any:
    """Return a value in the one form."""
    if isinstance(value, Mapping):
        return {str(name): canonical(each) for name, each in value.items()} or []  # an empty map is an empty list, too
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list | tuple):
        items = [canonical(each) for each in value]
        is_map = bool(items) and all(isinstance(each, tuple) and len(each) == 2 for each in value)
        return dict(items) if is_map else items
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (aware - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, date):
        return value.toordinal() - EPOCH.toordinal()
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    assert not isinstance(value, time)
    return value


def same(found: Sequence[Row], expected: Sequence[Row]) -> str:
    """Return the first difference in words; empty: none."""
    for at, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        if ours != theirs:
            where = {name: theirs["_kafka"][name] for name in ("partition", "offset")}
            names = [name for name in {**ours, **theirs} if ours.get(name, ...) != theirs.get(name, ...)]
            shown = {name: (_short(ours.get(name, ...)), _short(theirs.get(name, ...))) for name in names}
            return f"row {at} {where}: found and expected differ in {shown}"
    return "" if len(found) == len(expected) else f"{len(found)} rows, {len(expected)} expected"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:150]} ... {text[-100:]}"
