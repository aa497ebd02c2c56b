"""Random runs of transactions over three nodes: lost, late and repeated messages, crashes, moves, outdated maps.

Each client writes values of one transaction after the other to partitions of all nodes, and commits offsets of a group.
Afterwards, when nothing fails any more, every transaction must be complete, with all of its values between its first
value and its marker, and with one outcome everywhere.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.transactions.state_table import TransactionStatus
from anabranch.protocol.errors import ErrorCode
from tests.broker.kafka.transactions.cluster import COMPLETE, TOPICS, Client, Cluster, NodeGone, segments
from tests.support.virtual_time import run_virtual

SEEDS = 2000 if os.environ.get("ANABRANCH_SOAK") else 10
NODES = 3
CLIENTS = 4
RUN_S = 40.0
"""Time with faults."""
HEAL_S = 60.0
LATE_S = 20.0
"""Longest time that a copy of a message is under way."""


class TransactionRun:
    """A client's transactions, and what it knows of them."""

    def __init__(self, cluster: Cluster, client: Client) -> None:
        self.cluster = cluster
        self.client = client
        self.dice = cluster.dice
        self.outcomes: dict[bytes, bool | None] = {}
        """Known outcome of each transaction by its value; None: unknown."""
        self.written: dict[bytes, set[int]] = {}
        """Partitions in which the transaction's value was acknowledged."""
        self.offsets: dict[bytes, int] = {}
        """Offset that the transaction committed for the group, acknowledged."""
        self.sent: set[asyncio.Future[ErrorCode]] = set()
        """Writes that the client does not wait for."""

    async def run(self) -> None:
        opened = False
        number = 0
        while True:
            try:
                async with asyncio.timeout(15):
                    opened = opened or not await self.client.init()
                    number += 1
                    opened = opened and await self._transact(number)
            except (NodeGone, TimeoutError):
                opened = False  # what was sent last may have taken effect: the next init ends the transaction
            await asyncio.sleep(self.dice.uniform(0, 0.1))

    async def _transact(self, number: int) -> bool:
        """Run a transaction. Return False if the client has to initialize again."""
        value = f"{self.client.name}/{number}".encode()
        self.outcomes[value] = None
        self.written[value] = set()
        for partition in self.dice.sample(range(TOPICS["t"]), self.dice.randint(1, 3)):
            if not await self._until_done(partial(self.client.write, partition, value)):
                return False
            self.written[value].add(partition)
        if self.dice.random() < 0.5:
            if not await self._until_done(partial(self.client.commit_offset, number)):
                return False
            self.offsets[value] = number
        hasty = self.dice.random() < 0.3
        if hasty and not await self._write_without_waiting(value):
            return False
        if self.dice.random() < 0.2:
            await asyncio.sleep(self.dice.uniform(0, 2))
        commit = self.dice.random() < 0.7
        if not await self._until_done(partial(self.client.end, commit=commit)):
            return False
        self.outcomes[value] = commit
        return not hasty  # a late batch of version 1 could become part of the next transaction of its epoch

    async def _write_without_waiting(self, value: bytes) -> bool:
        """Send a batch to one more partition, whose answer may come after the end of the transaction."""
        partition = self.dice.choice([each for each in range(TOPICS["t"]) if each not in self.written[value]])
        if self.client.adds and await self.client.add(partition):
            return False
        sent = asyncio.ensure_future(self.client.produce(partition, value))
        self.sent.add(sent)
        sent.add_done_callback(self._answered)
        await asyncio.sleep(self.dice.uniform(0, 0.05))
        return True

    def _answered(self, sent: "asyncio.Future[ErrorCode]") -> None:
        self.sent.discard(sent)
        if not sent.cancelled() and sent.exception() is not None:
            assert isinstance(sent.exception(), NodeGone)

    async def _until_done(self, request: Callable[[], Awaitable[ErrorCode]]) -> bool:
        for _ in range(20):
            error = await request()
            if not error:
                return True
            if not error.retriable:
                return False
            await asyncio.sleep(0.1)
        return False


