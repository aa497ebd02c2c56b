"""The log on a real block device: a loop device on a file. Needs root and a kernel that allows loop devices."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from anabranch.wal.block import aligned_buffer
from anabranch.wal.device import open_device
from anabranch.wal.format import PAGE_BYTES
from anabranch.wal.interface import WalFailed, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.requests import IoKind, perform
from anabranch.wal.settings import EngineName, WalSettings
from anabranch.wal.tools import examine, resize
from tests.support import disk
from tests.support.wal_kill import kill_and_recover
from tests.support.wal_writer import settings_of

MIB = 1 << 20
SETTINGS = WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10, allow_volatile=True)

pytestmark = pytest.mark.root


@pytest.fixture
def settings(engine: EngineName) -> WalSettings:
    return replace(SETTINGS, engine=engine)


@pytest.fixture
def loop_device(tmp_path: Path) -> Iterator[Path]:
    image = tmp_path / "image"
    image.write_bytes(bytes(8 * MIB))
    # Without direct IO, writes would stay dirty in the page cache of the file below.
    with disk.loop_device(image, "--direct-io=on") as device:
        yield device


def make_wal(path: Path, settings: WalSettings, *, epoch: int = 1) -> DeltaWal:
    return DeltaWal(open_device(path, settings), settings, node_id=1, node_epoch=epoch, now_ms=lambda: epoch)


async def bodies(wal: DeltaWal) -> list[bytes]:
    return [bytes(record.body) async for record in wal.recover()]


async def test_a_log_on_a_raw_device(loop_device: Path, settings: WalSettings) -> None:
    wal = make_wal(loop_device, settings)
    assert "block device, O_DIRECT" in wal.description
    assert await bodies(wal) == []
    kept = []
    for number in range(200):
        body = number.to_bytes(4, "little") * 5000
        appended = wal.append([body])
        kept.append((appended.offset, body))
        if number % 50 == 49:
            await appended.durable
            await wal.trim(kept[-100][0] if len(kept) > 100 else kept[0][0])
    await wal.close()
    second = make_wal(loop_device, settings, epoch=2)
    assert await bodies(second) == [body for _, body in kept[-99:]]
    await second.close()


async def test_larger_and_smaller_devices(loop_device: Path, settings: WalSettings) -> None:
    too_large = replace(settings, capacity_bytes=16 * MIB)
    wal = make_wal(loop_device, too_large)
    with pytest.raises(WalRefused, match="8388608 bytes, smaller than the configured capacity of 16777216 bytes"):
        await bodies(wal)
    await wal.close()
    wal = make_wal(loop_device, settings)
    assert await bodies(wal) == []
    assert wal.capacity_bytes == 4 * MIB - 8192
    await wal.append([b"kept"]).durable
    await wal.close()
    device = open_device(loop_device, settings)
    await resize(device, 8 * MIB, now_ms=lambda: 1)
    assert (await examine(device)).live_records == 1
    await device.close()
    wal = make_wal(loop_device, settings, epoch=2)
    assert await bodies(wal) == [b"kept"]
    assert wal.capacity_bytes == 8 * MIB - 8192
    await wal.close()


async def test_foreign_content_and_other_users_are_refused(loop_device: Path, settings: WalSettings) -> None:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    await asyncio.to_thread(subprocess.run, ["mkfs.ext4", "-q", str(loop_device)], check=True, capture_output=True)
    wal = make_wal(loop_device, settings)
    with pytest.raises(WalRefused, match="holds an ext2, ext3 or ext4 file system, not a WAL"):
        await bodies(wal)
    with pytest.raises(WalRefused, match="in use"):
        open_device(loop_device, settings)
    await wal.close()


async def test_a_write_past_the_end_of_the_device_fails(loop_device: Path, settings: WalSettings) -> None:
    device = open_device(loop_device, settings)
    with pytest.raises(WalFailed, match=r"write at position 8388608 failed: \[Errno 28\] No space left on device"):
        await perform(device, IoKind.WRITE, [(8 * MIB, aligned_buffer(PAGE_BYTES))])
    with pytest.raises(WalFailed, match=r"write at position 8384512 failed: \[Errno 28\] No space left on device"):
        await perform(device, IoKind.WRITE, [(8 * MIB - PAGE_BYTES, aligned_buffer(2 * PAGE_BYTES))])
    with pytest.raises(WalFailed, match=r"read at position 8384512 failed: \[Errno 5\] read 0 of 4096 bytes"):
        await perform(device, IoKind.READ, [(8 * MIB - PAGE_BYTES, aligned_buffer(2 * PAGE_BYTES))])
    await device.close()


async def test_kill_9_on_a_raw_device(loop_device: Path, engine: EngineName) -> None:
    acked, _ = await kill_and_recover(loop_device, 4, settings_of(4 * MIB, "direct", engine), Random(5))
    assert acked > 500
