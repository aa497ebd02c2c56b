"""The group APIs on the wire, from their oldest version to their newest, against a node."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination import shards
from anabranch.protocol.codec import encode_versioned
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.describe_groups import DescribeGroupsRequest
from anabranch.protocol.messages.embedded.consumer_protocol import ConsumerProtocolSubscription
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.heartbeat import HeartbeatRequest
from anabranch.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from anabranch.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from anabranch.protocol.messages.list_groups import ListedGroup, ListGroupsRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from anabranch.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from anabranch.protocol.records import Record, build_batch
from tests.support.node import running_node
from tests.support.raw_client import RawClient, raw_client

SUBSCRIPTION = encode_versioned(ConsumerProtocolSubscription(topics=["flights"]), 1)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """One node for all tests; each test uses a group with its own name."""
    async with running_node(tmp_path_factory.mktemp("node")) as node, raw_client(node.bootstrap) as client:
        await prepare(client)
        yield node


async def prepare(client: RawClient) -> None:
    topics = [CreatableTopic(name=name, num_partitions=3, replication_factor=1) for name in ("flights", "other")]
    created = await client.call(CreateTopicsRequest(topics=topics))
    assert [topic.error_code for topic in created.topics] == [0, 0]
    await client.call(FindCoordinatorRequest(coordinator_keys=["any"]))


@pytest_asyncio.fixture(loop_scope="module")
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as client:
        yield client


@pytest.fixture
def g(request: pytest.FixtureRequest) -> str:
    """Name of the group of a test."""
    return str(request.node.name)


def join(g: str, member_id: str = "", **fields: object) -> JoinGroupRequest:
    wanted: dict[str, object] = {
        "group_id": g,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
        **fields,
    }
    return JoinGroupRequest(**wanted)  # type: ignore[arg-type]


async def enter(client: RawClient, g: str) -> JoinGroupResponse:
    """Become the only member of a group, with an assignment."""
    named = await client.call(join(g))
    assert named.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined: JoinGroupResponse = await client.call(join(g, named.member_id))
    synced = await client.call(sync(g, joined))
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return joined


def sync(g: str, joined: JoinGroupResponse, **fields: object) -> SyncGroupRequest:
    wanted: dict[str, object] = {
        "group_id": g,
        "generation_id": joined.generation_id,
        "member_id": joined.member_id,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
        **fields,
    }
    return SyncGroupRequest(**wanted)  # type: ignore[arg-type]


def commit(
    g: str, offset: int = 5, *, member: JoinGroupResponse | None = None, **fields: object
) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=1, committed_offset=offset, committed_leader_epoch=2, committed_metadata="here"
    )
    wanted: dict[str, object] = {
        "group_id": g,
        "topics": [OffsetCommitRequestTopic(name="flights", partitions=[partition])],
        **fields,
    }
    if member is not None:
        wanted |= {"member_id": member.member_id, "generation_id_or_member_epoch": member.generation_id}
    return OffsetCommitRequest(**wanted)  # type: ignore[arg-type]


def error_of(response: OffsetCommitResponse) -> int:
    return response.topics[0].partitions[0].error_code


@pytest.mark.parametrize("version", range(7))
async def test_every_version_finds_the_coordinator(node: Node, version: int, g: str) -> None:
    async with raw_client(node.bootstrap) as client:
        if version < 4:
            found = await client.call(FindCoordinatorRequest(key="a"), version)
        else:
            response = await client.call(FindCoordinatorRequest(coordinator_keys=["a", "b"]), version)
            found, other = response.coordinators
            assert (found.key, other.key) == ("a", "b")
        assert (found.error_code, f"{found.host}:{found.port}") == (0, node.bootstrap)


async def test_coordinators_of_other_things_are_refused_for_good(client: RawClient) -> None:
    response = await client.call(FindCoordinatorRequest(coordinator_keys=["g:t:0"], key_type=2))
    assert response.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    assert (await client.call(FindCoordinatorRequest(key="g:t:0", key_type=2), 3)).node_id == -1


@pytest.mark.parametrize("version", range(4))
async def test_old_versions_join_without_knowing_their_id(client: RawClient, version: int, g: str) -> None:
    joined = await client.call(join(g), version)
    assert joined.error_code == 0
    assert joined.leader == joined.member_id
    assert joined.member_id.startswith("raw-")
    assert [member.metadata for member in joined.members] == [SUBSCRIPTION]
    for sync_version in range(6):
        synced = await client.call(sync(g, joined), sync_version)
        assert synced.assignment == b"all"
    for heartbeat_version in range(5):
        heartbeat = HeartbeatRequest(group_id=g, generation_id=joined.generation_id, member_id=joined.member_id)
        assert (await client.call(heartbeat, heartbeat_version)).error_code == 0
    leave = LeaveGroupRequest(group_id=g, member_id=joined.member_id)
    assert (await client.call(leave, version % 3)).error_code == 0
    assert (await client.call(leave, version % 3)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(4, 10))
async def test_newer_versions_learn_their_id_first(client: RawClient, version: int, g: str) -> None:
    named = await client.call(join(g), version)
    assert (named.error_code, named.protocol_name or "") == (ErrorCode.MEMBER_ID_REQUIRED, "")
    joined = await client.call(join(g, named.member_id), version)
    assert (joined.error_code, joined.member_id, joined.protocol_name) == (0, named.member_id, "range")
    leave = LeaveGroupRequest(group_id=g, members=[MemberIdentity(member_id=joined.member_id)])
    left = await client.call(leave, 3 + version % 3)
    assert [member.error_code for member in left.members] == [0]


async def test_requests_for_members_are_checked_before_the_group_is(client: RawClient, g: str) -> None:
    assert (await client.call(join(""))).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await client.call(join(g, session_timeout_ms=5_999))).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert (await client.call(join(g, session_timeout_ms=1_800_001))).error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    assert (await client.call(join(g, "nobody"))).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await client.call(join(g, protocols=[]))).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    stranger = JoinGroupResponse(member_id="x", generation_id=1)
    assert (await client.call(sync(g, stranger, group_id=""))).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await client.call(sync(g, stranger, group_id="h"))).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await client.call(HeartbeatRequest(group_id=""))).error_code == ErrorCode.INVALID_GROUP_ID
    assert (await client.call(HeartbeatRequest(group_id="h"))).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    left = await client.call(LeaveGroupRequest(group_id="h", members=[MemberIdentity(member_id="x")]))
    assert (left.error_code, left.members[0].error_code) == (0, ErrorCode.UNKNOWN_MEMBER_ID)
    assert (await client.call(LeaveGroupRequest(group_id=""))).error_code == ErrorCode.INVALID_GROUP_ID


async def test_two_members_share_a_generation(node: Node, client: RawClient, g: str) -> None:
    first = await enter(client, g)
    async with raw_client(node.bootstrap, "second") as other:
        other.send(join(g), 3)
        heartbeat = HeartbeatRequest(group_id=g, generation_id=first.generation_id, member_id=first.member_id)
        async with asyncio.timeout(10):
            while (await client.call(heartbeat)).error_code != ErrorCode.REBALANCE_IN_PROGRESS:  # noqa: ASYNC110
                await asyncio.sleep(0)
        leader: JoinGroupResponse = await client.call(join(g, first.member_id))
        follower: JoinGroupResponse = (await other.receive(JoinGroupRequest, 3))[1]
        assert leader.generation_id == follower.generation_id == first.generation_id + 1
        assert len(leader.members) == 2
        assert not follower.members
        other.send(sync(g, follower, assignments=[]))
        shares = [
            SyncGroupRequestAssignment(member_id=member.member_id, assignment=member.member_id.encode())
            for member in leader.members
        ]
        mine: SyncGroupResponse = await client.call(sync(g, leader, assignments=shares))
        assert mine.assignment == leader.member_id.encode()
        _, synced = await other.receive(SyncGroupRequest)
        assert synced.assignment == follower.member_id.encode()


@pytest.mark.parametrize("version", range(2, 11))
async def test_every_version_commits(node: Node, client: RawClient, version: int, g: str) -> None:
    topic = node.serving.topics.get("flights")
    assert topic is not None
    asked = commit(g).topics[0].partitions
    topics = [
        OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=asked),
        OffsetCommitRequestTopic(name="nothing", topic_id=b"x" * 16, partitions=asked),
    ]
    response = await client.call(commit(g, topics=topics), version)
    unknown = ErrorCode.UNKNOWN_TOPIC_ID if version == 10 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [part.partitions[0].error_code for part in response.topics] == [0, unknown]
    fetched = await client.call(
        OffsetFetchRequest(group_id=g, topics=[OffsetFetchRequestTopic(name="flights", partition_indexes=[1])]), 5
    )
    found = fetched.topics[0].partitions[0]
    epoch = 2 if version >= 6 else -1
    assert (found.committed_offset, found.committed_leader_epoch, found.metadata) == (5, epoch, "here")


@pytest.mark.parametrize("version", range(1, 11))
async def test_every_version_fetches(node: Node, client: RawClient, version: int, g: str) -> None:
    await client.call(commit(g), 9)
    topic = node.serving.topics.get("flights")
    assert topic is not None
    if version < 8:
        asked = [OffsetFetchRequestTopic(name="flights", partition_indexes=[1, 2])]
        fetched = await client.call(OffsetFetchRequest(group_id=g, topics=asked), version)
        everything = fetched
        if version > 1:
            everything = await client.call(OffsetFetchRequest(group_id=g, topics=None), version)
    else:
        wanted = OffsetFetchRequestTopics(name="flights", topic_id=topic.topic_id, partition_indexes=[1, 2])
        groups = [
            OffsetFetchRequestGroup(group_id=g, topics=[wanted]),
            OffsetFetchRequestGroup(group_id=g, topics=None),
        ]
        fetched, everything = (await client.call(OffsetFetchRequest(groups=groups), version)).groups
    one, two = fetched.topics[0].partitions
    assert (one.committed_offset, one.metadata, one.error_code) == (5, "here", 0)
    assert (two.committed_offset, two.metadata, two.error_code) == (-1, "", 0)
    if everything is not fetched:
        assert [(part.partition_index, part.committed_offset) for part in everything.topics[0].partitions] == [(1, 5)]
    if version == 10:
        unknown = OffsetFetchRequestTopics(topic_id=b"x" * 16, partition_indexes=[0])
        groups = [OffsetFetchRequestGroup(group_id=g, topics=[unknown])]
        response = await client.call(OffsetFetchRequest(groups=groups), version)
        assert response.groups[0].topics[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_before_anybody_looks_for_it_there_is_no_coordinator(tmp_path: Path, g: str) -> None:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert (await client.call(join(g))).error_code == code
        assert not (await client.call(ListGroupsRequest())).groups
        asked = [OffsetFetchRequestTopic(name="flights", partition_indexes=[1])]
        oldest = await client.call(OffsetFetchRequest(group_id=g, topics=asked), 1)
        assert oldest.topics[0].partitions[0].error_code == code
        assert (await client.call(OffsetFetchRequest(group_id=g, topics=asked), 2)).error_code == code
        groups = [OffsetFetchRequestGroup(group_id=g, topics=None)]
        assert (await client.call(OffsetFetchRequest(groups=groups), 8)).groups[0].error_code == code
        for version in (0, 5, 6):
            (described,) = (await client.call(DescribeGroupsRequest(groups=[g]), version)).groups
            assert (described.error_code, bool(described.error_message)) == (code, version == 6)
        assert (await client.call(DeleteGroupsRequest(groups_names=[g]))).results[0].error_code == code


async def test_commits_are_checked_one_by_one_and_refused_together(client: RawClient, g: str) -> None:
    def partition(index: int, metadata: str | None) -> OffsetCommitRequestPartition:
        return OffsetCommitRequestPartition(partition_index=index, committed_offset=1, committed_metadata=metadata)

    partitions = [partition(0, None), partition(1, "x" * 4096), partition(2, "x" * 4097), partition(3, "")]
    topics = [OffsetCommitRequestTopic(name="flights", partitions=partitions)]
    response = await client.call(commit(g, topics=topics), 9)
    assert [part.error_code for part in response.topics[0].partitions] == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert error_of(await client.call(commit(g, generation_id_or_member_epoch=3), 9)) == ErrorCode.UNKNOWN_MEMBER_ID
    new = commit("h", generation_id_or_member_epoch=3)
    assert error_of(await client.call(new, 8)) == ErrorCode.ILLEGAL_GENERATION
    assert error_of(await client.call(new, 9)) == ErrorCode.GROUP_ID_NOT_FOUND
    member = await enter(client, g)
    assert error_of(await client.call(commit(g, member=member), 9)) == ErrorCode.NONE
    assert error_of(await client.call(commit(g), 9)) == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(7))
async def test_every_version_describes(client: RawClient, version: int, g: str) -> None:
    member = await enter(client, g)
    request = DescribeGroupsRequest(groups=[g, "h"], include_authorized_operations=version >= 3)
    group, unknown = (await client.call(request, version)).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == ("Stable", "consumer", "range")
    described = group.members[0]
    assert (described.member_id, described.client_id, described.client_host) == (
        member.member_id,
        "raw",
        "/127.0.0.1",
    )
    assert (described.member_metadata, described.member_assignment) == (SUBSCRIPTION, b"all")
    assert group.authorized_operations == (3400 if version >= 3 else -(2**31))
    assert unknown.group_state == "Dead"
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version == 6 else 0)


@pytest.mark.parametrize("version", range(6))
async def test_every_version_lists(client: RawClient, version: int, g: str) -> None:
    await enter(client, g)
    await client.call(commit(f"{g}-simple"), 9)

    async def listed(**filters: list[str]) -> list[ListedGroup]:
        groups = (await client.call(ListGroupsRequest(**filters), version)).groups
        return [group for group in groups if group.group_id.startswith(g)]

    assert sorted((group.group_id, group.protocol_type) for group in await listed()) == [
        (g, "consumer"),
        (f"{g}-simple", ""),
    ]
    if version >= 4:
        stable = await listed(states_filter=["stable"])
        assert [(group.group_id, group.group_state) for group in stable] == [(g, "Stable")]
        assert not await listed(states_filter=["no such state"])
    if version >= 5:
        for wanted, count in (("Classic", 2), ("consumer", 0)):
            assert [group.group_type for group in await listed(types_filter=[wanted])] == ["classic"] * count


@pytest.mark.parametrize("version", range(3))
async def test_every_version_deletes_groups(client: RawClient, version: int, g: str) -> None:
    member = await enter(client, g)
    await client.call(commit(f"{g}-simple"), 9)
    request = DeleteGroupsRequest(groups_names=[g, f"{g}-simple", "h"])
    deleted = await client.call(request, version)
    assert {result.group_id: result.error_code for result in deleted.results} == {
        g: ErrorCode.NON_EMPTY_GROUP,
        f"{g}-simple": ErrorCode.NONE,
        "h": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    left = (await client.call(ListGroupsRequest())).groups
    assert [group.group_id for group in left if group.group_id.startswith(g)] == [g]
    await client.call(LeaveGroupRequest(group_id=g, members=[MemberIdentity(member_id=member.member_id)]))
    deleted = await client.call(DeleteGroupsRequest(groups_names=[g]), version)
    assert deleted.results[0].error_code == 0


async def test_offsets_of_unread_topics_are_deleted(client: RawClient, g: str) -> None:
    member = await enter(client, g)
    other = OffsetCommitRequestTopic(name="other", partitions=commit(g).topics[0].partitions)
    await client.call(commit(g, member=member, topics=[*commit(g).topics, other]), 9)

    def topic(name: str, partition: int = 1) -> OffsetDeleteRequestTopic:
        partitions = [OffsetDeleteRequestPartition(partition_index=partition)]
        return OffsetDeleteRequestTopic(name=name, partitions=partitions)

    request = OffsetDeleteRequest(group_id=g, topics=[topic("flights"), topic("other"), topic("no"), topic("other", 9)])
    deleted = await client.call(request)
    assert [part.partitions[0].error_code for part in deleted.topics] == [
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    unknown = await client.call(OffsetDeleteRequest(group_id="h", topics=[topic("other")]))
    assert unknown.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    left = await client.call(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=g, topics=None)]), 9)
    assert [found.name for found in left.groups[0].topics] == ["flights"]


async def test_groups_and_offsets_survive_a_restart(tmp_path: Path, g: str) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await prepare(client)
        member = await enter(client, g)
        assert error_of(await client.call(commit(g, 77, member=member), 9)) == 0
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        async with asyncio.timeout(10):
            while error := error_of(await client.call(commit(g, 78, member=member), 9)):
                assert error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert (await client.call(sync(g, member, assignments=[]))).assignment == b"all"
        fetched = await client.call(OffsetFetchRequest(group_id=g, topics=None), 7)
        assert fetched.topics[0].partitions[0].committed_offset == 78


async def test_clients_cannot_write_into_the_offsets_topic(node: Node, client: RawClient) -> None:
    topic = node.serving.topics.get("__consumer_offsets")
    assert topic is not None
    batch = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)])
    data = TopicProduceData(
        topic_id=topic.topic_id, partition_data=[PartitionProduceData(index=0, records=memoryview(batch))]
    )
    response = await client.call(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data]))
    refused = response.responses[0].partition_responses[0]
    assert refused.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


async def test_a_compacted_log_is_read_back_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "COMPACT_BYTES_MIN", 1)
    async with running_node(tmp_path, group_offsets_partitions=1) as node, raw_client(node.bootstrap) as client:
        await prepare(client)
        member = await enter(client, "g")
        for offset in range(50):
            assert error_of(await client.call(commit("g", offset, member=member), 9)) == 0
        partition = node.serving.topics.partition("__consumer_offsets", 0)
        await node.serving.groups.compact()
        assert partition.log_start_offset >= 50
        assert partition.high_watermark == partition.log_start_offset + 2
        assert error_of(await client.call(commit("g", 50, member=member), 9)) == 0
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        async with asyncio.timeout(10):
            while error := error_of(await client.call(commit("h", 1), 9)):
                assert error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        fetched = await client.call(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert fetched.topics[0].partitions[0].committed_offset == 50
        assert (await client.call(sync("g", member, assignments=[]))).assignment == b"all"


async def test_a_retention_time_without_end_is_kept_as_long_as_possible(client: RawClient, g: str) -> None:
    asked = [OffsetCommitRequestPartition(partition_index=0, committed_offset=7)]
    for retention_ms in (2**63 - 1, -(2**63)):
        request = OffsetCommitRequest(
            group_id=g,
            generation_id_or_member_epoch=-1,
            retention_time_ms=retention_ms,
            topics=[OffsetCommitRequestTopic(name="flights", partitions=asked)],
        )
        response = await client.call(request, 2)
        assert response.topics[0].partitions[0].error_code == ErrorCode.NONE


async def test_groups_beyond_the_limit_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, group_groups_max=2, group_offsets_partitions=1) as node,
        raw_client(node.bootstrap) as client,
    ):
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="flights")]), 9)
        await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=7)
        topics = [OffsetCommitRequestTopic(name="flights", partitions=[partition])]
        for group, code in (("g", ErrorCode.NONE), ("h", ErrorCode.NONE), ("i", ErrorCode.POLICY_VIOLATION)):
            response = await client.call(commit(group, topics=topics), 9)
            assert error_of(response) == code
        assert (await client.call(join("j"))).error_code == ErrorCode.POLICY_VIOLATION
        heartbeat = ConsumerGroupHeartbeatRequest(
            group_id="k",
            member_id="m",
            member_epoch=0,
            rebalance_timeout_ms=5000,
            subscribed_topic_names=["flights"],
            topic_partitions=(),
        )
        refused = await client.call(heartbeat)
        assert (refused.error_code, refused.error_message) == (
            ErrorCode.POLICY_VIOLATION,
            "too many groups: 2 (group.groups_max)",
        )
        assert error_of(await client.call(commit("g", topics=topics), 9)) == ErrorCode.NONE
        await client.call(DeleteGroupsRequest(groups_names=["g"]))
        assert error_of(await client.call(commit("i", topics=topics), 9)) == ErrorCode.NONE, "there is room again"
