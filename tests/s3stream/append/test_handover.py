"""Handing streams over between two engines on one catalog, with crashes of either side at every step."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.s3stream.append.handover import ReceivedTail, SealedStream
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.append.wal_record import RecordKind, decode_record
from anabranch.s3stream.append.wal_trim import WalTrimmer
from anabranch.s3stream.catalog.values import MoveReason, OpenStream, StreamTransfer
from anabranch.s3stream.engine import S3Stream
from anabranch.s3stream.errors import (
    HandoverRefused,
    LogStalled,
    OffsetOutOfRange,
    StorageError,
    StorageStopped,
    StreamFenced,
    StreamHeld,
    StreamSealed,
)
from anabranch.s3stream.model import NodeIdentity, StreamBatch, StreamOwner
from anabranch.s3stream.settings import StorageSettings
from anabranch.wal.interface import WalFailed
from tests.support.catalog_node import transfer
from tests.support.memory_wal import MemoryWal
from tests.support.storage import SMALL, EngineCluster, fill, make_batch, memory_cluster, read_all, same
from tests.support.waiting import until

SETTINGS = replace(SMALL, upload_threshold_bytes=64 << 20, log_cache_bytes=256 << 20)
SOURCE, TARGET = 1, 2


class Side:
    """One of the nodes, over its lives."""

    engine: S3Stream

    def __init__(self, cluster: EngineCluster, node_id: int) -> None:
        self._cluster = cluster
        self.node_id = node_id
        self.wal = MemoryWal(8 << 20)
        self._stack = AsyncExitStack()
        self.streams: dict[int, Stream] = {}

    async def start(self) -> None:
        """Register, recover, and open what this node owns."""
        cluster, catalog = self._cluster, self._cluster.catalog
        self.wal.wal_id = f"{self.node_id:016x}"
        info = await catalog.register_node(self.node_id, "h", 9092, now_ms=1, lease_ms=10_000)
        self.engine = S3Stream(
            wal=self.wal,
            catalog=catalog,
            stores=cluster.stores,
            default_store="main",
            settings=cluster.settings,
            cluster=cluster.cluster,
            node=NodeIdentity(self.node_id, info.epoch),
            now_ms=cluster.clock.now_ms,
            new_writer_id=cluster.new_writer_id,
        )
        await self._stack.enter_async_context(self.engine)
        await self.engine.recover()
        assert not self.engine.stopped_streams
        owner = StreamOwner(self.node_id, info.epoch, self.wal.wal_id)
        owned = [each.stream_id for each in await catalog.list_streams(after=0, limit=100) if each.is_held_by(owner)]
        await self.open(owned)

    async def open(self, stream_ids: Sequence[int]) -> None:
        for stream in await self.engine.open_streams(stream_ids):
            self.use(stream)

    def use(self, stream: Stream) -> None:
        """Replay a stream, as a partition does."""
        stream.snapshot_source = lambda: b"%d" % stream.next_offset
        self.streams[stream.stream_id] = stream

    async def crash(self) -> None:
        self.streams.clear()
        await self._stack.aclose()
        self.wal = self.wal.crash()

    async def restart(self) -> None:
        await self.crash()
        await self.start()

    async def stop(self) -> None:
        await self._stack.aclose()


class Pair:
    """Two nodes; the first one has two streams, the first of which moves."""

    def __init__(self, cluster: EngineCluster) -> None:
        self.cluster = cluster
        self.source, self.target = Side(cluster, SOURCE), Side(cluster, TARGET)
        self.stream_id = self.other_id = 0

    @property
    def stream(self) -> Stream:
        return self.source.streams[self.stream_id]

    @property
    def other(self) -> Stream:
        return self.source.streams[self.other_id]

    async def order(self, to_node: int = TARGET) -> None:
        await self.cluster.catalog.request_moves({self.stream_id: to_node}, reason=MoveReason.OPERATOR, now_ms=1)

    def wanted(self, sealed: SealedStream) -> StreamTransfer:
        owners = self.source.engine.handovers.owner, self.target.engine.handovers.owner
        stream = sealed.stream
        return StreamTransfer(stream.stream_id, sealed.epoch, stream.leader_epoch, sealed.end_offset, *owners)

    async def seal(self) -> SealedStream:
        return await self.source.engine.handovers.seal(self.stream)

    async def write(self, sealed: SealedStream) -> ReceivedTail:
        return await self.target.engine.handovers.write_tail(
            self.stream_id, sealed.epoch + 1, sealed.end_offset, sealed.tail
        )

    async def transfer(self, sealed: SealedStream) -> OpenStream:
        return await transfer(self.cluster.catalog, self.wanted(sealed))

    def receive(self, received: ReceivedTail, opened: OpenStream) -> Stream:
        stream = self.target.engine.handovers.receive(received, opened)
        self.target.use(stream)
        return stream

    async def cancel(self, sealed: SealedStream) -> int:
        handovers = self.source.engine.handovers
        return await self.cluster.catalog.cancel_transfer(self.stream_id, sealed.epoch, handovers.owner)

    async def move(self) -> Stream:
        sealed = await self.seal()
        received = await self.write(sealed)
        stream = self.receive(received, await self.transfer(sealed))
        self.source.engine.handovers.give_away(sealed)
        return stream


@asynccontextmanager
async def two_sides(tmp_path: Path, settings: StorageSettings = SETTINGS) -> AsyncIterator[Pair]:
    async with memory_cluster(tmp_path, settings) as cluster:
        pair = Pair(cluster)
        await pair.source.start()
        await pair.target.start()
        pair.stream_id, pair.other_id = await cluster.create(2)
        await pair.source.open([pair.stream_id, pair.other_id])
        await pair.order()
        try:
            yield pair
        finally:
            await pair.source.stop()
            await pair.target.stop()


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with two_sides(tmp_path) as made:
        yield made


async def durable(stream: Stream) -> None:
    await until(lambda: stream.confirmed_offset == stream.next_offset)


async def trim_all(side: Side) -> None:
    """Trim the log as the end of an earlier upload does, whose block has the newest record."""
    await side.engine.wal_trimmer.trim(side.wal.records[-1].offset)


# the source


async def test_a_sealed_stream_refuses_appends_and_trims_and_serves_reads(pair: Pair) -> None:
    made = fill(pair.stream, 3)
    sealed = await pair.seal()
    assert same(sealed.tail, made)
    with pytest.raises(StreamSealed):
        fill(pair.stream, 1)
    with pytest.raises(StreamSealed):
        await pair.stream.trim(10)
    assert same(await read_all(pair.stream), made)
    with pytest.raises(HandoverRefused):
        await pair.seal()


async def test_other_streams_are_uploaded_while_one_is_sealed_and_its_tail_stays_in_the_log(pair: Pair) -> None:
    made = fill(pair.stream, 3)
    fill(pair.other, 3)
    sealed = await pair.seal()
    await pair.source.engine.flush()
    await pair.source.engine.flush()
    assert pair.other.committed_offset == pair.other.next_offset
    assert pair.stream.committed_offset == 0
    await pair.source.restart()
    assert same(await read_all(pair.stream), made)
    assert sealed.end_offset == 0


async def test_an_unsealed_stream_goes_on_under_its_new_epoch_and_frees_the_log_once_it_is_uploaded(pair: Pair) -> None:
    made = fill(pair.stream, 3)
    sealed = await pair.seal()
    fill(pair.other, 1)
    await pair.source.engine.flush()
    pair.source.engine.handovers.unseal(sealed, await pair.cancel(sealed))
    await trim_all(pair.source)
    made += fill(pair.stream, 2)
    fill(pair.other, 1)
    await durable(pair.stream)
    await pair.source.restart()
    assert same(await read_all(pair.stream), made)
    await pair.source.engine.flush()
    assert pair.source.wal.used_bytes == 0
    assert same(await read_all(pair.stream), made)


async def test_what_an_upload_left_in_the_log_during_a_handover_is_freed_without_another_upload(pair: Pair) -> None:
    fill(pair.other, 1)
    sealed = await pair.seal()
    await pair.source.engine.flush()
    assert pair.source.wal.used_bytes
    received = await pair.write(sealed)
    pair.receive(received, await pair.transfer(sealed))
    pair.source.engine.handovers.give_away(sealed)
    await pair.source.engine.flush()
    assert pair.source.wal.used_bytes == 0


async def test_a_full_log_is_freed_when_a_handover_ends(pair: Pair) -> None:
    engine = pair.source.engine
    sealed = await pair.seal()
    while engine.writable:
        fill(pair.other, 10)
    await engine.flush()
    assert not engine.writable, "the hold keeps all"
    waiting = asyncio.create_task(engine.wait_writable())
    await asyncio.sleep(0)  # it waits
    pair.source.engine.handovers.unseal(sealed, await pair.cancel(sealed))
    await waiting
    fill(pair.other, 1)


async def test_whoever_waits_for_a_log_that_a_handover_keeps_full_asks_for_an_upload_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Simulator, seed 23000146: each upload of nothing woke those who wait, and they asked for another.
    engine = pair.source.engine
    fill(pair.stream, 1)  # the tail stays in the current block
    sealed = await pair.seal()
    while engine.writable:
        fill(pair.other, 10)
    await engine.flush()
    uploads, trim = 0, WalTrimmer.trim

    async def counted(trimmer: WalTrimmer, wal_offset: int) -> bool:
        nonlocal uploads
        uploads += 1
        return await trim(trimmer, wal_offset)

    monkeypatch.setattr(WalTrimmer, "trim", counted)
    waiting = [asyncio.create_task(engine.wait_writable()) for _ in range(3)]
    for _ in range(500):
        await asyncio.sleep(0)
    assert uploads == 1
    assert not any(task.done() for task in waiting)
    pair.source.engine.handovers.unseal(sealed, await pair.cancel(sealed))
    await asyncio.gather(*waiting)
    fill(pair.other, 1)


async def test_a_stream_whose_upload_is_under_way_is_sealed_after_it(pair: Pair) -> None:
    fill(pair.stream, 3)
    pair.source.engine.request_upload()
    await until(lambda: pair.source.engine.stats.uploads > 0 or not pair.stream.tail)
    sealed = await pair.seal()
    assert (sealed.end_offset, sealed.tail) == (30, [])


async def test_those_who_wait_learn_the_outcome(pair: Pair) -> None:
    sealed = await pair.seal()
    waiting = pair.stream.until_unsealed()
    pair.source.engine.handovers.unseal(sealed, sealed.epoch)
    await waiting
    sealed = await pair.seal()
    stream = pair.stream
    await pair.source.engine.close_stream(stream, discard=True)
    await stream.until_unsealed()
    assert isinstance(stream.error, StreamFenced)
    pair.source.engine.handovers.give_away(sealed)  # the change feed was faster


# the target


async def test_a_received_stream_has_the_tail_and_its_offsets_go_on(pair: Pair) -> None:
    made = fill(pair.stream, 3)
    await pair.source.engine.flush()
    made += fill(pair.stream, 3)
    before = pair.stream
    stream = await pair.move()
    assert (stream.start_offset, stream.committed_offset, stream.confirmed_offset) == (0, 30, 60)
    assert same(await read_all(stream), made)
    assert isinstance(before.error, StreamFenced)
    made += fill(stream, 2)
    await durable(stream)
    await pair.target.restart()
    assert same(await read_all(pair.target.streams[pair.stream_id]), made)
    await pair.target.engine.flush()
    assert pair.target.wal.used_bytes == 0
    assert same(await read_all(pair.target.streams[pair.stream_id]), made)


async def test_a_received_stream_is_not_read_from_where_its_data_lay_before(pair: Pair) -> None:
    """Compaction may have removed aborted transactions since, which the snapshot does not list any more."""
    made, engine = fill(pair.stream, 3), pair.target.engine
    await pair.source.engine.flush()
    read = await engine.read_committed(pair.stream_id, "t-0", 0, 1 << 20, end_offset=30, committed_end=30)
    assert same(read.batches, made)
    lookups = engine.stats.location_lookups
    assert same(await read_all(await pair.move()), made)
    assert engine.stats.location_lookups > lookups


async def test_uploads_of_the_target_do_not_free_a_tail_that_is_being_received(pair: Pair) -> None:
    (own_id,) = await pair.cluster.create(1, name="own")
    await pair.cluster.catalog.request_moves({own_id: TARGET}, reason=MoveReason.OPERATOR, now_ms=1)
    await pair.source.open([own_id])
    pair.stream_id, moved = own_id, pair.stream_id
    own = await pair.move()
    pair.stream_id = moved
    made = fill(pair.stream, 3)
    fill(own, 1)
    sealed = await pair.seal()
    received = await pair.write(sealed)
    fill(own, 1)
    await pair.target.engine.flush()
    opened = await pair.transfer(sealed)
    pair.receive(received, opened)
    await trim_all(pair.target)
    await pair.target.restart()
    assert same(await read_all(pair.target.streams[moved]), made)


async def test_a_stream_that_is_being_received_is_not_opened_nor_received_twice(pair: Pair) -> None:
    sealed = await pair.seal()
    received = await pair.write(sealed)
    with pytest.raises(HandoverRefused):
        await pair.target.engine.open_streams([pair.stream_id])
    with pytest.raises(HandoverRefused):
        await pair.write(sealed)
    pair.target.engine.handovers.give_up(received)
    assert not pair.target.engine.handovers.is_receiving(pair.stream_id)


async def test_records_of_a_refused_transfer_are_void_whatever_follows(pair: Pair) -> None:
    """The planted failure: without a RESET in a later attempt, a restart finds the tail twice and stops the stream."""
    made = fill(pair.stream, 2)
    sealed = await pair.seal()
    received = await pair.write(sealed)
    pair.source.engine.handovers.unseal(sealed, await pair.cancel(sealed))
    with pytest.raises(StreamFenced):
        await pair.transfer(sealed)
    pair.target.engine.handovers.give_up(received)
    made += fill(pair.stream, 2)
    await durable(pair.stream)
    await pair.move()
    await pair.target.restart()
    assert same(await read_all(pair.target.streams[pair.stream_id]), made)


async def test_a_stream_returns_to_a_log_that_has_old_records_of_it(pair: Pair) -> None:
    made = fill(pair.stream, 2)
    made += fill(await pair.move(), 2)
    await pair.order(SOURCE)
    pair.source, pair.target = pair.target, pair.source
    await durable(pair.stream)
    await pair.move()
    made += fill(pair.target.streams[pair.stream_id], 1)
    await durable(pair.target.streams[pair.stream_id])
    await pair.target.restart()
    assert same(await read_all(pair.target.streams[pair.stream_id]), made)


async def test_a_tail_that_the_log_has_no_room_for_is_refused(pair: Pair) -> None:
    sealed = await pair.seal()
    batches = [make_batch(pair.stream_id, 10 * at, size_bytes=1 << 20) for at in range(9)]
    with pytest.raises(HandoverRefused):
        await pair.target.engine.handovers.write_tail(pair.stream_id, sealed.epoch + 1, 0, batches)
    assert not pair.target.engine.handovers.is_receiving(pair.stream_id)
    await pair.target.engine.flush()
    assert pair.target.wal.used_bytes == 0, "void records are trimmed"


@pytest.mark.parametrize("returns", [False, True])
async def test_a_log_that_does_not_acknowledge_void_records_takes_no_others(tmp_path: Path, *, returns: bool) -> None:
    """Each move that is tried again would else add another copy of the tail, and clients' records would join them."""
    async with two_sides(tmp_path, replace(SETTINGS, stall_ms=1)) as pair:
        fill(pair.stream, 3)
        moved = await pair.move()
        begun: Coroutine[Any, Any, object]
        if returns:
            side, stream = pair.source, pair.other
            begun = side.engine.open_streams([pair.stream_id])  # what its log has of the stream is voided first
        else:
            side, stream = pair.target, moved
            begun = side.engine.handovers.write_tail(pair.other_id, 2, 0, [make_batch(pair.other_id, 0)])
        side.wal.auto_complete = False
        task = asyncio.create_task(begun)
        await until(lambda: not side.engine.writable)
        used_bytes = side.wal.used_bytes
        with pytest.raises(LogStalled):
            fill(stream, 1)
        with pytest.raises(HandoverRefused, match="has not acknowledged"):
            await side.engine.handovers.write_tail(stream.stream_id + 1, 1, 0, [])
        assert side.wal.used_bytes == used_bytes
        side.wal.auto_complete = True
        side.wal.complete()
        await side.engine.wait_writable()
        with pytest.raises(StreamHeld) if returns else nullcontext():
            await task


