"""Examination and resizing of the log of a stopped node.

The device is opened and locked as by the node, so the log of a running node is refused. `examine` only reads.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from anabranch.wal.block import aligned_buffer
from anabranch.wal.format import PAGE_BYTES, RING_POSITION, Header, Shutdown, decode_copies, next_header
from anabranch.wal.interface import WalCorrupt, WalRefused
from anabranch.wal.log import DeltaWal
from anabranch.wal.owner import read_copies, read_header, write_header
from anabranch.wal.reader import read_ring
from anabranch.wal.recovery import Scan, ScanEnd
from anabranch.wal.requests import Device, IoKind, perform
from anabranch.wal.resize import plan_resize
from anabranch.wal.settings import WalSettings

_COPY_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Examination:
    """Content of a device: header, records, and the end of the log."""

    header: Header
    copies: tuple[Header | str, ...]
    """Both header copies; a string says why a copy is invalid."""
    live_records: int
    """Records past the trim offset."""
    live_bytes: int
    end: ScanEnd | None
    """None if the log is corrupt."""
    corrupt: WalCorrupt | None

    @property
    def used_bytes(self) -> int:
        """Bytes between the head and the end of the log."""
        return (self.end.end_offset if self.end else self.header.durable_offset) - self.header.head_offset


async def examine(device: Device) -> Examination:
    """Read the header and every record, checking every CRC. Raises WalRefused, WalCorrupt (no header) or WalFailed."""
    header = await read_header(device)
    if header is None:
        raise WalRefused(f"{device.name}: blank, no WAL was formatted here")
    copies = decode_copies(await read_copies(device))
    scan = Scan(header, device.name)
    live_records = live_bytes = 0
    corrupt: WalCorrupt | None = None
    try:
        async for records in read_ring(device, header, scan):
            live_records += len(records)
            live_bytes += sum(len(record.body) for record in records)
    except WalCorrupt as error:
        corrupt = error
    return Examination(header, copies, live_records, live_bytes, scan.end, corrupt)


async def resize(device: Device, capacity_bytes: int, *, now_ms: Callable[[], int]) -> Header:
    """Change the capacity of the log of a stopped node, keeping its records; return the new header.

    A log that was not stopped gracefully is recovered first, as its last owner. Data is copied to free places only, and
    one header write switches over, so that a crash leaves the old layout or the new one. Raises WalRefused if the
    device is too small, or the records that are not uploaded yet do not fit.
    """
    header = await read_header(device)
    if header is None:
        raise WalRefused(f"{device.name}: blank, no WAL was formatted here")
    if capacity_bytes % PAGE_BYTES or capacity_bytes < RING_POSITION + PAGE_BYTES:
        raise WalRefused(f"{device.name}: capacity {capacity_bytes}, expected whole pages of {PAGE_BYTES} bytes")
    if capacity_bytes > device.size_bytes:
        raise WalRefused(f"{device.name}: {device.size_bytes} bytes, smaller than the capacity {capacity_bytes}")
    if header.shutdown != Shutdown.GRACEFUL:
        header = await _stop_cleanly(device, header, now_ms)
    plan = plan_resize(header, capacity_bytes, device.name)
    for source, target, length in plan.copies:
        await _copy(device, source, target, length)
    await perform(device, IoKind.FLUSH)
    for _ in range(2):  # both copies, so that neither keeps the old capacity
        header = replace(
            next_header(header), capacity_bytes=capacity_bytes, base_offset=plan.base_offset, last_write_ms=now_ms()
        )
        await write_header(device, header)
    await perform(device, IoKind.FLUSH)
    return header


async def _stop_cleanly(device: Device, header: Header, now_ms: Callable[[], int]) -> Header:
    """Recover the log as its last owner, and close it gracefully."""
    settings = replace(WalSettings(), capacity_bytes=header.capacity_bytes) if header.ring_bytes >= 1 << 20 else None
    wal = DeltaWal(
        device,
        settings or WalSettings(capacity_bytes=max(header.capacity_bytes, 1 << 21)),
        node_id=header.node_id,
        node_epoch=header.node_epoch,
        cluster=header.cluster,
        catalog_id=header.catalog_id,
        now_ms=now_ms,
    )
    async for _ in wal.recover():
        pass
    await wal.close(release_device=False)
    stopped = await read_header(device)
    assert stopped is not None, "a log that was recovered has a header"
    if stopped.shutdown != Shutdown.GRACEFUL:
        raise wal.error or WalRefused(f"{device.name}: could not be closed gracefully")
    return stopped


async def _copy(device: Device, source: int, target: int, length: int) -> None:
    """Copy between ranges that do not overlap."""
    buffer = aligned_buffer(min(length, _COPY_BYTES))
    for at in range(0, length, _COPY_BYTES):
        part = buffer[: min(_COPY_BYTES, length - at)]
        await perform(device, IoKind.READ, [(source + at, part)])
        await perform(device, IoKind.WRITE, [(target + at, part)])
