"""The engine from append to object and back."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.s3stream.append.log_cache import EVICT_BATCHES_MAX
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.background import HURRIED_PIECE_BYTES, PIECE_BYTES, BackgroundIo, Pace
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import (
    AppendTooLarge,
    Discontinuity,
    LogStalled,
    OffsetOutOfRange,
    StorageError,
    StorageFull,
    StorageStopped,
    UnknownStreams,
)
from anabranch.s3stream.model import NodeIdentity, ObjectKind, StreamBatch, StreamInfo
from anabranch.s3stream.upload import pipeline
from anabranch.s3stream.upload.pace import UploadPace
from anabranch.s3stream.upload.uploader import Uploader
from anabranch.wal.interface import AppendedRecord, Buffer, Durable, OverCapacity, QueueFull
from tests.support.catalog_node import CLUSTER, NODE_ID, UploadingNode, delete_topic, hand_over
from tests.support.memory_wal import MemoryWal
from tests.support.steps import Steps, step_catalog
from tests.support.storage import SMALL, EngineCluster, fill, make_batch, memory_cluster, read_all, same
from tests.support.waiting import until


async def test_append_is_confirmed_when_durable_and_before_the_owners_callback_runs(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        cluster.wal.auto_complete = False
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            seen: list[int] = []
            for base in (0, 10):
                durable = stream.append(make_batch(stream_id, base))
                durable.add_done_callback(lambda error: seen.append(stream.confirmed_offset))
            assert (stream.next_offset, stream.confirmed_offset) == (20, 0)
            assert stream.read_cached(0, 1000) == ((), 0)
            cluster.wal.complete()
            assert seen == [20, 20]
            found = stream.read_cached(0, 1 << 20)
            assert found is not None
            assert found.next_offset == 20


async def test_append_must_begin_at_the_end(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            for wrong in (make_batch(stream_id, 5), make_batch(stream_id + 1, 0), make_batch(stream_id, 0, count=0)):
                with pytest.raises(OffsetOutOfRange, match="must begin at 0"):
                    _ = stream.append(wrong)
            assert stream.next_offset == 0
            assert cluster.wal.used_bytes == 0


async def test_uploaded_data_is_read_back_from_objects_and_the_wal_is_empty(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(3)
        async with cluster.engine() as engine:
            streams = await engine.open_streams(ids)
            sent = {s.stream_id: fill(s, n) for s, n in zip(streams, (40, 3, 5), strict=True)}
            await engine.flush()
            assert cluster.wal.used_bytes == 0
            assert [s.committed_offset for s in streams] == [400, 30, 50]
            counts = await cluster.catalog.count_objects()
            assert {kind: count for kind, (count, _) in counts.items()} == {"SO committed": 1, "SSO committed": 1}
            await engine.close()
        cluster.crash()
        async with cluster.engine() as engine:
            streams = await engine.open_streams(ids)
            assert not any(stream.recovered for stream in streams)
            for stream in streams:
                assert stream.read_cached(0, 1000) is None
                assert same(await read_all(stream), sent[stream.stream_id])


async def test_crash_recovers_what_was_durable_with_the_snapshot_before_it(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            stream.snapshot_source = lambda: b"up to %d" % stream.next_offset
            sent = fill(stream, 10)
            await engine.flush()
            sent += fill(stream, 5)
            await stream.append(make_batch(stream_id, 150))
            sent.append(make_batch(stream_id, 150))
            cluster.wal.auto_complete = False
            fill(stream, 2)
        cluster.crash()
        cluster.wal.auto_complete = True
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            assert stream.snapshot == b"up to 100"
            assert same(stream.recovered, sent[10:])
            assert (stream.committed_offset, stream.confirmed_offset, stream.next_offset) == (100, 160, 160)
            assert same(await read_all(stream), sent)


async def test_evicted_data_is_not_held_by_anything(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, replace(SMALL, log_cache_bytes=1)) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            payloads = [weakref.ref(batch.payload) for batch in fill(stream, 3)]
            assert all(payload() is not None for payload in payloads)
            await engine.flush()
            gc.collect()
            assert [payload() for payload in payloads] == [None] * 3


async def test_full_wal_refuses_without_a_change_and_goes_on_after_the_upload(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, wal_bytes=50_000) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = []
            while cluster.wal.capacity_bytes - cluster.wal.used_bytes > 1100:
                sent += fill(stream, 1)
            with pytest.raises(StorageFull, match="WAL"):
                fill(stream, 1)
            assert stream.next_offset == sent[-1].end_offset
            assert not engine.writable
            await engine.wait_writable()
            sent += fill(stream, 1)
            await engine.flush()
            assert same(await read_all(stream), sent)


async def test_a_full_queue_to_the_device_is_waited_for_without_an_upload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        cluster.wal.auto_complete = False
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 3)
            durable = stream.append(make_batch(stream_id, 30))

            def refuse(parts: Sequence[Buffer]) -> AppendedRecord:
                raise QueueFull("the queue to the device is full", durable)

            monkeypatch.setattr(cluster.wal, "append", refuse)
            with pytest.raises(StorageFull, match="the queue to the device is full"):
                fill(stream, 1)
            seen = [engine.writable]
            waiter = asyncio.create_task(engine.wait_writable())
            await asyncio.sleep(0)
            assert not waiter.done()
            monkeypatch.undo()
            cluster.wal.complete()
            await waiter
            assert [*seen, engine.writable] == [False, True]
            fill(stream, 1)
            assert engine.stats.uploads == 0


async def test_a_log_that_stands_still_refuses_appends_before_they_are_queued(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, replace(SMALL, stall_ms=1)) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            cluster.wal.auto_complete = False
            sent = fill(stream, 3)
            await until(lambda: engine.stats.log_stalls == 1)
            used_bytes = cluster.wal.used_bytes
            with pytest.raises(LogStalled, match="until it has caught up"):
                fill(stream, 1)
            with pytest.raises(LogStalled):
                await engine.wait_writable()
            assert (cluster.wal.used_bytes, stream.next_offset) == (used_bytes, 30)
            cluster.wal.auto_complete = True
            cluster.wal.complete()
            await engine.wait_writable()
            sent += fill(stream, 1)
            await engine.flush()
            assert same(await read_all(stream), sent)


async def test_an_empty_log_whose_device_is_behind_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            written = Durable()

            def refuse(parts: Sequence[Buffer]) -> AppendedRecord:
                raise QueueFull("the new file is not written so far", written)

            monkeypatch.setattr(cluster.wal, "append", refuse)
            with pytest.raises(StorageFull, match="the new file is not written so far"):
                fill(stream, 1)
            assert not engine.writable
            monkeypatch.undo()
            written.complete()
            await engine.wait_writable()
            fill(stream, 1)
            assert engine.stats.uploads == 0


async def test_an_upload_hurries_for_an_append_that_the_log_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces = _hold_uploads(monkeypatch)
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 30)
            engine.request_upload()
            await until(lambda: bool(paces))
            assert paces[0].piece_bytes == PIECE_BYTES
            # Half of the log is free, and this batch needs more.
            monkeypatch.setattr(cluster.wal, "append", _refuse)
            with pytest.raises(StorageFull, match="too large for the rest"):
                fill(stream, 1)
            assert paces[0].piece_bytes == HURRIED_PIECE_BYTES


async def test_a_log_under_pressure_is_relieved_by_one_upload_without_a_hurry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces = _hold_uploads(monkeypatch)
    async with memory_cluster(tmp_path, wal_bytes=60_000) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            while cluster.wal.used_bytes <= 60_000 * SMALL.wal_pressure_ratio:
                await stream.append(make_batch(stream_id, stream.next_offset))
            await until(lambda: bool(paces))
            for _ in range(3):
                await stream.append(make_batch(stream_id, stream.next_offset))
                await asyncio.sleep(0)
            assert paces[0].piece_bytes == PIECE_BYTES
            while engine.writable:
                await stream.append(make_batch(stream_id, stream.next_offset))
            assert paces[0].piece_bytes == HURRIED_PIECE_BYTES
            assert len(paces) == 1


async def test_a_long_log_is_uploaded_however_few_bytes_it_has(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            await stream.append(make_batch(stream_id, 0))
            assert not stream.committed_offset
            cluster.wal.is_long = True
            await stream.append(make_batch(stream_id, 10))
            cluster.wal.is_long = False
            await until(lambda: stream.committed_offset == 20)
            assert engine.stats.uploads == 1


def _hold_uploads(monkeypatch: pytest.MonkeyPatch) -> list[Pace]:
    """Let uploads make no progress, as if their blocks had taken long to fill; return their paces."""
    paces: list[Pace] = []

    async def stuck(_uploader: Uploader, _block: object, _previous: object, pace: Pace) -> None:
        paces.append(pace)
        await asyncio.Event().wait()

    def slow(background: BackgroundIo, *, size_bytes: int, fill_s: float, level: Callable[[], float]) -> UploadPace:
        return UploadPace(background, size_bytes=size_bytes, fill_s=fill_s + 3600, level=level)

    monkeypatch.setattr(Uploader, "upload", stuck)
    monkeypatch.setattr(pipeline, "UploadPace", slow)
    return paces


def _refuse(_parts: Sequence[Buffer]) -> AppendedRecord:
    raise OverCapacity("too large for the rest")


async def test_the_log_cache_keeps_its_bound_when_one_write_of_the_log_has_many_batches(tmp_path: Path) -> None:
    streams_count = 3 * EVICT_BATCHES_MAX
    async with memory_cluster(tmp_path, replace(SMALL, upload_threshold_bytes=1 << 20)) as cluster:
        ids = await cluster.create(streams_count)
        cluster.wal.auto_complete = False
        async with cluster.engine() as engine:
            streams = await engine.open_streams(ids)

            def write() -> None:
                for stream in streams:
                    fill(stream, 1, size_bytes=100)
                cluster.wal.complete()

            while engine.uncommitted_bytes < SMALL.log_cache_bytes * 3 // 4:
                write()
            await engine.flush()
            while engine.uncommitted_bytes < SMALL.log_cache_bytes * 3 // 4:
                write()
                assert engine.log_cache_bytes <= SMALL.log_cache_bytes


async def test_an_append_that_never_fits_is_refused_for_good(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, wal_bytes=5000) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            with pytest.raises(AppendTooLarge, match="no append of this size will ever fit"):
                fill(stream, 1, size_bytes=6000)
            assert engine.writable
            fill(stream, 1)


async def test_failed_wal_stops_appends_and_says_why(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 1)
            await stream.append(make_batch(stream_id, 10))
            fill(stream, 1)
            cluster.wal.fail()
            assert stream.confirmed_offset == 20
            assert not engine.writable
            assert "failed by the test" in str(await engine.wait_stopped())
            with pytest.raises(StorageStopped, match="failed by the test"):
                _ = stream.append(make_batch(stream_id, 30))
            with pytest.raises(StorageStopped, match="failed by the test"):
                await engine.wait_writable()
            assert len(await read_all(stream)) == 2


async def crash_with(cluster: EngineCluster, ids: Sequence[int], batches: int) -> dict[int, list[StreamBatch]]:
    """Append to each stream, durably, and crash."""
    async with cluster.engine() as engine:
        streams = await engine.open_streams(ids)
        sent = {stream.stream_id: fill(stream, batches) for stream in streams}
        cluster.wal.complete()
    cluster.crash()
    return sent


def lose_record(cluster: EngineCluster, number: int) -> None:
    """Damage the WAL: a record in the middle is not there any more."""
    del cluster.wal.records[number]


async def test_nothing_recovered_is_uploaded_before_its_owner_has_replayed_it(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, replace(SMALL, upload_threshold_bytes=1)) as cluster:
        ids = await cluster.create(2)
        sent = await crash_with(cluster, ids, 3)
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            with pytest.raises(StorageError, match=rf"streams \[{ids[0]}, {ids[1]}\] were recovered"):
                await engine.flush()
            one.snapshot_source = bytes
            assert not one.recovered
            with pytest.raises(StorageError, match=rf"streams \[{ids[1]}\] were recovered"):
                await engine.flush()
            await engine.close()
        assert not cluster.store.objects
        cluster.crash()
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            assert same(one.recovered, sent[ids[0]])
            one.snapshot_source = bytes
            sent[ids[1]] += fill(two, 1)
            await engine.flush()
            assert cluster.wal.used_bytes == 0
            for stream in (one, two):
                assert same(await read_all(stream), sent[stream.stream_id])


async def test_a_discontinuity_stops_its_stream_and_keeps_the_wal_until_somebody_decides(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(2, name="broken")
        sent = await crash_with(cluster, ids, 3)
        lose_record(cluster, 1)
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            assert engine.stats.stopped_streams == 1
            with pytest.raises(Discontinuity, match=rf"stream {ids[0]}: .* expected one from 10"):
                fill(one, 1)
            assert one.confirmed_offset == 0
            two.snapshot_source = bytes
            await engine.flush()
            assert same(await read_all(two), sent[ids[1]])
            assert cluster.wal.used_bytes > 0
        cluster.crash()
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            assert list(engine.stopped_streams) == [ids[0]]
            stopped = engine.stopped_streams[ids[0]]
            assert (stopped.start_offset, stopped.end_offset, stopped.record_count) == (0, 30, 20)
            assert stopped.size_bytes == 2000
            with pytest.raises(StorageError, match=f"stream {ids[1]} is not stopped"):
                await engine.discard_recovered(ids[1])
            await engine.discard_recovered(ids[0])
            assert cluster.wal.used_bytes == 0
            # It takes appends again, from its committed end.
            again = fill(one, 1)
            await engine.flush()
            assert same(await read_all(one), again)


async def test_appends_go_on_when_records_that_filled_the_log_are_discarded(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(2, name="broken")
        await crash_with(cluster, ids, 3)
        lose_record(cluster, 1)
        async with cluster.engine() as engine:
            _, two = await engine.open_streams(ids)
            two.snapshot_source = bytes
            while engine.writable:
                fill(two, 100)
                await engine.flush()
            # Nothing is left to upload, whose end would wake those who wait.
            waiting = asyncio.create_task(engine.wait_writable())
            await asyncio.sleep(0)  # it waits
            await engine.discard_recovered(ids[0])
            await waiting
            fill(two, 1)


async def test_discarded_records_that_are_still_in_the_wal_do_not_come_back(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(2, name="broken")
        sent = await crash_with(cluster, ids, 3)
        lose_record(cluster, 1)
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            # The other stream's records are not uploaded: the WAL cannot be trimmed.
            await engine.discard_recovered(ids[0])
            assert not engine.stopped_streams
            new = fill(one, 2)
        cluster.crash()
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            assert not engine.stopped_streams
            assert same(await read_all(one), new)
            assert same(await read_all(two), sent[ids[1]])


async def test_discarded_records_do_not_come_back_while_another_stream_is_stopped(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(3, name="broken")
        await crash_with(cluster, ids, 3)
        lose_record(cluster, 4)
        lose_record(cluster, 1)
        async with cluster.engine() as engine:
            one, _, three = await engine.open_streams(ids)
            three.snapshot_source = bytes
            await engine.flush()
            assert sorted(engine.stopped_streams) == ids[:2]
            # All of the WAL is committed or given up but for the second stream's: it cannot be trimmed yet.
            await engine.discard_recovered(ids[0])
            new = fill(one, 2)
            await engine.flush()
        cluster.crash()
        async with cluster.engine() as engine:
            one, _, _ = await engine.open_streams(ids)
            assert list(engine.stopped_streams) == [ids[1]]
            assert not one.recovered
            assert same(await read_all(one), new)


async def test_giving_up_twice_at_once_gives_up_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(2, name="broken")
        await crash_with(cluster, ids, 3)
        lose_record(cluster, 1)
        async with cluster.engine() as engine:
            one, _ = await engine.open_streams(ids)
            look_up, go_on = cluster.catalog.get_streams, asyncio.Event()

            async def slow(stream_ids: Sequence[int]) -> Mapping[int, StreamInfo]:
                await go_on.wait()
                return await look_up(stream_ids)

            with monkeypatch.context() as patch:
                patch.setattr(cluster.catalog, "get_streams", slow)
                second = asyncio.create_task(engine.discard_recovered(ids[0]))
                await asyncio.sleep(0)
            await engine.discard_recovered(ids[0])
            new = fill(one, 2)
            go_on.set()
            await second
            cluster.wal.complete()
        cluster.crash()
        async with cluster.engine() as engine:
            one, _ = await engine.open_streams(ids)
            assert same(one.recovered, new)


async def test_deleting_the_topic_of_a_stopped_stream_lets_the_wal_go(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        broken = await cluster.create(1, name="broken")
        other = await cluster.create(1)
        await crash_with(cluster, broken + other, 3)
        lose_record(cluster, 1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams(other)
            await delete_topic(cluster.catalog, "broken", now_ms=0, delete_after_ms=0)
            fill(stream, 1)
            await engine.flush()
            assert cluster.wal.used_bytes == 0
            assert not engine.stopped_streams


async def test_deleted_streams_hold_up_neither_recovery_nor_uploads(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        early = await cluster.create(1, name="early")
        late = await cluster.create(1, name="late")
        other = await cluster.create(1)
        sent = await crash_with(cluster, early + late + other, 3)
        await delete_topic(cluster.catalog, "early", now_ms=0, delete_after_ms=0)
        async with cluster.engine() as engine:
            assert engine.stats.skipped_records == 3
            assert engine.stats.recovered_records == 6
            await delete_topic(cluster.catalog, "late", now_ms=0, delete_after_ms=0)
            (stream,) = await engine.open_streams(other)
            stream.snapshot_source = bytes
            await engine.flush()
            assert same(await read_all(stream), sent[other[0]])
            assert cluster.wal.used_bytes == 0


async def test_a_recovered_stream_that_is_discarded_lets_a_waiting_upload_go(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, replace(SMALL, upload_threshold_bytes=1)) as cluster:
        ids = await cluster.create(2)
        await crash_with(cluster, ids, 3)
        steps = Steps()
        cluster.wrap_catalog = lambda catalog: step_catalog(catalog, steps)
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            fill(one, 1)
            await engine.close_stream(two, discard=True)
            await steps.seen("after commit_upload")
            await engine.flush()
            assert cluster.wal.used_bytes == 0


async def test_a_wal_of_committed_records_only_is_trimmed_at_recovery(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(1, name="gone")
        await crash_with(cluster, ids, 3)
        await delete_topic(cluster.catalog, "gone", now_ms=0, delete_after_ms=0)
        async with cluster.engine():
            assert cluster.wal.used_bytes == 0


async def test_a_wal_that_is_not_the_catalogs_stops_the_start_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with memory_cluster(tmp_path) as cluster, memory_cluster(tmp_path / "other") as other:
        (stream_id,) = await cluster.create(1)
        sent = await crash_with(cluster, [stream_id], 3)
        other.wal = cluster.wal
        with pytest.raises(UnknownStreams, match=f"stream {stream_id}: 30 records, offsets 0 to 29"):
            async with other.engine():
                pass
        assert not other.wal.trims
        cluster.crash()
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            assert same(await read_all(stream), sent[stream_id])


async def test_records_from_before_another_node_took_over_never_come_back(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(1)
        await crash_with(cluster, ids, 3)
        wal, other_wal = cluster.wal, MemoryWal()
        node = await cluster.catalog.register_node(2, "127.0.0.1", 9093, now_ms=0, lease_ms=1)
        other = S3Stream(
            wal=other_wal,
            catalog=cluster.catalog,
            stores=cluster.stores,
            default_store="main",
            settings=SMALL,
            cluster=CLUSTER,
            node=NodeIdentity(2, node.epoch),
            now_ms=cluster.clock.now_ms,
            new_writer_id=cluster.new_writer_id,
        )
        async with other:
            await other.recover()
            await hand_over(cluster.catalog, ids, leader=2)
            (stream,) = await other.open_streams(ids)
            assert stream.next_offset == 0
            sent = fill(stream, 2, count=7)
            await other.close()
        await hand_over(cluster.catalog, ids, leader=NODE_ID)
        cluster.wal = wal
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams(ids)
            assert stream.next_offset == 14
            cluster.wal = cluster.wal.crash()
        async with cluster.engine() as engine:
            assert engine.stats.recovered_records == 0
            (stream,) = await engine.open_streams(ids)
            sent += fill(stream, 1)
            await engine.flush()
            assert same(await read_all(stream), sent)


async def test_stream_cached_here_but_grown_elsewhere_is_read_from_objects(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams(ids)
            sent = fill(stream, 3)
            await engine.close_stream(stream)
            commit = await commit_elsewhere(cluster, ids[0], 30)
            (stream,) = await engine.open_streams(ids)
            assert stream.next_offset == 40
            assert stream.read_cached(0, 100) is None
            sent += [commit, *fill(stream, 1)]
            await engine.flush()
            assert same(await read_all(stream), sent)


async def commit_elsewhere(cluster: EngineCluster, stream_id: int, base: int, end: int | None = None) -> StreamBatch:
    """Have another node take over the stream, append a batch, and give the stream back."""
    batch = make_batch(stream_id, base)
    if end is not None:
        batch = batch._replace(end_offset=end)
    node = UploadingNode(cluster.catalog, cluster.store, cluster.clock, node_id=2)
    await node.register()
    await hand_over(cluster.catalog, [stream_id], leader=2)
    await node.open_streams([stream_id])
    await node.upload((ObjectKind.SSO, [batch]))
    await hand_over(cluster.catalog, [stream_id], leader=NODE_ID)
    return batch


@pytest.mark.parametrize("begin", [2**31 - 25, 2**32 - 25])
async def test_offsets_of_more_than_32_bits_go_through_log_crash_and_objects(tmp_path: Path, begin: int) -> None:
    """The stream has one batch before them: log compaction leaves such gaps."""
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(1)
        compacted = await commit_elsewhere(cluster, ids[0], 0, begin)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams(ids)
            assert stream.next_offset == begin
            sent = [compacted, *fill(stream, 5)]
            await engine.flush()
            sent += fill(stream, 5)
            assert stream.last_durable is not None
            await stream.last_durable
            assert same(await read_all(stream), sent)
        cluster.crash()
        async with cluster.engine() as engine:
            assert engine.stats.recovered_records == 5
            (stream,) = await engine.open_streams(ids)
            stream.snapshot_source = bytes
            assert (stream.committed_offset, stream.next_offset) == (begin + 50, begin + 100)
            assert same(await read_all(stream), sent)
            await engine.flush()
            await stream.trim(begin + 35)
            assert stream.start_offset == begin + 35
            await engine.close_stream(stream)
            (stream,) = await engine.open_streams(ids)
            assert same(await read_all(stream), sent[4:])
            found = await stream.offset_for_time(begin + 61)
            assert found is not None
            assert same([found], [sent[8]])


async def test_a_stream_taken_over_between_recovery_and_opening_holds_up_no_other(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(2)
        sent = await crash_with(cluster, ids, 3)
        async with cluster.engine() as engine:
            elsewhere = await commit_elsewhere(cluster, ids[0], 0)
            one, two = await engine.open_streams(ids)
            with pytest.raises(Discontinuity, match=f"stream {ids[0]}: recovered from 0, committed up to"):
                fill(one, 1)
            two.snapshot_source = bytes
            await engine.flush()
            assert same(await read_all(two), sent[ids[1]])
            assert same(await read_all(one), [elsewhere])
            assert list(engine.stopped_streams) == [ids[0]]
            assert cluster.wal.used_bytes > 0, "its records are kept for a person to decide"


@pytest.mark.slow
async def test_a_deleted_streams_memory_is_free_without_a_garbage_collection(tmp_path: Path) -> None:
    class Payload(bytearray):
        """Memory that can be watched."""

    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            # The owner and the stream refer to each other, as partitions do.
            owner = [stream]
            stream.snapshot_source = lambda owner=owner: bytes(len(owner))

            async def append(stream: Stream, at: int) -> "weakref.ref[Payload]":
                payload = Payload(1000)
                await stream.append(StreamBatch(stream_id, at, at + 1, 1, -1, memoryview(payload)))
                return weakref.ref(payload)

            gone = [await append(stream, at) for at in range(3)]
            gc.collect()
            gc.disable()
            try:
                await engine.close_stream(stream, discard=True)
                del stream, owner
                await engine.flush()
                assert [ref() for ref in gone] == [None, None, None]
            finally:
                gc.enable()


async def test_records_after_those_of_a_deleted_stream_are_uploaded_by_age(tmp_path: Path) -> None:
    """The block stays current when its only stream is deleted: its age begins again with the next stream."""
    async with memory_cluster(tmp_path, replace(SMALL, upload_age_ms=20)) as cluster:
        ids = await cluster.create(2)
        async with cluster.engine() as engine:
            deleted, kept = await engine.open_streams(ids)
            kept.snapshot_source = bytes
            fill(deleted, 1)
            await engine.close_stream(deleted, discard=True)
            loop = asyncio.get_running_loop()
            runs_out_s = loop.time() + 0.02
            await until(lambda: loop.time() > runs_out_s)
            fill(kept, 1)
            await until(lambda: kept.committed_offset == kept.next_offset)
