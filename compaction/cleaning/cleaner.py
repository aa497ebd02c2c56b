"""Decides which records and batches log compaction keeps: of each key only the newest record. Pure.

The rules are Kafka's:

- A record is removed if a newer one of its key is before the end of the cleaned part, or if its transaction was
  aborted. Records without a key are kept. Kept records keep their offsets.
- A tombstone (a record without a value) is removed `delete.retention.ms` after the first cleaning that met it, which
  writes that time into the batch as its delete horizon (KIP-534). So is a marker of an empty transaction.
- A batch that loses all its records is removed. The end of an active producer's sequence and the last batch of the
  cleaned part are kept, empty.

Ranges stay contiguous: the next batch takes over the offsets of removed ones. A `BatchCodec` decodes the payloads, as
storage does not depend on Kafka. Batches that it cannot decode are kept. So are later tombstones and markers, because
they may apply to records in there.
"""

from collections.abc import Sequence
from hashlib import blake2b

from anabranch.compaction.cleaning.plan import CleanPlan
from anabranch.compaction.cleaning.transactions import TransactionView
from anabranch.compaction.interface import NO_HORIZON, AbortedRange, BatchCodec, BatchInfo, LastBatch, RecordInfo
from anabranch.s3stream.model import StreamBatch

KEY_BYTES_MAX = 16
"""Longer keys are replaced by a digest of this length."""
KEY_COST_BYTES = 200
"""Memory of an entry in the map with key and offset."""


class KeyMap:
    """Newest offset of each key, in limited memory."""

    def __init__(self, bytes_max: int, aborted: Sequence[AbortedRange] = ()) -> None:
        self._keys_max = max(1, bytes_max // KEY_COST_BYTES)
        self._offsets: dict[bytes, int] = {}
        self._transactions = TransactionView(aborted)
        self.end_offset = -1
        """Offset at which the map was full; -1: all keys fit."""

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, batch: StreamBatch, info: BatchInfo) -> bool:
        """Add a batch's keys. Returns False if they do not fit; the cleaning then ends before this batch."""
        if info.is_transactional and self._transactions.find_aborted(info.producer_id, info.last_offset) is not None:
            return True
        fresh = {_digest(record.key): record.offset for record in info.records if record.key is not None}
        if len(self._offsets) + len(fresh) > self._keys_max and self._offsets:
            self.end_offset = batch.base_offset
            return False
        self._offsets.update(fresh)
        return True

    def is_newest(self, record: RecordInfo) -> bool:
        """Return whether no newer record of the key is known. True for records without a key."""
        return record.key is None or self._offsets.get(_digest(record.key), -1) <= record.offset


class Cleaner:
    """Takes batches in order from the stream's start, and returns what is kept of them."""

    def __init__(self, plan: CleanPlan, newest: KeyMap, codec: BatchCodec, *, end_offset: int, now_ms: int) -> None:
        """Create a cleaner. It does not change batches from `end_offset` on."""
        self._newest = newest
        self._codec = codec
        self._end_offset = end_offset
        self._now_ms = now_ms
        self._horizon_ms = now_ms + plan.policy.delete_retention_ms
        self._last_batches = plan.history.last_batches
        self._transactions = TransactionView(plan.history.aborted)
        self._gap_start = -1
        self._has_unread = False
        """True after a batch that could not be decoded. Later tombstones and markers are kept then."""
        self.records_removed = 0

    @property
    def vacated(self) -> Sequence[AbortedRange]:
        """Aborted transactions of which only the marker is left."""
        return self._transactions.vacated

    def clean(self, batch: StreamBatch, info: BatchInfo | None) -> StreamBatch | None:
        """Return what is kept of the batch, or None if nothing is: the next batch takes over its offsets."""
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
            return batch  # also after an undecodable batch, which may hold data of the transaction
        if info.marker is None:
            return self._emptied(batch, info)
        if info.delete_horizon_ms == NO_HORIZON:
            return batch._replace(payload=self._codec.rewrite(batch.payload, None, self._horizon_ms))
        return batch if info.delete_horizon_ms > self._now_ms else self._emptied(batch, info)

    def _emptied(self, batch: StreamBatch, info: BatchInfo) -> StreamBatch | None:
        """Return what is kept of a batch that lost all its records."""
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
