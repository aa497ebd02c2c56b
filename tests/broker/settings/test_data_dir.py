"""The data directory survives a power cut, so that the log in it does."""

from pathlib import Path

from broker.settings.data_dir import DataDirLock
from tests.support.power import PowerCut
from wal.device import open_device
from wal.settings import WalSettings

MIB = 1 << 20


async def test_a_log_in_a_new_data_directory_survives(tmp_path: Path) -> None:
    with PowerCut(tmp_path) as power:
        lock = DataDirLock(tmp_path / "deep" / "data")
        device = open_device(
            tmp_path / "deep" / "data" / "wal",
            WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10, allow_volatile=True),
        )
        assert "deep/data/wal" in power.survivors()
        await device.close()
        lock.release()
