"""A node with a topic that is a table: its snapshots have the records of a READ_COMMITTED consumer."""

import asyncio
from pathlib import Path

import pytest

from tests.support.events import Event, committed_records, send
from tests.support.node import running_node
from tests.support.tables import create_table, table_has, table_records

pytestmark = pytest.mark.slow


async def test_a_table_has_the_records_of_its_topic(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await asyncio.to_thread(create_table, node.bootstrap, "orders", 3)
        events = [Event(at % 3, b"value %d" % at, b"key %d" % at) for at in range(300)]
        await asyncio.to_thread(send, node.bootstrap, "orders", events)
        status = await table_has(node, "orders")
        assert await table_records(node, "orders") == await asyncio.to_thread(
            committed_records, node.bootstrap, "orders"
        )
        assert (status.rows, status.lag, status.errors, status.last_error) == (300, 0, 0, "")
