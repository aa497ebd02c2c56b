"""The tail of a partition that another node leads: the newest records, as the leader has told them lately.

A tail is a window of contiguous batches and the leader's high watermark, last stable offset, log start and aborted
transactions. Nothing of it is computed here. Invariants:

- All of it is what one leader has told under one leader epoch. Any doubt ends the tail for good: another epoch, an
  answer that does not continue the window, or the leader's silence.
- The window has no gap. Batches leave it at its front only.
- The aborted transactions of all batches in the window are known.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.broker.kafka.partitions.leader_epochs import check_leader_epoch
from anabranch.broker.kafka.partitions.transactions import AbortedEntry, PartitionTransactions
from anabranch.protocol.batch import check_crc, iterate_batches
from anabranch.protocol.errors import KafkaError, known_code
from anabranch.protocol.messages.internal.follow_tail import PartitionTail
from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES, StreamBatch

SILENT_S: Final = 3.0
"""Time after the last question that the leader has answered for which a tail is served: as long as a reading."""

TailListener = Callable[["TailPartition"], None]
"""Called with a tail that has grown, or has changed in another way."""


@dataclass(frozen=True, slots=True)
class LedPartition:
    """A partition with its leader, as known when a node begins to follow."""

    topic_id: bytes
    index: int
    stream_id: int
    label: str
    leader: int
    leader_epoch: int


class _Doubt(Exception):
    """An answer of the leader that ends the tail; the text is the reason."""


class TailPartition:
    """A partition as its leader tells it, from the first offset of the window on. It ends once, and stays so."""

    __slots__ = (
        "_batches",
        "_ends",
        "_listeners",
        "appended_bytes",
        "asked_s",
        "end_reason",
        "heard",
        "heard_s",
        "high_watermark",
        "lacking_s",
        "last_stable_offset",
        "led",
        "next_offset",
        "read_start",
        "told_start",
        "transactions",
        "window_offset",
    )

    def __init__(self, led: LedPartition, offset: int, now_s: float) -> None:
        """Begin with nothing: the leader is asked for what follows `offset`."""
        self.led = led
        self.window_offset = self.next_offset = offset
        """First offset of the window, and its end."""
        self.high_watermark = self.last_stable_offset = self.told_start = -1
        self.read_start = -1
        """Start that the catalog had at a look. The leader tells an earlier one if it lost the answer to a trim."""
        self.transactions = PartitionTransactions()
        """The aborted ones only."""
        self.asked_s = now_s
        """Time at which a reader last asked for it."""
        self.heard_s = float("-inf")
        """Time of the last question that the leader has answered."""
        self.lacking_s: float | None = None
        """Time of the first of the last questions whose answers have not had all records; None: the last one had."""
        self.heard = asyncio.Event()
        """Set when the leader has answered for the first time, and at the end."""
        self.end_reason = ""
        """Reason why it is not served any more."""
        self.appended_bytes = 0
        """Bytes added so far; waiters compare it with the value that they saw before."""
        self._batches: list[StreamBatch] = []
        self._ends: list[int] = []
        self._listeners: dict[TailListener, None] = {}

    def __repr__(self) -> str:
        return self.led.label

    @property
    def stream_id(self) -> int:
        """Id of the stream."""
        return self.led.stream_id

    @property
    def leader_epoch(self) -> int:
        """Epoch under which the leader has told it."""
        return self.led.leader_epoch

    @property
    def log_start_offset(self) -> int:
        """First offset that can be read."""
        return max(self.told_start, self.read_start)

    @property
    def has_failed(self) -> bool:
        """True if it has ended."""
        return bool(self.end_reason)

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Compare the client's epoch (-1: none) with the leader's. Raises FENCED_ or UNKNOWN_LEADER_EPOCH."""
        check_leader_epoch(current_leader_epoch, self.leader_epoch)

    def is_vacated(self, _entry: AbortedEntry) -> bool:
        """Return True: compaction may have removed the data, here nobody knows."""
        return True

    @property
    def lag(self) -> int:
        """Offsets that the leader had in its last answer, and the window lacks."""
        return max(self.high_watermark - self.next_offset, 0)

    def is_served(self, now_s: float) -> bool:
        """Return whether readers may get it: it has not ended, and the leader has answered lately."""
        return not self.end_reason and now_s - self.heard_s <= SILENT_S

    def is_used(self, now_s: float, unused_s: float) -> bool:
        """Return whether a reader waits for it, or has asked within `unused_s`."""
        return self.has_listeners or now_s - self.asked_s <= unused_s

    def holds(self, offset: int) -> bool:
        """Return whether what follows the offset, now or later, is in the window."""
        return offset >= self.window_offset

    def read(self, offset: int, bytes_max: int, *, end_offset: int) -> Sequence[StreamBatch]:
        """Return batches from the one that holds `offset`, in the window, up to `end_offset` and `bytes_max`.

        At least one, if one ends at or before `end_offset`.
        """
        first = last = bisect_right(self._ends, offset)
        size_bytes = 0
        for batch in self._batches[first:]:
            size_bytes += len(batch.payload)
            if batch.end_offset > end_offset or (size_bytes > bytes_max and last > first):
                break
            last += 1
        return self._batches[first:last]

    # what the leader tells

    def take(self, told: PartitionTail, asked_s: float) -> int | None:
        """Take the leader's answer to a question of `asked_s`; return the number of batches added.

        None if the answer ends the tail: it is an error, or does not continue what is known.
        """
        try:
            added = self._check(told)
        except _Doubt as doubt:
            self.end(str(doubt))
            return None
        if added and not self.appended_bytes:
            self.window_offset = added[0].base_offset  # the question may have been for an offset inside a batch
        changed = bool(added) or not self.heard.is_set() or told.log_start_offset > self.told_start
        self._batches += added
        self._ends += [batch.end_offset for batch in added]
        if added:
            self.next_offset = added[-1].end_offset
        self.high_watermark, self.last_stable_offset = told.high_watermark, told.last_stable_offset
        self.told_start = told.log_start_offset
        self.transactions.trim(self.window_offset)
        if told.aborted:
            self.transactions.add_aborted(
                AbortedEntry(each.producer_id, each.first_offset, each.last_offset, each.last_stable_offset)
                for each in told.aborted
            )
        self.appended_bytes += sum(len(batch.payload) for batch in added)
        self.heard_s = asked_s
        if not self.lag:
            self.lacking_s = None
        elif self.lacking_s is None:
            self.lacking_s = asked_s
        self.heard.set()
        if changed:
            self._notify()
        return len(added)

    def _check(self, told: PartitionTail) -> list[StreamBatch]:
        """Return the batches of an answer. Raises _Doubt."""
        if told.error_code:
            raise _Doubt(f"the leader answers {known_code(told.error_code).name}")
        before = (self.told_start, self.last_stable_offset, self.high_watermark)
        now = (told.log_start_offset, told.last_stable_offset, told.high_watermark)
        if any(new < old for new, old in zip(now, before, strict=True)):
            raise _Doubt(f"start, last stable offset and high watermark went back from {before} to {now}")
        batches: list[StreamBatch] = []
        next_offset = self.next_offset
        try:
            for header, payload in iterate_batches(told.records):
                check_crc(payload, header)
                is_first = not batches and not self.appended_bytes
                if header.base_offset != next_offset and not (is_first and header.base_offset < next_offset):
                    raise _Doubt(f"a batch begins at {header.base_offset} and the window ends at {next_offset}")
                next_offset = header.next_offset
                batches.append(
                    StreamBatch(
                        self.led.stream_id,
                        header.base_offset,
                        next_offset,
                        header.record_count,
                        header.max_timestamp,
                        payload,
                    )
                )
        except KafkaError as error:
            raise _Doubt(f"records are damaged on the way: {error}") from error
        if next_offset > told.high_watermark:
            raise _Doubt(f"a batch ends at {next_offset}, past the high watermark {told.high_watermark}")
        return batches

    def evict_first(self) -> int:
        """Release the first batch of the window, if there is one; return its bytes, overhead included."""
        if not self._batches:
            return 0
        batch = self._batches.pop(0)
        del self._ends[0]
        self.window_offset = batch.end_offset
        return len(batch.payload) + BATCH_OVERHEAD_BYTES

    def release(self) -> tuple[int, int]:
        """Release all batches of the window; return their number, and their bytes, overhead included."""
        batches, self._batches, self._ends = self._batches, [], []
        return len(batches), sum(len(batch.payload) + BATCH_OVERHEAD_BYTES for batch in batches)

    def end(self, reason: str) -> None:
        """Serve nothing of it from now on. Readers that wait look again."""
        if self.end_reason:
            return
        self.end_reason = reason
        self.heard.set()
        self._notify()

    # waiting readers

    @property
    def has_listeners(self) -> bool:
        """True while a reader waits for it to change."""
        return bool(self._listeners)

    def add_listener(self, listener: TailListener) -> None:
        """Call `listener` when the tail grows or changes in another way, until it is removed."""
        self._listeners[listener] = None

    def remove_listener(self, listener: TailListener) -> None:
        """Stop calling `listener`, if it is registered."""
        self._listeners.pop(listener, None)

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener(self)
