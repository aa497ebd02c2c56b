"""Topics that are tables, read as an engine does.

create_table(node.bootstrap, "orders", 2)
...                                                     # produce
await table_has(node, "orders")                         # all that is committed
assert table_rows(node, "orders") == committed_records(node.bootstrap, "orders")
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import StaticTable

from anabranch.broker.cluster.node import Node
from anabranch.tables.upkeep.committer import TableCommitter
from anabranch.tables.upkeep.context import no_step
from anabranch.tables.upkeep.source import BlockSource
from anabranch.tables.upkeep.status import TableStatus, UpkeepStats
from tests.support.events import Event, create_topic, send
from tests.support.waiting import until

QUICK: Mapping[str, str] = {"table.enable": "true", "table.commit.interval.ms": "1000"}
SLOW: Mapping[str, str] = {"table.enable": "true", "table.commit.interval.ms": "3600000"}


def create_table(servers: str, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic that is a table, with a commit each second."""
    create_topic(servers, topic, partitions, {**QUICK, **(configs or {})})


def status_of(node: Node, topic: str) -> TableStatus | None:
    """Return the state of a table that the node commits."""
    return next((each for each in node.upkeep.tables.statuses() if each.topic == topic), None)


def ends_of(node: Node, topic: str) -> dict[int, int]:
    """Return the last stable offsets of the partitions that the node leads."""
    found = node.serving.topics.require(topic)
    return {each.index: each.last_stable_offset for each in found.partitions if each is not None}


async def table_has(node: Node, topic: str, ends: Mapping[int, int] | None = None) -> TableStatus:
    """Return when the table has offsets up to `ends`, by default all that is readable in the topic now."""
    wanted = {idx: end for idx, end in (ends_of(node, topic) if ends is None else ends).items() if end}

    def has() -> bool:
        status = status_of(node, topic)
        return status is not None and all(
            idx in status.partitions and status.partitions[idx].end_offset >= end for idx, end in wanted.items()
        )

    try:
        await until(has, timeout_s=60, pause_s=0.02)
    except TimeoutError:
        raise AssertionError(f"the table never had {wanted}: {status_of(node, topic)}") from None
    status = status_of(node, topic)
    assert status is not None
    return status


def read_table(location: str, properties: Mapping[str, str] | None = None, **scan: Any) -> pa.Table:
    """Return all rows of a snapshot, by partition and offset."""
    table = StaticTable.from_metadata(location, dict(properties or {}))
    rows = table.scan(**scan).to_arrow()
    kafka = rows["_kafka"].combine_chunks()
    keys = pa.table({"partition": kafka.field("partition"), "offset": kafka.field("offset")})
    order = pa.compute.sort_indices(keys, sort_keys=[("partition", "ascending"), ("offset", "ascending")])
    return rows.take(order)


def records_of(rows: pa.Table) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return partition, key and value of raw rows, as `committed_records` does."""
    return [(row["_kafka"]["partition"], row["_kafka"]["key"], row["value"]) for row in rows.to_pylist()]


async def table_records(node: Node, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return partition, key and value of the rows of the current snapshot."""
    status = status_of(node, topic)
    assert status is not None
    return records_of(await asyncio.to_thread(read_table, status.metadata_location))


def own_committer(
    node: Node, topic: str, folder: Path, *, step: Callable[[str], Awaitable[None]] = no_step, **changes: Any
) -> TableCommitter:
    """Return another committer of a node's table, whose rounds a test runs; `changes` are those of its context.

    The topic's own interval is long (`SLOW`), so that the node itself commits nothing after the creation.
    """
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    context = replace(upkeep.context, folder=folder, step=step, **changes)
    (found,) = (each for each in upkeep.topics.committed() if each.name == topic)
    return TableCommitter(context, BlockSource(context.catalog, context.stores, context.cluster), UpkeepStats(), found)


async def created_slowly(node: Node, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
    """Create a topic that is a table, and return when the node has made the table, and will leave it alone."""
    await asyncio.to_thread(create_topic, node.bootstrap, topic, partitions, {**SLOW, **(configs or {})})
    await until(lambda: (status := status_of(node, topic)) is not None and bool(status.table_id), pause_s=0.02)


async def sent(node: Node, topic: str, events: Sequence[Event]) -> None:
    """Send records, and let them be in objects."""
    await asyncio.to_thread(send, node.bootstrap, topic, events)
    await node.serving.storage.flush()
