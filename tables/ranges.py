"""Ranges of partitions to read, as READ_COMMITTED shows them."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class AbortedTransaction(NamedTuple):
    """An aborted transaction. The producer's batches in [first, end) are left out."""

    producer_id: int
    first_offset: int
    end_offset: int


class PartitionRange(NamedTuple):
    """Offsets [start, end) of a partition."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    aborted: Sequence[AbortedTransaction] = ()
    """Aborted transactions to leave out; empty if uncommitted records are read too."""

    def to_json(self) -> list[Any]:
        """Return it as JSON."""
        return [*self[:4], [list(each) for each in self.aborted]]

    @classmethod
    def from_json(cls, found: Sequence[Any]) -> "PartitionRange":
        """Return what `to_json` was given."""
        topic, partition, start, end, aborted = found
        return cls(topic, partition, start, end, tuple(AbortedTransaction(*each) for each in aborted))
