"""Producer ids, unique in the cluster. The catalog allocates them in blocks, so most new producers need no commit."""

import asyncio

from anabranch.s3stream.catalog.catalog import Catalog

BLOCK = 1000


class ProducerIds:
    """Allocates producer ids. The rest of a block is never used when the node stops."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._next = 0
        self._end = 0
        self._refill = asyncio.Lock()

    async def next(self) -> int:
        """Return an id that was never allocated before. Raises CatalogError."""
        if self._next == self._end:
            async with self._refill:
                if self._next == self._end:
                    self._next = await self._catalog.next_producer_ids(BLOCK)
                    self._end = self._next + BLOCK
        self._next += 1
        return self._next - 1
