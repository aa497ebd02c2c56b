"""The new consumer group protocol (KIP-848) with librdkafka and Apache Kafka's own client."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from anabranch.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from anabranch.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.interop.test_confluent import QUIET, TIMEOUT_S, poll_until
from tests.interop.test_java import cells, command, run
from tests.support.events import Event, create_topic, send
from tests.support.kafka_tools import CONSUMER, GROUPS, TOOLS, run_tool
from tests.support.node import NodeProcess, running_node
from tests.support.raw_client import raw_client

pytestmark = pytest.mark.interop

PARTITIONS = 4


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node whose members hear of changes soon; some tests kill it."""
    folder: Path = tmp_path_factory.mktemp("node")
    with NodeProcess(folder, group_consumer_heartbeat_interval_ms=100) as node:
        yield node


@pytest.fixture
def topic(node: NodeProcess, request: pytest.FixtureRequest) -> str:
    """A topic of a test's own, which its group is named after too."""
    name = str(request.node.name).replace("[", "-").replace("]", "")
    create_topic(node.bootstrap, name, PARTITIONS)
    return name


@contextmanager
def consumer(node: NodeProcess, group: str, **settings: object) -> Iterator[Consumer]:
    client = Consumer({
        "bootstrap.servers": node.bootstrap,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.max.ms": 200,
        "log_level": 2,
        **settings,
    })  # fmt: skip
    try:
        yield client
    finally:
        client.close()


def owned(*clients: Consumer) -> list[tuple[str, int]]:
    return sorted((partition.topic, partition.partition) for client in clients for partition in client.assignment())


def everything(topic: str, partitions: int = PARTITIONS) -> list[tuple[str, int]]:
    return [(topic, partition) for partition in range(partitions)]


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go(node: NodeProcess, topic: str, assignor: str) -> None:
    settings: dict[str, object] = {"group.remote.assignor": assignor}
    with consumer(node, topic, **settings) as first:
        first.subscribe([topic])
        poll_until(lambda: owned(first) == everything(topic), first)
        with consumer(node, topic, **settings) as second:
            second.subscribe([topic])
            poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
            assert owned(first, second) == everything(topic)
        poll_until(lambda: owned(first) == everything(topic), first)


def test_new_partitions_are_assigned(node: NodeProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
    with consumer(node, topic, **{"topic.metadata.refresh.interval.ms": 200}) as client:
        client.subscribe([topic])
        poll_until(lambda: owned(client) == everything(topic), client)
        for future in admin.create_partitions([NewPartitions(topic, 6)]).values():
            future.result(TIMEOUT_S)
        poll_until(lambda: owned(client) == everything(topic, 6), client)


def test_a_pattern_finds_topics_old_and_new(node: NodeProcess, topic: str) -> None:
    with consumer(node, topic, **{"topic.metadata.refresh.interval.ms": 200}) as client:
        client.subscribe([f"^{topic}.*"])
        poll_until(lambda: owned(client) == everything(topic), client)
        create_topic(node.bootstrap, f"{topic}-more", 1)
        poll_until(lambda: owned(client) == [*everything(topic), (f"{topic}-more", 0)], client)


def fail_with_its_error(client: Consumer) -> None:
    for _ in range(TIMEOUT_S):
        message = client.poll(1)
        if message is not None and (error := message.error()):
            raise KafkaException(error)
    pytest.fail("no error came")


def test_a_static_member_comes_back_to_what_it_had(node: NodeProcess, topic: str) -> None:
    settings: dict[str, object] = {"group.instance.id": "one"}
    lost: list[object] = []
    with consumer(node, topic) as other:
        other.subscribe([topic], on_assign=lambda *_: lost.append("assign"), on_revoke=lambda *_: lost.append("revoke"))
        with consumer(node, topic, **settings) as first:
            first.subscribe([topic])
            poll_until(lambda: len(owned(first)) == len(owned(other)) == 2, first, other)
            had = owned(first)
            before = len(lost)
        with consumer(node, topic, **settings) as again:
            again.subscribe([topic])
            poll_until(lambda: owned(again) == had, again, other)
            assert len(lost) == before
            with consumer(node, topic, **settings) as intruder:
                intruder.subscribe([topic])
                with pytest.raises(KafkaException, match=r"(?i)instance"):
                    fail_with_its_error(intruder)


def test_commits_and_a_killed_node(node: NodeProcess, topic: str) -> None:
    with consumer(node, topic) as first, consumer(node, topic) as second:
        for client in (first, second):
            client.subscribe([topic])
        # Before there is anything to read: a partition that moves under a reader makes its next commit fail.
        poll_until(lambda: len(owned(first)) == len(owned(second)) == 2, first, second)
        send(node.bootstrap, topic, [Event(n % PARTITIONS, b"%d" % n) for n in range(40)])
        found: list[bytes | None] = []
        lost: list[object] = []

        def gather(count: int) -> None:
            for _ in range(TIMEOUT_S * 20):
                for client in (first, second):
                    message = client.poll(0.05)
                    if message is not None and not message.error():
                        found.append(message.value())
                        client.commit(message=message, asynchronous=False)
                if len(set(found)) == count and len(owned(first)) == len(owned(second)) == 2:
                    return
            pytest.fail(f"{len(set(found))} of {count} came")

        gather(40)
        for client in (first, second):
            client.subscribe(
                [topic], on_lost=lambda *_: lost.append("lost"), on_revoke=lambda *_: lost.append("revoked")
            )
        had = owned(first)
        node.kill9()
        node.start()
        send(node.bootstrap, topic, [Event(n % PARTITIONS, b"%d" % n) for n in range(40, 80)])
        found.clear()
        gather(40)
        assert sorted(found, key=lambda value: int(value or b"")) == [b"%d" % n for n in range(40, 80)]
        assert owned(first) == had, "members continue in their epochs"
        assert not lost
        ends = first.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], TIMEOUT_S)
        assert [end.offset for end in ends] == [20] * PARTITIONS


