"""Broker configs that are changed while the node runs: for one node, and as the default of all."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from anabranch.broker.api.resources.values import Operation, ResourceType
from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.definitions import ConfigSource
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.messages import alter_configs as whole
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.s3stream.errors import CatalogUnavailable
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

SET, DELETE, APPEND, SUBTRACT = Operation
ALL, ONE = "", "1"
"""The default of all nodes, and the node's own."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with running_node(tmp_path) as running:
        yield running


async def alter(
    client: RawClient,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
    kind: int = ResourceType.BROKER,
) -> AlterConfigsResourceResponse:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response: AlterConfigsResourceResponse = (await client.call(request, 1)).responses[0]
    return response


async def change(client: RawClient, name: str, **configs: str | None) -> None:
    """Set configs, or delete those that are None."""
    changes = [(key.replace("_", "."), DELETE if value is None else SET, value) for key, value in configs.items()]
    answer = await alter(client, name, *changes)
    assert (answer.error_code, answer.error_message) == (0, None)


async def describe(
    client: RawClient, name: str, *keys: str, kind: int = ResourceType.BROKER
) -> Mapping[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) if keys else None
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = (await client.call(request, 4)).results
    assert result.error_code == 0, result.error_message
    return {config.name: config for config in result.configs}


def synonyms(config: DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in config.synonyms]


