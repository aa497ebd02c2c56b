"""Settings of the log: frozen values in bytes and milliseconds, each with its default and the reason for it."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from anabranch.wal.format import PAGE_BYTES, RING_POSITION
from anabranch.wal.interface import WalRefused

Durability: TypeAlias = Literal["auto", "flush", "direct"]
Fencing: TypeAlias = Literal["auto", "strict", "local"]
EngineName: TypeAlias = Literal["auto", "io_uring", "threads"]

HEADER_IOPS: Final = 10
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WalSettings:
    """Settings of a Delta WAL."""

    capacity_bytes: int = 1024 * _MIB
    """Bytes used of the device, headers included. Fixed when the log is formatted; `resize` changes it."""
    block_bytes_max: int = 256 << 10
    """Bytes of records in one write, which may be a page longer: a record of 256 KiB or four of 64 KiB fit in spite of
    their headers. Cloud disks split larger writes. A larger record is written whole."""
    writes_in_flight_max: int = 4
    window_bytes: int = 4 * _MIB
    """Initial bound of the sliding window: bytes that a recovery reads past the end, and skips."""
    window_bytes_max: int = 64 * _MIB
    """Largest bound of the window. No record may be larger."""
    queue_bytes_max: int = 256 * _MIB
    """Limit of bytes appended and not yet durable, past which appends raise QueueFull. Clients that await acks stay
    below."""
    iops_max: int = 0
    """Writes per second, where a write of more than 256 KiB counts for several; 0: no limit. Set it for a rented disk
    (an EBS gp3 volume includes 3000); for a local disk it would only cap the throughput."""
    bandwidth_bytes_max: int = 0
    """Bytes per second; 0: no limit (an EBS gp3 volume includes 125 MiB/s)."""
    header_iops: int = HEADER_IOPS
    """Part of `iops_max` reserved for header writes."""
    durability: Durability = "auto"
    """`flush`: each write reaches stable media before it is acked; `direct`: the device's cache is trusted; `auto`:
    flush unless the device reports that it has no volatile cache."""
    engine: EngineName = "auto"
    """Mechanism that hands requests to the kernel. `auto`: io_uring where it works, else threads; `io_uring`: refused
    where it does not."""
    fencing: Fencing = "auto"
    """`strict`: the header is re-read after each block, before its ack; `local`: after header writes only, a lock keeps
    other processes of this host away; `auto`: strict for a block device that another host could attach, else local."""
    prewrite_bytes: int = 1 * _MIB
    """Bytes of zeros in one write to a new file, ahead of its records: a record's write waits for one of them."""
    prewrite_ahead_bytes: int = 32 * _MIB
    """Space that is written before a new log opens. While less is ahead of the records, zeros are written without
    pauses."""
    write_timeout_ms: int = 30_000
    """A write that takes longer fails the log: the device is gone."""
    format: bool = False
    """Format a device that holds something else, destroying it."""
    allow_volatile: bool = False
    """Allow a new log file in memory (tmpfs, ramfs) or in a container's own layer (overlay)."""

    @property
    def write_bytes_max(self) -> int:
        """Length of a full block on the device: its records, and a page for their headers and the padding."""
        return self.block_bytes_max + PAGE_BYTES

    def __post_init__(self) -> None:
        ring_bytes = self.capacity_bytes - RING_POSITION
        _check("capacity_bytes", self.capacity_bytes, RING_POSITION + 16 * PAGE_BYTES, 1 << 50, page=True)
        _check("block_bytes_max", self.block_bytes_max, PAGE_BYTES, 16 * _MIB, page=True)
        _check("writes_in_flight_max", self.writes_in_flight_max, 1, 64)
        _check("window_bytes", self.window_bytes, PAGE_BYTES, self.window_bytes_max, page=True)
        _check("window_bytes_max", self.window_bytes_max, self.write_bytes_max, 1 << 40, page=True)
        _check("queue_bytes_max", self.queue_bytes_max, self.write_bytes_max, 1 << 40)
        _check("prewrite_bytes", self.prewrite_bytes, PAGE_BYTES, 64 * _MIB, page=True)
        _check("prewrite_ahead_bytes", self.prewrite_ahead_bytes, 0, 1 << 50)
        _check("write_timeout_ms", self.write_timeout_ms, 1, 1 << 31)
        _check("iops_max", self.iops_max, 0, 1 << 31)
        _check("bandwidth_bytes_max", self.bandwidth_bytes_max, 0, 1 << 50)
        if self.iops_max:
            _check("header_iops", self.header_iops, 0, self.iops_max - 1)
        if self.block_bytes_max > ring_bytes // 4:
            raise WalRefused(
                f"wal setting capacity_bytes: {self.capacity_bytes} holds fewer than four blocks of "
                f"{self.block_bytes_max} bytes"
            )


def _check(name: str, value: int, least: int, most: int, *, page: bool = False) -> None:
    if not least <= value <= most:
        raise WalRefused(f"wal setting {name}: {value}, expected {least} to {most}")
    if page and value % PAGE_BYTES:
        raise WalRefused(f"wal setting {name}: {value}, expected a multiple of {PAGE_BYTES}")
