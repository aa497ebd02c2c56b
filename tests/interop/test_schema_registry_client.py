"""Clients of schema registries and their serialisers, with the registry of a test broker: mostly Confluent's own."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    ServerConfig,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from anabranch.testing import Broker
from tests.support import tools
from tests.support.kafka_tools import QUICK_JVM

pytestmark = [pytest.mark.interop, pytest.mark.slow]

ORDER: Final = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
WITH_NOTE: Final = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},'
    '{"name":"note","type":"string","default":""}]}'
)
NEEDS_NOTE: Final = WITH_NOTE.replace(',"default":""', "")
JSON_ORDER: Final = (
    '{"title":"Order","type":"object","properties":{"id":{"type":"integer"}},"additionalProperties":false}'
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": broker.schema_registry_url}) as connected:
        yield connected


def test_the_client_registers_finds_compares_and_deletes(client: SchemaRegistryClient) -> None:
    schema = Schema(ORDER, "AVRO")
    first = client.register_schema("a/b-value", schema)
    assert client.register_schema("a/b-value", schema) == first
    assert client.get_schema(first).schema_str == ORDER
    found = client.lookup_schema("a/b-value", schema)
    assert (found.subject, found.version, found.schema_id) == ("a/b-value", 1, first)
    assert client.test_compatibility("a/b-value", Schema(WITH_NOTE, "AVRO"))
    assert not client.test_compatibility("a/b-value", Schema(NEEDS_NOTE, "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("a/b-value", Schema(NEEDS_NOTE, "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    second = client.register_schema("a/b-value", Schema(WITH_NOTE, "AVRO"))
    assert second != first
    assert client.get_versions("a/b-value") == [1, 2]
    assert client.get_latest_version("a/b-value").schema_id == second
    assert client.get_version("a/b-value", 1).schema.schema_str == ORDER
    assert "a/b-value" in client.get_subjects()
    assert client.delete_version("a/b-value", 2) == 2
    assert client.delete_subject("a/b-value") == [1]
    assert client.delete_subject("a/b-value", permanent=True) == [1, 2]
    with pytest.raises(SchemaRegistryError) as missing:
        client.delete_subject("a/b-value")
    assert (missing.value.http_status_code, missing.value.error_code) == (404, 40401)


def test_the_client_sets_levels_and_modes(client: SchemaRegistryClient) -> None:
    assert client.get_config().compatibility_level == "BACKWARD"
    client.set_config("levels", ServerConfig(compatibility=ConfigCompatibilityLevel.FULL_TRANSITIVE))
    assert client.get_config("levels").compatibility_level == "FULL_TRANSITIVE"
    client.delete_config("levels")
    with pytest.raises(SchemaRegistryError) as missing:
        client.get_config("levels")
    assert missing.value.error_code == 40408
    assert client.get_global_mode() == "READWRITE"
    client.update_mode("levels", "READONLY")
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("levels", Schema(ORDER, "AVRO"))
    assert refused.value.error_code == 42205
    client.delete_mode("levels")
    client.register_schema("levels", Schema(ORDER, "AVRO"))


def test_references(client: SchemaRegistryClient) -> None:
    client.register_schema("order", Schema(ORDER, "AVRO"))
    basket = '{"type":"record","name":"Basket","fields":[{"name":"order","type":"Order"}]}'
    schema = Schema(basket, "AVRO", [SchemaReference("Order", "order", 1)])
    basket_id = client.register_schema("basket", schema)
    references = client.get_schema(basket_id).references
    assert references is not None
    assert [each.subject for each in references] == ["order"]
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("order")
    assert refused.value.error_code == 42206


def send(broker: Broker, topic: str, *values: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for each in values:
        producer.produce(topic, each)
    assert producer.flush(30) == 0


def sent_and_received(broker: Broker, topic: str, data: bytes) -> bytes:
    send(broker, topic, data)
    return received(broker, topic)


def received(broker: Broker, topic: str) -> bytes:
    """Return the first value of a topic."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    value = message.value()
    assert value is not None
    return value


def test_avro_and_json_serialisers(broker: Broker, client: SchemaRegistryClient) -> None:
    for topic, write, read in (
        ("avro", AvroSerializer(client, ORDER), AvroDeserializer(client)),
        ("json", JSONSerializer(JSON_ORDER, client), JSONDeserializer(JSON_ORDER, schema_registry_client=client)),
    ):
        context = SerializationContext(topic, MessageField.VALUE)
        data = write({"id": 7}, context)
        assert read(sent_and_received(broker, topic, data), context) == {"id": 7}
        assert client.get_latest_version(f"{topic}-value").version == 1


def order_class() -> Any:
    """A message class as the compiler makes it, with a message of another file in it."""
    item = FileDescriptorProto(name="shop/item.proto", package="shop", syntax="proto3")
    item.message_type.add(name="Item").field.add(name="name", number=1, type=9, label=1)
    order = FileDescriptorProto(name="order.proto", package="shop", syntax="proto3", dependency=["shop/item.proto"])
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    message.field.add(name="items", number=2, type=11, type_name=".shop.Item", label=3)
    pool = DescriptorPool()
    pool.Add(item)
    pool.Add(order)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def test_protobuf_serialisers(broker: Broker, client: SchemaRegistryClient) -> None:
    context = SerializationContext("protobuf", MessageField.VALUE)
    configs: dict[str, Any] = {"use.deprecated.format": False}
    order = order_class()
    write = ProtobufSerializer(order, client, configs)
    data = write(order(id=7), context)
    assert data is not None
    read = ProtobufDeserializer(order, configs, client)
    assert read(sent_and_received(broker, "protobuf", data), context) == order(id=7)
    found = client.get_latest_version("protobuf-value")
    assert found.schema.schema_type == "PROTOBUF"
    assert found.schema.schema_str is not None
    assert "message Order {" in found.schema.schema_str
    assert client.get_latest_version("shop/item.proto").version == 1, "the file that it imports is a subject of its own"


def test_a_client_in_go(broker: Broker) -> None:
    """That of franz-go, led by `scripts/registry_client/main.go`."""
    found = subprocess.run(
        [tools.registry_client(), broker.schema_registry_url], capture_output=True, text=True, timeout=100, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_confluents_client_in_java_and_flinks_serialisers(broker: Broker, client: SchemaRegistryClient) -> None:
    """Records that Java writes are read here, and the other way round, by a newer schema."""
    write = AvroSerializer(client, ORDER)
    context = SerializationContext("from-python", MessageField.VALUE)
    send(broker, "from-python", *(write({"id": number}, context) for number in (7, 8, 9)))
    program = Path(__file__).with_name("RegistryClients.java")
    words = [broker.bootstrap_servers, broker.schema_registry_url, "from-java", "from-python"]
    done = subprocess.run(
        [tools.java(), *QUICK_JVM, "-cp", tools.flink_registry_class_path(), program, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read = [f'{{"id": {number}, "note": "none"}}' for number in (7, 8, 9)]
    assert done.stdout.splitlines() == [*read, "done"]
    found = AvroDeserializer(client)(
        received(broker, "from-java"), SerializationContext("from-java", MessageField.VALUE)
    )
    assert found == {"id": 0}
    assert client.get_latest_version("from-java-value").schema.schema_str == ORDER
