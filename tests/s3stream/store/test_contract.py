"""The contract of every object store: the same tests for memory, a local directory and a real S3 server."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from anabranch.s3stream.errors import ObjectExists, ObjectNotFound, ObjectTooShort, StoreError
from anabranch.s3stream.store.interface import ObjectStore, PartReceipt
from anabranch.wal.interface import Buffer

MIB = 1024 * 1024
PART = 5 * MIB


async def content(store: ObjectStore, key: str) -> bytes:
    return bytes((await store.get_tail(key, 1 << 40)).data)


async def keys(store: ObjectStore, prefix: str) -> list[str]:
    return [each.key async for each in store.list(prefix)]


async def test_what_is_put_is_read(store: ObjectStore, prefix: str) -> None:
    key = f"{prefix}0f/c/1"
    big = os.urandom(700_000)
    parts: list[Buffer] = [b"head", memoryview(big), bytearray(b""), *(b"%d," % at for at in range(3000)), b"tail"]
    whole = b"".join(parts)
    await store.put(key, parts, writer_id="w1")
    assert await content(store, key) == whole
    assert bytes(await store.get(key, 0, len(whole))) == whole
    assert bytes(await store.get(key, 3, 700_003)) == whole[3:700_003]
    assert bytes(await store.get(key, len(whole) - 1, len(whole))) == whole[-1:]
    tail = await store.get_tail(key, 10)
    assert (bytes(tail.data), tail.size_bytes) == (whole[-10:], len(whole))
    tail = await store.get_tail(key, len(whole))
    assert (len(tail.data), tail.size_bytes) == (len(whole), len(whole))
    assert await store.writer_id(key) == "w1"


async def test_counters(store: ObjectStore, prefix: str) -> None:
    calls = store.calls
    calls.head = 0  # opening may have looked for the bucket
    await store.put(prefix + "a", [b"12", b"345"], writer_id="w")
    await store.get(prefix + "a", 1, 3)
    await store.get_tail(prefix + "a", 4)
    await store.writer_id(prefix + "a")
    await keys(store, prefix)
    await store.delete([prefix + "a", prefix + "b"])
    assert (calls.put, calls.get, calls.head, calls.list, calls.delete) == (1, 2, 1, 1, 1)
    assert (calls.bytes_written, calls.bytes_read, calls.retries, calls.errors) == (5, 6, 0, 0)


@pytest.mark.parametrize("bounds", [(0, 6), (4, 6), (5, 6), (6, 7), (100, 200)])
async def test_reading_past_the_end_is_an_error(store: ObjectStore, prefix: str, bounds: tuple[int, int]) -> None:
    await store.put(prefix + "a", [b"12345"], writer_id="w")
    with pytest.raises(ObjectTooShort, match=r"a\b.*bytes"):
        await store.get(prefix + "a", *bounds)


@pytest.mark.parametrize("bounds", [(0, 0), (3, 2), (-1, 2)])
async def test_bad_ranges_are_refused(store: ObjectStore, prefix: str, bounds: tuple[int, int]) -> None:
    await store.put(prefix + "a", [b"12345"], writer_id="w")
    with pytest.raises(StoreError, match="range"):
        await store.get(prefix + "a", *bounds)


async def test_absent_objects(store: ObjectStore, prefix: str) -> None:
    key = prefix + "absent"
    with pytest.raises(ObjectNotFound, match="absent"):
        await store.get(key, 0, 1)
    with pytest.raises(ObjectNotFound, match="absent"):
        await store.get_tail(key, 1)
    assert await store.writer_id(key) is None
    assert await store.delete([key]) == {}
    assert await keys(store, prefix) == []
    assert store.calls.retries == 0


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".a", "a/../b", "a/.b", "a\0b", "k" * 1025])
async def test_bad_keys_are_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(StoreError, match="bad key"):
        await store.put(key, [b"x"], writer_id="w")
    with pytest.raises(StoreError, match="bad key"):
        await store.start_multipart(key, writer_id="w")


async def test_an_object_is_created_once(store: ObjectStore, prefix: str) -> None:
    key = prefix + "k/c/1"
    await store.put(key, [b"mine"], writer_id="w1")
    await store.put(key, [b"mine"], writer_id="w1")
    with pytest.raises(ObjectExists, match="'w1'"):
        await store.put(key, [b"theirs"], writer_id="w2")
    upload = await store.start_multipart(key, writer_id="w2")
    receipt = await upload.put_part(1, [b"theirs"])
    with pytest.raises(ObjectExists, match="'w1'"):
        await upload.complete([receipt])
    await upload.abort()
    assert await content(store, key) == b"mine"
    assert await store.writer_id(key) == "w1"


async def test_of_many_writers_one_wins(store: ObjectStore, prefix: str) -> None:
    key = prefix + "contested"

    async def write(writer: str) -> bool:
        try:
            await store.put(key, [writer.encode() * 1000], writer_id=writer)
        except ObjectExists:
            return False
        return True

    async with asyncio.TaskGroup() as group:
        tasks = {name: group.create_task(write(name)) for name in ("a", "b", "c", "d", "e")}
    (winner,) = [name for name, task in tasks.items() if task.result()]
    assert await store.writer_id(key) == winner
    assert await content(store, key) == winner.encode() * 1000


async def test_multipart(store: ObjectStore, prefix: str) -> None:
    key = prefix + "m/c/1"
    pieces = [os.urandom(PART), os.urandom(PART + 1), b"end"]
    upload = await store.start_multipart(key, writer_id="w1")
    assert upload.upload_id
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(upload.put_part(at, [piece[:7], piece[7:]])) for at, piece in enumerate(pieces, 1)]
    assert await keys(store, prefix) == []
    assert await store.writer_id(key) is None
    receipts = [task.result() for task in tasks]
    assert [(each.number, each.size_bytes) for each in receipts] == [(1, PART), (2, PART + 1), (3, 3)]
    await upload.complete(receipts)
    assert await content(store, key) == b"".join(pieces)
    assert await store.writer_id(key) == "w1"
    assert (store.calls.multipart, store.calls.part) == (2, 3)
    assert bytes(await store.get(key, PART - 2, PART + 2)) == pieces[0][-2:] + pieces[1][:2]


class CountingPace:
    """A pace without waits."""

    piece_bytes = 3 * 65536

    def __init__(self) -> None:
        self.pieces: list[int] = []

    @asynccontextmanager
    async def piece(self, size_bytes: int) -> AsyncIterator[None]:
        """Count a piece."""
        self.pieces.append(size_bytes)
        yield


async def test_objects_written_at_a_pace_are_the_same(store: ObjectStore, prefix: str) -> None:
    pace = CountingPace()
    parts = [os.urandom(size) for size in (1, 70_000, 0, 4096, 500_000, 64 * 1024, 3)]
    await store.put(prefix + "o", parts, writer_id="w", pace=pace)
    assert await content(store, prefix + "o") == b"".join(parts)
    assert sum(pace.pieces) == sum(map(len, parts))
    pieces = [os.urandom(PART + 777), os.urandom(PART), b"end"]
    upload = await store.start_multipart(prefix + "m", writer_id="w")
    receipts = [await upload.put_part(at, [piece[:9], piece[9:]], pace=pace) for at, piece in enumerate(pieces, 1)]
    again = await upload.put_part(1, [pieces[0]], pace=pace)
    await upload.complete([again, *receipts[1:]])
    assert await content(store, prefix + "m") == b"".join(pieces)


async def test_parts_in_any_order_and_again(store: ObjectStore, prefix: str) -> None:
    key = prefix + "m"
    one, two, three = os.urandom(PART), os.urandom(PART + 5), b"end"
    upload = await store.start_multipart(key, writer_id="w")
    last = await upload.put_part(7, [three])
    await upload.put_part(1, [b"an attempt that is replaced"])
    await upload.put_part(2, [two])
    await upload.put_part(5, [b"never used"])
    first = await upload.put_part(1, [one])
    second = await upload.put_part(2, [two])
    await upload.complete([first, second, last])
    assert await content(store, key) == one + two + three


async def test_copied_parts(store: ObjectStore, prefix: str) -> None:
    source = os.urandom(2 * PART + 10)
    await store.put(prefix + "source/1", [source], writer_id="w0")
    upload = await store.start_multipart(prefix + "target/1", writer_id="w")
    receipts = [
        await upload.put_part(1, [source[:PART]]),
        await upload.copy_part(2, prefix + "source/1", 3, PART + 7),
        await upload.copy_part(3, prefix + "source/1", PART + 7, 2 * PART + 10),
        await upload.put_part(4, [b"index"]),
    ]
    await upload.complete(receipts)
    assert await content(store, prefix + "target/1") == source[:PART] + source[3:] + b"index"
    assert store.calls.part_copy == 2
    assert store.calls.bytes_read == 3 * PART + 12
    with pytest.raises(StoreError):
        await upload.copy_part(1, prefix + "absent", 0, PART)


async def test_copying_past_the_end_is_an_error(store: ObjectStore, prefix: str) -> None:
    await store.put(prefix + "source/1", [b"12345"], writer_id="w0")
    upload = await store.start_multipart(prefix + "target/1", writer_id="w")
    with pytest.raises(StoreError):
        await upload.copy_part(1, prefix + "source/1", 0, 6)
    with pytest.raises(ObjectNotFound):
        await upload.copy_part(1, prefix + "absent", 0, 6)
    await upload.abort()


async def test_bad_parts_are_refused(store: ObjectStore, prefix: str) -> None:
    upload = await store.start_multipart(prefix + "m", writer_id="w")
    one = await upload.put_part(1, [b"short"])
    two = await upload.put_part(2, [b"last"])
    bad: list[list[PartReceipt]] = [[], [one, two], [two, one], [PartReceipt(9, "tag", 3)]]
    for receipts in bad:
        with pytest.raises(StoreError):
            await upload.complete(receipts)
    await upload.complete([two])
    assert await content(store, prefix + "m") == b"last"


async def test_aborted_uploads_leave_nothing(store: ObjectStore, prefix: str) -> None:
    key = prefix + "m/1"
    upload = await store.start_multipart(key, writer_id="w")
    receipt = await upload.put_part(1, [b"x"])
    await upload.abort()
    await upload.abort()
    with pytest.raises(StoreError):
        await upload.complete([receipt])
    with pytest.raises(StoreError):
        await upload.put_part(1, [b"x"])
    other = await store.start_multipart(key, writer_id="w")
    await other.put_part(1, [b"x"])
    await store.abort_multipart(key, other.upload_id)
    await store.abort_multipart(key, other.upload_id)
    with pytest.raises(StoreError):
        await other.complete([receipt])
    assert await keys(store, prefix) == []


async def test_abort_after_complete_keeps_the_object(store: ObjectStore, prefix: str) -> None:
    upload = await store.start_multipart(prefix + "m", writer_id="w")
    await upload.complete([await upload.put_part(1, [b"x"])])
    await upload.abort()
    assert await content(store, prefix + "m") == b"x"


async def test_delete(store: ObjectStore, prefix: str) -> None:
    names = [f"{prefix}{at % 7}/c/{at}" for at in range(40)]
    for name in names:
        await store.put(name, [b"x"], writer_id="w")
    assert await store.delete([*names[1:], prefix + "absent/1"]) == {}
    assert await keys(store, prefix) == names[:1]
    assert await store.delete([]) == {}
    await store.put(names[5], [b"new"], writer_id="other")
    assert await content(store, names[5]) == b"new"


async def test_list_is_sorted_and_keeps_to_its_prefix(store: ObjectStore, prefix: str) -> None:
    names = [f"{prefix}{name}" for name in ("a", "a.b/1", "a-b/2", "ab/c/3", "ab/c/4", "ab/cd/5", "b/1", "b0/1", "ä/1")]
    for at, name in enumerate(names):
        await store.put(name, [b"x" * at], writer_id="w")
    found = [each async for each in store.list(prefix)]
    assert [each.key for each in found] == sorted(names)
    assert {each.key: each.size_bytes for each in found} == {name: at for at, name in enumerate(names)}
    assert all(each.modified_ms > 1_600_000_000_000 for each in found)
    assert await keys(store, prefix + "a") == sorted(name for name in names if name.startswith(prefix + "a"))
    assert await keys(store, prefix + "ab/c") == [prefix + "ab/c/3", prefix + "ab/c/4", prefix + "ab/cd/5"]
    assert await keys(store, prefix + "ab/c/4") == [prefix + "ab/c/4"]
    assert await keys(store, prefix + "zz") == []


async def test_list_goes_on_past_a_page(store: ObjectStore, prefix: str) -> None:
    async with asyncio.TaskGroup() as group:
        for at in range(1005):
            group.create_task(store.put(f"{prefix}{at:04d}", [b"x"], writer_id="w"))
    assert await keys(store, prefix) == [f"{prefix}{at:04d}" for at in range(1005)]
    assert store.calls.list == (1 if store.name == "memory" else 2)
    assert await store.delete([f"{prefix}{at:04d}" for at in range(1005)]) == {}
    assert await keys(store, prefix) == []
