"""The choice of the engine, where the kernel allows io_uring and where a seccomp filter forbids it."""

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from anabranch.wal.device import FileDevice, open_device
from anabranch.wal.device_engine import choose_engine
from anabranch.wal.device_ring import Ring
from anabranch.wal.device_threads import ThreadEngine
from anabranch.wal.interface import WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import EngineName, WalSettings
from tests.support.seccomp import without_io_uring

SETTINGS = WalSettings(capacity_bytes=4 << 20, window_bytes=256 << 10, allow_volatile=True)


def settings_for(engine: EngineName) -> WalSettings:
    return replace(SETTINGS, engine=engine)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def write_and_close(device: FileDevice) -> None:
    wal = DeltaWal(device, SETTINGS, node_id=1, node_epoch=1, now_ms=lambda: 5)
    assert [record async for record in wal.recover()] == []
    await wal.append([b"record"]).durable
    await wal.close()


@pytest.mark.usefixtures("io_uring")
async def test_auto_takes_io_uring_where_it_works(tmp_path: Path) -> None:
    for engine in ("auto", "io_uring"):
        device = open_device(tmp_path / engine, settings_for(engine))
        assert ", io_uring: " in device.description
        await write_and_close(device)


async def test_threads_are_taken_if_asked_for(tmp_path: Path) -> None:
    device = open_device(tmp_path / "wal", settings_for("threads"))
    assert ", threads: " in device.description
    await write_and_close(device)


@pytest.mark.usefixtures("io_uring")
@pytest.mark.parametrize("refused", [0, 1])
async def test_auto_falls_back_to_threads_where_io_uring_is_forbidden_and_says_so(tmp_path: Path, refused: int) -> None:
    before = open_descriptors()
    with structlog.testing.capture_logs() as logs:
        device = without_io_uring(lambda: open_device(tmp_path / "wal", SETTINGS), refused=refused)
    assert open_descriptors() == before + 1, "the ring that does not work is closed"
    why = "the kernel refuses io_uring: Operation not permitted: a seccomp profile forbids it"
    assert f"threads ({why}" in device.description
    (said,) = [entry for entry in logs if entry["event"] == "threads write the log, not io_uring"]
    assert said["log_level"] == "info"
    assert said["reason"].startswith(why)
    await write_and_close(device)


@pytest.mark.usefixtures("io_uring")
@pytest.mark.parametrize(
    ("code", "why"),
    [
        (errno.EPERM, "Operation not permitted: a seccomp profile forbids it, as those of container run-times do"),
        (errno.ENOSYS, "Function not implemented"),
        (errno.ENOMEM, r"Cannot allocate memory: the limit of locked memory \(ulimit -l\) is too low"),
    ],
)
async def test_io_uring_is_refused_where_it_is_forbidden(tmp_path: Path, code: int, why: str) -> None:
    path = tmp_path / "wal"
    with pytest.raises(WalRefused, match=why) as refused:
        without_io_uring(lambda: open_device(path, settings_for("io_uring")), code)
    assert str(refused.value).startswith(f"{path}: wal.engine is io_uring, but the kernel refuses io_uring")
    assert str(refused.value).endswith("allow it, or set wal.engine to auto or threads")
    assert "\n" not in str(refused.value)
    await open_device(path, settings_for("threads")).close()  # it is not locked any more


async def test_a_sysctl_that_forbids_io_uring_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sysctl = tmp_path / "io_uring_disabled"
    sysctl.write_text("2\n")
    monkeypatch.setattr("anabranch.wal.device_engine._DISABLED", sysctl)
    device = without_io_uring(lambda: open_device(tmp_path / "wal", SETTINGS))
    assert "the sysctl kernel.io_uring_disabled is set" in device.description
    await device.close()
    sysctl.unlink()
    device = without_io_uring(lambda: open_device(tmp_path / "wal", SETTINGS))
    assert "a seccomp profile" in device.description
    await device.close()


async def test_writes_through_the_page_cache_are_left_to_threads(tmp_path: Path) -> None:
    """Submitting one would perform it, on the event loop."""
    chosen = choose_engine(-1, tmp_path, SETTINGS, direct=False)
    assert isinstance(chosen.engine, ThreadEngine)
    assert chosen.description == "threads (it needs O_DIRECT, which the file system refuses)"
    with pytest.raises(WalRefused, match=r"wal\.engine is io_uring, but it needs O_DIRECT"):
        choose_engine(-1, tmp_path, settings_for("io_uring"), direct=False)


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [("machine", lambda: "riscv64", "no io_uring on riscv64"), ("_FEATURES", 1 << 31, "older than 5.6")],
)
async def test_unknown_machines_and_old_kernels_have_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object, why: str
) -> None:
    monkeypatch.setattr(f"anabranch.wal.device_ring.{name}", value)
    with pytest.raises(OSError, match=why):
        Ring(2)
    device = await asyncio.to_thread(open_device, tmp_path / "wal", SETTINGS)
    assert why in device.description
    await device.close()
