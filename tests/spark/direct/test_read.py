"""Tasks whose plan is outdated, and reads from topics that share objects."""

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.model import object_key
from anabranch.s3stream.store.local import LocalStore
from anabranch.spark.direct.offsets import OpenedStorage, find_partitions, find_slices
from anabranch.spark.direct.options import parse_options
from anabranch.spark.direct.plan import INT64_MAX, ReadTask
from anabranch.spark.direct.read import ObjectGoneError, read_task
from anabranch.spark.storage import StorageLocation
from anabranch.tables.blocks import COLUMN_TYPES
from tests.spark.kafka_objects import KafkaObjects, kafka_objects
from tests.support.catalog_node import CLUSTER
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in ("topic", "partition", "offset", "value")])
OBJECTS = 10
"""More than a task has under way at once."""


@pytest.fixture
def filled(tmp_path: Path) -> Iterable[KafkaObjects]:
    with kafka_objects(tmp_path / "storage") as made:
        made.upload(list(asyncio.run(made.made.start(2))), objects=OBJECTS)
        yield made


def plan(filled: KafkaObjects, topics: str = "t") -> ReadTask:
    """Everything in one task."""

    async def find() -> ReadTask:
        options = parse_options({"subscribe": topics})
        storage = OpenedStorage(filled.made.catalog, {"local": filled.made.store}, CLUSTER)
        states = await find_partitions(storage, options)
        bounds = {each: (state.start_offset, state.end_offset) for each, state in states.items()}
        wanted, slices = await find_slices(storage, states, bounds, options=options, timestamp_ms_min=-INT64_MAX)
        return ReadTask(slices, dict(enumerate(wanted)))

    return asyncio.run(find())


def rows(batches: Iterable[pa.RecordBatch]) -> list[tuple[str, int, int, bytes]]:
    found = [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]
    return sorted(found)


def read(location: StorageLocation, task: ReadTask) -> Iterable[pa.RecordBatch]:
    return read_task(location, task, SCHEMA, timestamp_ms_min=-INT64_MAX)


def compact(filled: KafkaObjects) -> None:
    """Replace all objects, and delete the replaced ones."""
    assert not asyncio.run(filled.made.service().run_once()).errors
    filled.made.clock.ms += 24 * 3_600_000
    collector = GarbageCollector(
        catalog=filled.made.catalog,
        stores={"local": filled.made.store},
        cluster=CLUSTER,
        now_ms=filled.made.clock.now_ms,
    )
    asyncio.run(collector.collect())


def expected(filled: KafkaObjects, topic: str = "t") -> list[tuple[str, int, int, bytes]]:
    return [
        (topic, partition, offset, (b"%d-%d-" % (partition + 1, offset)).ljust(1000, b"x"))
        for partition in range(2)
        for offset in range(filled.made.ends[partition + 1])
    ]


def test_a_task_reads_what_was_planned(filled: KafkaObjects) -> None:
    assert rows(read(filled.location, plan(filled))) == expected(filled)


def test_objects_that_are_gone_are_found_where_they_lie_now(filled: KafkaObjects) -> None:
    task = plan(filled)
    compact(filled)
    assert rows(read(filled.location, task)) == expected(filled)


def test_what_was_read_before_its_object_went_is_not_read_twice(filled: KafkaObjects) -> None:
    task = plan(filled)
    batches = iter(read(filled.location, task))
    first = next(batches)
    compact(filled)
    assert rows([first, *batches]) == expected(filled)


def test_without_a_catalog_the_task_fails_and_says_what_to_do(filled: KafkaObjects, tmp_path: Path) -> None:
    task = plan(filled)
    compact(filled)
    location = replace(filled.location, catalog_url=f"sqlite:///{tmp_path}/nowhere/catalog.db")
    with pytest.raises(ObjectGoneError, match="run the query again"):
        rows(read(location, task))
    assert rows(read(location, plan(filled))) == expected(filled), "planned afresh, it needs no catalog"


def test_what_expired_meanwhile_is_named(filled: KafkaObjects) -> None:
    task = plan(filled)
    asyncio.run(filled.made.trim(1, 25))
    compact(filled)
    with pytest.raises(ObjectGoneError, match=r"topic t partition 0: offsets \[0, .* expired"):
        rows(read(filled.location, task))


def test_a_topic_and_its_clone_share_blocks(filled: KafkaObjects) -> None:
    asyncio.run(filled.made.clone())
    clone = [("clone", *row[1:]) for row in expected(filled)]
    assert rows(read(filled.location, plan(filled, "t,clone"))) == [*clone, *expected(filled)]


def test_the_next_reads_are_under_way_while_records_are_taken(
    filled: KafkaObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = plan(filled)
    keys: list[str] = []
    get = LocalStore.get

    async def noted(self: LocalStore, key: str, start: int, end: int) -> memoryview:
        keys.append(key)
        return await get(self, key, start, end)

    monkeypatch.setattr(LocalStore, "get", noted)
    size = max((filled.objects / object_key(CLUSTER, part.object_id)).stat().st_size for part in task.slices)
    monkeypatch.setattr("anabranch.spark.direct.read.AHEAD_BYTES_MAX", 3 * size)

    def has_begun(number: int) -> bool:
        return len(keys) >= number

    batches = iter(read(filled.location, task))
    for taken in range(1, 4):
        next(batches)
        wait_until(partial(has_begun, taken + 2), "two more reads have begun")
        assert len(keys) <= taken + 4, "memory is bounded"
    del batches
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("anabranch")]


def test_a_damaged_block_is_refused(filled: KafkaObjects) -> None:
    task = plan(filled)
    path = filled.objects / object_key(CLUSTER, task.slices[3].object_id)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptObject, match="CRC32C"):
        rows(read(filled.location, task))
