"""A share partition's rules, each in a small history."""

from collections.abc import Sequence
from random import Random

import pytest

from anabranch.broker.kafka.share.interface import DeliveryState, StateBatch
from anabranch.broker.kafka.share.partition.machine import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
    DeadLetter,
    OffsetRange,
    ShareLimits,
    SharePartition,
)
from anabranch.broker.kafka.share.state.batches import combine
from anabranch.protocol.errors import ErrorCode, KafkaError

LIMITS = ShareLimits(records_max=100, deliveries_max=5, lock_ms=30)


def new(start_offset: int = 0, batches: Sequence[StateBatch] = (), limits: ShareLimits = LIMITS) -> SharePartition:
    return SharePartition(start_offset, batches, limits)


def tens(count: int, first: int = 0) -> list[OffsetRange]:
    """Batches of the log, of ten records each."""
    return [OffsetRange(10 * index, 10 * index + 9) for index in range(first, first + count)]


def fetch(
    partition: SharePartition,
    log: Sequence[OffsetRange],
    member: str = "ann",
    records_max: int = 100,
    batch_records: int = 100,
    is_limit_strict: bool = False,
    now_ms: int = 0,
    aborted: Sequence[OffsetRange] = (),
) -> list[Acquired]:
    offset = partition.next_fetch_offset()
    return partition.acquire(
        member,
        [batch for batch in log if batch.last_offset >= offset],
        fetch_offset=offset,
        records_max=records_max,
        batch_records=batch_records,
        is_limit_strict=is_limit_strict,
        now_ms=now_ms,
        aborted=aborted,
    )


def acknowledge(
    partition: SharePartition, first: int, last: int, *types: int, member: str = "ann", now_ms: int = 0
) -> list[StateBatch]:
    """Acknowledge durably; return what was written."""
    change = partition.acknowledge(member, [Acknowledgement(first, last, types)], now_ms)
    partition.complete(change, durable=True)
    return change.batches


def by_offset(partition: SharePartition) -> dict[int, tuple[DeliveryState, int]]:
    """State and delivery count of each record in flight."""
    return {
        offset: (state, count)
        for first, last, state, count, _ in partition.states()
        for offset in range(first, last + 1)
    }


def test_whole_batches_of_the_log_are_acquired() -> None:
    partition = new()
    assert fetch(partition, tens(3), records_max=15) == [(0, 19, 1)]
    assert partition.next_fetch_offset() == 20
    assert partition.in_flight == 20


def test_a_strict_limit_acquires_a_part_of_a_batch() -> None:
    partition = new()
    assert fetch(partition, tens(3), records_max=15, is_limit_strict=True) == [(0, 14, 1)]
    assert partition.next_fetch_offset() == 15
    assert fetch(partition, tens(3), records_max=3, is_limit_strict=True, member="bob") == [(15, 17, 1)]


def test_batches_are_cut_at_bounds_of_the_log() -> None:
    partition = new()
    assert fetch(partition, tens(5), batch_records=15) == [(0, 19, 1), (20, 39, 1), (40, 49, 1)]


def test_the_reach_of_a_request_ends_where_it_has_enough_records() -> None:
    partition = new()
    assert partition.reach(30) == (30, 30)
    fetch(partition, tens(9), batch_records=10)
    assert partition.reach(30) == (10, 100), "the group's limit leaves ten"
    acknowledge(partition, 20, 29, RELEASE)
    acknowledge(partition, 50, 54, RELEASE)
    assert partition.reach(5) == (5, 30), "the whole batch"
    assert partition.reach(30) == (10, 30)
    partition.limits = LIMITS._replace(records_max=90)
    assert partition.reach(30) == (15, 90), "nothing new, but all that was released"
    assert sum(last - first + 1 for first, last, _ in fetch(partition, tens(20))) == 15


