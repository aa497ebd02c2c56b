"""A shard of the share coordinator: what is durable, and what a crash, a failed write or a rewrite leaves."""

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from anabranch.broker.kafka.coordination.log import LogWriter
from anabranch.broker.kafka.share.interface import DeliveryState, InitialState, ShareKey, StateBatch
from anabranch.broker.kafka.share.state.records import StateRecord, parse_record
from anabranch.broker.kafka.share.state.shard import Outcome, ShareStateShard, StateCounts
from anabranch.broker.kafka.share.state.stored import StateWrite, StoredState
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageFull, StorageStopped
from tests.support.memory_log import MemoryLog
from tests.support.soak import SOAK
from tests.support.virtual_time import VirtualTimeLoop

TOPIC_ID, OTHER_ID = bytes([1] * 16), bytes([2] * 16)
KEY = ShareKey("g", TOPIC_ID, 0)
LIMIT = 3


def a_shard(log: MemoryLog, *, known: set[bytes] | None = None, counts: StateCounts | None = None) -> ShareStateShard:
    topics = {TOPIC_ID, OTHER_ID} if known is None else known
    return ShareStateShard(
        LogWriter(log),
        updates_per_snapshot=LIMIT,
        now_ms=lambda: 0,
        has_partition=lambda topic_id, partition: topic_id in topics and 0 <= partition < 3,
        counts=counts,
    )


async def loaded(log: MemoryLog) -> ShareStateShard:
    shard = a_shard(log)
    await shard.load()
    return shard


def acknowledged(first: int, last: int, *, leader_epoch: int = 1, state_epoch: int = 1) -> StateWrite:
    batch = StateBatch(first, last, DeliveryState.ACKNOWLEDGED, 1)
    return StateWrite(state_epoch, leader_epoch, 0, last - first + 1, [batch])


async def test_writes_are_counted_by_what_they_are_and_how_they_end() -> None:
    log, counts = MemoryLog(), StateCounts()
    shard = a_shard(log, counts=counts)
    await shard.load()
    await shard.initialize(KEY, InitialState(1, 0))
    await shard.read(KEY, 1).outcome
    for first in range(LIMIT):
        await shard.write(KEY, acknowledged(first, first))
    log.hold = True
    waiting = shard.write(KEY, acknowledged(4, 4))
    assert counts == StateCounts(snapshots=2, updates=3, pending=1)
    shard.close()
    await waiting
    assert counts == StateCounts(snapshots=2, updates=3, failures=1)


async def test_a_write_is_answered_when_it_is_durable() -> None:
    log = MemoryLog()
    shard = await loaded(log)
    assert await shard.initialize(KEY, InitialState(1, 0)) is ErrorCode.NONE
    assert await shard.read(KEY, 1).outcome is ErrorCode.NONE
    log.hold = True
    write = shard.write(KEY, acknowledged(0, 4))
    read = shard.read(KEY, 1)
    await asyncio.sleep(0)
    assert not write.done()
    assert read.outcome is write, "a read that needs no record rests on the write before it"
    before = shard.summary(KEY)
    assert before is not None
    assert before.delivery_complete_count == 0, "not durable yet"
    log.release()
    assert await write is ErrorCode.NONE
    assert shard.summary(KEY) == before._replace(delivery_complete_count=5)
    assert read.state.batches == (StateBatch(0, 4, DeliveryState.ACKNOWLEDGED, 1),)


async def test_a_failed_write_is_as_if_it_had_never_been() -> None:
    log = MemoryLog()
    shard = await loaded(log)
    await shard.initialize(KEY, InitialState(1, 0))
    log.refusal = StorageStopped("the disk is gone")
    fence, write = shard.read(KEY, 5), shard.write(KEY, acknowledged(0, 4, leader_epoch=5))
    assert {await fence.outcome, await write} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    log.refusal = None
    assert await shard.write(KEY, acknowledged(7, 8, leader_epoch=1)) is ErrorCode.NONE, "no fence"
    assert shard.read(KEY, 5).state.batches == (StateBatch(7, 8, DeliveryState.ACKNOWLEDGED, 1),)
    survivor = await loaded(log.crash())
    assert survivor.read(KEY, 5).state == shard.read(KEY, 5).state


async def test_a_state_that_could_not_begin_does_not_exist() -> None:
    log = MemoryLog()
    shard = await loaded(log)
    log.refusal = StorageStopped("the disk is gone")
    assert await shard.initialize(KEY, InitialState(1, 0)) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(shard) == 0
    with pytest.raises(KafkaError, match="uninitialized"):
        shard.read(KEY, 1)


async def test_writes_wait_while_the_storage_is_full() -> None:
    log = MemoryLog()
    shard = await loaded(log)
    log.refusal = StorageFull("full")
    outcome = shard.initialize(KEY, InitialState(1, 0))
    await asyncio.sleep(0)
    assert not outcome.done()
    log.refusal = None
    assert await outcome is ErrorCode.NONE


