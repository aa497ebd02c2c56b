"""Members of share groups that cost little: requests and answers only, no decoding of records.

Each member has two connections, as Apache Kafka's share consumer: one for heartbeats, one for records. A fetch carries
the acknowledgements of the records before, asks for at most 500 records and waits for 500 ms, as that consumer does.
"""

import asyncio
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Self

from anabranch.client.connection import Connection
from anabranch.client.share import ACCEPT, acknowledge_request
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ForgottenTopic,
    ShareFetchRequest,
)
from anabranch.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from benchmarks.lab.frames import decode_response, request_frame

POLL_RECORDS: Final = 500
WAIT_MS: Final = 500
FETCH_BYTES: Final = 50 << 20
ASK_AGAIN_S: Final = 0.1
"""Pause before a member without an assignment asks again: partitions are assigned when their states exist."""
JOIN_TIMEOUT_S: Final = 120.0
STARTING: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)
SETTLE_S: Final = 1.5
"""Longer than Apache Kafka waits with an assignment after the one before (group.share.assignment.interval.ms)."""
GROUP_RESOURCE: Final = 32
APPLIED_S: Final = 1.0
"""Apache Kafka's coordinators apply a config of a group some time after it was answered, and show it before."""
READ_BUFFER_BYTES: Final = 1 << 20


class Acquired(NamedTuple):
    """Records that a member has got. Both offsets are included."""

    partition: int
    first_offset: int
    last_offset: int

    @property
    def records(self) -> int:
        """Number of records."""
        return self.last_offset - self.first_offset + 1


