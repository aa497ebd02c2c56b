"""A share group on a cluster whose nodes die and move partitions, and what its acknowledgements promise.

Each worker takes records of one partition from whichever node leads it, as a member with a session of its own. What is
checked: a record whose acknowledgement was answered is not delivered by a later request, nor acknowledged twice.
"""

import asyncio
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from anabranch.client.share import ACCEPT, RELEASE, acknowledge_request
from anabranch.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from tests.support.raw_client import RawClient, connect

GROUP: Final = "workers"
RECORDS: Final = 20
"""Most records of a request."""
WAIT_MS: Final = 300
RETRY_S: Final = 0.02
BEAT_S: Final = 1.0


class Refused(Exception):
    """A node answered with an error, or knows no leader."""


class BrokenPromise(Exception):
    """A record was delivered or acknowledged again after its acknowledgement."""


class Promises:
    """The acknowledgements of all workers, by partition and offset."""

    def __init__(self) -> None:
        self.done_s: dict[tuple[int, int], float] = {}
        """Time at which the acknowledgement of a record was answered with success."""
        self.unsure: set[tuple[int, int]] = set()
        """Records whose acknowledgement was sent: those that are not done may be."""
        self.released = 0
        """Releases that were answered with success."""
        self.fresh_s: dict[int, list[tuple[float, float]]] = {}
        """By partition: when a fetch was sent whose records were then acknowledged, and when that was answered."""

    def deliver(self, place: tuple[int, int], sent_s: float) -> None:
        """Note a record of a fetch that was sent then. Raises BrokenPromise."""
        done_s = self.done_s.get(place)
        if done_s is not None and sent_s > done_s:
            raise BrokenPromise(f"partition {place[0]} offset {place[1]}: delivered after its acknowledgement")

    def acknowledge(self, place: tuple[int, int]) -> None:
        """Note that an acknowledgement was answered with success. Raises BrokenPromise."""
        if place in self.done_s:
            raise BrokenPromise(f"partition {place[0]} offset {place[1]}: acknowledged twice")
        self.done_s[place] = time.monotonic()

    def taken_since(self, since_s: float) -> Mapping[int, float]:
        """Return seconds from `since_s` until each partition had acknowledged records of a later fetch, if it has."""
        found: dict[int, float] = {}
        for partition, fresh_s in self.fresh_s.items():
            answered_s = [answered for sent, answered in fresh_s if sent > since_s]
            if answered_s:
                found[partition] = min(answered_s) - since_s
        return found

    def lost(self, counts: Mapping[int, int]) -> Sequence[tuple[int, int]]:
        """Return the records, of so many in each partition, that no worker has ever acknowledged."""
        places = {(partition, offset) for partition, count in counts.items() for offset in range(count)}
        return sorted(places - self.done_s.keys() - self.unsure)


class Worker:
    """A member that takes the records of one partition."""

    def __init__(self, servers: Sequence[str], topic: str, partition: int, promises: Promises) -> None:
        self._servers, self._topic, self._partition = servers, topic, partition
        self._promises = promises
        self._member_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._client: RawClient | None = None
        self._topic_id = bytes(16)
        self._epoch = 0

    async def run(self) -> None:
        """Take records until cancelled. Raises BrokenPromise."""
        try:
            while True:
                try:
                    await self._step(self._client or await self._connect())
                except (OSError, EOFError, TimeoutError, Refused):
                    await self._forget()
                    await asyncio.sleep(RETRY_S)
        finally:
            await self._forget()

    async def _connect(self) -> RawClient:
        """Connect to the leader, as any node names it."""
        for address in self._servers:
            with suppress(OSError, EOFError, TimeoutError):
                asked = await connect(address)
                try:
                    request = MetadataRequest(topics=[MetadataRequestTopic(name=self._topic)])
                    found = await asked.call(request)
                finally:
                    await asked.abort()
                (topic,) = found.topics
                (part,) = [each for each in topic.partitions if each.partition_index == self._partition]
                leaders = [each for each in found.brokers if each.node_id == part.leader_id]
                if leaders:
                    self._topic_id, self._epoch = bytes(topic.topic_id), 0
                    self._client = await connect(f"{leaders[0].host}:{leaders[0].port}")
                    return self._client
        raise Refused

    async def _step(self, client: RawClient) -> None:
        sent_s = time.monotonic()
        answer = await client.call(
            ShareFetchRequest(
                group_id=GROUP,
                member_id=self._member_id,
                share_session_epoch=self._next_epoch(),
                max_wait_ms=WAIT_MS,
                min_bytes=1,
                max_bytes=1 << 20,
                max_records=RECORDS,
                batch_size=RECORDS,
                topics=[
                    FetchTopic(topic_id=self._topic_id, partitions=[FetchPartition(partition_index=self._partition)])
                ],
            )
        )
        kinds: dict[int, int] = {}
        for part in self._parts(answer):
            for acquired in part.acquired_records:
                for offset in range(acquired.first_offset, acquired.last_offset + 1):
                    self._promises.deliver((self._partition, offset), sent_s)
                    # Some are delivered again, as when a worker has failed.
                    kinds[offset] = RELEASE if acquired.delivery_count == 1 and offset % 10 == 0 else ACCEPT
        if kinds:
            await self._acknowledge(client, kinds, sent_s)

    async def _acknowledge(self, client: RawClient, kinds: dict[int, int], sent_s: float) -> None:
        promises, partition = self._promises, self._partition
        promises.unsure.update((partition, offset) for offset, kind in kinds.items() if kind == ACCEPT)
        runs = {(self._topic_id, partition): [(offset, offset, kind) for offset, kind in sorted(kinds.items())]}
        answer = await client.call(acknowledge_request(GROUP, self._member_id, self._next_epoch(), runs))
        self._parts(answer)
        for offset, kind in kinds.items():
            if kind == ACCEPT:
                promises.acknowledge((partition, offset))
            else:
                promises.released += 1
        promises.fresh_s.setdefault(partition, []).append((sent_s, time.monotonic()))

    def _parts(self, answer: Any) -> Sequence[Any]:
        """Return what is answered of the partition. Raises Refused."""
        parts = [part for topic in answer.responses for part in topic.partitions]
        if answer.error_code or any(part.error_code for part in parts):
            raise Refused
        return parts

    def _next_epoch(self) -> int:
        epoch = self._epoch
        self._epoch += 1
        return epoch

    async def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.abort()


