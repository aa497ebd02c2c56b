"""Partitions of `__consumer_offsets` move between nodes at random: nothing that was answered is lost.

Several coordinators share the partitions' logs, on a virtual clock. A partition is handed over by a node that is alive,
or taken from one that hears of it later, whose appends are refused from then on. Clients go to any node that claims to
coordinate their group. Nobody but its client changes a group, so that the client knows what it must find.
"""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TypeVar

import pytest

from anabranch.broker.kafka.coordination.log import KeyValue, ReplayedBatch
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.consumer.heartbeat import ConsumerHeartbeat, ConsumerHeartbeatResponse
from anabranch.broker.kafka.groups.coordinator import GroupCoordinator
from anabranch.broker.kafka.groups.member_requests import respond_to
from anabranch.broker.kafka.groups.modern.topic_image import NO_TOPICS
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.groups.requests import (
    ClassicHeartbeat,
    JoinRequest,
    JoinResponse,
    MemberProtocol,
    SyncRequest,
    SyncResponse,
)
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.s3stream.errors import StorageStopped
from anabranch.wal.interface import Durable
from tests.support.memory_log import MemoryLog, MemoryTopic
from tests.support.virtual_time import run_virtual

Answer = TypeVar("Answer")
T0 = TopicPartition("t", 0)
PARTITIONS = 3
NODES = 3
SECONDS = 20
SEEDS = 300 if os.environ.get("ANABRANCH_SOAK") else 6
NEVER_MS = 3_600_000
REBALANCE_MS = 50
"""Short, because a member whose join was stored but not answered has to be waited for between two moves."""
SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=0, session_timeout_max_ms=NEVER_MS, consumer_session_timeout_ms=NEVER_MS
)
WRONG_NODE = {
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class LedLog:
    """A partition's log as one node has it open; satisfies `broker.kafka.coordination.log.InternalLog`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.is_fenced = False
        """True when another node has taken the partition over."""
        self.is_closed = False
        """True when the node knows that it does not lead the partition any more."""

    @property
    def next_offset(self) -> int:
        return self._log.next_offset

    @property
    def leader_epoch(self) -> int:
        return self._log.leader_epoch

    def append(self, records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
        assert not self.is_closed, "a coordinator writes to the log of another one"
        if self.is_fenced:
            raise StorageStopped("fenced")
        return self._log.append(records, producer)

    def replay(self) -> AsyncIterator[ReplayedBatch]:
        return self._log.replay()

    async def trim(self, offset: int) -> None:
        assert not self.is_closed, "a coordinator trims the log of another one"
        if not self.is_fenced:
            await self._log.trim(offset)


class Cluster:
    """Nodes with the partitions that they lead."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.logs = [MemoryLog(delay_s=lambda: dice.uniform(0.001, 0.05)) for _ in range(PARTITIONS)]
        self.topics = [MemoryTopic([None] * PARTITIONS) for _ in range(NODES)]
        self.coordinators = [
            GroupCoordinator(topic, SETTINGS, now_ms=lambda: 0, new_id=lambda: "id", topics=lambda: NO_TOPICS)
            for topic in self.topics
        ]
        self.leaders = [0] * PARTITIONS
        self.led: list[LedLog] = []
        for index, log in enumerate(self.logs):
            self.led.append(LedLog(log))
            self.topics[0].lead(index, self.led[index])

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for coordinator in self.coordinators:
                coordinator.start()
                tasks.create_task(coordinator.run())
                tasks.create_task(self._keep_compacting(coordinator))
            for index in range(PARTITIONS):
                tasks.create_task(self._keep_moving(index))

    async def _keep_compacting(self, coordinator: GroupCoordinator) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.05, 0.5))
            await coordinator.compact()

    async def _keep_moving(self, index: int) -> None:
        dice = self.dice
        while True:
            await asyncio.sleep(dice.uniform(0.01, 1.0))
            former, led = self.leaders[index], self.led[index]
            leader = dice.randrange(NODES)
            if dice.random() < 0.5 or leader == former:
                self._close(former, index, led)
                await asyncio.sleep(dice.choice([0, 0, dice.uniform(0, 0.1)]))
                self.lead(leader, index)
            else:
                led.is_fenced = True
                self.logs[index] = self.logs[index].crash()
                self.lead(leader, index)
                await asyncio.sleep(dice.uniform(0, 0.2))
                self._close(former, index, led)

    def lead(self, node: int, index: int) -> None:
        self.leaders[index], self.led[index] = node, LedLog(self.logs[index])
        self.topics[node].lead(index, self.led[index])

    def _close(self, node: int, index: int, led: LedLog) -> None:
        self.topics[node].lead(index, None)
        led.is_closed = True

    def shard(self, group_id: str) -> tuple[GroupShard, bool]:
        """Return the group's shard on some node that has it, and whether that leads it. Raises KafkaError."""
        found = [node for node in range(NODES) if self.coordinators[node].is_coordinator_of(group_id)]
        if not found:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        node = self.dice.choice(found)
        leads = self.leaders[partition_of(group_id, PARTITIONS)] == node
        return self.coordinators[node].shard(group_id), leads


def _answer(done: "asyncio.Future[Answer]", answer: Answer) -> None:
    if not done.done():  # cancelled at the end
        done.set_result(answer)


