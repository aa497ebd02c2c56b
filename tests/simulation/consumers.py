"""Consumers of the simulation: readers of partitions, commits of offsets without members, deletion of records."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from anabranch.broker.kafka.topics.tail_partition import TailPartition
from anabranch.protocol.batch import check_crc, iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.records import ControlType, decode_records
from tests.simulation.history import History, TopicPartition, Violation
from tests.simulation.node import CATALOG, SimNode
from tests.simulation.routing import Client, Lost, Refused, check
from tests.simulation.world import World
from tests.support.raw_client import RawClient

EARLIEST, LATEST = -2, -1
REPLICA_MS = 4_000
"""Age of the oldest state that a replica serves: three seconds, and one to spare."""
STILL_S = 10.0
"""Time within which a tail gets something of what its leader says to have: it may be one of several partitions."""
BESIDE_SHARE = 0.3
"""Share of the requests to replicas that ask for history of another partition, too: their answers wait for objects."""
SENT_AGAIN_S = 5.0
"""Time for which a leader sends no reader to a replica again that has given it nothing, less some for the way."""
T = TypeVar("T")


async def committed_offset(client: Client, group: str, where: TopicPartition) -> int:
    """Return a group's committed offset; -1 if there is none."""
    asked = OffsetFetchRequestTopics(name=where[0], partition_indexes=[where[1]])
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=[asked])], require_stable=True)

    async def ask() -> int:
        answer = await client.call(request, 8)
        found = answer.groups[0]
        check(found.error_code, f"OffsetFetch {group}")
        partition = found.topics[0].partitions[0]
        check(partition.error_code, f"OffsetFetch {group} {where}")
        return int(partition.committed_offset)

    return await answered(client, ask)


