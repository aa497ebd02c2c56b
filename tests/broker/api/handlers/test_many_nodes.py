"""Any node of a cluster answers for all of it: nodes, topics, leaders, coordinators."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from anabranch.broker.cluster.membership import loop
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics import commands
from anabranch.broker.node.peers import liveness
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from anabranch.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponsePartition
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.node import running_nodes
from tests.support.raw_client import batch_of, raw_client
from tests.support.unheard import stop_hearing
from tests.support.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    async with running_nodes(tmp_path, 3) as running:
        yield running


async def create(node: Node, *topics: CreatableTopic) -> Sequence[tuple[ErrorCode, str | None]]:
    """Codes and messages of the answer to a CreateTopics request."""
    async with raw_client(node.bootstrap) as client:
        answer = await client.call(CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7)
    return [(ErrorCode(topic.error_code), topic.error_message) for topic in answer.topics]


async def delete(node: Node, name: str) -> ErrorCode:
    """The error code of the answer to a DeleteTopics request."""
    async with raw_client(node.bootstrap) as client:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
        return ErrorCode((await client.call(request, 6)).responses[0].error_code)


async def describe(node: Node, name: str) -> Sequence[MetadataResponsePartition]:
    """The topic's partitions as a node's metadata has them, by index."""
    async with raw_client(node.bootstrap) as client:
        answer = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 12)
    partitions: Sequence[MetadataResponsePartition] = answer.topics[0].partitions
    return partitions


async def all_serve(nodes: Sequence[Node], name: str, partitions: int = 1) -> None:
    """Wait until every node knows the leaders of all partitions of a topic, and that there are so many or more."""

    def served() -> bool:
        topics = [node.serving.topics.get(name) for node in nodes]
        return all(
            topic is not None
            and len(topic.info.partitions) >= partitions
            and all(each.owner == each.leader for each in topic.info.partitions)
            for topic in topics
        )

    await until(served, timeout_s=60, pause_s=0.01)


async def test_every_node_names_the_same_nodes_and_leaders(nodes: list[Node]) -> None:
    assert await create(nodes[2], CreatableTopic(name="t", num_partitions=6, replication_factor=3)) == [(0, None)]
    await all_serve(nodes, "t")
    expected = {node.serving.node_id: (node.advertised.host, node.advertised.port) for node in nodes}
    found = [await describe(node, "t") for node in nodes]
    assert found[0] == found[1] == found[2]
    assert sorted(partition.leader_id for partition in found[0]) == [1, 1, 2, 2, 3, 3]
    assert {partition.error_code for partition in found[0]} == {ErrorCode.NONE}
    for node in nodes:
        async with raw_client(node.bootstrap) as client:
            metadata = await client.call(MetadataRequest(topics=[]), 12)
            assert {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers} == expected
            assert metadata.controller_id == 1
            cluster = await client.call(DescribeClusterRequest(), 1)
            assert {broker.broker_id: (broker.host, broker.port) for broker in cluster.brokers} == expected
            assert cluster.controller_id == 1
            paged = await client.call(DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")]), 0)
            described = [(each.leader_id, each.leader_epoch) for each in paged.topics[0].partitions]
            assert described == [(each.leader_id, each.leader_epoch) for each in found[0]]
            metadata_log = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
            quorum = await client.call(DescribeQuorumRequest(topics=[metadata_log]), 2)
            (partition,) = quorum.topics[0].partitions
            assert [voter.replica_id for voter in partition.current_voters] == [1, 2, 3]
            assert (partition.leader_id, [each.node_id for each in quorum.nodes]) == (1, [1, 2, 3])


async def test_the_quorum_shows_which_node_has_not_seen_the_last_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata_log = TopicData(topic_name="__cluster_metadata", partitions=[PartitionData(partition_index=0)])
    async with running_nodes(tmp_path, 3) as nodes:
        first, second, third = nodes

        async def voters(node: Node) -> dict[int, tuple[int, bool]]:
            """Lag by node, and whether it has caught up."""
            async with raw_client(node.bootstrap) as client:
                answer = await client.call(DescribeQuorumRequest(topics=[metadata_log]), 2)
            (partition,) = answer.topics[0].partitions
            return {
                each.replica_id: (partition.high_watermark - each.log_end_offset, each.last_caught_up_timestamp > 0)
                for each in partition.current_voters
            }

        async def caught_up(*node_ids: int) -> None:
            """Wait until these nodes have seen the last change, their own ones included."""
            async with asyncio.timeout(60):
                while [(await voters(second)).get(key) for key in node_ids] != [(0, True)] * len(node_ids):  # noqa: ASYNC110 - there is no event
                    await asyncio.sleep(0.01)

        await caught_up(1, 2, 3)
        async with third.serving.membership.changing():  # a read that is under way would see the change
            monkeypatch.setattr(third.serving.catalog, "read_changes", AsyncMock(return_value=None))
        await first.serving.topic_commands.create("t", partitions=1, configs={})
        await caught_up(1, 2)
        for node in (first, second, third):
            found = await voters(node)
            assert found[1] == (0, True)
            assert (found[3][0] > 0, found[3][1]) == (True, False)


async def test_a_dead_leader_is_named_by_nobody_while_no_other_node_can_open_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "VOUCHED_S", 0.0)  # it is told of as long as its connections are open
    async with running_nodes(tmp_path, 2, wal_takeover="none", stop_upload_timeout_ms=500) as nodes:
        first, second = nodes
        await create(first, CreatableTopic(name="t", num_partitions=2, replication_factor=1))
        await all_serve(nodes, "t")
        assert second.ports.nodes is not None
        await second.ports.nodes.stop_accepting()  # as long as it answers, it is only cut off from the catalog
        await second.serving.membership.stop()
        await until(lambda: first.serving.members.get(2) is None, timeout_s=60, pause_s=0.01)
        partitions = await describe(first, "t")
        (gone,) = [each for each in partitions if each.error_code]
        assert (gone.error_code, gone.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
        assert (tuple(gone.replica_nodes), tuple(gone.offline_replicas)) == ((2,), (2,))


async def test_a_node_that_stopped_is_still_listed_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "LISTED_FOR_S", 600.0)
    async with running_nodes(tmp_path, 2) as (first, second):
        assert second.ports.nodes is not None
        await second.ports.nodes.stop_accepting()  # as long as it answers, it is only cut off from the catalog
        await second.serving.membership.stop()
        await until(lambda: first.serving.members.get(2) is None, timeout_s=60, pause_s=0.01)
        async with raw_client(first.bootstrap) as client:
            metadata = await client.call(MetadataRequest(topics=[]), 12)
            assert [broker.node_id for broker in metadata.brokers] == [1, 2]
            cluster = await client.call(DescribeClusterRequest(include_fenced_brokers=True), 2)
            assert [(each.broker_id, each.is_fenced) for each in cluster.brokers] == [(1, False), (2, False)]
            monkeypatch.setattr(liveness, "LISTED_FOR_S", 0.0)  # it is over
            await until(lambda: not first.serving.members.is_listed(2), timeout_s=60, pause_s=0.01)
            metadata = await client.call(MetadataRequest(topics=[]), 12)
            assert [broker.node_id for broker in metadata.brokers] == [1]
            cluster = await client.call(DescribeClusterRequest(include_fenced_brokers=True), 2)
            assert [(each.broker_id, each.is_fenced) for each in cluster.brokers] == [(1, False), (2, True)]


async def test_a_replication_factor_is_accepted_up_to_the_number_of_nodes(nodes: list[Node]) -> None:
    topics = [CreatableTopic(name=f"t{factor}", num_partitions=1, replication_factor=factor) for factor in (3, 4)]
    accepted, refused = await create(nodes[0], *topics)
    assert accepted == (0, None)
    assert refused[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    assert refused[1] == (
        "Unable to replicate the partition 4 time(s): The target replication factor of 4 cannot be reached because "
        "only 3 broker(s) are registered."
    )


def assigned(name: str, *replicas: Sequence[int]) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=broker_ids)
            for index, broker_ids in enumerate(replicas)
        ],
    )


async def test_an_assigned_partition_is_led_by_its_first_replica(nodes: list[Node]) -> None:
    answers = await create(
        nodes[0], assigned("a", [3, 1], [2, 1], [3, 2]), assigned("b", [9]), assigned("c", [1, 1]), assigned("d", [])
    )
    assert [code for code, _ in answers] == [ErrorCode.NONE, *[ErrorCode.INVALID_REPLICA_ASSIGNMENT] * 3]
    assert answers[1][1] == ("The manual partition assignment includes broker 9, but no such broker is registered.")
    await all_serve(nodes, "a")
    assert [each.leader_id for each in await describe(nodes[1], "a")] == [3, 2, 3]
    grown = CreatePartitionsTopic(
        name="a",
        count=5,
        assignments=[CreatePartitionsAssignment(broker_ids=[1, 2]), CreatePartitionsAssignment(broker_ids=[2, 3])],
    )
    async with raw_client(nodes[1].bootstrap) as client:
        answer = await client.call(CreatePartitionsRequest(topics=[grown], timeout_ms=10_000), 3)
        assert answer.results[0].error_code == ErrorCode.NONE
    await all_serve(nodes, "a", partitions=5)
    assert [each.leader_id for each in await describe(nodes[2], "a")] == [3, 2, 3, 1, 2]


async def test_whoever_asks_the_wrong_node_is_told_the_leader(nodes: list[Node]) -> None:
    await create(nodes[0], assigned("t", [2]))
    await all_serve(nodes, "t")
    topic = nodes[0].serving.topics.get("t")
    assert topic is not None
    leader = (await describe(nodes[1], "t"))[0]
    address = [(2, nodes[1].advertised.host, nodes[1].advertised.port)]
    async with raw_client(nodes[0].bootstrap) as client:
        for version in (9, 10, 13):
            data = PartitionProduceData(index=0, records=batch_of(b"x"))
            produced = await client.call(
                ProduceRequest(
                    acks=-1,
                    timeout_ms=1_000,
                    topic_data=[TopicProduceData(name="t", topic_id=topic.topic_id, partition_data=[data])],
                ),
                version,
            )
            (answer,) = produced.responses[0].partition_responses
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            told = (answer.current_leader.leader_id, answer.current_leader.leader_epoch)
            assert told == ((-1, -1) if version < 10 else (2, leader.leader_epoch))
            nodes_told = [(each.node_id, each.host, each.port) for each in produced.node_endpoints]
            assert nodes_told == ([] if version < 10 else address)
        for version in (12, 15, 16):
            wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
            fetched = await client.call(
                FetchRequest(
                    max_wait_ms=0,
                    min_bytes=0,
                    topics=[FetchTopic(topic="t", topic_id=topic.topic_id, partitions=[wanted])],
                ),
                version,
            )
            (found,) = fetched.responses[0].partitions
            assert found.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            told = (found.current_leader.leader_id, found.current_leader.leader_epoch)
            assert told == (2, leader.leader_epoch)
            assert [(each.node_id, each.host, each.port) for each in fetched.node_endpoints] == (
                [] if version < 16 else address
            )


async def test_every_node_finds_the_same_coordinators(nodes: list[Node]) -> None:
    keys = [f"key{number}" for number in range(20)]
    for key_type in (0, 1):
        answers: list[list[tuple[str, int, str, int]]] = []
        for node in nodes:
            async with raw_client(node.bootstrap) as client:
                request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
                await client.call(request, 4)  # the first one creates the topic
                await all_serve(nodes, "__transaction_state" if key_type else "__consumer_offsets")
                answer = await client.call(request, 4)
            assert {each.error_code for each in answer.coordinators} == {ErrorCode.NONE}
            answers.append([(each.key, each.node_id, each.host, each.port) for each in answer.coordinators])
        assert answers[0] == answers[1] == answers[2]
        addresses = {(node.serving.node_id, node.advertised.host, node.advertised.port) for node in nodes}
        assert {each[1:] for each in answers[0]} == addresses, "all of them coordinate some"


async def test_clients_reach_partitions_on_all_nodes_through_any(nodes: list[Node]) -> None:
    await create(nodes[0], CreatableTopic(name="t", num_partitions=6, replication_factor=1))
    await all_serve(nodes, "t")

    def produce_and_consume() -> Sequence[tuple[int, bytes | None]]:
        producer = Producer({"bootstrap.servers": nodes[1].bootstrap, "acks": "all", "log_level": 0})
        for number in range(60):
            producer.produce("t", str(number), partition=number % 6)
        assert producer.flush(60) == 0
        consumer = Consumer({"bootstrap.servers": nodes[2].bootstrap, "group.id": "none", "log_level": 0})
        consumer.assign([TopicPartition("t", index, 0) for index in range(6)])
        found: list[tuple[int, bytes | None]] = []
        while len(found) < 60:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None
            partition, value = message.partition(), message.value()
            assert partition is not None
            found.append((partition, value))
        consumer.close()
        return found

    found = await asyncio.to_thread(produce_and_consume)
    assert sorted(found) == sorted((number % 6, str(number).encode()) for number in range(60))


async def test_a_change_is_checked_against_what_other_nodes_have_changed_before(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = nodes
    monkeypatch.setattr(commands, "OPENED_ELSEWHERE_S", 0.1)  # it would wait in vain
    await stop_hearing(second)
    led_by_first = CreatableReplicaAssignment(partition_index=0, broker_ids=[1])
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[led_by_first])
    grown = CreatePartitionsTopic(name="t", count=2, assignments=[CreatePartitionsAssignment(broker_ids=[1])])
    config = AlterableConfig(name="retention.ms", config_operation=0, value="5")
    resource = AlterConfigsResource(resource_type=2, resource_name="t", configs=[config])
    assert await create(first, topic) == [(0, None)]
    async with raw_client(second.bootstrap) as client:
        altered = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        assert altered.responses[0].error_code == ErrorCode.NONE
        assert (await delete(first, "t"), await create(first, topic)) == (ErrorCode.NONE, [(0, None)])
        answer = await client.call(CreatePartitionsRequest(topics=[grown], timeout_ms=10_000), 3)
        assert answer.results[0].error_code == ErrorCode.NONE
    assert (await delete(first, "t"), await create(second, topic)) == (ErrorCode.NONE, [(0, None)])
    assert (await delete(first, "t"), await create(first, topic)) == (ErrorCode.NONE, [(0, None)])
    assert await delete(second, "t") == ErrorCode.REQUEST_TIMED_OUT, "it may be older than the topic"
    assert await delete(second, "t") == ErrorCode.NONE
    assert await create(first, topic) == [(0, None)]
    assert await delete(second, "t") == ErrorCode.NONE, "the only topic of that name that it can mean"


@pytest.mark.parametrize(
    "request_",
    [
        CreateTopicsRequest(topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1)]),
        DeleteTopicsRequest(topics=[DeleteTopicState(name="new")], timeout_ms=1000),
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="new", count=2, assignments=None)], timeout_ms=1000),
    ],
    ids=["create", "delete", "grow"],
)
async def test_a_change_is_not_judged_while_the_catalog_is_away(
    nodes: list[Node], request_: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(seen: int) -> None:
        raise CatalogUnavailable("away")

    monkeypatch.setattr(nodes[0].serving.catalog, "read_changes", away)
    async with raw_client(nodes[0].bootstrap) as client:
        answer = await client.call(request_)
    (result,) = getattr(answer, "topics", None) or getattr(answer, "responses", None) or answer.results
    assert (result.error_code, result.name) == (ErrorCode.UNKNOWN_SERVER_ERROR, "new")
