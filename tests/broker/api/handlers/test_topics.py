"""Creating, growing, changing, describing and deleting topics, with the errors Kafka gives."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

import pytest

from anabranch.broker.api.resources.values import Operation
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.definitions import ConfigSource
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.protocol.compression import Compression
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import alter_configs
from anabranch.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.messages.describe_cluster import DescribeClusterRequest
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from anabranch.protocol.messages.describe_topic_partitions import Cursor, DescribeTopicPartitionsRequest, TopicRequest
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.list_config_resources import ListConfigResourcesRequest
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from anabranch.s3stream.catalog.values import TopicInfo
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

TOPIC, BROKER, BROKER_LOGGER = 2, 4, 8


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(
        tmp_path, topic_num_partitions=2, topic_partitions_max=200, topic_max_message_bytes=2_000_000
    ) as running:
        yield running


@pytest.fixture
async def client(node: Node) -> AsyncIterator[RawClient]:
    async with raw_client(node.bootstrap) as connected:
        yield connected


def topic(name: str, partitions: int = -1, factor: int = -1, **configs: str | None) -> CreatableTopic:
    values = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor, configs=values)


async def create(client: RawClient, *topics: CreatableTopic, validate_only: bool = False) -> list[CreatableTopicResult]:
    response = await client.call(CreateTopicsRequest(topics=topics, validate_only=validate_only), 7)
    return list(response.topics)


async def metadata(client: RawClient, *names: str, version: int = 12, **fields: bool) -> MetadataResponse:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **fields)
    response: MetadataResponse = await client.call(request, version)
    return response


REFUSED = {
    "no name": (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a dot": (topic("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "two dots": (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a slash": (topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a newline": (topic("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "a long name": (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "one that exists": (topic("first.topic"), ErrorCode.TOPIC_ALREADY_EXISTS),
    "one that collides": (topic("first_topic"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    "no partitions": (topic("t", 0), ErrorCode.INVALID_PARTITIONS),
    "negative partitions": (topic("t", -2), ErrorCode.INVALID_PARTITIONS),
    "too many partitions": (topic("t", 1000), ErrorCode.POLICY_VIOLATION),
    "no replicas": (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
    "three replicas": (topic("t", 1, 3), ErrorCode.INVALID_REPLICATION_FACTOR),
    "an unknown config": (topic("t", configs_none="1"), ErrorCode.INVALID_CONFIG),
    "a null config": (topic("t", retention_ms=None), ErrorCode.INVALID_CONFIG),
    "not a number": (topic("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG),
    "not a choice": (topic("t", cleanup_policy="burn"), ErrorCode.INVALID_CONFIG),
    "out of range": (topic("t", max_message_bytes="-1"), ErrorCode.INVALID_CONFIG),
}


async def test_topics_that_cannot_be(node: Node, client: RawClient) -> None:
    await create(client, topic("first.topic"))
    for what, (wanted, code) in REFUSED.items():
        (result,) = await create(client, wanted)
        assert ErrorCode(result.error_code) == code, what
        assert result.error_message, what
        assert len(node.serving.topics) == 1, what


async def test_a_created_topic_is_described_and_can_be_used(node: Node, client: RawClient) -> None:
    (result,) = await create(client, topic("t", 3, 1, retention_ms="1000"))
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    assert {config.name for config in result.configs or ()} == set(TOPIC_CONFIGS)
    answer = (await metadata(client, "t")).topics[0]
    assert answer.topic_id == result.topic_id
    assert [each.leader_id for each in answer.partitions] == [node.serving.node_id] * 3
    assert (await client.produce("t", [batch_of(b"a")], partition=2)).responses[0].partition_responses[
        0
    ].error_code == 0


async def test_any_replication_factor_is_accepted_on_one_node_that_is_set_so(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, topic_any_replication_factor="true") as node,
        raw_client(node.bootstrap) as client,
    ):
        (result,) = await create(client, topic("t", 2, 3, min_insync_replicas="2"))
        assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 2, 1)
        (refused,) = await create(client, topic("u", 1, 0))
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        (answer,) = (await client.produce("t", [batch_of(b"a")], partition=1)).responses[0].partition_responses
        assert answer.error_code == 0


async def test_validate_only_creates_nothing(node: Node, client: RawClient) -> None:
    (result,) = await create(client, topic("t", 3), validate_only=True)
    assert (result.error_code, result.num_partitions) == (0, 3)
    assert len(node.serving.topics) == 0


async def test_a_topic_named_twice_in_a_request(client: RawClient) -> None:
    results = await create(client, topic("t"), topic("u"), topic("t"))
    assert [(each.name, each.error_code) for each in results] == [("t", ErrorCode.INVALID_REQUEST), ("u", 0)]


async def test_topics_of_a_request_are_checked_against_each_other(node: Node, client: RawClient) -> None:
    results = await create(
        client, topic("a.b", 150), topic("bad", 0), topic("a_b", 1, nonsense="1"), topic("c", 51), topic("d", 50)
    )
    assert [(each.name, ErrorCode(each.error_code)) for each in results] == [
        ("a.b", ErrorCode.NONE),
        ("bad", ErrorCode.INVALID_PARTITIONS),
        ("a_b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("c", ErrorCode.POLICY_VIOLATION),
        ("d", ErrorCode.NONE),
    ]
    assert results[2].error_message == "Topic 'a_b' collides with existing topic: a.b"
    assert (results[3].error_message or "").startswith("51 partitions more than the 150 there are")
    for result in (results[0], results[4]):
        served = node.serving.topics.get(result.name)
        assert served is not None
        assert served.topic_id == result.topic_id
    assert len(node.serving.topics) == 2


async def test_all_topics_of_a_request_fail_when_the_catalog_does(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise CatalogUnavailable("not now")

    await create(client, topic("t"), topic("u"))
    monkeypatch.setattr(node.serving.catalog, "create_topics", away)
    monkeypatch.setattr(node.serving.catalog, "delete_topics", away)
    results = await create(client, topic("v"), topic("t"), topic("w"))
    assert [(each.error_code, each.error_message) for each in results] == [
        (ErrorCode.UNKNOWN_SERVER_ERROR, "not now"),
        (ErrorCode.TOPIC_ALREADY_EXISTS, "Topic 't' already exists."),
        (ErrorCode.UNKNOWN_SERVER_ERROR, "not now"),
    ]
    asked = [DeleteTopicState(name=name) for name in ("t", "none", "u")]
    response = await client.call(DeleteTopicsRequest(topics=asked), 6)
    assert [each.error_code for each in response.responses] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ]


async def test_assignments(node: Node, client: RawClient) -> None:
    def assigned(*brokers: int, factor: int = -1) -> CreatableTopic:
        return CreatableTopic(
            name="t",
            num_partitions=-1,
            replication_factor=factor,
            assignments=[
                CreatableReplicaAssignment(partition_index=at, broker_ids=[broker]) for at, broker in enumerate(brokers)
            ],
        )

    assert (await create(client, assigned(1, 1, factor=1)))[0].error_code == ErrorCode.INVALID_REQUEST
    assert (await create(client, assigned(1, 2)))[0].error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert (await create(client, assigned(1, 1)))[0].num_partitions == 2


async def test_a_coordinators_topic_that_a_client_creates_is_internal(client: RawClient) -> None:
    topic = CreatableTopic(name="__consumer_offsets", num_partitions=2, replication_factor=1)
    assert not (await create(client, topic))[0].error_code
    request = MetadataRequest(topics=[MetadataRequestTopic(name="__consumer_offsets")])
    (described,) = (await client.call(request, 9)).topics
    assert (described.is_internal, len(described.partitions)) == (True, 2)


async def test_metadata_creates_what_it_is_asked_for(node: Node, client: RawClient) -> None:
    response = await metadata(client, "new", "not/valid")
    assert [(each.name, each.error_code, len(each.partitions)) for each in response.topics] == [
        ("new", 0, 2),
        ("not/valid", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]
    response = await metadata(client, "other", allow_auto_topic_creation=False)
    assert response.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    by_id = MetadataRequestTopic(topic_id=node.serving.topics.partition("new", 0).topic_id, name=None)
    unknown = MetadataRequestTopic(topic_id=b"0123456789abcdef", name=None)
    response = await client.call(MetadataRequest(topics=[by_id, unknown]), 12)
    assert [(each.name, each.error_code) for each in response.topics] == [
        ("new", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("outcome", ["deleted", "answer lost"])
async def test_a_topic_that_is_being_deleted_is_not_created_again_by_who_asks_for_it(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    await create(client, topic("t"))
    really, asked, go_on = node.serving.catalog.delete_topics, asyncio.Event(), asyncio.Event()

    async def held(topic_ids: Sequence[bytes], *, now_ms: int, delete_after_ms: int) -> None:
        asked.set()
        await go_on.wait()
        if outcome == "answer lost":
            raise CatalogUnavailable("the connection broke off")
        await really(topic_ids, now_ms=now_ms, delete_after_ms=delete_after_ms)

    monkeypatch.setattr(node.serving.catalog, "delete_topics", held)
    async with raw_client(node.bootstrap) as other:
        deleting = asyncio.create_task(client.call(DeleteTopicsRequest(topic_names=["t"]), 5))
        try:
            async with asyncio.timeout(30):
                await asked.wait()
                answer = await metadata(other, "t")
        finally:
            go_on.set()
        assert [(each.name, each.error_code) for each in answer.topics] == [("t", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
        result = (await deleting).responses[0]
        assert bool(result.error_code) == (outcome == "answer lost")
        listed = await other.call(MetadataRequest(topics=None), 12)
        assert [each.name for each in listed.topics] == []
        if outcome == "deleted":
            # After this, a request for the name is told so, and the next one creates another topic.
            codes = [(await metadata(other, "t")).topics[0].error_code for _ in range(2)]
            assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


@pytest.mark.parametrize("by_id", [False, True], ids=["by name", "by id"])
async def test_a_topic_is_unknown_to_a_deletion_only_when_it_is_gone(
    node: Node, client: RawClient, *, by_id: bool
) -> None:
    """As long as an earlier deletion may have failed, its repetition must not say that there is nothing to delete."""

    async def away(*_: object, **__: object) -> None:
        raise CatalogUnavailable("the connection broke off")

    created = (await create(client, topic("t")))[0]
    state = DeleteTopicState(topic_id=created.topic_id) if by_id else DeleteTopicState(name="t")

    async def delete() -> int:
        return int((await client.call(DeleteTopicsRequest(topics=[state]), 6)).responses[0].error_code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node.serving.catalog, "delete_topics", away)
        patch.setattr(node.serving.catalog, "list_topics", away)
        assert await delete() == ErrorCode.UNKNOWN_SERVER_ERROR
        assert await delete() == ErrorCode.UNKNOWN_SERVER_ERROR
    assert await delete() == ErrorCode.NONE
    assert await delete() == (ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_metadata_in_every_version(node: Node, client: RawClient) -> None:
    await create(client, topic("a"), topic("b"))
    for version in range(14):
        response = await metadata(client, "a", version=version)
        assert [each.name for each in response.topics] == ["a"]
        assert (response.brokers[0].node_id, response.brokers[0].port) == (1, node.advertised.port)
        response = await client.call(MetadataRequest(topics=None if version else ()), version)
        assert [each.name for each in response.topics] == ["a", "b"]
        if version:
            assert not (await metadata(client, version=version)).topics


async def test_no_auto_creation_when_it_is_off(tmp_path: Path) -> None:
    async with running_node(tmp_path, topic_auto_create="false") as node, raw_client(node.bootstrap) as client:
        assert (await metadata(client, "t")).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_growing_a_topic(node: Node, client: RawClient) -> None:
    await create(client, topic("t", 2))

    async def grow(name: str, count: int, *, validate_only: bool = False) -> int:
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=count, assignments=None)], validate_only=validate_only
        )
        return int((await client.call(request, 3)).results[0].error_code)

    assert await grow("t", 2) == ErrorCode.INVALID_PARTITIONS
    assert await grow("t", 1) == ErrorCode.INVALID_PARTITIONS
    assert await grow("none", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await grow("t", 1000) == ErrorCode.POLICY_VIOLATION
    assert await grow("t", 4, validate_only=True) == 0
    assert len((await metadata(client, "t")).topics[0].partitions) == 2
    assert await grow("t", 4) == 0
    assert len((await metadata(client, "t")).topics[0].partitions) == 4
    assert (await client.produce("t", [batch_of(b"a")], partition=3)).responses[0].partition_responses[
        0
    ].error_code == 0
    await client.call(FindCoordinatorRequest(coordinator_keys=["g"]), 4)
    assert await grow(OFFSETS_TOPIC, 100) == ErrorCode.INVALID_REQUEST
    assert (await client.call(CreatePartitionsRequest(), 3)).results == ()


async def test_deleting_topics_by_name_and_id(node: Node, client: RawClient) -> None:
    created = await create(client, topic("a"), topic("b"), topic("c"))
    response = await client.call(DeleteTopicsRequest(topic_names=["a", "none", "a"]), 5)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert {each.name: each.error_code for each in response.responses} == {
        "a": ErrorCode.INVALID_REQUEST,
        "none": unknown,
    }
    states = [
        DeleteTopicState(topic_id=created[0].topic_id),
        DeleteTopicState(name="b"),
        DeleteTopicState(topic_id=b"0123456789abcdef"),
        DeleteTopicState(name="c", topic_id=created[2].topic_id),
    ]
    response = await client.call(DeleteTopicsRequest(topics=states), 6)
    assert [each.error_code for each in response.responses] == [
        0,
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
    ]
    assert [each.name for each in node.serving.topics] == ["c"]
    assert (await client.produce("a", [batch_of(b"x")])).responses[0].partition_responses[0].error_code == unknown
    (again,) = await create(client, topic("a"))
    assert again.error_code == 0
    assert again.topic_id != created[0].topic_id


@pytest.mark.parametrize("by_id", [False, True], ids=["by name", "by id"])
async def test_a_topic_that_is_created_anew_meanwhile_is_not_deleted_in_place_of_the_old_one(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch, *, by_id: bool
) -> None:
    (old,) = await create(client, topic("t"))
    delete = node.serving.topic_commands.delete

    async def delete_later(*names: str, ids: Mapping[str, bytes] | None = None) -> Sequence[str]:
        """Another client was faster."""
        monkeypatch.setattr(node.serving.topic_commands, "delete", delete)
        await delete("t")
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        return await delete(*names, ids=ids)

    monkeypatch.setattr(node.serving.topic_commands, "delete", delete_later)
    state = DeleteTopicState(topic_id=old.topic_id) if by_id else DeleteTopicState(name="t")
    (answer,) = (await client.call(DeleteTopicsRequest(topics=[state]), 6)).responses
    assert answer.error_code == (ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    found = node.serving.topics.get("t")
    assert found is not None
    assert found.topic_id != old.topic_id


async def describe(
    client: RawClient, kind: int, name: str, *keys: str, version: int = 4
) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=version >= 3)
    result = (await client.call(request, version)).results[0]
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


async def alter(client: RawClient, *changes: tuple[str, int, str | None], name: str = "t", kind: int = TOPIC) -> int:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return int(response.responses[0].error_code)


async def test_configs_are_described_with_their_sources(client: RawClient) -> None:
    await create(client, topic("t", retention_ms="1000"))
    configs = await describe(client, TOPIC, "t")
    assert set(configs) == set(TOPIC_CONFIGS)
    assert all(config.documentation for config in configs.values())
    found = {
        name: (config.value, config.config_source, [synonym.name for synonym in config.synonyms])
        for name, config in configs.items()
    }
    assert found["retention.ms"] == (
        "1000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ["retention.ms", "log.retention.ms", "log.retention.ms"],
    )
    assert found["max.message.bytes"] == (
        "2000000",
        ConfigSource.STATIC_BROKER_CONFIG,
        ["message.max.bytes", "message.max.bytes"],
    )
    assert found["segment.bytes"] == ("1073741824", ConfigSource.DEFAULT_CONFIG, ["log.segment.bytes"])
    assert set(await describe(client, TOPIC, "t", "segment.bytes", "none")) == {"segment.bytes"}
    broker = await describe(client, BROKER, "1", version=1)
    assert (broker["message.max.bytes"].value, broker["message.max.bytes"].read_only) == ("2000000", False)
    assert (broker["num.partitions"].value, broker["num.partitions"].read_only) == ("2", True)
    assert await describe(client, BROKER, "") == {}


async def test_spaces_around_a_value_mean_nothing(node: Node, client: RawClient) -> None:
    (created,) = await create(client, topic("t", compression_type=" gzip ", cleanup_policy=" compact "))
    assert created.error_code == 0, created.error_message
    config = node.serving.topics.partition("t", 0).config
    assert (config.compression, config.compacted) == (Compression.GZIP, True)


async def test_configs_of_what_is_not_there(client: RawClient) -> None:
    for kind, name, code in (
        (TOPIC, "none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "77", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ):
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        response = await client.call(DescribeConfigsRequest(resources=[resource]), 4)
        assert response.results[0].error_code == code


async def test_changing_configs_takes_effect_at_once_and_stays(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, topic("t", cleanup_policy="delete"))
        assert await alter(client, ("max.message.bytes", 0, "100"), ("cleanup.policy", 2, "compact")) == 0
        produced = await client.produce("t", [batch_of(b"x" * 200)])
        assert produced.responses[0].partition_responses[0].error_code == ErrorCode.MESSAGE_TOO_LARGE
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        configs = await describe(client, TOPIC, "t", "max.message.bytes", "cleanup.policy")
        assert (configs["max.message.bytes"].value, configs["cleanup.policy"].value) == ("100", "delete,compact")
        assert await alter(client, ("max.message.bytes", 1, None), ("cleanup.policy", 3, "compact")) == 0
        configs = await describe(client, TOPIC, "t", "max.message.bytes", "cleanup.policy")
        assert (configs["max.message.bytes"].value, configs["cleanup.policy"].value) == ("1048588", "delete")


async def test_changes_that_are_refused(client: RawClient) -> None:
    await create(client, topic("t"))
    assert await alter(client, ("none", 0, "1")) == ErrorCode.INVALID_CONFIG
    assert await alter(client, ("none", 1, None)) == 0, "what is not there is gone already, as in Kafka"
    assert await alter(client, ("retention.ms", 0, "x")) == ErrorCode.INVALID_CONFIG
    assert await alter(client, ("retention.ms", 0, None)) == ErrorCode.INVALID_REQUEST
    assert await alter(client, ("retention.ms", 2, "1")) == ErrorCode.INVALID_CONFIG
    assert await alter(client, ("retention.ms", 9, "1")) == ErrorCode.INVALID_REQUEST
    assert await alter(client, ("retention.ms", 0, "1"), ("retention.ms", 0, "2")) == ErrorCode.INVALID_REQUEST
    assert await alter(client, ("retention.ms", 0, "1"), name="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(client, ("num.partitions", 0, "1"), kind=BROKER, name="1") == ErrorCode.INVALID_REQUEST


async def test_a_change_is_decided_from_what_others_have_just_changed(
    node: Node, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another node, between this one's look at the topic and its command."""
    await create(client, topic("t"))
    catalog = node.serving.catalog
    really, others = catalog.alter_topic, [{"cleanup.policy": "compact"}, {"max.compaction.lag.ms": "5"}]

    async def late(topic_id: bytes, change: Callable[[dict[str, str]], Mapping[str, str]]) -> TopicInfo:
        await really(topic_id, lambda _: others[0])
        return await really(topic_id, change)

    monkeypatch.setattr(catalog, "alter_topic", late)
    assert await alter(client, ("cleanup.policy", Operation.APPEND, "delete")) == 0
    assert (await describe(client, TOPIC, "t"))["cleanup.policy"].value == "compact,delete"
    del others[0]
    assert await alter(client, ("min.compaction.lag.ms", Operation.SET, "6")) == ErrorCode.INVALID_CONFIG
    await node.serving.membership.complete_changes()
    assert (await describe(client, TOPIC, "t"))["min.compaction.lag.ms"].value == "0"


