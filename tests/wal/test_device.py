"""Real files: flags, alignment, locking, fall-back, with each engine behind them."""

import asyncio
import errno
import os
import resource
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from anabranch.wal.block import aligned_buffer
from anabranch.wal.device import (
    FileDevice,
    choose_durability,
    open_device,
    unwritten_ranges,
    write_cache,
)
from anabranch.wal.device_raw import read_all, write_all, write_segments
from anabranch.wal.format import PAGE_BYTES, RING_POSITION, encode_header
from anabranch.wal.interface import Durable, WalFailed, WalFenced, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.owner import read_header
from anabranch.wal.requests import IoKind, IoRequest, perform
from anabranch.wal.settings import EngineName, WalSettings
from tests.support.waiting import until

MIB = 1 << 20
SETTINGS = WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10, allow_volatile=True)


@pytest.fixture
def settings(engine: EngineName) -> WalSettings:
    return replace(SETTINGS, engine=engine)


def make_wal(device: FileDevice, *, epoch: int = 1) -> DeltaWal:
    return DeltaWal(device, SETTINGS, node_id=1, node_epoch=epoch, now_ms=lambda: 5)


async def test_a_file_is_made_whole_and_holds_a_log(tmp_path: Path, settings: WalSettings) -> None:
    path = tmp_path / "new" / "wal"
    device = open_device(path, settings)
    assert path.stat().st_size == 4 * MIB
    assert path.stat().st_blocks * 512 >= 4 * MIB
    assert list(path.parent.iterdir()) == [path]
    assert device.name == str(path)
    assert not device.shared
    wal = make_wal(device)
    assert [record async for record in wal.recover()] == []
    assert str(path) in wal.description
    big = bytes(range(256)) * 4000
    for _ in range(3):
        wal.append([b"head", memoryview(big)])
    await wal.close()
    wal = make_wal(open_device(path, settings), epoch=2)
    assert [bytes(record.body) async for record in wal.recover()] == [b"head" + big] * 3
    await wal.close()


@pytest.mark.usefixtures("holes")
async def test_a_new_file_is_reserved_and_written_by_the_log(tmp_path: Path) -> None:
    settings = replace(SETTINGS, prewrite_bytes=256 << 10, prewrite_ahead_bytes=MIB)
    device = open_device(tmp_path / "wal", settings)
    assert (tmp_path / "wal").stat().st_blocks * 512 >= 4 * MIB
    assert await device.unwritten() == [(0, 4 * MIB)]
    wal = DeltaWal(device, settings, node_id=1, node_epoch=1, now_ms=lambda: 5)
    assert [record async for record in wal.recover()] == []
    wal.append([b"x" * 1000])
    await until(lambda: wal.snapshot().unwritten_bytes == 0)
    assert await device.unwritten() == []
    await wal.close()
    wal = make_wal(open_device(tmp_path / "wal", SETTINGS), epoch=2)
    assert [bytes(record.body) async for record in wal.recover()] == [b"x" * 1000]
    await wal.close()


@pytest.mark.usefixtures("holes")
async def test_a_file_is_written_in_full_for_strict_fencing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = replace(SETTINGS, fencing="strict")
    real_rename = Path.rename
    renamed: list[list[tuple[int, int]]] = []

    def rename(path: Path, target: Path) -> Path:
        with path.open("rb") as file:
            renamed.append(unwritten_ranges(file.fileno(), 4 * MIB))
        return real_rename(path, target)

    monkeypatch.setattr(Path, "rename", rename)
    await open_device(tmp_path / "strict", strict).close()
    assert renamed == [[]]  # before another host can see it


@pytest.mark.parametrize("refused", ["lseek", "posix_fallocate"])
async def test_a_file_is_written_in_full_where_its_space_cannot_be_reserved_or_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    real_seek = os.lseek

    def seek(fd: int, position: int, whence: int) -> int:
        if refused == "lseek" and whence in (os.SEEK_HOLE, os.SEEK_DATA):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_seek(fd, position, whence)

    def reserve(fd: int, position: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "lseek", seek)
    if refused == "posix_fallocate":
        monkeypatch.setattr(os, "posix_fallocate", reserve)
    device = open_device(tmp_path / "wal", SETTINGS)
    monkeypatch.undo()
    assert device.size_bytes == 4 * MIB
    assert (tmp_path / "wal").stat().st_blocks * 512 >= 4 * MIB
    assert await device.unwritten() == []
    await device.close()


