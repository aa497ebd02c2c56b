"""Log compaction (`cleanup.policy=compact`): of each key only the newest record stays. The pure half.

Kafka's rules: a record goes when a newer one of its key lies below the end of the part being cleaned; a tombstone (a
record without a value) goes when it has been through a cleaning before and is older than `delete.retention.ms`; what
is left keeps its offset. Batches that are part of a transaction, markers, and records without a key stay, and so do
tombstones behind such batches, which may hold the value that they delete.

Storage does not know Kafka: what a payload holds is told by a `BatchCodec`. Ranges stay contiguous: the offsets of
dropped batches are taken over by the next batch that stays, and the last batch of the part always does.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

from s3stream.model import RangeLocation, StreamBatch
from wal.interface import Buffer

CLEANED = ".cleaned"
"""Ends the writer id of an object in which each key is there once (but for what later parts hold)."""
KEY_BYTES_MAX = 16
"""Longer keys are known by a digest of this length."""
KEY_COST_BYTES = 200
"""Memory of a key in the map: the entry, the key and the offset."""
OBJECTS_MAX = 1000
"""Objects cleaned at once at most."""


class RecordInfo(NamedTuple):
    """What cleaning must know of a record."""

    offset: int
    key: bytes | None
    is_tombstone: bool
    timestamp_ms: int


class BatchCodec(Protocol):
    """Knows what is in a payload."""

    def records(self, payload: Buffer) -> Sequence[RecordInfo] | None:
        """The records of a batch; None when all of it must stay."""
        ...

    def keep(self, payload: Buffer, offsets: Container[int]) -> Buffer:
        """The batch with only the records at `offsets`, at least one; offsets, producer and compression stay."""
        ...


@dataclass(frozen=True, slots=True)
class CleanPolicy:
    """How a stream is cleaned."""

    dirty_ratio_min: float
    """Share of bytes not cleaned yet that makes a cleaning worthwhile."""
    lag_ms_min: int
    """Data committed later than this long ago is left alone."""
    lag_ms_max: int
    """Dirty data committed earlier than this long ago makes a cleaning worthwhile by itself."""
    delete_retention_ms: int
    """Age of a tombstone at which it may go."""


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What log compaction needs from the node."""

    codec: BatchCodec
    policies: Callable[[], Mapping[int, CleanPolicy]]
    """By stream, those that are compacted by key."""


class CleanPlan(NamedTuple):
    """Objects to clean: a contiguous run of a stream from its first stream object on."""

    stream_id: int
    stream_start: int
    objects: Sequence[RangeLocation]
    dirty_start: int
    """Up to here all was cleaned before."""
    policy: CleanPolicy


def plan_cleaning(
    stream_id: int,
    stream_start: int,
    objects: Sequence[RangeLocation],
    policy: CleanPolicy,
    now_ms: int,
) -> CleanPlan | None:
    """What to clean of a stream's objects, given in offset order; None while too little is dirty."""
    chosen: list[RangeLocation] = []
    clean_bytes = dirty_bytes = 0
    is_due = False
    dirty_start = objects[0].range.start_offset if objects else 0
    for each in objects[:OBJECTS_MAX]:
        last = chosen[-1] if chosen else None
        if last and (last.range.end_offset != each.range.start_offset or last.object.store != each.object.store):
            break
        if not dirty_bytes and each.object.writer_id.endswith(CLEANED):
            clean_bytes += each.object.size_bytes
            dirty_start = each.range.end_offset
        elif each.object.committed_ms > now_ms - policy.lag_ms_min:
            break
        else:
            dirty_bytes += each.object.size_bytes
            is_due = is_due or each.object.committed_ms <= now_ms - policy.lag_ms_max
        chosen.append(each)
    is_worthwhile = is_due or dirty_bytes >= policy.dirty_ratio_min * (clean_bytes + dirty_bytes)
    if not dirty_bytes or not is_worthwhile:
        return None
    return CleanPlan(stream_id, stream_start, chosen, dirty_start, policy)


class KeyMap:
    """The newest offset of each key, in bounded memory."""

    def __init__(self, bytes_max: int) -> None:
        self._keys_max = max(1, bytes_max // KEY_COST_BYTES)
        self._offsets: dict[bytes, int] = {}
        self.end_offset = -1
        """Where the map stopped because it was full; -1: it holds everything it was given."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, batch: StreamBatch, records: Iterable[RecordInfo]) -> bool:
        """Note a batch's keys; False when they do not fit: cleaning then ends before this batch."""
        fresh = {_digest(record.key): record.offset for record in records if record.key is not None}
        if len(self._offsets) + len(fresh) > self._keys_max and self._offsets:
            self.end_offset = batch.base_offset
            return False
        self._offsets.update(fresh)
        return True

    def is_newest(self, record: RecordInfo) -> bool:
        """Whether no newer record of the key is known; records without a key are."""
        return record.key is None or self._offsets.get(_digest(record.key), -1) <= record.offset


class Cleaner:
    """Takes batches in order, gives those that stay."""

    def __init__(self, plan: CleanPlan, newest: KeyMap, codec: BatchCodec, *, end_offset: int, now_ms: int) -> None:
        """Batches from `end_offset` on stay as they are, and so does the one before."""
        self._plan = plan
        self._newest = newest
        self._codec = codec
        self._end_offset = end_offset
        self._drop_tombstones_before_ms = now_ms - plan.policy.delete_retention_ms
        self._gap_start = -1
        self._has_unread = False
        """Batches were met that stay whatever is in them: a tombstone may be all that hides a value there."""
        self.records_removed = 0

    def clean(self, batch: StreamBatch) -> StreamBatch | None:
        """The batch with what stays of it; None when nothing does, and the next one takes over its offsets."""
        records = self._codec.records(batch.payload) if batch.end_offset < self._end_offset else None
        if records is None:
            self._has_unread = True
        else:
            kept = {record.offset for record in records if self._stays(record)}
            self.records_removed += len(records) - len(kept)
            if not kept:
                self._gap_start = batch.base_offset if self._gap_start < 0 else self._gap_start
                return None
            if len(kept) < len(records):
                newest_ms = max(record.timestamp_ms for record in records if record.offset in kept)
                payload = self._codec.keep(batch.payload, kept)
                batch = batch._replace(payload=payload, record_count=len(kept), max_timestamp_ms=newest_ms)
        if self._gap_start >= 0:
            batch = batch._replace(base_offset=self._gap_start)
            self._gap_start = -1
        return batch

    def _stays(self, record: RecordInfo) -> bool:
        if not self._newest.is_newest(record):
            return False
        was_cleaned = record.offset < self._plan.dirty_start and not self._has_unread
        return not (record.is_tombstone and was_cleaned and record.timestamp_ms < self._drop_tombstones_before_ms)


def _digest(key: bytes) -> bytes:
    return key if len(key) < KEY_BYTES_MAX else blake2b(key, digest_size=KEY_BYTES_MAX).digest()
