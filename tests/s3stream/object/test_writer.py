"""The writer: the split into parts, refused input, and the state after a failure."""

import asyncio

import pytest

from anabranch.s3stream.errors import CorruptObject, StoreError
from anabranch.s3stream.model import ObjectKind, StreamBatch, StreamRange
from anabranch.s3stream.object.format import decode_block
from anabranch.s3stream.object.reader import index_tail_bytes, read_index
from anabranch.s3stream.object.writer import ObjectOrder, ObjectWriter, PartLimits
from tests.support.memory_store import MemoryStore

MIB = 1024 * 1024


def batch(stream: int, base: int, size: int = 1, *, count: int = 10) -> StreamBatch:
    return StreamBatch(stream, base, base + count, count, base, bytes([base % 251]) * size)


def writer_for(
    store: MemoryStore, key: str = "o", *, kind: ObjectKind = ObjectKind.SSO, block_bytes: int = 512 * 1024
) -> ObjectWriter:
    return ObjectWriter(
        store, key, object_id=5, kind=kind, writer_id="w", parts=PartLimits(5 * MIB), block_bytes=block_bytes
    )


async def test_a_small_object_is_one_put() -> None:
    store = MemoryStore("m")
    async with writer_for(store) as writer:
        await writer.write(batch(1, 0))
        await writer.finish()
    assert (store.calls.put, store.calls.multipart, store.calls.part) == (1, 0, 0)
    assert store.objects["o"][1] == "w"


async def test_a_large_object_goes_in_parallel_parts_within_the_bound() -> None:
    running = most = 0

    async def hook(call: str, _key: str) -> None:
        nonlocal running, most
        if call == "part":
            running += 1
            most = max(most, running)
            for _ in range(5):
                await asyncio.sleep(0)
            running -= 1

    store = MemoryStore("m", hook=hook)
    noted: list[str] = []

    async def note(upload_id: str) -> None:
        assert store.calls.part == 0
        noted.append(upload_id)

    writer = ObjectWriter(
        store,
        "o",
        object_id=5,
        kind=ObjectKind.SO,
        writer_id="w",
        parts=PartLimits(5 * MIB, in_flight=3),
        on_multipart=note,
    )
    async with writer:
        for at in range(42):
            await writer.write(batch(1, at * 10, MIB))
        new = await writer.finish()
    assert most == 3
    assert noted == ["upload-1"]
    assert store.calls.part == 9
    assert not store.uploads
    index = await read_index(store, "o", index_tail_bytes(new.size_bytes), object_bytes=new.size_bytes)
    assert new.ranges == [StreamRange(1, 0, 420, 420, new.size_bytes - index.footer.index_bytes - 48, 410)]
    for entry in index:
        data = await store.get("o", entry.position, entry.end_position)
        for found in decode_block(data, entry, where="o"):
            assert bytes(found.payload) == bytes([found.base_offset % 251]) * MIB


async def test_blocks_are_cut_at_their_size_and_at_gaps() -> None:
    store = MemoryStore("m")
    async with writer_for(store, block_bytes=1000) as writer:
        for at in range(5):
            await writer.write(batch(1, at * 10, 400))
        await writer.write(batch(1, 100, 400))
        await writer.write(batch(2, 0, 4000))
        await writer.finish()
    index = await read_index(store, "o")
    assert [(e.stream_id, e.start_offset, e.end_offset) for e in index] == [
        (1, 0, 20),
        (1, 20, 40),
        (1, 40, 50),
        (1, 100, 110),
        (2, 0, 10),
    ]
    assert [e.start_offset for e in index.find(1, 19, 41)] == [0, 20, 40]
    assert [e.start_offset for e in index.find(1, 20, 40)] == [20]
    assert index.find(1, 50, 100) == []
    assert index.find(3) == []
    assert index[4].stream_id == 2
    with pytest.raises(IndexError):
        index[5]


@pytest.mark.parametrize("second", [batch(1, 5), batch(1, 0), batch(0, 100), StreamBatch(1, 10, 10, 0, 0, b"")])
async def test_disorder_is_refused(second: StreamBatch) -> None:
    store = MemoryStore("m")
    async with writer_for(store) as writer:
        await writer.write(batch(1, 0))
        with pytest.raises(ObjectOrder):
            await writer.write(second)
    assert not store.objects


@pytest.mark.parametrize("second", [batch(1, 20), batch(2, 10)])
async def test_a_stream_object_has_one_run(second: StreamBatch) -> None:
    async with writer_for(MemoryStore("m"), kind=ObjectKind.SO) as writer:
        await writer.write(batch(1, 0))
        with pytest.raises(ObjectOrder, match="one run"):
            await writer.write(second)


async def test_nothing_written_is_refused() -> None:
    with pytest.raises(ObjectOrder, match="nothing"):
        await writer_for(MemoryStore("m")).finish()


@pytest.mark.parametrize("failing", ["part", "complete", "put", "multipart"])
async def test_a_failure_leaves_nothing(failing: str) -> None:
    async def hook(call: str, _key: str) -> None:
        if call == failing:
            raise StoreError("no")

    store = MemoryStore("m", hook=hook)
    writer = writer_for(store)

    async def upload() -> None:
        async with writer:
            for at in range(1 if failing == "put" else 20):
                await writer.write(batch(1, at * 10, MIB))
            await writer.finish()

    with pytest.raises(StoreError, match="no"):
        await upload()
    assert not store.objects
    assert not store.uploads
    await writer.abort()


