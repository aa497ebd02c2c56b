"""Idempotent producers of one partition: what was appended last, so that a retry is recognised and a gap refused.

Pure state, after KIP-98 with the rules of Kafka 4: the last five batches of a producer are remembered; a batch with the
same sequence numbers as one of them is a duplicate and gets its offsets again; any other batch must continue the
sequence. A producer nobody remembers (expired, or its records deleted) may begin anywhere, as since KIP-360.

The state is part of the partition's snapshot: `encode` gives it as of the last append, `decode` brings it back, and
what lies past a snapshot is replayed through `update`.
"""

import struct
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError

WINDOW_BATCHES = 5
PRODUCERS_MAX = 10_000
"""Producers remembered per partition: they are part of each snapshot. Kafka has no limit but their expiry."""
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
SEQUENCE_MAX = 2**31 - 1
_COUNT = struct.Struct(">I")
_PRODUCER = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiqqq")


class Producer(NamedTuple):
    """Who writes: a producer id and its epoch."""

    producer_id: int
    epoch: int


class BatchEntry(NamedTuple):
    """What is remembered of an appended batch. Offsets are half open: [base, end)."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    end_offset: int
    append_time_ms: int
    """LogAppendTime the batch got, or -1."""


@dataclass(slots=True)
class ProducerEntry:
    """One producer id's state in this partition."""

    epoch: int
    last_used_ms: int
    batches: list[BatchEntry] = field(default_factory=list)
    """Newest last, at most WINDOW_BATCHES."""


def add_sequence(sequence: int, increment: int) -> int:
    """The sequence number `increment` later: after 2^31 - 1 comes 0."""
    return (sequence + increment) & SEQUENCE_MAX


class ProducerStates:
    """The producers of one partition, by producer id."""

    __slots__ = ("_producers", "pinned")

    def __init__(self) -> None:
        self._producers: dict[int, ProducerEntry] = {}
        self.pinned: Container[int] = ()
        """Producers that are never forgotten: those with an open transaction."""

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def entries(self) -> Mapping[int, ProducerEntry]:
        """All producers, by id."""
        return self._producers

    def check(self, producer_id: int, epoch: int, first_sequence: int, record_count: int) -> BatchEntry | None:
        """Judge a batch before it is appended: None to append it, an entry when it is a duplicate of that one.

        Raises INVALID_PRODUCER_EPOCH and OUT_OF_ORDER_SEQUENCE_NUMBER.
        """
        entry = self._producers.get(producer_id)
        if entry is None:
            return None
        if epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} shows epoch {epoch}, the last one seen is {entry.epoch}",
            )
        if epoch > entry.epoch:
            if first_sequence != 0:
                raise KafkaError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {producer_id} begins epoch {epoch} with sequence {first_sequence}, expected 0",
                )
            return None
        last_sequence = add_sequence(first_sequence, record_count - 1)
        for batch in reversed(entry.batches):
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        # Without batches the epoch is known from a transaction's marker alone: it begins with 0.
        expected = add_sequence(entry.batches[-1].last_sequence, 1) if entry.batches else 0
        if first_sequence != expected:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} (epoch {epoch}) sent sequence {first_sequence}, expected {expected}",
            )
        return None

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Raise INVALID_PRODUCER_EPOCH for an epoch older than the last one seen."""
        entry = self._producers.get(producer_id)
        if entry is not None and epoch < entry.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} shows epoch {epoch}, the last one seen is {entry.epoch}",
            )

    def epoch(self, producer_id: int) -> int:
        """The last epoch seen of a producer, or -1."""
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
        """Remember an appended (or replayed) batch."""
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
        """A new producer; where there are too many, those unused for longest make room, a tenth at a time."""
        if len(self._producers) >= PRODUCERS_MAX:
            unpinned = (known for known in self._producers if known not in self.pinned)
            by_use = sorted(unpinned, key=lambda known: self._producers[known].last_used_ms)
            for unused in by_use[: PRODUCERS_MAX // 10]:
                del self._producers[unused]
        entry = self._producers[producer_id] = ProducerEntry(epoch, now_ms)
        return entry

    def expire(self, before_ms: int) -> int:
        """Forget producers not used since `before_ms`, save the pinned ones; returns how many."""
        old = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.last_used_ms < before_ms and producer_id not in self.pinned
        ]
        for producer_id in old:
            del self._producers[producer_id]
        return len(old)

    def encode(self) -> bytes:
        """The state as bytes: count, then each producer with its batches; big endian."""
        parts = [_COUNT.pack(len(self._producers))]
        for producer_id, entry in self._producers.items():
            parts.append(_PRODUCER.pack(producer_id, entry.epoch, entry.last_used_ms, len(entry.batches)))
            parts.extend(_BATCH.pack(*batch) for batch in entry.batches)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, position: int = 0) -> "ProducerStates":
        """Read the state that begins at `position`. Raises struct.error when it is cut short."""
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
