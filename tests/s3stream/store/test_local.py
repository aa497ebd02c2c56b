"""Behaviour of the local store alone: files, trailers, full disks, crashes, threads."""

import asyncio
import errno
import gc
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from anabranch.s3stream.errors import ObjectExists, ObjectNotFound, StoreError
from anabranch.s3stream.store.files import TEMPORARY, TRAILER_BYTES, ObjectFiles
from anabranch.s3stream.store.interface import PartReceipt
from anabranch.s3stream.store.local import LocalStore
from anabranch.s3stream.store.recycled import ReadBufferPool

MIB = 1024 * 1024


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "objects"


async def opened(root: Path) -> LocalStore:
    store = LocalStore("local", root)
    await store.open()
    return store


def left_over(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root / TEMPORARY)) for path in (root / TEMPORARY).rglob("*"))


async def test_a_file_is_the_object_and_a_trailer(root: Path) -> None:
    store = await opened(root)
    await store.put("ab/c/1", [b"hello ", b"world"], writer_id="writer-1")
    raw = (root / "ab" / "c" / "1").read_bytes()
    assert raw[:11] == b"hello world"
    assert len(raw) == 11 + TRAILER_BYTES
    assert raw[11:19] == b"ANABWRTR"
    assert raw[25:33] == b"writer-1"
    assert left_over(root) == []
    await store.close()


async def test_a_file_for_other_programs_is_the_object_alone(root: Path, tmp_path: Path) -> None:
    store = await opened(root)
    key = "table/c/1/data/2.parquet"
    await store.put(key, [b"hello ", b"world"], writer_id="writer-1")
    place = root / key
    assert store.uri(key) == f"file://{place}"
    assert place.read_bytes() == b"hello world"
    assert [path.name for path in place.parent.iterdir() if not path.name.startswith(".")] == ["2.parquet"]
    with pytest.raises(ObjectExists, match="written by 'writer-1', not 'other'"):
        await store.put(key, [b"other"], writer_id="other")
    await store.close()
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = await opened(tmp_path / "copy")
    assert await copy.writer_id(key) == "writer-1"
    assert await copy.delete([key]) == {}
    assert list((tmp_path / "copy").rglob("*.*")) == [tmp_path / "copy" / TEMPORARY]
    await copy.close()


async def test_a_key_that_a_dead_writer_has_claimed_is_not_given_to_another(root: Path) -> None:
    store = await opened(root)
    key = "table/c/1/data/2.parquet"
    await store.put(key, [b"hello"], writer_id="first")
    (root / key).unlink()  # as if it had died before the file was in its place
    assert await store.writer_id(key) is None
    with pytest.raises(ObjectExists, match="written by 'first', not 'second'"):
        await store.put(key, [b"world"], writer_id="second")
    await store.put(key, [b"hello"], writer_id="first")
    assert bytes(await store.get(key, 0, 5)) == b"hello"
    (root / key).parent.joinpath(".2.parquet.writer").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=r"local:table/c/1/data/2.parquet: bad trailer .*: not written by this store"):
        await store.writer_id(key)
    await store.close()


async def test_what_is_read_returns_to_the_memory_with_its_last_view(root: Path) -> None:
    memory = ReadBufferPool()
    writer = await opened(root)
    await writer.put("a", [bytes(MIB)], writer_id="w")
    await writer.close()
    store = LocalStore("local", root, read_only=True, memory=memory)
    await store.open()
    gc.disable()
    try:
        data = await store.get("a", 0, MIB)
        assert memory.free_bytes == memory.mapped_bytes - MIB
        del data
        assert memory.free_bytes == memory.mapped_bytes
    finally:
        gc.enable()
    await store.close()


async def test_pieces_end_at_pages_so_that_they_bypass_the_page_cache(root: Path) -> None:
    class Pieces:
        piece_bytes = MIB

        def __init__(self) -> None:
            self.sizes: list[int] = []

        @asynccontextmanager
        async def piece(self, size_bytes: int) -> AsyncIterator[None]:
            self.sizes.append(size_bytes)
            yield

    store = await opened(root)
    upload = await store.start_multipart("m", writer_id="w")
    sizes = (5 * MIB + 1000, 5 * MIB)
    pieces = [Pieces(), Pieces()]
    receipts = [
        await upload.put_part(at, [os.urandom(size)], pace=pace)
        for at, (size, pace) in enumerate(zip(sizes, pieces, strict=True), 1)
    ]
    await upload.complete(receipts)
    await store.close()
    assert pieces[0].sizes == [*[MIB] * 5, 1000]
    assert pieces[1].sizes == [MIB - 1000, *[MIB] * 4, 1000]


