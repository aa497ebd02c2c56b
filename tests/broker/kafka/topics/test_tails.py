"""Following: which partitions are asked for, when following ends, and the bound of all windows. On virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import pytest

from anabranch.broker.kafka.topics import tails as tails_module
from anabranch.broker.kafka.topics.tail_partition import SILENT_S, LedPartition, TailPartition
from anabranch.broker.kafka.topics.tails import PAUSE_S, RETRY_S, UNUSED_S, WAIT_MS, Tails
from anabranch.broker.node.peers.interface import PeerUnavailable
from anabranch.broker.node.peers.members import Member, Members
from anabranch.protocol.codec import decode_exact, encode
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.internal.follow_tail import (
    FollowedPartition,
    FollowTailRequest,
    FollowTailResponse,
    PartitionTail,
)
from anabranch.protocol.messages.internal.relay import RelayRequest, RelayResponse
from anabranch.s3stream.model import BATCH_OVERHEAD_BYTES
from tests.broker.kafka.topics.test_tail_partition import batch
from tests.support.virtual_time import run_virtual

OWN, LEADER, NEIGHBOUR = Member(1, 1, (), "a"), Member(2, 1, (), "b"), Member(3, 1, (), "a")


class Leader:
    """Answers each question with what tests have put in `answers`, or after the wait with nothing new."""

    def __init__(self) -> None:
        self.asked: list[Sequence[FollowedPartition]] = []
        self.under_way = 0
        self.answers: list[Sequence[PartitionTail]] = []
        self.refusal = ""
        self.is_away = False

    async def call(self, node_id: int, request: RelayRequest, _version: int) -> RelayResponse:
        assert node_id == LEADER.node_id
        if self.is_away:
            raise PeerUnavailable("away")
        if self.refusal:
            return RelayResponse(failure=self.refusal)
        question = decode_exact(FollowTailRequest, request.body, 0)
        assert (question.node_id, question.wait_ms) == (OWN.node_id, WAIT_MS)
        self.asked.append(question.partitions)
        self.under_way += 1
        assert self.under_way == 1, "one question at a time"
        if self.answers:
            told = self.answers.pop(0)
        else:
            await asyncio.sleep(WAIT_MS / 1000)
            told = [nothing(each.offset) for each in question.partitions]
        self.under_way -= 1
        return RelayResponse(body=encode(FollowTailResponse(partitions=told), 0))


def nothing(end: int) -> PartitionTail:
    return PartitionTail(high_watermark=end, last_stable_offset=end, log_start_offset=0)


def some(*batches: bytes, end: int) -> PartitionTail:
    return PartitionTail(high_watermark=end, last_stable_offset=end, log_start_offset=0, records=b"".join(batches))


def led(stream_id: int, *, leader: int = LEADER.node_id, epoch: int = 5) -> LedPartition:
    return LedPartition(bytes(16), stream_id, stream_id, f"t-{stream_id}", leader, epoch)


def following(test: Callable[[Tails, Leader], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test with node 1 in rack a, beside a leader in rack b and a neighbour in rack a."""

    @wraps(test)
    def run() -> None:
        async def main() -> None:
            members = Members(OWN)
            members.update([LEADER, NEIGHBOUR])
            leader = Leader()
            async with asyncio.TaskGroup() as group:
                tasks: list[asyncio.Task[None]] = []
                tails = Tails(leader, members, OWN.node_id, lambda work: tasks.append(group.create_task(work)))
                await test(tails, leader)
                for task in tasks:
                    task.cancel()

        run_virtual(main())

    del run.__wrapped__  # pytest would ask for its arguments as fixtures
    return run


def followed(tails: Tails, partition: LedPartition, offset: int = 10) -> TailPartition:
    tail = tails.follow(partition, offset)
    assert tail is not None
    return tail


@following
async def test_all_partitions_are_in_one_question(tails: Tails, leader: Leader) -> None:
    leader.answers = [[some(batch(10), end=11), nothing(20)], [nothing(20), some(batch(11), end=12)]]
    first, second = followed(tails, led(1), 10), followed(tails, led(2), 20)
    assert tails.get(1) is None, "nothing is known yet"
    await first.heard.wait()
    assert (tails.get(1), tails.get(2)) == (first, second)
    assert followed(tails, led(1), 5) is first
    await asyncio.sleep(1)
    assert [[(each.index, each.window_offset, each.offset) for each in question] for question in leader.asked[:3]] == [
        [(1, -1, 10), (2, -1, 20)],
        [(2, 20, 20), (1, 10, 11)],
        [(2, 20, 20), (1, 10, 12)],
    ], "a leader sends no reader before its first answer; what has got records is the last to get some"
    assert tails.received_bytes == len(batch(10)) + len(batch(11))


@following
async def test_following_ends_when_no_reader_has_asked_for_a_while(tails: Tails, leader: Leader) -> None:
    followed(tails, led(1))
    waited_for = followed(tails, led(2))
    waited_for.add_listener(lambda _: None)
    await asyncio.sleep(UNUSED_S + 2 * WAIT_MS / 1000)
    assert (tails.get(1), tails.get(2), len(tails)) == (None, waited_for, 1)
    assert [each.index for each in leader.asked[-1]] == [2]
    tails.end(2, "the test is over")
    await asyncio.sleep(1)
    asked = len(leader.asked)
    await asyncio.sleep(10)
    assert len(leader.asked) == asked, "nobody is asked for nothing"
    assert followed(tails, led(1)) is not None
    await asyncio.sleep(1)
    assert len(leader.asked) > asked, "until something is followed again"