async def test_a_full_disk_is_met_when_the_file_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reserve(fd: int, position: int, length: int) -> None:
        os.pwrite(fd, b"x", 0)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", reserve)
    with pytest.raises(WalRefused, match="cannot create a WAL file of 4194304 bytes: No space left on device"):
        open_device(tmp_path / "new" / "wal", SETTINGS)
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.usefixtures("holes")
async def test_a_sparse_copy_is_refused_if_the_disk_is_too_full_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reserve(fd: int, position: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "wal").touch()
    os.truncate(tmp_path / "wal", 4 * MIB)
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    wal = make_wal(open_device(tmp_path / "wal", SETTINGS))
    with pytest.raises(WalRefused, match="wal: cannot reserve the space of the file: No space left on device"):
        async for _ in wal.recover():
            pass
    await wal.close()


@pytest.mark.usefixtures("holes")
async def test_close_waits_for_a_reservation_whose_caller_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, release = Event(), Event()

    def reserve(fd: int, position: int, length: int) -> None:
        began.set()
        release.wait()
        os.fstat(fd)
        reserved.append(fd)

    reserved: list[int] = []
    device = open_device(tmp_path / "wal", SETTINGS)
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    listing = asyncio.create_task(device.unwritten())
    await until(began.is_set)
    listing.cancel()
    await asyncio.wait([listing])
    closing = asyncio.create_task(device.close())
    for _ in range(5):
        await asyncio.sleep(0)
    waited = not closing.done()
    release.set()
    await closing
    assert waited
    assert len(reserved) == 1


@pytest.mark.usefixtures("holes")
async def test_holes_between_records_are_found_and_filled_without_changing_any(tmp_path: Path) -> None:
    """As in a copy that was made sparse: zeros inside records became holes."""
    settings = replace(SETTINGS, window_bytes=2 * MIB)
    bodies = [b"a" + bytes(500_000), b"b" * 300_000, bytes(700_000) + b"c"]
    wal = DeltaWal(open_device(tmp_path / "wal", settings), settings, node_id=1, node_epoch=1, now_ms=lambda: 5)
    assert [record async for record in wal.recover()] == []
    for body in bodies:
        wal.append([body])
        await wal.append([b""]).durable
    await wal.device.close()  # as in a crash: a skip record must follow, in a hole
    content = (tmp_path / "wal").read_bytes()
    with (tmp_path / "copy").open("wb") as copy:
        copy.truncate(len(content))
        for at in range(0, len(content), PAGE_BYTES):
            page = content[at : at + PAGE_BYTES]
            if any(page):
                os.pwrite(copy.fileno(), page, at)
    for epoch in (2, 3):
        device = open_device(tmp_path / "copy", settings)
        assert len(await device.unwritten()) > 2 or epoch == 3
        assert (tmp_path / "copy").stat().st_blocks * 512 >= 4 * MIB, "reserved"
        wal = DeltaWal(device, settings, node_id=1, node_epoch=epoch, now_ms=lambda: 5)
        found = [bytes(record.body) async for record in wal.recover()]
        assert found == [part for body in bodies for part in (body, b"")]
        await until(lambda wal=wal: wal.snapshot().unwritten_bytes == 0)  # type: ignore[misc]  # bound early
        assert await device.unwritten() == []
        await wal.device.close()


async def test_large_records_come_back_across_the_chunks_of_a_recovery(tmp_path: Path, settings: WalSettings) -> None:
    settings = replace(settings, capacity_bytes=16 * MIB)
    sizes = [3 * MIB, 100, 2 * MIB + 7, 3 * MIB]
    wal = DeltaWal(open_device(tmp_path / "wal", settings), settings, node_id=1, node_epoch=1, now_ms=lambda: 5)
    assert [record async for record in wal.recover()] == []
    for number, size in enumerate(sizes):
        wal.append([bytes([number]) * size])
    await wal.close()
    wal = DeltaWal(open_device(tmp_path / "wal", settings), settings, node_id=1, node_epoch=2, now_ms=lambda: 5)
    found = [record.body async for record in wal.recover()]
    assert [len(body) for body in found] == sizes
    assert all(body == bytes([number]) * len(body) for number, body in enumerate(found))
    await wal.close()


