"""`anabranch consume --use-schema-registry` with a node, its registry, and the serialisers of Confluent's client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from anabranch.broker.operator.cli import consume_schemas, main
from anabranch.testing import Broker
from tests.broker.operator.admin.api.test_schemas import with_id
from tests.interop.test_schema_registry_client import JSON_ORDER, ORDER, order_class
from tests.spark.pipeline.registry_server import running_registry
from tests.support.waiting import WAIT_S

REASON = "the payload does not fit: 1 bytes after the value"


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture(scope="module")
def ids(node: Broker) -> dict[str, int]:
    """Topics with a record in each format, keys in Avro: the ids of their schemas."""
    with SchemaRegistryClient({"url": node.schema_registry_url}) as client:
        order = order_class()
        written: dict[str, tuple[Any, Any]] = {
            "avro": (AvroSerializer(client, ORDER), {"id": 7}),
            "json": (JSONSerializer(JSON_ORDER, client), {"id": 8}),
            "protobuf": (ProtobufSerializer(order, client, {"use.deprecated.format": False}), order(id=9)),
        }
        key = AvroSerializer(client, '"string"')
        producer = Producer({"bootstrap.servers": node.bootstrap_servers})
        for topic, (write, value) in written.items():
            data = write(value, SerializationContext(topic, MessageField.VALUE))
            producer.produce(topic, data, key("k", SerializationContext(topic, MessageField.KEY)))
        assert producer.flush(WAIT_S) == 0
        return {topic: client.get_latest_version(f"{topic}-value").schema_id or 0 for topic in written}


def run(node: Broker, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["consume", "--bootstrap-server", node.bootstrap_servers, *arguments])


def shown(node: Broker, *arguments: str) -> str:
    done = run(node, "--schema-registry", node.schema_registry_url, *arguments)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    return done.stdout


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize(
    ("topic", "value"), [("avro", '{"id": 7}'), ("json", '{"id":8}'), ("protobuf", '{"id": "9", "items": []}')]
)
def test_keys_and_values_are_shown_as_json(node: Broker, topic: str, value: str) -> None:
    assert shown(node, topic).endswith(f'  key="k"  {value}\n')
    assert shown(node, topic, "--format", "raw") == f"{value}\n"
    assert shown(node, topic, "--format", "%k %v;") == f'"k" {value};'
    (line,) = map(json.loads, shown(node, topic, "--format", "json").splitlines())
    assert (line["key"], line["value"]) == ('"k"', value)
    (line,) = map(json.loads, shown(node, topic, "--format", "json", "--json-values").splitlines())
    assert line["value"] == json.loads(value)
    assert shown(node, topic, "--key", '"k"', "--contains", "id", "--format", "%o") == "0", "filters see what is shown"
    assert shown(node, topic, "--contains", "nothing") == ""


@pytest.mark.usefixtures("ids")
def test_without_the_option_bytes_stay_as_they_are(node: Broker) -> None:
    assert "\\x00" in run(node, "avro").stdout


def test_the_registry_is_that_of_the_cluster_unless_a_property_names_another(
    node: Broker, ids: dict[str, int], tmp_path: Path
) -> None:
    assert run(node, "avro", "--use-schema-registry", "--format", "raw").stdout == '{"id": 7}\n'
    with running_registry() as other:
        other.credentials = "me:secret"
        while len(other.schemas) < ids["avro"]:
            other.add("s", {"type": "record", "name": "Other", "fields": [{"name": "other", "type": "long"}]})
        file = tmp_path / "client.properties"
        file.write_text(f"schema.registry.url={other.url}\nbasic.auth.user.info=me:secret\n")
        command = ("avro", "--use-schema-registry", "--format", "raw", "--command-config", str(file))
        assert run(node, *command).stdout == '{"other": 7}\n'
        assert run(node, *command, "--schema-registry", f"{other.url}/").exit_code == 1, "the login is for one URL"


def test_what_cannot_be_decoded_is_told_and_shown_as_it_is_stored(node: Broker, ids: dict[str, int]) -> None:
    damaged = with_id(ids["avro"], b"\x0e\x0e")
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for value in (damaged, damaged, with_id(4711, b"x"), b"plain", None, with_id(0, b"x")):
        producer.produce("damaged", value, partition=0)
    assert producer.flush(WAIT_S) == 0
    done = run(node, "damaged", "--format", "hex", "--from", "earliest")
    assert done.exit_code == 0
    done = run(node, "damaged", "--schema-registry", node.schema_registry_url, "--format", "%S:%v;")
    assert (done.exit_code, len(done.stdout_bytes)) == (0, len(b"7:;7:;6:;5:plain;-1:;6:;") + 7 + 7 + 6 + 6)
    first, unknown, count = done.stderr.splitlines()
    assert first == f"damaged-0:0, value: schema {ids['avro']}: {REASON}; shown as it is stored"
    missing = f"the schema registry {node.schema_registry_url} does not have it"
    assert unknown == f"damaged-0:2, value: schema 4711: {missing}; shown as it is stored"
    assert count == "1 more could not be decoded"


@pytest.mark.parametrize(
    "rest", [b"\x01\x02\x03", b"\xff", b"{} {}", b"[" * 100_000], ids=["control", "not utf-8", "two", "deep"]
)
def test_bytes_that_have_the_id_of_a_json_schema_by_chance_are_whole(
    node: Broker, ids: dict[str, int], rest: bytes
) -> None:
    topic, stored = f"chance-{rest[0]}-{len(rest)}", with_id(ids["json"], rest)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    producer.produce(topic, b"value", stored)
    assert producer.flush(WAIT_S) == 0
    done = run(node, topic, "--schema-registry", node.schema_registry_url, "--format", "%k")
    assert (done.exit_code, done.stdout_bytes) == (0, stored), done.stderr
    said = f"{topic}-0:0, key: schema {ids['json']}: the payload is no JSON: "
    assert (done.stderr.startswith(said), len(done.stderr.splitlines())) == (True, 1), done.stderr


def test_what_is_behind_the_limit_is_not_decoded(node: Broker, ids: dict[str, int]) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for value in (b"one", b"other", b"one", with_id(ids["avro"], b"\x0e\x0e")):
        producer.produce("limited", value, partition=0)
    assert producer.flush(WAIT_S) == 0
    assert shown(node, "limited", "--format", "raw", "--limit", "3") == "one\nother\none\n"
    assert shown(node, "limited", "--format", "raw", "--limit", "2", "--contains", "one") == "one\none\n"


def test_json_with_a_very_long_number_is_json(node: Broker, ids: dict[str, int]) -> None:
    number = b"7" * 5_000
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    producer.produce("digits", with_id(ids["json"], number))
    assert producer.flush(WAIT_S) == 0
    assert shown(node, "digits", "--format", "%v") == number.decode()


def test_long_values_are_whole(node: Broker) -> None:
    text = "é\U0001f375" * 100_000
    with SchemaRegistryClient({"url": node.schema_registry_url}) as client:
        data = AvroSerializer(client, '"string"')(text, SerializationContext("long", MessageField.VALUE))
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "message.max.bytes": 1_000_000})
    producer.produce("long", data)
    assert producer.flush(WAIT_S) == 0
    assert json.loads(shown(node, "long", "--format", "raw")) == text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ("--use-schema-registry", "--format", "hex"),
            2,
            "a schema registry shows JSON: give another --format than hex",
        ),
        (("--schema-registry", "localhost:1"), 2, "--schema-registry: expected the URL of a schema registry, found"),
        (
            ("--schema-registry", "http://127.0.0.1:1"),
            1,
            "127.0.0.1:1 does not answer: [Errno 111] Connection refused; ",
        ),
        (("--command-property", "basic.auth.user.info=me:secret"), 2, "is a secret"),
    ],
)
@pytest.mark.usefixtures("ids")
def test_what_is_wrong_is_one_line(node: Broker, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = run(node, "avro", *arguments)
    assert (done.exit_code, said in done.stderr) == (code, True), done.output
    assert "me:secret" not in done.output


@pytest.mark.usefixtures("ids")
def test_a_server_that_is_no_registry_is_told(node: Broker) -> None:
    done = run(node, "avro", "--schema-registry", f"{node.admin_url}/elsewhere")
    assert (done.exit_code, "/elsewhere answers 404 to /schemas/ids/" in done.stderr) == (1, True), done.output


@pytest.mark.usefixtures("ids")
def test_a_missing_extra_is_named(node: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_schemas, "is_installed", lambda extra: extra != "protobuf")
    done = run(node, "protobuf", "--schema-registry", node.schema_registry_url)
    assert (done.exit_code, "is one of Protobuf: pip install 'anabranch[protobuf]'" in done.stderr) == (1, True)
