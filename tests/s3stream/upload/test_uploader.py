"""Sealing and splitting of upload blocks, and the effects of store failures, catalog failures and fencing."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import anabranch.s3stream.upload.pace
from anabranch.s3stream.errors import CatalogUnavailable, StorageError, StorageStopped, StoreError, StreamFenced
from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES, ObjectState, StreamBatch, StreamOwner, object_key
from anabranch.s3stream.object.marks import MARK_KEYS
from anabranch.s3stream.outages import Outage
from anabranch.s3stream.settings import MIB, StorageSettings
from tests.support.catalog_node import CLUSTER, NODE_ID, WAL_ID, delete_topic, hand_over
from tests.support.memory_store import let_through
from tests.support.steps import Steps, step_catalog, step_store
from tests.support.storage import SMALL, EngineCluster, fill, make_batch, memory_cluster, read_all, same
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

TIMEOUT_S = 5


def test_threshold_follows_wal_and_log_cache() -> None:
    settings = StorageSettings(log_cache_bytes=3000 * MIB)
    assert settings.threshold_bytes(8192 * MIB) == 512 * MIB
    assert settings.threshold_bytes(300 * MIB) == 100 * MIB
    assert StorageSettings(log_cache_bytes=30 * MIB).threshold_bytes(300 * MIB) == 10 * MIB
    assert StorageSettings(upload_threshold_bytes=5).threshold_bytes(300 * MIB) == 5


def stepped(cluster: EngineCluster) -> Steps:
    """Let the test see, and hold up, the steps of the cluster's engines."""
    steps = Steps()
    cluster.wrap_catalog = lambda catalog: step_catalog(catalog, steps)
    cluster.stores = {name: step_store(store, steps) for name, store in cluster.stores.items()}
    return steps


@pytest.mark.parametrize(
    ("settings", "wal_bytes"),
    [
        (replace(SMALL, upload_threshold_bytes=10_000), 4 << 20),
        (replace(SMALL, upload_threshold_bytes=1 << 20, upload_age_ms=1), 4 << 20),
        (replace(SMALL, upload_threshold_bytes=1 << 20, wal_pressure_ratio=0.1), 50_000),
    ],
    ids=["size", "age", "WAL pressure"],
)
async def test_a_block_is_sealed_by(tmp_path: Path, settings: StorageSettings, wal_bytes: int) -> None:
    async with memory_cluster(tmp_path, settings, wal_bytes=wal_bytes) as cluster:
        steps = stepped(cluster)
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 10)
            await steps.seen("after commit_upload")
            await engine.flush()
            assert stream.committed_offset == 100
            assert cluster.wal.used_bytes == 0


async def test_snapshots_are_never_taken_inside_an_append(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, replace(SMALL, upload_threshold_bytes=1)) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            state = 0
            stream.snapshot_source = lambda: b"%d" % state
            for _ in range(5):
                fill(stream, 1)
                state = stream.next_offset
                await asyncio.sleep(0)
            await engine.flush()
            info = (await cluster.catalog.get_streams([stream_id]))[stream_id]
            assert (info.end_offset, info.snapshot) == (50, b"50")


async def test_uploads_run_side_by_side_and_commit_in_order(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, replace(SMALL, upload_threshold_bytes=3000)) as cluster:
        store = cluster.store
        steps = stepped(cluster)
        gate = asyncio.Event()
        ids = await cluster.create(2)
        async with cluster.engine() as engine:
            one, two = await engine.open_streams(ids)
            held: list[str] = []

            async def hold_first(call: str, key: str) -> None:
                if call == "put" and (not held or key == held[0]):
                    held.append(key)
                    await gate.wait()

            store.hook = hold_first
            sent = fill(one, 3)
            await steps.seen("before put")
            sent += fill(one, 3)
            fill(two, 1)
            await steps.seen("after put")
            assert one.committed_offset == 0
            assert "before commit_upload" not in steps.names
            gate.set()
            await engine.flush()
            assert (one.committed_offset, two.committed_offset) == (60, 10)
            assert engine.stats.uploads == 2
            assert same(await read_all(one), sent)
            assert cluster.wal.used_bytes == 0