class Keeper:
    """A member that only sends heartbeats, so that the group has states and stays."""

    def __init__(self, servers: Sequence[str], topic: str, partitions: int) -> None:
        self._servers, self._topic, self._partitions = servers, topic, partitions
        self._member_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._epoch = 0
        self.assigned = 0
        """Number of partitions that the group has states for."""

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        while True:
            with suppress(OSError, EOFError, TimeoutError, Refused):
                await self._beat()
            await asyncio.sleep(BEAT_S if self.assigned == self._partitions else RETRY_S)

    async def _beat(self) -> None:
        joins = self._epoch == 0
        request = ShareGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self._member_id,
            member_epoch=self._epoch,
            subscribed_topic_names=[self._topic] if joins else None,
        )
        answer = await self._ask(request)
        if answer.error_code:
            self._epoch = 0
            raise Refused
        self._epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = sum(len(topic.partitions) for topic in answer.assignment.topic_partitions)

    async def lag(self) -> int:
        """Return the number of records that are not acknowledged durably. Raises Refused, OSError, EOFError."""
        topic = DescribeShareGroupOffsetsRequestTopic(topic_name=self._topic, partitions=list(range(self._partitions)))
        group = DescribeShareGroupOffsetsRequestGroup(group_id=GROUP, topics=[topic])
        answer = await self._ask(DescribeShareGroupOffsetsRequest(groups=[group]))
        parts = [part for found in answer.groups for topic in found.topics for part in topic.partitions]
        if len(parts) < self._partitions or any(part.error_code or part.lag < 0 for part in parts):
            raise Refused
        return sum(part.lag for part in parts)

    async def _ask(self, request: object) -> Any:
        """Ask the coordinator of the group. Raises Refused, OSError, EOFError."""
        for address in self._servers:
            with suppress(OSError, EOFError, TimeoutError):
                asked = await connect(address)
                try:
                    (found,) = (await asked.call(FindCoordinatorRequest(coordinator_keys=[GROUP]))).coordinators
                finally:
                    await asked.abort()
                if not found.error_code:
                    coordinator = await connect(f"{found.host}:{found.port}")
                    try:
                        return await coordinator.call(request)
                    finally:
                        await coordinator.abort()
        raise Refused


@asynccontextmanager
async def share_workers(
    servers: Sequence[str], topic: str, partitions: int, *, per_partition: int = 2
) -> AsyncIterator[tuple[Promises, Keeper]]:
    """Workers at all partitions, from the time when the group has states for them. Raises BrokenPromise at the end."""
    promises, keeper = Promises(), Keeper(servers, topic, partitions)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(keeper.run())]
        while keeper.assigned < partitions:  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(RETRY_S)
        running += [
            group.create_task(Worker(servers, topic, index, promises).run())
            for index in range(partitions)
            for _ in range(per_partition)
        ]
        try:
            yield promises, keeper
        finally:
            for task in running:
                task.cancel()


async def wait_all_taken(keeper: Keeper) -> None:
    """Wait until every record is acknowledged durably."""
    while True:
        with suppress(OSError, EOFError, TimeoutError, Refused):
            if not await keeper.lag():
                return
        await asyncio.sleep(RETRY_S)
