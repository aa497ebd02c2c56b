"""Reads from objects: borders, sharing, staleness, read-ahead, and the number of GETs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import (
    CatalogUnavailable,
    CorruptObject,
    Discontinuity,
    ObjectNotFound,
    OffsetOutOfRange,
    StorageError,
    StorageStopped,
    StoreError,
    StreamNotFound,
)
from anabranch.s3stream.model import ObjectKind, RangeLocation, StreamBatch, object_key
from anabranch.s3stream.object.reader import decode_index
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.s3stream.read.cold_read import ColdReader
from anabranch.s3stream.read.loader import LOCATIONS_PER_LOOKUP
from anabranch.s3stream.settings import StorageSettings
from tests.support.catalog_node import CLUSTER, delete_topic
from tests.support.memory_store import MemoryStore
from tests.support.storage import SMALL, EngineCluster, fill, make_batch, memory_cluster, read_all, same
from tests.support.virtual_time import run_virtual

READER: ContextVar[str] = ContextVar("reader")
NO_CACHE = replace(SMALL, log_cache_bytes=1, upload_threshold_bytes=1 << 20)


@asynccontextmanager
async def cold_stream(
    tmp_path: Path, batches: int, storage: StorageSettings = NO_CACHE
) -> AsyncIterator[tuple[EngineCluster, S3Stream, Stream, list[StreamBatch]]]:
    """A stream whose data is in one object and not in the log cache."""
    async with memory_cluster(tmp_path, storage, wal_bytes=32 << 20) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, batches)
            await engine.flush()
            assert engine.log_cache_bytes == 0
            yield cluster, engine, stream, sent


async def test_one_read_of_a_run_is_one_get_and_its_index_another(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 40, replace(NO_CACHE, read_split_bytes_min=1 << 20)) as (
        cluster,
        engine,
        stream,
        sent,
    ):
        result = await stream.read(0, 1 << 20)
        assert same(result.batches, sent)
        assert cluster.store.calls.get == 2
        assert (engine.stats.gets, engine.stats.index_reads, engine.stats.location_lookups) == (1, 1, 1)
        again = await stream.read(100, 5000)
        assert same(again.batches, sent[10:15])
        assert cluster.store.calls.get == 2
        assert engine.stats.block_cache_hits > 0


async def test_a_run_is_split_over_idle_connections(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 40) as (_, engine, stream, sent):
        assert same((await stream.read(0, 1 << 20)).batches, sent)
        assert engine.stats.gets > 2


async def test_bytes_max_bounds_the_answer_but_for_its_first_batch(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (_, _engine, stream, sent):
        assert same((await stream.read(0, 1)).batches, sent[:1])
        assert same((await stream.read(0, 2500)).batches, sent[:2])
        assert same((await stream.read(15, 2000)).batches, sent[1:3])
        assert same((await stream.read(0, 1 << 20, end_offset=50)).batches, sent[:5])
        assert await stream.read(200, 1000) == ((), 200)
        for offset in (-1, 201):
            with pytest.raises(OffsetOutOfRange, match=r"outside \[0, 200\]"):
                await stream.read(offset, 1000)


async def test_a_read_goes_on_from_objects_into_the_log_cache(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 10) as (cluster, _, stream, sent):
        sent += fill(stream, 5)
        cluster.wal.complete()
        cluster.wal.auto_complete = False
        fill(stream, 2)
        result = await stream.read(50, 1 << 20)
        assert same(result.batches, sent[5:15])
        assert result.next_offset == stream.confirmed_offset == 150


async def test_readers_of_the_same_data_share_one_load_even_when_the_first_gives_up(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, sent):
        gate = asyncio.Event()

        async def slow(call: str, key: str) -> None:
            await gate.wait()

        cluster.store.hook = slow
        first = asyncio.create_task(stream.read(0, 3000))
        others = [asyncio.create_task(stream.read(0, 4000)) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        gate.set()
        for other in others:
            assert same((await other).batches, sent[:4])
        assert engine.stats.index_reads == 1
        assert engine.stats.gets <= 2
        gets = cluster.store.calls.get
        assert same((await stream.read(0, 3000)).batches, sent[:3])
        assert cluster.store.calls.get == gets


async def test_an_abandoned_load_runs_on_into_the_cache(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, sent):
        gate = asyncio.Event()

        async def slow(call: str, key: str) -> None:
            await gate.wait()

        cluster.store.hook = slow
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await stream.read(0, 3000)
        gate.set()
        async with asyncio.timeout(10):
            await engine.loads_done()
        assert engine.block_cache_bytes > 0
        gets = cluster.store.calls.get
        assert same((await stream.read(0, 3000)).batches, sent[:3])
        assert cluster.store.calls.get == gets


async def test_a_read_over_more_objects_than_any_cache_holds_ends(tmp_path: Path) -> None:
    storage = replace(NO_CACHE, block_cache_bytes=0, index_cache_bytes=0, location_cache_streams=1)
    async with cold_stream(tmp_path, 1, storage) as (_, engine, stream, sent):
        for _ in range(2 * LOCATIONS_PER_LOOKUP):
            sent += fill(stream, 1)
            await engine.flush()
        assert same((await stream.read(0, 1 << 20)).batches, sent)
        assert engine.stats.index_reads == len(sent)
        assert engine.stats.location_lookups == 3


async def test_a_read_looks_again_when_compaction_has_replaced_its_object(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20, replace(NO_CACHE, block_cache_bytes=0)) as (cluster, engine, stream, sent):
        assert same((await stream.read(0, 3000)).batches, sent[:3])
        await compact_by_hand(cluster, stream.stream_id)
        assert same(await read_all(stream), sent)
        assert engine.stats.stale_locations == 1


async def compact_by_hand(cluster: EngineCluster, stream_id: int) -> None:
    """Replace the stream's only object by a copy, and delete it at once."""

    (location,) = await cluster.catalog.find_ranges(stream_id, 0, 1 << 40, limit=10)
    node = await cluster.uploading_node()
    old_id = location.object.object_id
    await node.compact([location.object], (location.object.kind, await node.read_object(old_id)))
    assert not await cluster.store.delete([object_key(CLUSTER, old_id)])


