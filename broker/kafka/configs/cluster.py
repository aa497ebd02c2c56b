"""Configs and other values that are set for groups, nodes, subscriptions to metrics, features and quotas.

The catalog stores them. This node keeps a copy of all in memory, so that a request never waits for a value.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from anabranch.broker.kafka.catalog_copy import CatalogCopy
from anabranch.s3stream.catalog.catalog import Catalog

GROUP: Final = "group"
CLIENT_METRICS: Final = "client-metrics"
FEATURES: Final = "features"
BROKER: Final = "broker"
CLIENT_QUOTA: Final = "client-quota"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


_Entries: TypeAlias = Mapping[tuple[str, str], Mapping[str, str]]


class ClusterConfigs(CatalogCopy[_Entries]):
    """Entries by the kind and name of the resource that they are set for."""

    def __init__(self, catalog: Catalog) -> None:
        super().__init__(lambda settled: catalog.list_configs(settled=settled), self._apply)
        self._catalog = catalog
        self._entries: dict[tuple[str, str], Mapping[str, str]] = {}
        self.version = 0
        """Grows with every change."""
        self._watchers: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change, by this node or another."""
        self._watchers.append(changed)

    def _apply(self, entries: _Entries) -> None:
        if entries != self._entries:
            self._entries = dict(entries)
            self._changed()

    def get(self, kind: str, name: str) -> Mapping[str, str]:
        """Values set for one resource; empty if there are none."""
        return self._entries.get((kind, name), _NOTHING)

    def names(self, kind: str) -> list[str]:
        """Names of the things of a kind that have values."""
        return sorted(name for found, name in self._entries if found == kind)

    async def alter(
        self, kind: str, name: str, *, set_configs: Mapping[str, str], unset: Sequence[str], token_owner: str = ""
    ) -> Mapping[str, str]:
        """Change values of one thing, and return all that it has then. With the last value, an owner's tokens go.

        Raises CatalogError. The values here stay as they were until `resolve_outcomes`.
        """
        async with self._changing():
            entries = await self._answer(
                self._catalog.alter_config(kind, name, set_configs=set_configs, unset=unset, token_owner=token_owner)
            )
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
