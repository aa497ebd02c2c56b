"""Configs of tables: what is refused when a client sets them, in one line that says why."""

import base64
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from anabranch.broker.kafka.configs import table
from anabranch.broker.kafka.configs.topic import check_topic_configs
from anabranch.broker.kafka.configs.topic_table import TOPIC_CONFIGS
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.schema_registry_area import SchemaRegistrySettings
from anabranch.broker.node.settings.table_catalogs import TableCatalogSettings
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.alter_configs import AlterableConfig as ReplacedConfig
from anabranch.protocol.messages.alter_configs import AlterConfigsRequest
from anabranch.protocol.messages.alter_configs import AlterConfigsResource as ReplacedResource
from anabranch.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from anabranch.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.tables.upkeep.options import DEFAULTS
from tests.support.node import running_node
from tests.support.raw_client import RawClient, raw_client

TOPIC = 2
ORDER = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
MISSPELT = """{"properties": {"order": {"properties": {
    "id": {"type": ["null", "string"]}, "type": {"enum": ["a"]}, "lines": {"items": {"anyOf": [{}, {"type": "int"}]}}
}}}}"""
ALONE = Settings(schema_registry=SchemaRegistrySettings(enabled=False))
"""Settings of a node without a schema registry."""


def descriptors() -> str:
    found = FileDescriptorSet()
    found.file.add(name="order.proto", syntax="proto3").message_type.add(name="Order")
    return base64.b64encode(found.SerializeToString()).decode()


def refusal(configs: Mapping[str, str], settings: Settings | None = None, *, internal: bool = False) -> str:
    with pytest.raises(KafkaError) as caught:
        check_topic_configs(configs, settings or Settings(), internal=internal)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert "\n" not in caught.value.message
    return caught.value.message


def test_the_definitions_are_those_that_tables_are_kept_with() -> None:
    defined = {name: row.default for name, row in TOPIC_CONFIGS.items() if name.startswith(table.PREFIX)}
    assert defined == DEFAULTS


@pytest.mark.parametrize(
    "configs",
    [
        {"table.enable": "true"},
        {"table.value": "json"},
        {"table.value": "json", "table.value.schema": ORDER, "table.key": "avro", "table.key.schema": AVRO},
        {"table.value": "protobuf", "table.value.schema": descriptors(), "table.value.message": "Order"},
        {"table.value": "auto", "table.value.subject": "orders"},
        {"table.commit.interval.ms": "1000", "table.retention": "keep", "table.snapshot.retention.ms": "0"},
    ],
    ids=" ".join,
)
def test_what_can_be_a_table_is_accepted(configs: Mapping[str, str]) -> None:
    assert check_topic_configs(configs, Settings()) == configs
    assert check_topic_configs({**configs, "table.enable": "TRUE"}, Settings())["table.enable"] == "true"


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"table.enable": "perhaps"}, "Expected value to be either true or false"),
        ({"table.value": "csv"}, "String must be one of: raw, json, avro, protobuf, auto"),
        ({"table.commit.interval.ms": "999"}, "Value must be at least 1000"),
        ({"table.target.file.bytes": "1000"}, "Value must be at least 1048576"),
        ({"table.compression.type": "lzo"}, "String must be one of: zstd, lz4, snappy, gzip, none"),
        ({"table.retention": "never"}, "String must be one of: topic, keep"),
        ({"table.value.schema": ORDER}, "table.value.schema: set, but table.value=raw uses none"),
        ({"table.key": "auto", "table.key.schema": AVRO}, "table.key.schema: set, but table.key=auto uses none"),
        ({"table.value": "json", "table.value.schema": "{"}, "table.value.schema: expected JSON: Expecting property"),
        ({"table.value": "json", "table.value.schema": "[]"}, "table.value.schema: expected a JSON Schema"),
        (
            {"table.value": "json", "table.value.schema": MISSPELT},
            'table.value.schema: the type of order.lines is "int", expected one of array, boolean, integer, ',
        ),
        (
            {"table.value": "json", "table.value.schema": '{"type": "Object"}'},
            'table.value.schema: its type is "Object", expected one of ',
        ),
        ({"table.value": "avro", "table.value.schema": ORDER}, "table.value.schema: not an Avro schema: "),
        ({"table.value": "avro", "table.value.schema": "{'a': 1}"}, "table.value.schema: expected JSON"),
        ({"table.value": "protobuf", "table.value.schema": "message Order {}"}, "a descriptor set in base64"),
        ({"table.value": "protobuf", "table.value.schema": "b3JkZXJz"}, "protoc --include_imports"),
        ({"table.value": "json", "table.value.message": "Order"}, "table.value=json has no messages"),
        ({"table.value.subject": "orders"}, "table.value.subject: set, but table.value=raw needs no registry"),
        (
            {"table.value": "avro", "table.value.schema": AVRO, "table.value.subject": "orders"},
            "table.value.subject: set, but table.value.schema needs no registry",
        ),
    ],
)
def test_what_cannot_be_a_table_is_refused(configs: Mapping[str, str], reason: str) -> None:
    assert reason in refusal(configs)


