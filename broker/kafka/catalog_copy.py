"""Copies of tables of the catalog, by which a node answers without asking the catalog.

The catalog decides, and the copy follows. While the catalog cannot be read the last known rows apply. Changes run one
at a time. When the answer to a change is lost, `resolve_outcomes` or the next change reads everything again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Rows = TypeVar("Rows")
Answer = TypeVar("Answer")


class CatalogCopy(Generic[Rows]):
    """Follower of one table.

    `read_all` returns all its rows; with True, after the commands whose outcome is unknown have ended. `replace` takes
    them into the copy.
    """

    def __init__(self, read_all: Callable[[bool], Awaitable[Rows]], replace: Callable[[Rows], None]) -> None:
        self._read_all = read_all
        self._replace = replace
        self._changes = asyncio.Lock()
        self._outcome_unknown = False
        """True while a change is under way, and after its answer was lost."""

    async def load(self) -> None:
        """Read everything: at the start, and when another node may have changed it. Raises CatalogError."""
        async with self._changes:
            await self._load()

    async def resolve_outcomes(self) -> None:
        """Read the outcome of a change whose answer was lost. Raises CatalogError."""
        async with self._changing():
            pass

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        """Keep other changes away, once the outcome of the last one is known. Raises CatalogError."""
        async with self._changes:
            if self._outcome_unknown:
                await self._load()
            yield

    async def _answer(self, command: Awaitable[Answer]) -> Answer:
        """Return the answer to a command, inside `_changing`. Its outcome is unknown until it arrives."""
        self._outcome_unknown = True
        answer = await command
        self._outcome_unknown = False
        return answer

    async def _load(self) -> None:
        rows = await self._read_all(self._outcome_unknown)
        self._outcome_unknown = False
        self._replace(rows)
