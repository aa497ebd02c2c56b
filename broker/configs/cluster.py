"""What is set for things of the cluster that are no topics: groups, nodes, subscriptions to metrics, features.

The catalog keeps it; this node has it all in memory, so that a request that needs a value never waits. Changes run one
at a time: the catalog decides, this map follows. When the answer to a change is lost, `settle` or the next change reads
everything again.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from s3stream.catalog.catalog import Catalog

GROUP: Final = "group"
CLIENT_METRICS: Final = "client-metrics"
FEATURES: Final = "features"
BROKER: Final = "broker"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


class ClusterConfigs:
    """Entries by kind and name of what they are set for."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._entries: dict[tuple[str, str], Mapping[str, str]] = {}
        self._changes = asyncio.Lock()
        self._in_doubt = False
        """The catalog was asked for a change, and its answer was lost."""
        self.version = 0
        """Goes up with every change."""
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Have `changed` called after each change, this node's or another's."""
        self._watchers.append(changed)

    async def load(self) -> None:
        """Read everything: at the start, and when another node may have changed it. Raises CatalogError."""
        async with self._changes:
            await self._load()

    async def settle(self) -> None:
        """Find out what became of a change whose answer was lost. Raises CatalogError."""
        async with self._changes:
            if self._in_doubt:
                await self._load()

    async def _load(self) -> None:
        entries = dict(await self._catalog.list_configs())
        self._in_doubt = False
        if entries != self._entries:
            self._entries = entries
            self._changed()

    def get(self, kind: str, name: str) -> Mapping[str, str]:
        """What is set for one thing; empty if nothing is."""
        return self._entries.get((kind, name), _NOTHING)

    def names(self, kind: str) -> list[str]:
        """The things of a kind that something is set for."""
        return sorted(name for found, name in self._entries if found == kind)

    async def alter(
        self, kind: str, name: str, *, set_configs: Mapping[str, str], unset: Sequence[str]
    ) -> Mapping[str, str]:
        """Change what is set for one thing. Raises CatalogError: then nothing has changed here, until `settle`."""
        async with self._changes:
            if self._in_doubt:
                await self._load()
            self._in_doubt = True  # until the answer is here
            entries = await self._catalog.alter_config(kind, name, set_configs=set_configs, unset=unset)
            self._in_doubt = False
            if entries:
                self._entries[kind, name] = entries
            else:
                self._entries.pop((kind, name), None)
            self._changed()
            return entries

    def _changed(self) -> None:
        self.version += 1
        for changed in self._watchers:
            changed()
