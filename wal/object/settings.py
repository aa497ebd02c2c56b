"""Settings of the object log: frozen values in bytes and milliseconds."""

from dataclasses import dataclass
from typing import Final

from anabranch.wal.interface import WalRefused

_MIB: Final = 1 << 20
WANTED_SHARE: Final = 16
RECORD_BYTES_MAX: Final = 64 * _MIB
"""Largest record, as in the log on a device."""


@dataclass(frozen=True, slots=True)
class ObjectWalSettings:
    """Settings of an object log."""

    capacity_bytes: int = 1024 * _MIB
    """Bytes of records that are not trimmed, past which appends raise OverCapacity."""
    objects_max: int = 4096
    """Objects with records that are not trimmed, past which appends raise OverCapacity: a recovery reads them all."""
    batch_ms: int = 100
    """Age at which a batch is sealed although earlier ones are still on their way."""
    put_interval_ms: int = 50
    """Shortest time from one batch to the next, unless it is full: an append after idleness goes out at once."""
    batch_bytes_max: int = 8 * _MIB
    """Size at which a batch is sealed. A larger record is a batch of its own."""
    puts_in_flight: int = 8
    """Batches on their way to the store at one time."""
    queue_bytes_max: int = 128 * _MIB
    """Limit of bytes appended and not yet durable, past which appends raise QueueFull."""
    hedge_ms_min: int = 200
    """Shortest time after which a PUT is sent a second time, if it takes much longer than others did."""
    retry_ms_min: int = 50
    retry_ms_max: int = 2_000
    """Shortest and longest pause before a PUT of unknown outcome is repeated."""
    close_ms: int = 10_000
    """Time that a clean stop waits for the store."""

    @property
    def objects_wanted(self) -> int:
        """Number of such objects past which the log asks for a trim."""
        return self.objects_max // WANTED_SHARE

    @property
    def record_bytes_max(self) -> int:
        """Size of the largest record, with its header."""
        return min(RECORD_BYTES_MAX, self.queue_bytes_max, self.capacity_bytes // 4)

    def __post_init__(self) -> None:
        _check("capacity_bytes", self.capacity_bytes, 1024, 1 << 50)
        _check("objects_max", self.objects_max, WANTED_SHARE, 1 << 20)
        _check("batch_ms", self.batch_ms, 0, 60_000)
        _check("put_interval_ms", self.put_interval_ms, 0, 60_000)
        _check("batch_bytes_max", self.batch_bytes_max, 1, 256 * _MIB)
        _check("puts_in_flight", self.puts_in_flight, 1, 64)
        _check("queue_bytes_max", self.queue_bytes_max, 1024, 1 << 40)


def _check(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise WalRefused(f"wal setting {name}: {value}, expected {least} to {most}")