def test_ten_thousand_records_in_flight_are_acknowledged_one_by_one() -> None:
    partition = new(limits=ShareLimits(records_max=10_000, deliveries_max=5, lock_ms=30))
    log, stored = tens(1_001), tuple[StateBatch, ...]()
    for member in range(20):
        assert fetch(partition, log, f"{member}", records_max=500, batch_records=500) == [
            (500 * member, 500 * member + 499, 1)
        ]
    assert fetch(partition, log, "late") == []
    offsets = list(range(10_000))
    Random(1).shuffle(offsets)
    for offset in offsets:
        kind = RELEASE if offset % 7 == 0 else ACCEPT
        stored = combine(stored, acknowledge(partition, offset, offset, kind, member=f"{offset // 500}"), 0)
    released = [(offset, offset, 2) for offset in range(0, 10_000, 7)]
    assert partition.delivery_complete_count == 10_000 - len(released)
    heir = new(0, stored, partition.limits)
    assert by_offset(heir) == by_offset(partition)
    assert fetch(heir, log, "heir", records_max=10_000)[: len(released)] == released


def test_nobody_else_gets_acquired_records() -> None:
    partition = new()
    fetch(partition, tens(1))
    assert fetch(partition, tens(1), member="bob") == []
    assert fetch(partition, tens(2), member="bob") == [(10, 19, 1)]


def test_the_start_offset_passes_what_is_complete() -> None:
    partition = new()
    fetch(partition, tens(3), batch_records=10)
    assert acknowledge(partition, 10, 19, ACCEPT) == [(10, 19, DeliveryState.ACKNOWLEDGED, 1)]
    assert (partition.start_offset, partition.delivery_complete_count) == (0, 10)
    acknowledge(partition, 0, 9, REJECT)
    assert (partition.start_offset, partition.delivery_complete_count) == (20, 0)
    acknowledge(partition, 20, 29, GAP)
    assert (partition.start_offset, partition.in_flight) == (30, 0)


def test_a_part_of_a_batch_is_acknowledged() -> None:
    partition = new()
    fetch(partition, tens(1))
    assert acknowledge(partition, 0, 3, ACCEPT, RELEASE, REJECT, GAP) == [
        (0, 0, DeliveryState.ACKNOWLEDGED, 1),
        (1, 1, DeliveryState.AVAILABLE, 1),
        (2, 3, DeliveryState.ARCHIVED, 1),
    ]
    assert partition.start_offset == 1
    assert fetch(partition, tens(1), member="bob") == [(1, 1, 2)]


def test_what_is_not_durable_yet_is_neither_delivered_nor_passed() -> None:
    partition = new()
    fetch(partition, tens(1))
    change = partition.acknowledge("ann", [Acknowledgement(0, 9, [RELEASE])], 0)
    assert fetch(partition, tens(1), member="bob") == []
    with pytest.raises(KafkaError) as refused:
        partition.acknowledge("ann", [Acknowledgement(0, 9, [ACCEPT])], 0)
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE
    partition.complete(change, durable=False)
    assert acknowledge(partition, 0, 9, ACCEPT)
    assert partition.start_offset == 10


def test_an_acknowledgement_is_applied_as_a_whole() -> None:
    partition = new()
    fetch(partition, tens(1))
    fetch(partition, tens(2), member="bob")
    both = [Acknowledgement(0, 9, [ACCEPT]), Acknowledgement(10, 19, [ACCEPT])]
    with pytest.raises(KafkaError):
        partition.acknowledge("ann", both, 0)
    assert [state for _, _, state, _, _ in partition.states()] == [DeliveryState.ACQUIRED] * 2


@pytest.mark.parametrize(
    ("first", "last", "code"),
    [
        (0, 9, ErrorCode.NONE),  # passed by the start offset
        (5, 12, ErrorCode.NONE),
        (10, 25, ErrorCode.INVALID_REQUEST),
        (30, 35, ErrorCode.INVALID_REQUEST),
    ],
)
def test_offsets_that_are_not_in_flight(first: int, last: int, code: ErrorCode) -> None:
    partition = new()
    fetch(partition, tens(2), batch_records=10)
    acknowledge(partition, 0, 9, ACCEPT)
    if code == ErrorCode.NONE:
        acknowledge(partition, first, last, ACCEPT)
    else:
        with pytest.raises(KafkaError) as refused:
            partition.acknowledge("ann", [Acknowledgement(first, last, [ACCEPT])], 0)
        assert refused.value.code == code


