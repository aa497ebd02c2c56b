"""Tracks transactions during log compaction: which data was aborted, and which markers are still needed. Pure.

It follows Apache Kafka's cleaner, with one difference: the offset alone tells whether data was aborted, because a
producer has one transaction at a time, from its first batch to its marker. So it does not matter which markers are
still there.

- Data of aborted transactions is removed. It does not count as a newer record of its key.
- A marker is kept until a cleaning finds no data of its transaction, and for `delete.retention.ms` after that.
- The marker of an abort is also kept as long as the owner's durable state lists the transaction. A reader that gets the
  transaction in a list of aborted ones skips all batches of the producer up to the marker, and beyond if it is missing.
  So the owner first learns that the transaction is *vacated*, and forgets it; a later cleaning removes the marker.
- Nothing at or past the last stable offset is cleaned.
"""

from bisect import bisect_right
from collections.abc import Iterable

from anabranch.compaction.interface import AbortedRange, MarkerKind


class TransactionView:
    """Follows the transactions of a stream in one pass over its batches, in order from its start."""

    def __init__(self, aborted: Iterable[AbortedRange]) -> None:
        self._aborted: dict[int, list[AbortedRange]] = {}
        for each in sorted(aborted, key=lambda one: one.first_offset):
            self._aborted.setdefault(each.producer_id, []).append(each)
        self._seen: set[int] = set()
        """Producers with data in the current transaction."""
        self.vacated: list[AbortedRange] = []
        """Aborted transactions of which only the marker was found."""

    def find_aborted(self, producer_id: int, offset: int) -> AbortedRange | None:
        """Return the aborted transaction that contains the producer's offset, or None."""
        known = self._aborted.get(producer_id)
        if known is None:
            return None
        at = bisect_right(known, offset, key=lambda one: one.first_offset)
        return known[at - 1] if at and offset <= known[at - 1].last_offset else None

    def on_data(self, producer_id: int, last_offset: int) -> bool:
        """Note transactional data. Returns whether it was aborted."""
        self._seen.add(producer_id)
        return self.find_aborted(producer_id, last_offset) is not None

    def on_marker(self, marker: MarkerKind | None, producer_id: int, offset: int) -> bool:
        """Note a marker, or None for one that was emptied before. Returns whether it may be removed."""
        if marker is None:
            return True
        if marker is MarkerKind.OTHER:
            return False
        was_seen = producer_id in self._seen
        self._seen.discard(producer_id)
        listed = self.find_aborted(producer_id, offset) if marker is MarkerKind.ABORT else None
        if listed is not None and not was_seen:
            self.vacated.append(listed)
        return not was_seen and listed is None
