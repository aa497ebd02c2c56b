"""Both levels against a real catalog and store: bytes before and after, memory, crashes, streams that move on."""

import asyncio
import pickle
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from anabranch.compaction.execution import ExecutionContext, UnreadableInput, memory_for_blocks
from anabranch.compaction.joins.execute import execute_join, read_join_inputs
from anabranch.compaction.joins.run import commit_join, plan_joins
from anabranch.compaction.outputs import PreparedOutputs
from anabranch.compaction.report import CompactionSummary
from anabranch.compaction.service import CompactionService
from anabranch.compaction.sets.execute import WrittenObject, execute_share
from anabranch.compaction.sets.plan import InputObject, Survey
from anabranch.compaction.sets.run import commit_sets, plan_sets, prepare_shares, run_sets
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import NodeFenced, StoreError
from anabranch.s3stream.model import ObjectKind, ObjectState, StreamOwner, object_key
from anabranch.s3stream.object.reader import read_index
from anabranch.s3stream.object.writer_id import CompactionWriter
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.s3stream.store.local import LocalStore
from anabranch.s3stream.store.s3 import S3Store
from tests.support.catalog_node import CLUSTER, HOUR_MS, NODE_ID, WAL_ID, UploadingNode, delete_topic, uploading_node
from tests.support.memory_store import MemoryStore, let_through
from tests.support.s3 import S3Bucket

SSO, SO = ObjectKind.SSO, ObjectKind.SO
KIB, MIB = 1024, 1024 * 1024
SMALL = CompactionSettings(split_bytes=40 * KIB, memory_bytes=200 * KIB, block_bytes=32 * KIB)


