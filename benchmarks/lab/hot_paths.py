"""The hot paths of a node, each as work that can be repeated: whole requests, then parts of the storage engine."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
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
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.sync_group import SyncGroupRequest
from anabranch.protocol.records import Record, build_batch
from anabranch.s3stream.model import ObjectKind, StreamBatch
from anabranch.s3stream.object.format import decode_block, encode_block
from anabranch.s3stream.object.writer import ObjectWriter
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import WalSettings
from benchmarks.lab.frames import request_frame
from benchmarks.lab.in_process import InProcessClient, InProcessNode, NullDevice
from tests.support.memory_store import MemoryStore

KIB: Final = 1 << 10
MIB: Final = 1 << 20
RECORD_BYTES: Final = KIB
ANY_INT32: Final = 0x12345678
ANY_INT64: Final = 0x123456789ABCDEF0
ERROR: Final = re.compile(r"error_code=(?!0\b)")
Run = Callable[[int], Awaitable[None]]


@dataclass(frozen=True)
class HotPath:
    """Work to be measured. `run(n)` does it n times."""

    name: str
    run: Run
    repeats: int
    """Number of times that makes a sample of some milliseconds."""
    check: Callable[[], None] = lambda: None
    """Asserts, after `run`, that the last answer has no error: a refused request would be a fast one."""


@dataclass(frozen=True)
class _Topic:
    name: str
    topic_id: bytes
    partitions: int


def batch_of(size_bytes: int) -> bytes:
    """Return a batch with records of 1 KiB, `size_bytes` in all."""
    value = os.urandom(RECORD_BYTES - 80)
    return bytes(build_batch([Record(None, value, 1_700_000_000_000)] * max(1, size_bytes // RECORD_BYTES)))


async def hot_paths(lab: InProcessNode) -> list[HotPath]:
    """Prepare topics, data and groups in a node; return all paths."""
    return [
        *await _produce_paths(lab),
        *await _fetch_paths(lab),
        *await _metadata_paths(lab),
        *await _group_paths(lab),
        *await _wal_paths(),
        *_object_paths(),
    ]


async def _create(lab: InProcessNode, name: str, partitions: int) -> _Topic:
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await lab.client.call(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
    assert not answer.topics[0].error_code, answer
    return _Topic(name, answer.topics[0].topic_id, partitions)


def _produce(topic: _Topic, batch: bytes, partitions: Sequence[int] | None = None) -> bytes:
    chosen = range(topic.partitions) if partitions is None else partitions
    data = [PartitionProduceData(index=index, records=batch) for index in chosen]
    topics = [TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=data)]
    return request_frame(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics))


def _fetch(
    topic: _Topic,
    offset: int,
    bytes_max: int,
    *,
    wait_ms: int = 0,
    session: tuple[int, int] = (0, -1),
    named: Sequence[int] | None = None,
) -> bytes:
    """Return a request from one offset. By default it names every partition, or none if it continues a session."""
    if named is None:
        named = () if session[0] else range(topic.partitions)
    wanted = [FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=bytes_max) for index in named]
    topics = [FetchTopic(topic=topic.name, topic_id=topic.topic_id, partitions=wanted)]
    return request_frame(
        FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            session_id=session[0],
            session_epoch=session[1],
            topics=topics if wanted else [],
        )
    )


def _asking(client: InProcessClient, *frames: bytes) -> Run:
    """Return a run that sends these requests at once and waits for the answers."""

    async def run(count: int) -> None:
        for _ in range(count):
            await client.exchange(frames)

    return run


def _checking(client: InProcessClient, request_type: type) -> Callable[[], None]:
    def check() -> None:
        answer = repr(client.answer_to(request_type))
        assert not ERROR.search(answer), answer

    return check


def _request_path(client: InProcessClient, name: str, request: Any, repeats: int) -> HotPath:
    """Return the path of one request, sent again and again."""
    return HotPath(name, _asking(client, request_frame(request)), repeats, _checking(client, type(request)))


async def _produce_paths(lab: InProcessNode) -> list[HotPath]:
    client, paths = lab.client, []
    answered = _checking(client, ProduceRequest)
    for partitions in (1, 16):
        topic = await _create(lab, f"produce-{partitions}", partitions)
        for size, repeats in ((KIB, 64), (16 * KIB, 48), (256 * KIB, 16)):
            frame = _produce(topic, batch_of(size))
            name = (
                f"produce, {size // KIB} KiB to each of {partitions}"
                if partitions > 1
                else f"produce, {size // KIB} KiB"
            )
            paths.append(
                HotPath(name, _asking(client, frame), max(2, repeats // (1 if partitions == 1 else 8)), answered)
            )
    five_to = await _create(lab, "produce-5", 5)
    five = [_produce(five_to, batch_of(16 * KIB), [index]) for index in range(5)]
    paths.append(HotPath("produce, 5 pipelined requests of 16 KiB", _asking(client, *five), 12, answered))
    return paths


async def _fetch_paths(lab: InProcessNode) -> list[HotPath]:
    client = lab.client
    warm = await _create(lab, "fetch", 1)
    cold = await _create(lab, "fetch-cold", 1)
    tail = await _create(lab, "fetch-tail", 1)
    for topic in (warm, cold):
        for _ in range(128):
            await client.exchange([_produce(topic, batch_of(16 * KIB))])
    await lab.node.serving.storage.flush()
    stored = lab.node.serving.topics.get(cold.name)
    assert stored is not None
    (partition,) = stored.partitions
    assert partition is not None
    lab.node.serving.storage.supersede(partition.stream.stream_id, partition.stream.next_offset)
    from_memory, from_blocks = _fetch(warm, 0, MIB), _fetch(cold, 0, MIB)
    for frame in (from_memory, from_blocks):
        await client.exchange([frame])
        await lab.node.serving.storage.loads_done()
        await client.exchange([frame])
        (found,) = client.answer_to(FetchRequest).responses[0].partitions
        assert not found.error_code, found
        assert len(found.records or b"") > MIB // 2, found.records
    assert lab.node.serving.storage.block_cache_bytes > MIB, "the cold topic is read from objects"
    fetched = _checking(client, FetchRequest)

    def filled() -> None:
        fetched()
        (found,) = client.answer_to(FetchRequest).responses[0].partitions
        assert len(found.records or b"") > MIB // 2, "a fetch of less would be a fast one"

    return [
        HotPath("fetch, 1 MiB of 16 KiB batches from the log cache", _asking(client, from_memory), 16, filled),
        HotPath("fetch, 1 MiB of 16 KiB batches from the block cache", _asking(client, from_blocks), 16, filled),
        HotPath("fetch of a batch of 1 KiB from the log cache", await _fetching_one(lab), 64, fetched),
        HotPath("fetch of 1 of 16 partitions, in a session", await _fetching_one_of(lab, 16), 32, fetched),
        HotPath("fetch at the tail, ended by a produce of 1 KiB", await _tailing(lab, tail), 32),
        HotPath("fetch of 100 idle partitions, in a session", await idle_session(lab, "fetch-idle", 100), 16, fetched),
    ]


async def _fetching_one(lab: InProcessNode) -> Run:
    """Return a run that fetches a batch which is there already, as a consumer that keeps up with its producer does."""
    topic = await _create(lab, "fetch-one", 1)
    await lab.client.exchange([_produce(topic, batch_of(KIB))])
    run = _asking(lab.client, _fetch(topic, 0, MIB, wait_ms=60_000))
    await run(1)
    assert lab.client.answer_to(FetchRequest).responses[0].partitions[0].records
    return run


async def _fetching_one_of(lab: InProcessNode, partitions: int) -> Run:
    """Return a run in a session of which one partition has a batch, and the client is at the end of the others."""
    client, topic = lab.client, await _create(lab, "fetch-one-of", partitions)
    await client.exchange([_produce(topic, batch_of(KIB), [0])])
    await client.exchange([_fetch(topic, 0, KIB // 2, session=(0, 0))])
    session_id = client.answer_to(FetchRequest).session_id
    fetch = _Patched(_fetch(topic, 0, KIB // 2, session=(session_id, ANY_INT32), named=[0]), ANY_INT32.to_bytes(4))
    run = _numbering(client, fetch)
    await run(1)
    (found,) = client.answer_to(FetchRequest).responses
    assert [bool(each.records) for each in found.partitions] == [True], "the answer has the one partition"
    return run


async def _tailing(lab: InProcessNode, topic: _Topic) -> Run:
    """Return a run in which a consumer waits at the end of a partition, and a producer's record arrives."""
    consumer, record = InProcessClient(lab.node), _produce(topic, batch_of(KIB))
    await lab.client.exchange([record])
    fetch = _Patched(_fetch(topic, ANY_INT64, MIB, wait_ms=60_000), ANY_INT64.to_bytes(8))
    end = 1

    async def run(count: int) -> None:
        nonlocal end
        for _ in range(count):
            waiting = asyncio.ensure_future(consumer.exchange([fetch.with_number(end)]))
            await asyncio.sleep(0)
            await lab.client.exchange([record])
            await waiting
            end += 1

    await run(1)
    assert consumer.answer_to(FetchRequest).responses[0].partitions[0].records, "the fetch was ended by the record"
    return run