async def test_lost_object_and_damaged_block_are_errors_with_names(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, sent):
        (key,) = cluster.object_keys
        data, writer, time = cluster.store.objects[key]
        cluster.store.objects[key] = (b"?" + data[1:], writer, time)
        with pytest.raises(CorruptObject, match=f"{key} at position 0: block CRC32C"):
            await stream.read(0, 3000)
        cluster.store.objects[key] = (data, writer, time)
        assert same((await stream.read(0, 3000)).batches, sent[:3])
        del cluster.store.objects[key]
        with pytest.raises(ObjectNotFound, match=key):
            await stream.read(150, 3000)
        assert engine.error is None


async def test_a_failing_get_reaches_whoever_waits_and_the_next_read_tries_again(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, _, stream, sent):

        async def fail(call: str, key: str) -> None:
            raise StoreError("away")

        cluster.store.hook = fail
        answers = await asyncio.gather(*(stream.read(0, 3000) for _ in range(3)), return_exceptions=True)
        assert [str(answer) for answer in answers] == ["away"] * 3
        cluster.store.hook = type(cluster.store)("x").hook
        assert same((await stream.read(0, 3000)).batches, sent[:3])


async def test_trim_moves_the_start_and_uploads_first_when_it_must(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (_cluster, _, stream, sent):
        sent += fill(stream, 2)
        await stream.append(make_batch(stream.stream_id, 220))
        sent.append(make_batch(stream.stream_id, 220))
        await stream.trim(55)
        assert (stream.start_offset, stream.committed_offset) == (55, 200)
        assert same(await read_all(stream), sent[5:])
        with pytest.raises(OffsetOutOfRange, match=r"outside \[55, 230\]"):
            await stream.read(54, 1000)
        await stream.trim(40)
        assert stream.start_offset == 55
        await stream.trim(210)
        assert (stream.start_offset, stream.committed_offset) == (210, 230)
        assert same(await read_all(stream), sent[21:])
        with pytest.raises(OffsetOutOfRange, match="cannot trim to 231"):
            await stream.trim(231)
        await stream.trim(230)
        assert await stream.read(230, 1000) == ((), 230)


async def test_reading_a_deleted_stream_says_so(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, _):
        await delete_topic(cluster.catalog, "topic-1", now_ms=0, delete_after_ms=0)
        engine.invalidate([stream.stream_id])
        with pytest.raises(StreamNotFound, match="is deleted"):
            await stream.read(0, 1000)


async def test_offset_for_time_over_objects_and_log_cache(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (_, engine, stream, sent):
        sent += fill(stream, 2)
        await stream.append(make_batch(stream.stream_id, 220, timestamp=100))
        sent.append(make_batch(stream.stream_id, 220, timestamp=100))
        for timestamp in (-1, 0, 1, 95, 100, 185, 190, 195, 205, 210):
            found = await stream.offset_for_time(timestamp)
            expected = next(batch for batch in sent if batch.max_timestamp_ms >= timestamp)
            assert found is not None
            assert same([found], [expected]), timestamp
        assert await stream.offset_for_time(211) is None
        await stream.trim(75)
        found = await stream.offset_for_time(0)
        assert found is not None
        assert found.base_offset == 70
        assert engine.stats.get_bytes < 20 * 4200


async def test_offset_for_time_finds_what_is_committed_while_it_searches(tmp_path: Path) -> None:
    """Retention would delete records that a search does not find."""
    async with cold_stream(tmp_path, 20) as (_, engine, stream, _sent):
        await stream.append(make_batch(stream.stream_id, 200, timestamp=900))
        find_time = ColdReader.find_time

        async def and_commit(cold: ColdReader, *args: int) -> StreamBatch | None:
            found = await find_time(cold, *args)
            await engine.flush()
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ColdReader, "find_time", and_commit)
            found = await stream.offset_for_time(800)
        assert found is not None
        assert found.base_offset == 200


@pytest.mark.slow
async def test_offset_for_time_skips_what_was_late_only_before_the_start(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 0) as (_, engine, stream, _sent):
        for timestamps in ((1000, 1, 2), (3, 4), (2000, 5), (3000,)):
            for timestamp in timestamps:
                _ = stream.append(make_batch(stream.stream_id, stream.next_offset, timestamp=timestamp))
            await engine.flush()
        await stream.trim(10)
        found = await stream.offset_for_time(900)
        assert found is not None
        assert (found.base_offset, found.max_timestamp_ms) == (50, 2000)
        # One index for the range that looked right, one for the range that is; nothing of the one between them.
        assert engine.stats.index_reads == 2


async def test_a_sequential_reader_is_read_ahead_and_a_random_one_is_not(tmp_path: Path) -> None:
    storage = replace(NO_CACHE, read_ahead_bytes_max=16_000, read_split_bytes_min=1 << 20, block_cache_bytes=400_000)
    async with cold_stream(tmp_path, 200, storage) as (_, engine, stream, sent):
        for offset in (1500, 300, 700):
            await stream.read(offset, 1000)
        assert engine.stats.read_aheads == 0
        assert same(await read_all(stream), sent)
        assert engine.stats.read_aheads > 5
        assert engine.stats.read_ahead_bytes < 250_000
        assert engine.stats.gets < 40


async def test_closing_ends_reads_under_way_with_an_error(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 60, replace(NO_CACHE, reads_in_flight=1)) as (cluster, engine, stream, _):

        async def hang(call: str, key: str) -> None:
            await asyncio.Event().wait()

        await stream.read(0, 1)
        cluster.store.hook = hang
        reads = [asyncio.create_task(stream.read(offset, 5000)) for offset in (100, 200, 300, 400)]
        await asyncio.sleep(0)
        await engine.close()
        for answer in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(answer, StorageError)
        with pytest.raises(StorageStopped, match="closed"):
            await stream.read(500, 5000)


async def read_in_virtual_time(tmp_path: Path, storage: StorageSettings) -> tuple[float, S3Stream]:
    """Seconds that a reader of 128 reads of 64 KiB takes, when every GET takes 30 ms to its first byte."""
    async with cold_stream(tmp_path, 0, storage) as (cluster, engine, stream, sent):
        sent += fill(stream, 1024, size_bytes=8 * 1024)
        await engine.flush()

        async def latency(call: str, key: str) -> None:
            await asyncio.sleep(0.03)

        await stream.read(0, 1)
        cluster.store.hook = latency
        began_s = asyncio.get_running_loop().time()
        assert same(await read_all(stream, bytes_max=64 * 1024), sent)
        return asyncio.get_running_loop().time() - began_s, engine


async def test_what_is_read_ahead_is_not_part_of_the_read(tmp_path: Path) -> None:
    storage = replace(NO_CACHE, read_ahead_bytes_max=16_000, read_split_bytes_min=1 << 20, block_cache_bytes=400_000)
    async with cold_stream(tmp_path, 200, storage) as (cluster, engine, stream, sent):
        readers: list[str] = []

        async def note(call: str, key: str) -> None:
            readers.append(READER.get(""))

        cluster.store.hook = note
        READER.set("reader")
        assert same(await read_all(stream), sent)
        await engine.loads_done()
        assert engine.stats.read_aheads > 5
        assert readers[0] == "reader"
        assert readers.count("") > 5


def test_read_ahead_with_two_windows_hides_latency(tmp_path: Path) -> None:
    plain = replace(
        NO_CACHE,
        upload_threshold_bytes=32 << 20,
        object_block_bytes=64 * 1024,
        block_cache_bytes=64 << 20,
        read_bytes_max=512 * 1024,
        read_split_bytes_min=512 * 1024,
    )
    none_s, _ = run_virtual(read_in_virtual_time(tmp_path, plain))
    (tmp_path / "catalog.sqlite").unlink()
    ahead = replace(plain, read_ahead_bytes_max=512 * 1024)
    ahead_s, engine = run_virtual(read_in_virtual_time(tmp_path, ahead))
    assert none_s == pytest.approx(0.03 * 128, rel=0.1)
    # Two windows of eight reads under way in each 30 ms, after a first one that doubles up to that.
    assert ahead_s < none_s / 7
    assert engine.stats.gets < 40


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_mix_of_uploads_trims_and_reads_gives_the_log(tmp_path: Path, data: st.DataObject) -> None:
    asyncio.run(mixed(tmp_path, data))


async def mixed(tmp_path: Path, data: st.DataObject) -> None:
    (tmp_path / "catalog.sqlite").unlink(missing_ok=True)
    storage = replace(
        SMALL,
        log_cache_bytes=data.draw(st.sampled_from([1, 20_000, 1 << 20])),
        block_cache_bytes=data.draw(st.sampled_from([0, 10_000, 1 << 20])),
        upload_threshold_bytes=1 << 20,
        read_ahead_bytes_max=data.draw(st.sampled_from([0, 8000])),
        object_block_bytes=data.draw(st.sampled_from([100, 4000])),
        split_bytes=data.draw(st.sampled_from([100, 10_000, 1 << 20])),
    )
    async with memory_cluster(tmp_path, storage) as cluster:
        ids = await cluster.create(2)
        async with cluster.engine() as engine:
            streams = await engine.open_streams(ids)
            sent: dict[int, list[StreamBatch]] = {stream_id: [] for stream_id in ids}
            for step in data.draw(st.lists(st.sampled_from("aaaffftr"), max_size=14)):
                stream = data.draw(st.sampled_from(streams))
                log = sent[stream.stream_id]
                if step == "a":
                    log += fill(
                        stream, data.draw(st.integers(1, 6)), size_bytes=data.draw(st.sampled_from([50, 900, 5000]))
                    )
                elif step == "f":
                    await engine.flush()
                elif step == "t":
                    await stream.trim(data.draw(st.integers(stream.start_offset, stream.confirmed_offset)))
                else:
                    bytes_max = data.draw(st.sampled_from([1, 2000, 1 << 20]))
                    found = await read_all(stream, bytes_max=bytes_max)
                    live = [b for b in log if stream.start_offset < b.end_offset <= stream.confirmed_offset]
                    assert same(found, live)
            await engine.flush()
            for stream in streams:
                live = [b for b in sent[stream.stream_id] if b.end_offset > stream.start_offset]
                assert same(await read_all(stream), live)


async def test_what_lies_before_and_behind_damage_is_read(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, sent):
        (key,) = cluster.object_keys
        data, writer, time = cluster.store.objects[key]
        (bad,) = [each for each in decode_index(data, where=key) if each.start_offset <= 50 < each.end_offset]
        cluster.store.objects[key] = (data[: bad.position] + b"?" + data[bad.position + 1 :], writer, time)
        offset, found = 0, list[StreamBatch]()
        while offset < bad.start_offset:
            result = await stream.read(offset, 100_000)
            found += result.batches
            offset = result.next_offset
        assert found
        assert same(found, [batch for batch in sent if batch.end_offset <= bad.start_offset])
        assert not engine.damaged.reads
        with pytest.raises(CorruptObject, match="block CRC32C"):
            await stream.read(bad.start_offset, 100_000)
        assert [damage.place.position for damage in engine.damaged.entries()] == [bad.position]
        behind = (await stream.read(bad.end_offset, 100_000)).batches
        assert same(behind, [batch for batch in sent if batch.base_offset >= bad.end_offset])


async def test_what_was_corrupt_only_on_the_way_is_read_again(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, sent):
        (key,) = cluster.object_keys
        data, writer, time = cluster.store.objects[key]
        gets = 0

        async def flip_once(call: str, _: str) -> None:
            nonlocal gets
            gets += call == "get"
            flipped = b"?" + data[1:] if gets == 1 else data
            cluster.store.objects[key] = (flipped, writer, time)

        cluster.store.hook = flip_once
        assert same((await stream.read(0, 3000)).batches, sent[:3])
        assert not engine.damaged.reads


async def test_damage_is_forgotten_with_its_object(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, _):
        cluster.store.objects.clear()
        with pytest.raises(ObjectNotFound):
            await stream.read(0, 3000)
        await engine.damaged.forget_removed(cluster.catalog)
        assert len(engine.damaged) == 1
        await stream.trim(200)
        await engine.damaged.forget_removed(cluster.catalog)
        assert len(engine.damaged) == 0


async def test_lookups_by_time_and_size_note_damage(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, sent):
        cluster.store.objects.clear()
        with pytest.raises(ObjectNotFound):
            await stream.offset_for_time(sent[3].max_timestamp_ms)
        with pytest.raises(ObjectNotFound):
            await stream.offset_for_size(1000)
        (damage,) = engine.damaged.entries()
        assert (damage.times, damage.streams) == (2, {stream.label})


async def test_after_a_trim_reads_look_their_place_up_again(tmp_path: Path) -> None:
    async with cold_stream(tmp_path, 20) as (_, engine, stream, sent):
        for _ in range(2):
            assert same((await stream.read(100, 3000)).batches, sent[10:13])
        assert engine.stats.location_lookups == 1
        await stream.trim(55)
        assert same((await stream.read(100, 3000)).batches, sent[10:13])
        assert engine.stats.location_lookups == 2


async def test_a_look_up_that_a_trim_overtakes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cold_stream(tmp_path, 20) as (cluster, engine, stream, sent):
        gate, found, find_ranges = asyncio.Event(), asyncio.Event(), cluster.catalog.find_ranges

        async def answer_late(stream_id: int, start: int, end: int, *, limit: int) -> Sequence[RangeLocation]:
            locations = await find_ranges(stream_id, start, end, limit=limit)
            found.set()
            await gate.wait()
            return locations

        monkeypatch.setattr(cluster.catalog, "find_ranges", answer_late)
        read = asyncio.create_task(stream.read(100, 3000))
        await found.wait()
        await stream.trim(55)
        gate.set()
        assert same((await read).batches, sent[10:13])
        assert engine.stats.location_lookups == 2


async def test_a_trim_whose_answer_was_lost_shows_once_its_objects_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cold_stream(tmp_path, 20, replace(NO_CACHE, block_cache_bytes=0)) as (cluster, _, stream, sent):
        assert same((await stream.read(0, 1)).batches, sent[:1])
        trim_stream = cluster.catalog.trim_stream

        async def lose_answer(*arguments: Any, **named: Any) -> None:
            await trim_stream(*arguments, **named)
            raise CatalogUnavailable("no answer")

        monkeypatch.setattr(cluster.catalog, "trim_stream", lose_answer)
        with pytest.raises(CatalogUnavailable):
            await stream.trim(200)
        assert stream.start_offset == 0
        cluster.store.objects.clear()
        with pytest.raises(OffsetOutOfRange, match="before the start 200"):
            await stream.read(0, 1)
        assert stream.start_offset == 200


async def object_of(batches: Sequence[StreamBatch], object_id: int, block_bytes: int) -> bytes:
    """The bytes of an object."""
    store = MemoryStore("aside")
    async with ObjectWriter(
        store, "k", object_id=object_id, kind=ObjectKind.SSO, writer_id="w", block_bytes=block_bytes
    ) as writer:
        for batch in batches:
            await writer.write(batch)
        await writer.finish()
    return store.objects["k"][0]


async def object_without(cluster: EngineCluster, batches: Sequence[StreamBatch], data: bytes) -> bytes:
    """An object like `data`, as long and with sound checksums, of these batches only. The last is made longer."""
    object_id, block_bytes = decode_index(data, where="data").object_id, cluster.settings.object_block_bytes
    filler = len(data) - len(await object_of(batches, object_id, block_bytes))
    last = batches[-1]._replace(payload=bytes(batches[-1].payload) + bytes(filler))
    made = await object_of([*batches[:-1], last], object_id, block_bytes)
    assert len(made) == len(data)
    return made


@pytest.mark.parametrize("ahead_bytes", [0, 20_000], ids=["plain", "with read-ahead"])
async def test_blocks_that_an_object_lacks_are_an_error_and_never_a_gap(tmp_path: Path, ahead_bytes: int) -> None:
    storage = replace(NO_CACHE, object_block_bytes=100, read_ahead_bytes_max=ahead_bytes)
    async with cold_stream(tmp_path, 20, storage) as (cluster, engine, stream, sent):
        (key,) = cluster.object_keys
        data, writer, time = cluster.store.objects[key]
        cluster.store.objects[key] = (await object_without(cluster, sent[:8] + sent[11:], data), writer, time)
        for bytes_max in (3000, 1 << 20):
            offset, found = 0, list[StreamBatch]()
            while offset < 80:
                result = await stream.read(offset, bytes_max)
                found += result.batches
                offset = result.next_offset
            assert (offset, same(found, sent[:8])) == (80, True)
            for missing in (80, 100, 109):
                with pytest.raises(CorruptObject, match=f"no block holds offset {missing}"):
                    await stream.read(missing, bytes_max)
        assert same((await stream.read(110, 8500)).batches, sent[11:19])
        await engine.loads_done()
        assert [damage.place.key for damage in engine.damaged.entries()] == [key]


@pytest.mark.parametrize("lacking", ["one in the middle", "the last"])
async def test_a_range_that_the_catalog_lacks_is_an_error_and_never_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    async with cold_stream(tmp_path, 5) as (cluster, engine, stream, sent):
        for _ in range(2):
            sent += fill(stream, 5)
            await engine.flush()
        find_ranges = cluster.catalog.find_ranges
        missing = 50 if lacking == "one in the middle" else 100

        async def without_one(stream_id: int, start: int, end: int, *, limit: int) -> Sequence[RangeLocation]:
            locations = await find_ranges(stream_id, start, end, limit=limit)
            return [location for location in locations if location.range.start_offset != missing]

        monkeypatch.setattr(cluster.catalog, "find_ranges", without_one)
        assert same((await stream.read(0, 5000)).batches, sent[:5])
        for offset in (missing - 10, missing, missing + 45):
            with pytest.raises(Discontinuity, match=f"no object holds offset {max(offset, missing)}"):
                await stream.read(offset, 1 << 20)
        if lacking == "one in the middle":
            assert same((await stream.read(100, 1 << 20)).batches, sent[10:])
