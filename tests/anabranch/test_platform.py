"""Facts of the platform: what stands in for what is missing, and that no other module asks for them."""

import asyncio
import errno
import fcntl
import os
import re
import select
import socket
import threading
from pathlib import Path
from typing import Final

import pytest

from anabranch import platform
from anabranch.platform import (
    Wakeup,
    boot_id,
    flush,
    physical_memory,
    private_file,
    reserve,
    resident_memory,
    sync_folder,
)
from anabranch.wal.device_threads import ThreadEngine
from anabranch.wal.requests import IoKind, IoRequest

ROOT: Final = Path(__file__).parents[2]
FULL_FSYNC: Final = 51
"""The number of macOS. Linux refuses it."""
ASKS: Final = re.compile(
    r"sys\.platform|\bos\.name\b|os\.(O_DIRECT|O_DSYNC|posix_f\w+|eventfd|fsync|fdatasync|memfd_create"
    r"|copy_file_range)\b|\bF_FULLFSYNC\b|MADV_HUGEPAGE|\"/dev/shm\"|socket\.TCP_(USER_TIMEOUT|KEEPIDLE)"
    r"|select\.POLLRDHUP"
)
ALLOWED: Final = {
    "broker/operator/admin/api/decoder_worker.py",  # a script by itself, which runs on Linux
}


def test_no_other_module_asks_for_the_platform() -> None:
    rooms = ("broker", "compaction", "protocol", "s3stream", "wal", "src/anabranch/client", "src/anabranch/testing")
    sources = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    assert len(sources) > 400
    found = [
        f"{name}: {match[0]}"
        for path in sources
        if (name := str(path.relative_to(ROOT))) not in ALLOWED and (match := ASKS.search(path.read_text())) is not None
    ]
    assert found == []


@pytest.mark.parametrize("has_eventfd", [True, False])
def test_a_wake_up_is_seen_once_by_whoever_waits(monkeypatch: pytest.MonkeyPatch, *, has_eventfd: bool) -> None:
    if not has_eventfd:
        monkeypatch.delattr(os, "eventfd", raising=False)
    wakeup = Wakeup()
    try:
        assert select.select([wakeup.fd], [], [], 0)[0] == []
        thread = threading.Thread(target=wakeup.set)
        thread.start()
        thread.join()
        wakeup.set()
        assert select.select([wakeup.fd], [], [], 0)[0] == [wakeup.fd]
        wakeup.clear()
        assert select.select([wakeup.fd], [], [], 0)[0] == []
        wakeup.clear()
        for _ in range(20_000):  # more than a pipe holds
            wakeup.set()
    finally:
        wakeup.close()


def test_macos_empties_the_cache_of_the_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int | str] = []
    monkeypatch.setattr(platform, "_FULL_FSYNC", FULL_FSYNC)
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command: calls.append(command))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    with (tmp_path / "file").open("wb") as file:
        flush(file.fileno())
    sync_folder(tmp_path)
    assert calls == [FULL_FSYNC, FULL_FSYNC]


def test_a_file_system_without_it_is_flushed_as_usual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int, command: int) -> None:
        raise OSError(code, os.strerror(code))

    calls: list[str] = []
    monkeypatch.setattr(platform, "_FULL_FSYNC", FULL_FSYNC)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    code = errno.EINVAL
    with (tmp_path / "file").open("wb") as file:
        flush(file.fileno())
        assert calls == ["fsync"]
        code = errno.EIO
        with pytest.raises(OSError, match="Input/output error"):
            flush(file.fileno())
    assert calls == ["fsync"]


async def test_without_o_dsync_threads_flush_after_each_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("anabranch.wal.device_threads.flush", calls.append)
    with (tmp_path / "file").open("w+b") as file:
        engine = ThreadEngine(file.fileno(), 1, flushes=True)
        done: asyncio.Future[IoRequest] = asyncio.get_running_loop().create_future()
        engine.submit(IoRequest(IoKind.WRITE, [(0, memoryview(bytearray(4096)))], done.set_result))
        assert (await done).error is None
        assert calls == [file.fileno()]
        await engine.close()


def test_space_that_cannot_be_reserved_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    with (tmp_path / "file").open("wb") as file:
        reserve(file.fileno(), 0, 4096)
        assert os.fstat(file.fileno()).st_size == 0


@pytest.mark.parametrize("has_memory", [True, False])
def test_a_private_file_ends_with_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_memory: bool) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    if not has_memory:
        monkeypatch.setattr(platform, "IS_LINUX", False)
    with private_file(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
        assert [each.stat().st_mode & 0o777 for each in tmp_path.iterdir()] == ([] if has_memory else [0o600])
    assert list(tmp_path.iterdir()) == []


def test_the_boot_is_unknown_where_nothing_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert boot_id() == platform.BOOT_ID.read_text().strip()
    monkeypatch.setattr(platform, "BOOT_ID", tmp_path / "absent")
    assert boot_id() == ""


def test_the_memory_of_the_machine_is_known() -> None:
    assert physical_memory() > 64 << 20


def test_the_memory_of_this_process_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_bytes = resident_memory()
    assert 8 << 20 < now_bytes < physical_memory()
    monkeypatch.setattr(platform, "STATM", tmp_path / "absent")
    assert resident_memory() > now_bytes // 2, "it was as much at some time"


def test_connections_end_without_the_options_of_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_USER_TIMEOUT", None)
    with socket.socket() as bare:
        platform.notice_vanishing(bare, idle_s=4, interval_s=2, probes=3, unsent_ms=10_000)
        assert bare.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert bare.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
