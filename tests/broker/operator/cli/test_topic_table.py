"""`anabranch topic create --table`, and `topic alter --table`, on a real node."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from anabranch.broker.operator.cli import main
from anabranch.testing import Broker

ORDER = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
KEY = '{"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def run(broker: Broker, *words: str | Path, typed: str | None = None) -> Result:
    arguments = ["topic", *map(str, words), "--bootstrap-server", broker.bootstrap_servers]
    return CliRunner().invoke(main, arguments, input=typed, env={"COLUMNS": "200"})


def ok(broker: Broker, *words: str | Path, typed: str | None = None) -> str:
    done = run(broker, *words, typed=typed)
    assert done.exit_code == 0, done.output
    return done.output


def configs_of(broker: Broker, name: str) -> Mapping[str, Any]:
    (found,) = json.loads(ok(broker, "describe", name, "-o", "json"))
    configs: Mapping[str, Any] = found["configs"]
    return configs


def file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_a_topic_is_created_as_a_table(broker: Broker, tmp_path: Path) -> None:
    assert ok(broker, "create", "plain", "--table", "raw") == "created topic plain with 1 partition, a table\n"
    assert configs_of(broker, "plain") == {"table.enable": "true", "table.value": "raw"}
    schema, key = file(tmp_path, "order.json", ORDER), file(tmp_path, "key.avsc", KEY)
    parts = ("--table", "json", "--schema", schema, "--table-key", "avro", "--key-schema", key)
    ok(broker, "create", "orders", *parts, "--set", "table.commit.interval.ms=10s")
    assert configs_of(broker, "orders") == {
        "table.enable": "true",
        "table.value": "json",
        "table.value.schema": ORDER,
        "table.key": "avro",
        "table.key.schema": KEY,
        "table.commit.interval.ms": "10000",
    }
    found = FileDescriptorSet()
    found.file.add(name="order.proto", syntax="proto3").message_type.add(name="Order")
    descriptors = found.SerializeToString()
    ok(broker, "create", "binary", "--table", "protobuf", "--schema", file(tmp_path, "order.desc", descriptors))
    assert base64.b64decode(configs_of(broker, "binary")["table.value.schema"]) == descriptors


def test_a_topic_becomes_a_table_and_the_change_is_shown_first(broker: Broker) -> None:
    ok(broker, "create", "later")
    long = json.dumps(
        {"type": "object", "properties": {f"field{at}": {"type": "string"} for at in range(20)}}, indent=1
    )
    words = ("alter", "later", "--table", "json", "--schema", "-")
    said = ok(broker, *words, "--plan", typed=long)
    assert "topic later: table.enable = true (was false)\n" in said
    (line,) = (each for each in said.splitlines() if "table.value.schema" in each)
    assert line.startswith('topic later: table.value.schema = { "type": "object", "properties": { "field0":')
    assert line.endswith(f"... ({len(long):,} characters) (was )")
    assert configs_of(broker, "later") == {}
    ok(broker, *words, typed=f"{long}\n")
    assert configs_of(broker, "later")["table.value.schema"] == long
    (line,) = (each for each in ok(broker, *words, typed=f"{long}\n").splitlines() if "table.value.schema" in each)
    assert line.endswith("(unchanged)")
    assert f"... ({len(long):,} characters)" in ok(broker, "describe", "later")
    ok(broker, "alter", "later", "--set", "table.enable=false")
    assert configs_of(broker, "later")["table.enable"] == "false"


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("--schema", "order.json"), 2, "give --table as well"),
        (("--table", "csv"), 2, "'csv' is not one of 'raw', 'json', 'avro', 'protobuf', 'auto'"),
        (("--table", "auto", "--schema", "order.json"), 2, "give --table as well"),
        (("--table-key", "json"), 2, "need --table"),
        (("--table", "json", "--key-schema", "order.json"), 2, "give --table-key as well"),
        (("--table", "json", "--schema", "none.json"), 1, "none.json: No such file or directory"),
        (("--table", "json", "--schema", "bad.bin"), 1, "bad.bin: 'utf-8' codec can't decode"),
        (("--table", "protobuf", "--schema", "order.proto"), 2, "protoc --include_imports"),
        (
            ("--table", "avro", "--schema", "long.avsc"),
            1,
            "long.avsc: 40,002 bytes, of which a config has room for 32,767",
        ),
        (("--table", "avro", "--schema", "order.json"), 1, "table.value.schema: not an Avro schema"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file(tmp_path, "order.json", ORDER)
    file(tmp_path, "bad.bin", b"\xff")
    file(tmp_path, "long.avsc", '"%s"' % ("x" * 40_000))
    file(tmp_path, "order.proto", "message Order {}")
    done = run(broker, "create", "wrong", *words)
    (line,) = (each for each in done.stderr.splitlines() if each.startswith("Error: "))
    assert (done.exit_code, reason in line) == (code, True), done.output