async def test_a_log_that_fails_stops_the_target(pair: Pair) -> None:
    sealed = await pair.seal()
    pair.target.wal.fail(WalFailed("broken"))
    with pytest.raises(StorageStopped):
        await pair.write(sealed)
    assert pair.target.engine.error is not None


async def test_a_log_that_failed_while_idle_stops_a_node_that_gets_a_stream_back(pair: Pair) -> None:
    """It would else try again for as long as its lease lasts, and nobody else would lead the stream."""
    fill(pair.stream, 3)
    await pair.move()
    pair.source.wal.fail(WalFailed("broken"))
    assert pair.source.engine.error is None
    with pytest.raises(StorageStopped, match="cannot be voided"):
        await pair.source.engine.open_streams([pair.stream_id])
    assert pair.source.engine.error is not None


async def test_a_tail_that_does_not_fit_the_stream_stops_the_engine(pair: Pair) -> None:
    sealed = await pair.seal()
    received = await pair.write(sealed)
    opened = await pair.transfer(sealed)
    with pytest.raises(StorageError, match="it ends at"):
        pair.receive(received, replace(opened, info=replace(opened.info, end_offset=7)))
    assert pair.target.engine.error is not None


# crashes

STEPS = ("sealed", "written", "transferred", "received", "appended", "given away", "uploaded")


