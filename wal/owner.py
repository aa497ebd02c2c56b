"""The header's life: formatting, claiming, and the one writer that keeps it current and notices a newer owner.

What it keeps true: a header write carries the state at the moment it starts; at most one is under way; a request made
meanwhile is served by the next, so that many trims cost one write.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from wal.block import aligned_buffer
from wal.foreign import PROBE_BYTES, describe
from wal.format import (
    CATALOG_UNKNOWN,
    CLUSTER_BYTES_MAX,
    HEADER_COPIES,
    HEADER_MAGIC,
    PAGE_BYTES,
    RING_POSITION,
    Header,
    Shutdown,
    decode_header,
    encode_header,
    newest_header,
)
from wal.interface import Durable, WalCorrupt, WalError, WalFailed, WalFenced, WalRefused
from wal.requests import Device, IoKind, IoRequest, perform
from wal.settings import WalSettings

_FENCED: Final = "this node takes no more writes"


@dataclass(frozen=True, slots=True)
class Owner:
    """Node that claims a log, and the cluster and catalog it belongs to."""

    node_id: int
    node_epoch: int
    cluster: str
    catalog_id: bytes = CATALOG_UNKNOWN
    """Identity of the node's catalog, 16 bytes."""


async def read_header(device: Device) -> Header | None:
    """Return the header on the device, None if it is blank; claims nothing and writes nothing.

    Raises WalRefused for foreign content, WalCorrupt when both copies are damaged, WalFailed when the read fails.
    """
    if device.size_bytes < RING_POSITION + PAGE_BYTES:
        raise WalRefused(f"{device.name}: {device.size_bytes} bytes, too small for a WAL")
    beginning = aligned_buffer(min(PROBE_BYTES, device.size_bytes // PAGE_BYTES * PAGE_BYTES))
    await perform(device, IoKind.READ, [(0, beginning)])
    header = newest_header(beginning[:RING_POSITION])
    if header is not None:
        if header.capacity_bytes > device.size_bytes:
            raise WalRefused(
                f"{device.name}: {device.size_bytes} bytes, its WAL was formatted with {header.capacity_bytes} bytes"
            )
        return header
    copies = [beginning[at : at + PAGE_BYTES] for at in range(0, RING_POSITION, PAGE_BYTES)]
    ours = [bytes(copy[: len(HEADER_MAGIC)]) == HEADER_MAGIC for copy in copies]
    if all(ours):
        reasons = "; ".join(f"copy {number}: {decode_header(copy)}" for number, copy in enumerate(copies))
        raise WalCorrupt(f"{device.name}: both copies of the WAL header are damaged: {reasons}")
    found = describe(beginning)
    # A claim writes both copies; one damaged and one blank is a format that was cut short, before any record.
    if found is None or (any(ours) and not any(copies[ours.index(False)])):
        return None
    raise WalRefused(f"{device.name}: holds {found}, not a WAL; it is overwritten only when told to format")


def check_owner(header: Header, device_name: str, owner: Owner) -> None:
    """Raise WalRefused or WalFenced unless `owner` may claim the log."""
    if header.cluster != owner.cluster:
        raise WalRefused(f"{device_name}: holds the WAL of cluster {header.cluster!r}, expected {owner.cluster!r}")
    if header.catalog_id not in (CATALOG_UNKNOWN, owner.catalog_id):
        raise WalRefused(
            f"{device_name}: holds the WAL of catalog {header.catalog_id.hex()}, this node is configured with catalog "
            f"{owner.catalog_id.hex()}, which does not know the WAL's streams: check catalog.url and wal.path"
        )
    if header.node_id != owner.node_id:
        raise WalRefused(f"{device_name}: holds the WAL of node {header.node_id}, expected node {owner.node_id}")
    if header.node_epoch > owner.node_epoch:
        raise WalFenced(
            f"{device_name}: claimed with node epoch {header.node_epoch}, this node's is {owner.node_epoch}: {_FENCED}"
        )


def blank_header(settings: WalSettings, device: Device, owner: Owner, now_ms: int) -> Header:
    """Return the first header of a new log on `device`. Raises WalRefused if it is too small."""
    if device.size_bytes < settings.capacity_bytes:
        raise WalRefused(
            f"{device.name}: {device.size_bytes} bytes, smaller than the configured capacity of "
            f"{settings.capacity_bytes} bytes"
        )
    if len(owner.cluster.encode()) > CLUSTER_BYTES_MAX:
        raise WalRefused(f"cluster name {owner.cluster!r}: longer than {CLUSTER_BYTES_MAX} bytes")
    return Header(
        sequence=0,
        # Differs between two formats of one device, which is what it is for: see "stale lives" in FORMAT.md.
        log_id=(now_ms << 20 ^ owner.node_epoch << 8 ^ owner.node_id) & ((1 << 64) - 1),
        capacity_bytes=settings.capacity_bytes,
        base_offset=0,
        head_offset=0,
        trim_offset=-1,
        durable_offset=0,
        window_bytes=settings.window_bytes,
        node_id=owner.node_id,
        node_epoch=owner.node_epoch,
        last_write_ms=now_ms,
        cluster=owner.cluster,
        shutdown=Shutdown.GRACEFUL,  # nothing was appended: there is nothing to look for behind offset 0
        catalog_id=owner.catalog_id,
    )


async def write_header(device: Device, header: Header) -> None:
    """Write one copy, durably."""
    page = aligned_buffer(PAGE_BYTES)
    page[:] = encode_header(header)
    await perform(device, IoKind.WRITE, [(header.position, page)])


async def claim(device: Device, settings: WalSettings, owner: Owner, now_ms: int) -> tuple[Header, Header]:
    """Make the log this node's; return the header as it was found (new for a blank device) and as it is now.

    Raises WalRefused, WalCorrupt, WalFenced or WalFailed.
    """
    found: Header | None
    try:
        found = await read_header(device)
        if found is not None:
            check_owner(found, device.name, owner)
    except (WalRefused, WalCorrupt):
        if not settings.format:
            raise
        found = None
    if found is None:
        found = blank_header(settings, device, owner, now_ms)
    header = found
    for _ in range(HEADER_COPIES):
        header = replace(
            header,
            sequence=header.sequence + 1,
            shutdown=Shutdown.RUNNING,
            node_epoch=owner.node_epoch,
            last_write_ms=now_ms,
            catalog_id=owner.catalog_id,
        )
        await write_header(device, header)
    # What an earlier process wrote without a flush may sit in the device's cache: from here on it counts as durable.
    await perform(device, IoKind.FLUSH)
    page = aligned_buffer(RING_POSITION)
    await perform(device, IoKind.READ, [(0, page)])
    check_fence(page, header, device.name)
    return found, header


def check_fence(copies: bytes | memoryview, own: Header, device_name: str) -> bool:
    """Raise WalFenced if the copies show another owner; return whether ours is still the newest there."""
    newest = newest_header(copies)
    if newest is None:
        return False
    if newest.log_id != own.log_id or newest.node_id != own.node_id or newest.node_epoch > own.node_epoch:
        raise WalFenced(
            f"{device_name}: claimed by node {newest.node_id} with epoch {newest.node_epoch}, "
            f"this is node {own.node_id} with epoch {own.node_epoch}: {_FENCED}"
        )
    return newest.sequence >= own.sequence


class HeaderWriter:
    """Writes headers one after the other, on request."""

    def __init__(
        self,
        device: Device,
        header: Header,
        current: Callable[[Header], Header],
        flushed: Callable[[Header], None],
        failed: Callable[[WalError], None],
    ) -> None:
        self.header = header
        """The newest header handed to the device."""
        self.writes = 0
        self._device: Final = device
        self._current: Final = current
        self._flushed: Final = flushed
        self._failed: Final = failed
        self._page: Final = aligned_buffer(PAGE_BYTES)
        self._writing: Durable | None = None
        self._next: Durable | None = None
        self._error: WalError | None = None

    def request(self) -> Durable:
        """Ask for a write that begins from now on, and return its completion."""
        if self._error is not None:
            refused = Durable()
            refused.complete(self._error)
            return refused
        if self._writing is None:
            self._writing = Durable()
            self._start()
            return self._writing
        if self._next is None:
            self._next = Durable()
        return self._next

    def fail(self, error: WalError) -> None:
        """Complete everything requested with `error`; nothing is written any more."""
        if self._error is not None:
            return
        self._error = error
        waiting = [durable for durable in (self._writing, self._next) if durable is not None]
        self._writing = self._next = None
        for durable in waiting:
            durable.complete(error)

    def _start(self) -> None:
        self.header = self._current(replace(self.header, sequence=self.header.sequence + 1))
        self.writes += 1
        self._page[:] = encode_header(self.header)
        segments = [(self.header.position, self._page)]
        self._device.submit(IoRequest(IoKind.WRITE, segments, self._done, check_header=True))

    def _done(self, request: IoRequest) -> None:
        if self._error is not None:
            return
        error: WalError | None = None
        if request.error is not None:
            error = WalFailed(
                f"{self._device.name}: header write at position {self.header.position} failed: {request.error}"
            )
        else:
            try:
                if not check_fence(request.header or b"", self.header, self._device.name):
                    error = WalFailed(f"{self._device.name}: header {self.header.sequence} written, but not found")
            except WalFenced as fenced:
                error = fenced
        if error is not None:
            self._failed(error)
            self.fail(error)
            return
        self._flushed(self.header)
        durable, self._writing, self._next = self._writing, self._next, None
        assert durable is not None, "a header write completed that was not under way"
        if self._writing is not None:
            self._start()
        durable.complete()
