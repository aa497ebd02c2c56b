"""The tail of a partition: what it serves of what its leader tells, and what ends it."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from anabranch.broker.kafka.partitions.transactions import AbortedEntry
from anabranch.broker.kafka.topics.tail_partition import SILENT_S, LedPartition, TailPartition
from anabranch.protocol.batch import patch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.internal.follow_tail import AbortedRange, PartitionTail
from tests.support.raw_client import batch_of

LED = LedPartition(bytes(16), 0, 7, "t-0", 2, 5)
ALL = 1 << 20


def batch(base_offset: int, records: int = 1) -> bytes:
    data = batch_of(*[b"value"] * records)
    patch(data, base_offset, LED.leader_epoch)
    return bytes(data)


def told(*batches: bytes, end: int, **fields: Any) -> PartitionTail:
    """An answer of the leader: batches, and its high watermark."""
    values = {"high_watermark": end, "last_stable_offset": end, "log_start_offset": 0, **fields}
    return PartitionTail(records=b"".join(batches), **values)


def tail_of(*batches: bytes, offset: int = 10, end: int = 100, **fields: Any) -> TailPartition:
    """A tail from `offset` on that has been told once."""
    tail = TailPartition(LED, offset, 0.0)
    assert tail.take(told(*batches, end=end, **fields), 0.0) == len(batches)
    return tail


def aborted(*entry: int) -> AbortedRange:
    return AbortedRange(**AbortedEntry(*entry)._asdict())


def offsets(tail: TailPartition, offset: int, bytes_max: int = ALL, end_offset: int | None = None) -> Sequence[int]:
    end_offset = tail.high_watermark if end_offset is None else end_offset
    return [each.base_offset for each in tail.read(offset, bytes_max, end_offset=end_offset)]


async def test_it_serves_what_it_was_told_from_the_batch_with_the_offset_on() -> None:
    tail = tail_of(batch(10, 2), batch(12), end=20, last_stable_offset=13, log_start_offset=3)
    assert (tail.high_watermark, tail.last_stable_offset, tail.log_start_offset) == (20, 13, 3)
    assert tail.take(told(batch(13), end=20, log_start_offset=3), 1.0) == 1
    assert (offsets(tail, 10), offsets(tail, 11), offsets(tail, 13), offsets(tail, 14)) == (
        [10, 12, 13],
        [10, 12, 13],
        [13],
        [],
    )
    assert (tail.leader_epoch, tail.next_offset, str(tail)) == (5, 14, "t-0")
    assert [tail.holds(offset) for offset in (9, 10, 14, 99)] == [False, True, True, True]


async def test_it_serves_no_batch_that_ends_past_the_end_asked_for_and_one_at_least_of_any_size() -> None:
    tail = tail_of(batch(10, 2), batch(12), batch(13))
    assert offsets(tail, 10, end_offset=13) == [10, 12]
    assert offsets(tail, 10, end_offset=11) == []
    assert offsets(tail, 10, bytes_max=1) == [10]
    assert offsets(tail, 10, bytes_max=len(batch(10, 2)) + len(batch(12))) == [10, 12]


async def test_the_first_batch_may_begin_before_the_offset_asked_for_and_no_other_may() -> None:
    tail = tail_of(batch(8, 4), offset=10)
    assert (tail.window_offset, tail.next_offset, offsets(tail, 10)) == (8, 12, [8])
    assert tail.take(told(batch(11), end=100), 0.0) is None
    assert tail.end_reason == "a batch begins at 11 and the window ends at 12"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (told(batch(12), end=100), "a batch begins at 12 and the window ends at 11"),
        (told(batch(11), batch(13), end=100), "a batch begins at 13 and the window ends at 12"),
        (told(batch(11), end=11), "a batch ends at 12, past the high watermark 11"),
        (told(end=10), "start, last stable offset and high watermark went back"),
        (told(end=100, last_stable_offset=9), "start, last stable offset and high watermark went back"),
        (told(batch(11)[:-1], end=100), "records are damaged on the way"),
        (told(batch(11)[:-1] + b"?", end=100), "records are damaged on the way: .* expected CRC32C"),
        (PartitionTail(error_code=ErrorCode.FENCED_LEADER_EPOCH), "the leader answers FENCED_LEADER_EPOCH"),
    ],
)
async def test_an_answer_that_does_not_continue_what_is_known_ends_it(answer: PartitionTail, reason: str) -> None:
    tail = tail_of(batch(10), end=11)
    assert tail.is_served(0.0)
    assert tail.take(answer, 1.0) is None
    assert re.search(reason, tail.end_reason)
    assert not tail.is_served(1.0)
    assert tail.has_failed


async def test_it_is_served_as_long_as_the_leader_has_answered_lately() -> None:
    tail = TailPartition(LED, 10, 0.0)
    assert not tail.is_served(0.0), "it was told nothing yet"
    tail.take(told(end=10), 5.0)
    assert tail.is_served(5.0 + SILENT_S)
    assert not tail.is_served(5.1 + SILENT_S)
    tail.take(told(end=10), 6.0)
    assert tail.is_served(6.0 + SILENT_S)


async def test_it_lacks_what_the_last_answers_had_no_room_for() -> None:
    tail = TailPartition(LED, 10, 0.0)
    assert (tail.lag, tail.lacking_s) == (0, None)
    for asked_s, answer, lag, lacking_s in (
        (1.0, told(batch(10), end=12), 1, 1.0),
        (2.0, told(batch(11), end=15), 3, 1.0),
        (3.0, told(batch(12), batch(13), batch(14), end=15), 0, None),
        (4.0, told(end=17), 2, 4.0),
    ):
        tail.take(answer, asked_s)
        assert (tail.lag, tail.lacking_s) == (lag, lacking_s)


async def test_clients_of_other_leader_epochs_are_refused() -> None:
    tail = tail_of()
    tail.check_leader_epoch(-1)
    tail.check_leader_epoch(5)
    for epoch, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(KafkaError) as raised:
            tail.check_leader_epoch(epoch)
        assert raised.value.code == code


async def test_evicted_batches_are_no_longer_held_nor_their_aborted_transactions() -> None:
    entries = [(1, 10, 11, 12), (2, 12, 13, 14)]
    tail = tail_of(batch(10), batch(11), batch(12), batch(13), aborted=[aborted(*each) for each in entries])
    assert list(tail.transactions.aborted_between(10, 14)) == [AbortedEntry(*each) for each in entries]
    freed = tail.evict_first() + tail.evict_first()
    assert tail_of(batch(10), batch(11)).release() == (2, freed)
    assert (tail.holds(11), tail.holds(12), offsets(tail, 12)) == (False, True, [12, 13])
    tail.take(told(end=100, aborted=[aborted(*entries[1])]), 0.0)
    assert list(tail.transactions.aborted_between(10, 14)) == [AbortedEntry(*entries[1])]
    tail.evict_first()
    tail.evict_first()
    assert (tail.evict_first(), tail.window_offset, tail.next_offset) == (0, 14, 14)
    assert tail.take(told(batch(13), end=100), 0.0) is None, "an empty window ends somewhere, too"
    assert tail.end_reason


async def test_a_reader_that_waits_is_told_of_growth_and_of_the_end() -> None:
    tail = TailPartition(LED, 10, 0.0)
    seen: list[int] = []

    def note(each: TailPartition) -> None:
        seen.append(each.appended_bytes)

    tail.add_listener(note)
    assert tail.is_used(100.0, 10.0), "it waits"
    tail.take(told(end=10), 0.0)
    tail.take(told(end=10), 0.0)
    assert seen == [0], "the second answer brings nothing"
    tail.take(told(batch(10), end=11), 0.0)
    tail.end("no reason")
    tail.end("another one")
    assert seen == [0, len(batch(10)), len(batch(10))]
    assert tail.end_reason == "no reason"
    tail.remove_listener(note)
    assert (tail.is_used(10.0, 10.0), tail.is_used(10.1, 10.0)) == (True, False)
