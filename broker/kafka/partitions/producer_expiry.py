"""Expiry of idempotent producers that have not written to a partition for `producer.id.expiration.ms`.

A producer that is removed too early loses its deduplication: its retry is appended a second time. The time therefore
comes from the same `CautiousClock` as retention's, which ignores a forward clock jump until it has lasted an hour.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from anabranch.broker.kafka.partitions.partition import Partition

EXPIRY_INTERVAL_S: Final = 600


async def keep_expiring(
    partitions: Callable[[], Iterable[Partition]], now_ms: Callable[[], int], expiration_ms: Callable[[], int]
) -> None:
    """Expire the producers of every partition each `EXPIRY_INTERVAL_S`, until cancelled."""
    while True:
        await asyncio.sleep(EXPIRY_INTERVAL_S)
        await expire_all(partitions(), now_ms() - expiration_ms())


async def expire_all(partitions: Iterable[Partition], before_ms: int) -> None:
    """Expire the producers of every partition that have not written since a time."""
    for partition in list(partitions):
        partition.expire_producers(before_ms)
        await asyncio.sleep(0)