async def test_deleted_states_are_gone_after_a_replay() -> None:
    log = MemoryLog()
    shard = await loaded(log)
    for key in (KEY, KEY._replace(partition=1), KEY._replace(topic_id=OTHER_ID)):
        await shard.initialize(key, InitialState(1, 0))
        await shard.read(key, 1).outcome
    assert await shard.delete(KEY._replace(partition=1)) is ErrorCode.NONE
    assert await shard.delete(KEY._replace(partition=2)) is ErrorCode.NONE, "there was none"
    shard.forget_topics({OTHER_ID})
    await asyncio.sleep(0)
    survivor = await loaded(log.crash())
    assert len(survivor) == 1
    assert [key for key in (KEY, KEY._replace(partition=1)) if survivor.summary(key) is not None] == [KEY]


async def test_a_rewrite_keeps_states_and_fences() -> None:
    log = MemoryLog()
    shard = await loaded(log)
    await shard.initialize(KEY, InitialState(1, 0))
    await shard.read(KEY, 4).outcome
    await shard.initialize(KEY, InitialState(2, 7))
    await shard.rewrite()
    assert len(log.records()) == 1
    survivor = await loaded(log.crash())
    with pytest.raises(KafkaError, match="FENCED_LEADER_EPOCH"):
        survivor.read(KEY, 3)
    assert survivor.read(KEY, 4).state == shard.read(KEY, 4).state


async def test_what_does_not_exist_is_refused() -> None:
    shard = a_shard(MemoryLog(), known=set())
    await shard.load()
    for request in (
        lambda: shard.initialize(KEY, InitialState(1, 0)),
        lambda: shard.delete(KEY),
        lambda: shard.summary(KEY),
    ):
        with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            request()
    for key, write in (
        (KEY._replace(partition=-1), acknowledged(0, 0)),
        (KEY, acknowledged(0, 0, leader_epoch=-1)),
        (KEY, acknowledged(0, 0, state_epoch=-1)),
    ):
        with pytest.raises(KafkaError, match="cannot be a negative number"):
            _ = shard.write(key, write)


async def test_an_empty_batch_is_refused() -> None:
    shard = await loaded(MemoryLog())
    await shard.initialize(KEY, InitialState(1, 0))
    with pytest.raises(KafkaError, match="before its first"):
        _ = shard.write(KEY, StateWrite(1, 1, 0, 0, [StateBatch(5, 4, 2, 1)]))


async def test_a_closed_shard_writes_nothing_more() -> None:
    log = MemoryLog()
    log.hold = True
    shard = await loaded(log)
    outcome = shard.initialize(KEY, InitialState(1, 0))
    shard.close()
    assert await outcome is ErrorCode.NOT_COORDINATOR
    assert not log.batches


async def test_a_record_that_is_too_large_changes_nothing() -> None:
    shard = await loaded(MemoryLog())
    await shard.initialize(KEY, InitialState(1, 0))
    batches = [StateBatch(offset, offset, 2, offset % 2) for offset in range(60_000)]
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        _ = shard.write(KEY, StateWrite(1, 1, 0, 0, batches))
    assert shard.read(KEY, 0).state.batches == ()


keys = st.sampled_from([KEY, KEY._replace(partition=1), KEY._replace(group_id="h")])


