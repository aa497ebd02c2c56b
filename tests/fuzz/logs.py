"""Images of the write-ahead log: recovery gives a prefix of what was appended, or one of the log's errors.

The first byte chooses an image, the second whether checksums are set right after the edits of the script that follows:
of the header's copies, and of the records at their old places. Without that, what is returned must be what was
appended. With it, each returned record must match its checksums.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from random import Random
from struct import pack_into
from typing import Final

import structlog
from crc32c import crc32c

from anabranch.wal.format import _CRC_AT as CRC_AT
from anabranch.wal.format import (
    HEADER_MAGIC,
    PAGE_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_START_BYTES,
    RING_POSITION,
    decode_header,
    record_salt,
)
from anabranch.wal.interface import RecoveredRecord, WalError
from anabranch.wal.log import DeltaWal
from tests.fuzz.target import Choices, Target, check_message, edited, random_script
from tests.wal.test_repair import SETTINGS, WrittenLog

SEALED: Final = 128


@dataclass(frozen=True)
class Image:
    """The bytes of a log's device, with the records that are in it and not trimmed, by offset."""

    data: bytes
    records: Mapping[int, bytes]


@cache
def images() -> tuple[Image, ...]:
    async def make() -> tuple[Image, ...]:
        made = []
        for seed, (blocks, trim, clean, body_bytes) in enumerate(
            [(5, 0, False, 300), (12, 20, False, 1000), (6, 4, True, 2000), (60, 170, False, 3000)]
        ):
            log = WrittenLog(seed)
            await log.fill(min(blocks, 12), trim=min(trim, 30), clean=clean and blocks <= 12, body_bytes=body_bytes)
            for _ in range(12, blocks, 12):
                await log.fill(12, trim=36, body_bytes=body_bytes)
            made.append(Image(bytes(log.disk.data), dict(log.records)))
        return tuple(made)

    with structlog.testing.capture_logs():
        return asyncio.run(make())


def check(data: bytes) -> None:
    choices = Choices(data)
    image = images()[choices.number(1) % len(images())]
    how = choices.number(1)
    content = edited(image.data, choices).ljust(len(image.data), b"\0")
    if how & SEALED:
        reseal(content, image)
    with structlog.testing.capture_logs():
        asyncio.run(recover(content, image, sealed=bool(how & SEALED)))


async def recover(content: bytearray, image: Image, *, sealed: bool) -> None:
    log = WrittenLog()
    log.epoch = 100
    log.disk.data[:] = log.disk.stable[:] = content
    try:
        wal = log.wal()
        found = [record async for record in wal.recover()]
    except WalError as error:
        check_message(error)
        return
    for record in found:
        check_record(log, wal, record)
    records = {record.offset: bytes(record.body) for record in found}
    assert list(records) == sorted(records)
    assert len(records) == len(found)
    if sealed:
        return  # a header with a right checksum and wrong offsets: only the records are checked
    kept = [offset for offset in image.records if offset in records]
    assert kept == list(image.records)[: len(kept)], "what is kept is a prefix"
    assert {offset: records[offset] for offset in kept} == {offset: image.records[offset] for offset in kept}
    trimmed = min(image.records, default=1 << 62)
    assert all(offset < trimmed for offset in records if offset not in image.records), "nothing was made up"
    try:
        more = wal.append([b"more"])
        await more.durable
    except WalError:
        return  # the ring is full, or the header's limits leave no room
    assert await log.recover() == records | {more.offset: b"more"}


def check_record(log: WrittenLog, wal: DeltaWal, record: RecoveredRecord) -> None:
    """Compare a record with what is on the disk at its place: header, body and both checksums."""
    header = wal._header.header  # noqa: SLF001 - the log's own
    head = read(log, header.segments(record.offset, RECORD_HEADER_BYTES))
    body_bytes, body_offset, body_crc, header_crc = (
        int.from_bytes(head[start:stop], "little") for start, stop in ((4, 8), (8, 16), (16, 20), (20, 24))
    )
    assert head[:4] == b"ABWR"
    assert body_offset == record.offset + RECORD_HEADER_BYTES
    assert crc32c(head[:RECORD_START_BYTES], record_salt(header.log_id)) == header_crc
    assert len(record.body) == body_bytes
    assert crc32c(record.body) == body_crc
    assert read(log, header.segments(body_offset, body_bytes)) == bytes(record.body)


def read(log: WrittenLog, segments: list[tuple[int, int]]) -> bytes:
    return b"".join(bytes(log.disk.data[position : position + length]) for position, length in segments)


def reseal(content: bytearray, image: Image) -> None:
    """Write the checksums of header copies and records anew, where the originals were."""
    salt = 0
    for at in range(0, RING_POSITION, PAGE_BYTES):
        page = content[at : at + PAGE_BYTES]
        page[: len(HEADER_MAGIC)] = HEADER_MAGIC
        crc_at = CRC_AT.get(int.from_bytes(page[8:12], "little"))
        if crc_at is not None:
            pack_into("<I", page, crc_at, crc32c(page[:crc_at]))
        content[at : at + PAGE_BYTES] = page
        header = decode_header(page)
        if not isinstance(header, str):
            salt = record_salt(header.log_id)
    ring_bytes = SETTINGS.capacity_bytes - RING_POSITION
    for offset in image.records:
        at = RING_POSITION + offset % ring_bytes
        if at + RECORD_HEADER_BYTES > len(content):
            continue
        body = at + RECORD_HEADER_BYTES
        length = int.from_bytes(content[at + 4 : at + 8], "little")
        pack_into("<I", content, at + 16, crc32c(content[body : body + length]))
        pack_into("<I", content, at + 20, crc32c(content[at : at + RECORD_START_BYTES], salt))


def fresh(random: Random) -> bytes:
    script = random_script(random)
    if random.random() < 0.4:  # in a copy of the header, or both
        script = bytes((script[0], 0, random.choice((0, 16)), random.randrange(256))) + script[4:]
    elif random.random() < 0.8:  # in a record or around it
        image = random.choice(images())
        offset = random.choice(list(image.records)) + random.randrange(-8, 40)
        at = RING_POSITION + offset % (SETTINGS.capacity_bytes - RING_POSITION)
        script = script[:1] + at.to_bytes(3, "big") + script[4:]
    return bytes((random.randrange(4), random.randrange(256))) + script


def seeds() -> list[bytes]:
    return [bytes((at, how)) for at in range(len(images())) for how in (0, SEALED)]


TARGET = Target(check, seeds, quick_inputs=500, fresh=fresh)
