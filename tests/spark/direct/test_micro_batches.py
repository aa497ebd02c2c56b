"""Micro-batches give each record exactly once, whatever happens between them. The tests take Spark's part.

Spark stores the end offsets of each batch of a query, and the batches that are done. After a crash, a new reader reads
the unfinished batch again, over the same offsets. The first batch has no stored start.
"""

import asyncio
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.model import RangeLocation
from anabranch.spark.checkpoint_format import JsonOffsets
from anabranch.spark.direct import offsets
from anabranch.spark.direct.offsets import OpenedStorage, TopicPartition, check_bounds, find_partitions, find_slices
from anabranch.spark.direct.options import DataLossError, parse_options
from anabranch.spark.direct.plan import ObjectSlice
from anabranch.spark.direct.readers import StreamSourceReader, from_json
from tests.spark.kafka_objects import KafkaObjects, kafka_objects
from tests.support.catalog_node import CLUSTER, NODE_ID, delete_topic

SCHEMA = StructType([StructField("partition", IntegerType()), StructField("offset", LongType())])
Row = tuple[int, int]


class Query:
    """A query as Spark runs it, 4.1 or one with limits (`asks_start`), its checkpoint, and its sink."""

    def __init__(self, filled: KafkaObjects, *, asks_start: bool = False, **options: str) -> None:
        self._location = filled.location
        self._options = {"subscribe": "t", **options}
        self._asks_start = asks_start
        self.ends: list[str] = []
        self.done = 0
        self.sink: dict[int, list[Row]] = {}
        self.reader = self._begin()

    def _begin(self) -> StreamSourceReader:
        return StreamSourceReader(self._location, parse_options(self._options, streaming=True), SCHEMA, 2)

    def restart(self) -> None:
        """Replace the reader by a new one, as after a crash."""
        self.reader.stop()
        self.reader = self._begin()

    def plan(self) -> bool:
        """Note where the next batch ends; False when nothing is new."""
        if len(self.ends) > self.done:
            return True
        if self._asks_start:
            start = json.loads(self.ends[-1]) if self.ends else self.reader.initialOffset()
            end = json.dumps(self.reader.latestOffset(start, None))
        else:
            end = json.dumps(self.reader.latestOffset())
        if self.ends and self.ends[-1] == end:
            return False
        self.ends.append(end)
        return True

    def run(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Plan the tasks of the batch noted last, and write their rows; a repeated batch must have the same rows."""
        start = json.loads(self.ends[self.done - 1]) if self.done else self.reader.initialOffset()
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, json.loads(self.ends[self.done]))))
        meanwhile()
        worker: StreamSourceReader = pickle.loads(pickle.dumps(self.reader))
        columns = [batch.to_pydict() for task in tasks for batch in worker.read(task)]
        rows = sorted(row for each in columns for row in zip(each["partition"], each["offset"], strict=True))
        assert self.sink.setdefault(self.done, rows) == rows

    def catch_up(self) -> None:
        """Run batches until no new data is left."""
        while self.plan():
            self.run()
            self.done += 1

    @property
    def rows(self) -> Counter[Row]:
        return Counter(row for rows in self.sink.values() for row in rows)


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[KafkaObjects]:
    with kafka_objects(tmp_path / "storage") as made:
        made.upload(list(asyncio.run(made.made.start(2))), objects=3)
        yield made


Start = Callable[..., Query]


@pytest.fixture
def start(filled: KafkaObjects) -> Iterator[Start]:
    """Starts queries, which end with the test."""
    queries: list[Query] = []

    def begin(*, asks_start: bool = False, **options: str) -> Query:
        queries.append(Query(filled, asks_start=asks_start, **options))
        return queries[-1]

    yield begin
    for query in queries:
        query.reader.stop()


def compact(filled: KafkaObjects) -> None:
    """Replace objects, and delete the replaced ones."""
    assert not asyncio.run(filled.made.service().run_once()).errors
    filled.made.clock.ms += 24 * 3_600_000
    collector = GarbageCollector(
        catalog=filled.made.catalog,
        stores={"local": filled.made.store},
        cluster=CLUSTER,
        now_ms=filled.made.clock.now_ms,
    )
    asyncio.run(collector.collect())


def add_partition(filled: KafkaObjects) -> None:
    async def add() -> None:
        there = await filled.made.find_topic("t")
        total = len(there.partitions) + 1
        topic = await filled.made.catalog.add_partitions(there.topic_id, total, leader=NODE_ID)
        await filled.made.open_streams([topic.partitions[-1].stream_id])

    asyncio.run(add())


def all_rows(filled: KafkaObjects, since: JsonOffsets | None = None) -> Counter[Row]:
    """Each record there is once, from some offsets on."""
    topic = asyncio.run(filled.made.find_topic("t"))
    first = from_json(since or {})
    return Counter(
        (each.index, offset)
        for each in topic.partitions
        for offset in range(first.get(TopicPartition("t", each.index), 0), filled.made.ends[each.stream_id])
    )


@pytest.mark.parametrize("asks_start", [False, True])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
@pytest.mark.parametrize("seed", range(2))
def test_each_record_once_through_crashes_new_data_new_partitions_and_compaction(
    filled: KafkaObjects, start: Start, seed: int, starting: str, asks_start: bool
) -> None:
    rng = random.Random(seed)
    query = start(asks_start=asks_start, startingOffsets=starting)
    begun: JsonOffsets | None = None

    def upload() -> None:
        filled.upload(sorted(filled.made.stream_epochs), objects=1, value_bytes=50)

    def change() -> None:
        rng.choice([upload, upload, lambda: compact(filled), lambda: add_partition(filled), query.restart])()

    for _ in range(6):
        change()
        if query.plan():
            if starting == "latest" and begun is None:
                begun = json.loads(query.ends[0])
            change()
            query.run(rng.choice([upload, lambda: compact(filled)]))
            change()
            # The sink has the rows, but the driver died before it recorded that: the batch is repeated.
            query.done += rng.random() < 0.5
    query.catch_up()
    assert query.rows == all_rows(filled, begun)


def test_a_first_batch_that_is_repeated_leaves_nothing_out(filled: KafkaObjects, start: Start) -> None:
    query = start(asks_start=True, startingOffsets="latest")
    began = query.reader.initialOffset()
    filled.upload([1, 2], objects=1)
    query.ends.append(json.dumps(query.reader.latestOffset(began, None)))
    filled.upload([1, 2], objects=1)
    query.restart()
    query.catch_up()
    assert query.rows == all_rows(filled, began)
    assert len(query.rows) == 80


def make_anew(filled: KafkaObjects, objects: int) -> None:
    async def replace() -> list[int]:
        catalog = filled.made.catalog
        await delete_topic(catalog, "t", now_ms=filled.made.clock.ms, delete_after_ms=filled.made.clock.ms)
        filled.made.stream_epochs.clear()
        made = await catalog.create_topic("t", b"2" * 16, partitions=2, configs={}, leader=NODE_ID, internal=False)
        ids = [partition.stream_id for partition in made.partitions]
        await filled.made.open_streams(ids)
        return ids

    filled.upload(asyncio.run(replace()), objects=objects)


@pytest.mark.parametrize("when", ["before planning", "after planning"])
def test_a_topic_that_is_made_anew_and_longer_than_before_is_data_loss(
    filled: KafkaObjects, start: Start, when: str
) -> None:
    strict = start(startingOffsets="earliest")
    lenient = start(startingOffsets="earliest", failOnDataLoss="false")
    for query in (strict, lenient):
        query.catch_up()
    filled.upload([1, 2], objects=1)
    if when == "after planning":
        assert strict.plan()
        assert lenient.plan()
    make_anew(filled, objects=6)
    for query in (strict, lenient):
        query.restart()
    assert strict.plan()
    with pytest.raises(DataLossError, match="topic t was deleted and made anew"):
        strict.run()
    seen = lenient.rows
    lenient.catch_up()
    assert lenient.rows - seen == all_rows(filled), "the new one, all of it"


def test_a_new_partition_whose_first_records_expired_before_they_were_read_is_data_loss(
    filled: KafkaObjects, start: Start
) -> None:
    query = start(startingOffsets="earliest")
    query.catch_up()
    add_partition(filled)
    filled.upload([3], objects=2)
    asyncio.run(filled.made.trim(3, 25))
    assert query.plan()
    with pytest.raises(DataLossError, match="partition 2: it begins at offset 25, wanted from 0"):
        query.run()


def test_a_checkpoint_of_the_kafka_source_is_continued_and_not_turned_back(filled: KafkaObjects, start: Start) -> None:
    query = start(startingOffsets="earliest")
    query.catch_up()
    ends = json.loads(query.ends[-1])
    (offset, topic) = ends["t"]["0"], {key: value for key, value in ends["t"].items() if key != "id"}
    query.ends[-1] = json.dumps({"t": topic})
    filled.upload([1], objects=1)
    query.catch_up()
    # The Kafka source was ahead of the objects when this micro-batch was noted, and they have caught up since.
    query.ends[-1] = json.dumps({"t": {**topic, "0": filled.made.ends[1]}})
    query.ends.append(json.dumps({"t": {**ends["t"], "0": offset}}))
    query.done = len(query.ends) - 1
    with pytest.raises(DataLossError, match=f"begins at offset {filled.made.ends[1]}, where .* ends at {offset};"):
        query.run()
    query.ends[-2] = json.dumps({"t": {**topic, "0": filled.made.ends[1] + 1}})
    with pytest.raises(DataLossError, match="the checkpoint, of the Kafka source, is at offset"):
        query.run()


class Meddled:
    """A catalog in which something happens after the first answer."""

    def __init__(self, filled: KafkaObjects, happens: Callable[[], object]) -> None:
        self._catalog = filled.made.catalog
        self._happens: Callable[[], object] | None = happens

    async def find_ranges(self, stream_id: int, start: int, end: int, *, limit: int) -> Sequence[RangeLocation]:
        found = await self._catalog.find_ranges(stream_id, start, end, limit=limit)
        happens, self._happens = self._happens, None
        if happens is not None:
            await asyncio.to_thread(happens)
        return found


def test_ranges_that_compaction_joins_between_two_pages_are_read_once(
    filled: KafkaObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets, "RANGES_PAGE", 2)
    pieces = asyncio.run(plan_meddled(filled, lambda: compact(filled)))
    spans = sorted((piece.start_offset, piece.end_offset) for piece in pieces)
    assert len(spans) > 1
    assert (spans[0][0], spans[-1][1]) == (0, filled.made.ends[1])
    assert all(one[1] == next_[0] for one, next_ in pairwise(spans))


def test_what_expires_while_it_is_planned_is_data_loss(filled: KafkaObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets, "RANGES_PAGE", 1)
    with pytest.raises(DataLossError, match=r"partition 0: offset 20 of \[0, 60\) is in no object any more"):
        asyncio.run(plan_meddled(filled, lambda: asyncio.run(filled.made.trim(1, 45))))
    pieces = asyncio.run(plan_meddled(filled, lambda: None, failOnDataLoss="false"))
    assert sum(piece.end_offset - piece.start_offset for piece in pieces) == 15


async def plan_meddled(filled: KafkaObjects, happens: Callable[[], object], **options: str) -> list[ObjectSlice]:
    """The pieces of partition 0."""
    chosen = parse_options({"assign": '{"t": [0]}', **options})
    storage = OpenedStorage(filled.made.catalog, {"local": filled.made.store}, CLUSTER)
    states = await find_partitions(storage, chosen)
    bounds = check_bounds(
        states,
        {each: state.start_offset for each, state in states.items()},
        {each: state.end_offset for each, state in states.items()},
        fail_on_data_loss=True,
    )
    meddled = OpenedStorage(Meddled(filled, happens), storage.stores, CLUSTER)  # type: ignore[arg-type]  # what is asked of it
    _, pieces = await find_slices(meddled, states, bounds, options=chosen, timestamp_ms_min=0)
    return pieces
