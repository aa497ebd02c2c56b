"""The coordinator over logs in memory: its answers, crashes at each step, and timeouts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from anabranch.broker.kafka.coordination import shards
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions import coordinator
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.markers import Marker, MarkerDone
from anabranch.broker.kafka.transactions.records import parse_record
from anabranch.broker.kafka.transactions.state_machine import EPOCH_LAST, VERSION_1, VERSION_2
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.broker.node.settings.client_areas import TransactionSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import CatalogUnavailable, StorageFull, StorageStopped
from anabranch.wal.interface import WalFailed
from tests.support.memory_log import MemoryLog, MemoryTopic
from tests.support.waiting import until

S = TransactionStatus
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
SETTINGS = TransactionSettings(timeout_max_ms=60_000, id_expiration_ms=1_000_000)


class MemoryMarkers:
    """Partitions that take markers at once, later, or not at all."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, Marker]] = []
        self.hold = False
        self.refusal: Exception | None = None
        self.held: list[MarkerDone] = []

    def write(self, where: TopicPartition, marker: Marker, done: MarkerDone) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.written.append((where, marker))
        if self.hold:
            self.held.append(done)
        else:
            done(None)

    def release(self, error: WalFailed | None = None) -> None:
        held, self.held = self.held, []
        for done in held:
            done(error)

    def verdicts(self) -> dict[TopicPartition, bool]:
        return {where: marker.committed for where, marker in self.written}


class CoordinatorProcess:
    """A coordinator with its log and a wall clock."""

    def __init__(self, log: MemoryLog | None = None, *, ids_from: int = 100, now_ms: int = 1_000) -> None:
        self.log = log or MemoryLog()
        self.markers = MemoryMarkers()
        self.now_ms = now_ms
        self.last_id = ids_from
        self.id_refusal: CatalogUnavailable | None = None
        self.topic = MemoryTopic([self.log])
        self.coordinator = TransactionCoordinator(
            self.topic, self.markers, SETTINGS, now_ms=lambda: self.now_ms, next_producer_id=self.next_id
        )

    async def next_id(self) -> int:
        await asyncio.sleep(0)
        if self.id_refusal is not None:
            raise self.id_refusal
        self.last_id += 1
        return self.last_id

    async def open(self) -> "CoordinatorProcess":
        self.coordinator.start()
        await self.load()
        return self

    async def load(self, name: str = "id") -> None:
        """Have the coordinator load the shard of a transactional id."""
        async with running(self):
            await until(lambda: self.is_loaded(name))

    def is_loaded(self, name: str) -> bool:
        """True unless the coordinator answers that it loads."""
        try:
            self.coordinator.shard(name)
        except KafkaError as error:
            return error.code is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return True

    async def crash(self) -> "CoordinatorProcess":
        """The coordinator of a new process, with the durable records."""
        other = CoordinatorProcess(self.log.crash(), ids_from=self.last_id, now_ms=self.now_ms)
        self.coordinator.close()
        return await other.open()

    async def begin(self, *partitions: TopicPartition, version: int = VERSION_1) -> Producer:
        producer = await self.coordinator.init("id", 10_000, None)
        await self.coordinator.add("id", producer, partitions or (T0, T1), version)
        return producer

    def status(self) -> TransactionStatus:
        return self.coordinator.describe("id").status

    def logged(self) -> list[TransactionStatus]:
        states = [parse_record(record).state for record in self.log.records()]
        return [state.status for state in states if state is not None]

    async def settled(self) -> None:
        await until(lambda: self.status() in {S.COMPLETE_COMMIT, S.COMPLETE_ABORT})


@pytest.fixture
async def cluster() -> CoordinatorProcess:
    return await CoordinatorProcess().open()


