"""File systems on which a log's file may be created: by type, and on a real one in memory."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from anabranch.wal.device import open_device
from anabranch.wal.device_place import check_place, file_system_type, warn_of_place
from anabranch.wal.interface import WalRefused
from anabranch.wal.settings import WalSettings

MIB = 1 << 20
SETTINGS = WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10)
EXT4, TMPFS, RAMFS, OVERLAY = 0xEF53, 0x01021994, 0x858458F6, 0x794C7630


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (TMPFS, r"wal: a log created here \(tmpfs\) would be in memory: its records are lost at a reboot: set a path"),
        (RAMFS, r"\(ramfs\) would be in memory.* or set wal\.allow_volatile"),
        (
            OVERLAY,
            r"\(overlay\) would be in a container's own layer: .* a path on a disk or a volume \(wal\.path, or ",
        ),
    ],
)
def test_a_volatile_place_is_refused_until_allowed(tmp_path: Path, kind: int, reason: str) -> None:
    asked: list[Path] = []

    def type_of(folder: Path) -> int:
        asked.append(folder)
        return kind

    with pytest.raises(WalRefused, match=reason):
        check_place(tmp_path / "wal", allow_volatile=False, type_of=type_of)
    with pytest.raises(WalRefused, match=reason):
        check_place(tmp_path / "not there" / "wal", allow_volatile=False, type_of=type_of)
    check_place(tmp_path / "wal", allow_volatile=True, type_of=type_of)
    assert asked == [tmp_path] * 3, "the nearest existing folder is checked"


def test_a_disk_is_fine(tmp_path: Path) -> None:
    check_place(tmp_path / "wal", allow_volatile=False, type_of=lambda _: EXT4)


@pytest.mark.parametrize("path", ["/dev/nosuch", "/dev/disk/by-id/nosuch", "/dev/nosuch/wal"])
def test_nothing_is_made_under_dev(path: str) -> None:
    settings = replace(SETTINGS, allow_volatile=True)
    with pytest.raises(WalRefused, match=rf"{path}: no such device, and no file is created under /dev: check wal"):
        open_device(Path(path), settings)
    assert not Path(path).exists()
    assert not Path(f"{path}.new").exists()


def test_the_memory_under_dev_is_for_files() -> None:
    with pytest.raises(WalRefused, match="in memory"):
        check_place(Path("/dev/shm/wal"), allow_volatile=False, type_of=lambda _: TMPFS)
    check_place(Path("/dev/shm/wal"), allow_volatile=True, type_of=lambda _: TMPFS)


def test_a_link_to_a_missing_device_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "log"
    link.symlink_to("/dev/nosuch")
    with pytest.raises(WalRefused, match="/dev/nosuch: no such device"):
        open_device(link, replace(SETTINGS, allow_volatile=True))


@pytest.mark.parametrize(("kind", "allowed", "warned"), [(TMPFS, False, 1), (TMPFS, True, 0), (EXT4, False, 0)])
def test_a_log_that_is_there_is_opened_with_a_warning(tmp_path: Path, kind: int, allowed: bool, warned: int) -> None:
    with structlog.testing.capture_logs() as said:
        warn_of_place(tmp_path / "wal", allow_volatile=allowed, type_of=lambda _: kind)
    assert [line["log_level"] for line in said] == ["warning"] * warned
    assert all("is in memory" in line["event"] for line in said)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("a mount needs root")
    folder = tmp_path / "memory"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_a_real_file_system_in_memory(in_memory: Path) -> None:
    assert file_system_type(in_memory) == TMPFS
    path = in_memory / "wal"
    with pytest.raises(WalRefused, match="would be in memory"):
        open_device(path, SETTINGS)
    assert list(in_memory.iterdir()) == []
    for settings in (replace(SETTINGS, allow_volatile=True), SETTINGS):
        asyncio.run(open_device(path, settings).close())


def test_a_folder_that_is_not_there_has_no_type(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none"):
        file_system_type(tmp_path / "none")