async def test_a_cancelled_finish_leaves_nothing() -> None:
    started = asyncio.Event()

    async def hook(call: str, _key: str) -> None:
        if call == "part":
            started.set()
            await asyncio.Event().wait()

    store = MemoryStore("m", hook=hook)

    async def upload() -> None:
        async with writer_for(store) as writer:
            for at in range(12):
                await writer.write(batch(1, at * 10, MIB))
            await writer.finish()

    task = asyncio.ensure_future(upload())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not store.uploads
    assert not store.objects


async def test_blocks_are_copied_raw_and_by_the_store() -> None:
    store = MemoryStore("m")
    for key, base in (("a", 0), ("b", 60), ("c", 120)):
        async with writer_for(store, key, kind=ObjectKind.SO) as writer:
            for at in range(6):
                await writer.write(batch(1, base + at * 10, MIB))
            await writer.finish()
    a, b, c = [await read_index(store, key) for key in "abc"]
    read_before = store.calls.bytes_read
    async with writer_for(store, "d", kind=ObjectKind.SO) as writer:
        for entry in a:
            await writer.write_block(entry, await store.get("a", entry.position, entry.end_position))
        await writer.copy_blocks(list(b), "b")
        await writer.copy_blocks(list(c), "c")
        new = await writer.finish()
    assert store.calls.part_copy == 2
    assert store.calls.bytes_read - read_before == a.footer.index_position
    (run,) = new.ranges
    assert (run.start_offset, run.end_offset, run.record_count) == (0, 180, 180)
    joined = await read_index(store, "d", object_bytes=new.size_bytes)
    for entry in joined:
        data = await store.get("d", entry.position, entry.end_position)
        for found in decode_block(data, entry, where="d"):
            assert bytes(found.payload) == bytes([found.base_offset % 251]) * MIB


async def test_small_copies_are_refused() -> None:
    store = MemoryStore("m")
    async with writer_for(store, "a") as writer:
        await writer.write(batch(1, 0, MIB))
        await writer.finish()
    async with writer_for(store, "b") as writer:
        with pytest.raises(ObjectOrder, match="5 MiB"):
            await writer.copy_blocks(list(await read_index(store, "a")), "a")


async def test_an_index_longer_than_the_tail_takes_a_second_read() -> None:
    store = MemoryStore("m")
    async with writer_for(store) as writer:
        for stream in range(100):
            await writer.write(batch(stream, 0))
        await writer.finish()
    store.calls.get = 0
    short = await read_index(store, "o", 1000)
    assert store.calls.get == 2
    assert list(short) == list(await read_index(store, "o"))
    assert store.calls.get == 3


async def test_an_object_of_another_size_is_corrupt() -> None:
    store = MemoryStore("m")
    async with writer_for(store) as writer:
        await writer.write(batch(1, 0))
        new = await writer.finish()
    with pytest.raises(CorruptObject, match=r"m:o.*object size"):
        await read_index(store, "o", object_bytes=new.size_bytes + 1)


async def test_small_neighbours_are_joined() -> None:
    store = MemoryStore("m")
    batches = [batch(1, at * 10, 100 + at) for at in range(12)] + [batch(2, 0, 50), batch(2, 50, 50), batch(3, 0, 900)]
    async with writer_for(store, "a", block_bytes=150) as writer:
        for each in batches:
            await writer.write(each)
        await writer.finish()
    small = await read_index(store, "a")
    assert len(small) == 15
    async with writer_for(store, "b", block_bytes=700) as writer:
        for entry in small:
            await writer.write_block(entry, await store.get("a", entry.position, entry.end_position))
            await writer.detach_inputs()
        await writer.write(batch(4, 0, 10))
        await writer.finish()
    joined = await read_index(store, "b")
    assert [(e.stream_id, e.start_offset, e.end_offset, e.record_count) for e in joined] == [
        (1, 0, 40, 40),
        (1, 40, 80, 40),
        (1, 80, 120, 40),
        (2, 0, 10, 10),
        (2, 50, 60, 10),
        (3, 0, 10, 10),
        (4, 0, 10, 10),
    ]
    found = []
    for entry in joined:
        data = await store.get("b", entry.position, entry.end_position)
        found += [each._replace(payload=bytes(each.payload)) for each in decode_block(data, entry, where="b")]
    assert found == [*batches, batch(4, 0, 10)]


async def test_a_cancelled_writer_stops_although_its_store_is_away() -> None:
    """Or a node that must stop in an outage would not."""
    sending = asyncio.Event()

    async def away(call: str, _key: str) -> None:
        if call == "part":
            sending.set()
            await asyncio.Event().wait()
        if call == "abort":
            raise StoreError("the store is away")

    async def write() -> None:
        async with writer_for(MemoryStore("m", hook=away)) as writer:
            for at in range(11):
                await writer.write(batch(1, 10 * at, MIB))
            await writer.finish()

    task = asyncio.create_task(write())
    await sending.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
