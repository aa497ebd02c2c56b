"""The log of a stopped node is read without ending it."""

from collections.abc import Sequence

import pytest

from anabranch.wal.interface import WalCorrupt
from anabranch.wal.object.format import Position
from anabranch.wal.object.stopped import StoppedLog, find_stopped
from tests.support.memory_store import MemoryStore
from tests.support.object_log import NAME, TestStore, opened_wal
from tests.support.virtual_time import run_virtual
from tests.wal.object.test_recovery import damage, filled


async def look(memory: MemoryStore) -> StoppedLog | None:
    """Read the log. Nothing in the store changes."""
    before = dict(memory.objects)
    found = await find_stopped(TestStore(memory, "reader"), NAME)
    assert memory.objects == before
    return found


async def bodies(found: StoppedLog | None) -> Sequence[bytes]:
    assert found is not None
    return [bytes(record.body) async for record in found.records()]


def test_there_may_be_no_log() -> None:
    async def main() -> None:
        assert await look(MemoryStore("s")) is None

    run_virtual(main())


def test_a_crashed_nodes_log_has_its_records_and_its_newest_epoch() -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a"])
        await filled(memory, [b"b", b"c"], epoch=2)
        found = await look(memory)
        assert await bodies(found) == [b"a", b"b", b"c"]
        assert found is not None
        assert (found.newest.position.epoch, found.is_empty) == (2, False)

    run_virtual(main())


@pytest.mark.parametrize("trimmed", [True, False])
def test_a_closed_log_is_empty_if_it_was_trimmed_to_its_end(trimmed: bool) -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        wal, _ = await opened_wal(TestStore(memory), 1)
        appended = wal.append([b"a"])
        await appended.durable
        if trimmed:
            await wal.trim(appended.offset)
        await wal.close()
        found = await look(memory)
        assert found is not None
        assert found.is_empty is trimmed

    run_virtual(main())


@pytest.mark.parametrize(("sequence", "at"), [(1, 130), (2, 0)])
def test_damage_names_the_object(sequence: int, at: int) -> None:
    async def main() -> None:
        memory = MemoryStore("s")
        await filled(memory, [b"a" * 9, b"b" * 9])
        key = NAME.key(Position(1, sequence))
        damage(memory, key, at)
        with pytest.raises(WalCorrupt, match=key):
            await bodies(await look(memory))

    run_virtual(main())
