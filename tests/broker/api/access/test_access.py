"""Access beyond what is compared with Apache Kafka: sessions, requests without an answer, audit events."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.acls.model import Acl, AclOperation, AclResourceType, PatternType, Permission
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.node.net.principals import ANONYMOUS
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from anabranch.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.delete_groups import DeleteGroupsRequest
from anabranch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.elect_leaders import ElectLeadersRequest
from anabranch.protocol.messages.elect_leaders import TopicPartitions as Elected
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.messages.unregister_broker import UnregisterBrokerRequest
from anabranch.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client
from tests.support.unheard import stop_hearing

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


def allow(
    operation: AclOperation, name: str = "t", resource_type: AclResourceType = AclResourceType.TOPIC, **other: Any
) -> Acl:
    acl = Acl(resource_type, name, PatternType.LITERAL, ANONYMOUS, "*", operation, Permission.ALLOW)
    return acl._replace(**other)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path, authorizer_enabled=True) as running:
        for name in ("t", "u"):
            await running.serving.topic_commands.ensure(name, partitions=1, configs={})
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


async def grant(node: Node, *acls: Acl) -> None:
    assert node.serving.acls is not None
    await node.serving.acls.alter(added=acls)


async def revoke(node: Node, *acls: Acl) -> None:
    assert node.serving.acls is not None
    await node.serving.acls.alter(removed=acls)


def fetch(session_id: int, epoch: int, topics: Sequence[str] = ()) -> FetchRequest:
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100)]
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=name, partitions=wanted) for name in topics],
    )


async def test_a_fetch_session_follows_the_acls(node: Node, client: RawClient) -> None:
    await grant(node, allow(AclOperation.READ, "u"), allow(AclOperation.WRITE, "t"))
    produced = await client.produce("t", [batch_of(b"v")])
    assert not produced.responses[0].partition_responses[0].error_code

    async def errors(session_id: int, epoch: int, topics: Sequence[str] = ()) -> tuple[int, dict[str, int]]:
        answer = await client.call(fetch(session_id, epoch, topics), 12)
        assert not answer.error_code
        return answer.session_id, {each.topic: each.partitions[0].error_code for each in answer.responses}

    session_id, found = await errors(0, 0, ["t", "u"])
    assert found == {"t": DENIED, "u": ErrorCode.NONE}
    assert (await errors(session_id, 1))[1] == {"t": DENIED}, "each answer of the session says so"
    read = allow(AclOperation.READ)
    await grant(node, read)
    answer = await client.call(fetch(session_id, 2), 12)
    assert [(each.topic, each.partitions[0].error_code) for each in answer.responses] == [("t", ErrorCode.NONE)]
    assert answer.responses[0].partitions[0].records
    await revoke(node, read)
    assert (await errors(session_id, 3))[1] == {"t": DENIED}


def produce(*names: str, acks: int) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch_of(b"v"))])
            for name in names
        ],
    )


async def test_a_denied_request_without_an_answer_closes_the_connection(node: Node, client: RawClient) -> None:
    await grant(node, allow(AclOperation.WRITE, "u"))
    client.send(produce("u", acks=0), 9)
    client.send(produce("t", "u", acks=0), 9)
    assert await client.closed()
    ends = {name: node.serving.topics.partition(name, 0).stream.next_offset for name in ("t", "u")}
    assert ends == {"t": 0, "u": 2}, "what is allowed is appended"


async def test_nothing_is_said_of_topics_that_one_may_not_describe(node: Node, client: RawClient) -> None:
    """A topic looks the same to a client that may not describe it, whether it exists or not."""
    topics = [MetadataRequestTopic(name=name) for name in ("t", "missing")]
    answer = await client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 12)
    found = {topic.name: (topic.error_code, topic.topic_id, len(topic.partitions)) for topic in answer.topics}
    assert found == {name: (DENIED, bytes(16), 0) for name in ("t", "missing")}
    assert node.serving.topics.get("missing") is None
    assert not (await client.call(MetadataRequest(topics=None), 12)).topics


async def test_a_topic_is_created_with_an_acl_for_it_or_for_the_cluster(node: Node, client: RawClient) -> None:
    async def created(*names: str) -> list[int]:
        wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
        answer = await client.call(CreateTopicsRequest(topics=wanted, timeout_ms=5000), 7)
        codes = {topic.name: topic.error_code for topic in answer.topics}
        return [codes[name] for name in names]

    assert await created("one", "two") == [DENIED, DENIED]
    await grant(node, allow(AclOperation.CREATE, "o", pattern_type=PatternType.PREFIXED))
    assert await created("one", "two") == [ErrorCode.NONE, DENIED]
    await grant(node, allow(AclOperation.CREATE, "kafka-cluster", AclResourceType.CLUSTER))
    assert await created("two") == [ErrorCode.NONE]
    assert node.serving.topics.get("one") is not None


async def test_denials_are_audited(node: Node, client: RawClient) -> None:
    with capture_logs() as logs:
        await client.call(produce("t", acks=1), 9)
        await client.call(MetadataRequest(topics=None), 12)
        for _ in range(3):
            await client.call(produce("t", acks=1), 9)
    denied = [each for each in logs if each["event"] == "denied"]
    assert len(denied) == 4, "the answer about all topics leaves some out: nothing was asked for that is denied"
    assert denied[0] == {
        "event": "denied",
        "log_level": "info",
        "principal": ANONYMOUS,
        "host": "127.0.0.1",
        "operation": "WRITE",
        "resource_type": "TOPIC",
        "resource": "t",
        "api": "Produce",
    }


async def test_a_topic_that_another_node_has_just_created_is_not_deleted_unchecked(
    node: Node, client: RawClient
) -> None:
    """The handler looks topics up after it has waited, when one may exist that was unknown to the check."""
    assert node.serving.acls is not None
    await grant(node, allow(AclOperation.DESCRIBE, "*"))
    hidden = node.serving.topics.get("t")
    assert hidden is not None
    by_id = DeleteTopicState(name=None, topic_id=hidden.topic_id)

    async def deletion(state: DeleteTopicState) -> tuple[str | None, int]:
        await stop_hearing(node)  # to apply the change of the ACLs, it would look for a topic that is hidden
        with pytest.MonkeyPatch.context() as patch:
            is_checked = False

            def unknown(*_: object) -> Topic | None:
                nonlocal is_checked
                is_checked = True
                return None

            patch.setattr(type(node.serving.topics), "get", unknown)

            async def catch_up() -> None:
                if is_checked:  # the node also does so by itself
                    patch.undo()

            patch.setattr(node.serving.membership, "catch_up", catch_up)
            answer = await client.call(DeleteTopicsRequest(topics=[state], timeout_ms=1000), 6)
        return answer.responses[0].name, answer.responses[0].error_code

    assert await deletion(DeleteTopicState(name="t")) == ("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert await deletion(by_id) == ("t", DENIED)
    assert node.serving.topics.get("t") is hidden
    await grant(node, allow(AclOperation.DELETE))
    assert await deletion(by_id) == ("t", ErrorCode.NONE)
    assert node.serving.topics.get("t") is None


async def test_changes_are_audited_with_their_outcome(node: Node, client: RawClient) -> None:
    await grant(node, allow(AclOperation.CREATE, "mine"))
    await grant(node, allow(AclOperation.ALTER, "kafka-cluster", AclResourceType.CLUSTER))
    wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("mine", "other")]
    acl = AclCreation(
        resource_type=2,
        resource_name="t",
        resource_pattern_type=4,
        principal="User:a",
        host="*",
        operation=3,
        permission_type=3,
    )
    with capture_logs() as logs:
        await client.call(CreateTopicsRequest(topics=wanted, timeout_ms=5000, validate_only=True), 7)
        await client.call(CreateTopicsRequest(topics=wanted, timeout_ms=5000), 7)
        await client.call(CreateAclsRequest(creations=[acl]), 3)
        await client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="mine")], timeout_ms=1000), 6)
    found = [
        (each["event"], each["api"], each["resource_type"], each["resource"], each["outcome"])
        for each in logs
        if each["event"].startswith("change")
    ]
    assert found == [
        ("changed", "CreateTopics", "TOPIC", "mine", "OK"),
        ("change refused", "CreateTopics", "TOPIC", "other", "TOPIC_AUTHORIZATION_FAILED"),
        ("changed", "CreateAcls", "ACL", "ALLOW User:a at * READ on TOPIC PREFIXED t", "OK"),
        ("change refused", "DeleteTopics", "TOPIC", "mine", "TOPIC_AUTHORIZATION_FAILED"),
    ]
    assert {(each["principal"], each["host"]) for each in logs if "api" in each} == {(ANONYMOUS, "127.0.0.1")}


async def test_changes_are_audited_without_an_authorizer(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        requests: list[Any] = [
            CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]),
            IncrementalAlterConfigsRequest(
                resources=[
                    AlterConfigsResource(
                        resource_type=2,
                        resource_name="t",
                        configs=[AlterableConfig(name="cleanup.policy", config_operation=0, value="compact")],
                    )
                ]
            ),
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=2)], timeout_ms=1000),
            DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])],
                timeout_ms=1000,
            ),
            DeleteGroupsRequest(groups_names=["g"]),
            ElectLeadersRequest(topic_partitions=[Elected(topic="t", partitions=[0])], timeout_ms=1000),
            UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature="f", max_version_level=1)]),
            UnregisterBrokerRequest(broker_id=99),
        ]
        with capture_logs() as logs:
            for request in requests:
                await client.call(request)
    found = [(each["api"], each["resource"]) for each in logs if each["event"].startswith("change")]
    assert found == [
        ("CreateTopics", "t"),
        ("IncrementalAlterConfigs", "t"),
        ("CreatePartitions", "t"),
        ("DeleteRecords", "t-0"),
        ("DeleteGroups", "g"),
        ("UpdateFeatures", "f"),
        ("UnregisterBroker", "99"),
    ]


async def test_a_pattern_matches_topics_that_its_member_may_describe(node: Node, client: RawClient) -> None:
    group = allow(AclOperation.READ, "g", AclResourceType.GROUP)
    await grant(node, group, allow(AclOperation.DESCRIBE, "g", AclResourceType.GROUP), allow(AclOperation.READ, "u"))
    await node.serving.internal_topics.ensure(OFFSETS_TOPIC)
    ids = {topic.topic_id: topic.name for topic in node.serving.topics}

    async def beat(epoch: int, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=epoch, **fields)
        answer: ConsumerGroupHeartbeatResponse = await client.call(request, 1)
        assert not answer.error_code, answer
        return answer

    def assigned(answer: ConsumerGroupHeartbeatResponse) -> set[str] | None:
        if answer.assignment is None:
            return None
        return {ids[each.topic_id] for each in answer.assignment.topic_partitions}

    joined = await beat(0, rebalance_timeout_ms=60_000, subscribed_topic_regex="[tu]", topic_partitions=[])
    assert assigned(joined) == {"u"}
    read = allow(AclOperation.READ)
    await grant(node, read)
    grown = await beat(joined.member_epoch)
    assert assigned(grown) == {"t", "u"}
    await grant(node, allow(AclOperation.READ, "v"))
    assert (await beat(grown.member_epoch)).member_epoch == grown.member_epoch, "other ACLs change nothing"
    await revoke(node, read)
    owned = [TopicPartitions(topic_id=topic_id, partitions=[0]) for topic_id, name in ids.items() if name in {"t", "u"}]
    assert assigned(await beat(grown.member_epoch, topic_partitions=owned)) == {"u"}