class ShardMachine(RuleBasedStateMachine):
    """Requests, crashes, failed writes and rewrites, beside a dict of single offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.log = MemoryLog()
        self.model: dict[ShareKey, StoredModel] = {}
        self.waiting: list[tuple[Outcome, ShareKey, StoredModel | None]] = []

    @initialize()
    def begin(self) -> None:
        self.shard = self.run(loaded(self.log))
        self.log.hold = True

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def settle(self) -> None:
        """Let the writer append what is queued."""
        self.run(asyncio.sleep(0))
        self.run(asyncio.sleep(0))

    def latest(self, key: ShareKey) -> "StoredModel | None":
        for _, written, model in reversed(self.waiting):
            if written == key:
                return model
        return self.model.get(key)

    def send(self, key: ShareKey, request: Any, model: "StoredModel | None") -> None:
        async def call() -> Outcome | None:
            try:
                outcome: Outcome = request()
            except KafkaError:
                return None
            return outcome

        outcome = self.run(call())
        if outcome is not None:
            self.waiting.append((outcome, key, model))

    @rule(key=keys, state_epoch=st.integers(1, 4), start=st.integers(-1, 20))
    def initialize_state(self, key: ShareKey, state_epoch: int, start: int) -> None:
        before = self.latest(key)
        if before is not None and before.state_epoch >= state_epoch:
            return
        fence = 0 if before is None else before.fence
        model = StoredModel(state_epoch, start, fence, {})
        self.send(key, lambda: self.shard.initialize(key, InitialState(state_epoch, start)), model)

    @rule(key=keys, leader_epoch=st.integers(0, 4))
    def read(self, key: ShareKey, leader_epoch: int) -> None:
        before = self.latest(key)

        def request() -> Outcome:
            found = self.shard.read(key, leader_epoch)
            assert before is not None
            assert before.fence <= leader_epoch
            assert (found.state.start_offset, offsets_of(found.state.batches)) == (before.start, before.offsets)
            outcome: Outcome = found.outcome
            return outcome

        after = None if before is None else before.replaced(fence=leader_epoch)
        self.send(key, request, after)

    @rule(
        key=keys,
        epochs=st.tuples(st.integers(1, 4), st.integers(0, 4)),
        start=st.integers(-1, 25),
        first=st.integers(0, 30),
        length=st.integers(0, 5),
        state=st.sampled_from([0, 2, 4]),
        count=st.integers(1, 3),
    )
    def write(
        self,
        key: ShareKey,
        epochs: tuple[int, int],
        start: int,
        first: int,
        length: int,
        state: int,
        count: int,
    ) -> None:
        before = self.latest(key)
        wanted = StateWrite(epochs[0], epochs[1], start, 0, [StateBatch(first, first + length, state, count)])
        after = None if before is None else before.written(wanted)

        def request() -> Outcome:
            outcome: Outcome = self.shard.write(key, wanted)
            assert before is not None
            assert epochs[0] >= before.state_epoch
            assert epochs[1] >= before.fence
            return outcome

        self.send(key, request, after)

    @rule(key=keys)
    def delete(self, key: ShareKey) -> None:
        self.send(key, lambda: self.shard.delete(key), None)

    @rule()
    def make_durable(self) -> None:
        self.settle()
        self.log.release()
        self._take(ErrorCode.NONE)

    @precondition(lambda self: self.waiting)
    @rule()
    def fail(self) -> None:
        """The log refuses what is queued, and what is in flight is durable before."""
        self.settle()
        self.log.release()
        self._take(ErrorCode.NONE)
        self.log.refusal = StorageStopped("no")
        model = StoredModel(9, 0, 0, {})
        self.send(KEY, lambda: self.shard.initialize(KEY, InitialState(9, 0)), model)
        self.settle()
        self._take(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        self.log.refusal = None

    def _take(self, expected: ErrorCode) -> None:
        for outcome, key, model in self.waiting:
            assert outcome.done()
            assert outcome.result() is expected or model is self.model.get(key)
            if expected is ErrorCode.NONE:
                self.model.pop(key, None)
                if model is not None:
                    self.model[key] = model
        self.waiting.clear()

    @rule(lost=st.booleans())
    def crash(self, *, lost: bool) -> None:
        """Lose what is queued, and what was appended too, or make that durable without an answer."""
        if lost:
            durable = self.model
        else:
            self.settle()
            self.log.release()
            self._take(ErrorCode.NONE)
            durable = self.model
        self.waiting.clear()
        self.shard.close()
        self.log = self.log.crash()
        self.log.hold = False
        self.shard = self.run(loaded(self.log))
        self.log.hold = True
        self.model = durable

    @rule()
    def rewrite(self) -> None:
        self.settle()
        self.log.release()
        self._take(ErrorCode.NONE)
        self.log.hold = False
        self.run(self.shard.rewrite())
        self.log.hold = True
        kept = [parse_record(record) for record in self.log.records()]
        assert {each.key for each in kept} == set(self.model)
        assert all(isinstance(each, StateRecord) and isinstance(each.value, StoredState) for each in kept)

    @invariant()
    def durable_states_are_those_of_the_model(self) -> None:
        if not hasattr(self, "shard"):
            return
        for key in (KEY, KEY._replace(partition=1), KEY._replace(group_id="h")):
            found, model = self.shard.summary(key), self.model.get(key)
            assert (found is None) == (model is None)
            if found is not None and model is not None:
                assert (found.state_epoch, found.start_offset) == (model.state_epoch, model.start)

    def teardown(self) -> None:
        self.loop.close()


class StoredModel:
    """A state as a dict of single offsets: the delivery count and state of each."""

    def __init__(self, state_epoch: int, start: int, fence: int, offsets: dict[int, tuple[int, int]]) -> None:
        self.state_epoch, self.start, self.fence, self.offsets = state_epoch, start, fence, offsets

    def replaced(self, *, fence: int) -> "StoredModel":
        return StoredModel(self.state_epoch, self.start, fence, self.offsets)

    def written(self, wanted: StateWrite) -> "StoredModel":
        start, offsets = max(self.start, wanted.start_offset), dict(self.offsets)
        for each in wanted.batches:
            for offset in range(each.first_offset, each.last_offset + 1):
                progress = each.delivery_count, each.delivery_state
                offsets[offset] = max(offsets.get(offset, progress), progress)
        kept = {offset: progress for offset, progress in sorted(offsets.items()) if offset >= start}
        return StoredModel(self.state_epoch, start, self.fence, kept)


def offsets_of(batches: Any) -> dict[int, tuple[int, int]]:
    return {
        offset: (each.delivery_count, each.delivery_state)
        for each in batches
        for offset in range(each.first_offset, each.last_offset + 1)
    }


TestShardMachine = ShardMachine.TestCase
TestShardMachine.settings = settings(max_examples=300 if SOAK else 40, stateful_step_count=30, deadline=None)
