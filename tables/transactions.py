"""Reads a partition's snapshot in the catalog: its open and aborted transactions.

The node writes the snapshot (`broker.kafka.partitions.snapshot`: version, newest timestamp, leader epochs,
transactions, producers) with each commit of its data, as of the end offset that the commit sets. So the catalog alone
tells a reader of committed data how far it may read and what to leave out. No marker has to be searched for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error

from anabranch.s3stream.errors import CorruptObject
from anabranch.s3stream.model import StreamInfo
from anabranch.tables.ranges import AbortedTransaction

SNAPSHOT_VERSION = 3
_HEADS = {2: Struct(">Bqq"), 3: Struct(">Bqqq")}
"""Fields before the leader epochs, by version."""
_COUNT = Struct(">I")
_EPOCH = Struct(">iq")
_COUNTS = Struct(">III")
_OPEN = Struct(">qqq")
_ABORTED = Struct(">qqqq")


@dataclass(frozen=True, slots=True)
class SnapshotTransactions:
    """Transactions of a partition as of its committed end."""

    stable_offset: int
    """Last stable offset: start of the first open transaction, or the committed end."""
    aborted: Sequence[AbortedTransaction]

    def aborted_between(self, start_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        """Return those with an offset in [start, end)."""
        return tuple(each for each in self.aborted if each.first_offset < end_offset and each.end_offset > start_offset)


def read_transactions(stream: StreamInfo) -> SnapshotTransactions:
    """Return the transactions in a stream's snapshot. Raises CorruptObject for an invalid one."""
    data = stream.snapshot
    if not data or data[0] == 1:
        return SnapshotTransactions(stream.end_offset, ())  # nothing was written yet, or before there were transactions
    head = _HEADS.get(data[0])
    if head is None:
        raise CorruptObject(
            f"stream {stream.stream_id}: snapshot of version {data[0]}, expected 1 to {SNAPSHOT_VERSION}: "
            "the node is newer than this reader"
        )
    try:
        (epochs,) = _COUNT.unpack_from(data, head.size)
        position = head.size + _COUNT.size + epochs * _EPOCH.size
        open_count, aborted_count, _ = _COUNTS.unpack_from(data, position)
        position += _COUNTS.size
        begun = [_OPEN.unpack_from(data, position + at * _OPEN.size)[1] for at in range(open_count)]
        position += open_count * _OPEN.size
        found = [_ABORTED.unpack_from(data, position + at * _ABORTED.size) for at in range(aborted_count)]
    except struct_error as error:
        raise CorruptObject(f"stream {stream.stream_id}: snapshot of {len(data)} bytes is cut short: {error}") from None
    aborted = [AbortedTransaction(producer_id, first, last + 1) for producer_id, first, last, _ in found]
    stable = max(min([stream.end_offset, *begun]), stream.start_offset)
    return SnapshotTransactions(stable, aborted)