async def test_a_cancelled_paced_put_leaves_nothing(root: Path) -> None:
    class Stuck:
        piece_bytes = 65536

        @asynccontextmanager
        async def piece(self, _size_bytes: int) -> AsyncIterator[None]:
            if left_over(root) and not waiting.is_set():
                waiting.set()
                await asyncio.Event().wait()
            yield

    waiting = asyncio.Event()
    store = await opened(root)
    task = asyncio.create_task(store.put("o", [bytes(MIB)], writer_id="w", pace=Stuck()))
    await waiting.wait()
    assert len(left_over(root)) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_over(root) == []
    assert await store.writer_id("o") is None
    await store.close()


async def test_a_paced_put_cancelled_while_its_file_is_created_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Free:
        piece_bytes = 65536

        @asynccontextmanager
        async def piece(self, _size_bytes: int) -> AsyncIterator[None]:
            yield

    store = await opened(root)
    created: list[int] = []
    begun, go_on = threading.Event(), threading.Event()
    real = tempfile.mkstemp

    def slow(*, dir: Path, prefix: str) -> tuple[int, str]:  # noqa: A002 - its name in the library
        fd, path = real(dir=dir, prefix=prefix)
        created.append(fd)
        begun.set()
        assert go_on.wait(10)
        return fd, path

    monkeypatch.setattr(tempfile, "mkstemp", slow)
    task = asyncio.create_task(store.put("o", [bytes(MIB)], writer_id="w", pace=Free()))
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_over(root) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(created[0])
    await store.close()


async def test_a_plain_copy_of_the_directory_is_the_same_store(root: Path, tmp_path: Path) -> None:
    store = await opened(root)
    await store.put("ab/c/1", [b"hello"], writer_id="writer-1")
    await store.close()
    shutil.copytree(root, tmp_path / "copy", copy_function=shutil.copyfile)
    copy = await opened(tmp_path / "copy")
    assert await copy.writer_id("ab/c/1") == "writer-1"
    assert bytes(await copy.get("ab/c/1", 0, 5)) == b"hello"
    await copy.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_is_a_clear_error_and_leaves_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = await opened(root)
    real = os.writev
    upload = await store.start_multipart("ab/c/2", writer_id="w")

    def full(fd: int, views: list[memoryview]) -> int:
        if sum(len(view) for view in views) > 100:
            return real(fd, [views[0][:100]])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(StoreError, match=f"local:ab/c/1: no space left on the disk that holds {root}"):
        await store.put("ab/c/1", [b"x" * 1000], writer_id="w")
    with pytest.raises(StoreError, match="no space left"):
        await upload.put_part(1, [b"x" * 1000])
    await upload.abort()
    assert left_over(root) == []
    assert [each async for each in store.list()] == []
    assert store.calls.errors == 2
    monkeypatch.setattr(os, "writev", real)
    await store.put("ab/c/1", [b"x" * 1000], writer_id="w")
    await store.close()


async def test_short_writes_are_continued(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(root)
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [views[0][:7]]))
    await store.put("a/1", [b"0123456789", b"", b"abcdefghij"], writer_id="w")
    assert bytes(await store.get("a/1", 0, 20)) == b"0123456789abcdefghij"
    await store.close()


async def test_parts_in_turn_are_written_once_and_in_place(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(root)
    await store.put("source/1", [b"s" * 6 * MIB], writer_id="w")
    upload = await store.start_multipart("a/1", writer_id="w")
    copies: list[int] = []
    real = os.copy_file_range

    def copy(source: int, target: int, count: int, offset: int) -> int:
        copies.append(count)
        return real(source, target, count, offset)

    monkeypatch.setattr(os, "copy_file_range", copy)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(upload.put_part(at, [bytes([at]) * 5 * MIB])) for at in (1, 2, 3)]
        tasks.append(group.create_task(upload.copy_part(4, "source/1", 10, 5 * MIB + 10)))
    await upload.complete([task.result() for task in tasks])
    assert copies == [5 * MIB]
    await store.close()