class GroupClient:
    """The only client of a group. It commits growing numbers."""

    def __init__(self, cluster: Cluster, group_id: str) -> None:
        self.cluster = cluster
        self.group_id = group_id
        self.member_id = ""
        self.generation = -1
        self.asks_leader = False
        self.sent = 0
        self.acked = 0

    async def keep_working(self) -> None:
        while True:
            await asyncio.sleep(self.cluster.dice.uniform(0.001, 0.1))
            try:
                shard = self.find_shard()
                if self.asks_leader:
                    self.check(shard)
                await self.work(shard)
            except KafkaError as error:
                if self.asks_leader and error.code not in WRONG_NODE:
                    raise  # a node that has been replaced may know less of the group, and refuse its member

    def find_shard(self) -> GroupShard:
        shard, self.asks_leader = self.cluster.shard(self.group_id)
        return shard

    def check(self, shard: GroupShard) -> None:
        """Compare the group with what was answered."""
        offsets = shard.offsets.of(self.group_id)
        found = None if offsets is None else offsets.get(*T0)
        offset = 0 if found is None else found.offset
        assert self.acked <= offset <= self.sent, f"{self.group_id}: {offset} not in [{self.acked}, {self.sent}]"
        self.acked = offset  # what was read once stays

    async def work(self, shard: GroupShard) -> None:
        self.sent += 1
        sent = self.sent
        done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        commits = [(T0, CommittedOffset(sent, -1, "", 0))]
        shard.offsets.commit(self.group_id, self.member_id, None, self.generation, commits, partial(_answer, done))
        if error := await done:
            raise KafkaError(error)
        self.acked = sent


class ClassicClient(GroupClient):
    """Its member joins once, and stays in its generation from then on."""

    def check(self, shard: GroupShard) -> None:
        super().check(shard)
        if self.member_id:
            error = shard.membership.handle(self.group_id, ClassicHeartbeat(self.member_id, None, self.generation))
            assert error is ErrorCode.NONE, f"{self.group_id}: {error!r}"

    async def work(self, shard: GroupShard) -> None:
        if self.member_id:
            await super().work(shard)
        else:
            await self._join(shard)

    async def _join(self, shard: GroupShard) -> None:
        joined: asyncio.Future[JoinResponse] = asyncio.get_running_loop().create_future()
        new_id = f"m{self.cluster.dice.random()}"
        protocols = [MemberProtocol("range", b"")]
        request = JoinRequest(
            respond_to(joined), "", new_id, None, "c", "/h", NEVER_MS, REBALANCE_MS, "consumer", protocols, False, False
        )
        shard.membership.handle(self.group_id, request)
        response = await joined
        if response.error:
            raise KafkaError(response.error)
        synced: asyncio.Future[SyncResponse] = asyncio.get_running_loop().create_future()
        assignments = {response.member_id: b"all"}
        shard = self.find_shard()
        try:
            shard.membership.handle(
                self.group_id,
                SyncRequest(respond_to(synced), response.member_id, None, response.generation, None, None, assignments),
            )
        except KafkaError as error:
            answer = SyncResponse(error.code)
        else:
            answer = await synced
        if answer.error in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            return  # the group moved before its assignment was stored
        if answer.error:
            raise KafkaError(answer.error)
        self.member_id, self.generation = response.member_id, response.generation


class ConsumerClient(GroupClient):
    """Its member joins with the new protocol, under an id of its own, so that it may repeat that."""

    async def work(self, shard: GroupShard) -> None:
        if self.generation > 0:
            await super().work(shard)
        await self._beat(shard)

    async def _beat(self, shard: GroupShard) -> None:
        done: asyncio.Future[ConsumerHeartbeatResponse | KafkaError] = asyncio.get_running_loop().create_future()
        epoch = max(self.generation, 0)
        request = ConsumerHeartbeat(
            "m",
            epoch,
            rebalance_timeout_ms=NEVER_MS if epoch == 0 else -1,
            topic_names=["t"],
            owned=frozenset(),
            ticket=partial(_answer, done),
        )
        shard = self.find_shard()
        shard.membership.handle(self.group_id, request)
        answer = await done
        if isinstance(answer, KafkaError):
            raise answer
        self.member_id, self.generation = answer.member_id, answer.epoch


async def simulate(seed: int) -> None:
    cluster = Cluster(random.Random(seed))
    kinds = [GroupClient, ClassicClient, ConsumerClient]
    clients = [kind(cluster, f"{kind.__name__}-{number}") for kind in kinds for number in range(4)]
    running = [asyncio.create_task(cluster.run()), *(asyncio.create_task(each.keep_working()) for each in clients)]
    done, _ = await asyncio.wait(running, timeout=SECONDS, return_when=asyncio.FIRST_EXCEPTION)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for task in done:
        task.result()
    for coordinator in cluster.coordinators:
        coordinator.close()
    cluster.logs = [log.crash() for log in cluster.logs]
    after = GroupCoordinator(MemoryTopic(cluster.logs), SETTINGS, now_ms=lambda: 0, new_id=lambda: "id")
    after.start()
    loading = asyncio.create_task(after.run())
    await asyncio.sleep(1)
    for client in clients:
        assert client.acked > 0, f"{client.group_id} got nowhere"
        client.check(after.shard(client.group_id))
    loading.cancel()
    after.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_answered_is_there_after_every_move(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.broker.kafka.coordination.shards.COMPACT_BYTES_MIN", 1)
    run_virtual(simulate(seed))
