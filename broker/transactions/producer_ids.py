"""Producer ids, unique in the cluster: taken from the catalog by the block, so that a new producer costs no commit."""

import asyncio

from s3stream.catalog.catalog import Catalog

BLOCK = 1000


class ProducerIds:
    """Hands out ids; what is left of a block when the node stops is never used."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """Return an id never given before. Raises CatalogError."""
        if self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    self._next = await self._catalog.next_producer_ids(BLOCK)
                    self._end = self._next + BLOCK
        self._next += 1
        return self._next - 1