@pytest.fixture
async def some(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as made:
        yield made


def memory(made: UploadingNode) -> MemoryStore:
    assert isinstance(made.store, MemoryStore)
    return made.store


async def fill(made: UploadingNode, streams: int, uploads: int, *, seed: int = 1) -> list[int]:
    """Uploads in which each stream takes part now and then, some more than others."""
    rng = random.Random(seed)
    ids = list(await made.start(streams))
    objects: list[int] = []
    for _ in range(uploads):
        batches = [
            made.batch(stream, rng.choice([100, 3_000, 20_000 if stream == ids[0] else 10]))
            for stream in ids
            for _ in range(rng.randint(0, 3))
        ]
        (item,) = await made.upload((SSO, batches or [made.batch(ids[0], 10)]), block_bytes=8 * KIB)
        objects.append(item.object_id)
        made.clock.ms += 60_000
    return objects


async def states(made: UploadingNode) -> dict[ObjectState, int]:
    found: dict[ObjectState, int] = {}
    for name, (count, _) in (await made.catalog.count_objects()).items():
        state = ObjectState[name.split()[1].upper()]
        found[state] = found.get(state, 0) + count
    return found


async def test_the_bytes_of_every_stream_stay(some: UploadingNode) -> None:
    await fill(some, 6, 12)
    before = await some.contents()
    moved: set[int] = set()
    summary = await CompactionService(replace(some.compaction_context(SMALL), on_replaced=moved.update)).run_once()
    assert moved == set(some.ends)
    assert await some.contents() == before
    assert (summary.sso_before, summary.sso_after) == (12, 1)
    assert summary.so_after > 0
    assert summary.iterations > 1
    assert summary.errors == []
    assert not memory(some).uploads


async def test_a_second_run_does_nothing(some: UploadingNode) -> None:
    await fill(some, 6, 12)
    service = some.service(SMALL)
    first = await service.run_once()
    puts = some.store.calls.put
    second = await service.run_once()
    assert second.commits == 0
    assert some.store.calls.put == puts
    assert (second.sso_after, second.so_after) == (first.sso_after, first.so_after)


async def test_a_plan_is_carried_out_elsewhere(some: UploadingNode) -> None:
    """The shares of a plan are sent to another process and back, in any order; one commit takes all their outputs."""
    await fill(some, 6, 12)
    before = await some.contents()
    node = some.compaction_context(replace(SMALL, call_cost_bytes=KIB))
    (plan,) = await plan_sets(node, full=True)
    prepared = PreparedOutputs(node, some.store)
    shares = await prepare_shares(node, plan, prepared)
    assert len(shares) > 2
    assert [sorted(kind for kind, _ in share.ids) for share in shares].count([SSO]) == 1
    assert all(each.size_bytes <= memory_for_blocks(SMALL) for share in shares for each in share.iterations)
    made: list[WrittenObject] = []
    for share in shares[::-1]:
        there = pickle.loads(pickle.dumps((share, SMALL)))
        back = pickle.dumps(list(await execute_share(there[0], ExecutionContext(some.store, CLUSTER, there[1]))))
        made += pickle.loads(back)
    await commit_sets(node, plan, prepared, made)
    assert await some.contents() == before
    assert (await some.catalog.count_objects())["SSO committed"][0] == 1
    assert len(made) > 2
    await every_object_is_accounted_for(some)


async def test_a_group_is_joined_elsewhere(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    for size in (3_000, 6 * MIB, 100):
        await some.upload((SO, [some.batch(stream, size)]))
    before = await some.contents()
    node = some.compaction_context(SMALL)
    (group,) = await plan_joins(node, full=True)
    prepared = PreparedOutputs(node, some.store)
    (output,) = await prepared.prepare(1, CompactionWriter("w"))
    there, name = pickle.loads(pickle.dumps((group, output)))
    execution = ExecutionContext(some.store, CLUSTER, SMALL)
    join = await read_join_inputs(there, execution)
    assert join is not None
    joined = pickle.loads(pickle.dumps(await execute_join(join, name, execution)))
    await commit_join(node, group, prepared, joined)
    assert await some.contents() == before
    assert (await some.catalog.count_objects())["SO committed"][0] == 1


def test_a_bad_input_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(UnreadableInput(7, StoreError("gone"))))
    assert (error.object_id, str(error)) == (7, "compaction leaves object 7 alone: gone")


async def test_nothing_to_do(some: UploadingNode) -> None:
    await some.start(1)
    summary = await some.service().run_once()
    assert (summary.sso_after, summary.commits, summary.write_amplification) == (0, 0, 0.0)


async def test_trimmed_data_is_dropped(some: UploadingNode) -> None:
    await fill(some, 4, 8)
    streams = list(some.ends)
    await some.trim(streams[0], some.ends[streams[0]])
    await some.trim(streams[1], some.ends[streams[1]] - 15)
    before = await some.contents()
    await some.service(SMALL).run_once()
    assert await some.contents() == before
    kept = set()
    async for stored in some.store.list():
        object_id = int(stored.key.rpartition("/")[2])
        if (await some.catalog.get_objects([object_id]))[object_id].state is ObjectState.COMMITTED:
            kept |= {entry.stream_id for entry in await read_index(some.store, stored.key)}
    assert streams[0] not in kept


async def test_small_blocks_are_joined(some: UploadingNode) -> None:
    ids = await some.start(2)
    for _ in range(20):
        await some.upload((SSO, [some.batch(stream, 100) for stream in ids]))
    before = await some.contents()
    await some.service().run_once()
    assert await some.contents() == before
    (location,) = await some.catalog.find_ranges(ids[0], 0, 1000, limit=10)
    index = await read_index(some.store, object_key(CLUSTER, location.object.object_id))
    assert [(entry.start_offset, entry.end_offset) for entry in index] == [(0, 200), (0, 200)]


async def test_memory_of_an_iteration_stays_within_its_bound(some: UploadingNode) -> None:
    await fill(some, 6, 12)
    service = some.service(SMALL)
    await service.run_once()
    assert 0 < service.stats.iteration_bytes_peak <= SMALL.memory_bytes


async def test_old_data_leaves_stream_set_objects_and_its_age_survives_compaction(some: UploadingNode) -> None:
    ids = await some.start(2)
    settings = CompactionSettings(force_split_ms=2 * HOUR_MS)
    service = some.service(settings)
    for _ in range(2):
        await some.upload((SSO, [some.batch(stream, 100) for stream in ids]))
        some.clock.ms += HOUR_MS * 9 // 10
        await service.run_once()
    # Compaction rewrote the object 54 minutes ago; its data is 108 minutes old.
    assert (await service.run_once()).commits == 0
    some.clock.ms += HOUR_MS // 4
    before = await some.contents()
    summary = await service.run_once()
    assert (summary.sso_before, summary.sso_after, summary.so_after) == (1, 0, 2)
    assert await some.contents() == before


async def test_stream_objects_are_joined(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    for _ in range(5):
        await some.upload((SO, [some.batch(stream, 3_000)]))
    before = await some.contents()
    summary = await some.service().run_once()
    assert (summary.so_before, summary.so_after, summary.bytes_copied) == (5, 1, 0)
    assert await some.contents() == before


async def test_large_stream_objects_are_copied_by_the_store(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    for sizes in ([2], [1] * 9, [6], [1], [1], [1] * 12):
        await some.upload((SO, [some.batch(stream, size * MIB) for size in sizes]))
    before = await some.contents()
    some.store.calls.bytes_read = 0
    summary = await some.service().run_once()
    assert (summary.so_before, summary.so_after) == (6, 1)
    # 2 and 3 or 4 of the 9; 2 and 3 or 4 of the 12.
    assert 19 * MIB <= summary.bytes_copied < 22 * MIB
    assert summary.bytes_read + summary.bytes_copied < 31.1 * MIB
    assert await some.contents() == before


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.server)])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "local":
        return LocalStore("local", tmp_path / "objects")
    bucket: S3Bucket = request.getfixturevalue("bucket")
    return S3Store("s3", bucket.settings(), rng=random.Random(1))


