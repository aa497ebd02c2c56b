"""Transactional ids whose partition of `__transaction_state` another node takes over, at each step."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import pytest

from anabranch.broker.kafka.coordination import shards
from anabranch.broker.kafka.transactions.state_machine import VERSION_1
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageFull, StorageStopped
from tests.broker.kafka.transactions.test_coordinator import T0, T1, CoordinatorProcess, refusal, refusal_of, running
from tests.support.waiting import until

S = TransactionStatus


class MovingCoordinator(CoordinatorProcess):
    """A coordinator whose node ceases to lead its partition, and leads it again."""

    def remove(self) -> None:
        self.topic.lead(0, None)

    async def add(self) -> None:
        """Lead the partition again, in a new leader epoch, until it is loaded."""
        self.log.leader_epoch += 1
        self.topic.lead(0, self.log)
        await self.load()


@pytest.fixture
async def node() -> AsyncIterator[MovingCoordinator]:
    node = MovingCoordinator()
    node.coordinator.start()
    yield node
    node.coordinator.close()


async def test_an_open_transaction_goes_on_with_the_next_coordinator(node: MovingCoordinator) -> None:
    producer = await node.begin()
    node.remove()
    assert refusal(lambda: node.coordinator.verify("id", producer, T0)) is ErrorCode.NOT_COORDINATOR
    assert refusal(lambda: node.coordinator.describe("id")) is ErrorCode.NOT_COORDINATOR
    assert list(node.coordinator.transactions()) == []
    await node.add()
    node.coordinator.verify("id", producer, T0)
    await node.coordinator.end("id", producer, commit=True, version=VERSION_1)
    await node.settled()
    assert node.markers.verdicts() == {T0: True, T1: True}


@pytest.mark.parametrize("request_", ["init", "add", "end"])
@pytest.mark.parametrize("queued", [True, False], ids=["queued", "appended"])
async def test_a_change_on_its_way_is_not_answered_as_durable(
    node: MovingCoordinator, request_: str, *, queued: bool
) -> None:
    producer = await node.begin(T0)
    works: dict[str, Callable[[], Awaitable[object]]] = {
        "init": lambda: node.coordinator.init("another", 10_000, None),
        "add": lambda: node.coordinator.add("id", producer, [T1], VERSION_1),
        "end": lambda: node.coordinator.end("id", producer, commit=True, version=VERSION_1),
    }
    node.log.hold = True
    before = len(node.log.batches)
    changing = asyncio.ensure_future(works[request_]())
    if queued:
        shard = node.coordinator.shard("id")
        await until(lambda: any(entry.pending for entry in shard.entries.values()))
    else:
        await until(lambda: len(node.log.batches) > before)
    node.remove()
    assert await refusal_of(changing) is ErrorCode.NOT_COORDINATOR
    node.log.hold = False
    node.log.release()
    assert not node.markers.written
    await node.add()
    if queued:
        assert len(node.log.batches) == before
        assert node.status() is S.ONGOING
        assert node.coordinator.describe("id").partitions == {T0}
    elif request_ == "add":
        assert node.coordinator.describe("id").partitions == {T0, T1}
    elif request_ == "end":
        await node.settled()
        assert node.markers.verdicts() == {T0: True}, "the decision was durable"
    else:
        assert node.coordinator.describe("another").epoch == 0


async def test_whoever_waits_for_an_end_is_sent_to_the_next_coordinator(node: MovingCoordinator) -> None:
    producer = await node.begin()
    node.markers.hold = True
    await node.coordinator.end("id", producer, commit=True, version=VERSION_1)
    waiting = [
        asyncio.ensure_future(work)
        for work in (
            node.coordinator.init("id", 10_000, None),
            node.coordinator.add("id", producer, [T0], VERSION_1),
        )
    ]
    entry = node.coordinator.shard("id").entries["id"]
    await until(lambda: len(entry.waiters) == 2)
    node.remove()
    assert [await refusal_of(work) for work in waiting] == [ErrorCode.NOT_COORDINATOR] * 2


async def test_an_init_that_aborts_is_sent_to_the_next_coordinator(node: MovingCoordinator) -> None:
    """Its decision is durable at the moment at which the partition goes."""
    await node.begin()
    node.markers.hold = True
    node.log.hold = True
    init = asyncio.ensure_future(node.coordinator.init("id", 10_000, None))
    await until(lambda: bool(node.log.held))
    node.log.release()
    node.remove()
    async with asyncio.timeout(0.4):  # less than the wait for the end of a transaction
        assert await refusal_of(init) is ErrorCode.NOT_COORDINATOR
    node.log.hold = node.markers.hold = False
    await node.add()
    await node.settled()
    assert node.status() is S.COMPLETE_ABORT


@pytest.mark.parametrize("marked", [0, 1, 2])
async def test_markers_of_a_removed_shard_complete_nothing(node: MovingCoordinator, marked: int) -> None:
    """Whenever they are reported. The next coordinator writes all of them again."""
    producer = await node.begin()
    node.markers.hold = True
    await node.coordinator.end("id", producer, commit=True, version=VERSION_1)
    late = node.markers.held
    for done in late[:marked]:
        done(None)
    node.remove()
    records = node.logged()
    for done in late[marked:]:
        done(None)
    await node.coordinator.retry()
    await asyncio.sleep(0)
    assert node.logged() == records
    node.markers.hold = False
    node.markers.written.clear()
    node.markers.held = []
    await node.add()
    await node.settled()
    assert node.status() is S.COMPLETE_COMMIT
    assert {marker.coordinator_epoch for _, marker in node.markers.written} == {1}
    assert node.markers.verdicts() == {T0: True, T1: True}


async def test_a_complete_on_its_way_is_found_by_the_next_coordinator(node: MovingCoordinator) -> None:
    producer = await node.begin()
    node.markers.hold = True
    await node.coordinator.end("id", producer, commit=True, version=VERSION_1)
    node.log.hold = True
    node.markers.release()
    await until(lambda: bool(node.log.held))
    node.remove()
    node.markers.written.clear()
    adding = asyncio.ensure_future(node.add())
    await asyncio.sleep(0.001)
    node.log.hold = False
    node.log.release()
    await adding
    assert node.status() is S.COMPLETE_COMMIT
    assert not node.markers.written, "all are durable"


@pytest.mark.parametrize("problem", [StorageFull("full"), StorageStopped("moved")], ids=str)
async def test_markers_that_could_not_be_written_are_not_tried_again_by_a_removed_shard(
    node: MovingCoordinator, problem: Exception
) -> None:
    producer = await node.begin()
    node.markers.refusal = problem
    await node.coordinator.end("id", producer, commit=True, version=VERSION_1)
    node.remove()
    node.markers.refusal = None
    await node.coordinator.retry()
    assert not node.markers.written
    await node.add()
    await node.settled()
    assert {marker.coordinator_epoch for _, marker in node.markers.written} == {1}


async def test_a_removed_shard_aborts_and_expires_nothing(node: MovingCoordinator) -> None:
    await node.begin()
    node.log.hold = True
    node.now_ms += 10_001
    aborting = asyncio.ensure_future(node.coordinator.abort_timed_out())
    await until(lambda: bool(node.log.held))
    node.remove()
    await aborting
    node.log.hold = False
    node.log.release()
    await asyncio.sleep(0)
    assert not node.markers.written
    await node.add()
    await node.settled()
    assert node.status() is S.COMPLETE_ABORT, "the decision was durable"
    node.now_ms += 10_000_000
    expiring = asyncio.ensure_future(node.coordinator.expire())
    node.remove()
    await expiring
    await node.coordinator.abort_timed_out()
    await node.add()
    assert node.status() is S.COMPLETE_ABORT


async def test_nothing_of_a_removed_shard_stays_in_memory(node: MovingCoordinator) -> None:
    producer = await node.begin()
    node.markers.refusal = StorageFull("full")
    await node.coordinator.end("id", producer, commit=True, version=VERSION_1)
    gone = weakref.ref(node.coordinator.shard("id"))
    node.markers.refusal = None  # its traceback would have the shard
    node.remove()
    gc.collect()
    assert gone() is None


async def test_the_limit_of_ids_counts_those_of_the_shards_led_here(
    node: MovingCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.coordinator.init("a", 10_000, None)
    limited = SimpleNamespace(**{**vars(node.coordinator.settings), "ids_max": 1})  # fewer than settings allow
    monkeypatch.setattr(node.coordinator, "settings", limited)
    refused = asyncio.ensure_future(node.coordinator.init("b", 10_000, None))
    assert await refusal_of(refused) is ErrorCode.POLICY_VIOLATION
    await node.coordinator.init("a", 10_000, None)


async def test_a_rewrite_goes_on_with_other_partitions_when_one_is_removed(
    node: MovingCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "COMPACT_BYTES_MIN", 0)
    producer = await node.begin()
    node.log.hold = True
    compacting = asyncio.ensure_future(node.coordinator.compact())
    await until(lambda: bool(node.log.held))
    node.remove()
    node.log.hold = False
    node.log.release()
    await compacting
    async with running(node):
        await node.add()
        with pytest.raises(KafkaError):
            node.coordinator.verify("id", producer._replace(epoch=9), T0)
        node.coordinator.verify("id", producer, T0)