async def _run(pair: Pair, until_step: str, acked: list[StreamBatch]) -> tuple[SealedStream, ReceivedTail | None]:
    """Move the stream up to a step. What was acknowledged is noted."""
    stream, received = pair.stream, None
    sealed = await pair.seal()
    for step in STEPS[: STEPS.index(until_step) + 1]:
        if step == "written":
            received = await pair.write(sealed)
        elif step == "transferred":
            await pair.transfer(sealed)  # and its answer is lost: the target repeats it
        elif step == "received":
            assert received is not None
            stream = pair.receive(received, await pair.transfer(sealed))
            received = None
        elif step == "appended":
            acked += fill(stream, 2)
            await durable(stream)
        elif step == "given away":
            pair.source.engine.handovers.give_away(sealed)
        elif step == "uploaded":
            await pair.target.engine.flush()
    return sealed, received


@pytest.mark.parametrize("crashed", ["source", "target", "both"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_at_any_step_leaves_each_record_once_with_one_owner(pair: Pair, step: str, crashed: str) -> None:
    acked = fill(pair.stream, 2)
    await pair.source.engine.flush()
    acked += fill(pair.stream, 3)
    await durable(pair.stream)
    sealed, received = await _run(pair, step, acked)
    source, target = pair.source, pair.target
    if crashed != "target":
        await source.restart()
    if crashed != "source":
        await target.restart()
    if crashed == "source" and received is not None:
        try:
            pair.receive(received, await pair.transfer(sealed))
        except StreamFenced:
            target.engine.handovers.give_up(received)
    if crashed == "target" and source.engine.handovers.is_open(sealed.stream):
        try:
            source.engine.handovers.unseal(sealed, await pair.cancel(sealed))
        except StreamFenced:
            source.engine.handovers.give_away(sealed)
    serving = [
        side
        for side in (source, target)
        if (stream := side.streams.get(pair.stream_id)) is not None and stream.error is None
    ]
    info = (await pair.cluster.catalog.get_streams([pair.stream_id]))[pair.stream_id]
    assert [side.node_id for side in serving] == [info.node_id]
    stream = serving[0].streams[pair.stream_id]
    acked += fill(stream, 1)
    await durable(stream)
    assert same(await read_all(stream), acked)
    await serving[0].restart()
    assert same(await read_all(serving[0].streams[pair.stream_id]), acked)
    await serving[0].engine.flush()
    assert same(await read_all(serving[0].streams[pair.stream_id]), acked)


async def test_the_target_begins_with_a_reset(pair: Pair) -> None:
    fill(pair.stream, 1)
    await pair.move()
    kinds = [decode_record(record.offset, memoryview(record.body)).kind for record in pair.target.wal.records]
    assert kinds == [RecordKind.RESET, RecordKind.BATCH]


async def test_offsets_before_the_start_are_gone_at_the_target_too(pair: Pair) -> None:
    fill(pair.stream, 3)
    await durable(pair.stream)
    await pair.stream.trim(20)
    stream = await pair.move()
    assert stream.start_offset == 20
    with pytest.raises(OffsetOutOfRange):
        stream.read_cached(0, 100)
