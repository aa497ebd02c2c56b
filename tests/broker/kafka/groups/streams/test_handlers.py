"""The handlers of streams groups over a shard in memory: responses as messages, and topics that are created."""

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.broker.api.handlers import create_topics, streams_group_describe, streams_group_heartbeat
from anabranch.broker.api.handlers import streams_group_topology_description_update as description_update
from anabranch.broker.kafka.configs.streams import StreamsConfigs
from anabranch.broker.kafka.coordination.log import LogWriter
from anabranch.broker.kafka.groups.modern.topic_image import TopicImage, TopicMetadata
from anabranch.broker.kafka.groups.shard import GroupShard
from anabranch.broker.node.settings.client_areas import GroupSettings
from anabranch.protocol.codec import decode_exact, encode
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from anabranch.protocol.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from anabranch.protocol.messages.streams_group_heartbeat import (
    Endpoint,
    KeyValue,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    TopicInfo,
    Topology,
)
from anabranch.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
)
from tests.support.memory_log import MemoryLog
from tests.support.waiting import until

CONFIGS = StreamsConfigs(initial_rebalance_delay_ms=0, assignment_interval_ms=0)
LOG = TopicInfo(name="log", replication_factor=2, topic_configs=[KeyValue(key="cleanup.policy", value="compact")])
TOPOLOGY = Topology(
    epoch=1, subtopologies=[Subtopology(subtopology_id="0", source_topics=["in"], state_changelog_topics=[LOG])]
)


class Node:
    """Parts of a node that the handlers use, with one shard of groups."""

    def __init__(self) -> None:
        self.level = 1
        self.topics = TopicImage(0)
        self.set_topics(**{"in": 2})
        self.shard = GroupShard(
            LogWriter(MemoryLog()),
            GroupSettings(),
            now_ms=lambda: 5_000,
            topics=lambda: self.topics,
            streams_configs=lambda _: CONFIGS,
        )
        self.serving: Any = SimpleNamespace(
            acls=None,
            audit=SimpleNamespace(record=lambda event, **fields: self.audited.append((event, fields["resource"]))),
            features=SimpleNamespace(level=lambda _: self.level),
            groups=SimpleNamespace(shard=lambda _: self.shard, shard_with_id=lambda _: self.shard),
            group_configs=SimpleNamespace(streams=lambda _: CONFIGS),
        )
        self.audited: list[tuple[str, str]] = []
        self.answers: list[StreamsGroupHeartbeatResponse] = []

    def set_topics(self, **partitions: int) -> None:
        topics = [TopicMetadata(name.encode().ljust(16, b"-"), name, count) for name, count in partitions.items()]
        self.topics = TopicImage.of(self.topics.version + 1, topics)

    async def beat(self, member_id: str, epoch: int = 0, **fields: Any) -> StreamsGroupHeartbeatResponse:
        """Send a heartbeat; its response has been encoded and decoded in the newest version."""
        if epoch == 0:
            tasks: dict[str, Any] = {"active_tasks": (), "standby_tasks": (), "warmup_tasks": ()}
            fields = {"rebalance_timeout_ms": 300, "topology": TOPOLOGY, "process_id": "p", **tasks, **fields}
        request = StreamsGroupHeartbeatRequest(group_id="g", member_id=member_id, member_epoch=epoch, **fields)
        exchange: Any = SimpleNamespace(
            api_version=1,
            client_id="c",
            client_host="h",
            peer=None,
            connection=SimpleNamespace(principal="User:u", host="h"),
            complete=self.answers.append,
        )
        answer = streams_group_heartbeat.handle(self.serving, request, exchange)
        if isinstance(answer, Coroutine):
            answer = await answer
        elif answer is None:
            await until(lambda: bool(self.answers))
            answer = self.answers.pop()
        return decode_exact(StreamsGroupHeartbeatResponse, encode(answer, 1), 1)

    def described(self, group_id: str = "g", **fields: bool) -> Any:
        request = StreamsGroupDescribeRequest(group_ids=[group_id], **fields)
        exchange: Any = None
        answer = streams_group_describe.handle(self.serving, request, exchange)
        [group] = decode_exact(StreamsGroupDescribeResponse, encode(answer, 1), 1).groups
        return group


@pytest.fixture
async def node() -> Node:
    node = Node()
    await node.shard.load()
    return node


