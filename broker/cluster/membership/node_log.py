"""The node's log at a start: examined first, and claimed only when that is known to be safe.

Nothing is created, formatted or written before the catalog has confirmed the node's log: see `log_identity`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Self

import structlog

from anabranch.broker.cluster.membership.environment import DiskLogFiles, LogFiles
from anabranch.broker.cluster.membership.log_identity import (
    found_log,
    may_hold_records,
    utc,
    why_not_formatted,
)
from anabranch.broker.cluster.membership.start_log import FoundLog, errors_at
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import wal_settings
from anabranch.s3stream.append.recovery import check_streams_known
from anabranch.s3stream.append.wal_record import RECORD_HEADER_BYTES, WalRecord, decode_record
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.nodes import DEVICE
from anabranch.s3stream.store.interface import ObjectStore
from anabranch.wal.format import CATALOG_UNKNOWN, Header
from anabranch.wal.interface import WalCorrupt, WalInUse, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.owner import Owner, check_owner, read_header
from anabranch.wal.reader import read_ring
from anabranch.wal.recovery import Scan
from anabranch.wal.requests import Device

IN_USE_POLL_S: Final = 0.5
_log = structlog.get_logger("node")


class NodeLog:
    """The file or device at the log's path. It stays locked until the context ends, or the log is closed."""

    kind: Final = DEVICE

    def __init__(
        self, settings: Settings, *, any_content: bool = False, files: LogFiles | None = None, wait_s: float = 0.0
    ) -> None:
        self.path: Path = settings.wal_path.resolve()
        self.header: Header | None = None
        """Header of the log that was found."""
        self.problem = "is missing"
        """State of the path while `header` is None, as in `LogFacts`."""
        self._damaged = False
        """True if the content is a damaged log."""
        self._settings = settings
        self._wal_settings = wal_settings(settings)
        self._any_content = any_content or self._wal_settings.format
        self._files = files or DiskLogFiles()
        self._wait_s = wait_s
        self._device: Device | None = None

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, settings: Settings, *, any_content: bool = False, files: LogFiles | None = None, wait_s: float = 0.0
    ) -> AsyncIterator[Self]:
        """Open the file or device, if it exists, and read the header. Raises WalError.

        Content that is not a valid log is an error, unless `any_content` is set or the settings allow to format it. A
        log that another process has open is waited for, up to `wait_s`.
        """
        log = cls(settings, any_content=any_content, files=files, wait_s=wait_s)
        try:
            await log._probe()
            yield log
        finally:
            await log._close()

    async def _probe(self) -> None:
        if not await asyncio.to_thread(self._files.exists, self.path):
            return
        self._device = await self._open_device()
        await self._read_header(self._device)

    async def _read_header(self, device: Device) -> None:
        try:
            self.header = await read_header(device)
            self.problem = "is blank"
        except (WalRefused, WalCorrupt) as error:
            if not self._any_content:
                raise
            self.problem = f"has no readable log ({error})"
            self._damaged = isinstance(error, WalCorrupt)

    async def _open_device(self) -> Device:
        """Open the file or device. Raises WalError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wait_s
        while True:
            try:
                return await asyncio.to_thread(self._files.open, self.path, self._wal_settings, create=False)
            except WalInUse as error:
                if loop.time() >= end:
                    raise
                _log.info("waiting for the log: another node may be recovering it", reason=str(error))
            await asyncio.sleep(IN_USE_POLL_S)

    async def _close(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            await device.close()

    @property
    def location(self) -> str:
        """The log's path."""
        return str(self.path)

    @property
    def found(self) -> FoundLog | None:
        """The log that was found; None if there is none yet."""
        return None if self.header is None else found_log(self.header)

    async def attach(self, stores: Mapping[str, ObjectStore]) -> None:  # noqa: ARG002 - it is on a device
        """Read the header again: another node may have recovered the log since. Raises WalError."""
        if self._device is not None:
            await self._read_header(self._device)

    def why_not_blank_catalog(self) -> str:
        """Return a description of the log that contradicts a blank catalog; empty if there is none.

        Another node's log, or one without records, does not count if the settings allow formatting it.
        """
        found, node = self.header, self._settings.node
        if found is None:
            return f"{self.path} {self.problem}" if self._damaged else ""
        own = (found.cluster, found.node_id) == (node.cluster, node.node_id)
        if self._wal_settings.format and not (own and may_hold_records(found)):
            return ""
        return (
            f"{self.path} holds a log of node {found.node_id} of cluster {found.cluster!r} (last written on "
            f"{utc(found.last_write_ms)})"
        )

    async def check_claim(self, owner: Owner, catalog: Catalog) -> None:
        """Raise WalError or UnknownStreams unless `owner`, in the next epoch of its node, may claim the log."""
        found = self.header
        if found is None:
            return
        try:
            check_owner(found, str(self.path), owner)
        except WalRefused as error:
            if not self._wal_settings.format:
                raise
            reason = why_not_formatted(str(self.path), found, owner)
            if reason is not None:
                raise WalRefused(reason) from None
            self.header, self.problem = None, f"holds another log ({error})"
            return
        if found.catalog_id == CATALOG_UNKNOWN and may_hold_records(found):
            await self._check_streams(found, catalog)

    async def _check_streams(self, found: Header, catalog: Catalog) -> None:
        """Check by its records that a log whose header names no catalog belongs to this one."""
        records = await self._record_headers(found)
        with errors_at(self.location):
            check_streams_known(records, await catalog.next_stream_id())

    async def stream_ids(self) -> frozenset[int]:
        """Return the streams that have records in the log, trimmed or not. Raises WalError."""
        if self.header is None:
            return frozenset()
        return frozenset(record.batch.stream_id for record in await self._record_headers(self.header))

    async def _record_headers(self, found: Header) -> list[WalRecord]:
        """Return all records, with their headers only."""
        assert self._device is not None, "there is a header"
        records: list[WalRecord] = []
        async for some in read_ring(self._device, found, Scan(found, str(self.path))):
            heads = [(record.offset, memoryview(bytes(record.body[:RECORD_HEADER_BYTES]))) for record in some]
            records += [decode_record(offset, head) for offset, head in heads]
        return records

    async def open_wal(self, owner: Owner, now_ms: Callable[[], int]) -> DeltaWal:
        """Return the log, which owns the device and is not recovered; create its file if missing. Raises WalError."""
        if self._device is None:
            if await asyncio.to_thread(self._files.exists, self.path):
                raise WalRefused(f"{self.path}: this file appeared while the node was starting: start again")
            _log.info("creating the log file", path=str(self.path), capacity_bytes=self._wal_settings.capacity_bytes)
            self._device = await asyncio.to_thread(self._files.open, self.path, self._wal_settings, create=True)
        device, self._device = self._device, None
        return DeltaWal(
            device,
            self._wal_settings,
            node_id=owner.node_id,
            node_epoch=owner.node_epoch,
            now_ms=now_ms,
            cluster=owner.cluster,
            catalog_id=owner.catalog_id,
        )
