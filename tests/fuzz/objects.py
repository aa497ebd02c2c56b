"""Objects: footer, index and blocks, as readers of a store see them.

The first byte chooses an object, the second whether all checksums are set right after the edits of the script that
follows. Without that, every change must be found. With it, only what is consistent may be returned.
"""

import asyncio
from functools import cache
from itertools import pairwise
from random import Random
from struct import pack_into
from typing import Final

from crc32c import crc32c

from anabranch.s3stream.errors import CorruptObject, StorageError
from anabranch.s3stream.model import ObjectKind, StreamBatch
from anabranch.s3stream.object.format import (
    FOOTER,
    FOOTER_BYTES,
    FOOTER_MAGIC,
    INDEX_ENTRY,
    INDEX_HEADER,
    decode_block,
)
from anabranch.s3stream.object.reader import ObjectIndex, read_index
from tests.fuzz.target import Choices, Target, check_message, edited, random_script
from tests.s3stream.object.test_format import GOLDEN, write
from tests.support.memory_store import MemoryStore

SEALED: Final = 128


@cache
def images() -> tuple[bytes, ...]:
    random = Random(1)

    def batches(streams: int, count: int) -> list[StreamBatch]:
        return [
            StreamBatch(stream, at * 10, at * 10 + 10, 10, at, random.randbytes(40))
            for stream in range(streams)
            for at in range(count)
        ]

    small = (asyncio.run(write(batches(4, 6), block_bytes=100))[0],)
    large = (asyncio.run(write(batches(1, 40), kind=ObjectKind.SO, block_bytes=300))[0],)
    return (GOLDEN, *small, *large)


def check(data: bytes) -> None:
    choices = Choices(data)
    image = images()[choices.number(1) % len(images())]
    how = choices.number(1)
    content = edited(image, choices)
    if how & SEALED:
        reseal(content)
    asyncio.run(read(bytes(content), image, sealed=bool(how & SEALED), tail_bytes=(48, 100, 1 << 20)[how % 3]))


async def read(content: bytes, image: bytes, *, sealed: bool, tail_bytes: int) -> None:
    store = MemoryStore("m")
    store.objects["k"] = (content, "w", 0)
    try:
        index = await read_index(store, "k", tail_bytes)
    except StorageError as error:
        check_message(error)
        return
    readable = 0
    for entry in index:
        block = content[entry.position : entry.end_position]
        try:
            batches = decode_block(block, entry, where="m:k")
        except CorruptObject as error:
            check_message(error)
            continue
        readable += 1
        assert crc32c(block) == entry.crc
        assert (batches[0].base_offset, batches[-1].end_offset) == (entry.start_offset, entry.end_offset)
        for before, after in pairwise(batches):
            assert before.end_offset == after.base_offset
        assert {batch.stream_id for batch in batches} == {entry.stream_id}
        assert sum(len(batch.payload) for batch in batches) < len(block)
    check_lookups(index)
    assert sealed or content == image or readable < len(index), "a change was not found"


def check_lookups(index: ObjectIndex) -> None:
    """A search in the index finds what a walk over it finds."""
    entries = list(index)
    for entry in entries:
        assert entry in index.find(entry.stream_id, entry.start_offset, entry.start_offset + 1)
    for stream in {entry.stream_id for entry in entries}:
        assert index.find(stream, -(1 << 63)) == [entry for entry in entries if entry.stream_id == stream]


def reseal(content: bytearray) -> None:
    """Write the checksums of blocks, index and footer anew, as far as the places are inside the object."""
    if len(content) < FOOTER_BYTES:
        return
    at = len(content) - FOOTER_BYTES
    position, size, *_ = FOOTER.unpack_from(content, at)
    if position <= at and size <= at:
        entries = (size - INDEX_HEADER.size) // INDEX_ENTRY.size
        for number in range(min(entries, 1000)):
            entry = position + INDEX_HEADER.size + number * INDEX_ENTRY.size
            if entry + INDEX_ENTRY.size > at:
                break
            *_, start, _, length, _ = INDEX_ENTRY.unpack_from(content, entry)
            if start >= 0:
                pack_into("<I", content, entry + INDEX_ENTRY.size - 4, crc32c(content[start : start + length]))
        pack_into("<I", content, at + 16, crc32c(content[position : position + size]))
    content[-len(FOOTER_MAGIC) :] = FOOTER_MAGIC
    pack_into("<I", content, at + FOOTER.size, crc32c(content[at : at + FOOTER.size]))


def fresh(random: Random) -> bytes:
    return bytes((random.randrange(3), random.randrange(256))) + random_script(random)


def seeds() -> list[bytes]:
    return [bytes((at, how)) for at in range(3) for how in (0, SEALED)]


TARGET = Target(check, seeds, quick_inputs=1000, fresh=fresh)
