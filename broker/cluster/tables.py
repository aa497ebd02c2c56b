"""The upkeep of tables, which is imported and started once there is a topic that is a table, and not before."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from anabranch.broker.kafka.configs.table import is_enabled
from anabranch.broker.kafka.topics.manager import TopicManager
from anabranch.broker.kafka.topics.topic import Topic

if TYPE_CHECKING:
    from anabranch.tables.upkeep.service import TableUpkeep
    from anabranch.tables.upkeep.status import TableStatus


LOOK_S: Final = 600.0
"""Time between two questions whether there are tables that nobody commits."""


class TablesOnDemand:
    """Runs the upkeep of a node's tables."""

    def __init__(
        self,
        topics: TopicManager,
        make: "Callable[[], TableUpkeep]",
        has_abandoned: Callable[[], Awaitable[bool]],
        *,
        look_s: float = LOOK_S,
    ) -> None:
        """`has_abandoned` asks the catalog whether there are tables that nobody commits, each `look_s`."""
        self._topics: Final = topics
        self._make: Final = make
        self._has_abandoned: Final = has_abandoned
        self._look_s: Final = look_s
        self._changed: Final = asyncio.Event()
        self.upkeep: TableUpkeep | None = None
        """None: there has been no table so far."""

    def statuses(self) -> "Sequence[TableStatus]":
        """Return the states of the tables that this node commits."""
        return [] if self.upkeep is None else self.upkeep.statuses()

    def hurry(self, topic: str) -> None:
        """Upload what this node has of a topic, and commit the topic's table soon, if this node commits it."""
        if self.upkeep is not None:
            self.upkeep.hurry(topic)

    async def run(self) -> None:
        """Wait for the first table, then commit tables until cancelled. Raises NodeFenced."""
        self._topics.listeners.append(self._changed.set)
        clock = asyncio.get_running_loop().time
        look_s = clock()
        while not any(map(_is_here, self._topics)):
            if clock() >= look_s:
                if await self._has_abandoned():
                    break
                look_s = clock() + self._look_s
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(look_s):
                    await self._changed.wait()
        self.upkeep = self._make()
        self._topics.listeners.remove(self._changed.set)
        self._topics.listeners.append(self.upkeep.note_change)
        await self.upkeep.run()

    async def close(self) -> None:
        """End the process that makes columns, when `run` is cancelled."""
        if self.upkeep is not None:
            await self.upkeep.close()


def _is_here(topic: Topic) -> bool:
    """Return whether a topic is a table, and this node leads some of it."""
    return is_enabled(topic.info.configs) and any(topic.partitions)