def test_groups_are_described_by_librdkafka(node: NodeProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
    with consumer(node, topic) as client:
        client.subscribe([topic])
        poll_until(lambda: owned(client) == everything(topic), client)
        described = admin.describe_consumer_groups([topic])[topic].result(TIMEOUT_S)
        assert (described.state.name, described.type.name) == ("STABLE", "CONSUMER")
        assert described.partition_assignor == "uniform"
        (member,) = described.members
        assert len(member.assignment.topic_partitions) == len(member.target_assignment.topic_partitions) == PARTITIONS
        with pytest.raises(KafkaException, match=r"not empty|NON_EMPTY"):
            admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)
    admin.delete_consumer_groups([topic])[topic].result(TIMEOUT_S)


@pytest.mark.timeout(180)
def test_javas_consumer_and_group_tool(node: NodeProcess, topic: str) -> None:
    send(node.bootstrap, topic, [Event(n % PARTITIONS, b"%d" % n) for n in range(12)])
    limits = ["--max-messages", "12", "--timeout-ms", "30000", "--from-beginning", "--group", topic]
    protocol = ["--command-property", "group.protocol=consumer"]
    lines = run(node.bootstrap, CONSUMER, "--topic", topic, *limits, *protocol).splitlines()
    assert sorted(map(int, lines)) == list(range(12))
    node.kill9()
    node.start()
    rows = cells(run(node.bootstrap, GROUPS, "--describe", "--group", topic))
    assert sorted(row[:6] for row in rows if row[0] == topic) == [
        [topic, topic, str(partition), "3", "3", "0"] for partition in range(PARTITIONS)
    ]
    assert [topic, "Consumer", "Empty"] in [
        [cell for cell in row if cell != "consumer"]
        for row in cells(run(node.bootstrap, GROUPS, "--list", "--type", "--state"))
    ]
    reader = command(node.bootstrap, CONSUMER, ["--topic", topic, "--group", topic, *protocol])
    process = subprocess.Popen(reader, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        send(node.bootstrap, topic, [Event(0, b"one more")])
        assert process.stdout is not None
        assert process.stdout.readline() == "one more\n"
        members = cells(run(node.bootstrap, GROUPS, "--describe", "--members", "--verbose", "--group", topic))
        assert any(f"{topic}:0,1,2,3" in "".join(row) for row in members), members
        state = run(node.bootstrap, GROUPS, "--describe", "--state", "--group", topic)
        assert "Stable" in state
        assert "uniform" in state
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
    run(node.bootstrap, GROUPS, "--delete", "--group", topic)


@pytest.mark.timeout(120)
async def test_kafkas_log_reader_reads_our_consumer_groups(tmp_path: Path) -> None:
    """The log of a node's groups, as a segment of Apache Kafka's, through its own decoder."""
    async with running_node(tmp_path, group_offsets_partitions=1) as node, raw_client(node.bootstrap) as client:
        topic = CreatableTopic(name="flights", num_partitions=3, replication_factor=1)
        await client.call(CreateTopicsRequest(topics=[topic]))
        await client.call(FindCoordinatorRequest(coordinator_keys=["g"]))
        for member_id, instance_id in (("m", None), ("s", "i")):
            join = ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=member_id,
                instance_id=instance_id,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["flights"],
                subscribed_topic_regex="fl.*",
                topic_partitions=[],
            )
            assert (await client.call(join)).error_code == 0
        wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)]
        fetch = FetchRequest(
            max_wait_ms=0, min_bytes=0, topics=[FetchTopic(topic="__consumer_offsets", partitions=wanted)]
        )
        fetched = await client.call(fetch, 12)
        records = fetched.responses[0].partitions[0].records
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(records)
    reading = ["--offsets-decoder", "--files", str(segment)]
    done = await asyncio.to_thread(run_tool, f"{TOOLS}.DumpLogSegments", reading)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if '"type":"' in line]
    kinds = {line.partition('"type":"')[2].partition('"')[0] for line in lines}
    assert kinds == {"3", "5", "6", "7", "8", "16"}
    (static,) = [line for line in lines if '"type":"5"' in line and '"memberId":"s"' in line]
    assert '"instanceId":"i"' in static
    assert '"subscribedTopicNames":["flights"],"subscribedTopicRegex":"fl.*","rebalanceTimeoutMs":60000' in static
    (waiting,) = [line for line in lines if '"type":"8"' in line and '"memberId":"s"' in line]
    assert '"memberEpoch":3,"previousMemberEpoch":0,"state":2,"assignedPartitions":[]' in waiting
    assert "error" not in done.stdout.lower()