async def test_a_file_in_use_is_refused(tmp_path: Path, settings: WalSettings) -> None:
    path = tmp_path / "wal"
    device = open_device(path, settings)
    with pytest.raises(WalRefused, match="in use by another process"):
        open_device(path, settings)
    await device.close()
    await open_device(path, settings).close()


async def test_a_volatile_log_is_not_flushed_where_o_direct_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.wal.device.O_DIRECT", 0)
    volatile = replace(SETTINGS, durability="direct", allow_volatile=True)
    device = open_device(tmp_path / "wal", volatile)
    assert device.description.startswith("file, buffered, threads (")
    assert "not flushed" in device.description
    await device.close()


async def test_the_engine_flushes_where_o_dsync_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("O_DIRECT", "O_DSYNC"):
        monkeypatch.setattr(f"anabranch.wal.device.{name}", 0)
    flushed: list[int] = []
    monkeypatch.setattr("anabranch.wal.device_threads.flush", flushed.append)
    device = open_device(tmp_path / "wal", replace(SETTINGS, durability="flush"))
    assert device.description.startswith("file, flushed, threads (")
    wal = make_wal(device)
    assert [record async for record in wal.recover()] == []
    before = len(flushed)
    await wal.append([b"x"]).durable
    assert len(flushed) > before
    await wal.close()


async def test_o_direct_refused_falls_back_to_flushed_buffered_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open = os.open

    def refuse_direct(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", refuse_direct)
    device = open_device(tmp_path / "wal", SETTINGS)
    assert "O_DSYNC" in device.description
    assert "page cache" in device.description
    wal = make_wal(device)
    assert [record async for record in wal.recover()] == []
    await wal.append([b"x"]).durable
    await wal.close()


async def test_what_cannot_be_opened_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(WalRefused, match="neither a block device nor a regular file"):
        open_device(tmp_path, SETTINGS)
    with pytest.raises(WalRefused, match=r"missing: cannot open the WAL device: No such file"):
        open_device(tmp_path / "missing", SETTINGS, create=False)
    with pytest.raises(WalRefused, match="cannot create a WAL file of 4194304 bytes"):
        open_device(Path("/proc/wal"), SETTINGS)
    (tmp_path / "full").write_bytes(b"")
    device = open_device(tmp_path / "full", SETTINGS)
    with pytest.raises(WalRefused, match="too small"):
        async for _ in make_wal(device).recover():
            pass
    await device.close()


@pytest.mark.parametrize(
    ("durability", "cache", "synced"),
    [
        ("flush", "write through", True),
        ("direct", "write back", False),
        ("auto", "write through", False),
        ("auto", "write back", True),
        ("auto", "unknown", True),
    ],
)
def test_durability_follows_the_setting_and_the_devices_cache(durability: str, cache: str, *, synced: bool) -> None:
    settings = WalSettings(durability=durability)  # type: ignore[arg-type]  # a literal either way
    chosen, why = choose_durability(settings, cache)
    assert chosen == synced
    assert durability in why


def test_the_write_cache_is_asked_of_the_disk(tmp_path: Path) -> None:
    assert write_cache(tmp_path.stat()) in {"write back", "write through", "unknown"}
    assert write_cache(Path("/proc").stat()) == "unknown"


async def test_errors_come_back_through_the_loop(tmp_path: Path, settings: WalSettings) -> None:
    device = open_device(tmp_path / "wal", settings)
    with pytest.raises(WalFailed, match=r"read at position 4194304 failed: \[Errno 5\] read 0 of 4096 bytes"):
        await perform(device, IoKind.READ, [(4 * MIB, aligned_buffer(PAGE_BYTES))])
    await perform(device, IoKind.FLUSH)
    await device.close()


async def test_a_write_past_the_limit_of_file_sizes_fails_the_log(tmp_path: Path, settings: WalSettings) -> None:
    wal = make_wal(open_device(tmp_path / "wal", settings))
    assert [record async for record in wal.recover()] == []
    await wal.append([b"kept"]).durable
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (RING_POSITION + PAGE_BYTES, hard))
    try:
        with pytest.raises(WalFailed, match=r"write of 4096 bytes at position 12288 .* \[Errno 27\] File too large"):
            await wal.append([b"lost"]).durable
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(WalFailed, match="File too large"):
        wal.append([b"more"])
    await wal.close()
    again = make_wal(open_device(tmp_path / "wal", settings), epoch=2)
    assert [bytes(record.body) async for record in again.recover()] == [b"kept"]
    await again.close()


