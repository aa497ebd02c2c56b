"""Reading, formatting and writing of the header, and detection of a newer owner.

Invariants, which `wal/claim.py` relies on:

- A request completes when both copies hold a state taken after the request, so that the loss of one copy never brings
  back an older state.
- At most one write of a copy is in flight, and the next begins only after a read of both copies showed this owner.
- A request made during a pair of writes is served by the next pair, so that many trims cost one pair.
"""

from asyncio import get_running_loop
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from anabranch.wal.block import aligned_buffer
from anabranch.wal.foreign import PROBE_BYTES, describe
from anabranch.wal.format import (
    CATALOG_UNKNOWN,
    CLUSTER_BYTES_MAX,
    HEADER_COPIES,
    HEADER_MAGIC,
    PAGE_BYTES,
    RING_POSITION,
    Header,
    Shutdown,
    decode_copies,
    decode_header,
    encode_header,
    newest_header,
    next_header,
)
from anabranch.wal.interface import Buffer, Durable, WalCorrupt, WalError, WalFailed, WalFenced, WalRefused
from anabranch.wal.requests import Device, IoKind, IoRequest, perform
from anabranch.wal.settings import WalSettings

_FENCED: Final = "this node refuses writes"
_REREADS_MAX: Final = 8
_REREAD_S: Final = 0.001
"""Delay before both copies are read again for the first time. It doubles each time."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Node that claims a log, with its cluster and catalog."""

    node_id: int
    node_epoch: int
    cluster: str
    catalog_id: bytes = CATALOG_UNKNOWN
    """Identity of the node's catalog, 16 bytes."""


async def read_header(device: Device) -> Header | None:
    """Return the header on the device, None if it is blank. Does not write.

    Raises WalRefused for foreign content, WalCorrupt if both copies are damaged, WalFailed if the read fails.
    """
    return header_of(await read_beginning(device), device)


