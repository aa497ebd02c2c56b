"""Files of an SQLite catalog: every query answers, or raises one of the catalog's errors in one line.

SQLite has no checksums, so a changed value may be read. The input is a script of edits.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any, Final

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogError
from anabranch.s3stream.model import NodeIdentity, StreamOwner
from tests.fuzz.target import Choices, Target, check_message, edited, random_script
from tests.support.catalog_node import CLUSTER, WAL_ID, MetadataNode, span
from tests.support.table_node import NEW_TABLE, TABLE_ID, TableNode

MEMORY: Final = Path("/dev/shm")
"""Folder in which flushes cost nothing, on Linux."""
FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-catalogs-", dir=MEMORY if MEMORY.is_dir() else None)
FILE: Final = Path(FOLDER.name) / "catalog.db"


@cache
def image() -> bytes:
    """The database of a node that has created topics and a table, and committed, compacted and trimmed objects."""

    async def make() -> None:
        catalog = Catalog(f"sqlite:///{FILE}")
        await catalog.open(cluster=CLUSTER, new_id=bytes(range(16)))
        node = await MetadataNode.started(catalog)
        await node.create_topic("u", 2)
        streams = [each.stream_id for each in await catalog.list_streams(after=-1, limit=100)][:3]
        uploads = [
            await node.upload([span(streams[0], at, at + 10)], [span(each, at, at + 10) for each in streams[1:]])
            for at in range(0, 200, 10)
        ]
        await node.compact([uploads[0][0], uploads[1][0]], [span(streams[0], 0, 20)])
        await node.trim(streams[1], 30)
        table = TableNode(node)
        await catalog.tables.create(NEW_TABLE, now_ms=1)
        await table.append({0: [(0, 40), (40, 60)]})
        await table.append({0: [(0, 60)]}, removed=await table.live())
        await catalog.open_wal("1", node=NodeIdentity(1, node.epoch), location="wal", now_ms=1)
        await catalog.alter_config("topic", "t", set_configs={"retention.ms": "1000"}, unset=())
        await catalog.close()

    asyncio.run(make())
    return FILE.read_bytes()


def check(data: bytes) -> None:
    content = edited(image(), Choices(data))
    for suffix in ("", "-wal", "-shm", "-journal"):
        FILE.with_name(FILE.name + suffix).unlink(missing_ok=True)
    FILE.write_bytes(content)
    asyncio.run(use())


async def use() -> None:
    """Call queries and commands as a starting node does; each of them must answer or raise one clear error."""
    catalog = Catalog(f"sqlite:///{FILE}")
    try:
        await answer(catalog.is_blank)
        if not await answer(lambda: catalog.open(cluster=CLUSTER)):
            return
        for query in QUERIES:
            await answer(partial(query, catalog))
    finally:
        await catalog.close()


async def answer(query: Callable[[], Awaitable[Any]]) -> bool:
    """Await a query; returns False if it raised one of the catalog's errors."""
    try:
        await query()
    except CatalogError as error:
        check_message(error)
        return False
    return True


async def register(catalog: Catalog) -> None:
    node = MetadataNode(catalog)
    await node.register()
    await node.create_topic("new", 1)
    (topic,) = [each for each in await catalog.list_topics() if each.name == "new"]
    streams = [each.stream_id for each in topic.partitions]
    await node.open_streams(streams)
    await node.upload([span(streams[0], 0, 10)])


QUERIES: Final[tuple[Callable[[Catalog], Awaitable[Any]], ...]] = (
    lambda catalog: catalog.list_nodes(),
    lambda catalog: catalog.list_wals(1),
    lambda catalog: catalog.list_topics(),
    lambda catalog: catalog.list_topic_configs(),
    lambda catalog: catalog.list_configs(),
    lambda catalog: catalog.list_acls(),
    lambda catalog: catalog.list_tokens(),
    lambda catalog: catalog.list_streams(after=-1, limit=1000),
    lambda catalog: catalog.list_objects(after=-1, limit=1000),
    lambda catalog: catalog.find_ranges(1, 0, 1 << 62, limit=1000),
    lambda catalog: catalog.find_time(1, 5),
    lambda catalog: catalog.stream_bytes([1, 2, 3]),
    lambda catalog: catalog.object_ranges(list(range(1, 40))),
    lambda catalog: catalog.list_reapable(now_ms=1 << 40, limit=100),
    lambda catalog: catalog.count_objects(),
    lambda catalog: catalog.list_detached(),
    lambda catalog: catalog.shared_objects(),
    lambda catalog: catalog.tables.list(),
    lambda catalog: catalog.tables.read(TABLE_ID),
    lambda catalog: catalog.tables.list_data_files(TABLE_ID, 0, start_offset=0, limit=100),
    lambda catalog: catalog.tables.list_trimmed_files(TABLE_ID, limit=100),
    lambda catalog: catalog.tables.list_reapable(now_ms=1 << 40, limit=100),
    lambda catalog: catalog.read_state(),
    lambda catalog: catalog.next_producer_ids(1000),
    lambda catalog: catalog.open_streams([1, 2, 3], StreamOwner(1, 1, WAL_ID)),
    register,
)


def fresh(random: Random) -> bytes:
    return random_script(random)


TARGET = Target(check, lambda: [b""], quick_inputs=30, fresh=fresh, close=FOLDER.cleanup)