async def test_on_durable_stores(durable: ObjectStore, tmp_path: Path) -> None:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db", durable) as made:
        ids = await made.start(3)
        for _ in range(4):
            await made.upload(
                (SSO, [made.batch(stream, 1_000) for stream in ids[1:]]),
                (SO, [made.batch(ids[0], 3 * MIB), made.batch(ids[0], 3 * MIB)]),
            )
        before = await made.contents()
        summary = await made.service().run_once()
        assert (summary.sso_after, summary.so_after) == (1, 1)
        assert summary.bytes_copied == pytest.approx(24 * MIB, rel=0.01)
        assert await made.contents() == before


class ProcessKilled(BaseException):
    """The process is gone: nothing works any more."""


class CrashingCalls:
    """Counts calls to store and catalog; from one of them on, all fail."""

    def __init__(self, crash_at: int) -> None:
        self.count = 0
        self.crash_at = crash_at

    def step(self) -> None:
        self.count += 1
        if self.count >= self.crash_at:
            raise ProcessKilled

    async def hook(self, _call: str, _key: str) -> None:
        self.step()


class CrashingCatalog:
    """Each command may fail before it takes effect, and after."""

    def __init__(self, catalog: Catalog, steps: CrashingCalls) -> None:
        self._catalog = catalog
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._steps.step()
            answer = await getattr(self._catalog, name)(*args, **kwargs)
            self._steps.step()
            return answer

        return call


async def crash_and_finish(made: UploadingNode, crash_at: int) -> bool:
    """Run compaction with a crash at a step; return True if the run ended before that step."""
    await fill(made, 2, 3)
    (stream, *_) = list(made.ends)
    for _ in range(2):
        await made.upload((SO, [made.batch(stream, 5 * MIB)]))
    before = await made.contents()
    steps = CrashingCalls(crash_at)
    memory(made).hook = steps.hook
    node = replace(made.compaction_context(SMALL), catalog=cast("Catalog", CrashingCatalog(made.catalog, steps)))
    finished = True
    try:
        await CompactionService(node).run_once()
    except (ProcessKilled, BaseExceptionGroup):
        finished = False
    assert finished == (steps.count < crash_at)
    memory(made).hook = let_through
    assert await made.contents() == before
    await every_object_is_accounted_for(made)
    # The process starts again.
    await made.service(SMALL).run_once()
    assert await made.contents() == before
    await every_object_is_accounted_for(made)
    counts = await made.catalog.count_objects()
    assert (counts["SSO committed"][0], counts["SO committed"][0]) == (1, 1)
    return finished


@pytest.mark.slow
async def test_a_crash_at_any_step_loses_nothing(tmp_path: Path) -> None:
    """At each call to store or catalog, of both levels, before and after it takes effect."""
    crash_at = 1
    while True:
        async with uploading_node(f"sqlite:///{tmp_path}/catalog-{crash_at}.db") as made:
            if await crash_and_finish(made, crash_at):
                break
        crash_at += 1
    assert crash_at > 40


async def test_a_failing_store_fails_the_run_and_leaves_no_upload_open(some: UploadingNode) -> None:
    (stream,) = await some.start(1)
    for _ in range(2):
        await some.upload((SO, [some.batch(stream, 6 * MIB)]))

    async def fail(call: str, _: str) -> None:
        if call == "part_copy":
            raise StoreError("injected")

    memory(some).hook = fail
    service = some.service()
    with pytest.raises(StoreError, match="injected"):
        await service.run_once()
    assert not memory(some).uploads
    memory(some).hook = let_through
    assert (await service.run_once()).so_after == 1


