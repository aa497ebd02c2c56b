"""Log compaction (`cleanup.policy=compact`): of each key only the newest record stays. The pure half.

Kafka's rules: a record goes when a newer one of its key lies below the end of the part being cleaned, or when its
transaction was aborted; a tombstone (a record without a value) goes `delete.retention.ms` after the cleaning that met
it first, which notes in the batch when that will be (its delete horizon, KIP-534), and so does a marker once nothing of
its transaction is left; what is left keeps its offset. Records without a key stay.

A batch that loses all its records goes, but for the end of an active producer's sequence and the last batch of the
part, which stay, empty. Ranges stay contiguous: the offsets of dropped batches are taken over by the next one.

Storage does not know Kafka: what a payload holds is told by a `BatchCodec`. What it cannot read stays, and so do
tombstones and markers behind it, which may hide a value there, or decide about it.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

from compaction.cleaning.transactions import AbortedRange, History, LastBatch, Marker, TransactionView, plain_history
from s3stream.model import RangeLocation, StreamBatch, StreamInfo
from wal.interface import Buffer

CLEANED = ".cleaned"
"""Ends the writer id of an object in which each key is there once (but for what later parts hold)."""
KEY_BYTES_MAX = 16
"""Longer keys are known by a digest of this length."""
KEY_COST_BYTES = 200
"""Memory of a key in the map: the entry, the key and the offset."""
OBJECTS_MAX = 1000
"""Objects cleaned at once at most."""
NO_HORIZON = -1
NEVER_MS = (1 << 63) - 1


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
    marker: Marker | None = None
    """Of a control batch; None: it is empty."""
    delete_horizon_ms: int = NO_HORIZON
    """When its tombstones, or the marker it is, may go."""


class TakesTooMuch(Exception):
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
    def ripe_ms(self) -> int:
        """Age at which data must be where it can be cleaned, in stream objects: sooner would be of no use."""
        return max(min(self.lag_ms_max, self.segment_ms), self.lag_ms_min)


@dataclass(frozen=True, slots=True)
class Cleaning:
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


class CleanPlan(NamedTuple):
    """Objects to clean: all of a stream's from its start to a boundary between two."""

    stream_id: int
    stream_start: int
    objects: Sequence[RangeLocation]
    dirty_start: int
    """Up to here all was cleaned before."""
    policy: CleanPolicy
    history: History


def plan_cleaning(
    info: StreamInfo,
    objects: Sequence[RangeLocation],
    policy: CleanPolicy,
    history: History,
    now_ms: int,
    *,
    born_ms: Callable[[RangeLocation], int] = lambda each: each.object.committed_ms,
) -> CleanPlan | None:
    """What to clean of a stream's stream objects, given in offset order; None while too little is dirty.

    A stream whose first data is not in one yet waits until it is: a tombstone or a marker must not go before what it is
    about. `born_ms` tells when an object's oldest data was committed first.
    """
    if not objects or objects[0].range.start_offset > info.start_offset:
        return None
    chosen: list[RangeLocation] = []
    clean_bytes = dirty_bytes = 0
    is_due = False
    dirty_start = objects[0].range.start_offset
    for each in objects[:OBJECTS_MAX]:
        last = chosen[-1] if chosen else None
        if last and last.range.end_offset != each.range.start_offset:
            break
        if each.range.end_offset > history.stable_offset:
            break
        if not dirty_bytes and is_cleaned(each):
            clean_bytes += each.object.size_bytes
            dirty_start = each.range.end_offset
        elif is_young(each, policy, now_ms):
            break
        else:
            dirty_bytes += each.object.size_bytes
            is_due = is_due or born_ms(each) <= now_ms - policy.lag_ms_max
        chosen.append(each)
    is_worthwhile = is_due or dirty_bytes >= policy.dirty_ratio_min * (clean_bytes + dirty_bytes)
    if not dirty_bytes or not is_worthwhile:
        return None
    return CleanPlan(info.stream_id, info.start_offset, chosen, dirty_start, policy, history)


def is_cleaned(location: RangeLocation) -> bool:
    """Whether an object is the output of a cleaning."""
    return location.object.writer_id.endswith(CLEANED)


def is_young(location: RangeLocation, policy: CleanPolicy, now_ms: int) -> bool:
    """Whether `min.compaction.lag.ms` keeps an object from being cleaned: its newest record counts, as in Kafka."""
    return newest_ms(location) > now_ms - policy.lag_ms_min


def newest_ms(location: RangeLocation) -> int:
    """Timestamp of an object's newest record; where none has one, when it was committed."""
    timestamp_ms = location.range.max_timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else location.object.committed_ms


