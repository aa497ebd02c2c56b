"""Fetch against a real node: limits, long poll, sessions, errors, and data that has to be loaded."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.fetch_sessions import TARGETS_MAX
from anabranch.protocol.batch import iterate_batches
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest
from anabranch.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from anabranch.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.s3stream.model import StreamOwner
from tests.support.catalog_node import WAL_ID, hand_over
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until

LONG_MS = 20_000


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, topic_num_partitions=3, fetch_sessions_max=2, fetch_session_idle_ms=0) as running:
        yield running


def want(*offsets: int, first: int = 0, bytes_max: int = 1 << 20, epoch: int = -1) -> list[FetchTopic]:
    """Partitions from `first` on, each at its offset."""
    partitions = [
        FetchPartition(
            partition=first + at, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=epoch
        )
        for at, offset in enumerate(offsets)
    ]
    return [FetchTopic(topic="t", partitions=partitions)]


async def fetch(client: RawClient, topics: Sequence[FetchTopic], *, version: int = 12, **fields: int) -> FetchResponse:
    values: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    response: FetchResponse = await client.call(FetchRequest(topics=topics, **values), version)
    return response


def partitions_of(response: FetchResponse) -> dict[int, PartitionData]:
    return {each.partition_index: each for topic in response.responses for each in topic.partitions}


def offsets_in(data: PartitionData) -> list[int]:
    records = data.records or b""
    assert isinstance(records, bytes | memoryview), "decoded records are one buffer"
    return [header.base_offset for header, _ in iterate_batches(records)]


async def fill(client: RawClient, partition: int, count: int, *, size: int = 1000) -> None:
    for _ in range(count):
        response = await client.produce("t", [batch_of(b"x" * size, b"y")], partition=partition)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NONE


async def test_an_offset_inside_a_batch_brings_the_whole_batch(client: RawClient) -> None:
    await fill(client, 0, 3)
    for offset, bases in ((0, [0, 2, 4]), (3, [2, 4]), (4, [4]), (5, [4]), (6, [])):
        data = partitions_of(await fetch(client, want(offset)))[0]
        assert offsets_in(data) == bases
        assert (data.high_watermark, data.last_stable_offset, data.log_start_offset) == (6, 6, 0)


async def test_offsets_outside_the_log_are_out_of_range(node: Node, client: RawClient) -> None:
    await fill(client, 0, 3)
    await node.serving.topics.partition("t", 0).stream.trim(2)
    codes = [partitions_of(await fetch(client, want(at)))[0].error_code for at in (-1, 0, 2, 6, 7)]
    out = ErrorCode.OFFSET_OUT_OF_RANGE
    assert codes == [out, out, 0, 0, out]


async def test_unknown_partitions_topics_and_epochs(node: Node, client: RawClient) -> None:
    epoch = node.serving.topics.partition("t", 0).leader_epoch
    assert partitions_of(await fetch(client, want(0, first=9)))[9].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    older = partitions_of(await fetch(client, want(0, epoch=epoch - 1)))[0].error_code
    newer = partitions_of(await fetch(client, want(0, epoch=epoch + 1)))[0].error_code
    assert (older, newer) == (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)
    by_id = [FetchTopic(topic_id=b"0123456789abcdef", partitions=[FetchPartition(partition=0)])]
    assert partitions_of(await fetch(client, by_id, version=13))[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_limits_hold_but_for_the_first_batch(client: RawClient) -> None:
    for partition in range(3):
        await fill(client, partition, 3)
    size = 1000 + 61 + 21
    answer = partitions_of(await fetch(client, want(0, 0, 0, bytes_max=10)))
    assert [offsets_in(answer[at]) for at in range(3)] == [[0], [], []], "only the first may be too large"
    answer = partitions_of(await fetch(client, want(0, 0, 0, bytes_max=2 * size)))
    assert [offsets_in(answer[at]) for at in range(3)] == [[0, 2], [0, 2], [0, 2]]
    answer = partitions_of(await fetch(client, want(0, 0, 0), max_bytes=4 * size))
    assert [offsets_in(answer[at]) for at in range(3)] == [[0, 2, 4], [0], []]


async def test_a_waiting_fetch_answers_as_soon_as_there_is_data(node: Node, client: RawClient) -> None:
    client.send(FetchRequest(topics=want(0, 0), max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1000), 12)
    partition = node.serving.topics.partition("t", 1)
    await until(lambda: partition.has_listeners)
    async with raw_client(node.bootstrap) as other:
        await fill(other, 1, 1)
    _, response = await client.receive(FetchRequest, 12)
    assert offsets_in(partitions_of(response)[1]) == [0]
    assert not partition.has_listeners


async def test_a_waiting_fetch_waits_for_min_bytes(node: Node, client: RawClient) -> None:
    client.send(FetchRequest(topics=want(0, 0), max_wait_ms=LONG_MS, min_bytes=2500, max_bytes=1 << 20), 12)
    partition = node.serving.topics.partition("t", 1)
    await until(lambda: partition.has_listeners)
    async with raw_client(node.bootstrap) as other:
        await fill(other, 0, 1)
        await fill(other, 1, 1)
        await other.call(MetadataRequest(topics=()), 9)
        assert partition.has_listeners, "two thousand bytes are not enough"
        await fill(other, 0, 1)
    _, response = await client.receive(FetchRequest, 12)
    assert {index: offsets_in(data) for index, data in partitions_of(response).items()} == {0: [0, 2], 1: [0]}


async def test_a_waiting_fetch_ends_empty(client: RawClient) -> None:
    response = await fetch(client, want(0), max_wait_ms=30)
    assert offsets_in(partitions_of(response)[0]) == []


async def test_a_waiting_fetch_learns_that_its_topic_is_gone(node: Node, client: RawClient) -> None:
    client.send(FetchRequest(topics=want(0), max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1000), 12)
    partition = node.serving.topics.partition("t", 0)
    await until(lambda: partition.has_listeners)
    async with raw_client(node.bootstrap) as other:
        await other.call(DeleteTopicsRequest(topic_names=["t"]), 5)
    _, response = await client.receive(FetchRequest, 12)
    assert partitions_of(response)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_client_that_leaves_leaves_no_waiter(node: Node, client: RawClient) -> None:
    partition = node.serving.topics.partition("t", 0)
    async with raw_client(node.bootstrap) as other:
        other.send(FetchRequest(topics=want(0), max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1000), 12)
        await until(lambda: partition.has_listeners)
    await until(lambda: not partition.has_listeners)


async def test_a_stopping_node_answers_those_who_wait(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, asyncio.TaskGroup() as group, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        client.send(FetchRequest(topics=want(0), max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1000), 12)
        await until(lambda: node.serving.topics.partition("t", 0).has_listeners)
        stopping = group.create_task(node.stop())
        _, response = await client.receive(FetchRequest, 12)
        assert partitions_of(response)[0].error_code == ErrorCode.NONE
        await stopping


async def test_data_is_loaded_from_objects(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 9)
        await fill(client, 0, 20)
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await fill(client, 0, 1)
        offset, found = 0, list[int]()
        while offset < 42:
            bases = offsets_in(partitions_of(await fetch(client, want(offset)))[0])
            found += bases
            offset = bases[-1] + 2
        assert found == list(range(0, 42, 2))
        assert next(iter(node.stores.values())).calls.get > 0


async def test_sessions_tell_only_what_changed(client: RawClient) -> None:
    await fill(client, 0, 1)
    first = await fetch(client, want(0, 0, 0), session_epoch=0)
    assert first.session_id != 0
    assert set(partitions_of(first)) == {0, 1, 2}
    session = {"session_id": first.session_id, "max_wait_ms": 30}
    again = await fetch(client, [], session_epoch=1, **session)
    assert {at: offsets_in(data) for at, data in partitions_of(again).items()} == {0: [0]}, "the offset did not move on"
    moved = await fetch(client, want(2), session_epoch=2, **session)
    assert partitions_of(moved) == {}
    await fill(client, 2, 1)
    news = await fetch(client, [], session_epoch=3, **session)
    assert {at: offsets_in(data) for at, data in partitions_of(news).items()} == {2: [0]}
    forgotten = FetchRequest(
        max_wait_ms=0,
        max_bytes=1000,
        session_id=first.session_id,
        session_epoch=4,
        forgotten_topics_data=[ForgottenTopic(topic="t", partitions=[2])],
    )
    assert partitions_of(await client.call(forgotten, 12)) == {}
    wrong = await fetch(client, [], session_epoch=4, **session)
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    ids = await fetch(client, [], session_epoch=5, version=13, **session)
    assert ids.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    closed = await fetch(client, want(0), session_epoch=-1, **session)
    assert closed.session_id == 0
    assert offsets_in(partitions_of(closed)[0]) == [0]
    gone = await fetch(client, [], session_epoch=5, **session)
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_in_a_session_changes_without_records_are_told(node: Node, client: RawClient) -> None:
    partition = node.serving.topics.partition("t", 0)
    first = await fetch(client, want(0, 0), session_epoch=0)

    async def again(session_epoch: int, *offsets: int, epoch: int = -1) -> dict[int, PartitionData]:
        topics = want(*offsets, epoch=epoch) if offsets else []
        return partitions_of(await fetch(client, topics, session_id=first.session_id, session_epoch=session_epoch))

    assert await again(1) == {}
    await fill(client, 0, 2)
    skipped = await again(2, 4)
    assert (set(skipped), skipped[0].high_watermark) == ({0}, 4)
    assert await again(3) == {}
    await partition.stream.trim(2)
    trimmed = await again(4)
    assert (set(trimmed), trimmed[0].log_start_offset) == ({0}, 2)
    assert await again(5) == {}
    wrong = await again(6, 4, epoch=partition.leader_epoch + 1)
    assert (set(wrong), wrong[0].error_code) == ({0}, ErrorCode.UNKNOWN_LEADER_EPOCH)
    right = await again(7, 4, epoch=partition.leader_epoch)
    assert (set(right), right[0].error_code) == ({0}, ErrorCode.NONE)
    assert await again(8) == {}


async def test_in_a_session_any_partition_ends_the_wait(node: Node, client: RawClient) -> None:
    first = await fetch(client, want(0, 0, 0), session_epoch=0)
    waiting = FetchRequest(
        max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1000, session_id=first.session_id, session_epoch=1
    )
    client.send(waiting, 12)
    partition = node.serving.topics.partition("t", 1)
    await until(lambda: partition.has_listeners)
    async with raw_client(node.bootstrap) as other:
        await fill(other, 1, 1)
    _, response = await client.receive(FetchRequest, 12)
    assert {at: offsets_in(data) for at, data in partitions_of(response).items()} == {1: [0]}


async def test_in_a_session_no_partition_starves(client: RawClient) -> None:
    for partition in range(3):
        await fill(client, partition, 4)
    response = await fetch(client, want(0, 0, 0, bytes_max=10), session_epoch=0)
    served = []
    offsets = dict.fromkeys(range(3), 0)
    for epoch in range(1, 7):
        for index, data in partitions_of(response).items():
            if offsets_in(data):
                served.append(index)
                offsets[index] += 2
        topics = want(offsets[served[-1]], first=served[-1], bytes_max=10)
        response = await fetch(client, topics, session_id=response.session_id, session_epoch=epoch)
    assert served == [0, 1, 2, 0, 1, 2]


async def test_the_number_of_sessions_is_bounded(node: Node, client: RawClient) -> None:
    ids = [(await fetch(client, want(0), session_epoch=0)).session_id for _ in range(5)]
    assert len(set(ids)) == 5
    assert len(node.serving.fetch_sessions) == 2
    assert node.serving.fetch_sessions.evictions == 3


async def test_the_partitions_of_a_session_are_bounded(node: Node, client: RawClient) -> None:
    first = await fetch(client, want(0), session_epoch=0)
    many = [FetchTopic(topic="u", partitions=[FetchPartition(partition=at) for at in range(TARGETS_MAX)])]
    grown = await fetch(client, many, session_id=first.session_id, session_epoch=1)
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(node.serving.fetch_sessions) == 0
    full = await fetch(client, [*want(0), *many], session_epoch=0)
    assert (full.error_code, full.session_id) == (0, 0)
    assert len(partitions_of(full)) == TARGETS_MAX


async def test_a_partition_that_another_node_has_taken_over_is_not_served(node: Node, client: RawClient) -> None:
    await fill(client, 0, 1)
    await fill(client, 1, 1)
    partition = node.serving.topics.partition("t", 0)
    other = await node.serving.catalog.register_node(
        2, "elsewhere", 9092, now_ms=node.serving.now_ms(), lease_ms=10_000
    )
    await hand_over(node.serving.catalog, [partition.stream.stream_id], leader=2)
    await node.serving.catalog.open_streams([partition.stream.stream_id], StreamOwner(2, other.epoch, WAL_ID))
    await node.serving.storage.flush()
    for offset in (0, 1, 2):
        data = partitions_of(await fetch(client, want(offset, 0)))
        assert (data[0].error_code, offsets_in(data[0])) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
        assert offsets_in(data[1]) == [0]
    look_up = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])]
    )
    answer = (await client.call(look_up, 7)).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    response = await client.produce("t", [batch_of(b"late")])
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