def test_nothing_is_in_flight() -> None:
    with pytest.raises(KafkaError) as refused:
        new(5).acknowledge("ann", [Acknowledgement(5, 6, [ACCEPT])], 0)
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE


def test_a_lock_ends_unless_it_is_renewed() -> None:
    partition = new()
    fetch(partition, tens(1))
    assert partition.next_deadline_ms == 30
    assert not acknowledge(partition, 0, 4, RENEW, now_ms=20)
    assert partition.expire(30).batches == [(5, 9, DeliveryState.AVAILABLE, 1)]
    assert partition.next_deadline_ms == 50
    assert fetch(partition, tens(1), member="bob") == [(5, 9, 2)]


def test_a_group_may_have_no_renewals() -> None:
    partition = new(limits=LIMITS._replace(may_renew=False))
    fetch(partition, tens(1))
    with pytest.raises(KafkaError) as refused:
        acknowledge(partition, 0, 4, RENEW, now_ms=20)
    assert refused.value.code == ErrorCode.INVALID_RECORD_STATE
    assert partition.next_deadline_ms == 30


def test_the_last_delivery_ends_in_the_archive() -> None:
    partition = new(limits=LIMITS._replace(deliveries_max=2))
    fetch(partition, tens(1))
    acknowledge(partition, 0, 9, RELEASE)
    assert fetch(partition, tens(1)) == [(0, 9, 2)]
    assert partition.expire(1000).batches == [(0, 9, DeliveryState.ARCHIVED, 2)]


def test_records_that_were_delivered_often_are_delivered_in_ever_smaller_batches() -> None:
    partition = new()
    sizes = []
    for _ in range(5):
        acquired = fetch(partition, [OffsetRange(0, 15)])
        sizes.append(acquired[-1].last_offset + 1)
        acknowledge(partition, 0, sizes[-1] - 1, RELEASE)
    assert sizes == [16, 16, 16, 8, 1]
    assert partition.start_offset == 1, "the first record's deliveries are used up"


def test_a_session_that_ends_releases() -> None:
    partition = new()
    fetch(partition, tens(2), batch_records=10)
    acknowledge(partition, 10, 19, ACCEPT)
    change = partition.release("ann")
    assert change.batches == [(0, 9, DeliveryState.AVAILABLE, 1)]
    partition.complete(change, durable=True)
    assert fetch(partition, tens(2), member="bob") == [(0, 9, 2)]


def test_no_more_records_than_allowed_are_in_flight() -> None:
    partition = new(limits=LIMITS._replace(records_max=20))
    fetch(partition, tens(5))
    assert partition.in_flight == 20
    assert not partition.can_acquire()
    acknowledge(partition, 10, 14, RELEASE)
    assert partition.can_acquire()
    assert fetch(partition, tens(5), member="bob") == [(10, 14, 2)], "none past the end"


def test_aborted_records_are_archived() -> None:
    partition = new()
    assert fetch(partition, tens(3), aborted=[OffsetRange(10, 19)]) == [(0, 9, 1), (20, 29, 1)]
    acknowledge(partition, 0, 9, ACCEPT)
    assert partition.start_offset == 20
    partition = new()
    assert fetch(partition, tens(1), aborted=tens(1)) == []
    assert partition.start_offset == 10


def test_compaction_leaves_holes() -> None:
    partition = new()
    fetch(partition, tens(3), batch_records=10)
    acknowledge(partition, 0, 19, RELEASE)
    log = [OffsetRange(10, 19), *tens(1, 2)]
    assert fetch(partition, log, member="bob") == [(10, 19, 2)]
    assert partition.start_offset == 10


