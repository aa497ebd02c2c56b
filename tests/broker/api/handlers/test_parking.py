"""Requests for partitions that a node leads and has not opened yet: they wait, and clients see no error."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.init_producer_id import InitProducerIdRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from anabranch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.node import running_nodes
from tests.support.raw_client import RawClient, batch_of, connect
from tests.support.waiting import until as until_soon

pytestmark = pytest.mark.slow

LED_BY_THE_SECOND = 2
"""Partitions of each topic, all led by node 2."""
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


async def until(condition: Callable[[], bool]) -> None:
    await until_soon(condition, timeout_s=60, pause_s=0.01)


class Opening:
    """Two nodes, of which the second is held up, or fails, when it opens partitions."""

    def __init__(self, nodes: Sequence[Node], monkeypatch: pytest.MonkeyPatch, clients: AsyncExitStack) -> None:
        self.first, self.node = nodes
        self.released = asyncio.Event()
        self.failures = 0
        self._clients = clients
        self._creating: list[asyncio.Task[Any]] = []
        open_streams = self.node.serving.storage.open_streams

        async def opening(stream_ids: Sequence[int]) -> list[Stream]:
            await self.released.wait()
            streams = await open_streams(stream_ids)
            if self.failures:
                self.failures -= 1
                for stream in streams:
                    await self.node.serving.storage.close_stream(stream, discard=True)
                raise CatalogUnavailable("the answer is lost")
            return streams

        monkeypatch.setattr(self.node.serving.storage, "open_streams", opening)

    async def create(self, *names: str) -> None:
        """Create topics whose partitions the second node is to lead, and wait until it knows that."""
        specs = [
            TopicSpec(name, LED_BY_THE_SECOND, {}, internal=name != "t", leaders=[2] * LED_BY_THE_SECOND)
            for name in names
        ]
        self._creating.append(asyncio.create_task(self.first.serving.topic_commands.create_all(specs)))
        await until(lambda: all(self.is_opening(name) for name in names))

    def is_opening(self, name: str) -> bool:
        topic = self.node.serving.topics.get(name)
        return topic is not None and all(
            self.node.serving.topics.is_opening(topic, at) for at in range(LED_BY_THE_SECOND)
        )

    async def client(self) -> RawClient:
        """A connection to the second node."""
        client = await connect(self.node.bootstrap)
        self._clients.push_async_callback(client.close)
        return client

    async def parked(self, *requests: object) -> list[asyncio.Task[Any]]:
        """Send requests to the second node, each on its own connection; return their answers once all wait."""
        before = len(self.node.serving.parking)
        answers = [asyncio.create_task((await self.client()).call(request)) for request in requests]
        await until(lambda: len(self.node.serving.parking) == before + len(answers))
        return answers


@pytest.fixture
async def opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Opening]:
    # The first request must not be refused before the last one waits.
    monkeypatch.setattr("anabranch.broker.kafka.topics.parking.PARKED_S", 60.0)
    monkeypatch.setattr("anabranch.broker.api.handlers.fetch.PARKED_S", 60.0)
    async with running_nodes(tmp_path, 2) as nodes, AsyncExitStack() as clients:
        held = Opening(nodes, monkeypatch, clients)
        yield held
        held.released.set()


def produce(opening: Opening, *values: bytes, partition: int = 0) -> ProduceRequest:
    topic = opening.node.serving.topics.get("t")
    assert topic is not None
    data = PartitionProduceData(index=partition, records=batch_of(*values))
    return ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic.topic_id, partition_data=[data])]
    )


def fetch(opening: Opening, *partitions: int, wait_ms: int = 20_000) -> FetchRequest:
    topic = opening.node.serving.topics.get("t")
    assert topic is not None
    wanted = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in partitions]
    return FetchRequest(
        topics=[FetchTopic(topic_id=topic.topic_id, partitions=wanted)],
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_epoch=-1,
    )


LIST_OFFSETS = ListOffsetsRequest(
    replica_id=-1,
    topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])],
)
EPOCHS = OffsetForLeaderEpochRequest(
    topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=1)])]
)


async def test_the_new_leader_is_named_at_once_and_answers_when_it_has_opened_the_partition(opening: Opening) -> None:
    await opening.create("t")
    for node in (opening.first, opening.node):
        client = await connect(node.bootstrap)
        metadata = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 12)
        await client.close()
        assert [each.leader_id for each in metadata.topics[0].partitions] == [2, 2]
    answers = await opening.parked(produce(opening, b"a"), fetch(opening, 0), LIST_OFFSETS, EPOCHS)
    opening.released.set()
    produced, fetched, offsets, epochs = await asyncio.gather(*answers)
    assert produced.responses[0].partition_responses[0].error_code == 0
    assert fetched.responses[0].partitions[0].error_code == 0
    assert offsets.topics[0].partitions[0].error_code == 0
    assert epochs.topics[0].partitions[0].error_code == 0
    assert (len(opening.node.serving.parking), opening.node.serving.parking.opening) == (0, set())


async def test_a_fetch_waits_for_its_partition_and_then_for_data(opening: Opening) -> None:
    await opening.create("t")
    (fetching,) = await opening.parked(fetch(opening, 0))
    (producing,) = await opening.parked(produce(opening, b"a"))
    opening.released.set()
    await producing
    fetched = await fetching
    assert fetched.responses[0].partitions[0].records


async def test_a_fetch_with_data_of_another_partition_does_not_wait(opening: Opening) -> None:
    opening.released.set()
    await opening.first.serving.topic_commands.create_all([TopicSpec("t", 1, {}, internal=False, leaders=[2])])
    client = await opening.client()
    await until(lambda: opening.node.serving.topics.get("t") is not None)
    await client.call(produce(opening, b"a"))
    opening.released.clear()
    growing = asyncio.create_task(opening.first.serving.topic_commands.grow("t", 2, [2]))
    topic = opening.node.serving.topics.get("t")
    assert topic is not None
    await until(lambda: len(topic.partitions) == 2)
    response = await client.call(fetch(opening, 0, 1))
    found = {each.partition_index: each for each in response.responses[0].partitions}
    assert found[0].records
    assert found[1].error_code == NOT_LEADER
    opening.released.set()
    await growing


async def test_batches_of_a_connection_keep_their_order(opening: Opening) -> None:
    await opening.create("t")
    client = await opening.client()
    requests = [produce(opening, b"first"), produce(opening, b"second"), produce(opening, b"third")]
    for request in requests:
        client.send(request)
    await until(lambda: len(opening.node.serving.parking) == 1)
    opening.released.set()
    answers = [(await client.receive(ProduceRequest))[1] for _ in requests]
    assert [each.responses[0].partition_responses[0].base_offset for each in answers] == [0, 1, 2]


async def test_requests_are_refused_when_the_time_is_over(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anabranch.broker.kafka.topics.parking.PARKED_S", 0.1)
    monkeypatch.setattr("anabranch.broker.api.handlers.fetch.PARKED_S", 0.1)
    await opening.create("t")
    answers = [
        (await opening.client()).call(request)
        for request in (produce(opening, b"a"), fetch(opening, 0, wait_ms=10), LIST_OFFSETS, EPOCHS)
    ]
    produced, fetched, offsets, epochs = await asyncio.gather(*answers)
    assert produced.responses[0].partition_responses[0].error_code == NOT_LEADER
    assert produced.responses[0].partition_responses[0].current_leader.leader_id == 2, "it may try again here"
    assert fetched.responses[0].partitions[0].error_code == NOT_LEADER
    assert offsets.topics[0].partitions[0].error_code == NOT_LEADER
    assert epochs.topics[0].partitions[0].error_code == NOT_LEADER


async def test_requests_are_refused_when_too_many_bytes_wait(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening.node.serving.parking, "_bytes_max", 0)
    await opening.create("t")
    client = await opening.client()
    produced = await client.call(produce(opening, b"a"))
    assert produced.responses[0].partition_responses[0].error_code == NOT_LEADER
    fetched = await client.call(fetch(opening, 0))
    assert fetched.responses[0].partitions[0].error_code == NOT_LEADER
    offsets = await client.call(LIST_OFFSETS)
    assert offsets.topics[0].partitions[0].error_code == NOT_LEADER


async def test_a_client_that_leaves_takes_its_request_along(opening: Opening) -> None:
    await opening.create("t")
    client = await opening.client()
    for request in (produce(opening, b"a"), LIST_OFFSETS, fetch(opening, 0)):
        client = await opening.client()
        client.send(request)
        await until(lambda: len(opening.node.serving.parking) == 1)
        await client.close()
        await until(lambda: len(opening.node.serving.parking) == 0)
    opening.released.set()
    await until(lambda: not opening.is_opening("t"))
    assert opening.node.serving.topics.partition("t", 0).high_watermark == 0, "nothing was appended"


async def test_requests_wait_for_a_leader_whose_opening_was_not_answered(opening: Opening) -> None:
    opening.failures = 1
    await opening.create("t")
    answers = await opening.parked(produce(opening, b"a"), LIST_OFFSETS)
    opening.released.set()
    produced, offsets = await asyncio.gather(*answers)
    assert opening.failures == 0
    assert produced.responses[0].partition_responses[0].error_code == 0
    assert offsets.topics[0].partitions[0].error_code == 0


async def test_groups_and_transactions_wait_for_their_coordinator(opening: Opening) -> None:
    await opening.create(OFFSETS_TOPIC, TRANSACTION_TOPIC)
    client = await opening.client()
    for key_type in (0, 1):
        found = await client.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["x"]), 4)
        assert [(each.error_code, each.node_id) for each in found.coordinators] == [(0, 2)]
    answers = await opening.parked(
        JoinGroupRequest(
            group_id="x",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        HeartbeatRequest(group_id="x", member_id="m", generation_id=1),
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="x", topics=None)]),
        InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000),
        AddPartitionsToTxnRequest(
            transactions=[AddPartitionsToTxnTransaction(transactional_id="x", producer_id=1, producer_epoch=0)]
        ),
    )
    opening.released.set()
    joined, heartbeat, offsets, producer, added = await asyncio.gather(*answers)
    assert joined.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert heartbeat.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert offsets.groups[0].error_code == 0
    assert producer.error_code == 0
    assert added.error_code == 0


async def test_a_group_waits_until_it_is_loaded(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    opening.released.set()
    spec = TopicSpec(OFFSETS_TOPIC, LED_BY_THE_SECOND, {}, internal=True, leaders=[2] * LED_BY_THE_SECOND)
    await opening.first.serving.topic_commands.create_all([spec])
    shard = opening.node.serving.groups.shard_at(partition_of("x", LED_BY_THE_SECOND))
    monkeypatch.setattr(shard, "loaded", False)
    opening.node.serving.parking.begin(shard)
    assert opening.node.serving.groups.is_loading("x")
    (answer,) = await opening.parked(HeartbeatRequest(group_id="x", member_id="m", generation_id=1))
    monkeypatch.setattr(shard, "loaded", True)
    opening.node.serving.parking.end(shard)
    assert (await answer).error_code == ErrorCode.UNKNOWN_MEMBER_ID
