"""Cleaning at its due time, on the test's own catalog, store and clock: it starts soon, and it ends."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.compaction.interface import (
    NEVER_MS,
    BatchCodec,
    BatchInfo,
    CleaningHooks,
    CleanPolicy,
    History,
    StreamTail,
)
from anabranch.compaction.scheduler import CleaningScheduler
from anabranch.compaction.service import CompactionService
from anabranch.compaction.settings import CompactionSettings
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogUnavailable, CorruptObject, NodeFenced
from anabranch.s3stream.model import ObjectKind, StreamInfo, object_key
from anabranch.wal.interface import Buffer
from tests.compaction.cleaning.test_cleaner import kafka_batch, table
from tests.compaction.sets.test_run import every_object_is_accounted_for
from tests.support.catalog_node import CLUSTER, UploadingNode, uploading_node
from tests.support.memory_store import MemoryStore

SO, SSO = ObjectKind.SO, ObjectKind.SSO
BY_LAG = CleanPolicy(dirty_ratio_min=1.0, lag_ms_min=0, lag_ms_max=60_000, delete_retention_ms=1 << 40)
BY_RATIO = replace(BY_LAG, dirty_ratio_min=0.5, lag_ms_max=NEVER_MS)
NEVER = replace(BY_LAG, lag_ms_max=NEVER_MS)
SETTINGS = CompactionSettings()
MINUTE_S, HOUR_S = 60, 3600
LOOK_S = SETTINGS.clean_look_ms / 1000 + 1


class CountingCatalog:
    """Counts calls; those in `refused` fail."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.calls: Counter[str] = Counter()
        self.refused: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call: Callable[..., Awaitable[Any]] = getattr(self._catalog, name)

        async def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            if name in self.refused:
                raise CatalogUnavailable(f"{name}: not now")
            return await call(*arguments, **named)

        return counted