class KeyMap:
    """The newest offset of each key, in bounded memory."""

    def __init__(self, bytes_max: int, aborted: Sequence[AbortedRange] = ()) -> None:
        self._keys_max = max(1, bytes_max // KEY_COST_BYTES)
        self._offsets: dict[bytes, int] = {}
        self._transactions = TransactionView(aborted)
        self.end_offset = -1
        """Where the map stopped because it was full; -1: it holds everything it was given."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, batch: StreamBatch, info: BatchInfo) -> bool:
        """Note a batch's keys; False when they do not fit: cleaning then ends before this batch."""
        if info.is_transactional and self._transactions.find_aborted(info.producer_id, info.last_offset) is not None:
            return True
        fresh = {_digest(record.key): record.offset for record in info.records if record.key is not None}
        if len(self._offsets) + len(fresh) > self._keys_max and self._offsets:
            self.end_offset = batch.base_offset
            return False
        self._offsets.update(fresh)
        return True

    def is_newest(self, record: RecordInfo) -> bool:
        """Whether no newer record of the key is known; records without a key are."""
        return record.key is None or self._offsets.get(_digest(record.key), -1) <= record.offset


class Cleaner:
    """Takes batches in order from the stream's start, gives those that stay."""

    def __init__(self, plan: CleanPlan, newest: KeyMap, codec: BatchCodec, *, end_offset: int, now_ms: int) -> None:
        """Batches from `end_offset` on stay as they are."""
        self._newest = newest
        self._codec = codec
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._horizon_ms = now_ms + plan.policy.delete_retention_ms
        self._last_batches = plan.history.last_batches
        self._transactions = TransactionView(plan.history.aborted)
        self._gap_start = -1
        self._has_unread = False
        """Batches were met that stay whatever is in them: what hides a value there stays, too."""
        self.records_removed = 0

    @property
    def vacated(self) -> Sequence[AbortedRange]:
        """Aborted transactions of which only the marker is left."""
        return self._transactions.vacated

    def clean(self, batch: StreamBatch, info: BatchInfo | None) -> StreamBatch | None:
        """The batch with what stays of it; None when nothing does, and the next one takes over its offsets."""
        if info is None:
            self._has_unread = True
            kept: StreamBatch | None = batch
        elif batch.end_offset > self._end_offset:
            kept = batch
        else:
            kept = self._clean_control(batch, info) if info.is_control else self._clean_data(batch, info)
        if kept is None:
            self._gap_start = batch.base_offset if self._gap_start < 0 else self._gap_start
            return None
        if self._gap_start >= 0:
            kept = kept._replace(base_offset=self._gap_start)
            self._gap_start = -1
        return kept

    def _clean_data(self, batch: StreamBatch, info: BatchInfo) -> StreamBatch | None:
        is_aborted = info.is_transactional and self._transactions.on_data(info.producer_id, info.last_offset)
        may_forget = info.delete_horizon_ms != NO_HORIZON and info.delete_horizon_ms <= self._now_ms
        records = [] if is_aborted else [each for each in info.records if self._stays(each, may_forget=may_forget)]
        self.records_removed += len(info.records) - len(records)
        if not records:
            return self._emptied(batch, info)
        horizon_ms = info.delete_horizon_ms
        if horizon_ms == NO_HORIZON and any(record.is_tombstone for record in records):
            horizon_ms = self._horizon_ms
        if len(records) == len(info.records):
            if horizon_ms == info.delete_horizon_ms:
                return batch
            return batch._replace(payload=self._codec.rewrite(batch.payload, None, horizon_ms))
        payload = self._codec.rewrite(batch.payload, {record.offset for record in records}, horizon_ms)
        newest_ms = max(record.timestamp_ms for record in records)
        return batch._replace(payload=payload, record_count=len(records), max_timestamp_ms=newest_ms)

    def _clean_control(self, batch: StreamBatch, info: BatchInfo) -> StreamBatch | None:
        if self._has_unread or not self._transactions.on_marker(info.marker, info.producer_id, info.last_offset):
            return batch  # behind what cannot be read, too: it may be data of the transaction
        if info.marker is None:
            return self._emptied(batch, info)
        if info.delete_horizon_ms == NO_HORIZON:
            return batch._replace(payload=self._codec.rewrite(batch.payload, None, self._horizon_ms))
        return batch if info.delete_horizon_ms > self._now_ms else self._emptied(batch, info)

    def _emptied(self, batch: StreamBatch, info: BatchInfo) -> StreamBatch | None:
        """What is left of a batch that lost all it held."""
        if batch.end_offset != self._end_offset and not self._ends_sequence(info):
            return None
        if not batch.record_count:
            return batch
        payload = self._codec.rewrite(batch.payload, frozenset(), NO_HORIZON)
        return batch._replace(payload=payload, record_count=0, max_timestamp_ms=-1)

    def _ends_sequence(self, info: BatchInfo) -> bool:
        last: LastBatch | None = self._last_batches.get(info.producer_id) if info.producer_id >= 0 else None
        if last is None:
            return False
        if last.last_offset >= 0:
            return last.last_offset == info.last_offset
        return info.is_control and info.producer_epoch == last.producer_epoch

    def _stays(self, record: RecordInfo, *, may_forget: bool) -> bool:
        if not self._newest.is_newest(record):
            return False
        return not (record.is_tombstone and may_forget and not self._has_unread)


def _digest(key: bytes) -> bytes:
    return key if len(key) < KEY_BYTES_MAX else blake2b(key, digest_size=KEY_BYTES_MAX).digest()
