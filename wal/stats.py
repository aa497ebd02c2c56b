"""Counters of a log: plain numbers, read at any time; the log computes nothing for them."""

from dataclasses import dataclass, field
from typing import Final

LATENCY_BUCKETS: Final = 26


@dataclass(slots=True)
class WalStats:
    """Totals since the log was opened, and current gauges."""

    records: int = 0
    record_bytes: int = 0
    """Bodies and record headers, without padding."""
    blocks: int = 0
    block_bytes: int = 0
    """Bytes handed to the device, padding included."""
    writes: int = 0
    """Writes of blocks as the IOPS budget counts them."""
    header_writes: int = 0
    repeated_writes: int = 0
    """Batches sent to an object store again, because it did not answer or was slow."""
    over_capacity: int = 0
    """Appends refused because the ring or the queue was full, or a new file not written so far."""
    budget_waits: int = 0
    window_growths: int = 0
    in_flight: int = 0
    """Writes at the device now."""
    queued_bytes: int = 0
    """Appended and not yet durable."""
    used_bytes: int = 0
    capacity_bytes: int = 0
    write_position: int = 0
    """Bytes from the start of the ring to the place of the next record; 0 for a log that is no ring."""
    unwritten_bytes: int = 0
    """Bytes of a new file that zeros are still to be written to, in the background."""
    append_latency_us: list[int] = field(default_factory=lambda: [0] * LATENCY_BUCKETS)
    """Records by time from the first append of their block to durable. Bucket n counts those under 2**n us, the last
    one all others. The time is an upper bound for the later records of a block."""
    append_latency_s: float = 0.0
    """Sum of these times."""

    def observe(self, seconds: float, records: int) -> None:
        """Count `records` that became durable after `seconds`."""
        self.append_latency_s += seconds * records
        bucket = int(seconds * 1e6).bit_length()
        self.append_latency_us[min(bucket, LATENCY_BUCKETS - 1)] += records

    def latency_us(self, quantile: float) -> int:
        """Upper bound in us of the append latency at `quantile` (0 to 1); 0 if nothing was appended."""
        wanted = sum(self.append_latency_us) * quantile
        seen = 0
        for bucket, count in enumerate(self.append_latency_us):
            seen += count
            if count and seen >= wanted:
                return 1 << bucket
        return 0
