"""Limits on the writes and bytes per second of a log: two token buckets. Pure."""

from dataclasses import dataclass, field
from typing import Final

IO_BYTES: Final = 256 << 10
"""A cloud disk counts a write in units of this size."""
_BURST_S: Final = 0.02
_ELAPSED_S_MAX: Final = 3600.0


def io_count(size_bytes: int) -> int:
    """Return the number of IOs that a write of `size_bytes` counts for."""
    return -(-size_bytes // IO_BYTES)


@dataclass(slots=True)
class Budget:
    """Tokens accrue at the rates, up to 20 ms worth of them. A rate of 0 means no limit. Header writes may overdraw."""

    iops: int
    bandwidth_bytes: int
    reserved_iops: int
    unlimited: bool = field(init=False)
    """True if no rate is limited."""
    ios_left: float = 0.0
    bytes_left: float = 0.0
    _at: float = float("-inf")

    def __post_init__(self) -> None:
        self.unlimited = not self.iops and not self.bandwidth_bytes

    def wait_s(self, now_s: float) -> float:
        """Return how long the next write must wait, 0 if not at all. A write may overdraw; then the next one waits."""
        self._refill(now_s)
        wait_s = 0.0
        if self.iops and self.ios_left < 1:
            wait_s = (1 - self.ios_left) / (self.iops - self.reserved_iops)
        if self.bandwidth_bytes and self.bytes_left <= 0:
            wait_s = max(wait_s, (1 - self.bytes_left) / self.bandwidth_bytes)
        return wait_s

    def cost_s(self, size_bytes: int, ios: int) -> float:
        """Return how many seconds of the budget a write uses up, 0 if no rate is limited."""
        seconds = ios / (self.iops - self.reserved_iops) if self.iops else 0.0
        return max(seconds, size_bytes / self.bandwidth_bytes) if self.bandwidth_bytes else seconds

    def take(self, size_bytes: int, ios: int) -> None:
        """Account for a write that is handed to the device."""
        self.ios_left -= ios
        self.bytes_left -= size_bytes

    def _refill(self, now_s: float) -> None:
        elapsed_s = min(max(now_s - self._at, 0.0), _ELAPSED_S_MAX)
        self._at = now_s
        rate = self.iops - self.reserved_iops
        self.ios_left = min(self.ios_left + elapsed_s * rate, max(1.0, rate * _BURST_S))
        self.bytes_left = min(
            self.bytes_left + elapsed_s * self.bandwidth_bytes, max(1.0, self.bandwidth_bytes * _BURST_S)
        )