def creating(monkeypatch: pytest.MonkeyPatch, *results: CreatableTopicResult) -> list[CreateTopicsRequest]:
    """Let creations of topics have these results. Returns the list that their requests are appended to."""
    asked: list[CreateTopicsRequest] = []

    async def handle(_serving: object, request: CreateTopicsRequest, _exchange: object) -> CreateTopicsResponse:
        asked.append(request)
        return CreateTopicsResponse(topics=results)

    monkeypatch.setattr(create_topics, "handle", handle)
    return asked


async def test_missing_internal_topics_are_created(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = creating(monkeypatch, CreatableTopicResult(name="log", error_code=ErrorCode.NONE, configs=()))
    response = await node.beat("a")
    assert [(each.status_code, each.status_detail) for each in response.status or ()] == [
        (3, "Internal topics are missing: log")
    ]
    [[topic]] = [request.topics for request in asked]
    assert (topic.name, topic.num_partitions, topic.replication_factor) == ("log", 2, 2)
    assert [(config.name, config.value) for config in topic.configs] == [("cleanup.policy", "compact")]
    node.set_topics(**{"in": 2, "log": 2})
    response = await node.beat("a", response.member_epoch)
    assert [list(each.partitions) for each in response.active_tasks or ()] == [[0, 1]]
    assert len(asked) == 1
    assert node.audited == [("changed", "log")]


async def test_the_status_says_why_topics_are_not_created(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [
        CreatableTopicResult(name=name, error_code=ErrorCode.POLICY_VIOLATION, error_message="no", configs=())
        for name in "abcde"
    ]
    exists = CreatableTopicResult(name="f", error_code=ErrorCode.TOPIC_ALREADY_EXISTS, error_message="", configs=())
    creating(monkeypatch, *failed, exists)
    [status] = (await node.beat("a")).status or ()
    assert status.status_detail == (
        "Internal topics are missing: log; Creation failed: a (no), b (no), c (no) and 2 more."
    )


async def test_a_heartbeat_is_answered(node: Node) -> None:
    node.set_topics(**{"in": 2, "log": 2})
    response = await node.beat(
        "a", user_endpoint=Endpoint(host="e", port=1), client_tags=[KeyValue(key="k", value="v")]
    )
    assert (response.error_code, response.member_id, response.member_epoch) == (0, "a", 2)
    assert (response.heartbeat_interval_ms, response.task_offset_interval_ms) == (5_000, 60_000)
    assert response.acceptable_recovery_lag == 10_000
    [endpoint] = response.partitions_by_user_endpoint or ()
    assert [(each.topic, list(each.partitions)) for each in endpoint.active_partitions] == [("in", [0, 1])]
    again = await node.beat("a", 2)
    assert (again.active_tasks, again.partitions_by_user_endpoint, again.status) == (None, None, ())
    left = await node.beat("a", -1)
    assert (left.member_epoch, left.heartbeat_interval_ms) == (-1, 0)


async def test_refusals_are_answered(node: Node) -> None:
    assert (await node.beat("")).error_message == "MemberId can't be empty."
    assert (await node.beat("a", 1)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    node.level = 0
    assert (await node.beat("a")).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert node.described().error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_group_is_described(node: Node) -> None:
    node.set_topics(**{"in": 2, "log": 2})
    await node.beat("a", user_endpoint=Endpoint(host="e", port=1), client_tags=[KeyValue(key="k", value="v")])
    group = node.described(include_topology_description=True)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 2, 2)
    assert (group.assignor_name, group.topology_description_status) == ("sticky", 1)
    [subtopology] = group.topology.subtopologies
    assert [(each.name, each.partitions) for each in subtopology.state_changelog_topics] == [("log", 2)]
    [member] = group.members
    assert member.assignment == member.target_assignment
    assert [list(each.partitions) for each in member.assignment.active_tasks] == [[0, 1]]
    assert (member.user_endpoint.host, member.client_host, member.topology_epoch) == ("e", "/h", 1)
    assert node.described("x").error_message == "Group x not found."


async def test_a_topology_that_is_not_ready_is_described_as_sent(node: Node) -> None:
    node.set_topics(other=1)
    await node.beat("a")
    group = node.described()
    assert (group.group_state, group.topology_description_status) == ("NotReady", 0)
    [subtopology] = group.topology.subtopologies
    assert [(each.name, each.partitions) for each in subtopology.state_changelog_topics] == [("log", 0)]


async def test_descriptions_of_topologies_are_refused(node: Node) -> None:
    request = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id="g", member_id="m", topology_description=TopologyDescription()
    )
    exchange: Any = None
    answer = description_update.handle(node.serving, request, exchange)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert answer.error_message == "The broker has no streams group topology description plugin configured."
