"""Tables with keys: what a topic's records, and envelopes of Debezium, make of their rows, in both formats."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from spark.pipeline.settings import PipelineSettings
from spark.pipeline.tables import LakehouseTable, open_tables
from tests.spark.pipeline.support import JANUARY_MS, forget_last_commit, make_pipeline, run
from tests.support.events import Event, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.slow]

FORMATS = pytest.mark.parametrize("table_format", ["iceberg", "delta"])


def change(key: str | None, n: int | None, *, partition: int | None = None, at: int = 0) -> Event:
    """A record of a key: its value, or its deletion. A key stays in its partition unless told otherwise."""
    place = sum((key or "").encode()) % 3 if partition is None else partition
    value = None if n is None else json.dumps({"n": n, "name": f"x{n}"}).encode()
    return Event(place, value, None if key is None else key.encode(), JANUARY_MS + at)


def keyed(servers: str, folder: Path, topic: str, table_format: str, **sections: Any) -> PipelineSettings:
    table = {"mode": "upsert", **sections.pop("table", {})}
    return make_pipeline(servers, folder, topic, table_format, table=table, key={"format": "text"}, **sections)


def rows(table: LakehouseTable) -> dict[Any, Any]:
    """Number of each key. Fails if a key has two rows."""
    found = table.read().select("key", "data.n").collect()
    values = {row["key"]: row["n"] for row in found}
    assert len(values) == len(found)
    return values


def errors(table: LakehouseTable) -> list[str]:
    return sorted(row["error"] for row in table.read().collect())


def folded(events: Iterable[Event]) -> Mapping[str, int]:
    """The newest number of each key, without those that were deleted."""
    state: dict[str, int] = {}
    for event in events:
        assert event.key is not None
        if event.value is None:
            state.pop(event.key.decode(), None)
        else:
            state[event.key.decode()] = json.loads(event.value)["n"]
    return state


@FORMATS
def test_each_key_has_the_row_of_its_newest_record(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = keyed(servers, tmp_path, topic, table_format)
    first = [change(f"k{n % 10}", n) for n in range(40)]
    send(servers, topic, [*first, change("k3", None), change(None, 99)])
    run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    assert rows(table) == folded([*first, change("k3", None)])
    assert errors(dead_letters) == ["key: missing, so the record belongs to no row"]
    # A key that comes back, one that goes, one that is new, and one that comes and goes within the micro-batch.
    second = [change("k3", 103), change("k4", None), change("new", 104), change("short", 105), change("short", None)]
    send(servers, topic, second)
    last = run(spark, pipeline)
    wanted = folded([*first, change("k3", None), *second])
    assert rows(table) == wanted
    # A driver that died after the table's commit repeats the micro-batch.
    forget_last_commit(Path(pipeline.checkpoint))
    run(spark, pipeline)
    assert rows(table) == wanted
    assert table.committed(last.query.id) == 1
    assert len(errors(dead_letters)) == 1


@FORMATS
def test_a_micro_batch_without_a_good_record_is_a_commit_too(
    spark: SparkSession, servers: str, topic: str, tmp_path: Path, table_format: str
) -> None:
    pipeline = keyed(servers, tmp_path, topic, table_format)
    send(servers, topic, [change(None, 1), Event(0, b"not JSON", b"k")])
    running = run(spark, pipeline)
    table, dead_letters = open_tables(spark, pipeline)
    assert rows(table) == {}
    assert errors(dead_letters) == [
        "key: missing, so the record belongs to no row",
        "not JSON at character 0: expecting value",
    ]
    assert table.committed(running.query.id) == 0