async def every_object_is_accounted_for(made: UploadingNode) -> None:
    """Check that every object in the store is committed, or known and due to be reaped."""
    reapable = {info.object_id for info, _ in await made.catalog.list_reapable(now_ms=1 << 60, limit=10_000)}
    stored = {int(each.key.rpartition("/")[2]) async for each in made.store.list()}
    committed = {
        key
        for key, info in (await made.catalog.get_objects(sorted(stored))).items()
        if info.state is ObjectState.COMMITTED
    }
    assert stored <= reapable | committed
    assert not reapable & committed


async def test_the_stream_moves_on_while_a_run_goes_on(some: UploadingNode) -> None:
    """Appends, a trim and a take-over between the reads and the commit."""
    await fill(some, 4, 6)
    streams = list(some.ends)
    node = some.compaction_context(SMALL)
    (plan,) = await plan_sets(node, full=True)
    await some.upload((SSO, [some.batch(stream, 100) for stream in streams]))
    await some.trim(streams[0], some.ends[streams[0]] - 25)
    await some.trim(streams[1], some.ends[streams[1]])
    await some.catalog.open_streams([streams[2]], StreamOwner(NODE_ID, some.epoch, WAL_ID))
    before = await some.contents()
    await run_sets(node, plan, timed=False, under_pressure=lambda: False, report=lambda _: None)
    assert await some.contents() == before
    await some.service(SMALL).run_once()
    assert await some.contents() == before
    await every_object_is_accounted_for(some)


async def test_a_deleted_topic_while_a_run_goes_on(some: UploadingNode) -> None:
    await fill(some, 4, 6)
    node = some.compaction_context(SMALL)
    (plan,) = await plan_sets(node, full=True)
    await delete_topic(some.catalog, "t", now_ms=some.clock.ms, delete_after_ms=some.clock.ms)
    await run_sets(node, plan, timed=False, under_pressure=lambda: False, report=lambda _: None)
    assert ObjectState.COMMITTED not in await states(some)
    await every_object_is_accounted_for(some)


async def test_a_fenced_node_commits_nothing(some: UploadingNode) -> None:
    await fill(some, 4, 6)
    service = some.service(SMALL)
    before = await some.contents()
    await some.catalog.register_node(NODE_ID, "other", 1, now_ms=some.clock.ms, lease_ms=HOUR_MS)
    stored = set(memory(some).objects)
    with pytest.raises(NodeFenced):
        await service.run_once()
    assert await some.contents() == before
    assert set(memory(some).objects) == stored


async def test_a_damaged_object_is_left_alone(some: UploadingNode) -> None:
    objects = await fill(some, 4, 6)
    key = object_key(CLUSTER, objects[2])
    good = memory(some).objects[key]
    before = await some.contents()
    damaged = bytearray(good[0])
    damaged[100] ^= 1
    memory(some).objects[key] = (bytes(damaged), *good[1:])
    service = some.service(SMALL)
    summary = await service.run_once()
    assert summary.left_alone == [objects[2]]
    assert "position" in summary.errors[0]
    assert summary.sso_after == 2
    memory(some).objects[key] = good
    assert await some.contents() == before
    assert (await some.service(SMALL).run_once()).sso_after == 1
    assert await some.contents() == before


async def test_an_unreadable_index_is_left_alone(some: UploadingNode) -> None:
    objects = await fill(some, 4, 6)
    del memory(some).objects[object_key(CLUSTER, objects[0])]
    with pytest.raises(UnreadableInput, match=f"object {objects[0]} alone"):
        await plan_sets(some.compaction_context(SMALL), full=True)
    summary = await some.service(SMALL).run_once()
    assert summary.left_alone == [objects[0]]
    assert summary.sso_after == 2


async def test_an_input_that_another_node_has_replaced_and_deleted_is_no_damage(some: UploadingNode) -> None:
    objects = await fill(some, 4, 6)
    before = await some.contents()
    service, other = some.service(SMALL), some.service(SMALL)

    async def replace_all(_call: str, _key: str) -> None:
        memory(some).hook = let_through
        assert (await other.run_once()).sso_after == 1
        await memory(some).delete([object_key(CLUSTER, each) for each in objects])
        await some.catalog.forget_objects(objects)

    memory(some).hook = replace_all
    summary = await service.run_once()
    assert (summary.left_alone, summary.errors, summary.sso_after) == ([], [], 1)
    assert await some.contents() == before