async def answered(client: Client, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer. Raises Violation after an error that is not for a while."""
    while True:
        try:
            return await ask()
        except Lost:
            await client.pause()
        except Refused as error:
            if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                raise Violation(str(error)) from error
            await client.pause()


class Committer:
    """A consumer without members: commits offsets that only grow, and reads them back."""

    def __init__(self, world: World, name: str, where: TopicPartition) -> None:
        self.client = Client(world, name)
        self.world = world
        self.name = name
        self.where = where
        self.sent = world.first_offset
        self.acked = 0

    async def run(self) -> None:
        while not self.world.faults_over.is_set():
            self.sent += self.client.random.randint(1, 10)
            try:
                answer = await self.client.call(
                    OffsetCommitRequest(
                        group_id=self.name,
                        topics=[
                            OffsetCommitRequestTopic(
                                name=self.where[0],
                                partitions=[
                                    OffsetCommitRequestPartition(
                                        partition_index=self.where[1], committed_offset=self.sent, committed_metadata=""
                                    )
                                ],
                            )
                        ],
                    ),
                    8,
                )
                check(answer.topics[0].partitions[0].error_code, f"OffsetCommit {self.name}")
                self.acked = self.sent
            except Lost:
                await self.client.pause()
            except Refused as error:
                if not error.code.retriable and error.code is not ErrorCode.UNKNOWN_SERVER_ERROR:
                    raise Violation(str(error)) from error
            await self.check()
            await asyncio.sleep(self.client.random.expovariate(1))

    async def check(self) -> None:
        """Check that no acked commit is lost."""
        found = await committed_offset(self.client, self.name, self.where)
        if not self.acked <= max(found, 0) <= self.sent:
            raise Violation(f"group {self.name}: committed offset {found}, acked {self.acked}, sent {self.sent}")
        self.acked = max(found, 0)


class Reader:
    """Reads a partition as a consumer does, and checks that it has no gap."""

    def __init__(
        self,
        world: World,
        history: History,
        name: str,
        where: TopicPartition,
        *,
        committed: bool,
        rack: str = "",
        beside: Sequence[TopicPartition] = (),
    ) -> None:
        """`beside` are partitions of which replicas are asked for history along with this one."""
        self.client = Client(world, name)
        self.name = name
        self.world = world
        self.history = history
        self.where = where
        self.committed = committed
        self.rack = rack
        self.beside = beside
        self.replica: SimNode | None = None
        """Node to read from instead of the leader."""
        self.sender: RawClient | None = None
        """The leader that has named it."""
        self.refusals: list[tuple[RawClient | None, int, float]] = []
        """The last replicas in a row that gave nothing: the leader that had named each, the offset and the time."""
        self.still_s: float | None = None
        """Time since when a tail has given nothing of what there is."""
        self.offset = 0
        self.start = 0
        self.high_watermark = self.stable = 0
        self.found: dict[int, str] = {}
        """Values read so far by offset."""

    async def run(self) -> None:
        """Read until the faults are over, at times from the beginning again."""
        random = self.client.random
        while not self.world.faults_over.is_set():
            await self.step()
            if random.random() < 0.02:
                self.offset = self.start
            await asyncio.sleep(random.uniform(0, 0.3))

    async def read_all(self) -> None:
        """Read from the beginning to the end that there is when it gets there."""
        await self._seek(EARLIEST)
        self.found.clear()
        while True:
            if await self.step():
                end = self.stable if self.committed else self.high_watermark
                if self.offset >= end:
                    return

    async def step(self) -> bool:
        """Fetch once. Returns False if it failed."""
        where, random = self.where, self.client.random
        request = FetchRequest(
            max_wait_ms=random.choice((0, 100, 500)),
            min_bytes=1,
            max_bytes=random.choice((1_000, 100_000, 1 << 20)),
            isolation_level=int(self.committed),
            topics=[
                FetchTopic(
                    topic=where[0],
                    partitions=[
                        FetchPartition(
                            partition=where[1],
                            current_leader_epoch=self.client.leader_epoch(where),
                            fetch_offset=self.offset,
                            partition_max_bytes=random.choice((1, 10_000, 1 << 20)),
                        )
                    ],
                )
            ],
            rack_id=self.rack,
        )
        replica, self.replica, asked_ms = self.replica, None, self.world.now_ms()
        tail, offset = self._tail_at(replica), self.offset
        try:
            if replica is None:
                answer = await self.client.call(request, 12)
            else:
                if self.beside and random.random() < BESIDE_SHARE:
                    request = replace(request, topics=[*request.topics, self._history_beside()])
                answer = await self.client.call_node(replica, request, 12)
            check(answer.error_code, f"Fetch {where}")
            found = next(each for each in answer.responses if each.topic == where[0]).partitions[0]
            check(found.error_code, f"Fetch {where} offset {self.offset}")
        except Lost:
            await self.client.pause()
            return False
        except Refused as error:
            if replica is not None:
                self.refusals.append((self.sender, self.offset, self.world.now_s))
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and replica is None:  # else the leader is asked
                before = self.offset
                await self._seek(EARLIEST)
                if self.offset <= before:
                    raise Violation(f"{error}, and the log starts at {self.offset}") from error
            elif not error.code.retriable and error.code not in {
                ErrorCode.OFFSET_OUT_OF_RANGE,
                ErrorCode.UNKNOWN_SERVER_ERROR,
            }:
                raise Violation(str(error)) from error
            await self.client.pause()
            return False
        if found.preferred_read_replica >= 0 and replica is not None:
            self.refusals.append((self.sender, self.offset, self.world.now_s))
            return False  # it names the leader
        self.replica = replica
        if replica is not None:
            self._check_replica(replica, tail, asked_ms, found)
        if found.preferred_read_replica >= 0:
            await self._go_to(self.world.node(found.preferred_read_replica))
        self.high_watermark, self.stable = found.high_watermark, found.last_stable_offset
        self.history.high_watermark(where, found.high_watermark)
        if found.log_start_offset > self.start:
            self.start = found.log_start_offset
            self.history.log_start(where, self.start)
        if found.log_start_offset > found.high_watermark:
            raise Violation(f"{where}: starts at {found.log_start_offset} and ends at {found.high_watermark}")
        self._take(found)
        self._check_moves(tail if tail is self._tail_at(replica) else None, offset)
        return True

    def _history_beside(self) -> FetchTopic:
        """Return the beginning of another partition, to be asked for: only objects may have it."""
        topic, index = self.client.random.choice(self.beside)
        start = self.history.partitions[topic, index].start
        partition = FetchPartition(partition=index, fetch_offset=start, partition_max_bytes=1)
        return FetchTopic(topic=topic, partitions=[partition])

    def _check_moves(self, tail: TailPartition | None, before: int) -> None:
        """Check that a tail that was read from the offset `before` on does not stand still; None: there is none."""
        end = self.stable if self.committed else self.high_watermark
        if tail is None or self.offset > before or self.offset >= end:
            self.still_s = None
        elif self.still_s is None:
            self.still_s = self.world.now_s
        elif self.world.now_s - self.still_s > STILL_S:
            raise Violation(f"{self.where}: a tail stands still at offset {self.offset}, and {end} is its end")

    def _tail_at(self, node: SimNode | None) -> TailPartition | None:
        """Return the tail of the partition that a node follows, if it has what this reader needs next."""
        if node is None or node.node is None:
            return None
        serving = node.node.serving
        topic = serving.topics.get(self.where[0])
        if topic is None:
            return None
        tail = serving.replicas.tails.get(topic.info.partitions[self.where[1]].stream_id)
        return tail if tail is not None and tail.holds(self.offset) else None

    async def _go_to(self, replica: SimNode) -> None:
        """Read from a node from now on, which the leader has named. Raises Violation if it is sent to and fro."""
        sender = await self.client.raw(await self.client.node_for(self.where))  # by which leaders tell readers apart
        since_s = self.world.now_s - SENT_AGAIN_S
        refused = [each for each in self.refusals if each[:2] == (sender, self.offset) and each[2] > since_s]
        if len(refused) > 1:
            raise Violation(f"{self.where}: sent to and fro at offset {self.offset}, which replicas have refused twice")
        self.refusals = refused
        self.replica, self.sender = replica, sender

    def _check_replica(self, replica: SimNode, before: TailPartition | None, asked_ms: int, found: Any) -> None:
        """Check that what a replica has served was not too old when it was asked, when it had `before`, or no tail."""
        after = self._tail_at(replica)
        tail = before or after
        world, where, oldest_ms = self.world, self.where, asked_ms - REPLICA_MS
        world.count("reads from replicas")
        world.note("read from a replica", reader=self.name, node=replica.host)
        start, end = found.log_start_offset, found.high_watermark
        known = self.history.start_at(where, oldest_ms)
        if start < known:
            raise Violation(f"{where}: the replica {replica.host} starts at {start}, long after {known} was told")
        known = self.history.end_at(where, oldest_ms)
        if before is not None and before is after and end < known:
            raise Violation(f"{where}: the replica {replica.host} ends at {end}, long after {known} was told")
        source = CATALOG if tail is None else world.node(tail.led.leader).host
        if tail is not None:
            world.count("reads of tails")
            world.count("reads of tails in part", number=tail.next_offset < tail.high_watermark)
        cut_s = world.network.cut_s(replica.host, source)
        if cut_s * 1000 > world.now_ms() - oldest_ms:
            raise Violation(f"{where}: the replica {replica.host} serves, cut off from {source} for {cut_s:.1f} s")

    def _take(self, found: Any) -> None:
        """Take the records of a response, as a consumer of its isolation level does."""
        aborts = sorted((each.first_offset, each.producer_id) for each in found.aborted_transactions or ())
        aborted: set[int] = set()
        records = found.records
        if records is None:
            return
        for header, batch in iterate_batches(records if isinstance(records, (bytes, memoryview)) else bytes(records)):
            if header.next_offset <= self.offset:
                continue
            check_crc(batch, header)
            self._check_next(header.base_offset)
            if self.committed and header.next_offset > self.stable:
                raise Violation(f"{self.where} offset {header.base_offset}: beyond the stable offset {self.stable}")
            if header.next_offset > self.high_watermark:
                raise Violation(f"{self.where} offset {header.base_offset}: beyond the end {self.high_watermark}")
            while aborts and aborts[0][0] <= header.last_offset:
                aborted.add(aborts.pop(0)[1])
            if header.is_control:
                for marker in decode_records(batch):  # none, if the topic was cleaned
                    if int.from_bytes((marker.key or b"")[2:4], "big") == ControlType.ABORT:
                        aborted.discard(header.producer_id)
            elif not (self.committed and header.is_transactional and header.producer_id in aborted):
                for offset, value in self.history.values_of(header, batch):
                    if offset >= self.offset:
                        self.found[offset] = value
                        self.history.read(self.where, offset, value, committed=self.committed)
            self.offset = header.next_offset

    def _check_next(self, base_offset: int) -> None:
        compacted = self.where[0] in self.history.compacted
        if base_offset > self.offset and not compacted and self.offset >= self.start:
            raise Violation(f"{self.where}: a gap from {self.offset} to {base_offset}")

    async def _seek(self, timestamp: int) -> None:
        self.offset = await list_offset(self.client, self.where, timestamp)
        if timestamp == EARLIEST:
            self.start = self.offset
            self.history.log_start(self.where, self.offset)


async def list_offset(client: Client, where: TopicPartition, timestamp: int) -> int:
    """Return the earliest or latest offset of a partition."""
    asked = ListOffsetsPartition(partition_index=where[1], timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=where[0], partitions=[asked])])

    async def ask() -> int:
        answer = await client.call(request, 5)
        found = answer.topics[0].partitions[0]
        check(found.error_code, f"ListOffsets {where}")
        return int(found.offset)

    return await answered(client, ask)


class Deleter:
    """Deletes the oldest records of a partition now and then."""

    def __init__(self, world: World, history: History, name: str, where: TopicPartition) -> None:
        self.client = Client(world, name)
        self.name = name
        self.world = world
        self.history = history
        self.where = where

    async def run(self) -> None:
        random: Random = self.client.random
        while not self.world.faults_over.is_set():
            await asyncio.sleep(random.expovariate(0.1))
            await self.delete(kept=50)

    async def delete(self, *, kept: int) -> None:
        """Delete some records, none of the last `kept` offsets."""
        known = self.history.partitions[self.where]
        acked = max(known.acked, default=0)
        target = self.client.random.randint(known.start, max(known.start, acked - kept))
        if target <= known.start:
            return
        known.asked_start = max(known.asked_start, target)
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=self.where[0],
                    partitions=[DeleteRecordsPartition(partition_index=self.where[1], offset=target)],
                )
            ],
            timeout_ms=5_000,
        )
        with suppress(Lost):
            answer = await self.client.call(request, 2)
            found = answer.topics[0].partitions[0]
            if not found.error_code:
                self.history.log_start(self.where, found.low_watermark)
