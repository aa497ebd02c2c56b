"""The engine from append to object and back."""

from pathlib import Path

import pytest

from s3stream.errors import OffsetOutOfRange, StorageFull, StorageStopped
from tests.support.storage import fill, make_batch, memory_cluster, read_all, same


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
            with pytest.raises(StorageStopped, match="failed by the test"):
                _ = stream.append(make_batch(stream_id, 30))
            with pytest.raises(StorageStopped, match="failed by the test"):
                await engine.wait_writable()
            assert len(await read_all(stream)) == 2