async def idle_session(lab: InProcessNode, name: str, partitions: int) -> Run:
    """Create a topic and a fetch session of all its partitions; return a run that fetches nothing from it."""
    client, topic = lab.client, await _create(lab, name, partitions)
    await client.exchange([_fetch(topic, 0, MIB, session=(0, 0))])
    session_id = client.answer_to(FetchRequest).session_id
    assert session_id > 0, "a session was made"
    fetch = _Patched(_fetch(topic, 0, MIB, session=(session_id, ANY_INT32)), ANY_INT32.to_bytes(4))
    return _numbering(client, fetch)


def _numbering(client: InProcessClient, fetch: "_Patched") -> Run:
    """Return a run that sends a request of a session with its next epoch, again and again."""
    epoch = 0

    async def run(count: int) -> None:
        nonlocal epoch
        for _ in range(count):
            epoch += 1
            await client.exchange([fetch.with_number(epoch)])

    return run


class _Patched:
    """A frame in which one number changes from request to request, without the cost of encoding it again."""

    def __init__(self, frame: bytes, number: bytes) -> None:
        before, self._after = frame.split(number)
        self._before, self._width = before, len(number)

    def with_number(self, number: int) -> bytes:
        """Return the frame with another number."""
        return self._before + number.to_bytes(self._width) + self._after