async def test_store_outage_slows_appends_down_and_drains_by_itself(tmp_path: Path) -> None:
    settings = replace(SMALL, upload_threshold_bytes=20_000, log_cache_bytes=60_000)
    async with memory_cluster(tmp_path, settings) as cluster:
        ids = await cluster.create(3)
        async with cluster.engine() as engine:
            streams = await engine.open_streams(ids)
            away = True
            tried = asyncio.Event()

            async def outage(call: str, key: str) -> None:
                if away:
                    tried.set()
                    raise StoreError("the store is away")

            cluster.store.hook = outage
            sent: dict[int, list[StreamBatch]] = {stream.stream_id: [] for stream in streams}
            while engine.writable:
                for stream in streams:
                    sent[stream.stream_id] += fill(stream, 1)
                await asyncio.sleep(0)
            held = engine.uncommitted_bytes
            assert held > 60_000
            waiter = asyncio.create_task(engine.wait_writable())
            gone = [asyncio.create_task(engine.wait_writable()) for _ in range(10)]
            await tried.wait()
            assert not waiter.done()
            assert engine.error is None
            assert [re.sub(r"\d+", "N", text) for text in engine.obstacles()] == [
                "the log cache is full: N bytes are not in objects yet, and N is the limit"
            ]
            since_ms = cluster.clock.ms
            cluster.clock.ms += 5_000
            failed = engine.stats.upload_retries
            await until(lambda: engine.stats.upload_retries > failed, timeout_s=60, pause_s=0.001)
            assert engine.outages.current() == [Outage("object store main", "the store is away", since_ms)]
            for task in gone:
                task.cancel()
            await asyncio.wait(gone)
            away = False
            await waiter
            assert engine.uncommitted_bytes < held
            await engine.flush()
            assert engine.stats.upload_retries > 0
            assert engine.outages.current() == []
            assert engine.obstacles() == []
            for stream in streams:
                assert same(await read_all(stream), sent[stream.stream_id])
            counts = await cluster.catalog.count_objects()
            assert not any("prepared" in kind for kind in counts)


async def test_appends_are_refused_when_clients_do_not_slow_down(tmp_path: Path) -> None:
    settings = replace(SMALL, upload_threshold_bytes=20_000, log_cache_bytes=60_000, uploads_in_flight=1)
    async with memory_cluster(tmp_path, settings) as cluster:
        steps = stepped(cluster)
        steps.gates["before put"] = asyncio.Event()
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            with pytest.raises(StorageError, match=r"log cache: \d+ bytes wait for the next upload"):
                fill(stream, 1000)
            assert engine.uncommitted_bytes < 85_000
            steps.gates["before put"].set()
            await engine.wait_writable()
            fill(stream, 1)
            await engine.flush()


@pytest.mark.parametrize("command", ["prepare_objects", "commit_upload", "note_multipart"])
async def test_a_catalog_that_is_away_is_waited_for(tmp_path: Path, command: str) -> None:
    settings = replace(SMALL, so_put_bytes_max=10 << 20, log_cache_bytes=64 << 20, upload_threshold_bytes=32 << 20)
    async with memory_cluster(tmp_path, settings, wal_bytes=64 << 20) as cluster:
        failures = 3
        outages: list[tuple[str, str]] = []

        class Flaky(Steps):
            async def at(self, name: str) -> None:
                nonlocal failures
                outages.extend((each.where, each.reason) for each in engine.outages.current())
                if name == f"before {command}" and failures:
                    failures -= 1
                    raise CatalogUnavailable("the catalog is away")

        flaky = Flaky()
        cluster.wrap_catalog = lambda catalog: step_catalog(catalog, flaky)
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 11, size_bytes=1 << 20)
            await engine.flush()
            assert failures == 0
            assert ("catalog", "the catalog is away") in outages
            assert engine.outages.current() == []
            assert engine.error is None
            assert same(await read_all(stream), sent)
            assert not cluster.store.uploads


