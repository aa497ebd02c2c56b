"""`anabranch table` on a real node, with the table that it commits."""

import csv
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from anabranch.broker.operator.cli import main
from anabranch.broker.operator.cli.admin_port import AdminPort
from anabranch.testing import Broker
from tests.support.events import Event, create_topic, send
from tests.support.node import NodeProcess
from tests.support.s3 import S3Bucket, set_credentials
from tests.support.waiting import WAIT_S

ORDER = '{"type": "object", "properties": {"item": {"type": "string"}, "price": {"type": "number"}}}'
CONFIGS = {"table.enable": "true", "table.value": "json", "table.value.schema": ORDER}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with three records in the topic `my-orders`, of which one has an error, and a topic that is no table."""
    with Broker() as running:
        running.create_topic("my-orders", 2, {**CONFIGS, "table.commit.interval.ms": "3600000"})
        running.create_topic("plain")
        produce(running, b'{"item": "tea", "price": 3.5}', b'{"item": "a, \\"b\\"", "price": null}', b"nonsense")
        yield running


def produce(broker: Broker, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce("my-orders", value, partition=0)
    assert producer.flush(WAIT_S) == 0


def run(broker: Broker, *words: str, typed: str | None = None) -> Result:
    arguments = ["table", *words, "--admin", urlsplit(broker.admin_url).netloc]
    return CliRunner().invoke(main, arguments, input=typed, env={"COLUMNS": "250"})


def ok(broker: Broker, *words: str, typed: str | None = None) -> str:
    done = run(broker, *words, typed=typed)
    assert done.exit_code == 0, done.output
    return done.stdout


def read(broker: Broker, *words: str) -> Any:
    return json.loads(ok(broker, *words, "-o", "json"))


def test_a_commit_brings_what_was_produced(broker: Broker) -> None:
    assert ok(broker, "commit", "my-orders").startswith("table my-orders: 3 rows, version ")
    produce(broker, b'{"item": "cake"}')
    assert read(broker, "commit", "my-orders")["rows"] == 4

    (row,) = read(broker, "list")
    assert (row["name"], row["rows"], row["lag"], row["lag_ms"], row["error_rows"]) == ("my-orders", 4, 0, 0, 1)
    head, line = ok(broker, "list", "my-*").splitlines()
    assert head.split() == ["table", "rows", "files", "size", "lag", "behind", "committed", "error"]
    assert line.split()[:2] == ["my-orders", "4"]
    assert ok(broker, "list", "none*") == "no table matches\n"

    (found,) = read(broker, "describe", "my-orders")
    assert [each["name"] for each in found["columns"]] == ["item", "price", "_kafka"]
    assert found["reasons"]
    shown = ok(broker, "describe", "my-orders")
    for part in (
        "my-orders",
        "4 in ",
        "errors",
        "1 row since",
        found["metadata_location"],
        "double",
        found["reasons"][0],
    ):
        assert part in shown

    (newest, *_) = read(broker, "snapshots", "my-orders")
    assert (newest["operation"], newest["summary"]["added-records"]) == ("append", "1")
    head, first, *_ = ok(broker, "snapshots", "my-orders", "--limit", "1").splitlines()
    assert head.split() == ["snapshot", "version", "added", "removed", "rows", "operation", "committed"]
    assert first.split()[2:6] == ["1", "0", "4", "append"]


def test_a_query_sees_the_table_by_its_name(broker: Broker) -> None:
    ok(broker, "commit", "my-orders")
    rows = read(broker, "query", "my-orders")
    assert {row["item"] for row in rows} >= {"tea", 'a, "b"', None}
    assert rows[0]["_kafka"]["partition"] == 0
    count = 'SELECT count(*) AS n, max(price) AS most FROM "my-orders" WHERE item IS NOT NULL'
    assert read(broker, "query", "my-orders", count)[0]["most"] == 3.5
    head, line = ok(
        broker, "query", "my-orders", "SELECT item, price FROM \"my-orders\" WHERE item = 'tea'"
    ).splitlines()
    assert (head.split(), line.split()) == (["item", "price"], ["tea", "3.5"])
    text = ok(broker, "query", "my-orders", 'SELECT item, price FROM "my-orders" ORDER BY price LIMIT 1', "-o", "csv")
    assert list(csv.reader(text.splitlines())) == [["item", "price"], ["tea", "3.5"]]
    assert "null" in ok(broker, "query", "my-orders", 'SELECT price FROM "my-orders" WHERE price IS NULL')


def test_a_query_that_fails_says_why(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(broker, "query", "my-orders", "SELECT nope FROM nothing")
    assert (done.exit_code, len(done.stderr.splitlines())) == (1, 1)
    assert done.stderr.startswith("Error: Catalog Error: Table with name nothing does not exist")
    assert run(broker, "query", "nothing").stderr == "Error: there is no table 'nothing'\n"
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert run(broker, "query", "my-orders").stderr == "Error: table query needs DuckDB: pip install duckdb\n"


def test_what_is_no_table_is_said_to_be_none(broker: Broker) -> None:
    said = "Error: there is no table 'plain': its topic has table.enable=false\n"
    for words in (("describe", "plain"), ("snapshots", "plain"), ("commit", "plain"), ("drop", "plain", "--yes")):
        assert run(broker, *words).stderr == said


def test_a_commit_says_why_the_table_waits(broker: Broker) -> None:
    broker.create_topic("unknown", configs={"table.enable": "true", "table.value": "avro"})
    done = run(broker, "commit", "unknown")
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: table unknown waits: the schema registry ")
    assert line.endswith(" has no /subjects/unknown-value/versions/latest")
    (found,) = read(broker, "describe", "unknown")
    assert line.endswith(found["last_error"])
    assert found["last_error"] in ok(broker, "list", "unknown")


def test_a_drop_asks_first_and_the_topic_stays(broker: Broker) -> None:
    broker.create_topic("gone", configs={**CONFIGS, "table.commit.interval.ms": "3600000"})
    assert ok(broker, "commit", "gone").startswith("table gone: 0 rows")
    done = run(broker, "drop", "gone", typed="n\n")
    assert (done.exit_code, "Drop table gone, with 0 rows in 0 files?" in done.stderr) == (1, True)
    other = "6f1e0b4c-0000-4000-8000-000000000000"
    done = run(broker, "drop", "gone", "--yes", "--id", other)
    assert done.stderr.startswith(f"Error: there is no table 'gone' with the id {other}: the one of this name has the")
    (found,) = read(broker, "describe", "gone")
    assert found["table_id"] in ok(broker, "describe", "gone")
    assert ok(broker, "drop", "gone", typed="y\n") == "dropped table gone; topic gone is no table any more\n"
    assert [each["name"] for each in read(broker, "list") if each["name"] == "gone"] == []
    assert broker.records("gone") == []


def test_a_description_says_what_another_catalog_shows(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"catalog": "lake", "version": 44, "snapshot_id": "4611", "lag_ms": 12_000, "error": "lake: no room"}
    call = AdminPort.call
    monkeypatch.setattr(AdminPort, "call", lambda *given: {**call(*given), "publication": there})
    shown = ok(broker, "describe", "my-orders")
    assert re.search(r"published +in lake, version 44, snapshot 4611, behind for .*12.*\n +lake: no room\n", shown)


@pytest.mark.slow
def test_a_query_reads_from_s3(bucket: S3Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with NodeProcess(tmp_path, **bucket.node_settings()) as node:
        create_topic(node.bootstrap, "orders", 1, CONFIGS)
        send(node.bootstrap, "orders", [Event(0, b'{"item": "tea", "price": 3.5}')])
        where = ("--admin", node.admin, "-o", "json")
        invoke = CliRunner().invoke
        assert invoke(main, ["table", "commit", "orders", *where]).exit_code == 0
        done = invoke(main, ["table", "query", "orders", "SELECT item, price FROM orders", *where])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == [{"item": "tea", "price": 3.5}]
