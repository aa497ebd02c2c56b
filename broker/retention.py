"""Drops records that are older than their topic's `retention.ms`: moves the start of the log forward.

Batches go in the order of offsets, up to the first one that has a record young enough, so that what stays is without
gaps; an old batch behind a young one waits for it. Kafka drops whole segment files and so a little later.
"""

import asyncio
from collections.abc import Callable, Iterable

import structlog

from broker.partition import Partition
from s3stream.errors import StorageError

log = structlog.get_logger("retention")


async def keep_enforcing(
    partitions: Callable[[], Iterable[Partition]], now_ms: Callable[[], int], interval_ms: int
) -> None:
    """Look every partition over, again and again, until cancelled."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        for partition in list(partitions()):
            try:
                await enforce(partition, now_ms())
            except StorageError as error:
                log.warning("old records stay for now", partition=str(partition), reason=str(error))


async def enforce(partition: Partition, now_ms: int) -> int:
    """Drop what is too old; returns how many offsets. Raises StorageError."""
    config = partition.config
    if config.retention_ms < 0 or not config.deletable:
        return 0
    stream = partition.stream
    start, end = stream.start_offset, stream.confirmed_offset
    if start == end:
        return 0
    kept = await stream.offset_for_time(now_ms - config.retention_ms)
    new_start = end if kept is None else min(kept.base_offset, end)
    if new_start <= start:
        return 0
    await stream.trim(new_start)
    log.info("old records dropped", partition=str(partition), start_offset=new_start, offsets=new_start - start)
    return new_start - start
