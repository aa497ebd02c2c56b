"""The file of a new log survives a power cut: with all of its size, its name and its folder."""

from pathlib import Path

from anabranch.wal.device import open_device
from anabranch.wal.settings import WalSettings
from tests.support.power import PowerCut

MIB = 1 << 20
SETTINGS = WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10, allow_volatile=True)


async def test_a_new_file_and_its_folder_survive(tmp_path: Path) -> None:
    with PowerCut(tmp_path) as power:
        device = open_device(tmp_path / "new" / "wal", SETTINGS)
        assert {name: len(data) for name, data in power.survivors().items()} == {"new/wal": 4 * MIB}
        await device.close()
