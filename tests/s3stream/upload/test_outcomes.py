"""Uploads whose commits are not answered, and a node's reports while it waits for its catalog."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import UploadCommit
from anabranch.s3stream.errors import CatalogDamaged, CatalogUnavailable, OutcomeUnknown, StorageStopped, StoreError
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.model import ObjectKind, ObjectState
from anabranch.s3stream.object.marks import MARK_KEYS, MarkPlace
from tests.support.catalog_node import CLUSTER, NODE_ID
from tests.support.memory_store import let_through
from tests.support.storage import SMALL, EngineCluster, fill, memory_cluster, read_all, same

Answer = Callable[[UploadCommit], Awaitable[None]]


class AnsweringCatalog:
    """A catalog whose first commits of uploads a test answers, one after the other."""

    def __init__(self, catalog: Catalog, *answers: Answer) -> None:
        self._catalog = catalog
        self._answers = list(answers)
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    async def commit_upload(self, commit: UploadCommit) -> None:
        """Let the test answer, or commit."""
        self.commits += 1
        if self._answers:
            await self._answers.pop(0)(commit)
        else:
            await self._catalog.commit_upload(commit)


def answered(cluster: EngineCluster, *answers: Answer) -> AnsweringCatalog:
    """Put the answers before the cluster's catalog."""
    made = AnsweringCatalog(cluster.catalog, *answers)
    cluster.wrap_catalog = lambda _: cast("Catalog", made)
    return made


async def collect(cluster: EngineCluster) -> None:
    await GarbageCollector(
        catalog=cluster.catalog, stores=cluster.stores, cluster=CLUSTER, now_ms=cluster.clock.now_ms
    ).collect()


async def replace_and_forget(cluster: EngineCluster) -> None:
    """Compaction and collection by other processes: the uploaded data is in other objects now."""
    (info,) = [each for each in await cluster.catalog.list_objects(after=-1, limit=10) if each.committed_ms]
    node = await cluster.uploading_node()
    await node.compact([info], (ObjectKind.SO, await node.read_object(info.object_id)))
    await collect(cluster)
    assert info.object_id not in await cluster.catalog.get_objects([info.object_id])


async def test_a_commit_that_took_effect_is_not_made_again(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)

        async def lose(commit: UploadCommit) -> None:
            await cluster.catalog.commit_upload(commit)
            raise OutcomeUnknown("a commit was not answered")

        catalog = answered(cluster, lose)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            await engine.flush()
            assert (catalog.commits, engine.stats.uploads, len(cluster.object_keys)) == (1, 1, 1)
            assert engine.error is None
            assert same(await read_all(stream), sent)


async def test_an_upload_that_took_effect_and_was_replaced_since_is_not_begun_again(tmp_path: Path) -> None:
    """Only this node cannot reach the catalog, for long: others compact its committed data, and collect the objects."""
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)

        async def lose(commit: UploadCommit) -> None:
            await cluster.catalog.commit_upload(commit)
            await replace_and_forget(cluster)
            raise OutcomeUnknown("a commit was not answered")

        answered(cluster, lose)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            await engine.flush()
            assert engine.error is None
            assert stream.committed_offset == stream.next_offset
            assert cluster.wal.used_bytes == 0
            assert same(await read_all(stream), sent)
            sent += fill(stream, 2)
            await engine.flush()
        cluster.crash()
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            assert same(await read_all(stream), sent)


async def test_objects_of_a_commit_that_did_not_take_effect_are_written_again_once_reaped(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)

        async def drop(_: UploadCommit) -> None:
            cluster.clock.ms += SMALL.prepare_ttl_ms
            await collect(cluster)
            raise OutcomeUnknown("a commit was not answered")

        answered(cluster, drop)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            await engine.flush()
            assert engine.error is None
            infos = await cluster.catalog.list_objects(after=-1, limit=10)
            assert [info.state for info in infos] == [ObjectState.COMMITTED]
            assert same(await read_all(stream), sent)


async def test_an_outage_of_the_catalog_is_noted_until_the_commit_is_through(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        asked, ends = asyncio.Event(), asyncio.Event()

        async def refuse(_: UploadCommit) -> None:
            raise CatalogUnavailable("catalog x: cannot execute INSERT in a read-only transaction")

        async def wait(_: UploadCommit) -> None:
            asked.set()
            await ends.wait()
            raise CatalogUnavailable("still")

        answered(cluster, refuse, wait)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            flush = asyncio.create_task(engine.flush())
            await asked.wait()
            (outage,) = engine.outages.current()
            assert outage.reason == "catalog x: cannot execute INSERT in a read-only transaction"
            assert engine.error is None
            sent += fill(stream, 1)
            ends.set()
            await flush
            assert engine.outages.current() == []
            assert same(await read_all(stream), sent)


async def test_a_damaged_catalog_stops_appends(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)

        async def refuse(_: UploadCommit) -> None:
            raise CatalogDamaged("catalog x: database disk image is malformed; restore a backup")

        answered(cluster, refuse)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 3)
            with pytest.raises(StorageStopped, match="disk image is malformed; restore a backup"):
                await engine.flush()
            with pytest.raises(StorageStopped, match="disk image is malformed"):
                fill(stream, 1)
            assert stream.committed_offset == 0
            assert cluster.wal.used_bytes > 0, "the log keeps what was acknowledged"


async def test_records_stay_in_the_log_until_the_store_has_the_mark_of_their_upload(tmp_path: Path) -> None:
    """A catalog may forget the commit. While the mark cannot be put, appends go on."""
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)
        refused = asyncio.Event()

        async def refuse_marks(call: str, key: str) -> None:
            if call == "put" and key.startswith(MARK_KEYS):
                refused.set()
                raise StoreError("the store is away")

        cluster.store.hook = refuse_marks
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            sent = fill(stream, 3)
            flush = asyncio.create_task(engine.flush())
            await refused.wait()
            assert (await cluster.catalog.get_streams([stream_id]))[stream_id].end_offset == stream.next_offset
            assert cluster.wal.used_bytes > 0
            assert stream.committed_offset == 0
            sent += fill(stream, 1)
            assert [outage.where for outage in engine.outages.current()] == ["object store main"]
            assert not flush.done()
            cluster.store.hook = let_through
            await flush
            await engine.flush()
            assert cluster.wal.used_bytes == 0
            assert engine.outages.current() == []
            assert await marks_of(cluster) == {NODE_ID: 2}
            assert same(await read_all(stream), sent)


async def test_the_mark_of_a_commit_that_was_not_answered_counts_it(tmp_path: Path) -> None:
    async with memory_cluster(tmp_path) as cluster:
        (stream_id,) = await cluster.create(1)

        async def lose(commit: UploadCommit) -> None:
            other = Catalog(f"sqlite:///{tmp_path / 'catalog.sqlite'}")  # one that does not see the answer
            await other.open(cluster=CLUSTER)
            await other.commit_upload(commit)
            await other.close()
            raise OutcomeUnknown("a commit was not answered")

        answered(cluster, lose)
        async with cluster.engine() as engine:
            (stream,) = await engine.open_streams([stream_id])
            fill(stream, 3)
            await engine.flush()
            assert await marks_of(cluster) == {NODE_ID: 1}


async def marks_of(cluster: EngineCluster) -> Mapping[int, int]:
    return (await MarkPlace(cluster.store, CLUSTER, cluster.catalog.identity()).read()).uploads
