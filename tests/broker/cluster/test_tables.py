"""The upkeep of tables starts when there is something to do, and not before."""

import asyncio
from collections.abc import Iterator
from typing import Any

from anabranch.broker.cluster.tables import TablesOnDemand


class NoTopics:
    """The topics of a node without any."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Upkeep:
    """An upkeep that only notes that it runs."""

    def __init__(self) -> None:
        self.runs = asyncio.Event()

    def note_change(self) -> None:
        """Nothing is changed."""

    async def run(self) -> None:
        self.runs.set()


async def test_tables_that_nobody_commits_start_it() -> None:
    upkeep, asked = Upkeep(), []
    answers = iter([False, True])

    async def has_abandoned() -> bool:
        asked.append(True)
        return next(answers)

    topics: Any = NoTopics()
    made: Any = lambda: upkeep  # noqa: E731 - in place of the function that builds the real one
    on_demand = TablesOnDemand(topics, made, has_abandoned, look_s=0.0)
    await on_demand.run()
    assert upkeep.runs.is_set()
    assert len(asked) == 2