async def test_objects_prepared_too_long_ago_are_written_anew(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            calls: list[str] = []

            async def outage(call: str, key: str) -> None:
                if not key.startswith(MARK_KEYS):
                    calls.append(key)
                if len(calls) <= 3:
                    cluster.clock.ms += SMALL.prepare_ttl_ms // 4
                    raise StoreError("the store is away")

            cluster.store.hook = outage
            sent = fill(stream, 3)
            await engine.flush()
            assert len(set(calls)) == 2
            assert same(await read_all(stream), sent)


async def test_objects_reaped_before_the_commit_are_written_anew(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        steps = stepped(cluster)
        steps.gates["before commit_upload"] = gate = asyncio.Event()
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            flush = asyncio.create_task(engine.flush())
            await steps.seen("before commit_upload")
            (info,) = await cluster.catalog.list_objects(after=-1, limit=10)
            await cluster.catalog.forget_objects([info.object_id])
            gate.set()
            await flush
            assert same(await read_all(stream), sent)


async def test_objects_condemned_before_the_commit_are_written_anew(tmp_path: Path) -> None:
    """The catalog was away for longer than prepared objects live, and the collector runs before the commit."""
    async with memory_cluster(tmp_path) as cluster:
        steps = stepped(cluster)
        steps.gates["before commit_upload"] = gate = asyncio.Event()
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            flush = asyncio.create_task(engine.flush())
            await steps.seen("before commit_upload")
            (info,) = await cluster.catalog.list_objects(after=-1, limit=10)
            assert await cluster.catalog.expire_objects([info.object_id], now_ms=2**62) == [info.object_id]
            gate.set()
            await flush
            assert engine.error is None
            assert same(await read_all(stream), sent)


async def expect_only_committed_objects(cluster: EngineCluster) -> None:
    infos = await cluster.catalog.list_objects(after=-1, limit=100)
    committed = {object_key(CLUSTER, info.object_id) for info in infos if info.state is ObjectState.COMMITTED}
    assert cluster.object_keys == committed


async def test_a_write_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, replace(SMALL, prepare_ttl_ms=100)) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            keys: list[str] = []

            async def first_hangs(call: str, key: str) -> None:
                if not key.startswith(MARK_KEYS):
                    keys.append(key)
                if key == keys[0]:
                    await asyncio.Event().wait()

            cluster.store.hook = first_hangs
            sent = fill(stream, 3)
            await engine.flush()
            assert len(set(keys)) == 2
            assert same(await read_all(stream), sent)
            await expect_only_committed_objects(cluster)


@pytest.mark.parametrize("forgotten", [True, False])
async def test_an_object_that_arrives_after_it_was_reaped_is_removed(tmp_path: Path, *, forgotten: bool) -> None:
    """The machine was suspended in the middle of a PUT, while the collector of another node continued."""
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            reaped: list[int] = []

            async def reap_first(call: str, _key: str) -> None:
                if call == "put" and not reaped:
                    (info,) = await cluster.catalog.list_objects(after=-1, limit=10)
                    reaped.append(info.object_id)
                    await cluster.catalog.expire_objects(reaped, now_ms=2**62)
                    if forgotten:
                        await cluster.catalog.forget_objects(reaped)

            cluster.store.hook = reap_first
            sent = fill(stream, 3)
            await engine.flush()
            assert len(reaped) == 1
            assert same(await read_all(stream), sent)
            await expect_only_committed_objects(cluster)


async def take_over(cluster: EngineCluster, stream_id: int) -> None:
    """Another node opens the stream."""
    node = await cluster.catalog.register_node(2, "127.0.0.1", 9093, now_ms=0, lease_ms=1)
    await hand_over(cluster.catalog, [stream_id], leader=2)
    await cluster.catalog.open_streams([stream_id], StreamOwner(2, node.epoch, WAL_ID))


async def test_a_fenced_stream_stops_alone(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        ids = await cluster.create(3)
        async with cluster.engine() as engine:
            streams = await engine.open_streams(ids)
            for stream in streams:
                fill(stream, 3)
            await take_over(cluster, ids[1])
            await engine.flush()
            assert engine.error is None
            assert [stream.committed_offset for stream in streams] == [30, 0, 30]
            with pytest.raises(StreamFenced, match=f"stream {ids[1]}"):
                fill(streams[1], 1)
            fill(streams[0], 1)
            await engine.flush()
            assert engine.stats.dropped_bytes > 3000
            assert cluster.wal.used_bytes == 0


async def test_nothing_of_a_fenced_stream_is_served_kept_or_uploaded(tmp_path: Path) -> None:
    """It has a part in objects, a part in a block whose upload is held up, and a part in the current block."""
    async with memory_cluster(tmp_path) as cluster:
        steps = stepped(cluster)
        ids = await cluster.create(2)
        async with cluster.engine() as engine:
            fenced, other = streams = await engine.open_streams(ids)
            for stream in streams:
                fill(stream, 3)
            await engine.flush()
            steps.gates["before commit_upload"] = gate = asyncio.Event()
            for stream in streams:
                fill(stream, 3)
            flush = asyncio.create_task(engine.flush())
            await steps.seen("before commit_upload", 2)
            for stream in streams:
                fill(stream, 3)
            await take_over(cluster, fenced.stream_id)
            assert len((await fenced.read(0, 1 << 20)).batches) == 9, "it is not known to be fenced"
            gate.set()
            await flush
            for offset in (0, 30, 60, 90):
                found = fenced.read_cached(offset, 1 << 20)
                assert found is None or not found.batches
                with pytest.raises(StreamFenced, match=f"stream {fenced.stream_id}"):
                    await fenced.read(offset, 1 << 20)
            assert fenced.cached_for_time(0, 0) is None
            await engine.flush()
            infos = await cluster.catalog.get_streams(ids)
            assert [infos[stream_id].end_offset for stream_id in ids] == [30, 90]
            assert len(await read_all(other)) == 9
            assert engine.log_cache_bytes == 9 * (1000 + BATCH_OVERHEAD_BYTES)
            assert engine.error is None


async def test_a_stream_that_comes_back_is_recovered_without_what_was_fenced(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        steps = stepped(cluster)
        steps.gates["before commit_upload"] = gate = asyncio.Event()
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 3)
            flush = asyncio.create_task(engine.flush())
            await steps.seen("before commit_upload")
            fill(stream, 3)  # in the block behind
            await take_over(cluster, stream_id)
            gate.set()
            await flush
            await engine.close_stream(stream)
            await hand_over(cluster.catalog, [stream_id], leader=NODE_ID)
            (stream,) = await engine.open_streams([stream_id])
            assert stream.next_offset == 0
            sent = fill(stream, 2)
            assert stream.last_durable is not None
            await stream.last_durable
            assert stream.confirmed_offset == 20
        cluster.crash()
        async with cluster.engine() as engine:
            assert not engine.stopped_streams
            (stream,) = await engine.open_streams([stream_id])
            assert same(await read_all(stream), sent)


async def test_a_fenced_node_stops_and_keeps_its_wal(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 3)
            await cluster.catalog.register_node(NODE_ID, "127.0.0.1", 9092, now_ms=0, lease_ms=1)
            used = cluster.wal.used_bytes
            with pytest.raises(StorageStopped, match=f"node {NODE_ID}"):
                await engine.flush()
            assert engine.error is not None
            with pytest.raises(StorageStopped, match=f"node {NODE_ID}"):
                fill(stream, 1)
            with pytest.raises(StorageStopped, match=f"node {NODE_ID}"):
                await engine.flush()
            assert cluster.wal.used_bytes == used
            assert len(await read_all(stream)) == 3


async def test_a_deleted_topic_holds_up_nobody(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (doomed,) = await cluster.create(1, name="doomed")
        (other,) = await cluster.create(1)
        async with cluster.engine() as engine:
            streams = await engine.open_streams([doomed, other])
            for stream in streams:
                fill(stream, 3)
            await delete_topic(cluster.catalog, "doomed", now_ms=0, delete_after_ms=0)
            await engine.flush()
            assert streams[1].committed_offset == 30
            for stream in streams:
                fill(stream, 3)
            await engine.close_stream(streams[0], discard=True)
            assert engine.stats.dropped_bytes > 3000
            with pytest.raises(StorageStopped, match="is closed"):
                fill(streams[0], 1)
            await engine.flush()
            assert cluster.wal.used_bytes == 0


async def test_streams_go_to_the_store_they_name(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path, stores=("main", "cheap")) as cluster:
        ids = await cluster.create(4)
        async with cluster.engine() as engine:
            streams = await engine.open_streams(ids)
            streams[2].store = streams[3].store = "cheap"
            sent = [fill(stream, 3) for stream in streams]
            await engine.flush()
            infos = await cluster.catalog.list_objects(after=-1, limit=10)
            assert sorted((info.store, info.kind.name) for info in infos) == [("cheap", "SSO"), ("main", "SSO")]
            await engine.close()
        cluster.crash()
        async with cluster.engine() as engine:
            for stream, expected in zip(await engine.open_streams(ids), sent, strict=True):
                assert same(await read_all(stream), expected)


async def test_close_uploads_and_a_cancelled_close_loses_nothing(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        tried = asyncio.Event()

        async def outage(call: str, key: str) -> None:
            tried.set()
            raise StoreError("the store is away")

        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            cluster.store.hook = outage
            close = asyncio.create_task(engine.close())
            await tried.wait()
            close.cancel()
            with pytest.raises(asyncio.CancelledError):
                await close
            await engine.close(upload=False)
            with pytest.raises(StorageStopped, match="closing"):
                fill(stream, 1)
        cluster.crash()
        cluster.store.hook = let_through
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            assert same(stream.recovered, sent)
            stream.snapshot_source = bytes
            await engine.close()
        assert cluster.wal.used_bytes == 0


async def test_a_close_before_the_first_step_of_an_upload_answers_who_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        closing: list[asyncio.Task[None]] = []
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])

            def snapshot() -> bytes:
                closing.append(asyncio.create_task(engine.close(upload=False)))  # runs before the upload's task
                return b""

            stream.snapshot_source = snapshot
            fill(stream, 3)
            async with asyncio.timeout(TIMEOUT_S):
                with pytest.raises(StorageStopped, match="the engine is closed"):
                    await engine.flush()
            await closing[0]


async def test_a_snapshot_that_fails_stops_the_engine_and_answers_who_waits_for_the_upload(tmp_path: Path) -> None:
    def snapshot() -> bytes:
        raise ZeroDivisionError

    async def serve(cluster: EngineCluster, stream_id: int) -> None:
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            stream.snapshot_source = snapshot
            sent.extend(fill(stream, 3))
            flush = asyncio.create_task(engine.flush())
            with pytest.raises(asyncio.CancelledError):  # the bug ends the engine's task group
                await asyncio.Event().wait()
            answers.append(str(engine.error))
            async with asyncio.timeout(TIMEOUT_S):
                await engine.close()
                answers.extend(map(str, await asyncio.gather(flush, return_exceptions=True)))

    sent: list[StreamBatch] = []
    answers: list[str] = []
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        with pytest.raises(ExceptionGroup) as raised:
            await serve(cluster, stream_id)
        assert raised.group_contains(ZeroDivisionError)
        assert answers == ["a snapshot failed by a bug: ZeroDivisionError()"] * 2
        cluster.crash()
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            assert same(stream.recovered, sent)


async def read_everything(cluster: EngineCluster, ids: Sequence[int]) -> list[int]:
    async with cluster.engine() as engine:
        return [len(await read_all(stream)) for stream in await engine.open_streams(ids)]


async def test_two_uploads_of_a_stream_that_is_closed_between(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 3)
            await engine.close_stream(stream)
            assert stream.committed_offset == 30
            (stream,) = await engine.open_streams([stream_id])
            assert stream.read_cached(0, 1000) is None, "another node may have cleaned it in between"
            with pytest.raises(StorageError, match="open already"):
                await engine.open_streams([stream_id])
            await stream.append(make_batch(stream_id, 30))
            assert len(await read_all(stream)) == 4
            await engine.close()
        cluster.crash()
        assert await read_everything(cluster, [stream_id]) == [4]


def test_an_upload_takes_its_time_until_somebody_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anabranch.s3stream.upload.pace, "BYTES_PER_SECOND_MIN", 1)
    settings = replace(SMALL, upload_threshold_bytes=600_000, upload_age_ms=10**10)
    began_s, awaited_s = 1e6, 1e4  # far longer than the catalog's threads take by the loop's clock

    async def main() -> None:
        async with memory_cluster(tmp_path, settings) as cluster:
            (stream_id,) = await cluster.create(1)
            async with cluster.engine() as engine:
                (stream,) = await engine.open_streams([stream_id])
                fill(stream, 1)
                await asyncio.sleep(began_s)
                batches = fill(stream, 6, size_bytes=100_000)
                await asyncio.sleep(awaited_s)
                assert engine.stats.uploads == 0
                await engine.flush()
                assert asyncio.get_running_loop().time() < began_s + 2 * awaited_s
                assert engine.stats.uploads == 1
                assert stream.committed_offset == batches[-1].end_offset

    run_virtual(main())
