"""`anabranch group`, `transaction`, `config` and `topic alter` with a real node."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from anabranch.broker.operator.cli import main
from anabranch.client.connection import Connection
from anabranch.testing import Broker
from tests.support.streams_member import StreamsMember
from tests.support.waiting import WAIT_S, wait_until


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    name = re.sub("[^a-zA-Z0-9._-]", ".", str(request.node.name))
    node.create_topic(name, 2)
    producer = Producer({"bootstrap.servers": node.bootstrap_servers})
    for number in range(10):
        producer.produce(name, b"%d" % number, partition=number % 2, timestamp=1_000 * (number + 1))
    assert producer.flush(WAIT_S) == 0
    return name


def run(node: Broker, *arguments: str, typed: str | None = None) -> Result:
    servers = ["--bootstrap-server", node.bootstrap_servers]
    return CliRunner().invoke(main, [*arguments, *servers], input=typed, env={"COLUMNS": "200"})


def ok(node: Broker, *arguments: str, typed: str | None = None) -> str:
    result = run(node, *arguments, typed=typed)
    assert result.exit_code == 0, result.output
    return result.stdout


def read(node: Broker, *arguments: str) -> Any:
    return json.loads(ok(node, *arguments, "--output", "json"))


def make_consumer(node: Broker, group: str, **settings: object) -> Consumer:
    fixed = {"bootstrap.servers": node.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}
    return Consumer({**fixed, "enable.auto.commit": False, "client.id": "reader", **settings})


def commit(node: Broker, group: str, topic: str, *offsets: int) -> None:
    with closing(make_consumer(node, group)) as consumer:
        places = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
        consumer.commit(offsets=places, asynchronous=False)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_offsets_and_lag(node: Broker, topic: str, protocol: str) -> None:
    group = f"g-{protocol}"
    with closing(make_consumer(node, group, **{"group.protocol": protocol})) as consumer:
        consumer.subscribe([topic])
        assert consumer.consume(3, WAIT_S)
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        (found,) = read(node, "group", "describe", group)
        assert (found["type"], found["state"], found["lag"]) == (protocol, "Stable", 3)
        assert [member["client"] for member in found["members"]] == ["reader"]
        first, second = found["partitions"]
        assert (first["committed"], first["end"], first["lag"], first["client"]) == (2, 5, 3, "reader")
        assert (second["committed"], second["end"], second["lag"], second["client"]) == (None, 5, None, "reader")
        table = ok(node, "group", "describe", group)
        assert "1 member, lag 3" in table
        assert table.splitlines()[3].split()[:6] == [topic, "0", "2", "5", "3", "reader"]
        listed = {each["group"]: each for each in read(node, "group", "list")}
        assert listed[group] == {"group": group, "type": protocol, "state": "Stable", "coordinator": 1}
        assert yaml.safe_load(ok(node, "group", "list", "--output", "yaml")) == read(node, "group", "list")
        refused = run(node, "group", "seek", group, "--to", "start", "--yes")
        assert (refused.exit_code, refused.stderr) == (1, f"Error: group {group} has 1 member: stop them first\n")
        refused = run(node, "group", "delete", group, "--yes")
        assert refused.stderr == f"Error: group {group}: it has members: stop them first\n"
    ok(node, "group", "delete", group, "--yes")
    assert run(node, "group", "describe", group).stderr == f"Error: group {group} does not exist\n"


def test_a_streams_group_has_tasks_and_its_input_is_moved(node: Broker, topic: str) -> None:
    ok(node, "config", "set", "group", "app", "streams.initial.rebalance.delay.ms=0")
    member = StreamsMember("app", topic)
    host, _, port = node.bootstrap_servers.rpartition(":")
    with Connection(host, int(port)) as connection:

        def beat() -> bool:
            member.take(connection.call(member.request()))
            return member.is_settled

        wait_until(beat, "the member has its tasks")
        (found,) = read(node, "group", "describe", "app")
        assert (found["type"], found["state"], found["assignor"]) == ("streams", "Stable", "sticky")
        assert found["members"][0]["tasks"] == {"active": ["0_0", "0_1", "1_0", "1_1"], "standby": [], "warmup": []}
        places = [(each["topic"], each["partition"], each["lag"]) for each in found["partitions"]]
        assert places == [(name, index, None) for name in sorted((topic, member.repartition)) for index in (0, 1)]
        assert [list(each.values()) for each in found["topology"]] == [
            ["0", [topic], [], [member.repartition], []],
            ["1", [], [member.repartition], [], [member.changelog]],
        ]
        tables = ok(node, "group", "describe", "app").splitlines()
        assert ["0", topic, member.repartition, "-"] in [line.split() for line in tables]
        assert ["1", member.repartition, "-", member.changelog] in [line.split() for line in tables]
        assert tables[-1].split()[2:] == ["0_0,", "0_1,", "1_0,", "1_1", "-", "-"]
        assert "app has 1 member: stop them first" in run(node, "group", "seek", "app", "--to", "end", "--yes").stderr
        assert not connection.call(member.farewell()).error_code
    commit(node, "app", topic, 1, 3)
    commit(node, "app", member.repartition, 0, 0)
    moved = read(node, "group", "seek", "app", "--to", "end", "--yes")
    assert [tuple(each.values()) for each in moved["partitions"]] == [(topic, 0, 1, 5, 4), (topic, 1, 3, 5, 2)]
    assert {each["group"]: each["type"] for each in read(node, "group", "list")}["app"] == "streams"
    ok(node, "group", "delete", "app", "--yes")


@pytest.mark.parametrize(
    ("place", "offsets"),
    [
        ("earliest", (0, 0)),
        ("start", (0, 0)),
        ("latest", (5, 5)),
        ("end", (5, 5)),
        ("4", (4, 4)),
        ("99", (5, 5)),
        ("-2", (3, 3)),
        ("1970-01-01T00:00:04Z", (2, 1)),
        ("0m ago", (5, 5)),
    ],
)
def test_seek_shows_and_sets_places(node: Broker, topic: str, place: str, offsets: tuple[int, int]) -> None:
    commit(node, "sought", topic, 1, 3)
    plan = read(node, "group", "seek", "sought", "--topic", topic, "--to", place, "--plan")
    assert plan["changed"] == 0
    assert [(each["from"], each["to"]) for each in plan["partitions"]] == list(zip((1, 3), offsets, strict=True))
    assert committed(node, "sought", topic) == [1, 3]
    ok(node, "group", "seek", "sought", "--topic", topic, "--to", place, "--yes")
    assert committed(node, "sought", topic) == list(offsets)


def committed(node: Broker, group: str, topic: str) -> list[int]:
    with closing(make_consumer(node, group)) as consumer:
        return [each.offset for each in consumer.committed([TopicPartition(topic, index) for index in range(2)])]


def test_seek_asks_first_and_moves_what_was_committed(node: Broker, topic: str) -> None:
    commit(node, "asked", topic, 1, 5)
    declined = run(node, "group", "seek", "asked", "--to", "end", typed="n\n")
    assert declined.exit_code == 1
    assert [line.split()[1:] for line in declined.stdout.splitlines()[1:]] == [
        ["0", "1", "5", "+4"],
        ["1", "5", "5", "-"],
    ]
    assert "Set 1 offset of group asked?" in declined.stderr
    assert committed(node, "asked", topic) == [1, 5]
    assert ok(node, "group", "seek", "asked", "--to", "end", typed="y\n").endswith("set 1 offset of group asked\n")
    assert committed(node, "asked", topic) == [5, 5]
    ok(node, "group", "seek", "fresh", "--to", "2", "--topic", f"{topic}:1", "--yes")
    assert read(node, "group", "describe", "fresh")[0]["lag"] == 3


def test_offsets_are_deleted_where_nobody_reads(node: Broker, topic: str) -> None:
    commit(node, "left", topic, 1, 3)
    with closing(make_consumer(node, "left")) as consumer:
        consumer.subscribe([topic])
        assert consumer.consume(1, WAIT_S)
        refused = run(node, "group", "delete-offsets", "left", "--topic", topic, "--yes")
        assert refused.stderr == f"Error: group left, {topic}-0 is read by members: stop them first\n"
    assert run(node, "group", "delete-offsets", "left", "--topic", topic, typed="n\n").exit_code == 1
    assert committed(node, "left", topic) == [1, 3]
    said = ok(node, "group", "delete-offsets", "left", "--topic", f"{topic}:1", "--topic", "other", "--yes")
    assert said == "deleted 1 offset of group left\n"
    assert committed(node, "left", topic) == [1, -1001]  # librdkafka's number for none


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("group", "delete-offsets", "nobody", "--topic", "t"), 1, "group nobody does not exist"),
        (("group", "seek", "nobody", "--to", "end"), 1, "group nobody does not exist; --topic creates it with offsets"),
        (("group", "seek", "g", "--to", "end", "--topic", "t:x"), 2, "--topic: expected TOPIC or TOPIC:PARTITION,..."),
        (("group", "seek", "g", "--to", "end", "--topic", "missing"), 1, "topic missing does not exist"),
        (("group", "seek", "g", "--to", "soon"), 2, "expected earliest, latest, an offset"),
        (("group", "describe", "nobody"), 1, "group nobody does not exist"),
        (("group", "delete", "nobody"), 1, "group nobody does not exist"),
        (("topic", "delete", "missing"), 1, "topic missing does not exist"),
        (("transaction", "describe", "nobody"), 1, "transactional id nobody does not exist"),
        (("transaction", "abort", "nobody"), 1, "transactional id nobody does not exist"),
        (("config", "describe", "topic", "missing"), 1, "topic missing does not exist"),
        (("config", "describe", "broker", "x"), 1, "broker x: expected the id of a node"),
        (("config", "describe", "broker", "7"), 1, "node 7 is not in the cluster"),
        (("config", "set", "topic", "missing", "retention.ms"), 2, "expected NAME=VALUE, found 'retention.ms'"),
        (("topic", "alter", "missing"), 2, "nothing to change: give --set, --unset, --table or --partitions"),
        (("topic", "alter", "missing", "--partitions", "3"), 1, "topic missing does not exist"),
        (("config", "unset", "topic", "missing", "retention.ms"), 1, "topic missing does not exist"),
        (
            ("config", "unset", "broker", "all", "foo"),
            1,
            "all brokers: unknown config 'foo'; `config describe --all` lists",
        ),
        (
            ("config", "unset", "broker", "1", "max.conections"),
            1,
            "unknown config 'max.conections'. Did you mean 'max.conn",
        ),
        (("config", "unset", "group", "g", "foo"), 1, "group g: unknown config 'foo'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    node: Broker, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = run(node, *arguments)
    assert result.exit_code == code, result.output
    errors = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1
    assert said in errors[0]


def test_an_open_transaction_is_described_and_aborted(node: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": "payments[/]\x1b[2J"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    assert producer.flush(WAIT_S) == 0
    name = "payments[/]\x1b[2J"
    found = read(node, "transaction", "describe", name)
    assert (found["state"], found["partitions"], found["epoch"]) == ("Ongoing", [f"{topic}-1"], 0)
    assert found["open_ms"] >= 0
    assert [each["id"] for each in read(node, "transaction", "list", "--open")] == [name]
    shown = ok(node, "transaction", "list")
    assert "payments[/]\\x1b[2J" in shown
    declined = run(node, "transaction", "abort", name, typed="n\n")
    assert (declined.exit_code, read(node, "transaction", "describe", name)["state"]) == (1, "Ongoing")
    ok(node, "transaction", "abort", name, "--yes")
    assert read(node, "transaction", "list", "--open") == []
    refused = run(node, "transaction", "abort", name, "--yes")
    assert refused.exit_code == 1
    assert "has no open transaction: Empty" in refused.stderr
    with pytest.raises(KafkaException):
        producer.commit_transaction(WAIT_S)


def test_configs_of_topics_and_brokers(node: Broker, topic: str) -> None:
    said = ok(node, "config", "set", "topic", topic, "retention.ms=60000", "cleanup.policy=compact", "--plan")
    assert said.splitlines()[-1] == "nothing was changed"
    assert ok(node, "config", "describe", "topic", topic) == "no config is set; --all shows the defaults\n"
    said = ok(node, "config", "set", "topic", topic, "retention.ms=60000", "cleanup.policy=compact")
    assert said.splitlines()[0] == f"topic {topic}: retention.ms = 60000 (was 604800000)"
    rows = {each["name"]: each for each in read(node, "config", "describe", "topic", topic)}
    assert {name: (each["value"], each["source"]) for name, each in rows.items()} == {
        "retention.ms": ("60000", "topic"),
        "cleanup.policy": ("compact", "topic"),
    }
    ok(node, "config", "unset", "topic", topic, "cleanup.policy")
    assert list({each["name"] for each in read(node, "config", "describe", "topic", topic)}) == ["retention.ms"]
    explained = read(node, "config", "describe", "topic", topic, "--explain", "--all")
    assert any(each["documentation"] for each in explained)
    refused = run(node, "config", "set", "topic", topic, "retention.ms=soon")
    assert refused.exit_code == 1
    assert "INVALID_CONFIG" in refused.stderr
    assert read(node, "config", "describe", "broker", "1", "--all")


def test_a_topic_is_altered(node: Broker, topic: str) -> None:
    said = ok(node, "topic", "alter", topic, "--partitions", "4", "--set", "retention.ms=1000", "--plan")
    assert said.splitlines()[-1] == "nothing was changed"
    assert len(read(node, "topic", "describe", topic)[0]["partitions"]) == 2
    ok(node, "topic", "alter", topic, "--partitions", "4", "--set", "retention.bytes=100000")
    (found,) = read(node, "topic", "describe", topic)
    assert found["configs"] == {"retention.bytes": "100000"}
    assert [(each["partition"], each["offsets"]) for each in found["partitions"]] == [(0, 5), (1, 5), (2, 0), (3, 0)]
    ok(node, "topic", "alter", topic, "--unset", "retention.bytes")
    assert read(node, "topic", "describe", topic)[0]["configs"] == {}
    refused = run(node, "topic", "alter", topic, "--partitions", "3")
    assert refused.exit_code == 1
    assert "INVALID_PARTITIONS" in refused.stderr
    assert topic in {each["topic"] for each in read(node, "topic", "list")}


def test_a_reader_that_ends_is_no_error(node: Broker) -> None:
    for number in range(30):
        node.create_topic(f"many-{number}", 20)
    names = [f"many-{number}" for number in range(30)] * 20
    arguments = ["topic", "describe", *names, "--bootstrap-server", node.bootstrap_servers]
    command = [sys.executable, "-m", "anabranch", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_config_that_does_not_exist_is_not_set(node: Broker, topic: str) -> None:
    for command in (("topic", "alter", topic, "--set"), ("config", "set", "topic", topic)):
        refused = run(node, *command, "retention.m=7d")
        assert refused.exit_code == 1
        assert "Unknown topic config name: retention.m" in refused.stderr
        assert "Did you mean 'retention.ms'" in refused.stderr
    ok(node, "config", "set", "topic", topic, "retention.ms=7d", "segment.bytes=1GiB")
    configs = {"retention.ms": "604800000", "segment.bytes": "1073741824"}
    assert read(node, "topic", "describe", topic)[0]["configs"] == configs


def test_a_config_that_does_not_exist_is_not_unset(node: Broker, topic: str) -> None:
    said = f"Error: topic {topic}: unknown config 'retention.m'. Did you mean 'retention.ms'"
    for command in (("topic", "alter", topic, "--partitions", "9", "--unset"), ("config", "unset", "topic", topic)):
        refused = run(node, *command, "retention.m")
        assert refused.exit_code == 1
        assert refused.stderr.startswith(said)
    assert len(read(node, "topic", "describe", topic)[0]["partitions"]) == 2


def test_what_changes_nothing_is_said_to_change_nothing(node: Broker, topic: str) -> None:
    ok(node, "topic", "alter", topic, "--set", "retention.ms=5")
    alter = ("topic", "alter", topic, "--partitions", "2", "--set", "retention.ms=5", "--unset", "cleanup.policy")
    assert ok(node, *alter).splitlines() == [
        f"topic {topic}: 2 partitions (unchanged)",
        f"topic {topic}: retention.ms = 5 (unchanged)",
        f"topic {topic}: cleanup.policy = its default (unchanged)",
        "nothing to change",
    ]
    found = read(node, *alter)
    assert (found["changed"], found["partitions"]) == (False, {"from": 2, "to": 2})
    assert read(node, *alter, "--set", "retention.bytes=7")["changed"]
    assert ok(node, *alter, "--plan").endswith("nothing to change\n")
    # The default, but set: it stays when the default changes.
    default = {each["name"]: each["value"] for each in read(node, "config", "describe", "topic", topic, "--all")}
    set_ = ("config", "set", "topic", topic, f"max.message.bytes={default['max.message.bytes']}")
    assert not read(node, *set_, "--plan")["changed"]
    assert [read(node, *set_)["changed"] for _ in range(2)] == [True, False]
    unset = ("config", "unset", "topic", topic, "max.message.bytes")
    assert [read(node, *unset)["changed"] for _ in range(2)] == [True, False]
    for name in ("leader.replication.throttled.rate", "max.connections"):  # unset, or not described where it is unset
        ok(node, "config", "set", "broker", "all", f"{name}=1000")
        assert read(node, "config", "unset", "broker", "all", name)["changed"]
    assert ok(node, "config", "unset", "broker", "all", "max.connections").endswith("nothing to change\n")


def test_configs_without_an_effect_are_named(node: Broker, topic: str) -> None:
    said = "segment.bytes has no effect here: data is kept in objects, not in segment files.\n"
    other = ["--set", "retention.ms=1"]
    for command in (
        ("topic", "create", f"{topic}-new", "--config", "segment.bytes=1048576", *other),
        ("topic", "alter", topic, "--set", "segment.bytes=1048576", *other),
        ("config", "set", "topic", topic, "segment.bytes=1048576", "--output", "json"),
    ):
        result = run(node, *command)
        assert (result.exit_code, result.stderr) == (0, said), result.output
    assert run(node, "topic", "create", f"{topic}-newer", *other).stderr == ""
    assert run(node, "topic", "alter", topic, "--unset", "segment.bytes").stderr == ""