async def test_the_plan_changes_nothing(some: UploadingNode) -> None:
    await fill(some, 4, 6)
    (stream, *_) = list(some.ends)
    for _ in range(3):
        await some.upload((SO, [some.batch(stream, 1_000)]))
    service = some.service(SMALL)
    puts, before = some.store.calls.put, await some.catalog.count_objects()
    plan = (await service.plan()).as_json(some.compaction_context(SMALL))
    assert (some.store.calls.put, await some.catalog.count_objects()) == (puts, before)
    (sets,) = plan["stream_sets"]
    assert len(sets["inputs"]) == 6
    assert sets["stream_set_objects"] == 1
    assert sum(each["size_bytes"] for each in sets["iterations"]) == sets["live_bytes"]
    (group,) = plan["stream_objects"]
    assert (group["stream_id"], len(group["objects"])) == (stream, 3)
    done = await service.run_once()
    assert done.bytes_read >= sets["live_bytes"]


async def test_the_timer_the_backlog_and_the_trigger_start_runs(some: UploadingNode) -> None:
    await fill(some, 4, 6)
    ran: asyncio.Queue[str] = asyncio.Queue()

    async def start(settings: CompactionSettings, *, trigger: bool) -> None:
        service = some.service(settings)

        async def run() -> CompactionSummary:
            ran.put_nowait("ran")
            raise StoreError("goes on after a failure")

        service.run_timed = run  # type: ignore[method-assign]
        task = asyncio.ensure_future(service.run())
        if trigger:
            service.trigger()
        await ran.get()
        if not trigger:
            await ran.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert service.stats.runs_failed >= 1

    hour = 3_600_000
    await start(replace(SMALL, period_ms=1, backlog_check_ms=0), trigger=False)
    await start(replace(SMALL, period_ms=hour, backlog_check_ms=1, backlog_objects=6), trigger=False)
    await start(replace(SMALL, period_ms=hour, backlog_check_ms=0), trigger=True)


async def test_timed_runs_are_held_to_a_rate_and_let_uploads_go_first(some: UploadingNode) -> None:
    await fill(some, 4, 6)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    settings = replace(SMALL, bytes_per_second_min=1_000, period_ms=3_600_000_000, pressure_pause_ms_max=3_000)
    node = replace(some.compaction_context(settings), sleep=sleep)
    service = CompactionService(node, under_pressure=lambda: True)
    before = await some.contents()
    summary = await service.run_timed()
    assert summary.sso_after == 1
    assert service.stats.pauses == 3 * summary.iterations
    assert max(slept) > 1
    assert await some.contents() == before


async def test_outputs_that_do_not_add_up_are_not_committed(
    some: UploadingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that forgets a block: the proof refuses, nothing changes, the second level still runs."""
    await fill(some, 4, 6)
    (stream, *_) = list(some.ends)
    for _ in range(2):
        await some.upload((SO, [some.batch(stream, 1_000)]))
    before, stored = await some.contents(), set(memory(some).objects)
    real = Survey.scan

    def forgetful(survey: Survey, source: InputObject) -> Iterator[None]:
        entries = list(source.entries)
        return real(survey, source._replace(entries=entries[:-1]))

    monkeypatch.setattr(Survey, "scan", forgetful)
    service = some.service(SMALL)
    summary = await service.run_once()
    assert "expected" in summary.errors[0]
    assert (summary.sso_after, summary.so_after) == (6, 1)
    assert service.stats.runs_failed == 1
    # The outputs of the refused plan are deleted after the usual delay; the one new object is the second level's.
    some.clock.ms += SMALL.delete_delay_ms
    await some.collect()
    assert len(set(memory(some).objects) - stored) == 1
    assert await some.contents() == before
    await every_object_is_accounted_for(some)


async def test_a_refused_commit_leaves_nothing_behind(some: UploadingNode) -> None:
    """Fenced between the reads and the commit."""
    await fill(some, 4, 6)
    node = some.compaction_context(SMALL)
    (plan,) = await plan_sets(node, full=True)
    stored = set(memory(some).objects)

    async def fence(call: str, _: str) -> None:
        if call == "put" and len(memory(some).objects) == len(stored):
            await some.catalog.register_node(NODE_ID, "other", 1, now_ms=some.clock.ms, lease_ms=HOUR_MS)

    memory(some).hook = fence
    with pytest.raises(NodeFenced):
        await run_sets(node, plan, timed=False, under_pressure=lambda: False, report=lambda _: None)
    assert ObjectState.PREPARED not in await states(some)
    some.clock.ms += SMALL.delete_delay_ms
    await some.collect()
    assert set(memory(some).objects) == stored