def fate(dice: random.Random) -> Callable[[Any], tuple[list[float], float | None]]:
    """Return what may happen to a message: it is lost, late, there twice, or its answer is lost or late."""

    def decide(_request: Any) -> tuple[list[float], float | None]:
        copies = [dice.uniform(0, 0.005)]
        match dice.randrange(10):
            case 0:
                copies = []
            case 1 | 2:
                copies = [dice.uniform(0.5, LATE_S)]
            case 3:
                copies.append(dice.uniform(0, LATE_S))
        answer_s = {0: None, 1: dice.uniform(0, 1.5)}.get(dice.randrange(8), dice.uniform(0, 0.005))
        return copies, answer_s

    return decide


async def break_things(cluster: Cluster) -> None:
    """Crash nodes and move partitions, one after the other."""
    dice = cluster.dice
    while True:
        await asyncio.sleep(dice.uniform(0.2, 3))
        if dice.random() < 0.3:
            node_id = dice.randrange(NODES)
            cluster.kill(node_id)
            await asyncio.sleep(dice.uniform(0.1, 2))
            await cluster.start_node(node_id)
        else:
            cluster.move(TopicPartition("t", dice.randrange(TOPICS["t"])), dice.randrange(NODES))
        cluster.announce(lambda: dice.uniform(0, 0.5))


def check(cluster: Cluster, run: TransactionRun) -> int:
    """Compare the logs with what a client knows. Return the number of its committed transactions."""
    verdicts: dict[bytes, dict[int, bool | None]] = {value: {} for value in run.outcomes}
    for partition in range(TOPICS["t"]):
        for segment in segments(cluster.files[TopicPartition("t", partition)]):
            (value,) = set(segment.values)  # one transaction, not two
            assert len(segment.values) == 1, f"{value!r} is in partition {partition} twice"
            if value in verdicts:
                assert partition not in verdicts[value], f"{value!r} goes on after its marker in partition {partition}"
                verdicts[value][partition] = segment.committed
    committed = [value for value, found in verdicts.items() if True in found.values()]
    for value, found in verdicts.items():
        assert None not in found.values(), f"{value!r} has no end: {found}"
        assert len(set(found.values())) <= 1, f"{value!r} ended differently: {found}"
        assert found.keys() >= run.written[value], f"{value!r} was lost: {found}, acknowledged {run.written[value]}"
        if run.outcomes[value] is not None:
            assert set(found.values()) == {run.outcomes[value]}
    offsets = [run.offsets[value] for value in committed if value in run.offsets]
    assert run.client.committed_offset() == max(offsets, default=None)
    assert run.client.status() in {*COMPLETE, TransactionStatus.EMPTY}
    return len(committed)


async def simulate(seed: int, *, adds: bool) -> None:
    dice = random.Random(seed)
    cluster = await Cluster(dice, NODES).start()
    runs = [
        TransactionRun(cluster, Client(cluster, f"id-{number}", group=f"group-{number}", adds=adds))
        for number in range(CLIENTS)
    ]
    cluster.network.fate = fate(dice)
    faults = asyncio.create_task(break_things(cluster))
    clients = [asyncio.create_task(run.run()) for run in runs]
    await asyncio.sleep(RUN_S)
    for task in (faults, *clients):
        task.cancel()
    await asyncio.gather(faults, *clients, return_exceptions=True)
    for node_id in cluster.node_ids:
        if node_id not in cluster.nodes:
            await cluster.start_node(node_id)
    cluster.network.fate = lambda _: ([0.001], 0.001)
    cluster.announce(lambda: 0.1)
    await asyncio.sleep(HEAL_S)
    assert sum(check(cluster, run) for run in runs) > 0
    await cluster.stop()


@pytest.mark.parametrize("adds", [True, False], ids=["version 1", "version 2"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_transactions_are_whole_on_all_nodes(seed: int, *, adds: bool) -> None:
    run_virtual(simulate(seed, adds=adds))
