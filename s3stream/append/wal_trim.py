"""Trims the WAL up to the committed data (invariant 2), unless a stream that recovery stopped has records in it.

The records of a stopped stream stay in the WAL until an operator gives them up or the stream is deleted (invariant 11).
While a stream is handed over, its tail is in no block that is about to be uploaded, so a hold keeps it in the WAL.
"""

from collections.abc import Mapping

import structlog

from anabranch.s3stream.append.recovery import StoppedStream
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.errors import CatalogUnavailable
from anabranch.wal.interface import WriteAheadLog

log = structlog.get_logger(__name__)


class WalTrimmer:
    """The offset up to which the WAL may be trimmed, and the stopped streams that prevent it."""

    def __init__(self, wal: WriteAheadLog, catalog: Catalog) -> None:
        self._wal = wal
        self._catalog = catalog
        self._stopped: dict[int, StoppedStream] = {}
        self._trimmable_wal_offset = -1
        self._trimmed_wal_offset = -1
        self._holds: dict[object, int] = {}
        """By token, the WAL offset past which nothing is trimmed."""

    @property
    def stopped(self) -> Mapping[int, StoppedStream]:
        """Streams stopped at recovery: the WAL is not trimmed while there are any."""
        return self._stopped

    def stop(self, stream_id: int, stopped: StoppedStream) -> None:
        """Keep the WAL from now on, because the stream has records in it that cannot be used."""
        self._stopped[stream_id] = stopped

    async def trim(self, wal_offset: int) -> bool:
        """Free the WAL up to a record before which all is committed; not while a stopped stream has records in it.

        Returns whether more of it is free than before.
        """
        self._trimmable_wal_offset = max(self._trimmable_wal_offset, wal_offset)
        if self._stopped:
            try:
                await self._release_deleted()
            except CatalogUnavailable as error:
                log.warning("stopped streams could not be looked up in the catalog", reason=str(error))
        offset = self._limit()
        if self._stopped or offset < 0:
            return False
        frees = offset > self._trimmed_wal_offset
        self._trimmed_wal_offset = max(self._trimmed_wal_offset, offset)
        await self._wal.trim(offset)
        return frees

    @property
    def trimmable_wal_offset(self) -> int:
        """Newest record up to which all is committed, whatever keeps it in the WAL; -1: none."""
        return self._trimmable_wal_offset

    def hold(self) -> object:
        """Keep all records that are not committed now, until the returned token is released."""
        token = object()
        self._holds[token] = self._limit()
        return token

    def release(self, token: object) -> None:
        """End a hold, if it has not ended before. The next trim frees what it kept."""
        self._holds.pop(token, None)

    def _limit(self) -> int:
        return min(self._trimmable_wal_offset, *self._holds.values()) if self._holds else self._trimmable_wal_offset

    async def _release_deleted(self) -> None:
        """Release the streams that were deleted: their records are no longer needed."""
        alive = await self._catalog.get_streams(list(self._stopped))
        for stream_id in self._stopped.keys() - alive.keys():
            del self._stopped[stream_id]

    def frees(self, stream_id: int, wal_offset: int) -> bool:
        """Return whether giving the stream up frees the record at once; True if it was given up before."""
        if stream_id not in self._stopped:
            return True
        return len(self._stopped) == 1 and wal_offset <= self._trimmable_wal_offset

    async def give_up(self, stream_id: int) -> None:
        """Release a stopped stream and trim the WAL as far as that allows."""
        if self._stopped.pop(stream_id, None) is not None and self._trimmable_wal_offset >= 0:
            await self.trim(self._trimmable_wal_offset)