async def _metadata_paths(lab: InProcessNode) -> list[HotPath]:
    client = lab.client
    topic = await _create(lab, "metadata", 16)
    for number in range(100):
        await _create(lab, f"metadata-{number}", 1)
    one = MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)], allow_auto_topic_creation=False)
    latest = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(16)]
    offsets = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic.name, partitions=latest)])
    greeting = ApiVersionsRequest(client_software_name="benchmark", client_software_version="1")
    return [
        _request_path(client, "metadata of a topic of 16 partitions", one, 32),
        _request_path(client, "metadata of 100 topics and more", MetadataRequest(topics=None), 4),
        _request_path(client, "list offsets, latest of 16 partitions", offsets, 32),
        _request_path(client, "API versions", greeting, 16),
    ]


async def _group_paths(lab: InProcessNode) -> list[HotPath]:
    client = lab.client
    topic = await _create(lab, "groups", 16)
    found = await client.call(FindCoordinatorRequest(coordinator_keys=["classic", "consumer"]))
    assert not any(coordinator.error_code for coordinator in found.coordinators), found
    generation, member = await _join(client, "classic")
    heartbeat = HeartbeatRequest(group_id="classic", generation_id=generation, member_id=member)
    offsets = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata="")
        for index in range(16)
    ]
    commit = OffsetCommitRequest(
        group_id="classic",
        generation_id_or_member_epoch=generation,
        member_id=member,
        topics=[OffsetCommitRequestTopic(topic_id=topic.topic_id, partitions=offsets)],
    )
    wanted = [OffsetFetchRequestTopics(topic_id=topic.topic_id, partition_indexes=range(16))]
    committed = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="classic", topics=wanted)])
    joining = ConsumerGroupHeartbeatRequest(
        group_id="consumer",
        member_id="member",
        member_epoch=0,
        rebalance_timeout_ms=300_000,
        subscribed_topic_names=[topic.name],
        topic_partitions=[],
    )
    joined = await client.call(joining)
    assert not joined.error_code, joined
    alive = ConsumerGroupHeartbeatRequest(group_id="consumer", member_id="member", member_epoch=joined.member_epoch)
    return [
        _request_path(client, "heartbeat", heartbeat, 64),
        _request_path(client, "consumer group heartbeat", alive, 64),
        _request_path(client, "offset commit of 16 partitions", commit, 8),
        _request_path(client, "offset fetch of 16 partitions", committed, 16),
    ]