async def test_copies_fall_back_to_reading(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(root)
    source = os.urandom(6 * MIB)
    await store.put("source/1", [source], writer_id="w")

    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, "no")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    upload = await store.start_multipart("a/1", writer_id="w")
    await upload.complete([await upload.copy_part(1, "source/1", 1, 6 * MIB)])
    assert bytes((await store.get_tail("a/1", 10 * MIB)).data) == source[1:]
    await store.close()


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such modes there")
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o640), (0o077, 0o600)])
async def test_the_group_reads_files_for_other_programs_unless_the_umask_forbids(
    root: Path, mask: int, mode: int
) -> None:
    before = os.umask(mask)
    try:
        store = await opened(root)
        keys = []
        for folder in ("table/c/1/data", "objects"):
            await store.put(f"{folder}/put", [b"x"], writer_id="w")
            in_order = await store.start_multipart(f"{folder}/parts", writer_id="w")
            await in_order.complete([await in_order.put_part(1, [b"x"])])
            mixed = await store.start_multipart(f"{folder}/mixed", writer_id="w")
            second = await mixed.put_part(2, [b"y"])
            await mixed.complete([await mixed.put_part(1, [bytes(5 * MIB)]), second])
            keys += [f"{folder}/{name}" for name in ("put", "parts", "mixed")]
        await store.close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((root / key).stat().st_mode) for key in keys] == [mode] * 3 + [0o600] * 3


async def test_old_temporary_files_are_removed_and_fresh_ones_kept(root: Path) -> None:
    store = await opened(root)
    for name in ("put-old", "put-new"):
        (root / TEMPORARY / name).write_bytes(b"x")
    for name in ("up-old", "up-new"):
        (root / TEMPORARY / name).mkdir()
        (root / TEMPORARY / name / "data").write_bytes(b"x")
    for name in ("put-old", "up-old/data", "up-old", "up-new"):
        os.utime(root / TEMPORARY / name, (1, 1))
    await store.close()
    store = await opened(root)
    assert left_over(root) == ["put-new", "up-new", "up-new/data"]
    await store.close()


async def test_completing_again_after_a_crash_is_a_success(root: Path) -> None:
    files = ObjectFiles("local", root)
    files.prepare()
    upload = files.start_upload("a/1", "w")
    upload.write_part(1, upload.place(1, 3), [b"abc"])
    upload.complete([PartReceipt(1, "", 3)])
    upload.complete([PartReceipt(1, "", 3)])
    assert bytes(files.read("a/1", 0, 3)) == b"abc"


async def test_foreign_and_damaged_files(root: Path) -> None:
    store = await opened(root)
    (root / "foreign").write_bytes(b"short")
    with pytest.raises(StoreError, match="local:foreign: 5 bytes: not written by this store"):
        await store.get("foreign", 0, 1)
    (root / "foreign").write_bytes(b"x" * 1000)
    with pytest.raises(StoreError, match="bad trailer at 872"):
        await store.writer_id("foreign")
    (root / "folder" / "inside").mkdir(parents=True)
    with pytest.raises(ObjectNotFound):
        await store.get("folder/inside", 0, 1)
    with pytest.raises(ObjectNotFound):
        await store.get("foreign/below", 0, 1)
    with pytest.raises(StoreError, match="local:foreign/below"):
        await store.put("foreign/below", [b"x"], writer_id="w")
    await store.close()


async def test_long_writer_ids_are_refused(root: Path) -> None:
    store = await opened(root)
    with pytest.raises(StoreError, match="writer id of 200 bytes"):
        await store.put("a", [b"x"], writer_id="w" * 200)
    await store.close()


async def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore("local", tmp_path / "file")
    with pytest.raises(StoreError, match=f"local:{tmp_path}/file"):
        await store.open()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.get("a", 0, 1)


async def test_a_cancelled_call_leaves_no_thread_at_work(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(root)
    entered, leave = threading.Event(), threading.Event()
    real = os.fsync

    def slow(fd: int) -> None:
        entered.set()
        leave.wait(10)
        real(fd)

    monkeypatch.setattr(os, "fsync", slow)
    task = asyncio.ensure_future(store.put("a/1", [b"x"], writer_id="w"))
    await asyncio.to_thread(entered.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_over(root) == []
    assert await store.writer_id("a/1") == "w"
    await store.close()


async def test_creating_and_deleting_neighbours_do_not_collide(root: Path) -> None:
    store = await opened(root)

    async def churn(name: str) -> None:
        for _ in range(50):
            await store.put(f"same/folder/{name}", [b"x"], writer_id="w")
            assert await store.delete([f"same/folder/{name}"]) == {}

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(churn(name))
    assert not (root / "same").exists()
    await store.close()


async def test_a_long_read_is_many_short_calls(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long one would keep the log's threads off its processor."""
    store = await opened(root)
    content = os.urandom(2 * MIB)
    await store.put("a/1", [content], writer_id="w")
    calls: list[int] = []
    preadv = os.preadv

    def noted(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(preadv(fd, buffers, offset))
        return calls[-1]

    monkeypatch.setattr(os, "preadv", noted)
    assert bytes(await store.get("a/1", 1, 2 * MIB - 1)) == content[1:-1]
    assert max(calls) <= MIB // 2
    await store.close()