def test_the_log_start_moves() -> None:
    partition = new()
    fetch(partition, tens(2))
    partition.move_log_start(15)
    assert (partition.start_offset, partition.end_offset) == (15, 20)
    acknowledge(partition, 0, 19, ACCEPT)
    assert partition.start_offset == 20
    partition.move_log_start(50)
    assert (partition.start_offset, partition.next_fetch_offset()) == (50, 50)


def test_a_new_leader_delivers_what_its_predecessor_left_out() -> None:
    written = [
        StateBatch(10, 19, DeliveryState.ACKNOWLEDGED, 1),
        StateBatch(25, 29, DeliveryState.AVAILABLE, 3),
    ]
    partition = new(0, written)
    assert (partition.next_fetch_offset(), partition.in_flight) == (0, 30)
    assert fetch(partition, tens(5), records_max=5) == [(0, 9, 1)], "a gap is acquired in batches of the log"
    assert fetch(partition, tens(5)) == [(20, 24, 1)], "what was delivered often comes alone"
    assert fetch(partition, tens(5)) == [(25, 26, 4)]


def test_a_new_leader_passes_what_is_complete() -> None:
    partition = new(3, [StateBatch(3, 9, DeliveryState.ARCHIVED, 5), StateBatch(10, 12, DeliveryState.AVAILABLE, 1)])
    assert partition.start_offset == 10


DEAD_LETTERS = LIMITS._replace(has_dead_letters=True, deliveries_max=2)


def test_rejected_records_are_archived_after_their_dead_letters() -> None:
    partition = new(limits=DEAD_LETTERS)
    fetch(partition, tens(1))
    change = partition.acknowledge("ann", [Acknowledgement(0, 3, [ACCEPT, REJECT, REJECT, GAP])], 0)
    assert change.batches == [
        (0, 0, DeliveryState.ACKNOWLEDGED, 1),
        (1, 2, DeliveryState.ARCHIVING, 1),
        (3, 3, DeliveryState.ARCHIVED, 1),
    ]
    assert partition.take_dead_letters() == [], "not before that is durable"
    partition.complete(change, durable=True)
    assert partition.take_dead_letters() == [DeadLetter(1, 2, 1, is_rejected=True)]
    assert partition.take_dead_letters() == [], "once"
    assert (partition.start_offset, partition.delivery_complete_count) == (1, 1)
    change = partition.archive_dead(1, 1)
    assert change.batches == [(1, 1, DeliveryState.ARCHIVED, 1)]
    partition.complete(change, durable=True)
    assert partition.start_offset == 2
    partition.complete(partition.archive_dead(2, 2), durable=False)
    assert partition.start_offset == 4, "another leader would write the dead letter again"


def test_records_whose_deliveries_are_used_up_become_dead_letters() -> None:
    partition = new(limits=DEAD_LETTERS)
    fetch(partition, tens(2), batch_records=10)
    acknowledge(partition, 0, 19, RELEASE)
    fetch(partition, tens(2))
    assert partition.expire(1000).batches == [(0, 19, DeliveryState.ARCHIVING, 2)]
    assert [letter[:3] for letter in partition.take_dead_letters()] == [(0, 9, 2), (10, 19, 2)]
    assert fetch(partition, tens(2), member="bob") == []


def test_a_rejection_that_is_not_durable_has_no_dead_letter() -> None:
    partition = new(limits=DEAD_LETTERS)
    fetch(partition, tens(1))
    partition.complete(partition.acknowledge("ann", [Acknowledgement(0, 9, [REJECT])], 0), durable=False)
    assert partition.take_dead_letters() == []
    assert acknowledge(partition, 0, 9, ACCEPT)
    assert partition.start_offset == 10


def test_a_new_leader_writes_the_dead_letters_that_its_predecessor_left() -> None:
    written = [StateBatch(0, 4, DeliveryState.ARCHIVING, 1), StateBatch(5, 9, DeliveryState.ARCHIVING, 2)]
    partition = new(0, written, DEAD_LETTERS)
    assert fetch(partition, tens(1)) == []
    assert partition.take_dead_letters() == [
        DeadLetter(0, 4, 1, is_rejected=True),
        DeadLetter(5, 9, 2, is_rejected=False),
    ]
