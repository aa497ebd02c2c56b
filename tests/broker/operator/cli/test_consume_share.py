"""`anabranch consume --share`, and `group seek` and `delete-offsets` of share groups, with a real node."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer

from anabranch.broker.operator.cli import consume_share, main
from anabranch.client.cluster import Cluster
from anabranch.client.connection import Connection
from anabranch.client.share import ACCEPT, Delivery, ShareMember
from anabranch.testing import Broker
from tests.support.waiting import WAIT_S


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def topic(node: Broker, request: pytest.FixtureRequest) -> str:
    """Return a topic with the records 0 to 9 on two partitions, those of each in one batch."""
    name = re.sub("[^a-zA-Z0-9._-]", ".", str(request.node.name))
    node.create_topic(name, 2)
    produce(node.bootstrap_servers, name)
    return name


def produce(servers: str, topic: str, *, partitions: int = 2) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1000})
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(WAIT_S) == 0


def run(node: Broker, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--bootstrap-server", node.bootstrap_servers], env={"COLUMNS": "200"})


def ok(node: Broker, *arguments: str) -> str:
    result = run(node, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def taken(node: Broker, topic: str, *arguments: str) -> Sequence[tuple[int, int]]:
    """Return value and delivery count of each record that the group `g` of a topic delivers."""
    shown = ok(node, "consume", "--share", f"g-{topic}", topic, "--format", "json", *arguments)
    found = [json.loads(line) for line in shown.splitlines()]
    return sorted((int(each["value"]), each["delivery_count"]) for each in found)


def described(node: Broker, topic: str) -> Any:
    (found,) = json.loads(ok(node, "group", "describe", f"g-{topic}", "--output", "json"))
    return found


def test_a_limit_takes_that_many_and_counts_no_delivery_of_others(node: Broker, topic: str) -> None:
    for _ in range(6):  # a group gives a record up after five deliveries
        assert len(taken(node, topic, "--from", "earliest", "--limit", "1")) == 1
    assert described(node, topic)["lag"] == 4
    assert [count for _, count in taken(node, topic)] == [1] * 4
    assert described(node, topic)["lag"] == 0


def test_released_records_are_delivered_again_and_others_are_not(node: Broker, topic: str) -> None:
    every = range(10)
    assert taken(node, topic, "--from", "earliest", "--ack", "release") == [(each, 1) for each in every]
    rejected = taken(node, topic, "--ack", "reject", "--limit", "3")
    assert [count for _, count in rejected] == [2] * 3
    left = sorted({(each, 2) for each in every} - {*rejected})
    assert taken(node, topic) == left
    assert taken(node, topic) == []
    assert ok(node, "consume", "--share", f"g-{topic}", topic) == ""


def test_a_slow_release_delivers_no_record_to_itself_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"group.share_record_lock_duration_ms": 1000, "group.share_record_lock_duration_min_ms": 1000}
    with Broker(settings) as node, Cluster(node.bootstrap_servers, Connection) as cluster:
        node.create_topic("t", 1)
        produce(node.bootstrap_servers, "t", partitions=1)

        def wait_for_the_end_of_the_locks(_: object) -> None:
            monkeypatch.setattr(consume_share.ShareRead, "flushed", lambda _: None)
            other, taken_over = ShareMember(cluster, "g-t", ["t"]), 0
            while taken_over < 10:
                taken_over += len(other.fetch(10, 0.5))
            other.leave()

        monkeypatch.setattr(consume_share, "BATCH_RECORDS", 5)
        monkeypatch.setattr(consume_share.ShareRead, "flushed", wait_for_the_end_of_the_locks)
        result = run(node, "consume", "--share", "g-t", "t", "--from", "earliest", "--ack", "release")
        assert len(result.stdout.splitlines()) == 5
        assert result.stderr == "records are left: those shown are given back, as their locks end\n"
        monkeypatch.undo()
        assert taken(node, "t") == [(each, 3 if each < 5 else 2) for each in range(10)]


def test_text_shows_the_delivery(node: Broker, topic: str) -> None:
    shown = ok(node, "consume", "--share", "text", topic, "--from", "earliest", "--limit", "1")
    assert re.fullmatch(r"[01]:0  \S+  delivery=1  [01]\n", shown)


def test_a_new_group_is_said_to_begin_at_the_end(node: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_share, "QUIET_S", 0.5)
    result = run(node, "consume", "--share", "late", topic)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == (
        "no record: group late is new, and begins with what is produced from now on; --from earliest begins with the "
        "first record\n"
    )


def test_markers_of_transactions_are_no_records(node: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": node.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"10", partition=0)
    producer.commit_transaction(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"11", partition=1)
    producer.commit_transaction(WAIT_S)
    assert taken(node, topic, "--from", "earliest") == [(each, 1) for each in range(12)]
    assert described(node, topic)["lag"] == 0


def test_what_another_member_has_is_counted(node: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_share, "QUIET_S", 0.5)
    with Cluster(node.bootstrap_servers, Connection) as cluster:
        member = ShareMember(cluster, f"g-{topic}", [topic])
        taken(node, topic, "--from", "earliest", "--limit", "1")
        held: list[object] = []
        while len(held) < 4:
            held += member.fetch(4 - len(held), 0.5)
        result = run(node, "consume", "--share", f"g-{topic}", topic, "--format", "raw")
        member.leave()
    assert len(result.stdout.splitlines()) == 5
    assert result.stderr == "4 records left, which other members have taken\n"
    assert [count for _, count in taken(node, topic)] == [2] * 4


def test_records_of_a_topic_that_was_deleted_are_not_acknowledged(node: Broker, topic: str) -> None:
    taken(node, topic, "--from", "earliest", "--limit", "1")
    with Cluster(node.bootstrap_servers, Connection) as cluster:
        member = ShareMember(cluster, f"g-{topic}", [topic])
        held: list[Delivery] = []
        while not held:
            held += member.fetch(1, 0.5)
        node.delete_topic(topic)
        for _ in range(3):  # it hears of the deletion, and asks where the topic is now
            member.fetch(1, 0.1)
        place = held[0].place
        assert member.acknowledge({place: [held[0].record.offset]}, ACCEPT) == [
            f"{topic}-{place[1]}: its leader has changed"
        ]
        member.leave()


def test_seek_delivers_again(node: Broker, topic: str) -> None:
    assert len(taken(node, topic, "--from", "earliest")) == 10
    plan = json.loads(ok(node, "group", "seek", f"g-{topic}", "--to", "-1", "--plan", "--output", "json"))
    assert plan["changed"] == 0
    assert [each["to"] for each in plan["partitions"]] == [4, 4]
    ok(node, "group", "seek", f"g-{topic}", "--to", "-1", "--yes")
    assert described(node, topic)["lag"] == 2
    assert taken(node, topic) == [(8, 1), (9, 1)]
    assert ok(node, "group", "seek", f"g-{topic}", "--to", "earliest", "--topic", f"{topic}:1", "--yes").endswith(
        f"set 1 offset of group g-{topic}\n"
    )
    assert taken(node, topic) == [(each, 1) for each in (1, 3, 5, 7, 9)]
    ok(node, "group", "seek", f"g-{topic}", "--to", "earliest", "--yes")  # where they begin already
    assert len(taken(node, topic)) == 10


def test_deleted_offsets_begin_anew(node: Broker, topic: str) -> None:
    group = f"g-{topic}"
    taken(node, topic, "--from", "earliest", "--limit", "7")
    refused = run(node, "group", "delete-offsets", group, "--topic", f"{topic}:0", "--yes")
    assert refused.exit_code == 2
    assert f"Error: group {group} is a share group: name whole topics with --topic\n" in refused.stderr
    assert (
        ok(node, "group", "delete-offsets", group, "--topic", topic, "--yes") == f"deleted 2 offsets of group {group}\n"
    )
    assert described(node, topic)["partitions"] == []
    again = run(node, "group", "delete-offsets", group, "--topic", topic, "--yes")
    assert again.stderr == f"Error: group {group} has no offsets of {topic}\n"
    assert len(taken(node, topic, "--from", "earliest")) == 10


def test_groups_with_members_keep_their_offsets(node: Broker, topic: str) -> None:
    group = f"g-{topic}"
    taken(node, topic, "--from", "earliest", "--limit", "1")
    with Cluster(node.bootstrap_servers, Connection) as cluster:
        member = ShareMember(cluster, group, [topic])
        member.fetch(1, 0.1)
        for command in (["seek", group, "--to", "latest"], ["delete-offsets", group, "--topic", topic]):
            refused = run(node, "group", *command, "--yes")
            assert refused.exit_code == 1
            assert re.fullmatch(rf"Error: group {group} has (1 member|members): stop them first\n", refused.stderr)
        member.leave()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--share", "g", "missing"), 1, "topic missing does not exist"),
        (("--share", "g", "t", "--group", "h"), 2, "--share: not with --group"),
        (("--share", "g", "t", "--partition", "0"), 2, "--share: not with --partition"),
        (("--share", "g", "t", "--isolation-level", "read_committed"), 2, "--share: not with --isolation-level"),
        (("--share", "g", "t", "--key", "k"), 2, "--share: not with --key or --contains"),
        (("--share", "g", "t", "--from", "5"), 2, "--share: --from may be earliest or latest, for a new group"),
        (("--share", "g", "t", "--ack", "release", "--follow"), 2, "--ack release gives records back at the end"),
        (("t", "--ack", "accept"), 2, "--ack needs --share"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    node: Broker, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = run(node, "consume", *arguments)
    assert result.exit_code == code, result.output
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert said in error


def test_a_group_of_another_kind_is_said_to_be_one(node: Broker, topic: str) -> None:
    ok(node, "group", "seek", "classic", "--to", "end", "--topic", topic, "--yes")
    result = run(node, "consume", "--share", "classic", topic)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: group classic: ")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("ShareFetch", None),
        ("ShareGroupHeartbeat", None),
        ("ShareFetch", "NOT_LEADER_OR_FOLLOWER"),
        ("ShareGroupHeartbeat", "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_what_may_pass_is_tried_again(node: Broker, topic: str, api: str, error: str | None) -> None:
    if error is None:
        node.drop_next(api)
    else:
        node.fail_next(api, error)
    assert [value for value, _ in taken(node, topic, "--from", "earliest")] == [*range(10)]


def test_what_was_not_acknowledged_is_said_and_comes_again(node: Broker, topic: str) -> None:
    node.drop_next("ShareAcknowledge")
    result = run(node, "consume", "--share", "g-" + topic, topic, "--from", "earliest", "--format", "raw")
    assert sorted(result.stdout.split()) == sorted([f"{each}" for each in range(10)] * 2)
    assert result.stderr == (
        f"not acknowledged, and to be delivered again: {node.bootstrap_servers}, ShareAcknowledge: it closed the "
        "connection at a request\n"
    )


def test_follow_takes_what_comes_until_ctrl_c(node: Broker, topic: str) -> None:
    anabranch = str(Path(sys.executable).with_name("anabranch"))
    options = ["--from", "earliest", "--follow", "--format", "raw", "--bootstrap-server", node.bootstrap_servers]
    with subprocess.Popen(
        [anabranch, "consume", "--share", f"g-{topic}", topic, *options], stdout=subprocess.PIPE, text=True
    ) as consumer:
        assert consumer.stdout is not None
        first = sorted(consumer.stdout.readline() for _ in range(10))
        produce(node.bootstrap_servers, topic)
        second = sorted(consumer.stdout.readline() for _ in range(10))
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(WAIT_S) == 130
    assert first == second == [f"{each}\n" for each in range(10)]
    assert described(node, topic)["members"] == []
