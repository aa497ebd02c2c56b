"""Idempotent producers of one partition: the last batches of each, to recognise a retry and refuse a gap.

Pure state, after KIP-98 with the rules of Kafka 4. The last five batches of a producer are kept. A batch with the
same sequence numbers as one of them is a duplicate and is answered with the same offsets; any other batch must continue
the sequence. An unknown producer (expired, or its records deleted) may begin with any sequence number (KIP-360).

The state is part of the partition's snapshot: `encode` writes it as of the last append, `decode` restores it, and
batches past the snapshot are replayed through `update`.
"""

import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.protocol.errors import ErrorCode, KafkaError

WINDOW_BATCHES = 5
PRODUCERS_MAX = 10_000
"""Producers kept per partition, since they are part of each snapshot. Kafka limits them by expiry only."""
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiqqq")


class Producer(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class BatchEntry(NamedTuple):
    """An appended batch, as kept for deduplication. Offsets are half open: [base, end)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int
    append_time_ms: int
    """LogAppendTime of the batch, or -1."""


@dataclass(slots=True)
class ProducerEntry:
    """One producer id's state in this partition."""

    epoch: int
    last_used_ms: int
    batches: list[BatchEntry] = field(default_factory=list)
    """Newest last, at most WINDOW_BATCHES."""


def add_sequence(sequence: int, increment: int) -> int:
    """Return the sequence number `increment` later. 2^31 - 1 is followed by 0."""
    return (sequence + increment) & SEQUENCE_MAX


class ProducerStates:
    """The producers of one partition, by producer id."""

    __slots__ = ("_producers", "pinned")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self.pinned: Container[int] = ()
        """Producers that are never removed: those with an open transaction."""

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """All producers, by id."""
        return self._producers

    def check(self, producer_id: int, epoch: int, first_sequence: int, record_count: int) -> BatchEntry | None:
        """Check a batch before it is appended: None to append it, or the entry of which it is a duplicate.

        Raises INVALID_PRODUCER_EPOCH and OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return None
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} sent epoch {epoch}, the last one seen is {entry.epoch}",
            )
        if epoch > entry.epoch:
            if first_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} began epoch {epoch} with sequence {first_sequence}, expected 0",
                )
            return None
        last_sequence = add_sequence(first_sequence, record_count - 1)
        for batch in reversed(entry.batches):
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        # Without batches the epoch is known from a transaction's marker only: its sequence begins with 0.
        expected = add_sequence(entry.batches[-1].last_sequence, 1) if entry.batches else 0
        if first_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} (epoch {epoch}) sent sequence {first_sequence}, expected {expected}",
            )
        return None

    def check_first(self, producer_id: int, first_sequence: int) -> None:
        """Raise OUT_OF_ORDER_SEQUENCE_NUMBER for a producer that is not known and does not begin with sequence 0."""
        if first_sequence and producer_id not in self._producers:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} sent sequence {first_sequence}, expected 0",
            )

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH for an epoch older than the last one seen."""
        entry = self._producers.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} sent epoch {epoch}, the last one seen is {entry.epoch}",
            )

    def epoch(self, producer_id: int) -> int:
        """Return the last epoch seen of a producer, or -1."""
        entry = self._producers.get(producer_id)
        return -1 if entry is None else entry.epoch

    def note_epoch(self, producer_id: int, epoch: int, now_ms: int) -> None:
        """Note the epoch of a batch without sequence numbers: a marker, or offsets of a transaction."""
        entry = self._producers.get(producer_id)
        if entry is None:
            self._add(producer_id, epoch, now_ms)
            return
        entry.last_used_ms = now_ms
        if epoch != entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()

    def update(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        record_count: int,
        *,
        base_offset: int,
        end_offset: int,
        append_time_ms: int,
        now_ms: int,
    ) -> None:
        """Note an appended (or replayed) batch."""
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._add(producer_id, epoch, now_ms)
        elif epoch != entry.epoch:
            entry.epoch = epoch
            entry.batches.clear()
        entry.last_used_ms = now_ms
        last_sequence = add_sequence(first_sequence, record_count - 1)
        entry.batches.append(BatchEntry(first_sequence, last_sequence, base_offset, end_offset, append_time_ms))
        if len(entry.batches) > WINDOW_BATCHES:
            del entry.batches[0]

    def _add(self, producer_id: int, epoch: int, now_ms: int) -> ProducerEntry:
        """Add a producer. At PRODUCERS_MAX, the tenth of the producers that were unused for longest is removed."""
        if len(self._producers) >= PRODUCERS_MAX:
            unpinned = (known for known in self._producers if known not in self.pinned)
            by_use = sorted(unpinned, key=lambda known: self._producers[known].last_used_ms)
            for unused in by_use[: PRODUCERS_MAX // 10]:
                del self._producers[unused]
        entry = self._producers[producer_id] = ProducerEntry(epoch, now_ms)
        return entry

    def expire(self, before_ms: int) -> int:
        """Remove producers not used since `before_ms`, except pinned ones; returns their number."""
        old = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.last_used_ms < before_ms and producer_id not in self.pinned
        ]
        for producer_id in old:
            del self._producers[producer_id]
        return len(old)

    def encode(self) -> bytes:
        """Encode the state: count, then each producer with its batches; big endian."""
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, entry in self._producers.items():
            parts.append(_PRODUCER.pack(producer_id, entry.epoch, entry.last_used_ms, len(entry.batches)))
            parts.extend(_BATCH.pack(*batch) for batch in entry.batches)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, position: int = 0) -> "ProducerStates":
        """Decode the state at `position`. Raises struct.error when it is cut short."""
        states = cls()
        (count,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
        for _ in range(count):
            producer_id, epoch, last_used_ms, batch_count = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            entry = states._producers[producer_id] = ProducerEntry(epoch, last_used_ms)
            for _ in range(batch_count):
                entry.batches.append(BatchEntry(*_BATCH.unpack_from(data, position)))
                position += _BATCH.size
        return states