class Channel:
    """One connection, one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = asyncio.Lock()

    @classmethod
    async def open(cls, port: int) -> Self:
        """Connect to a broker on this machine."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=READ_BUFFER_BYTES))

    async def call(self, request: object) -> Any:
        """Send a request in its newest version, and return the answer."""
        async with self._turn:
            self._writer.write(request_frame(request))
            size = int.from_bytes(await self._reader.readexactly(4))
            answer = await self._reader.readexactly(size)
        return decode_response(type(request), answer)

    def close(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


class Member:
    """One member of a share group, subscribed to one topic."""

    def __init__(self, group: str, topic: str, topic_id: bytes, beats: Channel, records: Channel) -> None:
        self._group, self._topic, self._topic_id = group, topic, topic_id
        self._beats, self._records = beats, records
        self._member_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self._epoch = 0
        self._session_epoch = 0
        self._session: set[int] = set()
        """Partitions that the session has."""
        self.partitions: Sequence[int] = ()
        self.interval_s = 0.0
        """Interval of heartbeats that the broker asks for."""

    @classmethod
    async def connect(cls, port: int, group: str, topic: str, topic_id: bytes) -> Self:
        """Open the connections of a member. It has not joined yet."""
        return cls(group, topic, topic_id, await Channel.open(port), await Channel.open(port))

    def close(self) -> None:
        """Close the connections at once: records that are not acknowledged are released."""
        self._beats.close()
        self._records.close()

    # heartbeats

    async def beat(self) -> None:
        """Send one heartbeat: the first one joins. Raises RuntimeError."""
        joins = self._epoch == 0
        answer = await self._call_coordinator(
            ShareGroupHeartbeatRequest(
                group_id=self._group,
                member_id=self._member_id,
                member_epoch=self._epoch,
                subscribed_topic_names=[self._topic] if joins else None,
            )
        )
        self._epoch = answer.member_epoch
        self.interval_s = answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            self.partitions = [index for topic in answer.assignment.topic_partitions for index in topic.partitions]

    async def _call_coordinator(self, request: ShareGroupHeartbeatRequest) -> Any:
        """Send a heartbeat until the coordinator has loaded the group. Raises RuntimeError."""
        while True:
            answer = await self._beats.call(request)
            if answer.error_code not in STARTING:
                _check(answer.error_code, answer)
                return answer
            await self._beats.call(FindCoordinatorRequest(coordinator_keys=[self._group]))  # creates its topic
            await asyncio.sleep(ASK_AGAIN_S)

    async def join(self) -> None:
        """Join, and ask until partitions are assigned."""
        await self.beat()
        while not self.partitions:
            await asyncio.sleep(ASK_AGAIN_S)
            await self.beat()

    async def keep_alive(self) -> None:
        """Send heartbeats at the broker's interval until cancelled."""
        while True:
            await asyncio.sleep(self.interval_s)
            await self.beat()

    # records

    async def fetch(
        self,
        done: Sequence[Acquired] = (),
        *,
        wait_ms: int = WAIT_MS,
        records_max: int = POLL_RECORDS,
    ) -> list[Acquired]:
        """Acknowledge records, acquire others, or wait for some. Raises RuntimeError."""
        acknowledged = {each.partition for each in done}
        new = set(self.partitions) - self._session
        gone = self._session - set(self.partitions) - acknowledged
        partitions = [
            FetchPartition(
                partition_index=index,
                acknowledgement_batches=[
                    AcknowledgementBatch(
                        first_offset=each.first_offset, last_offset=each.last_offset, acknowledge_types=[ACCEPT]
                    )
                    for each in done
                    if each.partition == index
                ],
            )
            for index in sorted(new | acknowledged)
        ]
        self._session = (self._session | new) - gone
        answer = await self._records.call(
            ShareFetchRequest(
                group_id=self._group,
                member_id=self._member_id,
                share_session_epoch=self._session_epoch,
                max_wait_ms=wait_ms,
                min_bytes=1,
                max_bytes=FETCH_BYTES,
                max_records=records_max,
                batch_size=records_max,
                topics=[FetchTopic(topic_id=self._topic_id, partitions=partitions)] if partitions else [],
                forgotten_topics_data=[ForgottenTopic(topic_id=self._topic_id, partitions=sorted(gone))]
                if gone
                else [],
            )
        )
        _check(answer.error_code, answer)
        self._session_epoch += 1
        found = []
        for topic in answer.responses:
            for part in topic.partitions:
                _check(part.error_code or part.acknowledge_error_code, part)
                found += [
                    Acquired(part.partition_index, each.first_offset, each.last_offset)
                    for each in part.acquired_records
                ]
        return found

    async def acknowledge(self, done: Sequence[Acquired]) -> None:
        """Acknowledge records, and wait until that is durable. Raises RuntimeError."""
        runs: dict[tuple[bytes, int], list[tuple[int, int, int]]] = {}
        for each in done:
            runs.setdefault((self._topic_id, each.partition), []).append((each.first_offset, each.last_offset, ACCEPT))
        answer = await self._records.call(acknowledge_request(self._group, self._member_id, self._session_epoch, runs))
        _check(answer.error_code, answer)
        self._session_epoch += 1
        for topic in answer.responses:
            for part in topic.partitions:
                _check(part.error_code, part)


def _check(code: int, answer: object) -> None:
    if code:
        raise RuntimeError(f"the broker answered with error {code}: {answer}"[:1000])


async def _settle(members: Sequence[Member]) -> None:
    """Send heartbeats until no member hears of another assignment: states and assignments come bit by bit."""
    before = None
    while (now := [tuple(member.partitions) for member in members]) != before:
        before = now
        await asyncio.sleep(SETTLE_S)
        await asyncio.gather(*(member.beat() for member in members))


@asynccontextmanager
async def members_of(port: int, group: str, topic: str, topic_id: bytes, count: int) -> AsyncIterator[list[Member]]:
    """Members that have joined and have their partitions, and send heartbeats."""
    members = [await Member.connect(port, group, topic, topic_id) for _ in range(count)]
    async with asyncio.TaskGroup() as tasks:
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            await asyncio.gather(*(member.join() for member in members))
            await _settle(members)
        beats = [tasks.create_task(member.keep_alive()) for member in members]
        try:
            yield members
        finally:
            for task in beats:
                task.cancel()
            for member in members:
                member.close()


def configure(connection: Connection, group: str, **configs: str) -> None:
    """Let a share group begin with the first records, and set other configs; `_` in names stands for a dot."""
    wanted: Mapping[str, str] = {
        "share.auto.offset.reset": "earliest",
        **{name.replace("_", "."): value for name, value in configs.items()},
    }
    resource = AlterConfigsResource(
        resource_type=GROUP_RESOURCE,
        resource_name=group,
        configs=[AlterableConfig(name=name, config_operation=0, value=value) for name, value in wanted.items()],
    )
    answer = connection.call(IncrementalAlterConfigsRequest(resources=[resource]))
    _check(answer.responses[0].error_code, answer)
    time.sleep(APPLIED_S)


async def consume(members: Sequence[Member], records: int) -> float:
    """Let all members consume until they have got that many records; return the seconds. Raises RuntimeError."""
    left = records
    over = asyncio.Event()

    async def run(member: Member) -> None:
        nonlocal left
        found: list[Acquired] = []
        while True:
            found = await member.fetch(found)
            left -= sum(each.records for each in found)
            if left <= 0:
                over.set()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(member)) for member in members]
        await over.wait()
        seconds = time.perf_counter() - began
        for task in running:
            task.cancel()
    return seconds
