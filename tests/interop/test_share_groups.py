"""Share groups with Apache Kafka's share consumer and tools: consume, describe, reset, delete (KIP-932)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Message, Producer, ShareConsumer

from tests.interop.test_java import run
from tests.support.events import QUIET, Event, create_topic, send
from tests.support.kafka_tools import TOOLS, TOPICS
from tests.support.node import NodeProcess
from tests.support.tools import share_client

pytestmark = pytest.mark.interop

CONFIGS = f"{TOOLS}.ConfigCommand"
CONSUMER = f"{TOOLS}.consumer.ConsoleShareConsumer"
SHARE_GROUPS = f"{TOOLS}.consumer.group.ShareGroupCommand"
GROUPS = f"{TOOLS}.GroupsCommand"
RECORDS = 200
LOCK_MS = 1000
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(
        tmp_path_factory.mktemp("share"),
        group_share_heartbeat_interval_ms=500,
        group_share_heartbeat_interval_min_ms=500,
        group_share_record_lock_duration_min_ms=LOCK_MS,
    ) as node:
        run(node.bootstrap, TOPICS, "--create", "--topic", "t", "--partitions", "2")
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for number in range(RECORDS):
            producer.produce("t", f"{number}", partition=number % 2)
        assert producer.flush(30) == 0
        yield node.bootstrap
        assert node.terminate() == 0


def consumed(servers: str, group: str, count: int) -> list[int]:
    answer = run(
        servers, CONSUMER, "--topic", "t", "--group", group, "--max-messages", str(count), "--timeout-ms", "30000"
    )
    return sorted(int(line) for line in answer.split() if line.isdigit())


def begin_at_the_start(servers: str, group: str) -> None:
    entity = ("--entity-type", "groups", "--entity-name", group)
    run(servers, CONFIGS, "--alter", *entity, "--add-config", "share.auto.offset.reset=earliest")
    assert "share.auto.offset.reset=earliest" in run(servers, CONFIGS, "--describe", *entity)


def described(servers: str, group: str) -> list[list[str]]:
    """Partition, start offset and lag of each partition of a group."""
    lines = run(servers, SHARE_GROUPS, "--describe", "--group", group).splitlines()
    return sorted(line.split()[2:5] for line in lines if line.startswith(group))


def ours(servers: str, group: str) -> tuple[str, list[tuple[int, int]]]:
    """Type of the group, and committed offset and lag of each partition, as `anabranch group describe` shows them."""
    command = [str(Path(sys.executable).with_name("anabranch")), "group", "describe", group, "--output", "json"]
    ran = subprocess.run([*command, "--bootstrap-server", servers], capture_output=True, check=True, timeout=60)
    found: dict[str, Any] = json.loads(ran.stdout)[0]
    return found["type"], [(each["committed"], each["lag"]) for each in found["partitions"]]


def test_a_share_consumer_gets_each_record_once_and_tools_reset_and_delete_the_group(servers: str) -> None:
    begin_at_the_start(servers, "g")
    assert consumed(servers, "g", RECORDS) == list(range(RECORDS))
    assert run(servers, SHARE_GROUPS, "--list").split() == ["g"]
    assert ["g", "Share", "share"] in [line.split() for line in run(servers, GROUPS, "--list").splitlines()]
    assert "Empty" in run(servers, SHARE_GROUPS, "--describe", "--group", "g", "--state")
    half = str(RECORDS // 2)
    # The start offset is written with the next acknowledgement; the lag counts all that are written.
    assert [(partition, lag) for partition, _, lag in described(servers, "g")] == [("0", "0"), ("1", "0")]
    reset = ("--reset-offsets", "--group", "g", "--topic", "t", "--to-earliest")
    run(servers, SHARE_GROUPS, *reset, "--execute")
    assert described(servers, "g") == [["0", "0", half], ["1", "0", half]]
    assert ours(servers, "g") == ("share", [(0, RECORDS // 2)] * 2)
    assert consumed(servers, "g", RECORDS) == list(range(RECORDS))
    run(servers, SHARE_GROUPS, "--delete-offsets", "--group", "g", "--topic", "t")
    assert described(servers, "g") == []
    assert "was successful" in run(servers, SHARE_GROUPS, "--delete", "--group", "g")
    assert run(servers, SHARE_GROUPS, "--list").split() == []


def test_franz_go_settles_each_number_once_with_two_members(servers: str) -> None:
    """Its program releases, rejects, renews and accepts, and counts deliveries."""
    begin_at_the_start(servers, "franz")
    command = [str(share_client()), servers, "t", "franz", str(RECORDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert [lag for _, _, lag in described(servers, "franz")] == ["0", "0"]


def member(servers: str) -> ShareConsumer:
    settings = {"bootstrap.servers": servers, "group.id": "late", "share.acknowledgement.mode": "explicit", **QUIET}
    consumer = ShareConsumer(settings)
    consumer.subscribe(["late"])
    return consumer


def polled(consumer: ShareConsumer) -> list[Message]:
    """Return the records of the next delivery."""
    for _ in range(TIMEOUT_S):
        if found := consumer.poll(1):
            return list(found)
    pytest.fail("Timeout: no record was delivered")


def settle(consumer: ShareConsumer, value: bytes, delivery: int) -> None:
    """Accept one record, which must be the next one."""
    (found,) = polled(consumer)
    assert (found.value(), found.delivery_count()) == (value, delivery)
    consumer.acknowledge(found)
    assert list(consumer.commit_sync(TIMEOUT_S).values()) == [None]


def test_confluent_kafka_releases_rejects_and_is_too_late(servers: str) -> None:
    """Records that are not settled in time, or when their member leaves, go to another member."""
    begin_at_the_start(servers, "late")
    entity = ("--entity-type", "groups", "--entity-name", "late")
    run(servers, CONFIGS, "--alter", *entity, "--add-config", f"share.record.lock.duration.ms={LOCK_MS}")
    create_topic(servers, "late", 1)
    send(servers, "late", [Event(0, b"%d" % number) for number in range(4)])
    with closing(member(servers)) as first:
        accepted, released, rejected, forgotten = polled(first)
        first.acknowledge(accepted)
        first.acknowledge(released, AcknowledgeType.RELEASE)
        first.acknowledge(rejected, AcknowledgeType.REJECT)
        assert list(first.commit_sync(TIMEOUT_S).values()) == [None]
        with closing(member(servers)) as second:
            settle(second, b"1", 2)  # which was released
            (found,) = polled(second)  # in time, what was forgotten
            assert (found.value(), found.delivery_count()) == (b"3", 2)
            first.acknowledge(forgotten)
            (error,) = first.commit_sync(TIMEOUT_S).values()
            assert error is not None
            assert error.args[0].name() == "INVALID_RECORD_STATE"
            second.acknowledge(found)
            assert list(second.commit_sync(TIMEOUT_S).values()) == [None]
            send(servers, "late", [Event(0, b"4")])
            (found,) = polled(second)
            assert (found.value(), found.delivery_count()) == (b"4", 1)
        settle(first, b"4", 2)
    assert [lag for _, _, lag in described(servers, "late")] == ["0"]