async def read_beginning(device: Device) -> memoryview:
    """Return the first pages of the device, both header copies among them. Raises WalRefused or WalFailed."""
    if device.size_bytes < RING_POSITION + PAGE_BYTES:
        raise WalRefused(f"{device.name}: {device.size_bytes} bytes, too small for a WAL")
    beginning = aligned_buffer(min(PROBE_BYTES, device.size_bytes // PAGE_BYTES * PAGE_BYTES))
    await perform(device, IoKind.READ, [(0, beginning)])
    return beginning


def header_of(beginning: memoryview, device: Device) -> Header | None:
    """Return the header in the first pages of `device`, None if it is blank. Raises WalRefused or WalCorrupt."""
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
        raise WalCorrupt(
            f"{device.name}: both copies of the WAL header are damaged: {reasons}; without one no record can be "
            "verified: keep a copy of the device, then set wal.format to begin a new log, which gives up all records "
            "that are not uploaded yet"
        )
    found = describe(beginning)
    # A claim writes both copies: one damaged and one blank copy mean an interrupted format, before any record.
    if found is None or (any(ours) and not any(copies[ours.index(False)])):
        return None
    raise WalRefused(f"{device.name}: holds {found}, not a WAL; set wal.format to overwrite it")


async def read_copies(device: Device) -> memoryview:
    """Return the pages of both header copies, without validation. Raises WalFailed."""
    copies = aligned_buffer(RING_POSITION)
    await perform(device, IoKind.READ, [(0, copies)])
    return copies


def check_owner(header: Header, device_name: str, owner: Owner) -> None:
    """Raise WalRefused or WalFenced unless `owner` may claim the log."""
    if header.cluster != owner.cluster:
        raise WalRefused(f"{device_name}: holds the WAL of cluster {header.cluster!r}, expected {owner.cluster!r}")
    if header.catalog_id not in (CATALOG_UNKNOWN, owner.catalog_id):
        raise WalRefused(
            f"{device_name}: holds the WAL of catalog {header.catalog_id.hex()}, this node is configured with catalog "
            f"{owner.catalog_id.hex()}, which does not contain the WAL's streams: check catalog.url and wal.path"
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
        # It must differ between two formats of one device: see "stale lives" in FORMAT.md.
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
        shutdown=Shutdown.GRACEFUL,  # nothing was appended, so recovery must not search past offset 0
        catalog_id=owner.catalog_id,
        state_epoch=owner.node_epoch,
    )


async def write_header(device: Device, header: Header) -> None:
    """Write one copy, durably. Raises WalFailed."""
    page = aligned_buffer(PAGE_BYTES)
    page[:] = encode_header(header)
    await perform(device, IoKind.WRITE, [(header.position, page)])


def uncertainty_of(copies: Buffer, own: Header, device_name: str) -> str | None:
    """Return None if both copies were written by the owner of `own`, else why that is uncertain.

    Raises WalFenced if a copy names a newer owner. A copy of a former owner is uncertain: it may have overwritten the
    claim of a newer one.
    """
    doubt = None
    for number, copy in enumerate(decode_copies(copies)):
        if isinstance(copy, str):
            doubt = f"header copy {number} is damaged: {copy}"
        elif copy.log_id != own.log_id or copy.node_id != own.node_id or copy.node_epoch > own.node_epoch:
            raise WalFenced(
                f"{device_name}: claimed by node {copy.node_id} with epoch {copy.node_epoch}, "
                f"this is node {own.node_id} with epoch {own.node_epoch}: {_FENCED}"
            )
        elif copy.node_epoch < own.node_epoch:
            doubt = f"header copy {number} was overwritten by a former owner with epoch {copy.node_epoch}"
    return doubt


def confirm_owner(
    device: Device, copies: Buffer, own: Header, decided: Callable[[WalError | None], None], attempt: int = 0
) -> None:
    """Call `decided(None)` if both copies are this owner's, or `decided` with WalFenced or WalFailed.

    While it is uncertain they are read again, a few times: a copy may be read while it is being written.
    """
    try:
        doubt = uncertainty_of(copies, own, device.name)
    except WalFenced as fenced:
        decided(fenced)
        return
    if doubt is None:
        decided(None)
        return
    if attempt == _REREADS_MAX:
        decided(
            WalFailed(
                f"{device.name}: {doubt}: cannot confirm that this node still owns the log, so it refuses "
                "writes; restart the node"
            )
        )
        return
    buffer = aligned_buffer(RING_POSITION)

    def read(request: IoRequest) -> None:
        if request.error is not None:
            decided(WalFailed(f"{device.name}: read of the header failed: {request.error}"))
        else:
            confirm_owner(device, buffer, own, decided, attempt + 1)

    request = IoRequest(IoKind.READ, [(0, buffer)], read)
    get_running_loop().call_later(_REREAD_S * 2**attempt, device.submit, request)


class HeaderWriter:
    """Writes headers on request, one copy after the other."""

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
        self._device: Final = device
        self._current: Final = current
        self._flushed: Final = flushed
        self._failed: Final = failed
        self._page: Final = aligned_buffer(PAGE_BYTES)
        self._copies_left = 0
        """Copies of the current pair left to write, after the one at the device."""
        self._writing: Durable | None = None
        self._next: Durable | None = None
        self._error: WalError | None = None

    def request(self) -> Durable:
        """Request a write of the state from now on; return its completion."""
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
        """Fail all requests with `error` and write nothing more."""
        if self._error is not None:
            return
        self._error = error
        waiting = [durable for durable in (self._writing, self._next) if durable is not None]
        self._writing = self._next = None
        for durable in waiting:
            durable.complete(error)

    def _start(self) -> None:
        """Take the current state and write the first copy of it."""
        self._copies_left = HEADER_COPIES
        self._write(self._current(next_header(self.header)))

    def _write(self, header: Header) -> None:
        self.header = header
        self._copies_left -= 1
        self._page[:] = encode_header(header)
        self._device.submit(IoRequest(IoKind.WRITE, [(header.position, self._page)], self._written, check_header=True))

    def _written(self, request: IoRequest) -> None:
        if self._error is not None:
            return
        if request.error is not None:
            position = self.header.position
            self._stop(WalFailed(f"{self._device.name}: header write at position {position} failed: {request.error}"))
            return
        assert request.header is not None, "a header write reads the copies"
        confirm_owner(self._device, request.header, self.header, self._confirmed)

    def _confirmed(self, error: WalError | None) -> None:
        """Write the other copy, or complete the pair, now that both copies are known to be this owner's."""
        if self._error is not None:
            return
        if error is not None:
            self._stop(error)
            return
        if self._copies_left:
            self._write(next_header(self.header))
            return
        self._flushed(self.header)
        durable, self._writing, self._next = self._writing, self._next, None
        assert durable is not None, "a header write completed that was not in flight"
        if self._writing is not None:
            self._start()
        durable.complete()

    def _stop(self, error: WalError) -> None:
        self._failed(error)
        self.fail(error)