@following
async def test_a_silent_leader_ends_what_it_has_told(tails: Tails, leader: Leader) -> None:
    tail = followed(tails, led(1))
    await tail.heard.wait()
    leader.is_away = True
    await asyncio.sleep(SILENT_S - RETRY_S)
    assert tails.get(1) is tail
    await asyncio.sleep(2 * RETRY_S + WAIT_MS / 1000)
    assert tails.get(1) is None
    assert (tail.end_reason, len(tails), tails.size_bytes) == ("the leader is silent", 0, 0)


@following
async def test_what_no_leader_has_told_ends_at_once_if_it_cannot_be_asked(tails: Tails, leader: Leader) -> None:
    leader.is_away = True
    tail = followed(tails, led(1))
    await tail.heard.wait()
    assert tail.end_reason == "away"


@following
async def test_a_leader_of_an_earlier_version_refuses_and_ends_it_at_once(tails: Tails, leader: Leader) -> None:
    tail = followed(tails, led(1))
    await tail.heard.wait()
    leader.refusal = "API key 32016 in version 0 is not relayed"
    await asyncio.sleep(WAIT_MS / 1000)
    assert (tail.end_reason, tails.get(1)) == (f"node 2: {leader.refusal}", None)


@following
async def test_an_error_of_one_partition_leaves_the_others(tails: Tails, leader: Leader) -> None:
    leader.answers = [
        [some(batch(10), end=11), nothing(10)],
        [nothing(10), PartitionTail(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)],
    ]
    first, second = followed(tails, led(1)), followed(tails, led(2))
    await asyncio.sleep(1)
    assert (first.end_reason, tails.get(2)) == ("the leader answers NOT_LEADER_OR_FOLLOWER", second)
    assert (tails.size_bytes, tails.lost) == (0, 0)


@following
async def test_the_longest_lag_is_known_and_how_often_a_tail_was_lost(tails: Tails, leader: Leader) -> None:
    leader.answers = [[some(batch(10), end=13)], [some(batch(11), end=13)], [some(batch(12), end=13)]]
    tail = followed(tails, led(1))
    await asyncio.sleep(1.5 * PAUSE_S)
    assert tails.lag_s == pytest.approx(1.5 * PAUSE_S)
    assert tail.lag == 1
    await asyncio.sleep(PAUSE_S)
    assert (tail.lag, tails.lag_s, list(tails)) == (0, 0.0, [tail])
    leader.answers = [[PartitionTail(error_code=ErrorCode.OFFSET_NOT_AVAILABLE)]]
    await asyncio.sleep(1)
    assert (tails.lost, list(tails)) == (1, [])


@following
async def test_another_leader_epoch_ends_the_tail_and_an_earlier_one_does_not(tails: Tails, leader: Leader) -> None:
    tail = followed(tails, led(1, epoch=5))
    assert tails.follow(led(1, epoch=4), 10) is None
    assert tails.follow(led(1, epoch=5), 10) is tail
    later = followed(tails, led(1, epoch=6), 12)
    assert tail.end_reason == "it has another leader epoch"
    await later.heard.wait()
    assert (tails.get(1), later.window_offset) == (later, 12)
    assert [[each.leader_epoch for each in question] for question in leader.asked] == [[6]]


@following
async def test_neighbours_of_the_leader_and_unknown_leaders_are_not_followed(tails: Tails, leader: Leader) -> None:
    assert tails.follow(led(1, leader=NEIGHBOUR.node_id), 10) is None
    assert tails.follow(led(1, leader=9), 10) is None
    assert tails.follow(led(1, leader=OWN.node_id), 10) is None
    assert (len(tails), leader.asked) == (0, [])


def test_the_number_of_partitions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails_module, "FOLLOWED_MAX", 1)

    @following
    async def test(tails: Tails, leader: Leader) -> None:
        assert followed(tails, led(1)) is followed(tails, led(1))
        assert tails.follow(led(2), 10) is None

    test()


def test_the_oldest_batches_of_all_windows_leave_first(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(batch(10)) + BATCH_OVERHEAD_BYTES
    monkeypatch.setattr(tails_module, "WINDOWS_BYTES_MAX", 3 * size)

    @following
    async def test(tails: Tails, leader: Leader) -> None:
        leader.answers = [
            [some(batch(10), batch(11), end=12), nothing(20)],
            [some(batch(20), end=21), some(batch(12), end=13)],
        ]
        first, second = followed(tails, led(1)), followed(tails, led(2), 20)
        await asyncio.sleep(1)
        assert (first.window_offset, first.next_offset, second.window_offset) == (11, 13, 20)
        assert tails.size_bytes == 3 * size
        tails.end(1, "the test is over")
        assert tails.size_bytes == size

    test()


def test_what_was_in_a_window_that_has_ended_is_not_released_again(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(batch(10)) + BATCH_OVERHEAD_BYTES
    monkeypatch.setattr(tails_module, "WINDOWS_BYTES_MAX", 4 * size)

    @following
    async def test(tails: Tails, leader: Leader) -> None:
        leader.answers = [[some(batch(10), end=11), some(batch(20), batch(21), batch(22), end=23)]]
        followed(tails, led(1))
        second = followed(tails, led(2), 20)
        await second.heard.wait()
        tails.end(1, "there is doubt")
        assert tails.size_bytes == 3 * size
        for offset in (23, 24):
            leader.answers.append([some(batch(offset), end=offset + 1)])
        await asyncio.sleep(1)
        assert (second.window_offset, second.next_offset, tails.size_bytes) == (21, 25, 4 * size)
        tails.end(2, "the test is over")
        assert tails.size_bytes == 0

    test()
