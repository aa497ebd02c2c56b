"""Interface between log compaction and the owner of the streams, which knows what is in their batches.

The owner implements `BatchCodec`, and hands over policies, transactions and callbacks in `CleaningHooks`. Values only.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from s3stream.model import StreamInfo
from wal.interface import Buffer

NO_HORIZON = -1
NEVER_MS = (1 << 63) - 1


class MarkerKind(Enum):
    """What a control batch says."""

    COMMIT = "commit"
    ABORT = "abort"
    OTHER = "other"
    """Something that does not end a transaction; it stays."""


class AbortedRange(NamedTuple):
    """An aborted transaction. Both offsets are inclusive; the last one is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class LastBatch(NamedTuple):
    """The end of an active producer's sequence: a batch that stays, be it empty, as Apache Kafka keeps it."""

    last_offset: int
    """Of its last data, or -1: known by a marker alone."""
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class History:
    """A stream's transactions and producers, as of its committed end or later."""

    stable_offset: int
    """End of what is decided."""
    aborted: Sequence[AbortedRange] = ()
    last_batches: Mapping[int, LastBatch] = field(default_factory=dict)
    """By producer id."""


def plain_history(info: StreamInfo) -> History:
    """Of a stream whose owner knows no transactions."""
    return History(info.end_offset)


class RecordInfo(NamedTuple):
    """What cleaning must know of a record."""

    offset: int
    key: bytes | None
    is_tombstone: bool
    timestamp_ms: int


class BatchInfo(NamedTuple):
    """What cleaning must know of a batch."""

    records: Sequence[RecordInfo]
    """Data records; a control batch has none of these."""
    last_offset: int
    producer_id: int = -1
    producer_epoch: int = -1
    is_transactional: bool = False
    is_control: bool = False
    marker: MarkerKind | None = None
    """Of a control batch; None: it is empty."""
    delete_horizon_ms: int = NO_HORIZON
    """When its tombstones, or the marker it is, may go."""


class BatchTooLarge(Exception):
    """Telling what a batch holds takes more memory than was allowed: it may unfold to a thousand times its size."""


class BatchCodec(Protocol):
    """Knows what is in a payload."""

    def describe(self, payload: Buffer, bytes_max: int) -> BatchInfo | None:
        """What a batch holds; None when that cannot be told.

        Raises TakesTooMuch when that, or a rewrite of the batch, would take more than `bytes_max` of memory.
        """
        ...

    def rewrite(self, payload: Buffer, offsets: AbstractSet[int] | None, delete_horizon_ms: int) -> Buffer:
        """The batch with only the records at `offsets` (None: all), maybe none, and the delete horizon (-1: none).

        Offsets, producer, sequence and compression stay.
        """
        ...


@dataclass(frozen=True, slots=True)
class CleanPolicy:
    """How a stream is cleaned."""

    dirty_ratio_min: float
    """Share of bytes not cleaned yet that makes a cleaning worthwhile."""
    lag_ms_min: int
    """Objects with a record younger than this are left alone."""
    lag_ms_max: int
    """Dirty data committed earlier than this long ago makes a cleaning worthwhile by itself."""
    delete_retention_ms: int
    """How long tombstones, and markers of which nothing else is left, stay after the cleaning that met them first."""
    segment_ms: int = NEVER_MS
    """Age at which Kafka would close the segment that is written to, and so let it be cleaned."""

    @property
    def cleanable_age_ms(self) -> int:
        """Age at which data must be where it can be cleaned, in stream objects: sooner would be of no use."""
        return max(min(self.lag_ms_max, self.segment_ms), self.lag_ms_min)


@dataclass(frozen=True, slots=True)
class CleaningHooks:
    """What log compaction needs from the node."""

    codec: BatchCodec
    policies: Callable[[], Mapping[int, CleanPolicy]]
    """By stream, those that are compacted by key."""
    history: Callable[[StreamInfo], History] = plain_history
    """Transactions and producers of a stream, out of its snapshot."""
    on_vacated: Callable[[int, Sequence[AbortedRange]], None] = lambda _stream, _vacated: None
    """Told of aborted transactions of which only the marker is left: the owner need not remember them."""
    on_cleaned: Callable[[int, int], None] = lambda _stream, _end: None
    """Told of a stream and the end of what was cleaned, in the turn of the loop in which the commit is known.

    Who has read the stream before must not serve it from memory any more. Also called when the outcome of the commit is
    unknown, or it was refused.
    """


class StreamTail(NamedTuple):
    """An open stream, and how long its end has been waiting."""

    start_offset: int
    committed_offset: int
    waiting_ms: int
    """Age of the oldest data of which no upload has begun, or -1."""
