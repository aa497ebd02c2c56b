"""A log of any length leaves the other tasks their turns while it is recovered: a node that starts must beat."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from anabranch.s3stream.append.wal_record import RECORD_HEADER, RECORD_VERSION, RecordKind
from anabranch.s3stream.append.wal_scan import scan_wal
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.model import NodeIdentity, StreamInfo
from anabranch.s3stream.tasks import STEPS_PER_TURN, Turns
from anabranch.wal.interface import RecoveredRecord, WriteAheadLog
from tests.support.storage import SMALL, fill, memory_cluster

NODE, WAL = 3, "a1"
ROUNDS = 5


@asynccontextmanager
async def looking(look: Callable[[], int]) -> AsyncIterator[list[int]]:
    """Run a task that looks at something in each turn of the loop, until the block ends; yield what it sees."""
    seen: list[int] = []

    async def run() -> None:
        while True:
            seen.append(look())
            await asyncio.sleep(0)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    yield seen
    task.cancel()


class ReadLog:
    """A log whose records are all in memory already."""

    wal_id = WAL

    def __init__(self, records: int) -> None:
        self._records = records
        self.read = 0

    async def recover(self) -> AsyncIterator[RecoveredRecord]:
        """Yield the records, without waiting for anything."""
        for at in range(self._records):
            self.read = at + 1
            header = RECORD_HEADER.pack(RECORD_VERSION, RecordKind.BATCH, 0, 1, 7, 1, at, at + 1, -1)
            yield RecoveredRecord(at * 100, memoryview(header))


class KnownStreams:
    """A catalog that answers at once."""

    async def get_streams(self, stream_ids: Sequence[int]) -> Mapping[int, StreamInfo]:
        """Return streams without committed records."""
        return {each: StreamInfo(each, 1, NODE, 0, 0, b"", WAL) for each in stream_ids}

    async def next_stream_id(self) -> int:
        """Return an id past all of them."""
        return 8


async def test_others_get_their_turns_while_a_log_is_read_and_planned() -> None:
    log = ReadLog(ROUNDS * STEPS_PER_TURN)
    async with looking(lambda: log.read) as seen:
        _, plan = await scan_wal(cast("WriteAheadLog", log), cast("Catalog", KnownStreams()), NodeIdentity(NODE, 1))
    assert len(plan.live[7]) == ROUNDS * STEPS_PER_TURN
    assert {each * STEPS_PER_TURN for each in range(ROUNDS + 1)} <= set(seen)
    assert seen.count(ROUNDS * STEPS_PER_TURN) >= ROUNDS, "the plan is made in as many pieces"


async def test_others_get_their_turns_while_records_are_adopted(tmp_path: Path) -> None:
    settings = replace(SMALL, upload_threshold_bytes=64 << 20, log_cache_bytes=256 << 20)
    each = STEPS_PER_TURN + 100
    async with memory_cluster(tmp_path, settings) as cluster:
        ids = await cluster.create(3)
        async with cluster.engine() as engine:
            for stream in await engine.open_streams(ids):
                fill(stream, each, count=1, size_bytes=10)
        cluster.crash()
        async with cluster.engine(recover=False) as engine:
            async with looking(lambda: engine.stats.recovered_records) as seen:
                await engine.recover()
            streams = await engine.open_streams(ids)
            assert [stream.next_offset for stream in streams] == [each] * 3
        assert [*dict.fromkeys(seen)] == [0, each, 2 * each]


async def test_a_turn_ends_after_the_steps_of_several_calls() -> None:
    turns = Turns()
    async with looking(lambda: 0) as seen:
        for _ in range(10):
            async for piece in turns.pieces(range(STEPS_PER_TURN // 5)):
                assert piece
    assert len(seen) == 1 + 2


async def test_the_pieces_are_the_items_in_order() -> None:
    turns = Turns()
    items = [*range(2 * STEPS_PER_TURN + 7)]
    for _ in range(3):
        assert [item async for piece in turns.pieces(items) for item in piece] == items
    assert [piece async for piece in turns.pieces(items[:0])] == []
