"""Open and aborted transactions of one partition, and the last stable offset that follows from them.

Pure state, after KIP-98. A transaction opens in a partition with the first batch that its producer writes there, and
ends with the marker that its coordinator writes. Invariants:

- The last stable offset never passes the first offset of a transaction whose marker is not durable. A READ_COMMITTED
  reader therefore sees only what can no longer change, and the offset never decreases, not even in a crash.
- An aborted transaction is kept while any of its records may be read: readers drop the records by it. Snapshots
  leave out those whose records compaction has removed.
- While another node is asked whether a producer may open a transaction here, the producer's marker may be appended. The
  answer then concerns a transaction that has ended: it must not open one that would never end (KIP-890).

The state is part of the partition's snapshot; batches past the snapshot are replayed.
"""

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.protocol.errors import ErrorCode, KafkaError

ABORTED_MAX = 100_000
"""Aborted transactions kept per partition. At this number the partition refuses new transactions until its log start
passes the oldest one: without its entry, its records would be read as committed."""
_COUNTS = struct.Struct(">III")
_OPEN = struct.Struct(">qqq")
_ABORTED = struct.Struct(">qqqq")
_COORDINATOR = struct.Struct(">qi")


class OpenTransaction(NamedTuple):
    """A transaction whose marker is not appended yet."""

    first_offset: int
    began_ms: int
    """Time of the append of its first batch."""


