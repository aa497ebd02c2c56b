"""Quotas on a node: throttled answers, muted connections, other clients served, and what the admin port says."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.node.net.connection import Connection
from anabranch.broker.operator.admin.api.status import node_status
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.broker.api.handlers.test_client_quotas import alter
from tests.support.metrics import metrics_of
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.waiting import until


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


def muted(node: Node) -> list[Connection]:
    """The connections whose clients are throttled."""
    return [each for each in node.ports.clients.connections if each.is_muted]


def fetch(session_id: int = 0, epoch: int = -1, *, offset: int = 0) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic="t", partitions=[partition])] if epoch <= 0 else [],
    )


@pytest.mark.slow
async def test_a_producer_over_its_quota_is_muted_and_others_are_served(node: Node, client: RawClient) -> None:
    await alter(client, {"client-id": "greedy"}, producer_byte_rate=1000)
    async with raw_client(node.bootstrap, client_id="greedy") as greedy:
        answer = await greedy.produce("t", [batch_of(b"x" * 100_000)])
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
        assert 80_000 < answer.throttle_time_ms < 110_000
        assert len(muted(node)) == 1
        greedy.send(ApiVersionsRequest(), 0)
        assert (await client.produce("t", [batch_of(b"x" * 100_000)])).throttle_time_ms == 0
        assert not muted(node)[0].idle
        labels = {"quota": "producer_byte_rate", "user": "", "client_id": "greedy"}
        assert (await metrics_of(node)).value("anabranch_quota_throttles_total", **labels) == 1
        (described,) = (await node_status(node)).quotas["producer_byte_rate"].throttled
        assert (described.client_id, described.throttles) == ("greedy", 1)
    await until(lambda: not muted(node))
    await alter(client, {"client-id": "greedy"}, producer_byte_rate=None)
    assert not any(name.startswith("anabranch_quota") for name in (await metrics_of(node)).names)


async def test_a_throttled_fetch_is_empty_and_its_session_goes_on(node: Node, client: RawClient) -> None:
    await client.produce("t", [batch_of(b"x" * 5000)])
    await alter(client, {"client-id": "reader"}, consumer_byte_rate=1000)
    async with raw_client(node.bootstrap, client_id="reader") as reader:
        first = await reader.call(fetch(epoch=0), 11)
        assert first.session_id
        assert first.responses[0].partitions[0].records
        node.ports.client_quotas.fetched("ANONYMOUS", "reader", 4500, at_least_ms=0)
        empty = await reader.call(fetch(first.session_id, 1), 11)
        assert (empty.session_id, list(empty.responses), empty.error_code) == (first.session_id, [], ErrorCode.NONE)
        assert empty.throttle_time_ms > 0
    await alter(client, {"client-id": "reader"}, consumer_byte_rate=None)
    async with raw_client(node.bootstrap, client_id="reader") as reader:
        again = await reader.call(fetch(first.session_id, 2), 11)
        assert again.responses[0].partitions[0].records
        sessions = len(node.serving.fetch_sessions)
        await alter(client, {"client-id": "reader"}, consumer_byte_rate=1000)
        await reader.call(fetch(), 11)
        node.ports.client_quotas.fetched("ANONYMOUS", "reader", 4500, at_least_ms=0)
        empty = await reader.call(fetch(epoch=0), 11)
        assert (empty.session_id, list(empty.responses)) == (0, [])
        assert len(node.serving.fetch_sessions) == sessions


def new(name: str, partitions: int) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)])


async def test_changes_of_topics_over_the_quota_are_refused(node: Node, client: RawClient) -> None:
    await alter(client, {"user": None}, controller_mutation_rate=0.01)
    created = await client.call(new("a", 3), 7)
    assert created.topics[0].error_code == ErrorCode.NONE
    assert created.throttle_time_ms == 0
    for request, results, version in (
        (new("b", 1), "topics", 7),
        (
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=4, assignments=None)]),
            "results",
            3,
        ),
        (DeleteTopicsRequest(topics=[DeleteTopicState(name="a")]), "responses", 6),
    ):
        async with raw_client(node.bootstrap) as other:
            answer = await other.call(request, version)
        (result,) = getattr(answer, results)
        assert result.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert result.error_message is None
        assert answer.throttle_time_ms > 100_000
    async with raw_client(node.bootstrap) as other:
        older = await other.call(new("c", 1), 5)
        assert older.topics[0].error_code == ErrorCode.NONE
        assert older.throttle_time_ms > 300_000


async def test_an_address_that_connects_too_often_is_not_served(node: Node, client: RawClient) -> None:
    await alter(client, {"ip": "127.0.0.1"}, connection_creation_rate=1)
    accepted = 0
    while not node.ports.clients.stats.throttled:
        try:
            async with raw_client(node.bootstrap) as other:
                await other.call(ApiVersionsRequest(), 0)
            accepted += 1
        except (EOFError, ConnectionError):
            assert node.ports.clients.stats.throttled
    assert accepted >= 10
    assert (await client.call(ApiVersionsRequest(), 0)).error_code == ErrorCode.NONE
    await alter(client, {"ip": "127.0.0.1"}, connection_creation_rate=None)
    async with raw_client(node.bootstrap) as other:
        await other.call(ApiVersionsRequest(), 0)


async def test_requests_of_other_nodes_are_not_metered(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2) as (first, second), raw_client(first.bootstrap) as client:
        await alter(client, {"user": None, "client-id": None}, request_percentage=0.001, producer_byte_rate=1)
        await until(lambda: second.ports.client_quotas.is_active)
        for node in (first, second):
            assert node.ports.nodes is not None
            assert node.ports.nodes.new_exchange is not node.ports.clients.new_exchange
