"""The process that a node was started by: its orders come on standard input, and answers go to standard output.

A node ends with its owner. An owner may also have it stop, as in a crash, and start again with other data in its
folder, which takes less time than a new process.
"""

import asyncio
import json
import sys
from contextlib import suppress
from typing import Final, Self

from anabranch.broker.api.handlers.local import LocalRefusal
from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.dev.controls import Controls
from anabranch.broker.operator.dev.orders import BadOrder, Orders, parsed
from anabranch.protocol.errors import KafkaError
from anabranch.s3stream.errors import StorageError

ORDER_BYTES_MAX: Final = 16 << 20
"""Longest line: a topic is created with the schemas of its table."""


class Owner:
    """The owner of this process."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self._producer_ids_end = 0
        """Producer ids below were given to producers that may be alive: they are not given again."""

    @classmethod
    async def connected(cls) -> Self:
        """Return the owner, whose orders are read from now on."""
        lines = asyncio.StreamReader(limit=ORDER_BYTES_MAX)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        return cls(lines)

    async def serve(self, node: Node, controls: Controls, ended: asyncio.Event) -> bool:
        """Say where a node is, and follow orders until one to stop it. Return False if the owner or the node ended.

        Raises CatalogError.
        """
        await self._skip_producer_ids(node)
        _answer(address=node.bootstrap, admin=node.ports.admin_address)
        loop = asyncio.get_running_loop()
        following = loop.create_task(self._follow(Orders(node, controls)))
        ending = loop.create_task(ended.wait())
        done, left = await asyncio.wait((following, ending), return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        if following not in done or not following.result():
            return False
        self._producer_ids_end = await node.serving.catalog.next_producer_ids(1)
        return True

    async def _skip_producer_ids(self, node: Node) -> None:
        """Let a catalog that has gone back give no producer id again: two producers would be taken for one."""
        if self._producer_ids_end:
            catalog = node.serving.catalog
            given = self._producer_ids_end - await catalog.next_producer_ids(1)
            if given > 0:
                await catalog.next_producer_ids(given)

    async def _follow(self, orders: Orders) -> bool:
        """Follow orders until one to stop; return False if there is none, since the owner has ended."""
        while line := await self._lines.readline():
            try:
                order = parsed(line)
                if order == {"stop": True}:
                    return True
                _answer(**await orders.obey(order))
            except (BadOrder, KafkaError, LocalRefusal, StorageError) as error:
                _answer(error=str(error))
        return False

    async def wait_for_start(self, controls: Controls, ended: asyncio.Event) -> bool:
        """Say that the node has stopped, and wait for the order to start it. Return False if it is to end."""
        _answer(producer_ids_end=self._producer_ids_end)
        match parsed(await self._lines.readline() or b"{}"):
            case {"start": True, "ahead_ms": int(ahead_ms), "producer_ids_end": int(end)}:
                controls.clock.ahead_ms = ahead_ms
                self._producer_ids_end = end
                return not ended.is_set()
        return False


def _answer(**fields: object) -> None:
    with suppress(BrokenPipeError):  # the owner has ended: standard input ends, too
        sys.stdout.write(f"{json.dumps(fields)}\n")
        sys.stdout.flush()
