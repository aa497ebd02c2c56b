"""Log compaction: the newest record of each key stays, offsets stay, readers can skip the gaps."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.compaction.cleaning.cleaner import Cleaner, KeyMap
from anabranch.compaction.cleaning.plan import CleanPlan, plan_cleaning
from anabranch.compaction.cleaning.run import plan_cleanings, run_cleaning
from anabranch.compaction.interface import NEVER_MS, BatchInfo, CleaningHooks, CleanPolicy, History, RecordInfo
from anabranch.compaction.service import CompactionService
from anabranch.compaction.settings import CompactionSettings
from anabranch.compaction.throttle import Throttle
from anabranch.protocol.batch import DELETE_HORIZON_MASK, HEADER, HEADER_BYTES, check_crc, parse_batch, write_crc
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record, build_batch, decode_records
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import CompactionCommit
from anabranch.s3stream.errors import CatalogUnavailable
from anabranch.s3stream.model import (
    ObjectInfo,
    ObjectKind,
    ObjectState,
    RangeLocation,
    StreamBatch,
    StreamInfo,
    StreamRange,
)
from anabranch.wal.interface import Buffer
from tests.compaction.sets.test_run import CrashingCalls, CrashingCatalog, ProcessKilled, every_object_is_accounted_for
from tests.support.catalog_node import UploadingNode, uploading_node
from tests.support.memory_store import MemoryStore, let_through

SO, SSO = ObjectKind.SO, ObjectKind.SSO
POLICY = CleanPolicy(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=5_000, delete_retention_ms=1_000)
KV = tuple[bytes | None, bytes | None]


def kafka_batch(
    made: UploadingNode,
    stream: int,
    records: Sequence[KV],
    *,
    compression: Compression = Compression.NONE,
    attributes: int = 0,
    older_ms: int = 0,
) -> StreamBatch:
    """The next batch of a stream, as a partition would append it."""
    base = made.ends[stream]
    made.ends[stream] = base + len(records)
    payload = build_batch(
        [Record(key, value, made.clock.ms - at * older_ms) for at, (key, value) in enumerate(records)],
        base_offset=base,
        leader_epoch=3,
        compression=compression,
        producer_id=7,
        producer_epoch=1,
        base_sequence=base,
        attributes=attributes,
    )
    return StreamBatch(stream, base, made.ends[stream], len(records), made.clock.ms, payload)


async def table(made: UploadingNode, stream: int) -> list[tuple[int, bytes | None, bytes | None]]:
    """Records that a consumer sees, in order. Checks that each batch is where its offsets say."""
    found = []
    for batch in (await made.contents())[stream]:
        check_crc(batch.payload, parse_batch(batch.payload))
        header = parse_batch(batch.payload)
        assert batch.base_offset <= header.base_offset
        assert header.next_offset == batch.end_offset
        records = decode_records(batch.payload)
        assert len(records) == batch.record_count
        assert batch.max_timestamp_ms == header.max_timestamp == max(record.timestamp_ms for record in records)
        found += [(record.offset, record.key, record.value) for record in records]
    assert [each[0] for each in found] == sorted({each[0] for each in found})
    return found


@pytest.fixture
async def some(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        yield made


LIMIT_MS = 1 << 62


def shaped(times: Sequence[int], offsets: Sequence[int], **header: int) -> bytearray:
    """A batch from offset 10 on of two records of a key, with some fields of its header as they should not be."""
    records = [Record(b"k", b"v", time, offset=at) for time, at in zip(times, offsets, strict=True)]
    batch = build_batch(records, base_offset=10)
    HEADER.pack_into(batch, 0, *parse_batch(batch)._replace(last_offset_delta=1, **header))
    write_crc(batch)
    return batch


@pytest.mark.parametrize(
    ("times", "offsets", "header"),
    [
        ((0, 0), (10, 12), {}),
        ((0, 0), (11, 1 << 30), {}),
        ((0, 1), (10, 11), {"base_timestamp": (1 << 63) - 1}),
        ((0, -1), (10, 11), {"base_timestamp": -(1 << 63)}),
        ((0, LIMIT_MS), (10, 11), {}),
        ((0, -LIMIT_MS), (10, 11), {}),
        ((LIMIT_MS, 0), (10, 11), {"attributes": DELETE_HORIZON_MASK}),
    ],
)
def test_a_batch_that_could_not_be_rewritten_is_left_alone(
    times: Sequence[int], offsets: Sequence[int], header: dict[str, int]
) -> None:
    assert KafkaBatches().describe(shaped(times, offsets, **header), 1 << 20) is None


@pytest.mark.parametrize("times", [(LIMIT_MS - 1, 1 - LIMIT_MS), (1 - LIMIT_MS, LIMIT_MS - 1), (-1, 0)])
@pytest.mark.parametrize("horizon_ms", [-1, 0, NEVER_MS, NEVER_MS + 1])
@pytest.mark.parametrize("offsets", [None, {11}])
def test_what_is_not_left_alone_can_be_rewritten(
    times: Sequence[int], horizon_ms: int, offsets: AbstractSet[int] | None
) -> None:
    codec = KafkaBatches()
    batch = shaped(times, (10, 11))
    assert codec.describe(batch, 1 << 20) is not None
    made = codec.rewrite(batch, offsets, horizon_ms)
    wanted = [each for each in decode_records(batch) if offsets is None or each.offset in offsets]
    assert decode_records(made) == wanted
    info = codec.describe(made, 1 << 20)
    assert info is not None, "nor is what was rewritten"
    assert [each.offset for each in info.records] == [each.offset for each in wanted]


def service_for(
    made: UploadingNode, stream: int, *, policy: CleanPolicy = POLICY, keys_bytes: int = 1 << 20
) -> CompactionService:
    settings = CompactionSettings(clean_keys_bytes_max=keys_bytes, read_bytes_max=2_000)
    cleaning = CleaningHooks(KafkaBatches(), lambda: {stream: policy})
    return CompactionService(replace(made.compaction_context(settings), cleaning=cleaning))


class LostAnswers:
    """A catalog that commits compactions, and loses its answers when a test says so."""

    def __init__(self, catalog: Catalog, *, lost: bool) -> None:
        self._catalog = catalog
        self._lost = lost

    def __getattr__(self, name: str) -> object:
        return getattr(self._catalog, name)

    async def commit_compaction(self, commit: CompactionCommit) -> None:
        await self._catalog.commit_compaction(commit)
        if self._lost:
            raise CatalogUnavailable("the answer was lost")


@pytest.mark.parametrize("lost", [False, True])
async def test_who_has_read_the_stream_is_told_how_far_it_was_cleaned_whether_or_not_the_answer_came(
    some: UploadingNode, lost: bool
) -> None:
    (stream,) = await some.start(1)
    batches = [kafka_batch(some, stream, [(b"a", b"%d" % at)]) for at in range(3)]
    await some.upload((SO, batches[:2]), (SO, batches[2:]))
    told: list[tuple[int, int]] = []
    cleaning = CleaningHooks(
        KafkaBatches(), lambda: {stream: POLICY}, on_cleaned=lambda key, end_offset: told.append((key, end_offset))
    )
    catalog = cast("Catalog", LostAnswers(some.catalog, lost=lost))
    node = replace(some.compaction_context(), catalog=catalog, cleaning=cleaning, sleep=lambda _: asyncio.sleep(0))
    (plan,) = await plan_cleanings(node, cleaning, full=True)
    with pytest.raises(CatalogUnavailable) if lost else nullcontext():
        await run_cleaning(node, plan, cleaning, throttle=Throttle(0), under_pressure=lambda: False)
    assert told == [(stream, 3)]
    assert await table(some, stream) == [(2, b"a", b"2")]


async def test_the_newest_record_of_each_key_stays(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    first = kafka_batch(
        some, stream, [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")], compression=Compression.ZSTD, older_ms=5
    )
    second = kafka_batch(some, stream, [(b"a", b"2"), (b"b", b"2")])
    third = kafka_batch(some, stream, [(None, b"no key"), (b"a", b"3")])
    last = kafka_batch(some, stream, [(b"b", b"4"), (b"b", b"5")])
    await some.upload((SO, [first, second]), (SO, [third, last]))
    summary = await service_for(some, stream).run_once()
    assert (summary.streams_cleaned, summary.records_removed, summary.so_after) == (1, 5, 1)
    assert await table(some, stream) == [
        (2, b"c", b"1"),
        (5, None, b"no key"),
        (6, b"a", b"3"),
        (8, b"b", b"5"),
    ]
    batches = (await some.contents())[stream]
    # The batch in the middle is removed, and the next one covers its offsets; the rest of the first keeps its header.
    assert [(batch.base_offset, batch.end_offset) for batch in batches] == [(0, 3), (3, 7), (7, 9)]
    header = parse_batch(batches[0].payload)
    assert (header.base_offset, header.last_offset_delta, header.record_count) == (0, 2, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 0)
    assert (header.compression, header.partition_leader_epoch) == (Compression.ZSTD, 3)
    await every_object_is_accounted_for(some)


async def test_a_second_run_does_nothing_until_enough_is_dirty(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    service = service_for(some, stream)
    await some.upload((SO, [kafka_batch(some, stream, [(b"%d" % at, b"x" * 50)]) for at in range(20)]))
    assert (await service.run_timed()).streams_cleaned == 1
    assert (await service.run_timed()).streams_cleaned == 0
    assert (await service.run_once()).streams_cleaned == 0
    await some.upload((SO, [kafka_batch(some, stream, [(b"1", b"y")])]))
    assert (await service.run_timed()).streams_cleaned == 0
    some.clock.ms += 1
    assert (await service.run_once()).streams_cleaned == 1
    assert len(await table(some, stream)) == 20


async def test_on_demand_data_in_shared_objects_is_cleaned_too(some: UploadingNode) -> None:
    stream, other = await some.start(2)
    for at in range(4):
        await some.upload((SSO, [kafka_batch(some, stream, [(b"k", b"%d" % at)]), some.batch(other, 100)]))
    before = (await some.contents())[other]
    summary = await service_for(some, stream).run_once()
    assert summary.records_removed == 3
    assert await table(some, stream) == [(3, b"k", b"3")]
    assert (await some.contents())[other] == before


async def test_tombstones_go_after_their_time_and_not_before(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    service = service_for(some, stream)
    dead = kafka_batch(some, stream, [(b"a", b"1"), (b"b", b"1"), (b"a", None)])
    await some.upload((SO, [dead, kafka_batch(some, stream, [(b"z", b"1")])]))
    await service.run_once()
    assert [each[1:] for each in await table(some, stream)] == [(b"b", b"1"), (b"a", None), (b"z", b"1")]
    some.clock.ms += 500
    await some.upload((SO, [kafka_batch(some, stream, [(b"y", b"1")])]))
    await service.run_once()
    assert (b"a", None) in [each[1:] for each in await table(some, stream)]
    some.clock.ms += 501
    await some.upload((SO, [kafka_batch(some, stream, [(b"x", b"1")])]))
    await service.run_once()
    assert [each[1] for each in await table(some, stream)] == [b"b", b"z", b"y", b"x"]


async def test_a_tombstone_stays_behind_what_cannot_be_read(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    service = service_for(some, stream)
    inside = kafka_batch(some, stream, [(b"a", b"1")])
    payload = bytearray(inside.payload)
    payload[HEADER_BYTES] = 0xFF
    write_crc(payload)
    dead = kafka_batch(some, stream, [(b"a", None)])
    await some.upload((SO, [inside._replace(payload=payload), dead, kafka_batch(some, stream, [(b"z", b"1")])]))
    for key in (b"y", b"x"):
        await service.run_once()
        some.clock.ms += 1001
        await some.upload((SO, [kafka_batch(some, stream, [(key, b"1")])]))
    await service.run_once()
    batches = (await some.contents())[stream]
    assert [batch.record_count for batch in batches] == [1] * 5, "the value would be back without the tombstone"


async def test_young_data_is_left_alone(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    service = service_for(some, stream, policy=replace(POLICY, lag_ms_min=10_000))
    await some.upload((SO, [kafka_batch(some, stream, [(b"a", b"%d" % at)]) for at in range(5)]))
    some.clock.ms += 9_999
    await some.upload((SO, [kafka_batch(some, stream, [(b"a", b"new")])]))
    assert (await service.run_once()).streams_cleaned == 0
    some.clock.ms += 1
    assert (await service.run_once()).records_removed == 4
    assert await table(some, stream) == [(4, b"a", b"4"), (5, b"a", b"new")]


async def test_more_keys_than_memory_are_cleaned_piece_by_piece(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    service = service_for(some, stream, keys_bytes=200 * 10)
    rng = random.Random(1)
    model: dict[bytes, bytes] = {}
    for at in range(10):
        batches = []
        for _ in range(5):
            records = [
                (b"key-with-a-long-name-%d" % rng.randrange(30), b"%d" % rng.randrange(1 << 30)) for _ in range(3)
            ]
            model |= dict(records)
            batches.append(kafka_batch(some, stream, records))
        await some.upload((SO, batches))
        some.clock.ms += at
    removed = runs = 0
    while (summary := await service.run_once()).streams_cleaned:
        removed += summary.records_removed
        runs += 1
        found = {key: value for _, key, value in await table(some, stream)}
        assert found == model
    assert runs > 3
    assert removed > 30


async def test_any_history_keeps_the_newest_value_of_each_key(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    service = service_for(some, stream, policy=replace(POLICY, delete_retention_ms=2_000))
    rng = random.Random(7)
    model: dict[bytes, bytes | None] = {}
    for _ in range(40):
        batches = []
        for _ in range(rng.randint(1, 4)):
            records: list[tuple[bytes, bytes | None]] = [
                (b"%d" % rng.randrange(12), None if rng.random() < 0.2 else b"%d" % rng.randrange(1 << 20))
                for _ in range(rng.randint(1, 6))
            ]
            model |= dict(records)
            batches.append(
                kafka_batch(some, stream, records, compression=rng.choice([Compression.NONE, Compression.LZ4]))
            )
        await some.upload((rng.choice([SO, SSO]), batches))
        some.clock.ms += rng.randint(0, 1_000)
        await (service.run_once() if rng.random() < 0.3 else service.run_timed())
        found = {key: value for _, key, value in await table(some, stream)}
        assert {k: v for k, v in found.items() if v is not None} == {k: v for k, v in model.items() if v is not None}
        await asyncio.sleep(0)
    assert service.stats.records_removed > 50
    await every_object_is_accounted_for(some)


# the pure half


def located(
    object_id: int, start: int, end: int, *, cleaned: bool = False, size: int = 100, at_ms: int = 0
) -> RangeLocation:
    info = ObjectInfo(object_id, SO, ObjectState.COMMITTED, "s", size, 1, "w", 0, at_ms, at_ms, cleaned)
    return RangeLocation(StreamRange(1, start, end, end - start, size, 0), info)


def planned(
    *objects: RangeLocation, now_ms: int = 0, start: int = 0, stable: int = 1 << 60
) -> tuple[list[int], int] | None:
    info = StreamInfo(1, 1, 1, start, 1 << 60, b"")
    plan = plan_cleaning(info, objects, POLICY, History(stable), now_ms)
    return None if plan is None else ([each.object.object_id for each in plan.objects], plan.dirty_start)


def test_planning() -> None:
    clean, dirty = located(1, 0, 10, cleaned=True), located(2, 10, 20)
    assert planned() is None
    assert planned(clean) is None
    assert planned(clean, dirty) == ([1, 2], 10)
    assert planned(clean, located(2, 10, 20, size=99)) is None
    assert planned(clean, located(2, 10, 20, size=99), now_ms=4_999) is None
    assert planned(clean, located(2, 10, 20, size=99), now_ms=5_000) == ([1, 2], 10)
    assert planned(clean, now_ms=5_000) is None
    assert planned(dirty, start=10) == ([2], 10)
    # Cleaned data after dirty data counts as dirty; a gap ends the run.
    assert planned(located(1, 0, 10), located(2, 10, 20, cleaned=True)) == ([1, 2], 0)
    assert planned(located(1, 0, 10), located(2, 11, 20)) == ([1], 0)
    # Nothing past the last stable offset, and nothing while the stream's first data is not in a stream object.
    assert planned(located(1, 0, 10), located(2, 10, 20), stable=19) == ([1], 0)
    assert planned(located(1, 0, 10), stable=9) is None
    assert planned(located(1, 1, 10)) is None
    assert planned(located(1, 1, 10), start=1) == ([1], 1)


def test_the_key_map_is_bounded() -> None:
    newest = KeyMap(400)
    batches = [StreamBatch(1, at, at + 1, 1, 0, b"") for at in range(4)]
    assert newest.add(batches[0], BatchInfo([RecordInfo(0, b"a", False, 0)], 0))
    assert newest.add(batches[1], BatchInfo([RecordInfo(1, b"b" * 100, False, 0)], 1))
    assert newest.add(batches[2], BatchInfo([RecordInfo(2, None, False, 0)], 2))
    assert not newest.add(batches[3], BatchInfo([RecordInfo(3, b"c", False, 0)], 3))
    assert newest.end_offset == 3
    assert not newest.is_newest(RecordInfo(0, b"b" * 100, False, 0))
    assert newest.is_newest(RecordInfo(1, b"b" * 100, False, 0))
    assert newest.is_newest(RecordInfo(0, None, False, 0))


def test_offsets_far_apart_are_covered() -> None:
    far = 1 << 40
    batches = [
        StreamBatch(1, 0, 10, 1, 0, b"0"),
        StreamBatch(1, 10, far, 1, 0, b"1"),
        StreamBatch(1, far, far + 1, 1, 0, b"2"),
    ]

    class Codec:
        def describe(self, payload: Buffer, bytes_max: int = 0) -> BatchInfo:
            at = int(bytes(payload))
            return BatchInfo([RecordInfo(batches[at].base_offset, b"k", False, 0)], batches[at].end_offset - 1)

        def rewrite(self, payload: Buffer, offsets: AbstractSet[int] | None, delete_horizon_ms: int) -> Buffer:
            raise AssertionError("no batch is cut")

    codec = Codec()
    newest = KeyMap(1 << 20)
    for batch in batches:
        newest.add(batch, codec.describe(batch.payload))
    plan = CleanPlan(1, 0, [located(1, 0, far + 1)], 0, POLICY, History(far + 1))
    cleaner = Cleaner(plan, newest, codec, end_offset=far + 1, now_ms=0)
    assert [cleaner.clean(batch, codec.describe(batch.payload)) for batch in batches] == [
        None,
        None,
        batches[2]._replace(base_offset=0),
    ]


@pytest.mark.slow
async def test_a_crash_at_any_step_loses_no_key(tmp_path: Path) -> None:
    """At each call to store or catalog; the next run finishes the work."""
    crash_at = 1
    finished = False
    while not finished:
        async with uploading_node(f"sqlite:///{tmp_path}/catalog-{crash_at}.db") as made:
            (stream,) = await made.start(1)
            for at in range(3):
                await made.upload((SO, [kafka_batch(made, stream, [(b"a", b"%d" % at), (b"b%d" % at, b"x")])]))
            newest = {b"a": b"2", b"b0": b"x", b"b1": b"x", b"b2": b"x"}
            steps = CrashingCalls(crash_at)
            store = made.store
            assert isinstance(store, MemoryStore)
            store.hook = steps.hook
            policies = {stream: POLICY}
            cleaning = CleaningHooks(KafkaBatches(), policies.copy)
            catalog = cast("Catalog", CrashingCatalog(made.catalog, steps))
            node = replace(made.compaction_context(), catalog=catalog, cleaning=cleaning)
            try:
                await CompactionService(node).run_once()
                finished = True
            except (ProcessKilled, BaseExceptionGroup):
                pass
            store.hook = let_through
            assert {key: value for _, key, value in await table(made, stream)} == newest
            await every_object_is_accounted_for(made)
            await service_for(made, stream).run_once()
            assert [key for _, key, _ in await table(made, stream)] == [b"b0", b"b1", b"a", b"b2"]
            await every_object_is_accounted_for(made)
        crash_at += 1
    assert crash_at > 20
