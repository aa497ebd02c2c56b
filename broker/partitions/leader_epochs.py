"""Where each leader epoch of a partition begins: what clients ask to find out whether a log was cut (KIP-101, KIP-320).

Pure state, part of the partition's snapshot. Epochs and start offsets both grow strictly, so an epoch that appended
nothing is replaced by the next one, and the list stays as short as the number of starts that wrote something.
"""

import struct
from bisect import bisect_right

UNDEFINED = -1
_COUNT = struct.Struct(">I")
_ENTRY = struct.Struct(">iq")


class LeaderEpochs:
    """Entries (epoch, start offset), oldest first."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        """The newest epoch, or UNDEFINED."""
        return self._epochs[-1] if self._epochs else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`; older epochs are left alone."""
        if epoch <= self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def trim(self, log_start_offset: int) -> None:
        """Forget epochs that end at or before the log's start."""
        while len(self._starts) > 1 and self._starts[1] <= log_start_offset:
            del self._starts[0], self._epochs[0]

    def epoch_of(self, offset: int) -> int:
        """The epoch `offset` was written in; UNDEFINED before the first."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else UNDEFINED

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The newest epoch at or below `epoch`, and where it ends; (UNDEFINED, UNDEFINED) when that is not known."""
        if epoch == UNDEFINED or not self._epochs:
            return UNDEFINED, UNDEFINED
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == len(self._epochs):
            return UNDEFINED, UNDEFINED
        if above == 0:
            return epoch, self._starts[0]
        return self._epochs[above - 1], self._starts[above]

    def encode(self) -> bytes:
        """The entries as bytes: count, then epoch and start offset of each."""
        entries = zip(self._epochs, self._starts, strict=True)
        return _COUNT.pack(len(self._epochs)) + b"".join(_ENTRY.pack(epoch, start) for epoch, start in entries)

    @classmethod
    def decode(cls, data: bytes, position: int = 0) -> tuple["LeaderEpochs", int]:
        """Read the entries that begin at `position`; returns them and where they end. Raises struct.error."""
        epochs = cls()
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(count):
            epoch, start = _ENTRY.unpack_from(data, position)
            epochs.assign(epoch, start)
            position += _ENTRY.size
        return epochs, position
