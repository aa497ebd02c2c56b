"""Ranges of partitions to read, as READ_COMMITTED shows them."""

from collections.abc import Sequence
from typing import NamedTuple


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
