"""Interface between log compaction and the owner of the streams, which can decode their batches.

The owner implements `BatchCodec`, and passes policies, transactions and callbacks in `CleaningHooks`. Values only.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from anabranch.s3stream.model import StreamInfo
from anabranch.wal.interface import Buffer

NO_HORIZON = -1
NEVER_MS = (1 << 63) - 1


class MarkerKind(Enum):
    """Type of a control batch."""

    COMMIT = "commit"
    ABORT = "abort"
    OTHER = "other"
    """A control batch that does not end a transaction. It is kept."""


class AbortedRange(NamedTuple):
    """Offsets of an aborted transaction. Both are inclusive; the last one is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int


class LastBatch(NamedTuple):
    """End of an active producer's sequence. This batch is kept, even if empty, as Apache Kafka keeps it."""

    last_offset: int
    """Last offset of its data, or -1 if the producer is known only by a marker."""
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class History:
    """A stream's transactions and producers, as of its committed end or later."""

    stable_offset: int
    """Last stable offset: all transactions before it have ended."""
    aborted: Sequence[AbortedRange] = ()
    last_batches: Mapping[int, LastBatch] = field(default_factory=dict)
    """Last batches by producer id."""


def plain_history(info: StreamInfo) -> History:
    """Return the history of a stream without transactions."""
    return History(info.end_offset)


class RecordInfo(NamedTuple):
    """Properties of a record that decide whether it is kept."""

    offset: int
    key: bytes | None
    is_tombstone: bool
    timestamp_ms: int


class BatchInfo(NamedTuple):
    """Properties of a batch that decide what is kept of it."""

    records: Sequence[RecordInfo]
    """Data records. A control batch has none."""
    last_offset: int
    producer_id: int = -1
    producer_epoch: int = -1
    is_transactional: bool = False
    is_control: bool = False
    marker: MarkerKind | None = None
    """Marker of a control batch; None: the control batch is empty."""
    delete_horizon_ms: int = NO_HORIZON
    """Time from which its tombstones, or its marker, may be removed."""


class BatchTooLarge(Exception):
    """Decoding a batch would take more memory than allowed: batches can unfold to a thousand times their size."""


class BatchCodec(Protocol):
    """Decodes and rewrites payloads."""

    def describe(self, payload: Buffer, bytes_max: int) -> BatchInfo | None:
        """Return the properties of a batch, or None if it cannot be decoded.

        Raises BatchTooLarge when this, or a rewrite of the batch, would take more than `bytes_max` of memory.
        """
        ...

    def rewrite(self, payload: Buffer, offsets: AbstractSet[int] | None, delete_horizon_ms: int) -> Buffer:
        """Return the batch with only the records at `offsets`, and with the delete horizon.

        `offsets` None keeps all records, and an empty set none; horizon -1 sets none. Offsets, producer, sequence and
        compression are unchanged.
        """
        ...


@dataclass(frozen=True, slots=True)
class CleanPolicy:
    """Log compaction configs of a stream."""

    dirty_ratio_min: float
    """Share of uncleaned bytes from which a cleaning is worthwhile."""
    lag_ms_min: int
    """Objects with a record younger than this are not cleaned."""
    lag_ms_max: int
    """Age of dirty data, since its commit, that makes a cleaning worthwhile by itself."""
    delete_retention_ms: int
    """Time that tombstones, and markers of empty transactions, are kept after the first cleaning that met them."""
    segment_ms: int = NEVER_MS
    """Age at which Kafka would roll the active segment, and so let it be cleaned."""

    @property
    def cleanable_age_ms(self) -> int:
        """Age at which data must be in stream objects, where it can be cleaned. Earlier would be useless."""
        return max(min(self.lag_ms_max, self.segment_ms), self.lag_ms_min)


@dataclass(frozen=True, slots=True)
class CleaningHooks:
    """Codec, policies and callbacks through which log compaction works with the streams' owner."""

    codec: BatchCodec
    policies: Callable[[], Mapping[int, CleanPolicy]]
    """Returns the policies of the streams that are compacted by key."""
    history: Callable[[StreamInfo], History] = plain_history
    """Returns the transactions and producers of a stream from its snapshot."""
    on_vacated: Callable[[int, Sequence[AbortedRange]], None] = lambda _stream, _vacated: None
    """Called with aborted transactions of which only the marker is left. The owner may forget them."""
    on_cleaned: Callable[[int, int], None] = lambda _stream, _end: None
    """Called with a stream and the end of its cleaned part, in the same turn of the event loop as the commit's result.

    Readers must not serve data from memory that they read before. Also called when the commit was refused, or its
    result is unknown.
    """


class StreamTail(NamedTuple):
    """End of an open stream, and how long it has been waiting for an upload."""

    start_offset: int
    committed_offset: int
    waiting_ms: int
    """Age of the oldest data that no upload has started on, or -1."""