def refusal(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        call()
    return refused.value.code


async def refusal_of(work: Awaitable[object]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        await work
    return refused.value.code


@asynccontextmanager
async def running(cluster: CoordinatorProcess) -> AsyncIterator[None]:
    task = asyncio.create_task(cluster.coordinator.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
@pytest.mark.parametrize("commit", [True, False])
async def test_a_decision_reaches_every_partition(cluster: CoordinatorProcess, version: int, *, commit: bool) -> None:
    producer = await cluster.begin(version=version)
    after = await cluster.coordinator.end("id", producer, commit=commit, version=version)
    await cluster.settled()
    bumped = version == VERSION_2
    assert after == Producer(producer.producer_id, int(bumped))
    marker = Marker(after, commit, 0, bumped=bumped)
    assert cluster.markers.written == [(T0, marker), (T1, marker)]
    prepared, complete = (S.PREPARE_COMMIT, S.COMPLETE_COMMIT) if commit else (S.PREPARE_ABORT, S.COMPLETE_ABORT)
    assert cluster.logged() == [S.EMPTY, S.ONGOING, prepared, complete]
    assert cluster.coordinator.describe("id").partitions == frozenset()


async def test_nothing_is_answered_or_shown_before_it_is_durable(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin()
    cluster.log.hold = True
    ending = asyncio.ensure_future(cluster.coordinator.end("id", producer, commit=True, version=VERSION_1))
    await until(lambda: bool(cluster.log.held))
    assert not ending.done()
    assert not cluster.markers.written
    assert cluster.status() is S.ONGOING
    assert refusal(lambda: cluster.coordinator.verify("id", producer, T0)) is ErrorCode.CONCURRENT_TRANSACTIONS
    cluster.log.release()
    await ending
    assert cluster.markers.verdicts() == {T0: True, T1: True}
    assert cluster.status() is S.PREPARE_COMMIT, "Complete waits for the log"
    await until(lambda: bool(cluster.log.held))
    cluster.log.release()
    assert cluster.status() is S.COMPLETE_COMMIT


async def test_complete_waits_for_every_marker(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin(T0, T1, U0)
    cluster.markers.hold = True
    await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
    *some, last = cluster.markers.held
    for done in some:
        done(None)
    await cluster.coordinator.retry()
    assert cluster.logged()[-1] is S.PREPARE_COMMIT
    assert len(cluster.markers.written) == 3, "each is written once"
    last(None)
    await cluster.settled()


@pytest.mark.parametrize("prepared", [True, False])
async def test_a_node_that_adds_a_partition_is_not_kept_waiting_for_markers(
    cluster: CoordinatorProcess, *, prepared: bool
) -> None:
    """Its requests carry the markers of others, which may be what the markers of this transaction wait for."""
    producer = await cluster.begin()
    cluster.markers.hold = True
    cluster.log.hold = not prepared
    ending = asyncio.ensure_future(cluster.coordinator.end("id", producer, commit=True, version=VERSION_1))
    await until(lambda: bool(cluster.markers.held if prepared else cluster.log.held))
    adding = asyncio.ensure_future(cluster.coordinator.add("id", producer, [U0], VERSION_2, waits_for_markers=False))
    await asyncio.sleep(0)
    assert adding.done()
    assert await refusal_of(adding) is ErrorCode.CONCURRENT_TRANSACTIONS
    cluster.log.hold = False
    cluster.log.release()
    await ending


async def test_a_crash_before_the_decision_leaves_the_transaction_open(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin()
    cluster.log.hold = True
    ending = asyncio.ensure_future(cluster.coordinator.end("id", producer, commit=True, version=VERSION_1))
    await until(lambda: bool(cluster.log.held))
    after = await cluster.crash()
    assert after.status() is S.ONGOING
    after.coordinator.verify("id", producer, T1)
    await after.coordinator.end("id", producer, commit=False, version=VERSION_1)
    assert after.markers.verdicts() == {T0: False, T1: False}
    ending.cancel()


@pytest.mark.parametrize("marked", [0, 1, 2])
async def test_a_crash_after_the_decision_finishes_it(cluster: CoordinatorProcess, marked: int) -> None:
    """However many markers were durable: all are written again, the verdict is the same."""
    producer = await cluster.begin()
    cluster.markers.hold = True
    await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
    for done in cluster.markers.held[:marked]:
        done(None)
    if marked == 2:
        cluster.log.hold = True  # Complete never gets there
    after = await cluster.crash()
    assert after.markers.verdicts() == {T0: True, T1: True}
    assert {marker.coordinator_epoch for _, marker in after.markers.written} == {1}
    await after.settled()
    assert after.status() is S.COMPLETE_COMMIT


async def test_a_crash_after_the_end_has_nothing_to_do(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin()
    await cluster.coordinator.end("id", producer, commit=False, version=VERSION_1)
    await cluster.settled()
    after = await cluster.crash()
    assert after.status() is S.COMPLETE_ABORT
    assert not after.markers.written
    assert (await after.coordinator.init("id", 10_000, None)).epoch == producer.epoch + 1


async def test_a_new_life_aborts_what_is_open_and_fences(cluster: CoordinatorProcess) -> None:
    zombie = await cluster.begin()
    successor = await cluster.coordinator.init("id", 10_000, None)
    assert successor.producer_id == zombie.producer_id
    assert successor.epoch > zombie.epoch
    assert cluster.markers.verdicts() == {T0: False, T1: False}
    assert all(marker.producer.epoch > zombie.epoch for _, marker in cluster.markers.written)
    for work in (
        cluster.coordinator.end("id", zombie, commit=True, version=VERSION_1),
        cluster.coordinator.add("id", zombie, [U0], VERSION_1),
    ):
        assert await refusal_of(asyncio.ensure_future(work)) is ErrorCode.PRODUCER_FENCED


async def test_the_next_transaction_may_end_while_the_markers_of_the_one_before_are_written(
    cluster: CoordinatorProcess,
) -> None:
    """A client that begins nothing, or whose partitions are added meanwhile, ends the next one at once."""
    producer = await cluster.begin(version=VERSION_2)
    entry = cluster.coordinator.shard("id").entries["id"]
    entry.state = replace(entry.state, epoch=EPOCH_LAST)  # the next producer id is not in the state before Complete
    producer = Producer(producer.producer_id, EPOCH_LAST)
    for _ in range(2):
        cluster.markers.hold = True
        following = await cluster.coordinator.end("id", producer, commit=True, version=VERSION_2)
        ending = asyncio.ensure_future(cluster.coordinator.end("id", following, commit=False, version=VERSION_2))
        adding = asyncio.ensure_future(cluster.coordinator.add("id", following, [U0], VERSION_2))
        await asyncio.sleep(0)
        assert not ending.done()
        assert not adding.done()
        cluster.markers.hold = False
        cluster.markers.release()
        producer = await ending
        assert await refusal_of(adding) is ErrorCode.PRODUCER_FENCED, "the abort took its epoch"
        await cluster.coordinator.add("id", producer, [U0], VERSION_2)


async def test_who_comes_amid_an_end_waits_for_it(cluster: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = await cluster.begin()
    cluster.markers.hold = True
    await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
    adding = asyncio.ensure_future(cluster.coordinator.add("id", producer, [U0], VERSION_1))
    await asyncio.sleep(0)
    assert not adding.done()
    cluster.markers.release()
    await adding
    assert cluster.coordinator.describe("id").partitions == {U0}
    monkeypatch.setattr(coordinator, "CONCURRENT_WAIT_S", 0.001)
    await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
    again = asyncio.ensure_future(cluster.coordinator.add("id", producer, [U0], VERSION_1))
    assert await refusal_of(again) is ErrorCode.CONCURRENT_TRANSACTIONS
    init = asyncio.ensure_future(cluster.coordinator.init("id", 10_000, None))
    assert await refusal_of(init) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert not cluster.coordinator.shard("id").entries["id"].waiters, "whoever gave up is not remembered"


@pytest.mark.parametrize(
    "problem", [StorageFull("full"), KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), StorageStopped("moved")]
)
async def test_markers_that_cannot_be_written_are_tried_again(cluster: CoordinatorProcess, problem: Exception) -> None:
    producer = await cluster.begin()
    cluster.markers.refusal = problem
    await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
    await cluster.coordinator.retry()
    assert cluster.status() is S.PREPARE_COMMIT
    cluster.markers.refusal = None
    await cluster.coordinator.retry()
    await cluster.settled()
    assert cluster.markers.verdicts() == {T0: True, T1: True}


async def test_a_topic_that_is_gone_holds_nothing_up(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin()
    cluster.markers.refusal = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
    await cluster.settled()


async def test_a_failed_log_changes_nothing(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin()
    cluster.log.hold = True
    ending = asyncio.ensure_future(cluster.coordinator.end("id", producer, commit=True, version=VERSION_1))
    await until(lambda: bool(cluster.log.held))
    cluster.log.release(WalFailed("gone"))
    assert await refusal_of(ending) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert cluster.status() is S.ONGOING
    assert not cluster.markers.written


async def test_a_first_epoch_that_was_not_stored_leaves_no_trace(cluster: CoordinatorProcess) -> None:
    cluster.log.refusal = StorageStopped("moved")
    init = asyncio.ensure_future(cluster.coordinator.init("id", 10_000, None))
    assert await refusal_of(init) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not list(cluster.coordinator.transactions())


async def test_an_abandoned_request_still_ends_its_transaction(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin()
    cluster.log.hold = True
    ending = asyncio.ensure_future(cluster.coordinator.end("id", producer, commit=True, version=VERSION_1))
    await until(lambda: bool(cluster.log.held))
    ending.cancel()
    await asyncio.wait([ending])
    cluster.log.hold = False
    cluster.log.release()
    await cluster.settled()
    assert cluster.markers.verdicts() == {T0: True, T1: True}


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
async def test_a_transaction_ends_with_its_time(cluster: CoordinatorProcess, version: int) -> None:
    producer = await cluster.begin(version=version)
    cluster.now_ms += 10_000
    await cluster.coordinator.abort_timed_out()
    assert cluster.status() is S.ONGOING
    cluster.now_ms += 1
    await cluster.coordinator.abort_timed_out()
    await cluster.settled()
    assert cluster.status() is S.COMPLETE_ABORT
    assert cluster.markers.verdicts() == {T0: False, T1: False}
    late = asyncio.ensure_future(cluster.coordinator.end("id", producer, commit=True, version=version))
    refused = ErrorCode.INVALID_TXN_STATE if version == VERSION_2 else ErrorCode.PRODUCER_FENCED
    assert await refusal_of(late) is refused
    if version == VERSION_2:
        after = await cluster.coordinator.end("id", producer, commit=False, version=version)
    else:
        after = await cluster.coordinator.init("id", 10_000, producer)
    assert after == Producer(producer.producer_id, producer.epoch + 1)
    await cluster.coordinator.add("id", after, [U0], version)
    await cluster.coordinator.end("id", after, commit=True, version=version)
    await cluster.settled()
    assert cluster.markers.verdicts() == {T0: False, T1: False, U0: True}


async def test_a_transaction_that_has_timed_out_settles_with_its_markers(cluster: CoordinatorProcess) -> None:
    await cluster.begin(T0)
    cluster.now_ms += 10_001
    cluster.markers.hold = True
    await cluster.coordinator.abort_timed_out()
    await until(lambda: bool(cluster.markers.held))
    settling = asyncio.ensure_future(cluster.coordinator.wait_settled())
    await asyncio.sleep(0)
    assert not settling.done()
    cluster.markers.release()
    await settling
    assert cluster.status() is S.COMPLETE_ABORT


async def test_a_transaction_with_the_last_epoch_ends_with_its_time(cluster: CoordinatorProcess) -> None:
    producer = Producer((await cluster.begin(version=VERSION_2)).producer_id, EPOCH_LAST)
    entry = cluster.coordinator.shard("id").entries["id"]
    entry.state = replace(entry.state, epoch=producer.epoch)
    cluster.now_ms += 10_001
    cluster.id_refusal = CatalogUnavailable("away")
    await cluster.coordinator.abort_timed_out()
    assert cluster.status() is S.ONGOING
    cluster.id_refusal = None
    await cluster.coordinator.abort_timed_out()
    await cluster.settled()
    after = await cluster.coordinator.end("id", producer, commit=False, version=VERSION_2)
    assert (after.epoch, after.producer_id) == (0, cluster.last_id)


async def test_unused_ids_are_forgotten(cluster: CoordinatorProcess) -> None:
    producer = await cluster.begin()
    cluster.now_ms += 2_000_000
    await cluster.coordinator.expire()
    assert cluster.status() is S.ONGOING
    await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
    await cluster.settled()
    cluster.now_ms += 999_999
    await cluster.coordinator.expire()
    assert cluster.status() is S.COMPLETE_COMMIT
    cluster.now_ms += 1
    await cluster.coordinator.expire()
    await until(lambda: not list(cluster.coordinator.transactions()))
    after = await cluster.crash()
    assert refusal(lambda: after.coordinator.describe("id")) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


async def test_the_topic_may_be_deleted_while_ids_are_looked_over(cluster: CoordinatorProcess) -> None:
    for name in ("a", "b"):
        await cluster.coordinator.init(name, 10_000, None)
    cluster.now_ms += 2_000_000
    looking = asyncio.create_task(cluster.coordinator.expire())
    await asyncio.sleep(0)  # as far as its first pause
    cluster.topic.replace(None)
    await looking


@pytest.mark.parametrize(("timeout_ms", "good"), [(0, False), (-1, False), (60_000, True), (60_001, False)])
async def test_timeouts_are_checked(cluster: CoordinatorProcess, timeout_ms: int, *, good: bool) -> None:
    work = asyncio.ensure_future(cluster.coordinator.init("id", timeout_ms, None))
    if good:
        await work
    else:
        assert await refusal_of(work) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


async def test_the_log_is_rewritten_to_the_states(cluster: CoordinatorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "COMPACT_BYTES_MIN", 0)
    producer = await cluster.begin()
    for _ in range(3):
        await cluster.coordinator.end("id", producer, commit=True, version=VERSION_1)
        await cluster.coordinator.add("id", producer, [U0], VERSION_1)
    await cluster.coordinator.compact()
    assert cluster.logged() == [S.ONGOING]
    after = await cluster.crash()
    assert after.coordinator.describe("id").partitions == {U0}


async def test_it_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "RETRY_S", 0.001)
    first = await CoordinatorProcess().open()
    producer = await first.begin()
    first.markers.refusal = StorageFull("full")
    async with running(first):
        await first.coordinator.end("id", producer, commit=True, version=VERSION_1)
        first.markers.refusal = None
        await first.settled()


async def test_ids_of_other_nodes_and_unloaded_ones_are_told() -> None:
    names = [next(name for name in "abcdef" if partition_of(name, 2) == index) for index in (0, 1)]
    log = MemoryLog([[]])
    cluster = CoordinatorProcess()
    cluster.coordinator = TransactionCoordinator(
        MemoryTopic([log, None]), cluster.markers, SETTINGS, now_ms=lambda: 0, next_producer_id=cluster.next_id
    )
    assert refusal(lambda: cluster.coordinator.shard(names[0])) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.coordinator.start()
    assert refusal(lambda: cluster.coordinator.shard(names[0])) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert refusal(lambda: cluster.coordinator.shard(names[1])) is ErrorCode.NOT_COORDINATOR
    assert cluster.coordinator.is_coordinator_of(names[0])
    assert not cluster.coordinator.is_coordinator_of(names[1])
    await cluster.load(names[0])
    cluster.coordinator.shard(names[0])
    cluster.coordinator.close()
    assert refusal(lambda: cluster.coordinator.shard(names[0])) is ErrorCode.COORDINATOR_NOT_AVAILABLE
