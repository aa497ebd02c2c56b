"""The data directory survives a power cut, so that the log in it does."""

from pathlib import Path

import pytest

from anabranch.broker.node.settings.data_dir import DataDirError, DataDirLock
from anabranch.wal.device import open_device
from anabranch.wal.settings import WalSettings
from tests.support.power import PowerCut

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


def test_a_directory_that_was_created_for_nothing_is_removed(tmp_path: Path) -> None:
    data = tmp_path / "mistyped" / "data"
    lock = DataDirLock(data)
    with pytest.raises(DataDirError, match="in use by another process"):
        DataDirLock(data)
    lock.release_unused()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_looked_for_is_named_as_one_that_cannot_be_made(tmp_path: Path) -> None:
    """A folder that this user may not enter is the other way to get there."""
    long = tmp_path / ("a" * 300)
    with pytest.raises(DataDirError, match=f"data directory {long}: File name too long"):
        DataDirLock(long)


def test_a_directory_that_has_something_or_was_there_is_kept(tmp_path: Path) -> None:
    data = tmp_path / "data"
    lock = DataDirLock(data)
    (data / "wal").touch()
    lock.release_unused()
    assert sorted(each.name for each in data.iterdir()) == ["LOCK", "wal"]
    (data / "wal").unlink()
    DataDirLock(data).release_unused()
    assert [each.name for each in data.iterdir()] == ["LOCK"], "it was there before"


def test_a_node_keeps_its_directory_and_with_it_the_proof_that_it_has_ended(tmp_path: Path) -> None:
    DataDirLock(tmp_path / "data").release()
    assert [each.name for each in (tmp_path / "data").iterdir()] == ["LOCK"]
