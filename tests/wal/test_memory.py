"""The log in memory keeps the contract its users rely on."""

import pytest

from anabranch.wal.interface import OverCapacity, WalError, WalFailed
from tests.support.memory_wal import MemoryWal


async def bodies(wal: MemoryWal) -> list[bytes]:
    return [bytes(record.body) async for record in wal.recover()]


async def test_appends_become_durable_in_order_and_survive_a_crash() -> None:
    wal = MemoryWal()
    assert await bodies(wal) == []
    order: list[int] = []
    first = wal.append([b"a", memoryview(b"bc")])
    second = wal.append([b"d"])
    first.durable.add_done_callback(lambda _: order.append(0))
    second.durable.add_done_callback(lambda _: order.append(1))
    assert (first.offset, first.end_offset, second.offset) == (0, 27, 27)
    assert not first.durable.done
    await second.durable
    assert order == [0, 1]
    assert await bodies(wal.crash()) == [b"abc", b"d"]
    with pytest.raises(WalFailed):
        wal.append([b"x"])


async def test_what_was_not_durable_is_lost_and_its_waiters_learn_it() -> None:
    wal = MemoryWal(auto_complete=False)
    kept = wal.append([b"kept"])
    wal.complete()
    lost = wal.append([b"lost"])
    after = wal.crash()
    await kept.durable
    with pytest.raises(WalError):
        await lost.durable
    assert await bodies(after) == [b"kept"]
    assert after.append([b"next"]).offset >= lost.end_offset


async def test_capacity_is_freed_by_trim_up_to_and_including_a_record() -> None:
    wal = MemoryWal(capacity_bytes=100)
    first = wal.append([bytes(26)])
    second = wal.append([bytes(26)])
    with pytest.raises(OverCapacity):
        wal.append([b""])
    await second.durable
    await wal.trim(first.offset)
    assert wal.used_bytes == 50
    wal.append([bytes(26)])
    await wal.close()
    assert len(await bodies(wal.crash())) == 2
    await wal.reset()
    assert wal.used_bytes == 0