async def create(client: RawClient, name: str, **configs: str) -> Mapping[str, tuple[str | None, int]]:
    """Create a topic of one partition; returns value and source of each of its configs, as the answer has them."""
    given = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=given)
    (created,) = (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics
    assert created.error_code == 0
    return {config.name: (config.value, config.config_source) for config in created.configs}


async def produce(client: RawClient, topic: str, value: bytes) -> int:
    answer = (await client.produce(topic, [batch_of(value)])).responses[0].partition_responses[0]
    return int(answer.error_code)


async def test_a_level_of_compression_is_a_default_of_topics(node: Node) -> None:
    async with raw_client(node.bootstrap) as client:
        await change(client, ALL, compression_zstd_level="7")
        created = await create(client, "levels", compression_type="zstd")
        assert created["compression.zstd.level"] == ("7", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


async def test_the_nodes_own_goes_before_the_default_of_all_before_the_settings(tmp_path: Path) -> None:
    async with running_node(tmp_path, topic_max_message_bytes=3_000_000) as node, raw_client(node.bootstrap) as client:
        await create(client, "t")
        await create(client, "own", max_message_bytes="77777")

        async def seen(topic: str = "t") -> tuple[str | None, int]:
            config = (await describe(client, topic, "max.message.bytes", kind=ResourceType.TOPIC))["max.message.bytes"]
            found = node.serving.topics.partition(topic, 0).config.max_message_bytes
            assert config.value == str(found), "what is described is what holds"
            return config.value, config.config_source

        assert await seen() == ("3000000", ConfigSource.STATIC_BROKER_CONFIG)
        await change(client, ALL, message_max_bytes="2000")
        assert await seen() == ("2000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        assert await produce(client, "t", b"x" * 2000) == ErrorCode.MESSAGE_TOO_LARGE
        await change(client, ONE, message_max_bytes="4000")
        assert await seen() == ("4000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert await produce(client, "t", b"x" * 2000) == 0
        created = await create(client, "new", retention_ms="7")
        assert created["max.message.bytes"] == ("4000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert created["retention.ms"] == ("7", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        assert await seen("new") == ("4000", ConfigSource.DYNAMIC_BROKER_CONFIG)
        assert await seen("own") == ("77777", ConfigSource.DYNAMIC_TOPIC_CONFIG)
        described = (await describe(client, ONE, "message.max.bytes"))["message.max.bytes"]
        own = (await describe(client, "own", "max.message.bytes", kind=ResourceType.TOPIC))["max.message.bytes"]
        expected = [
            ("message.max.bytes", "4000", ConfigSource.DYNAMIC_BROKER_CONFIG),
            ("message.max.bytes", "2000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            ("message.max.bytes", "3000000", ConfigSource.STATIC_BROKER_CONFIG),
            ("message.max.bytes", "1048588", ConfigSource.DEFAULT_CONFIG),
        ]
        assert (described.value, described.read_only, synonyms(described)) == ("4000", False, expected)
        assert synonyms(own) == [("max.message.bytes", "77777", ConfigSource.DYNAMIC_TOPIC_CONFIG), *expected]
        of_all = await describe(client, ALL)
        assert list(of_all) == ["message.max.bytes"]
        assert synonyms(of_all["message.max.bytes"]) == [expected[1]]
        await change(client, ONE, message_max_bytes=None)
        assert await seen() == ("2000", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
        await change(client, ALL, message_max_bytes=None)
        assert await seen() == ("3000000", ConfigSource.STATIC_BROKER_CONFIG)


async def test_what_is_set_outlives_a_restart_and_holds_for_new_topics(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, "old")
        await change(client, ALL, log_retention_ms="5000", log_cleanup_policy="compact")
        await change(client, ONE, max_connections="17", log_retention_bytes="99")
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, "new")
        for topic in ("old", "new"):
            config = node.serving.topics.partition(topic, 0).config
            assert (config.retention_ms, config.retention_bytes, config.compacted) == (5000, 99, True)
        assert node.ports.clients.connections_max == 17


async def test_topics_are_cleaned_by_the_defaults_in_force(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, "t", cleanup_policy="compact")
        await change(
            client,
            ALL,
            log_cleaner_min_cleanable_ratio="0.25",
            log_cleaner_min_compaction_lag_ms="11",
            log_cleaner_max_compaction_lag_ms="22",
            log_cleaner_delete_retention_ms="33",
        )
        cleaning = node.serving.topics.partition("t", 0).config.cleaning
        assert cleaning is not None
        found = (cleaning.dirty_ratio_min, cleaning.lag_ms_min, cleaning.lag_ms_max, cleaning.delete_retention_ms)
        assert found == (0.25, 11, 22, 33)


async def test_creation_by_metadata_is_switched_off_and_on(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:

        async def ask(name: str) -> int:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
            return int((await client.call(request, 12)).topics[0].error_code)

        await change(client, ALL, auto_create_topics_enable="false")
        assert await ask("a") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await change(client, ONE, auto_create_topics_enable="TRUE")
        assert await ask("a") == 0


async def test_limits_of_connections_hold_for_the_next_ones(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        host, port = node.bootstrap.rsplit(":", 1)
        for limit in ("max_connections", "max_connections_per_ip"):
            await change(client, ONE, **{limit: "1"})
            reader, writer = await asyncio.open_connection(host, int(port))
            async with asyncio.timeout(30):
                assert await reader.read() == b"", "closed at once"
            writer.close()
            await change(client, ONE, **{limit: None})
            async with raw_client(node.bootstrap) as other:
                await other.call(MetadataRequest(topics=()), 9)


REFUSED = {
    "of the start": (("num.partitions", SET, "3"), "Cannot update these configs dynamically: [num.partitions]"),
    "an alias": (("log.retention.hours", SET, "3"), "Cannot update these configs dynamically: [log.retention.hours]"),
    "unknown": (("no.such", SET, "3"), "Cannot update these configs dynamically: [no.such]"),
    "nonsense": (
        ("log.retention.ms", SET, "abc"),
        "Invalid value abc for configuration log.retention.ms: Not a number of type LONG",
    ),
    "too low": (
        ("max.connections", SET, "0"),
        "Invalid value 0 for configuration max.connections: Value must be at least 1",
    ),
    "too high": (
        ("log.cleaner.min.cleanable.ratio", SET, "2"),
        "Invalid value 2.0 for configuration log.cleaner.min.cleanable.ratio: Value must be no more than 1",
    ),
    "not a choice": (
        ("log.cleanup.policy", APPEND, "nonsense"),
        "Invalid value nonsense for configuration log.cleanup.policy: String must be one of: compact, delete",
    ),
    "null": (("log.retention.ms", SET, None), "Null value not supported for : log.retention.ms"),
    "operation": (("log.retention.ms", 9, "7"), "Unknown operations type 9"),
}


@pytest.mark.parametrize("name", [ALL, ONE])
async def test_changes_that_are_refused(client: RawClient, node: Node, name: str) -> None:
    for bad, expected in REFUSED.values():
        answer = await alter(client, name, ("message.max.bytes", SET, "2000000"), bad)
        assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, expected)
        assert await describe(client, ALL) == {}
        config = node.serving.topics.partition("t", 0).config
        assert config.max_message_bytes == 1_048_588, "all of a request or nothing"


async def test_only_lists_are_added_to(client: RawClient) -> None:
    for operation, word in ((APPEND, "append"), (SUBTRACT, "subtract")):
        answer = await alter(client, ONE, ("log.retention.ms", operation, "7"))
        assert (answer.error_code, answer.error_message) == (
            ErrorCode.INVALID_CONFIG,
            f"Config value {word} is not allowed for config key: log.retention.ms",
        )
    assert (await alter(client, ONE, ("log.cleanup.policy", APPEND, "compact"))).error_code == 0
    assert (await describe(client, ONE, "log.cleanup.policy"))["log.cleanup.policy"].value == "delete,compact"
    assert (await alter(client, ONE, ("log.cleanup.policy", SUBTRACT, "delete"))).error_code == 0
    assert (await describe(client, ONE, "log.cleanup.policy"))["log.cleanup.policy"].value == "compact"


async def test_validating_and_deleting_what_is_not_set_change_nothing(client: RawClient) -> None:
    answer = await alter(client, ALL, ("log.retention.ms", SET, "1"), validate_only=True)
    assert answer.error_code == 0
    for key in ("log.retention.ms", "num.partitions", "no.such"):
        assert (await alter(client, ALL, (key, DELETE, None))).error_code == 0
    assert await describe(client, ALL) == {}


async def test_all_are_replaced_together(client: RawClient) -> None:
    async def replace(*configs: tuple[str, str | None], validate_only: bool = False) -> int:
        values = [whole.AlterableConfig(name=key, value=value) for key, value in configs]
        resource = whole.AlterConfigsResource(resource_type=ResourceType.BROKER, resource_name=ALL, configs=values)
        request = whole.AlterConfigsRequest(resources=[resource], validate_only=validate_only)
        return int((await client.call(request, 2)).responses[0].error_code)

    assert await replace(("log.retention.ms", "1"), ("message.max.bytes", "5000")) == 0
    assert await replace(("num.partitions", "1")) == ErrorCode.INVALID_REQUEST
    assert await replace(("log.retention.bytes", "x")) == ErrorCode.INVALID_REQUEST
    assert await replace(("log.retention.bytes", "7"), validate_only=True) == 0
    assert sorted(await describe(client, ALL)) == ["log.retention.ms", "message.max.bytes"]
    assert await replace(("log.retention.bytes", "7")) == 0
    assert sorted(await describe(client, ALL)) == ["log.retention.bytes"]
    assert await replace() == 0
    assert await describe(client, ALL) == {}


async def test_a_change_that_the_catalog_does_not_take_changes_nothing(
    client: RawClient, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise CatalogUnavailable("the catalog is away")

    monkeypatch.setattr(node.serving.catalog, "alter_config", away)
    answer = await alter(client, ALL, ("message.max.bytes", SET, "5000"))
    assert (answer.error_code, answer.error_message) == (ErrorCode.UNKNOWN_SERVER_ERROR, "the catalog is away")
    assert node.serving.topics.partition("t", 0).config.max_message_bytes == 1_048_588


async def test_a_value_that_a_newer_node_has_set_does_not_end_this_one(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.serving.catalog.alter_config(
            "broker",
            ALL,
            set_configs={"compression.type": "newer", "log.retention.ms": "5", "newer.config": "1"},
            unset=(),
        )
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await create(client, "t")
        config = node.serving.topics.partition("t", 0).config
        assert (config.compression, config.retention_ms) == (None, 5)
        assert sorted(await describe(client, ALL)) == ["log.retention.ms"]
        await change(client, ALL, compression_type=None)


async def test_what_operators_tune_is_taken_without_effect(client: RawClient) -> None:
    tuned = {"log.cleaner.backoff.ms": "15000", "log.cleaner.threads": "1", "num.io.threads": "8"}
    found = await describe(client, ONE, *tuned)
    assert {name: (each.value, each.read_only) for name, each in found.items()} == {
        name: (value, False) for name, value in tuned.items()
    }
    assert (await alter(client, ALL, *((name, SET, " 2") for name in tuned))).error_code == 0
    assert {each.value for each in (await describe(client, ONE, *tuned)).values()} == {"2"}


async def test_throttles_of_reassignments_are_accepted_and_described_where_they_are_set(client: RawClient) -> None:
    rate = "leader.replication.throttled.rate"
    assert rate not in await describe(client, ONE)
    assert (await alter(client, ONE, (rate, SET, "1000"))).error_code == 0
    assert (await describe(client, ONE, rate))[rate].value == "1000"
    assert (await alter(client, ONE, (rate, SET, "-1"))).error_code == ErrorCode.INVALID_REQUEST
    assert (await alter(client, ONE, (rate, DELETE, None))).error_code == 0
    assert rate not in await describe(client, ONE)
