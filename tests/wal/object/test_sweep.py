"""Sweeps of object logs: old ends and late objects go, what a recovery needs stays."""

from collections.abc import Sequence

import pytest

from anabranch.wal.interface import WalCorrupt
from anabranch.wal.object.format import EndedBy, Position
from anabranch.wal.object.recovery import end_log
from anabranch.wal.object.sweep import Sweep, newest_ms, plan_sweep
from tests.support.memory_store import MemoryStore
from tests.support.object_log import NAME, TestStore, opened_wal

LATER = 10**6


class Clock:
    """Time of the store."""

    ms = 1000

    def now(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def memory(clock: Clock) -> MemoryStore:
    """A store with the log of a node that was started and stopped four times; what it appended last is live."""
    memory = MemoryStore("m", now_ms=clock.now)
    await memory.open()
    for epoch in range(1, 5):
        clock.ms = 1000 * epoch
        store = TestStore(memory, f"w{epoch}")
        wal, _ = await opened_wal(store, epoch)
        appended = wal.append([b"%d" % epoch])
        await appended.durable
        if epoch < 4:
            await wal.trim(appended.offset)
        await wal.close()
    return memory


async def plan(memory: MemoryStore, before_ms: int = LATER) -> Sweep:
    found = await plan_sweep(TestStore(memory), NAME, before_ms=before_ms)
    assert found is not None
    return found


def epochs(positions: Sequence[Position]) -> list[int]:
    return [position.epoch for position in positions]


async def test_ends_before_the_first_live_epoch_are_deleted_and_the_log_is_as_before(memory: MemoryStore) -> None:
    found = await plan(memory)
    assert found.first_live.epoch == 4
    assert epochs(found.ends) == [1, 2, 3]
    assert not found.orphans
    kept = {key for key in memory.objects if NAME.parse_key(key) not in found.ends}
    assert not await found.execute(TestStore(memory))
    assert set(memory.objects) == kept
    tail = await end_log(TestStore(memory), NAME, 5, EndedBy(9, 1))
    assert [bytes(record.body) async for record in tail.records()] == [b"4"]
    again = await plan(memory)
    assert (again.ends, again.orphans, again.kept) == ([], [], len(kept))


async def test_the_age_is_that_of_the_store(memory: MemoryStore) -> None:
    assert await newest_ms(TestStore(memory), "wal/") == 4000
    found = await plan(memory, before_ms=3000)
    ends = sorted(position for key in memory.objects if (position := NAME.parse_key(key)) is not None)
    assert found.young > 0
    assert all(memory.objects[NAME.key(position)][2] < 3000 for position in (*found.ends, *found.orphans))
    assert set(found.ends) < set(ends)


async def test_what_landed_late_in_an_epoch_that_is_over_is_deleted(memory: MemoryStore) -> None:
    late = NAME.key(Position(2, 77))
    await TestStore(memory, "late").create(late, [b"x" * 130])
    found = await plan(memory)
    assert found.orphans == [Position(2, 77)]
    await found.execute(TestStore(memory))
    assert late not in memory.objects


async def test_an_object_that_cannot_be_read_stops_the_sweep(memory: MemoryStore) -> None:
    newest = max(key for key in memory.objects if key.startswith(NAME.prefix))
    data, writer_id, modified_ms = memory.objects[newest]
    memory.objects[newest] = (b"\0" + bytes(data)[1:], writer_id, modified_ms)
    with pytest.raises(WalCorrupt, match="nothing was swept"):
        await plan(memory)


async def test_without_an_object_that_names_the_first_live_one_there_is_nothing_to_sweep() -> None:
    memory = MemoryStore("m")
    await memory.open()
    assert await plan_sweep(TestStore(memory), NAME, before_ms=LATER) is None
    await end_log(TestStore(memory), NAME, 4, EndedBy(9, 1))
    assert len(memory.objects) == 3, "fences only"
    assert await plan_sweep(TestStore(memory), NAME, before_ms=LATER) is None
