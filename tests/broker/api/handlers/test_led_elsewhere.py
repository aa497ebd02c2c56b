"""Requests for partitions that other nodes lead, and the leaders that clients are told with the error (KIP-951)."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from anabranch.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from anabranch.s3stream.errors import StreamFenced
from tests.support.many_nodes import (
    FIRST,
    NOT_OPEN,
    OF_THE_DEAD,
    OF_THE_FIRST,
    OF_THE_THIRD,
    OWN,
    THIRD,
    node_of_many,
    tell_of_leader,
)
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

pytestmark = pytest.mark.slow

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER
NOBODY = (-1, -1)
EVERY = range(5)
LEADERS_TOLD = {OWN: NOBODY, OF_THE_THIRD: (3, 1), OF_THE_FIRST: (1, 1), OF_THE_DEAD: NOBODY, NOT_OPEN: (3, 0)}
"""Leader and leader epoch that an error comes with."""
ENDPOINTS = {(1, "first", 9001, "a"), (3, "third", 9003, None)}
LONG_MS = 20_000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_of_many(tmp_path) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


@pytest.fixture
async def other(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


def id_of(node: Node) -> bytes:
    topic = node.serving.topics.get("t")
    assert topic is not None
    return topic.topic_id


def produce_request(node: Node, version: int, *partitions: int, acks: int = -1) -> ProduceRequest:
    data = [PartitionProduceData(index=index, records=bytes(batch_of(b"a"))) for index in partitions]
    topic = (
        TopicProduceData(name="t", partition_data=data)
        if version < 13
        else TopicProduceData(topic_id=id_of(node), partition_data=data)
    )
    return ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])


def fetch_request(
    node: Node, version: int, *partitions: int, epoch: int = -1, wait_ms: int = 0, session_epoch: int = -1
) -> FetchRequest:
    wanted = [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20, current_leader_epoch=epoch)
        for index in partitions
    ]
    topic = (
        FetchTopic(topic="t", partitions=wanted)
        if version < 13
        else FetchTopic(topic_id=id_of(node), partitions=wanted)
    )
    return FetchRequest(topics=[topic], max_wait_ms=wait_ms, min_bytes=1, session_epoch=session_epoch)


def endpoints_of(response: FetchResponse | ProduceResponse) -> set[tuple[int, str, int, str | None]]:
    return {(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints}


async def test_produce_tells_who_leads(node: Node, client: RawClient) -> None:
    for version in range(3, 14):
        response = await client.call(produce_request(node, version, *EVERY), version)
        (topic,) = response.responses
        told = {
            each.index: (each.current_leader.leader_id, each.current_leader.leader_epoch)
            for each in topic.partition_responses
        }
        assert [each.error_code for each in topic.partition_responses] == [0, *[NOT_LEADER] * 4]
        assert told == (LEADERS_TOLD if version >= 10 else dict.fromkeys(EVERY, NOBODY))
        assert endpoints_of(response) == (ENDPOINTS if version >= 10 else set())


async def test_produce_without_acks_closes_when_another_node_leads(node: Node, client: RawClient) -> None:
    client.send(produce_request(node, 10, OF_THE_THIRD, acks=0), 10)
    assert await client.closed()


async def test_produce_names_a_leader_while_it_lives(node: Node, client: RawClient) -> None:
    node.serving.members.update([FIRST])
    response = await client.call(produce_request(node, 13, OF_THE_FIRST, OF_THE_THIRD), 13)
    told = [each.current_leader.leader_id for each in response.responses[0].partition_responses]
    assert told == [1, -1]
    assert endpoints_of(response) == {(1, "first", 9001, "a")}


async def test_fetch_tells_who_leads(node: Node, client: RawClient) -> None:
    for version in range(4, 19):
        response = await client.call(fetch_request(node, version, *EVERY), version)
        partitions = {each.partition_index: each for each in response.responses[0].partitions}
        assert {index: each.error_code for index, each in partitions.items()} == {
            OWN: 0,
            **dict.fromkeys([OF_THE_THIRD, OF_THE_FIRST, OF_THE_DEAD, NOT_OPEN], NOT_LEADER),
        }
        told = {
            index: (each.current_leader.leader_id, each.current_leader.leader_epoch)
            for index, each in partitions.items()
        }
        assert told == (LEADERS_TOLD if version >= 12 else dict.fromkeys(EVERY, NOBODY))
        assert endpoints_of(response) == (ENDPOINTS if version >= 16 else set())


async def test_a_client_with_an_old_epoch_is_told_the_leader_too(node: Node, client: RawClient) -> None:
    for version in (9, 12, 16):
        response = await client.call(fetch_request(node, version, OWN, epoch=0), version)
        (partition,) = response.responses[0].partitions
        assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH
        leader = partition.current_leader
        assert (leader.leader_id, leader.leader_epoch) == ((2, 1) if version >= 12 else NOBODY)
        own = (2, node.advertised.host, node.advertised.port, "b")
        assert endpoints_of(response) == ({own} if version >= 16 else set())


async def test_a_fetch_names_partitions_in_its_order_and_unknown_ones_last(node: Node, client: RawClient) -> None:
    for version in (9, 17):
        request = fetch_request(node, version, OF_THE_THIRD, len(EVERY), OWN, OF_THE_FIRST)
        answers = (await client.call(request, version)).responses[0].partitions
        assert [each.partition_index for each in answers] == [OF_THE_THIRD, OWN, OF_THE_FIRST, len(EVERY)]
        assert [each.aborted_transactions for each in answers] == [None, None, None, ()]


async def test_a_session_tells_who_leads_each_time(node: Node, client: RawClient) -> None:
    first = await client.call(fetch_request(node, 17, OF_THE_THIRD, session_epoch=0), 17)
    node.serving.members.update([FIRST])
    again = FetchRequest(session_id=first.session_id, session_epoch=1, max_wait_ms=0, min_bytes=1)
    second = await client.call(again, 17)
    told = [response.responses[0].partitions[0].current_leader.leader_id for response in (first, second)]
    assert (told, endpoints_of(second)) == ([3, -1], set())


async def test_a_fetch_that_waits_is_told_who_leads_now(node: Node, client: RawClient) -> None:
    client.send(fetch_request(node, 17, OWN, wait_ms=LONG_MS), 17)
    topic, partition = node.serving.topics.get("t"), node.serving.topics.partition("t", OWN)
    assert topic is not None
    await until(lambda: partition.has_listeners)
    tell_of_leader(topic, OWN, THIRD, 2)
    partition.stream.refuse(StreamFenced("test"))
    partition.notify_listeners()
    _, response = await client.receive(FetchRequest, 17)
    (answer,) = response.responses[0].partitions
    assert (answer.error_code, answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (
        NOT_LEADER,
        3,
        2,
    )
    assert endpoints_of(response) == {(3, "third", 9003, None)}


async def test_offsets_are_looked_up_at_the_leader(client: RawClient) -> None:
    wanted = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in EVERY]
    for version in (1, 4, 11):
        request = ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=wanted)])
        answers = (await client.call(request, version)).topics[0].partitions
        assert [(each.error_code, each.offset) for each in answers] == [(0, 0), *[(NOT_LEADER, -1)] * 4]
    epochs = [OffsetForLeaderPartition(partition=index, leader_epoch=1) for index in EVERY]
    for version in (2, 4):
        look_up = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="t", partitions=epochs)])
        ends = (await client.call(look_up, version)).topics[0].partitions
        assert [(each.error_code, each.end_offset) for each in ends] == [(0, 0), *[(NOT_LEADER, -1)] * 4]


async def test_records_are_deleted_at_the_leader(client: RawClient) -> None:
    wanted = [DeleteRecordsPartition(partition_index=index, offset=0) for index in EVERY]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=wanted)])
    answers = (await client.call(request, 2)).topics[0].partitions
    assert [each.error_code for each in answers] == [0, *[NOT_LEADER] * 4]


async def test_producers_are_described_by_the_leader(client: RawClient) -> None:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=list(EVERY))])
    answers = (await client.call(request, 0)).topics[0].partitions
    assert [(each.error_code, each.error_message) for each in answers] == [(0, None), *[(NOT_LEADER, None)] * 4]


async def test_a_node_describes_the_directory_of_what_it_leads(node: Node, client: RawClient) -> None:
    for topics in (None, [DescribableLogDirTopic(topic="t", partitions=list(EVERY))]):
        (found,) = (await client.call(DescribeLogDirsRequest(topics=topics), 4)).results
        sizes = {topic.name: [each.partition_index for each in topic.partitions] for topic in found.topics}
        assert sizes["t"] == [OWN]
    path = str(node.serving.settings.node.data_dir.resolve())
    wanted = AlterReplicaLogDir(path=path, topics=[AlterReplicaLogDirTopic(name="t", partitions=list(EVERY))])
    answers = (await client.call(AlterReplicaLogDirsRequest(dirs=[wanted]), 2)).results[0].partitions
    assert [each.error_code for each in answers] == [0, *[ErrorCode.REPLICA_NOT_AVAILABLE] * 4]


@pytest.mark.parametrize("is_known", [True, False], ids=["known-producer", "new-producer"])
async def test_what_was_sent_behind_a_refused_batch_is_refused_like_it(
    node: Node, client: RawClient, other: RawClient, *, is_known: bool
) -> None:
    topic = node.serving.topics.get("t")
    assert topic is not None
    open_partition, info = topic.partitions[OWN], topic.info

    async def send(client: RawClient, sequence: int) -> int:
        records = bytes(batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=sequence))
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=OWN, records=records)])
        response = await client.call(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[data]), 9)
        code: int = response.responses[0].partition_responses[0].error_code
        return code

    if is_known:
        assert await send(client, 0) == ErrorCode.NONE
    first = int(is_known)
    led_elsewhere = [replace(each, leader=3) if each.index == OWN else each for each in info.partitions]
    topic.partitions[OWN], topic.info = None, replace(info, partitions=led_elsewhere)
    assert await send(client, first) == NOT_LEADER
    topic.partitions[OWN], topic.info = open_partition, info
    assert [await send(client, first + behind) for behind in (1, 2)] == [NOT_LEADER] * 2
    assert [await send(client, first + behind) for behind in (0, 1, 2)] == [ErrorCode.NONE] * 3
    for connected in (client, other):
        assert await send(connected, first + 5) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    topic.partitions[OWN], topic.info = None, replace(info, partitions=led_elsewhere)
    assert await send(client, first + 5) == NOT_LEADER
    topic.partitions[OWN], topic.info = open_partition, info
    codes = [await send(client, first + 5) for _ in range(5)]
    assert codes == [*[NOT_LEADER] * 4, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER], (
        "the client has no batch that is missing"
    )
    assert not any(connection.refused_batches for connection in node.ports.clients.connections)