@dataclass
class ScheduledNode:
    """A cluster with a scheduler; time passes only where the scheduler sleeps."""

    made: UploadingNode
    policies: Mapping[int, CleanPolicy]
    histories: dict[int, History] = field(default_factory=dict)
    waiting_ms: dict[int, int] = field(default_factory=dict)
    uploads_ms: list[int] = field(default_factory=list)
    under_pressure: bool = False
    gate: asyncio.Event | None = None
    """Sleeps wait for it instead of passing time."""
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a sleep waits for the gate."""
    codec: BatchCodec = field(default_factory=KafkaBatches)

    def __post_init__(self) -> None:
        self.catalog = CountingCatalog(self.made.catalog)
        cleaning = CleaningHooks(self.codec, lambda: self.policies, self._history)
        node = replace(
            self.made.compaction_context(SETTINGS),
            catalog=cast("Catalog", self.catalog),
            cleaning=cleaning,
            sleep=self._sleep,
        )
        self.service = CompactionService(node, under_pressure=lambda: self.under_pressure)
        self.scheduler = CleaningScheduler(
            self.service,
            cleaning,
            tails=lambda stream: StreamTail(0, self.made.ends[stream], self.waiting_ms.get(stream, -1)),
            request_upload=lambda: self.uploads_ms.append(self.made.clock.ms),
            steady_ms=self.made.clock.now_ms,
        )

    def _history(self, info: StreamInfo) -> History:
        return self.histories.get(info.stream_id) or History(info.end_offset)

    async def _sleep(self, seconds: float) -> None:
        if self.gate is None:
            self.made.clock.ms += int(seconds * 1000)
        else:
            self.waits.set()
            await self.gate.wait()

    @property
    def cleaned(self) -> int:
        """Number of cleanings so far."""
        return self.service.stats.streams_cleaned

    async def pass_time(self, seconds: float) -> None:
        """Run the scheduler for some seconds of the manual clock."""
        clock = self.made.clock
        until_ms = clock.ms + int(seconds * 1000)
        while clock.ms < until_ms:
            wait_ms = await self.scheduler.turn()
            clock.ms = min(clock.ms + wait_ms, until_ms)

    async def put(self, stream: int, kind: ObjectKind = SO, *, values: int = 2, key: bytes = b"k") -> None:
        """Upload some values of a key."""
        batches = [kafka_batch(self.made, stream, [(key, b"%d" % at)]) for at in range(values)]
        await self.made.upload((kind, batches))


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[UploadingNode]:
    async with uploading_node(f"sqlite:///{tmp_path}/catalog.db") as one:
        yield one


async def test_a_stream_is_cleaned_when_its_lag_is_over(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: BY_LAG})
    await scheduled.put(stream, key=b"other")
    await scheduled.pass_time(2 * MINUTE_S)
    await scheduled.put(stream)
    cleaned = scheduled.cleaned
    await scheduled.pass_time(59)
    assert scheduled.cleaned == cleaned
    await scheduled.pass_time(1 + LOOK_S)
    assert scheduled.cleaned == cleaned + 1
    assert [each[1:] for each in await table(made, stream)] == [(b"other", b"1"), (b"k", b"1")]


async def test_a_stream_is_cleaned_when_enough_of_it_is_dirty(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: BY_RATIO})
    for key in (b"a", b"b", b"c", b"d"):
        await scheduled.put(stream, values=1, key=key)
    await scheduled.pass_time(MINUTE_S)
    assert scheduled.cleaned == 1
    await scheduled.put(stream, values=1)
    await scheduled.pass_time(HOUR_S)
    assert scheduled.cleaned == 1, "too little is dirty"
    await scheduled.put(stream, values=10)
    await scheduled.pass_time(LOOK_S)
    assert scheduled.cleaned == 2


async def test_least_lags_are_respected(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: replace(BY_RATIO, lag_ms_min=600_000)})
    await scheduled.put(stream)
    await scheduled.pass_time(9 * MINUTE_S)
    assert scheduled.cleaned == 0
    await scheduled.pass_time(MINUTE_S + LOOK_S)
    assert scheduled.cleaned == 1


async def test_what_is_clean_is_left_in_peace(made: UploadingNode) -> None:
    streams = await made.start(3)
    scheduled = ScheduledNode(made, dict.fromkeys(streams, BY_LAG))
    for stream in streams:
        await scheduled.put(stream)
    await scheduled.pass_time(2 * MINUTE_S)
    assert scheduled.cleaned == 3
    assert scheduled.service.stats.records_removed == 3
    calls = scheduled.catalog.calls.copy()
    await scheduled.pass_time(24 * HOUR_S)
    assert scheduled.cleaned == 3
    assert scheduled.catalog.calls == calls, "an idle day asks the catalog nothing"


async def test_streams_that_are_not_compacted_cost_nothing(made: UploadingNode) -> None:
    streams = await made.start(3)
    scheduled = ScheduledNode(made, {})
    for stream in streams:
        await scheduled.put(stream)
    await scheduled.pass_time(HOUR_S)
    assert not scheduled.catalog.calls


async def test_where_nothing_can_be_cleaned_attempts_become_rare(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: BY_RATIO})
    await scheduled.put(stream)
    scheduled.histories[stream] = History(0)  # a transaction is open from the beginning
    await scheduled.pass_time(24 * HOUR_S)
    assert scheduled.cleaned == 0
    attempts = scheduled.catalog.calls["list_stream_objects"]
    assert attempts <= 24 * 3 + 10, "not more often than runs by the timer come"
    del scheduled.histories[stream]
    await scheduled.put(stream)
    await scheduled.pass_time(SETTINGS.period_ms / 1000 + 1)
    assert scheduled.cleaned == 1


@pytest.mark.slow
async def test_a_stream_that_is_written_to_all_the_time_is_cleaned_now_and_then(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: replace(BY_LAG, lag_ms_max=100)})
    for _ in range(120):
        await scheduled.put(stream)
        await scheduled.pass_time(1)
    assert 120 / 15 - 1 <= scheduled.cleaned <= 120 / 15 + 1


async def test_uploads_are_asked_for_when_data_has_waited_for_its_lag(made: UploadingNode) -> None:
    soon, late = await made.start(2)
    scheduled = ScheduledNode(made, {soon: replace(BY_LAG, lag_ms_max=100), late: NEVER})
    scheduled.waiting_ms[late] = 1 << 40
    await scheduled.pass_time(HOUR_S)
    assert scheduled.uploads_ms == []
    scheduled.waiting_ms[soon] = 100
    before_ms = made.clock.ms
    await scheduled.pass_time(50)
    assert scheduled.uploads_ms[0] - before_ms <= SETTINGS.clean_look_ms
    gaps = [later - earlier for earlier, later in pairwise(scheduled.uploads_ms)]
    assert len(gaps) == 3
    assert min(gaps) >= SETTINGS.clean_backoff_ms


async def test_data_in_shared_objects_is_taken_out_and_cleaned(made: UploadingNode) -> None:
    stream, other = await made.start(2)
    scheduled = ScheduledNode(made, {stream: BY_LAG})
    for at in range(3):
        mine = kafka_batch(made, stream, [(b"k", b"%d" % at)])
        await made.upload((SSO, [mine, made.batch(other, 100)]))
    (apart,) = await made.upload((SSO, [made.batch(other, 100)]))
    before = (await made.contents())[other]
    await scheduled.pass_time(59)
    assert scheduled.service.stats.commits == 0
    await scheduled.pass_time(65)
    assert await table(made, stream) == [(2, b"k", b"2")]
    assert (await made.contents())[other] == before
    (left,) = (await made.catalog.get_objects([apart.object_id])).values()
    assert left.deadline_ms == 0, "what does not matter stays"
    commits = scheduled.service.stats.commits
    await scheduled.pass_time(HOUR_S)
    assert scheduled.service.stats.commits == commits == 2


async def test_an_object_that_cannot_be_read_stops_its_own_stream_only(made: UploadingNode) -> None:
    bad, good = await made.start(2)
    scheduled = ScheduledNode(made, {bad: BY_RATIO, good: BY_RATIO})
    await scheduled.put(bad)
    await scheduled.put(good)
    assert isinstance(made.store, MemoryStore)
    (location,) = await made.catalog.list_stream_objects(bad)
    await made.store.delete([object_key(CLUSTER, location.object.object_id)])
    await scheduled.pass_time(24 * HOUR_S)
    assert scheduled.cleaned == 1
    assert len(await made.catalog.list_stream_objects(good)) == 1
    assert scheduled.service.stats.objects_left_alone == 1
    assert made.store.calls.get <= 10, "it is not tried again and again"


class CodecThatFails(KafkaBatches):
    """Finds one payload corrupt."""

    def __init__(self, bad: bytes) -> None:
        self._bad = bad

    def describe(self, payload: Buffer, bytes_max: int) -> BatchInfo | None:
        if bytes(payload) == self._bad:
            raise CorruptObject("a batch that contradicts its block")
        return super().describe(payload, bytes_max)


async def test_what_is_found_corrupt_late_stops_its_own_stream_only(made: UploadingNode) -> None:
    bad, good = await made.start(2)
    batch = kafka_batch(made, bad, [(b"k", b"v")])
    await made.upload((SO, [batch]))
    scheduled = ScheduledNode(made, {bad: BY_RATIO, good: BY_RATIO}, codec=CodecThatFails(bytes(batch.payload)))
    await scheduled.put(good)
    summary = await scheduled.service.run_timed()
    assert (summary.streams_cleaned, len(summary.errors)) == (1, 1)


class CodecWithBug(KafkaBatches):
    """Raises an unexpected error: it cannot rewrite one payload."""

    def __init__(self, bad: bytes) -> None:
        self._bad = bad
        self.attempts = 0

    def rewrite(self, payload: Buffer, offsets: AbstractSet[int] | None, delete_horizon_ms: int) -> Buffer:
        if bytes(payload) == self._bad:
            self.attempts += 1
            raise OverflowError("int too large to convert")
        return super().rewrite(payload, offsets, delete_horizon_ms)


async def unexpected(made: UploadingNode) -> tuple[ScheduledNode, CodecWithBug, int, int]:
    """A stream whose cleaning fails after an output was begun, and one that can be cleaned."""
    bad, good = await made.start(2)
    batches = [kafka_batch(made, bad, [(key, b"1"), (key, b"2")]) for key in (b"a", b"b")]
    await made.upload((SO, batches))
    codec = CodecWithBug(bytes(batches[1].payload))
    scheduled = ScheduledNode(made, {bad: BY_RATIO, good: BY_RATIO}, codec=codec)
    await scheduled.put(good)
    return scheduled, codec, bad, good


async def expect_only_good_cleaned(made: UploadingNode, scheduled: ScheduledNode, bad: int, good: int) -> None:
    assert scheduled.cleaned == 1
    assert [each[1:] for each in await table(made, good)] == [(b"k", b"1")]
    assert len(await table(made, bad)) == 4
    await every_object_is_accounted_for(made)


async def test_what_nobody_expected_fails_its_own_stream_in_a_run(made: UploadingNode) -> None:
    scheduled, _, bad, good = await unexpected(made)
    with capture_logs() as logs:
        summary = await scheduled.service.run_timed()
    assert (summary.streams_cleaned, summary.errors) == (1, ["OverflowError('int too large to convert')"])
    (said,) = [each for each in logs if each.get("exc_info")]
    assert (said["log_level"], said["stream_id"]) == ("error", bad)
    assert scheduled.service.stats.runs_failed == 1
    await expect_only_good_cleaned(made, scheduled, bad, good)


@pytest.mark.slow
async def test_what_nobody_expected_makes_its_own_stream_rest(made: UploadingNode) -> None:
    scheduled, codec, bad, good = await unexpected(made)
    await scheduled.pass_time(6 * HOUR_S)
    assert 1 <= codec.attempts <= 6 * 3 + 10, "not more often than runs by the timer come"
    assert scheduled.service.stats.runs_failed == codec.attempts
    await expect_only_good_cleaned(made, scheduled, bad, good)


async def test_a_plan_that_cannot_even_be_made_makes_its_stream_rest(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    asked = 0

    class SceneWithBug(ScheduledNode):
        def _history(self, info: StreamInfo) -> History:
            nonlocal asked
            asked += 1
            raise OverflowError("int too large to convert")

    scheduled = SceneWithBug(made, {stream: BY_RATIO})
    await scheduled.put(stream)
    await scheduled.pass_time(6 * HOUR_S)
    assert 1 <= asked <= 6 * 3 + 10
    assert scheduled.service.stats.runs_failed == asked


async def test_what_the_catalog_cannot_tell_is_asked_again(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: BY_RATIO})
    await scheduled.put(stream)
    scheduled.catalog.refused = {"find_ranges"}
    await scheduled.pass_time(MINUTE_S)
    assert scheduled.cleaned == 0
    scheduled.catalog.refused = {"get_streams"}
    await scheduled.pass_time(10 * MINUTE_S)
    assert scheduled.cleaned == 0
    assert 3 <= scheduled.catalog.calls["get_streams"] <= 10
    scheduled.catalog.refused.clear()
    await scheduled.pass_time(20 * MINUTE_S)
    assert scheduled.cleaned == 1


async def test_a_fenced_node_is_told(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: BY_RATIO})
    await scheduled.put(stream)
    await made.catalog.register_node(1, "localhost", 1, now_ms=made.clock.ms, lease_ms=1)
    with pytest.raises(NodeFenced):
        await scheduled.scheduler.run()


async def test_topics_that_are_gone_are_forgotten(made: UploadingNode) -> None:
    (stream,) = await made.start(1)
    scheduled = ScheduledNode(made, {stream: NEVER})
    await scheduled.put(stream)
    await scheduled.pass_time(MINUTE_S)
    assert list(scheduled.scheduler.states) == [stream]
    scheduled.policies = {}
    await scheduled.pass_time(MINUTE_S)
    assert not scheduled.scheduler.states


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


async def paused_run(scheduled: ScheduledNode, gate: asyncio.Event) -> "asyncio.Task[object]":
    """A timed run that waits for the gate before its first write, as under the pressure of uploads."""
    scheduled.under_pressure, scheduled.gate = True, gate
    run = asyncio.ensure_future(scheduled.service.run_timed())
    await scheduled.waits.wait()
    scheduled.under_pressure, scheduled.gate = False, None
    return run


async def test_a_long_run_holds_up_no_cleaning(made: UploadingNode, gate: asyncio.Event) -> None:
    stream, other = await made.start(2)
    scheduled = ScheduledNode(made, {stream: BY_RATIO})
    for _ in range(2):
        await made.upload((SSO, [made.batch(other, 100)]))
    run = await paused_run(scheduled, gate)
    await scheduled.put(stream)
    assert await scheduled.service.clean_stream(stream)
    assert not run.done()
    gate.set()
    await run
    assert await table(made, stream) == [(1, b"k", b"1")]


async def test_a_run_leaves_alone_what_was_cleaned_since_it_was_planned(
    made: UploadingNode, gate: asyncio.Event
) -> None:
    first, second = await made.start(2)
    scheduled = ScheduledNode(made, {first: BY_RATIO, second: BY_RATIO})
    await scheduled.put(first)
    await scheduled.put(second)
    run = await paused_run(scheduled, gate)
    between = asyncio.ensure_future(scheduled.service.clean_stream(second))
    await asyncio.sleep(0)
    assert not between.done(), "one stream at a time"
    gate.set()
    assert await between
    await run
    last = scheduled.service.last
    assert last is not None
    assert not last.errors
    assert scheduled.cleaned == 2
    assert last.streams_cleaned == 1, "the other was not the run's work"


async def test_a_run_cleans_what_could_not_be_cleaned_beside_it(made: UploadingNode, gate: asyncio.Event) -> None:
    first, second = await made.start(2)
    scheduled = ScheduledNode(made, {first: BY_RATIO, second: BY_RATIO})
    await scheduled.put(first)
    await scheduled.put(second)
    run = await paused_run(scheduled, gate)
    scheduled.histories[second] = History(0)  # nothing can be cleaned now
    between = asyncio.ensure_future(scheduled.service.clean_stream(second))
    await asyncio.sleep(0)
    gate.set()
    assert not await between, "the run's work does not count as this call's"
    await run
    assert scheduled.cleaned == 2
    assert [each[1:] for each in await table(made, second)] == [(b"k", b"1")]
