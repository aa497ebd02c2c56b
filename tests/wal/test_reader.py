"""Memory of the recovery read: reused once its records are released, untouched while they are held."""

from random import Random

from anabranch.wal import reader
from anabranch.wal.format import RING_POSITION
from anabranch.wal.log import DeltaWal
from anabranch.wal.reader import CHUNK_BYTES, ChunkBuffers
from anabranch.wal.settings import WalSettings
from tests.support.sim_device import SimDevice, SimDisk

RING_BYTES = 12 * CHUNK_BYTES
SETTINGS = WalSettings(capacity_bytes=RING_POSITION + RING_BYTES)


def make_wal(disk: SimDisk, epoch: int) -> DeltaWal:
    return DeltaWal(SimDevice(disk), SETTINGS, node_id=1, node_epoch=epoch, now_ms=lambda: 1000)


async def test_records_that_are_kept_stay_as_they_are() -> None:
    """Nearly a dozen chunks go by, more than buffers are kept; every third record is held to the end."""
    disk = SimDisk(SETTINGS.capacity_bytes, Random(1))
    wal = make_wal(disk, 1)
    async for _ in wal.recover():
        raise AssertionError("a new log holds nothing")
    sizes = [50_000 + number for number in range(11 * CHUNK_BYTES // 52_000)]
    for number, size_bytes in enumerate(sizes):
        await wal.append([bytes([number % 251]) * size_bytes]).durable
    again = make_wal(disk, 2)
    kept = {}
    number = 0
    async for record in again.recover():
        assert bytes(record.body) == bytes([number % 251]) * sizes[number]
        if number % 3 == 0:
            kept[number] = record.body
        number += 1
    assert number == len(sizes)
    for number, body in kept.items():
        assert body == bytes([number % 251]) * sizes[number]


def test_a_buffer_comes_back_only_when_no_view_of_it_lives() -> None:
    memory = ChunkBuffers()
    first = memory.take()
    part = first[100:200]
    first[100] = 7
    held = [memory.take() for _ in range(20)]
    assert part[0] == 7
    del first
    assert memory.take()[100] == 0, "a part of the first is still held"
    del part
    assert memory.take()[100] == 7, "the first again"
    assert len(memory.kept) == reader.BUFFERS_KEPT
    del held
