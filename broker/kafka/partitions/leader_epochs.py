"""Start offsets of a partition's leader epochs, by which clients detect that a log was truncated (KIP-101, KIP-320).

Pure state, part of the partition's snapshot. Epochs and start offsets both grow strictly. An epoch that appended
nothing is replaced by the next one, so there is at most one entry for each start that wrote something.
"""

import struct
from bisect import bisect_right

from anabranch.protocol.errors import ErrorCode, KafkaError

UNDEFINED = -1
_COUNT = struct.Struct(">I")
_ENTRY = struct.Struct(">iq")


def check_leader_epoch(current_leader_epoch: int, leader_epoch: int) -> None:
    """Compare the client's epoch (-1: none) with the leader's. Raises FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH."""
    if current_leader_epoch >= 0 and current_leader_epoch != leader_epoch:
        older = current_leader_epoch < leader_epoch
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH)


class LeaderEpochs:
    """Pairs of epoch and start offset, oldest first."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> int:
        """The newest epoch, or UNDEFINED."""
        return self._epochs[-1] if self._epochs else UNDEFINED

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` begins at `start_offset`. An epoch that is not newer than the latest is ignored."""
        if epoch <= self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:
            self._starts.pop()
            self._epochs.pop()
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    def trim(self, log_start_offset: int) -> None:
        """Remove epochs that end at or before the log's start."""
        while len(self._starts) > 1 and self._starts[1] <= log_start_offset:
            del self._starts[0], self._epochs[0]

    def epoch_of(self, offset: int) -> int:
        """Return the epoch that `offset` was written in; UNDEFINED before the first."""
        at = bisect_right(self._starts, offset) - 1
        return self._epochs[at] if at >= 0 else UNDEFINED

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the newest epoch at or below `epoch` and its end offset; (UNDEFINED, UNDEFINED) if unknown."""
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
        """Encode the entries: count, then epoch and start offset of each."""
        entries = zip(self._epochs, self._starts, strict=True)
        return _COUNT.pack(len(self._epochs)) + b"".join(_ENTRY.pack(epoch, start) for epoch, start in entries)

    @classmethod
    def decode(cls, data: bytes, position: int = 0) -> tuple["LeaderEpochs", int]:
        """Decode entries at `position`; returns them and their end position. Raises struct.error."""
        epochs = cls()
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(count):
            epoch, start = _ENTRY.unpack_from(data, position)
            epochs.assign(epoch, start)
            position += _ENTRY.size
        return epochs, position
