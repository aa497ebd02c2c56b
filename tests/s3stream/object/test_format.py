"""The bytes of an object: a golden example, round trips of anything, and damage of any byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.model import NewObject, ObjectKind, StreamBatch, StreamRange
from anabranch.s3stream.object.format import decode_block
from anabranch.s3stream.object.reader import decode_index
from anabranch.s3stream.object.writer import ObjectWriter
from tests.support.memory_store import MemoryStore

GOLDEN = bytes.fromhex(
    # block of stream 7: header, two batch headers, payloads
    "41424c4b 02000000 0700000000000000"
    "6400000000000000 6600000000000000 e803000000000000 02000000 05000000"
    "6600000000000000 6700000000000000 ffffffffffffffff 01000000 03000000"
    "68656c6c6f 616263"
    # block of stream 9
    "41424c4b 01000000 0900000000000000"
    "0000000000000000 0000000001000000 d007000000000000 01000000 01000000"
    "78"
    # index: header, two entries
    "41494458 02000000"
    "0700000000000000 6400000000000000 6700000000000000 0300000000000000 0000000000000000 e803000000000000"
    "58000000 {crc7}"
    "0900000000000000 0000000000000000 0000000001000000 0100000000000000 5800000000000000 d007000000000000"
    "31000000 {crc9}"
    # footer
    "8900000000000000 78000000 02000000 {index} 01 01 0000 2a00000000000000 00000000"
    "{footer} 414e4142524e4348".format(crc7="2a1ea84b", crc9="586e6cf4", index="90c3a8f8", footer="816a0af2")
)
GOLDEN_BATCHES = [
    StreamBatch(7, 100, 102, 2, 1000, b"hello"),
    StreamBatch(7, 102, 103, 1, -1, b"abc"),
    StreamBatch(9, 0, 1 << 32, 1, 2000, b"x"),
]


async def write(
    batches: list[StreamBatch], *, kind: ObjectKind = ObjectKind.SSO, block_bytes: int = 512 * 1024
) -> tuple[bytes, NewObject]:
    store = MemoryStore("m")
    writer = ObjectWriter(store, "k", object_id=42, kind=kind, writer_id="w", block_bytes=block_bytes)
    async with writer:
        for batch in batches:
            await writer.write(batch)
        new = await writer.finish()
    return store.objects["k"][0], new


def read(data: bytes) -> list[StreamBatch]:
    index = decode_index(data, where="k")
    view = memoryview(data)
    return [
        batch._replace(payload=bytes(batch.payload))
        for entry in index
        for batch in decode_block(view[entry.position : entry.end_position], entry, where="k")
    ]


async def test_golden_bytes() -> None:
    data, new = await write(GOLDEN_BATCHES)
    assert data.hex() == GOLDEN.hex()
    assert read(GOLDEN) == GOLDEN_BATCHES
    assert new.size_bytes == len(data)
    assert new.ranges == [StreamRange(7, 100, 103, 3, 88, 1000), StreamRange(9, 0, 1 << 32, 1, 49, 2000)]


@st.composite
def layouts(draw: st.DrawFn) -> list[StreamBatch]:
    batches = []
    for stream in sorted(draw(st.sets(st.integers(0, 1 << 62), min_size=1, max_size=4))):
        offset = draw(st.integers(0, 1 << 60))
        for _ in range(draw(st.integers(1, 5))):
            offset += draw(st.sampled_from([0, 0, 0, 1, 1 << 33]))
            end = offset + draw(st.integers(1, 1 << 40))
            payload = draw(st.binary(max_size=60))
            timestamp = draw(st.integers(-1, 1 << 62))
            batches.append(StreamBatch(stream, offset, end, draw(st.integers(1, 1 << 31)), timestamp, payload))
            offset = end
    return batches


@given(layouts(), st.integers(1, 300))
async def test_whatever_is_written_is_read(batches: list[StreamBatch], block_bytes: int) -> None:
    data, new = await write(batches, block_bytes=block_bytes)
    assert read(data) == batches
    index = decode_index(data, where="k")
    for entry in index:
        assert entry in index.find(entry.stream_id, entry.start_offset, entry.start_offset + 1)
    for stream in {batch.stream_id for batch in batches}:
        assert index.find(stream) == [entry for entry in index if entry.stream_id == stream]
    assert sum(each.record_count for each in new.ranges) == sum(batch.record_count for batch in batches)
    for before, after in zip(new.ranges, new.ranges[1:], strict=False):
        assert (before.stream_id, before.end_offset) < (after.stream_id, after.start_offset)


@given(layouts(), st.data())
async def test_a_flipped_bit_is_found(batches: list[StreamBatch], data: st.DataObject) -> None:
    good, _ = await write(batches, block_bytes=100)
    bad = bytearray(good)
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptObject, match=r"object k at position \d+: .*expected .*found"):
        read(bytes(bad))


async def test_every_single_byte_is_under_a_checksum() -> None:
    for at in range(len(GOLDEN)):
        bad = bytearray(GOLDEN)
        bad[at] ^= 0xFF
        with pytest.raises(CorruptObject):
            read(bytes(bad))


@pytest.mark.parametrize("length", [0, 1, 47, 48, 100, len(GOLDEN) - 1])
async def test_truncated_objects_are_found(length: int) -> None:
    with pytest.raises(CorruptObject):
        read(GOLDEN[:length])
    with pytest.raises(CorruptObject):
        read(GOLDEN[len(GOLDEN) - length :])
