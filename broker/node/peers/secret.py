"""The secret that only the nodes of the cluster know, as this node knows it.

It is in the catalog, where `anabranch security rotate-secret` draws another one while nodes run. They follow within a
second. Connections between nodes are made again then: a node that knows the old secret only is refused from that moment
on, and a node that has not read the new one yet connects as soon as it has.
"""

from collections.abc import Callable

from anabranch.s3stream.catalog.catalog import Catalog


class ClusterSecret:
    """This node's copy of the secret."""

    def __init__(self, catalog: Catalog, value: bytes) -> None:
        self.value = value
        self._catalog = catalog
        self._watchers: list[Callable[[], None]] = []

    def watch(self, replaced: Callable[[], None]) -> None:
        """Call `replaced` after the secret was replaced."""
        self._watchers.append(replaced)

    async def load(self) -> None:
        """Read it again. Raises CatalogError."""
        value = await self._catalog.current_secret()
        if value and value != self.value:
            self.value = value
            for replaced in self._watchers:
                replaced()
