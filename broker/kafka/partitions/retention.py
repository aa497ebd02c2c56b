"""Retention: deletes records that exceed the topic's limits of age or size, by moving the start of the log forward.

By age (`retention.ms`): batches are deleted in the order of offsets, up to the first one that has a record young
enough. The log stays without gaps; an old batch behind a young one waits for it. A batch whose first
record has a timestamp is as old as its newest record. Records without a timestamp are as old as the commit of the
object that holds them, and new while they are in no object. Kafka uses the modification time of a segment without
timestamps.

By size (`retention.bytes`): blocks of batches are deleted as long as the rest is not below the limit. The limit holds
for each partition, as in Kafka. Data that is not in objects yet is never deleted by size, like Kafka's active segment.

Kafka deletes whole segment files, and therefore a little later.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from anabranch.broker.kafka.partitions.partition import Partition
from anabranch.protocol.batch import parse_batch
from anabranch.s3stream.errors import StorageError
from anabranch.wal.interface import Buffer

log = structlog.get_logger("retention")

PARTITIONS_IN_FLIGHT: Final = 8
"""Partitions checked concurrently: a check may wait for the catalog and for an object's index."""


async def keep_enforcing(
    partitions: Callable[[], Iterable[Partition]], now_ms: Callable[[], int], interval_ms: int
) -> None:
    """Enforce retention in every partition each `interval_ms`, until cancelled."""
    while True:
        await asyncio.sleep(interval_ms / 1000)
        await enforce_all(partitions(), now_ms)


async def enforce_all(partitions: Iterable[Partition], now_ms: Callable[[], int]) -> None:
    """Enforce retention in every partition once, a few at a time. A partition that fails is logged and skipped."""
    left = iter(list(partitions))

    async def work() -> None:
        for partition in left:
            try:
                await enforce(partition, now_ms())
            except StorageError as error:
                log.warning(
                    "old records could not be deleted; retried at the next check",
                    partition=str(partition),
                    reason=str(error),
                )

    async with asyncio.TaskGroup() as group:
        for _ in range(PARTITIONS_IN_FLIGHT):
            group.create_task(work())


def has_untimed(payload: Buffer) -> bool:
    """Return whether the batch, by its header, has records without a timestamp."""
    return parse_batch(payload).has_untimed


async def enforce(partition: Partition, now_ms: int) -> int:
    """Delete what exceeds the limits; returns the number of offsets deleted. Raises StorageError."""
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
    await stream.commit(new_start)
    if partition.config is not config:
        return 0  # changed during an upload that may have lasted as long as an outage; the next check decides
    await stream.trim(new_start)
    log.info("old records deleted", partition=str(partition), start_offset=new_start, offsets=new_start - start)
    return new_start - start