async def _join(client: InProcessClient, group: str) -> tuple[int, str]:
    """Join a classic group as its only member. Returns generation and member id."""
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=300_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    joined = await client.call(request, 3)
    assert not joined.error_code, joined
    sync = SyncGroupRequest(group_id=group, generation_id=joined.generation_id, member_id=joined.member_id)
    synced = await client.call(sync, 3)
    assert not synced.error_code, synced
    return joined.generation_id, joined.member_id


async def _wal_paths() -> list[HotPath]:
    """Return paths of the log by itself. It is trimmed in each round, as by an upload, so that it never fills up."""
    settings = WalSettings(capacity_bytes=256 * MIB)
    wal = DeltaWal(NullDevice(settings.capacity_bytes), settings, node_id=1, node_epoch=1, now_ms=lambda: 1)
    assert not [record async for record in wal.recover()]

    def appending(record: bytes, records: int) -> Run:
        async def run(count: int) -> None:
            for _ in range(count):
                for _ in range(records):
                    appended = wal.append((record,))
                await appended.durable  # type: ignore[possibly-undefined]
                if wal.used_bytes > wal.capacity_bytes // 2:
                    await wal.trim(appended.offset)

        return run

    return [
        HotPath("log, a single record of 1 KiB", appending(bytes(KIB), 1), 64),
        HotPath("log, 100 records of 1 KiB in a turn", appending(bytes(KIB), 100), 8),
        HotPath("log, a record of 256 KiB", appending(bytes(256 * KIB), 1), 32),
    ]


def _object_paths() -> list[HotPath]:
    """Return paths from batches to objects and back."""
    payload = memoryview(os.urandom(16 * KIB))
    block = [StreamBatch(1, at, at + 1, 1, at, payload) for at in range(31)]
    entry, parts = encode_block(block, 0)
    data = b"".join(parts)
    set_batches = [
        StreamBatch(stream, at, at + 1, 1, at, payload[:KIB]) for stream in range(1, 101) for at in range(10)
    ]

    async def encode(count: int) -> None:
        for _ in range(count):
            encode_block(block, 0)

    async def decode(count: int) -> None:
        for _ in range(count):
            decode_block(data, entry, where="benchmark")

    async def write(count: int) -> None:
        for number in range(count):
            writer = ObjectWriter(
                MemoryStore("memory"), f"object/{number}", object_id=1, kind=ObjectKind.SSO, writer_id="benchmark"
            )
            for batch in set_batches:
                await writer.write(batch)
            await writer.finish()

    return [
        HotPath("object, encode a block of 31 batches of 16 KiB", encode, 32),
        HotPath("object, decode a block of 31 batches of 16 KiB", decode, 32),
        HotPath("object, write 1,000 batches of 100 streams", write, 2),
    ]
