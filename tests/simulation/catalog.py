"""The catalog behind a transport that delays and loses: the same transactions, on the same schema."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.errors import CatalogError, CatalogUnavailable, OutcomeUnknown, StorageError

DELAY_S = (0.0002, 0.004)
LATE_S = (0.1, 6.0)
HANGS_S = 8.0
"""Longest time until a connection turns out to lead nowhere."""
BEAT_HANGS_S = 2.0
"""The same of a beat, whose connection has shorter limits."""


@dataclass(slots=True)
class CatalogFaults:
    """Probabilities of faults per transaction."""

    refused: float = 0.0
    """Nothing happens."""
    lost: float = 0.0
    """A writing transaction takes effect, and nobody hears of it."""
    late: float = 0.0
    """A writing transaction is not answered, and takes effect later: it holds the writers' lock until then."""
    repeated: float = 0.0
    """A writing transaction takes effect, its answer is lost on the way, and it is repeated."""
    table_unknown: float = 0.0
    """A writing transaction about tables is late, repeated or lost, each with this probability."""
    away: bool = False
    """No node reaches it."""
    hung: asyncio.Task[None] | None = None
    """The transaction that is late. The server goes on with it when its node is gone."""


class FaultyDatabase:
    """Stands for `s3stream.catalog.database.Database`, as its transactions look to the catalog."""

    def __init__(self, database: Any, faults: CatalogFaults, random: Random, is_cut: Callable[[], bool]) -> None:
        """`is_cut` returns True while the node cannot reach the catalog."""
        self._database = database
        self._faults = faults
        self._random = random
        self._is_cut = is_cut
        self.opened = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    async def write(self, command: Callable[[Any], Any]) -> Any:
        await self._reach()
        await self._lock()
        if self._random.random() < self._unknown(self._faults.late):
            self._faults.hung = asyncio.get_running_loop().create_task(self._commit_late(command), context=Context())
            raise OutcomeUnknown("catalog: simulated: a commit hangs")
        result = await self._database.write(command)
        await asyncio.sleep(self._random.uniform(*DELAY_S))
        if self._random.random() < self._unknown(self._faults.repeated):
            try:
                result = await self._database.write(command)
            except CatalogError as error:
                raise OutcomeUnknown(f"catalog: simulated: a repeated commit was refused: {error}") from error
        if self._is_cut() or self._random.random() < self._unknown(self._faults.lost):
            raise OutcomeUnknown("catalog: simulated: a commit was not answered")
        return result

    def _unknown(self, usual: float) -> float:
        """Return the probability of one way in which the outcome of a transaction becomes unknown."""
        return usual

    async def beat(self, command: Callable[[Any], Any]) -> Any:
        await self._reach(BEAT_HANGS_S)
        result = await self._database.beat(command)
        if self._random.random() < self._faults.lost:
            raise OutcomeUnknown("catalog: simulated: a beat was not answered")
        return result

    async def wait_for_change(self, poll_s: float) -> None:
        await self._reach()
        await self._database.wait_for_change(poll_s)

    async def read(self, query: Callable[[Any], Any], **kind: bool) -> Any:
        await self._reach()
        return await self._database.read(query, **kind)

    async def read_settled(self, query: Callable[[Any], Any]) -> Any:
        await self._reach()
        await self._lock()
        return await self._database.read_settled(query)

    async def _lock(self) -> None:
        """Wait for the writers' lock."""
        while self._faults.hung is not None:
            await asyncio.wait([self._faults.hung])

    async def _commit_late(self, command: Callable[[Any], Any]) -> None:
        await asyncio.sleep(self._random.uniform(*LATE_S))
        with suppress(StorageError):  # a command that the state refuses; nobody hears of it
            await self._database.write(command)
        self._faults.hung = None

    async def _reach(self, longest_s: float = HANGS_S) -> None:
        await asyncio.sleep(self._random.uniform(*DELAY_S))
        if self._faults.away or self._is_cut():
            await asyncio.sleep(self._random.uniform(0.2, longest_s))
        if self._faults.away or self._is_cut() or self._random.random() < self._faults.refused:
            raise CatalogUnavailable("catalog: simulated: no connection")


class FaultyTables(FaultyDatabase):
    """The same for transactions about tables, which are few: a fault of their own makes outcomes unknown."""

    def _unknown(self, usual: float) -> float:
        return max(usual, self._faults.table_unknown)


def faulty_catalog(url: str, faults: CatalogFaults, random: Random, is_cut: Callable[[], bool]) -> Catalog:
    """Return the catalog of a node, whose transactions meet faults."""
    catalog = Catalog(url)
    real: Any = catalog._database
    catalog._database = FaultyDatabase(real, faults, random, is_cut)  # type: ignore[assignment]
    tables: Any = FaultyTables(real, faults, random, is_cut)
    catalog.tables = TableCatalog(tables, catalog._change_as_node)
    return catalog
