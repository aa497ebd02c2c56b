"""Several stores in one node: the choice of a topic's store, and a missing store."""

from pathlib import Path

import pytest

from anabranch.broker.app import StartError
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.definitions import ConfigSource
from anabranch.broker.operator.admin.api.status import node_status
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.s3stream.maintain.verify import verify
from tests.support.metrics import metrics_of
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

TOPIC = 2
SET, DELETE = 0, 1


def stores(tmp_path: Path) -> tuple[str, ...]:
    return ("cold.type=local", f"cold.path={tmp_path / 'cold'}")


async def create(client: RawClient, policy: str) -> tuple[int, str | None]:
    configs = [CreatableTopicConfig(name="storage.policy", value=policy)]
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1, configs=configs)
    result = (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0]
    return result.error_code, result.error_message


async def alter(client: RawClient, operation: int, value: str | None) -> int:
    config = AlterableConfig(name="storage.policy", config_operation=operation, value=value)
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
    answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    code: int = answer.responses[0].error_code
    return code


async def described(client: RawClient) -> tuple[str, int]:
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=["storage.policy"])
    answer = await client.call(DescribeConfigsRequest(resources=[resource], include_documentation=True), 4)
    (config,) = answer.results[0].configs
    assert "Name of the object store" in config.documentation
    return config.value, config.config_source


async def put(node: Node, client: RawClient) -> None:
    response = await client.produce("t", [batch_of(b"x" * 1000)])
    assert response.responses[0].partition_responses[0].error_code == 0
    await node.serving.storage.flush()


async def placed(node: Node) -> list[str]:
    """The store of each range of the topic, in order."""
    stream = node.serving.topics.partition("t", 0).stream
    found = await node.serving.catalog.find_ranges(stream.stream_id, 0, 2**62, limit=100)
    return [location.object.store for location in found]


async def test_new_data_goes_where_the_policy_says_and_old_data_stays(tmp_path: Path) -> None:
    async with running_node(tmp_path, stores=stores(tmp_path)) as node, raw_client(node.bootstrap) as client:
        assert await create(client, "cold") == (0, None)
        assert await described(client) == ("cold", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        await put(node, client)
        assert await alter(client, DELETE, None) == 0
        assert await described(client) == ("local", ConfigSource.DEFAULT_CONFIG)
        await put(node, client)
        assert await alter(client, SET, "cold") == 0
        await put(node, client)
        assert await placed(node) == ["cold", "local", "cold"]
        assert any((tmp_path / "cold").rglob("*/anabranch/*"))
        report = await verify(catalog=node.serving.catalog, stores=node.stores, cluster="anabranch", deep=True)
        assert report.ok
        puts = (await metrics_of(node)).value("anabranch_store_calls_total", store="cold", kind="put")
        assert puts == 3, "the claim on the store and two objects"
    async with running_node(tmp_path, stores=stores(tmp_path)) as node, raw_client(node.bootstrap) as client:
        partition = node.serving.topics.partition("t", 0)
        result = await partition.stream.read(0, 1 << 20)
        assert result.next_offset == 3
        await put(node, client)
        assert (await placed(node))[-1] == "cold", "the policy is known after a restart"
        assert not (await node.upkeep.compaction.run_once()).errors
        assert (await partition.stream.read(0, 1 << 20)).next_offset == 4


async def test_the_status_has_every_kind_of_call_of_all_stores_together(tmp_path: Path) -> None:
    async with running_node(tmp_path, stores=stores(tmp_path)) as node, raw_client(node.bootstrap) as client:
        await create(client, "cold")
        await put(node, client)
        calls = (await node_status(node)).store_calls
        each = [store.calls for store in node.stores.values()]
        assert calls["put"] == sum(one.put for one in each) > 0
        assert calls["multipart"] == 0


async def test_an_unknown_policy_is_refused_in_kafkas_words(tmp_path: Path) -> None:
    async with running_node(tmp_path, stores=stores(tmp_path)) as node, raw_client(node.bootstrap) as client:
        assert await create(client, "warm") == (
            ErrorCode.INVALID_CONFIG,
            "Invalid value warm for configuration storage.policy: String must be one of: local, cold",
        )
        assert (await create(client, "local"))[0] == 0
        assert await alter(client, SET, "warm") == ErrorCode.INVALID_CONFIG


async def test_a_store_that_holds_objects_must_be_configured(tmp_path: Path) -> None:
    async with running_node(tmp_path, stores=stores(tmp_path)) as node, raw_client(node.bootstrap) as client:
        await create(client, "cold")
        await put(node, client)
        await alter(client, DELETE, None)
    with pytest.raises(StartError, match=r"1 committed objects in the store 'cold', not configured here: .*: local\)"):
        async with running_node(tmp_path):
            pass


async def test_a_store_that_a_topic_writes_to_must_be_configured(tmp_path: Path) -> None:
    async with running_node(tmp_path, stores=stores(tmp_path)) as node, raw_client(node.bootstrap) as client:
        await create(client, "cold")
        assert node.serving.topics.get("t") is not None
    with pytest.raises(StartError, match=r"topic 't' has storage.policy=cold, but no such store is configured here"):
        async with running_node(tmp_path):
            pass
