"""The sliding window: the bytes past the durable end that may be at the device, and the order of their completion.

Pure. Invariant: `start <= handed <= start + bound`, where `bound` is durable in the header. So a recovery that reads
`bound` bytes past the first missing record has seen all records that a crash can have left. Writes complete in any
order; `start` moves over the leading completed ones only.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class SlidingWindow:
    """Window of one log. Offsets are logical and page-aligned, lengths in bytes."""

    start: int
    """Offset before which everything is durable."""
    handed: int
    """Offset before which everything was handed to the device."""
    bound: int
    """Bound that is durable in the header: `handed` never passes `start + bound`."""
    bound_max: int
    _done: dict[int, int] = field(default_factory=dict)
    """Writes completed ahead of an earlier one: start offset -> end offset."""

    def admits(self, end: int) -> bool:
        """Return whether a write up to `end` may be handed to the device now."""
        return end - self.start <= self.bound

    def wanted_bound(self, end: int) -> int | None:
        """Return the bound to make durable so that a write up to `end` fits; None if it must wait for completions."""
        needed = end - self.start
        if needed <= self.bound or self.bound == self.bound_max:
            return None
        return min(self.bound_max, 1 << (needed - 1).bit_length())

    def grow(self, bound: int) -> None:
        """Use a larger bound, which is already durable in the header."""
        assert self.bound <= bound <= self.bound_max, f"window bound {bound}, expected {self.bound}-{self.bound_max}"
        self.bound = bound

    def hand(self, start: int, end: int) -> None:
        """Note that [start, end) is handed to the device: in order, without gaps, inside the bound."""
        assert start == self.handed < end, f"write handed over at {start}, expected {self.handed}"
        assert end - self.start <= self.bound, f"write up to {end} passes the window {self.start} + {self.bound}"
        self.handed = end

    def complete(self, start: int, end: int) -> bool:
        """Note that [start, end) is durable; return whether `start` moved."""
        assert self.start <= start < end <= self.handed, f"completion of {start}-{end} outside the window"
        assert start not in self._done, f"write at {start} completed twice"
        self._done[start] = end
        if start != self.start:
            return False
        while (moved := self._done.pop(self.start, None)) is not None:
            self.start = moved
        return True
