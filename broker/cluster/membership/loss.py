"""Records that only the log of a dead node has: which partitions may lose some, and how their loss is accepted.

Loss is always a person's decision. It is logged with the offsets from which records may be missing.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import NodeInfo, WalInfo

PAGE: Final = 1_000


@dataclass(frozen=True, slots=True)
class PartitionAtRisk:
    """A partition whose newest records may be lost."""

    partition: str
    stream_id: int
    end_offset: int
    """End of the records in objects: later records were only in the log."""


async def partitions_at_risk(
    catalog: Catalog, node_id: int, *, only: Collection[int] | None = None
) -> Sequence[PartitionAtRisk]:
    """Return the partitions, of all or of the streams `only`, whose newest records may be in the node's log."""
    names = {
        partition.stream_id: f"{topic.name}-{partition.index}"
        for topic in await catalog.list_topics()
        for partition in topic.partitions
        if only is None or partition.stream_id in only
    }
    found: list[PartitionAtRisk] = []
    after = 0
    while page := await catalog.list_streams(after=after, limit=PAGE):
        after = page[-1].stream_id
        found += [
            PartitionAtRisk(names[stream.stream_id], stream.stream_id, stream.end_offset)
            for stream in page
            if stream.node_id == node_id and stream.stream_id in names
        ]
    return sorted(found, key=lambda each: each.partition)


async def give_up_logs(
    catalog: Catalog,
    logs: Sequence[WalInfo],
    at_risk: Sequence[PartitionAtRisk],
    *,
    seen: NodeInfo,
    leaders: Sequence[int] = (),
    now_ms: int,
) -> None:
    """Accept the loss of all live logs of a node that was found to be dead with the registration `seen`.

    Raises NodeInUse if the registration has changed since.
    """
    for wal in logs:
        await catalog.give_up_wal(wal.wal_id, seen=seen, leaders=leaders, now_ms=now_ms)
        seen = replace(seen, epoch=seen.epoch + 1, lease_until_ms=0)
    log_loss(logs[-1], at_risk)


def log_loss(wal: WalInfo, at_risk: Sequence[PartitionAtRisk]) -> None:
    """Log from which offset on each partition may have lost records."""
    log = structlog.get_logger("node")
    for each in at_risk:
        log.warning(
            "records given up with the log",
            wal_id=wal.wal_id,
            node_id=wal.node_id,
            partition=each.partition,
            from_offset=each.end_offset,
        )