def test_a_catalog_that_the_node_does_not_know_is_refused() -> None:
    lake = TableCatalogSettings(type="jdbc", uri="sqlite:///lake.db")
    settings = Settings(table_catalogs={"lake": lake, "pond": lake})
    configs = {"table.enable": "true", "table.publish": "lake"}
    assert check_topic_configs(configs, settings, internal=False) == configs
    reason = "Invalid value sea for configuration table.publish: "
    assert refusal({"table.publish": "sea"}, settings) == f"{reason}String must be one of: lake, pond"
    assert refusal({"table.publish": "sea"}) == f"{reason}the settings of this node have no table_catalogs"
    soon = {**configs, "table.snapshot.retention.ms": "60000"}
    assert refusal(soon, settings).startswith("table.snapshot.retention.ms=60000: expected at least 3600000 with")


def test_a_schema_that_no_answer_could_hold_is_refused() -> None:
    long = '"%s"' % ("ü" * 20_000)
    assert "table.value.schema: 40002 bytes" in refusal({"table.value": "avro", "table.value.schema": long})
    assert len(refusal({"table.value": "avro", "table.value.schema": '"%s"' % ("u" * 20_000)})) < 600


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    nested = "[" * 30_000
    assert "table.value.schema: expected JSON: " in refusal({"table.value": "json", "table.value.schema": nested})


@pytest.mark.parametrize("form", ["avro", "protobuf", "auto", "json"])
def test_a_schema_of_a_registry_needs_one(form: str) -> None:
    configs = {"table.value": form, **({"table.value.subject": "orders"} if form == "json" else {})}
    check_topic_configs(configs, Settings())
    assert f"table.value={form} needs table.value.schema: this node has no schema registry" in refusal(configs, ALONE)


def test_an_internal_topic_is_no_table() -> None:
    assert "an internal topic cannot be a table" in refusal({"table.enable": "true"}, internal=True)


def test_a_node_without_the_packages_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "is_installed", lambda _extra: False)
    assert refusal({"table.enable": "true"}) == (
        "table.enable=true needs packages that this node lacks: pip install 'anabranch[tables]'"
    )
    # What is no table yet may be described, as far as the node can read it.
    check_topic_configs({"table.value": "protobuf", "table.value.schema": "b3JkZXJz"}, Settings())
    check_topic_configs({"table.value": "avro", "table.value.schema": ORDER}, Settings())


def test_a_change_is_checked_with_the_configs_that_stay() -> None:
    kept = {"table.enable": "true", "table.value": "json", "table.value.schema": ORDER}
    check_topic_configs({"table.commit.interval.ms": "5000"}, Settings(), kept=kept)
    with pytest.raises(KafkaError, match=r"table\.value\.schema: set, but table\.value=raw uses none"):
        check_topic_configs({"table.value": "raw"}, Settings(), kept=kept)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[RawClient]:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as connected:
        yield connected


async def create(client: RawClient, name: str, configs: Mapping[str, str]) -> tuple[int, str | None]:
    wanted = [CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=wanted)
    result = (await client.call(CreateTopicsRequest(topics=[topic]), 7)).topics[0]
    return result.error_code, result.error_message


async def test_topics_are_created_altered_and_described_as_tables(client: RawClient) -> None:
    code, message = await create(
        client, "bad", {"table.enable": "true", "table.value": "avro", "table.value.schema": "{"}
    )
    assert (code, str(message).partition(" ")[0]) == (ErrorCode.INVALID_CONFIG, "table.value.schema:")
    assert (await create(client, OFFSETS_TOPIC, {"table.enable": "true"}))[0] == ErrorCode.INVALID_CONFIG
    given = {"table.enable": "true", "table.value": "json", "table.value.schema": ORDER}
    assert (await create(client, "orders", given))[0] == 0

    async def alter(name: str, value: str | None) -> int:
        change = AlterableConfig(name=name, config_operation=1 if value is None else 0, value=value)
        resource = AlterConfigsResource(resource_type=TOPIC, resource_name="orders", configs=[change])
        answer = await client.call(IncrementalAlterConfigsRequest(resources=[resource]), 1)
        return int(answer.responses[0].error_code)

    assert await alter("table.value", None) == ErrorCode.INVALID_CONFIG
    assert await alter("table.commit.interval.ms", "10") == ErrorCode.INVALID_CONFIG
    assert await alter("table.commit.interval.ms", "5000") == 0

    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="orders", configuration_keys=None)
    answer = await client.call(DescribeConfigsRequest(resources=[resource], include_documentation=True), 4)
    found = {each.name: each for each in answer.results[0].configs if each.name.startswith(table.PREFIX)}
    assert {name: each.value for name, each in found.items()} == {
        **DEFAULTS,
        **given,
        "table.commit.interval.ms": "5000",
    }
    assert all(each.documentation for each in found.values())

    one = [ReplacedConfig(name="table.value.message", value="Order")]
    request = AlterConfigsRequest(
        resources=[ReplacedResource(resource_type=TOPIC, resource_name="orders", configs=one)]
    )
    response = (await client.call(request, 2)).responses[0]
    assert response.error_message == "table.value.message: set, but table.value=raw has no messages"
