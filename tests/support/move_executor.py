"""Carries out orders of moves between nodes of one process, in place of the leaders.

It uploads all that the leader has, and gives the stream to the target in the catalog. What is appended in between is
lost: use it only where nothing is.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from sqlalchemy import Connection, update

from broker.node import Node
from s3stream.catalog.database import Database
from s3stream.catalog.orders import list_moves, settle_orders
from s3stream.catalog.rows import next_change
from s3stream.catalog.schema import streams
from s3stream.catalog.values import MoveOrder


@asynccontextmanager
async def moves_carried_out(nodes: Sequence[Node]) -> AsyncIterator[None]:
    """Carry out the orders of the nodes' partitions while the body runs."""
    database = Database(nodes[0].settings.catalog_url)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_carry_out(node, database)) for node in nodes]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
    await database.close()


async def _carry_out(node: Node, database: Database) -> None:
    while True:
        changed = asyncio.create_task(node.topics.changed())
        orders = [
            each.order
            for topic in node.topics
            for each in topic.info.partitions
            if each.order is not None and not each.order.failure and each.owner == node.node_id
        ]
        if orders:
            await node.storage.flush()
            await database.write(partial(_hand_over, orders=orders))
        await changed


def _hand_over(connection: Connection, orders: Sequence[MoveOrder]) -> None:
    change = next_change(connection)
    for order in orders:
        if order not in list_moves(connection):
            continue  # it has failed, or was replaced
        values = {"leader": order.to_node, "leader_epoch": streams.c.leader_epoch + 1, "epoch": streams.c.epoch + 1}
        free = {"node_id": -1, "wal_id": "", "changed": change}
        connection.execute(update(streams).where(streams.c.stream_id == order.stream_id).values(**values, **free))
    settle_orders(connection, [order.stream_id for order in orders])
