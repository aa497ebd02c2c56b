"""Drops records that their topic keeps no longer, by age or by size: moves the start of the log forward.

By age (`retention.ms`), batches go in the order of offsets, up to the first one that has a record young enough, so that
what stays is without gaps; an old batch behind a young one waits for it. Records without a timestamp are as old as the
object that holds them, and new while they are in none; Kafka goes by the modification time of a segment that has no
timestamp at all. A batch whose first record has a timestamp is as old as its newest one.

By size (`retention.bytes`), blocks of batches go as long as what stays is not below the limit. Kafka does both with
whole segment files, and so drops a little later; like there, the limit is one of each partition, and what was written
last stays whatever the limit says: in Kafka the active segment, here what is not in objects yet.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from broker.partitions.partition import Partition
from protocol.batch import parse_batch
from s3stream.errors import StorageError
from wal.interface import Buffer

log = structlog.get_logger("retention")

PARTITIONS_IN_FLIGHT: Final = 8
"""Looked over at the same time: a look may wait for the catalog and for an object's index."""


async def keep_enforcing(
    partitions: Callable[[], Iterable[Partition]], now_ms: Callable[[], int], interval_ms: int
) -> None:
    """Look every partition over, again and again, until cancelled."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        await enforce_all(partitions(), now_ms)


async def enforce_all(partitions: Iterable[Partition], now_ms: Callable[[], int]) -> None:
    """Look every partition over once, a few at a time. What cannot be dropped stays for the next time."""
    left = iter(list(partitions))

    async def work() -> None:
        for partition in left:
            try:
                await enforce(partition, now_ms())
            except StorageError as error:
                log.warning("old records stay for now", partition=str(partition), reason=str(error))

    async with asyncio.TaskGroup() as group:
        for _ in range(PARTITIONS_IN_FLIGHT):
            group.create_task(work())


def has_untimed(payload: Buffer) -> bool:
    """Whether a batch has records without a timestamp, as far as its header tells."""
    return parse_batch(payload).has_untimed


async def enforce(partition: Partition, now_ms: int) -> int:
    """Drop what is too old or too much; returns how many offsets. Raises StorageError."""
    config, stream = partition.config, partition.stream
    start = stream.start_offset
    if start == stream.confirmed_offset or not config.deletable:
        return 0
    new_start = start
    if config.retention_ms >= 0:
        since_ms = now_ms - config.retention_ms
        new_start = await stream.offset_for_age(since_ms, partition.untimed_end, has_untimed)
    if config.retention_bytes >= 0:
        new_start = max(new_start, await stream.offset_for_size(config.retention_bytes))
    if new_start <= start:
        return 0
    await stream.trim(new_start)
    log.info("old records dropped", partition=str(partition), start_offset=new_start, offsets=new_start - start)
    return new_start - start