async def test_strict_fencing_withholds_the_ack_of_a_block_written_after_a_claim(
    tmp_path: Path, settings: WalSettings
) -> None:
    device = open_device(tmp_path / "wal", settings)
    wal = DeltaWal(device, replace(settings, fencing="strict"), node_id=1, node_epoch=1, now_ms=lambda: 5)
    assert [record async for record in wal.recover()] == []
    await wal.append([b"acked"]).durable
    header = await read_header(device)
    assert header is not None
    claim = replace(header, node_epoch=2, state_epoch=2)
    with (tmp_path / "wal").open("r+b") as other:
        for copy in (replace(claim, sequence=header.sequence + 1), replace(claim, sequence=header.sequence + 2)):
            os.pwrite(other.fileno(), encode_header(copy), copy.position)
    with pytest.raises(WalFenced, match="claimed by node 1 with epoch 2"):
        await wal.append([b"too late"]).durable
    await wal.close()


async def test_a_checked_write_brings_both_header_copies_back(tmp_path: Path, settings: WalSettings) -> None:
    device = open_device(tmp_path / "wal", settings)
    done = Durable()
    page = aligned_buffer(PAGE_BYTES)
    page[:] = b"h" * PAGE_BYTES
    request = IoRequest(IoKind.WRITE, [(PAGE_BYTES, page)], lambda _: done.complete(), check_header=True)
    device.submit(request)
    await done
    assert request.error is None
    assert request.header == bytes(PAGE_BYTES) + b"h" * PAGE_BYTES
    assert len(request.header) == RING_POSITION
    await device.close()


def test_short_reads_and_writes_go_on_from_a_whole_page(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = bytearray(b"d" * 10 * PAGE_BYTES)
    calls: list[tuple[int, int]] = []

    def short_write(_fd: int, data: memoryview, position: int) -> int:
        count = min(len(data), 5000)
        disk[position : position + count] = data[:count]
        calls.append((position, count))
        return count

    def short_read(_fd: int, buffers: list[memoryview], position: int) -> int:
        count = min(len(buffers[0]), 5000)
        buffers[0][:count] = disk[position : position + count]
        return count

    monkeypatch.setattr(os, "pwrite", short_write)
    monkeypatch.setattr(os, "preadv", short_read)
    data = memoryview(bytes(range(256)) * 48)
    write_all(3, PAGE_BYTES, data)
    assert disk[PAGE_BYTES : 4 * PAGE_BYTES] == data
    assert [position for position, _ in calls] == [PAGE_BYTES, 2 * PAGE_BYTES, 3 * PAGE_BYTES]
    back = memoryview(bytearray(len(data)))
    read_all(3, PAGE_BYTES, back)
    assert back == data

    monkeypatch.setattr(os, "pwrite", lambda *_: 100)
    with pytest.raises(OSError, match="wrote 100 of 12288 bytes at position 4096"):
        write_all(3, PAGE_BYTES, data)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(OSError, match="read 0 of 12288 bytes at position 4096"):
        read_all(3, PAGE_BYTES, back)


@pytest.mark.parametrize("short", [False, True])
def test_neighbouring_segments_share_a_call_and_a_short_one_is_done_again(
    monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    disk = bytearray(10 * PAGE_BYTES)
    calls: list[tuple[int, int]] = []

    def write(_fd: int, data: memoryview, position: int) -> int:
        disk[position : position + len(data)] = data
        calls.append((position, len(data)))
        return len(data)

    def write_vector(_fd: int, buffers: list[memoryview], position: int) -> int:
        data = memoryview(b"".join(buffers))
        return write(_fd, data[: PAGE_BYTES + 512] if short else data, position)

    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "pwritev", write_vector)
    a, b, c = (memoryview(letter * PAGE_BYTES) for letter in (b"a", b"b", b"c"))
    write_segments(3, [(PAGE_BYTES, a), (2 * PAGE_BYTES, b), (5 * PAGE_BYTES, c)])
    expected = bytearray(10 * PAGE_BYTES)
    expected[PAGE_BYTES : 3 * PAGE_BYTES] = bytes(a) + bytes(b)
    expected[5 * PAGE_BYTES : 6 * PAGE_BYTES] = c
    assert disk == expected
    assert len(calls) == (4 if short else 2)
