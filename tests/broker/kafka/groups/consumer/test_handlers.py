"""The APIs of the consumer group protocol on the wire, against a node."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from anabranch.broker.cluster.node import Node
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.api_versions import ApiVersionsRequest
from anabranch.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from anabranch.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.list_groups import ListGroupsRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from tests.broker.kafka.groups.test_handlers import join
from tests.support.node import running_node
from tests.support.raw_client import RawClient, raw_client

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """One node for all tests; each test uses a group and a topic with its own name."""
    async with running_node(tmp_path_factory.mktemp("node")) as node, raw_client(node.bootstrap) as client:
        await client.call(FindCoordinatorRequest(coordinator_keys=["any"]))
        yield node


@pytest_asyncio.fixture(loop_scope="module")
async def client(node: Node, g: str) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as client:
        topic = CreatableTopic(name=g, num_partitions=2, replication_factor=1)
        assert (await client.call(CreateTopicsRequest(topics=[topic]))).topics[0].error_code == 0
        yield client


@pytest.fixture
def g(request: pytest.FixtureRequest) -> str:
    """Name of the group and the topic of a test."""
    return re.sub("[^a-z0-9_]", "-", str(request.node.name))[:100]


def beat(g: str, member_id: str = "m", epoch: int = 0, **fields: object) -> ConsumerGroupHeartbeatRequest:
    wanted: dict[str, object] = {"group_id": g, "member_id": member_id, "member_epoch": epoch}
    if epoch == 0:
        wanted |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [g], "topic_partitions": []}
    return ConsumerGroupHeartbeatRequest(**{**wanted, **fields})  # type: ignore[arg-type]


def assigned(response: ConsumerGroupHeartbeatResponse) -> list[int]:
    assert response.error_code == ErrorCode.NONE, response.error_message
    assert response.assignment is not None
    return sorted(number for topic in response.assignment.topic_partitions for number in topic.partitions)


async def test_a_member_joins_stays_and_leaves(client: RawClient, g: str) -> None:
    joined = await client.call(beat(g))
    assert (joined.member_id, joined.member_epoch, joined.heartbeat_interval_ms) == ("m", 2, 5_000)
    assert assigned(joined) == [0, 1]
    stayed = await client.call(beat(g, "m", 2))
    assert (stayed.error_code, stayed.member_epoch, stayed.assignment) == (0, 2, None)
    left = await client.call(beat(g, "m", -1))
    assert (left.error_code, left.member_epoch) == (0, -1)
    gone = await client.call(beat(g, "m", 2))
    assert (gone.error_code, gone.error_message) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        f"Member m is not a member of group {g}.",
    )


async def test_a_member_of_version_0_is_given_its_id(client: RawClient, g: str) -> None:
    joined = await client.call(beat(g, ""), 0)
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id
    refused = await client.call(beat(g, ""), 1)
    assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_REQUEST, "MemberId can't be empty.")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        ({"topic_partitions": [TopicPartitions()]}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
    ],
)
async def test_malformed_requests_are_refused(
    client: RawClient, g: str, fields: dict[str, object], problem: str
) -> None:
    refused = await client.call(beat(g, **fields))  # type: ignore[arg-type]
    assert (refused.error_code, refused.error_message) == (ErrorCode.INVALID_REQUEST, problem)


async def test_fencing_and_names_that_are_not_known(client: RawClient, g: str) -> None:
    async def error(**fields: object) -> int:
        return int((await client.call(beat(g, **fields))).error_code)  # type: ignore[arg-type]

    assert await error(epoch=5) == ErrorCode.GROUP_ID_NOT_FOUND
    assert await error(server_assignor="sticky") == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert await error(subscribed_topic_regex="(") == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert await error() == ErrorCode.NONE
    assert await error(epoch=3) == ErrorCode.FENCED_MEMBER_EPOCH
    assert await error(member_id="s", instance_id="i") == ErrorCode.NONE
    assert await error(member_id="r", instance_id="i") == ErrorCode.UNRELEASED_INSTANCE_ID
    assert await error(member_id="r", epoch=1, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID
    assert await error(member_id="r", epoch=1, instance_id="j") == ErrorCode.UNKNOWN_MEMBER_ID
    assert await error(member_id="s", epoch=-2, instance_id="i") == ErrorCode.NONE
    assert await error(member_id="r", instance_id="i") == ErrorCode.NONE
    assert await error(member_id="s", epoch=2, instance_id="i") == ErrorCode.FENCED_INSTANCE_ID


async def test_topics_that_change_move_the_group(client: RawClient, g: str) -> None:
    assert assigned(await client.call(beat(g, subscribed_topic_names=[], subscribed_topic_regex=f"{g}.*"))) == [0, 1]
    await client.call(
        CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=g, count=3, assignments=None)], timeout_ms=1000)
    )
    grown = await client.call(beat(g, "m", 2))
    assert (grown.member_epoch, assigned(grown)) == (3, [0, 1, 2])
    await client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=g)], timeout_ms=1000))
    owned = list(grown.assignment.topic_partitions)
    gone = await client.call(beat(g, "m", 3, topic_partitions=owned))
    assert assigned(gone) == []
    assert (await client.call(beat(g, "m", 3, topic_partitions=[]))).member_epoch == 4


async def test_describing(client: RawClient, g: str) -> None:
    missing = f"{g}-missing"
    await client.call(beat(g, rack_id="r", instance_id="i", server_assignor="range"))
    asked = ConsumerGroupDescribeRequest(group_ids=[g, missing], include_authorized_operations=True)
    found, unknown = (await client.call(asked)).groups
    assert (found.error_code, found.group_state, found.group_epoch, found.assignment_epoch) == (0, "Stable", 2, 2)
    assert (found.assignor_name, found.authorized_operations) == ("range", 3400)
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 2)
    assert (member.client_id, member.client_host, member.member_type) == ("raw", "/127.0.0.1", 1)
    (topic,) = member.assignment.topic_partitions
    assert (topic.topic_name, list(topic.partitions)) == (g, [0, 1])
    assert member.target_assignment == member.assignment
    assert (unknown.error_code, unknown.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {missing} not found.",
    )
    (classic,) = (await client.call(DescribeGroupsRequest(groups=[g]))).groups
    assert (classic.error_code, classic.error_message) == (
        ErrorCode.GROUP_ID_NOT_FOUND,
        f"Group {g} is not a classic group.",
    )
    (classic,) = (await client.call(DescribeGroupsRequest(groups=[g]), 5)).groups
    assert (classic.error_code, classic.group_state) == (ErrorCode.NONE, "Dead")


async def test_listing_and_deleting(client: RawClient, g: str) -> None:
    async def listed(types: list[str]) -> list[tuple[str, str, str]]:
        groups = (await client.call(ListGroupsRequest(types_filter=types))).groups
        return [(group.group_state, group.group_type, group.protocol_type) for group in groups if group.group_id == g]

    await client.call(beat(g))
    assert await listed([]) == await listed(["Consumer"]) == [("Stable", "consumer", "consumer")]
    assert await listed(["classic"]) == []
    delete = DeleteGroupsRequest(groups_names=[g])
    assert (await client.call(delete)).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    await client.call(beat(g, "m", -1))
    assert (await client.call(delete)).results[0].error_code == ErrorCode.NONE
    assert await listed([]) == []


async def test_a_classic_member_is_taken_in_if_it_is_a_consumer(client: RawClient, g: str) -> None:
    await client.call(beat(g))
    assert (await client.call(join(g))).error_code == ErrorCode.MEMBER_ID_REQUIRED
    other = replace(join(g), protocol_type="connect")
    assert (await client.call(other)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    await client.call(beat(g, "m", -1))
    assert (await client.call(join(g))).error_code == ErrorCode.MEMBER_ID_REQUIRED
    found = await client.call(ConsumerGroupDescribeRequest(group_ids=[g]))
    assert found.groups[0].error_message == f"Group {g} is not a consumer group."


@pytest.mark.parametrize("version", [8, 9])
async def test_commits_are_of_an_epoch(client: RawClient, g: str, version: int) -> None:
    await client.call(beat(g))

    async def commit(epoch: int) -> int:
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=4)
        topic = OffsetCommitRequestTopic(name=g, partitions=[partition])
        request = OffsetCommitRequest(group_id=g, member_id="m", generation_id_or_member_epoch=epoch, topics=[topic])
        return int((await client.call(request, version)).topics[0].partitions[0].error_code)

    assert await commit(2) == (ErrorCode.UNSUPPORTED_VERSION if version == 8 else ErrorCode.NONE)
    assert await commit(3) == (ErrorCode.UNSUPPORTED_VERSION if version == 8 else ErrorCode.STALE_MEMBER_EPOCH)
    for member_id, epoch, error in (("m", 2, 0), ("m", 3, ErrorCode.STALE_MEMBER_EPOCH), (None, -1, 0)):
        asked = OffsetFetchRequestGroup(group_id=g, member_id=member_id, member_epoch=epoch, topics=None)
        (found,) = (await client.call(OffsetFetchRequest(groups=[asked]), 9)).groups
        assert found.error_code == error
        assert bool(found.topics) is (version == 9 and not error)


async def test_clients_are_told_that_the_protocol_is_there(client: RawClient, g: str) -> None:
    found = await client.call(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    assert [feature.max_version_level for feature in found.finalized_features if feature.name == "group.version"] == [1]