async def test_replacing_all_configs(client: RawClient) -> None:
    await create(client, topic("t", retention_ms="1", segment_bytes="2000000"))

    async def replace(name: str, **configs: str | None) -> int:
        values = [alter_configs.AlterableConfig(name=key.replace("_", "."), value=configs[key]) for key in configs]
        resource = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=values)
        response = await client.call(alter_configs.AlterConfigsRequest(resources=[resource]), 2)
        return int(response.responses[0].error_code)

    assert await replace("none", retention_ms="1") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await replace("t", retention_ms="x") == ErrorCode.INVALID_CONFIG
    assert await replace("t", retention_ms="2") == 0
    configs = await describe(client, TOPIC, "t", "retention.ms", "segment.bytes")
    assert (configs["retention.ms"].value, configs["segment.bytes"].value) == ("2", "1073741824")


async def test_resources_that_have_configs(client: RawClient) -> None:
    await create(client, topic("a"), topic("b"))
    response = await client.call(ListConfigResourcesRequest(), 1)
    assert [(each.resource_type, each.resource_name) for each in response.config_resources] == [
        (TOPIC, "a"),
        (TOPIC, "b"),
        (BROKER, "1"),
        (BROKER_LOGGER, "1"),
    ]
    assert (await client.call(ListConfigResourcesRequest(), 0)).config_resources == ()
    refused = await client.call(ListConfigResourcesRequest(resource_types=[99]), 1)
    assert refused.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_topics_page_by_page(client: RawClient) -> None:
    await create(client, topic("a", 2), topic("b", 3), topic("c", 1))
    cursor: Cursor | None = None
    seen: list[tuple[str, int]] = []
    pages = 0
    while pages == 0 or cursor is not None:
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        response = await client.call(request, 0)
        seen += [(each.name, part.partition_index) for each in response.topics for part in each.partitions]
        cursor, pages = response.next_cursor, pages + 1
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]
    assert pages == 3
    named = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="c"), TopicRequest(name="none")])
    response = await client.call(named, 0)
    assert [(each.name, each.error_code) for each in response.topics] == [
        ("c", 0),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


async def test_the_cluster(node: Node, client: RawClient) -> None:
    response = await client.call(DescribeClusterRequest(include_cluster_authorized_operations=True), 2)
    assert (response.cluster_id, response.controller_id) == ("anabranch", 1)
    assert [(each.broker_id, each.port) for each in response.brokers] == [(1, node.advertised.port)]
    assert response.cluster_authorized_operations > 0
    refused = await client.call(DescribeClusterRequest(endpoint_type=2), 2)
    assert refused.error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
