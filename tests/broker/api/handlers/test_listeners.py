"""Addresses in answers: those of the listener that was asked. Two nodes, of which one has a listener more."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from anabranch.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until

pytestmark = pytest.mark.slow

MAP = "IN:PLAINTEXT,OUT:PLAINTEXT"
BROKER = 4


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Sequence[Node]]:
    """Node 1 has listeners IN and OUT, node 2 only IN. Partition 0 of `t` is led by node 1, partition 1 by node 2."""
    shared: dict[str, Any] = {
        "catalog_url": f"sqlite:///{tmp_path}/catalog.db",
        "objects_path": tmp_path / "objects",
        "cluster_internal_port": 0,
        "security_protocol_map": MAP,
        "group_offsets_partitions": 2,
    }
    both = {
        "listeners": "IN://127.0.0.1:0,OUT://127.0.0.1:0",
        "advertised_listeners": "OUT://outside.example:7001",
    }
    async with (
        running_node(tmp_path / "1", node_id=1, **both, **shared) as first,
        running_node(tmp_path / "2", node_id=2, listeners="IN://127.0.0.1:0", **shared) as second,
    ):
        await until(lambda: all(len(node.serving.members.living()) == 2 for node in (first, second)), timeout_s=60)
        async with raw_client(address(first, "IN")) as client:
            led = [CreatableReplicaAssignment(partition_index=at, broker_ids=[at + 1]) for at in (0, 1)]
            wanted = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=led)
            created = await client.call(CreateTopicsRequest(topics=[wanted], timeout_ms=10_000), 7)
            assert not created.topics[0].error_code
        await until(lambda: second.serving.topics.get("t") is not None)
        yield first, second


def address(node: Node, listener: str) -> str:
    return f"127.0.0.1:{node.ports.clients.ports[listener]}"


def expected(nodes: Sequence[Node], listener: str) -> list[tuple[int, str, int]]:
    first, second = nodes
    if listener == "OUT":
        return [(1, "outside.example", 7001)]
    return [(1, "127.0.0.1", first.ports.clients.ports["IN"]), (2, "127.0.0.1", second.ports.clients.ports["IN"])]


@pytest.mark.parametrize("listener", ["IN", "OUT"])
async def test_nodes_are_named_by_their_addresses_at_the_listener_that_was_asked(
    nodes: Sequence[Node], listener: str
) -> None:
    async with raw_client(address(nodes[0], listener)) as client:
        metadata = await client.call(MetadataRequest(topics=None), 12)
        assert [(each.node_id, each.host, each.port) for each in metadata.brokers] == expected(nodes, listener)
        for fenced in (False, True):
            cluster = await client.call(DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=fenced), 2)
            assert [(each.broker_id, each.host, each.port) for each in cluster.brokers] == expected(nodes, listener)


async def test_a_fenced_node_without_the_listener_is_left_out(nodes: Sequence[Node]) -> None:
    await nodes[0].serving.catalog.register_node(7, "gone", 9092, now_ms=1, lease_ms=1)
    request = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True)
    async with raw_client(address(nodes[0], "IN")) as client:
        assert 7 not in {each.broker_id for each in (await client.call(request, 2)).brokers}


@pytest.mark.parametrize(
    ("listener", "version", "error", "leaders"),
    [
        ("IN", 12, ErrorCode.NONE, [1, 2]),
        ("OUT", 12, ErrorCode.LISTENER_NOT_FOUND, [1, -1]),
        ("OUT", 5, ErrorCode.LEADER_NOT_AVAILABLE, [1, -1]),
    ],
)
async def test_a_leader_without_the_listener_is_none(
    nodes: Sequence[Node], listener: str, version: int, error: ErrorCode, leaders: list[int]
) -> None:
    async with raw_client(address(nodes[0], listener)) as client:
        await until(lambda: nodes[1].serving.topics.partition("t", 1) is not None)
        metadata = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), version)
        found = sorted(metadata.topics[0].partitions, key=lambda each: each.partition_index)
        assert [each.leader_id for each in found] == leaders
        assert [each.error_code for each in found] == [ErrorCode.NONE, error]
        described = await client.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0)
        assert [each.leader_id for each in described.topics[0].partitions] == leaders


async def test_a_coordinator_without_the_listener_is_not_available(nodes: Sequence[Node]) -> None:
    groups = {partition_of(name, 2): name for name in ("a", "b", "c", "d", "e")}
    assert set(groups) == {0, 1}
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=list(groups.values()))
    async with raw_client(address(nodes[0], "IN")) as inside, raw_client(address(nodes[0], "OUT")) as outside:
        while True:
            answer = await inside.call(request, 4)
            if all(not each.error_code for each in answer.coordinators):
                break
        assert {each.node_id for each in answer.coordinators} == {1, 2}
        for told, asked in zip(answer.coordinators, (await outside.call(request, 4)).coordinators, strict=True):
            if told.node_id == 1:
                assert (asked.error_code, asked.host, asked.port) == (0, "outside.example", 7001)
            else:
                assert (asked.error_code, asked.node_id) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)


@pytest.mark.parametrize("listener", ["IN", "OUT"])
async def test_a_client_that_asks_the_wrong_node_is_told_the_address_at_its_listener(
    nodes: Sequence[Node], listener: str
) -> None:
    told = [each for each in expected(nodes, listener) if each[0] == 2]
    await until(lambda: nodes[1].serving.topics.partition("t", 1) is not None)
    async with raw_client(address(nodes[0], listener)) as client:
        produced = await client.produce("t", [batch_of(b"x")], version=10, partition=1)
        assert produced.responses[0].partition_responses[0].current_leader.leader_id == 2
        assert [(each.node_id, each.host, each.port) for each in produced.node_endpoints] == told
        topic = nodes[0].serving.topics.get("t")
        assert topic is not None
        wanted = FetchTopic(topic_id=topic.topic_id, partitions=[FetchPartition(partition=1, partition_max_bytes=1)])
        fetched = await client.call(FetchRequest(topics=[wanted], max_bytes=1), 16)
        assert fetched.responses[0].partitions[0].current_leader.leader_id == 2
        assert [(each.node_id, each.host, each.port) for each in fetched.node_endpoints] == told


async def test_tools_see_all_listeners(nodes: Sequence[Node]) -> None:
    ports = nodes[0].ports.clients.ports
    asked = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    async with raw_client(address(nodes[0], "OUT")) as client:
        resource = DescribeConfigsResource(resource_type=BROKER, resource_name="1", configuration_keys=None)
        answer = await client.call(DescribeConfigsRequest(resources=[resource]), 4)
        configs = {each.name: each.value for each in answer.results[0].configs}
        quorum = await client.call(DescribeQuorumRequest(topics=[asked]), 2)
    assert configs["listeners"] == f"IN://127.0.0.1:{ports['IN']},OUT://127.0.0.1:{ports['OUT']}"
    assert configs["advertised.listeners"] == f"IN://127.0.0.1:{ports['IN']},OUT://outside.example:7001"
    assert [(each.name, each.host, each.port) for each in quorum.nodes[0].listeners] == [
        ("IN", "127.0.0.1", ports["IN"]),
        ("OUT", "outside.example", 7001),
    ]
