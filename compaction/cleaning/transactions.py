"""What log compaction must know of a stream's transactions. Pure.

After Apache Kafka's cleaner, with one difference: whether data was aborted follows from its offset alone (a producer
has one transaction at a time: from its first batch to its marker), so it does not matter which markers are still there.

- Data of aborted transactions goes; it is no newer record of its key either.
- A marker stays until a cleaning meets nothing of its transaction any more, and `delete.retention.ms` after that.
- The marker of an abort also stays as long as the owner's durable state lists the transaction: a reader told of an
  aborted transaction leaves out all that its producer wrote up to the marker, and beyond if there is none. So the owner
  is told what is *vacated*, forgets it, and a later cleaning takes the marker.
- Nothing at or past the last stable offset is cleaned.
"""

from bisect import bisect_right
from collections.abc import Iterable

from compaction.interface import AbortedRange, MarkerKind


class TransactionView:
    """Follows the transactions while batches come by in order, in one pass from the stream's start."""

    def __init__(self, aborted: Iterable[AbortedRange]) -> None:
        self._aborted: dict[int, list[AbortedRange]] = {}
        for each in sorted(aborted, key=lambda one: one.first_offset):
            self._aborted.setdefault(each.producer_id, []).append(each)
        self._seen: set[int] = set()
        """Producers of whose transaction under way something was met."""
        self.vacated: list[AbortedRange] = []
        """Aborted transactions whose marker was met, and nothing else of them."""

    def find_aborted(self, producer_id: int, offset: int) -> AbortedRange | None:
        """The aborted transaction that the producer's offset lies in."""
        known = self._aborted.get(producer_id)
        if known is None:
            return None
        at = bisect_right(known, offset, key=lambda one: one.first_offset)
        return known[at - 1] if at and offset <= known[at - 1].last_offset else None

    def on_data(self, producer_id: int, last_offset: int) -> bool:
        """Transactional data was met; whether it was aborted."""
        self._seen.add(producer_id)
        return self.find_aborted(producer_id, last_offset) is not None

    def on_marker(self, marker: MarkerKind | None, producer_id: int, offset: int) -> bool:
        """A marker was met (None: one that was emptied before); whether nothing needs it any more."""
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