class AbortedEntry(NamedTuple):
    """An aborted transaction as readers need it. Both offsets are inclusive; the last one is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    """Last stable offset after the marker: no later entry begins before it."""


@dataclass(slots=True, eq=False)
class Verification:
    """A question to the coordinator whether a producer may open a transaction in the partition."""

    producer: Producer


class _EndedTransaction(NamedTuple):
    """A transaction whose marker is appended and not durable yet."""

    first_offset: int
    end_offset: int


@dataclass(slots=True, init=False)
class PartitionTransactions:
    """Open and aborted transactions of one partition."""

    _open: dict[int, OpenTransaction]
    """By producer id, in the order of first offsets: each is added with the newest offset."""
    _ended: deque[_EndedTransaction]
    _aborted: list[AbortedEntry]
    """In the order of last offsets."""
    _coordinator_epochs: dict[int, int]
    """Epoch of the coordinator that wrote a producer's last marker."""
    _vacated: dict[AbortedEntry, int]
    """Aborted transactions whose data compaction has removed, with the time. Only caches may still hold the data."""
    _verifications: dict[int, set[Verification]]
    """Verifications by producer id that no marker has ended. Each belongs to a request in progress."""

    def __init__(self) -> None:
        self._open = {}
        self._ended = deque()
        self._aborted = []
        self._coordinator_epochs = {}
        self._vacated = {}
        self._verifications = {}

    @property
    def open(self) -> Mapping[int, OpenTransaction]:
        """Transactions without a marker, by producer id."""
        return self._open

    @property
    def aborted(self) -> Sequence[AbortedEntry]:
        """Aborted transactions, in the order of their markers."""
        return self._aborted

    @property
    def aborted_count(self) -> int:
        """Number of aborted transactions."""
        return len(self._aborted)

    @property
    def coordinator_epoch_count(self) -> int:
        """Number of producers whose coordinator epoch is known."""
        return len(self._coordinator_epochs)

    def coordinator_epoch(self, producer_id: int) -> int:
        """Return the epoch of the coordinator that wrote the producer's last marker, or -1."""
        return self._coordinator_epochs.get(producer_id, -1)

    # reading

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the end of the decided transactions, never past the high watermark."""
        self.forget_durable_markers(high_watermark)
        end_offset = high_watermark
        if self._open:
            end_offset = min(end_offset, next(iter(self._open.values())).first_offset)
        for transaction in self._ended:
            end_offset = min(end_offset, transaction.first_offset)
        return end_offset

    def aborted_between(self, start_offset: int, end_offset: int) -> Iterator[AbortedEntry]:
        """Yield the aborted transactions with an offset in [start, end), in the order of their markers."""
        at = bisect_left(self._aborted, start_offset, key=lambda entry: entry.last_offset)
        for entry in self._aborted[at:]:
            if entry.first_offset < end_offset:
                yield entry
            if entry.last_stable_offset >= end_offset:
                return

    def is_vacated(self, entry: AbortedEntry) -> bool:
        """Return whether compaction has removed the data.

        A reader must then receive the entry only together with such data from a cache. The marker may be removed too,
        and without it the reader would drop what the producer wrote later.
        """
        return entry in self._vacated

    # checks

    def includes(self, producer_id: int, offset: int) -> bool:
        """Return whether the offset, of a batch of the producer, belongs to its open transaction."""
        transaction = self._open.get(producer_id)
        return transaction is not None and transaction.first_offset <= offset

    def check_data(self, producer_id: int, *, transactional: bool) -> bool:
        """Return True if the batch continues an open transaction; False if it opens one or is not transactional.

        Raises INVALID_TXN_STATE for a non-transactional batch within a transaction, POLICY_VIOLATION at ABORTED_MAX.
        """
        if producer_id in self._open:
            if not transactional:
                raise KafkaError(
                    ErrorCode.INVALID_TXN_STATE, f"Expected transactional write from producer with id {producer_id}"
                )
            return True
        if transactional and len(self._aborted) >= ABORTED_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"the partition has {len(self._aborted)} aborted transactions, the maximum is {ABORTED_MAX}",
            )
        return False

    def check_marker(self, producer_id: int, coordinator_epoch: int) -> None:
        """Raise TRANSACTION_COORDINATOR_FENCED for a marker of a coordinator that has been replaced."""
        newest = self.coordinator_epoch(producer_id)
        if coordinator_epoch < newest:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"marker for producer {producer_id} with coordinator epoch {coordinator_epoch}, last seen is {newest}",
            )

    # verifications

    def begin_verification(self, producer: Producer) -> Verification:
        """Note that the producer's coordinator is about to be asked. The caller must call `end_verification`."""
        verification = Verification(producer)
        self._verifications.setdefault(producer.producer_id, set()).add(verification)
        return verification

    def is_valid(self, verification: Verification) -> bool:
        """Return whether it began here, and no marker of its producer has been appended since."""
        return verification in self._verifications.get(verification.producer.producer_id, ())

    def end_verification(self, verification: Verification) -> None:
        """Forget a verification; a marker may have ended it before."""
        producer_id = verification.producer.producer_id
        others = self._verifications.get(producer_id, set())
        others.discard(verification)
        if not others:
            self._verifications.pop(producer_id, None)

    # changes

    def write(self, producer_id: int, base_offset: int, now_ms: int) -> None:
        """Note an appended (or replayed) transactional batch: it opens a transaction if none is open."""
        if producer_id not in self._open:
            self._open[producer_id] = OpenTransaction(base_offset, now_ms)

    def end(self, producer_id: int, marker_offset: int, coordinator_epoch: int, *, aborted: bool) -> None:
        """Note an appended (or replayed) marker."""
        self._coordinator_epochs[producer_id] = coordinator_epoch
        self._verifications.pop(producer_id, None)
        transaction = self._open.pop(producer_id, None)
        if transaction is None:
            return
        end_offset = marker_offset + 1
        self._ended.append(_EndedTransaction(transaction.first_offset, end_offset))
        if aborted:
            stable = min((other.first_offset for other in self._open.values()), default=end_offset)
            self._aborted.append(AbortedEntry(producer_id, transaction.first_offset, marker_offset, stable))

    def forget_durable_markers(self, high_watermark: int) -> None:
        """Remove ended transactions whose marker is durable at this high watermark."""
        ended = self._ended
        while ended and ended[0].end_offset <= high_watermark:
            ended.popleft()

    def trim(self, log_start_offset: int) -> None:
        """Remove aborted transactions that end before the log's start."""
        at = bisect_left(self._aborted, log_start_offset, key=lambda entry: entry.last_offset)
        for entry in self._aborted[:at]:
            self._vacated.pop(entry, None)
        del self._aborted[:at]

    def vacate(self, vacated: Iterable[tuple[int, int, int]], now_ms: int) -> None:
        """Note transactions (producer, first offset, marker's offset) of which only the markers are left in objects."""
        wanted = set(vacated)
        for entry in self._aborted:
            if entry[:3] in wanted:
                self._vacated.setdefault(entry, now_ms)

    def add_aborted(self, entries: Iterable[AbortedEntry]) -> None:
        """Add aborted transactions that the partition's leader knows."""
        self._aborted = sorted({*self._aborted, *entries}, key=lambda entry: entry.last_offset)

    def forget_vacated(self, before_ms: int, is_cached: Callable[[int], bool]) -> None:
        """Remove those vacated by `before_ms` of which no cache holds the marker, and so nothing at all."""
        gone = {
            entry for entry, since in self._vacated.items() if since <= before_ms and not is_cached(entry.last_offset)
        }
        self._aborted = [entry for entry in self._aborted if entry not in gone]
        self._vacated = {entry: since for entry, since in self._vacated.items() if entry not in gone}

    def keep_producers(self, producer_ids: Mapping[int, object]) -> None:
        """Remove coordinator epochs of producers that are not in `producer_ids`. Open transactions stay."""
        epochs = self._coordinator_epochs
        self._coordinator_epochs = {key: epoch for key, epoch in epochs.items() if key in producer_ids}

    # snapshot

    def encode(self) -> bytes:
        """Encode the state: three counts, then open and aborted transactions and coordinator epochs; big endian."""
        aborted = [entry for entry in self._aborted if entry not in self._vacated]
        parts = [_COUNTS.pack(len(self._open), len(aborted), len(self._coordinator_epochs))]
        parts.extend(_OPEN.pack(producer_id, *entry) for producer_id, entry in self._open.items())
        parts.extend(_ABORTED.pack(*entry) for entry in aborted)
        parts.extend(_COORDINATOR.pack(*item) for item in self._coordinator_epochs.items())
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, position: int = 0) -> tuple["PartitionTransactions", int]:
        """Decode the state at `position`; returns it and its end position. Raises struct.error."""
        state = cls()
        open_count, aborted_count, epoch_count = _COUNTS.unpack_from(data, position)
        position += _COUNTS.size
        for _ in range(open_count):
            producer_id, first_offset, began_ms = _OPEN.unpack_from(data, position)
            state._open[producer_id] = OpenTransaction(first_offset, began_ms)
            position += _OPEN.size
        for _ in range(aborted_count):
            state._aborted.append(AbortedEntry(*_ABORTED.unpack_from(data, position)))
            position += _ABORTED.size
        for _ in range(epoch_count):
            producer_id, epoch = _COORDINATOR.unpack_from(data, position)
            state._coordinator_epochs[producer_id] = epoch
            position += _COORDINATOR.size
        return state, position
