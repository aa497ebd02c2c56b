"""One cluster of many nodes, as one of them shows it: nodes, leaders, coordinators, assignments."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.shards import partition_of
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from anabranch.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from anabranch.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from anabranch.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest
from anabranch.s3stream.errors import CatalogUnavailable, StreamFenced
from anabranch.s3stream.model import NodeIdentity
from tests.support.many_nodes import (
    DEAD_ID,
    FIRST,
    LEADERS,
    NOT_OPEN,
    OF_THE_DEAD,
    OF_THE_FIRST,
    OF_THE_THIRD,
    OWN,
    OWN_ID,
    THIRD,
    node_of_many,
    tell_of_leader,
)
from tests.support.raw_client import RawClient, raw_client

pytestmark = pytest.mark.slow

BROKER, BROKER_LOGGER = 4, 8
LEADER_NOT_AVAILABLE = ErrorCode.LEADER_NOT_AVAILABLE


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with node_of_many(tmp_path) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


async def metadata(client: RawClient, version: int = 13) -> MetadataResponse:
    response: MetadataResponse = await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), version)
    return response


async def leaders(client: RawClient) -> list[int]:
    return [each.leader_id for each in (await metadata(client)).topics[0].partitions]


async def test_metadata_names_living_nodes_and_leaders_that_serve_or_are_about_to(
    node: Node, client: RawClient
) -> None:
    for version in range(14):
        response = await metadata(client, version)
        racks = [None, None, None] if version < 1 else ["a", "b", None]
        assert [(each.node_id, each.host, each.port, each.rack) for each in response.brokers] == [
            (1, "first", 9001, racks[0]),
            (2, node.advertised.host, node.advertised.port, racks[1]),
            (3, "third", 9003, racks[2]),
        ]
        assert response.controller_id == (1 if version >= 1 else -1)
        partitions = response.topics[0].partitions
        assert [(each.error_code, each.leader_id) for each in partitions] == [
            (0, 2),
            (0, 3),
            (0, 1),
            (LEADER_NOT_AVAILABLE, -1),
            (0, 3),
        ]
        assert [each.leader_epoch for each in partitions] == ([1, 1, 1, 1, 0] if version >= 7 else [-1] * 5)
        assert [tuple(each.replica_nodes) for each in partitions] == [(leader,) for leader in LEADERS]
        assert [tuple(each.isr_nodes) for each in partitions] == [(leader,) for leader in LEADERS]
        offline = [(), (), (), (DEAD_ID,), ()] if version >= 5 else [()] * 5
        assert [tuple(each.offline_replicas) for each in partitions] == offline


async def test_topic_partitions_name_leaders_that_serve(client: RawClient) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")], response_partition_limit=10)
    partitions = (await client.call(request, 0)).topics[0].partitions
    assert [(each.error_code, each.leader_id, each.leader_epoch) for each in partitions] == [
        (0, 2, 1),
        (0, 3, 1),
        (0, 1, 1),
        (0, -1, 1),
        (0, 3, 0),
    ]
    assert [tuple(each.replica_nodes) for each in partitions] == [(leader,) for leader in LEADERS]
    assert [tuple(each.offline_replicas) for each in partitions] == [(), (), (), (DEAD_ID,), ()]


async def test_a_leader_that_dies_or_returns_is_told(node: Node, client: RawClient) -> None:
    assert await leaders(client) == [2, 3, 1, -1, 3]
    node.serving.members.update([THIRD])
    assert await leaders(client) == [2, 3, -1, -1, 3]
    assert (await metadata(client)).controller_id == 2, "the controller has died"
    node.serving.members.update([FIRST])
    assert await leaders(client) == [2, -1, 1, -1, -1]
    assert (await metadata(client)).controller_id == 1


async def test_a_partition_that_fails_here_has_no_leader_until_another_node_has_it(
    node: Node, client: RawClient
) -> None:
    topic = node.serving.topics.get("t")
    assert topic is not None
    node.serving.topics.partition("t", OWN).stream.refuse(StreamFenced("test"))
    answer = (await metadata(client)).topics[0].partitions[OWN]
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (LEADER_NOT_AVAILABLE, -1, 1)
    assert list(answer.offline_replicas) == [OWN_ID]
    tell_of_leader(topic, OWN, FIRST, 7)
    answer = (await metadata(client)).topics[0].partitions[OWN]
    assert (answer.error_code, answer.leader_id, answer.leader_epoch) == (0, FIRST.node_id, 7)


async def test_the_cluster_has_all_living_nodes(node: Node, client: RawClient) -> None:
    async def describe(version: int, *, fenced: bool = False) -> DescribeClusterResponse:
        response: DescribeClusterResponse = await client.call(
            DescribeClusterRequest(include_fenced_brokers=fenced), version
        )
        return response

    for version in range(3):
        response = await describe(version)
        assert response.controller_id == 1
        assert [(each.broker_id, each.host, each.port, each.rack, each.is_fenced) for each in response.brokers] == [
            (1, "first", 9001, "a", False),
            (2, node.advertised.host, node.advertised.port, "b", False),
            (3, "third", 9003, None, False),
        ]
    response = await describe(2, fenced=True)
    assert [(each.broker_id, each.is_fenced) for each in response.brokers] == [
        (1, False),
        (2, False),
        (3, False),
        (DEAD_ID, True),
    ]
    node.serving.members.update([THIRD])
    response = await describe(2, fenced=True)
    assert response.controller_id == 2
    assert [(each.broker_id, each.is_fenced) for each in response.brokers][2:] == [(1, True), (DEAD_ID, True)]


async def test_fenced_nodes_are_not_told_while_the_catalog_is_away(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise CatalogUnavailable("not now")

    monkeypatch.setattr(node.serving.catalog, "list_nodes", fail)
    response = await client.call(DescribeClusterRequest(include_fenced_brokers=True), 2)
    assert (response.error_code, response.error_message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "not now")
    response = await client.call(DescribeClusterRequest(), 2)
    assert len(response.brokers) == 3, "living nodes are known without it"


async def test_the_living_nodes_are_the_quorum(node: Node, client: RawClient) -> None:
    request = DescribeQuorumRequest(topics=[TopicData(topic_name="__cluster_metadata", partitions=[PartitionData()])])
    for version in range(3):
        answer = await client.call(request, version)
        partition = answer.topics[0].partitions[0]
        assert (partition.leader_id, partition.leader_epoch) == (FIRST.node_id, FIRST.epoch)
        end_offset = await node.serving.catalog.last_change()
        assert partition.high_watermark == end_offset
        found = [(each.replica_id, each.log_end_offset) for each in partition.current_voters]
        assert found == [(1, end_offset), (2, node.serving.membership.version), (3, -1)], "nobody can be asked"
        addresses = [(each.node_id, each.listeners[0].host, each.listeners[0].port) for each in answer.nodes]
        own = (2, node.advertised.host, node.advertised.port)
        assert addresses == ([(1, "first", 9001), own, (3, "third", 9003)] if version >= 2 else [])
    node.serving.members.update([THIRD])
    partition = (await client.call(request, 2)).topics[0].partitions[0]
    assert (partition.leader_id, partition.leader_epoch) == (OWN_ID, node.serving.members.own.epoch)
    assert [each.replica_id for each in partition.current_voters] == [2, 3]


def key_in(partition: int) -> str:
    return next(f"k{at}" for at in range(1000) if partition_of(f"k{at}", len(LEADERS)) == partition)


@pytest.mark.parametrize("key_type", [0, 1])
async def test_a_coordinator_is_the_leader_that_serves_its_partition(
    node: Node, client: RawClient, key_type: int
) -> None:
    not_available = (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1)
    expected = {
        OWN: (0, OWN_ID, node.advertised.host, node.advertised.port),
        OF_THE_THIRD: (0, 3, "third", 9003),
        OF_THE_FIRST: (0, 1, "first", 9001),
        OF_THE_DEAD: not_available,
        NOT_OPEN: (0, 3, "third", 9003),
    }
    keys = [key_in(partition) for partition in expected]
    answer = await client.call(FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys), 6)
    found = {each.key: (each.error_code, each.node_id, each.host, each.port) for each in answer.coordinators}
    assert found == dict(zip(keys, expected.values(), strict=True))
    for partition, told in expected.items():
        answer = await client.call(FindCoordinatorRequest(key_type=key_type, key=key_in(partition)), 3)
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == told
    node.serving.members.update([THIRD])
    answer = await client.call(FindCoordinatorRequest(key_type=key_type, key=key_in(OF_THE_FIRST)), 3)
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE, "it has died"


async def test_an_open_partition_without_its_shard_has_no_coordinator_yet(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(node.serving.groups), "is_coordinator_of", lambda *_: False)
    answer = await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[key_in(OWN)]), 4)
    assert answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize(
    ("election", "without_leader"),
    [(0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE), (1, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE)],
)
async def test_only_partitions_without_a_leader_are_named_in_an_election(
    client: RawClient, election: int, without_leader: ErrorCode
) -> None:
    every = ElectLeadersRequest(election_type=election, topic_partitions=None)
    results = {each.topic: each.partition_result for each in (await client.call(every, 2)).replica_election_results}
    unable = [(OF_THE_DEAD, without_leader)]
    assert [(each.partition_id, each.error_code) for each in results["t"]] == unable
    wanted = TopicPartitions(topic="t", partitions=list(range(5)))
    request = ElectLeadersRequest(election_type=election, topic_partitions=[wanted])
    (topic,) = (await client.call(request, 1)).replica_election_results
    not_needed = ErrorCode.ELECTION_NOT_NEEDED
    assert [each.error_code for each in topic.partition_result] == [*[not_needed] * 3, without_leader, not_needed]


async def test_assignments_that_no_partition_can_have_are_refused(client: RawClient) -> None:
    async def move(index: int, *replicas: int, may_change_factor: bool = True) -> tuple[int, str | None]:
        partition = ReassignablePartition(partition_index=index, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=may_change_factor,
            topics=[ReassignableTopic(name="t", partitions=[partition])],
        )
        answer = (await client.call(request, 1)).responses[0].partitions[0]
        return answer.error_code, answer.error_message

    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    for index, leader in enumerate(LEADERS):
        assert await move(index, leader) == (0, None), "where it is, dead or alive"
    changed = (ErrorCode.INVALID_REPLICATION_FACTOR, "The replication factor is changed from 1 to 2")
    assert await move(OWN, 2, 3, may_change_factor=False) == changed
    what = "The manual partition assignment includes"
    assert await move(OWN, 3, 9) == (refused, f"{what} broker 9, but no such broker is registered.")
    dead = f"All brokers specified in the manual partition assignment for partition {OWN} are fenced or in controlled "
    assert await move(OWN, DEAD_ID) == (refused, f"{dead}shutdown.")
    assert await move(OWN, 3, 3) == (refused, f"{what} the broker 3 more than once.")
    assert await move(OWN) == (refused, f"{what} an empty replica list.")
    assert list((await client.call(ListPartitionReassignmentsRequest(), 0)).topics) == []


async def test_factors_up_to_the_number_of_nodes_are_accepted(client: RawClient) -> None:
    async def create(factor: int) -> tuple[int, str | None]:
        topic = CreatableTopic(name="new", num_partitions=1, replication_factor=factor)
        answer = (await client.call(CreateTopicsRequest(topics=[topic], validate_only=True), 7)).topics[0]
        return answer.error_code, answer.error_message

    for factor in (-1, 1, 2, 3, 4):
        assert await create(factor) == (0, None), "the dead node is registered"
    too_large = (
        "Unable to replicate the partition {0} time(s): The target replication factor of {0} cannot be reached because "
        "only {1} broker(s) are registered."
    )
    assert await create(5) == (ErrorCode.INVALID_REPLICATION_FACTOR, too_large.format(5, 4))


async def test_the_first_living_one_of_the_assigned_nodes_is_to_lead(node: Node, client: RawClient) -> None:
    async def create(*assignments: tuple[int, list[int]]) -> tuple[int, str | None]:
        assigned = [CreatableReplicaAssignment(partition_index=at, broker_ids=ids) for at, ids in assignments]
        topic = CreatableTopic(name="new", num_partitions=-1, replication_factor=-1, assignments=assigned)
        answer = (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0]
        return answer.error_code, answer.error_message

    async def grow(count: int, *assignments: list[int]) -> tuple[int, str | None]:
        assigned = [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments]
        topic = CreatePartitionsTopic(name="new", count=count, assignments=assigned)
        answer = (await client.call(CreatePartitionsRequest(topics=[topic]), 3)).results[0]
        return answer.error_code, answer.error_message

    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    what = "The manual partition assignment includes"
    unknown = (refused, f"{what} broker 9, but no such broker is registered.")
    dead = (
        "All brokers specified in the manual partition assignment for partition {0} are fenced or in controlled "
        "shutdown."
    )
    inconsistent = "but this is not consistent with previous partitions, which have 2 replica(s)."
    uneven = (refused, f"{what} a partition with 1 replica(s), {inconsistent}")
    assert await create((0, [2, 9])) == unknown
    assert await create((0, [2]), (1, [DEAD_ID])) == (refused, dead.format(1))
    assert await create((0, [2, 3]), (1, [3])) == uneven
    assert await create((1, [DEAD_ID, 3]), (0, [2, 1]), (2, [1, DEAD_ID])) == (0, None)
    assert await grow(5, [2, 1], [9, 1]) == unknown
    assert await grow(5, [2, 1], [DEAD_ID]) == uneven
    assert await grow(4, [DEAD_ID, DEAD_ID]) == (refused, f"{what} the broker {DEAD_ID} more than once.")
    assert await grow(5, [2, 1], [3]) == uneven
    assert await grow(5, [3, 1], [2, DEAD_ID]) == (0, None)
    (info,) = [topic for topic in await node.serving.catalog.list_topics() if topic.name == "new"]
    assert [each.leader for each in info.partitions] == [2, 3, 1, 3, 2]
    assert [each.owner for each in info.partitions] == [2, -1, -1, -1, 2], "this node opens its own"
    replicas = [(2, 1), (DEAD_ID, 3), (1, DEAD_ID), (3, 1), (2, DEAD_ID)]
    assert [each.replicas for each in info.partitions] == replicas
    assert [each.preferred for each in info.partitions] == [each[0] for each in replicas]


async def test_leaders_for_another_number_of_partitions_are_refused(node: Node) -> None:
    with pytest.raises(KafkaError, match=r"2 partition\(s\) are to be added, but 1 leader\(s\) were given"):
        await node.serving.topic_commands.grow("t", len(LEADERS) + 2, [OWN_ID])
    assert len((await node.serving.catalog.list_topics())[-1].partitions) == len(LEADERS)


async def test_configs_of_another_node_are_asked_for_there(client: RawClient) -> None:
    for kind, expected in ((BROKER, "2 or empty string, but"), (BROKER_LOGGER, "2 but")):
        wanted = DescribeConfigsResource(resource_type=kind, resource_name="3", configuration_keys=None)
        answer = (await client.call(DescribeConfigsRequest(resources=[wanted]), 4)).results[0]
        message = f"Unexpected broker id, expected {expected} received 3"
        assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, message)
    for kind, message in (
        (BROKER, "Unexpected broker id, expected 2, but received 3"),
        (BROKER_LOGGER, "Unexpected node id. Expected 2, but received 3"),
    ):
        changed = AlterConfigsResource(resource_type=kind, resource_name="3", configs=())
        answer = (await client.call(IncrementalAlterConfigsRequest(resources=[changed]), 1)).responses[0]
        assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, message)
    listed = await client.call(ListConfigResourcesRequest(resource_types=[BROKER, BROKER_LOGGER]), 1)
    assert [(each.resource_type, each.resource_name) for each in listed.config_resources] == [
        (kind, name) for kind in (BROKER, BROKER_LOGGER) for name in "123"
    ]


async def test_what_a_node_without_a_log_leads_is_led_by_the_node_that_unregisters_it(
    node: Node, client: RawClient
) -> None:
    dead = await node.serving.catalog.get_node(DEAD_ID)
    assert dead is not None
    await node.serving.catalog.stop_node(NodeIdentity(DEAD_ID, dead.epoch), drained_wal=None, now_ms=1)
    answer = await client.call(UnregisterBrokerRequest(broker_id=DEAD_ID), 0)
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    leaders = {each.leader for topic in await node.serving.catalog.list_topics() for each in topic.partitions}
    assert DEAD_ID not in leaders
