"""Record batches of Produce: the checks of a partition, decompression, recompression, and readers of what was accepted.

The first byte chooses the topic's configs, the second the request's version, and whether length and checksum are set
right, so that changed batches pass them; the batch follows.
"""

import asyncio
from dataclasses import replace
from random import Random
from typing import Final

from anabranch.broker.kafka.configs.topic import TopicConfig
from anabranch.broker.kafka.partitions.batch_checks import check_batch
from anabranch.broker.kafka.partitions.cleaning import KafkaBatches
from anabranch.broker.kafka.partitions.record_checks import (
    PreparedBatch,
    RequiredWork,
    inspection_of,
)
from anabranch.broker.kafka.partitions.record_work import LoopBudgetExceeded, RecordWork
from anabranch.compaction.interface import CleanPolicy
from anabranch.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, parse_batch, write_crc
from anabranch.protocol.compression import Compression, decompressed
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.record_scan import RECORD_BYTES_MAX, scan_records
from anabranch.protocol.records import Record, build_batch, decode_records
from tests.fuzz.messages import random_batch
from tests.fuzz.target import Choices, Target

NOW_MS: Final = 1_700_000_000_000
DECOMPRESSED_BYTES_MAX: Final = 4 << 20
PLAIN: Final = TopicConfig(
    max_message_bytes=1 << 20,
    log_append_time=False,
    timestamp_before_max_ms=1000,
    timestamp_after_max_ms=1000,
    compression=None,
    compression_level=None,
    cleaning=None,
    retention_ms=-1,
    retention_bytes=-1,
    deletable=True,
    store="local",
    record_bytes_max=RECORD_BYTES_MAX,
)
CLEANING: Final = CleanPolicy(dirty_ratio_min=0.5, lag_ms_min=0, lag_ms_max=1000, delete_retention_ms=1000)
CONFIGS: Final = (
    PLAIN,
    replace(PLAIN, cleaning=CLEANING, timestamp_before_max_ms=1 << 62, timestamp_after_max_ms=1 << 62),
    replace(PLAIN, timestamp_before_max_ms=1 << 62),
    replace(PLAIN, timestamp_before_max_ms=1 << 62, record_bytes_max=20),
    replace(PLAIN, log_append_time=True, cleaning=CLEANING),
    *(replace(PLAIN, compression=codec, timestamp_before_max_ms=1 << 62) for codec in list(Compression)),
)
SEALED: Final = 128
CODEC: Final = KafkaBatches()


def check(data: bytes) -> None:
    choices = Choices(data)
    config = CONFIGS[choices.number(1) % len(CONFIGS)]
    how = choices.number(1)
    batch = bytearray(choices.rest())
    if how & SEALED and len(batch) >= HEADER_BYTES:
        batch[8:12] = (len(batch) - LOG_OVERHEAD_BYTES).to_bytes(4, "big")
        batch[16] = 2
        write_crc(batch)
    arrived = bytes(batch)
    try:
        view, header, out_of_range, odd_frame = check_batch(batch, config, 3 + how % 10, NOW_MS, "t-0")
    except KafkaError:
        return
    finally:
        assert batch == arrived, "a check changes nothing"
    read_as_consumers_do(view, header)
    recompression = config.compression is not None and config.compression != header.compression
    sizes = config.limits_records and header.compression != Compression.NONE
    required = RequiredWork(out_of_range, config.compacted, recompression, sizes)
    if not (any(required) or odd_frame):
        return
    try:
        prepared = asyncio.run(prepare(view, header, config, required))
    except KafkaError:
        return
    if recompression:
        assert len(prepared.view) <= config.max_message_bytes
        made = parse_batch(prepared.view)
        assert made.compression == config.compression
        assert contents(prepared.view) == contents(view)
    if config.compacted:
        described = CODEC.describe(view, 64 << 20)
        assert described is not None, "what a compacted topic accepts can be cleaned"
        assert all(record.key is not None for record in described.records)
        offsets = {record.offset for record in described.records}
        try:
            before = decode_records(view)
        except KafkaError:
            return
        kept = set(sorted(offsets)[::2])
        cleaned = CODEC.rewrite(view, kept, -1)
        assert decode_records(cleaned) == [record for record in before if record.offset in kept]


async def prepare(view: memoryview, header: BatchHeader, config: TopicConfig, required: RequiredWork) -> PreparedBatch:
    work = RecordWork(DECOMPRESSED_BYTES_MAX)
    inspection = inspection_of(view, header, config, required, NOW_MS, "t-0", work)
    try:
        return work.inspect_on_loop(view, header, inspection)
    except LoopBudgetExceeded:
        return await work.inspect_in_thread(view, header, inspection)
    finally:
        work.close()


def read_as_consumers_do(view: memoryview, header: BatchHeader) -> None:
    """Both readers of single records give the same, or one of their errors."""
    try:
        records = decode_records(view, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
    except KafkaError:
        return
    with decompressed(header.compression, view[HEADER_BYTES:], bytes_max=DECOMPRESSED_BYTES_MAX) as data:
        scanned = [(each.offset, each.key, each.is_tombstone, each.timestamp_ms) for each in scan_records(data, header)]
    assert scanned == [(each.offset, each.key, each.value is None, each.timestamp_ms) for each in records]


def contents(batch: memoryview) -> bytes:
    """Return the decompressed records of a batch."""
    header = parse_batch(batch)
    with decompressed(header.compression, batch[HEADER_BYTES:], bytes_max=DECOMPRESSED_BYTES_MAX) as data:
        return bytes(data)


def bombs() -> list[bytes]:
    """Return small batches whose records unfold to more than is allowed."""
    records = [Record(b"k", bytes(6 << 20), NOW_MS)]
    return [bytes(build_batch(records, compression=codec)) for codec in list(Compression)[1:]]


def seeds() -> list[bytes]:
    random = Random(1)
    made = [fresh(random) for _ in range(40)]
    return made + [bytes((at, SEALED + 6)) + bomb for bomb in bombs() for at in (0, 1, 4) if len(bomb) < 8000]


def fresh(random: Random) -> bytes:
    return bytes((random.randrange(len(CONFIGS)), random.choice((6, SEALED + 6, SEALED + 6)))) + random_batch(random)


WORDS: Final = (
    b"\x1f\x8b\x08", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", b"\x82SNAPPY\x00", b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80", b"\x01",
    b"\x7f\xff\xff\xff",
)  # fmt: skip
TARGET = Target(check, seeds, quick_inputs=2500, fresh=fresh, words=WORDS)
