"""Consume, transform, produce: exactly once, whenever node or client is killed, and whenever coordinators move.

The coordinator, the group's shard and the partitions write to logs whose writes become durable independently, on a
virtual clock. A client copies numbers: it reads from its group's committed offset, writes the number, and commits the
offset in the same transaction. After any error it initializes its transactional id again. The tests cover both versions
of transactions.
"""

import asyncio
import os
import random
from functools import partial

import pytest

from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.transactions.coordinator import TransactionCoordinator
from anabranch.broker.kafka.transactions.markers import Marker, MarkerDone
from anabranch.broker.kafka.transactions.state_machine import VERSION_1, VERSION_2
from anabranch.broker.node.settings.client_areas import GroupSettings, TransactionSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.wal.interface import WalError
from tests.support.memory_log import MemoryLog, MemoryTopic
from tests.support.virtual_time import run_virtual
from tests.support.waiting import until

STATE = TopicPartition("__transaction_state", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
SOURCE = TopicPartition("in", 0)
OUT = [TopicPartition("out", number) for number in range(2)]
SETTINGS = TransactionSettings(abort_interval_ms=1_000)
NUMBERS = 40
SEEDS = 300 if os.environ.get("ANABRANCH_SOAK") else 6
REQUEST_TIMEOUT_S = 5.0


def committed(log: MemoryLog) -> list[int]:
    """Numbers of transactions that a durable marker has committed."""
    open_: dict[int, list[int]] = {}
    found: list[int] = []
    for batch in log.durable():
        assert batch.producer is not None
        numbers = open_.setdefault(batch.producer.producer_id, [])
        if batch.committed is None:
            numbers += [int(record.key) for record in batch.records]
            continue
        found += numbers if batch.committed else []
        numbers.clear()
    return found


class CoordinatorProcess:
    """Coordinator, group shard and partitions of one process; `crash` kills and restarts it."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.ids = 100
        places = [STATE, OFFSETS, *OUT]
        self.logs = {where: MemoryLog(delay_s=lambda: dice.uniform(0.001, 0.03)) for where in places}
        self._start()

    def _start(self) -> None:
        self.state_topic = MemoryTopic([self.logs[STATE]])
        self.offsets_topic = MemoryTopic([self.logs[OFFSETS]])
        self.coordinator = TransactionCoordinator(
            self.state_topic,
            self,
            SETTINGS,
            now_ms=lambda: int(asyncio.get_running_loop().time() * 1000),
            next_producer_id=self._next_id,
        )
        self.groups = GroupCoordinator(self.offsets_topic, GroupSettings(), now_ms=lambda: 0, new_id=lambda: "id")

    async def _next_id(self) -> int:
        self.ids += 1
        return self.ids

    async def run(self) -> None:
        self.groups.start()
        self.coordinator.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.groups.run())
            tasks.create_task(self.coordinator.run())

    async def keep_moving(self) -> None:
        """Take a partition of one of the coordinators away, and give it back after a while."""
        while True:
            await asyncio.sleep(self.dice.uniform(0.01, 0.5))
            topic, where = self.dice.choice([(self.state_topic, STATE), (self.offsets_topic, OFFSETS)])
            log = self.logs[where]
            topic.lead(0, None)
            if self.dice.random() < 0.5:
                await asyncio.sleep(self.dice.uniform(0.001, 0.1))
            log.leader_epoch += 1
            topic.lead(0, log)

    def crash(self) -> None:
        self.coordinator.close()
        self.groups.close()
        self.logs = {where: log.crash() for where, log in self.logs.items()}
        self._start()

    def write(self, where: TopicPartition, marker: Marker, done: MarkerDone) -> None:
        """Append a marker, as `MarkerWriter` does."""
        group = self.groups.shard_at(0) if where == OFFSETS else None
        durable = self.logs[where].append_marker(marker.producer, committed=marker.committed)

        def written(error: WalError | None) -> None:
            if group is not None and error is None:
                group.offsets.end_transaction(marker.producer.producer_id, committed=marker.committed)
            done(error)

        durable.add_done_callback(written)
        if group is not None:
            group.writer.track_marker(durable)


async def copy_next(node: CoordinatorProcess, producer: Producer, version: int) -> Producer:
    """Copy one number in a transaction; returns the producer of the next. Raises KafkaError, also at the end."""
    offsets = node.groups.shard("g").offsets.of("g")
    await until(lambda: offsets is None or not offsets.is_unstable(*SOURCE), timeout_s=REQUEST_TIMEOUT_S, pause_s=0.01)
    place = None if offsets is None else offsets.get(*SOURCE)
    number = 0 if place is None else place.offset
    if number == NUMBERS:
        raise StopAsyncIteration
    where = OUT[number % len(OUT)]
    await node.coordinator.add("id", producer, [where], version)
    await node.logs[where].append([KeyValue(b"%d" % number, b"")], producer)
    await node.coordinator.add("id", producer, [OFFSETS], version)
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    commits = [(SOURCE, CommittedOffset(number + 1, -1, "", 0))]
    node.groups.shard("g").offsets.commit("g", "", None, -1, commits, partial(_answer, done), producer)
    if error := await done:
        raise KafkaError(error)
    return await node.coordinator.end("id", producer, commit=node.dice.random() < 0.8, version=version)


def _answer(done: "asyncio.Future[ErrorCode]", error: ErrorCode) -> None:
    if not done.done():
        done.set_result(error)


async def copy_all(node: CoordinatorProcess, version: int) -> None:
    producer: Producer | None = None
    while True:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                if producer is None or node.dice.random() < 0.05:  # sometimes a new producer without any reason
                    producer = await node.coordinator.init("id", 10_000, None)
                producer = await copy_next(node, producer, version)
        except StopAsyncIteration:
            return
        except (KafkaError, TimeoutError):
            producer = None
            await asyncio.sleep(0.05)


async def simulate(seed: int, version: int) -> None:
    node = CoordinatorProcess(random.Random(seed))

    async def live() -> None:
        while True:
            with_crash = [asyncio.create_task(node.run()), asyncio.create_task(node.keep_moving())]
            await asyncio.sleep(node.dice.uniform(0.05, 1.5))
            for task in with_crash:
                task.cancel()
            await asyncio.gather(*with_crash, return_exceptions=True)
            node.crash()

    async with asyncio.TaskGroup() as tasks:
        life = tasks.create_task(live())
        await copy_all(node, version)
        life.cancel()
    last = asyncio.create_task(node.run())  # markers under way get to their partitions
    await asyncio.sleep(30)
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    found = [number for where in OUT for number in committed(node.logs[where])]
    assert sorted(found) == list(range(NUMBERS))


@pytest.mark.parametrize("version", [VERSION_1, VERSION_2])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_number_is_copied_once(seed: int, version: int) -> None:
    run_virtual(simulate(seed, version))
