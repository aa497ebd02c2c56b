"""Moves the start of streams forward in the catalog: what lies before it may be deleted."""

from collections.abc import Callable

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.read.loader import ObjectLoader


class StreamTrimmer:
    """Trims streams, and makes reads look up their data's location again afterwards."""

    def __init__(
        self, catalog: Catalog, loader: ObjectLoader, *, now_ms: Callable[[], int], delete_delay_ms: int
    ) -> None:
        """Objects that no stream needs any more are deleted `delete_delay_ms` after the trim."""
        self._catalog = catalog
        self._loader = loader
        self._now_ms = now_ms
        self._delete_delay_ms = delete_delay_ms

    async def trim(self, stream_id: int, epoch: int, new_start: int, *, asked: bool) -> int:
        """Move the start of a stream to `new_start`, at most its committed end; return the start it has now.

        `asked`: a client wants the records before it deleted.

        Raises StreamFenced, StreamNotFound, CatalogError.
        """
        now_ms = self._now_ms()
        info = await self._catalog.trim_stream(
            stream_id, epoch, new_start, now_ms=now_ms, delete_after_ms=now_ms + self._delete_delay_ms, asked=asked
        )
        self._loader.invalidate((stream_id,))
        return info.start_offset
