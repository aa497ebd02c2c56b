"""Dead letters of a share group, from the rejection to the topic (KIP-1191)."""

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.configs.broker_table import DEAD_LETTER_AUTO_CREATE
from anabranch.broker.kafka.configs.features import SHARE_VERSION, FeatureUpdate, UpgradeType
from anabranch.broker.kafka.share.dead_letters import writer
from anabranch.broker.kafka.share.interface import DeliveryState, InitialState, ShareKey
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.records import Record, decode_records
from anabranch.s3stream.errors import AppendTooLarge, StorageError
from anabranch.wal.interface import WalError
from tests.support.metrics import metrics_of
from tests.support.node import running_node, running_nodes
from tests.support.raw_client import batch_of, raw_client
from tests.support.share_member import ACCEPT, GROUP, REJECT, RELEASE, Member, ranges
from tests.support.waiting import until

DEAD = "dlq.t"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with the topic `t` of one partition, and a group with a dead-letter topic."""
    async with running_node(tmp_path, topic_num_partitions=1) as running:
        await prepare(running)
        yield running


async def prepare(node: Node) -> None:
    """Create the topic and the group's state, and set its dead-letter topic."""
    async with raw_client(node.bootstrap) as client:
        await client.call(MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=True), 9)
    key = ShareKey(GROUP, node.serving.topics.require("t").topic_id, 0)
    await node.serving.share_persister.initialize({key: InitialState(0, 0)})
    await configure(node, "errors.deadletterqueue.topic.name", DEAD)


async def configure(node: Node, name: str, value: str) -> None:
    """Set a config of the group."""
    await node.serving.cluster_configs.alter("group", GROUP, set_configs={name: value}, unset=())


async def create_dead_topic(node: Node, partitions: int = 1) -> None:
    await node.serving.topic_commands.create(
        DEAD, partitions=partitions, configs={"errors.deadletterqueue.group.enable": "true"}
    )


async def dead_letters(node: Node) -> list[Record]:
    partition = node.serving.topics.partition(DEAD, 0)
    read = await partition.stream.read(0, 1 << 20, end_offset=partition.high_watermark)
    return [record for batch in read.batches for record in decode_records(batch.payload)]


def offsets(letters: list[Record]) -> list[int]:
    return [int(dict(letter.headers)["__dlq.errors.offset"] or b"") for letter in letters]


async def until_passed(node: Node, offset: int) -> None:
    """Wait until the group has passed an offset, durably."""
    [led] = node.serving.share_partitions
    await until(lambda: led.is_loaded and led.machine.start_offset == offset)
    state = await node.serving.share_persister.read(led.key, led.partition.leader_epoch)
    assert all(batch.delivery_state in {DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED} for batch in state.batches)


async def test_rejected_and_used_up_records_become_dead_letters(node: Node) -> None:
    await create_dead_topic(node)
    await configure(node, "share.delivery.count.limit", "2")
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a", b"b", b"c")])
        ann = Member(node, client, "ann")
        await ann.fetch()
        assert await ann.acknowledge(0, 2, REJECT, ACCEPT, RELEASE) == ErrorCode.NONE
        assert ranges(await ann.fetch()) == [(2, 2, 2)]
        assert await ann.acknowledge(2, 2, RELEASE) == ErrorCode.NONE
        await until_passed(node, 3)
    letters = await dead_letters(node)
    assert offsets(letters) == [0, 2]
    assert [(letter.key, letter.value) for letter in letters] == [(None, None)] * 2
    assert dict(letters[1].headers)["__dlq.errors.delivery.count"] == b"2"


async def test_records_are_copied_on_request(node: Node) -> None:
    await create_dead_topic(node)
    await configure(node, "errors.deadletterqueue.copy.record.enable", "true")
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a", b"b")])
        await client.produce("t", [batch_of(b"c")])
        ann = Member(node, client, "ann")
        await ann.fetch()
        assert await ann.acknowledge(0, 2, REJECT, ACCEPT, REJECT) == ErrorCode.NONE
        await until_passed(node, 3)
    assert [letter.value for letter in await dead_letters(node)] == [b"a", b"c"]


async def test_a_missing_topic_is_created_if_brokers_may(node: Node) -> None:
    configs = {DEAD_LETTER_AUTO_CREATE: "true"}
    await node.serving.cluster_configs.alter("broker", "", set_configs=configs, unset=())
    await reject_one(node)
    assert offsets(await dead_letters(node)) == [0]
    created = node.serving.topics.require(DEAD).info.configs
    assert created == {"errors.deadletterqueue.group.enable": "true", "message.timestamp.type": "CreateTime"}


@pytest.mark.parametrize("problem", ["missing", "not enabled", "other prefix"])
async def test_dead_letters_for_a_topic_that_may_not_be_used_are_given_up(node: Node, problem: str) -> None:
    name = "other" if problem == "other prefix" else DEAD
    if problem != "missing":
        configs = {"errors.deadletterqueue.group.enable": "true"} if problem == "other prefix" else {}
        await node.serving.topic_commands.create(name, partitions=1, configs=configs)
    await configure(node, "errors.deadletterqueue.topic.name", name)
    await reject_one(node)
    assert node.serving.share_partitions.dead_letters.given_up == 1
    if problem == "missing":
        assert node.serving.topics.get(name) is None
    else:
        assert node.serving.topics.partition(name, 0).high_watermark == 0


async def test_share_version_1_has_no_dead_letters(node: Node) -> None:
    await create_dead_topic(node)
    lower = FeatureUpdate(SHARE_VERSION, 1, UpgradeType.SAFE_DOWNGRADE)
    await node.serving.features.update([lower], validate_only=False)
    await reject_one(node)
    assert not await dead_letters(node)


async def reject_one(node: Node) -> None:
    """Reject a record, and wait until it is archived."""
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a")])
        ann = Member(node, client, "ann")
        await ann.fetch()
        assert await ann.acknowledge(0, 0, REJECT) == ErrorCode.NONE
        await until_passed(node, 1)


@pytest.mark.parametrize(
    "error", [KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), StorageError("away"), WalError("away")]
)
async def test_dead_letters_wait_while_they_cannot_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(writer, "PAUSES_S", (0, 0))
    await create_dead_topic(node)
    append = AsyncMock(side_effect=[error] * 20 + [None])
    monkeypatch.setattr(writer, "_append_here", append)
    await reject_one(node)
    assert append.await_count == 21
    assert not node.serving.share_partitions.dead_letters.given_up


@pytest.mark.parametrize("error", [KafkaError(ErrorCode.MESSAGE_TOO_LARGE), AppendTooLarge("no room")])
async def test_dead_letters_that_are_refused_for_good_are_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await create_dead_topic(node)
    monkeypatch.setattr(writer, "_append_here", AsyncMock(side_effect=error))
    await reject_one(node)
    assert node.serving.share_partitions.dead_letters.given_up == 1


async def test_another_topic_ends_the_wait(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PAUSES_S", (0, 0))
    await create_dead_topic(node)

    async def refuse(*_: object) -> None:
        await configure(node, "errors.deadletterqueue.topic.name", "")
        raise StorageError("away")

    monkeypatch.setattr(writer, "_append_here", refuse)
    await reject_one(node)
    assert node.serving.share_partitions.dead_letters.given_up == 1


async def test_what_another_leader_will_write_is_not_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await create_dead_topic(node)

    async def refuse(*_: object) -> None:
        for led in list(node.serving.share_partitions):
            led.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    with monkeypatch.context() as patched:
        patched.setattr(writer, "PAUSES_S", (0, 0))
        patched.setattr(writer, "_append_here", refuse)
        async with raw_client(node.bootstrap) as client:
            await client.produce("t", [batch_of(b"a")])
            ann = Member(node, client, "ann")
            await ann.fetch()
            assert await ann.acknowledge(0, 0, REJECT) == ErrorCode.NONE
            await until(lambda: not len(node.serving.share_partitions))
    async with raw_client(node.bootstrap) as client:
        await Member(node, client, "bob").begin()
        await until_passed(node, 1)
    assert offsets(await dead_letters(node)) == [0]
    assert not node.serving.share_partitions.dead_letters.given_up


async def test_the_next_leader_writes_the_dead_letters_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PAUSES_S", (60, 60))
    async with running_node(tmp_path, topic_num_partitions=1) as node, raw_client(node.bootstrap) as client:
        await prepare(node)
        await create_dead_topic(node)
        refuse = AsyncMock(side_effect=KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        with monkeypatch.context() as patched:
            patched.setattr(writer, "_append_here", refuse)
            await client.produce("t", [batch_of(b"a", b"b")])
            ann = Member(node, client, "ann")
            await ann.fetch()
            assert await ann.acknowledge(0, 1, REJECT, ACCEPT) == ErrorCode.NONE
            await until(lambda: refuse.await_count == 1)
            [led] = node.serving.share_partitions
            state = await node.serving.share_persister.read(led.key, led.partition.leader_epoch)
            assert state.batches[0] == (0, 0, DeliveryState.ARCHIVING, 1)
    async with running_node(tmp_path, topic_num_partitions=1) as node, raw_client(node.bootstrap) as client:
        await Member(node, client, "bob").begin()
        await until_passed(node, 2)
        assert offsets(await dead_letters(node)) == [0]


async def test_metrics_count_records_and_dead_letters(node: Node) -> None:
    await create_dead_topic(node)
    labels = {"group": GROUP, "topic": "t", "partition": "0"}
    async with raw_client(node.bootstrap) as client:
        await client.produce("t", [batch_of(b"a", b"b", b"c", b"d")])
        ann = Member(node, client, "ann")
        await ann.fetch()
        await client.produce("t", [batch_of(b"e")])
        assert await ann.acknowledge(1, 3, REJECT, ACCEPT, RELEASE) == ErrorCode.NONE
        [led] = node.serving.share_partitions
        await until(lambda: led.machine.delivery_complete_count == 2)
        metrics = await metrics_of(node)
        for name, value in {
            "in_flight": 4,
            "acquired": 1,
            "archiving": 0,
            "lag": 3,
            "deliveries_total": 4,
        }.items():
            assert metrics.value(f"anabranch_share_{name}", **labels) == value, name
        assert metrics.value("anabranch_share_dead_letters_total", group=GROUP) == 1
        await configure(node, "errors.deadletterqueue.topic.name", "other")
        assert await ann.acknowledge(0, 0, REJECT) == ErrorCode.NONE
        await until(lambda: led.machine.start_offset == 3)
        assert (await metrics_of(node)).value("anabranch_share_dead_letters_given_up_total") == 1


@pytest.mark.slow
async def test_another_node_leads_the_dead_letter_topic(tmp_path: Path) -> None:
    async with running_nodes(tmp_path, 2, topic_num_partitions=1) as (first, second):
        await prepare(first)
        info = first.serving.topics.require("t").info.partitions[0]
        leader, other = (first, second) if info.leader == first.serving.node_id else (second, first)
        await until(lambda: leader.serving.group_configs.share_dead_letter_topic(GROUP) == DEAD)
        configs = {"errors.deadletterqueue.group.enable": "true"}
        spec = TopicSpec(DEAD, 1, configs, leaders=[other.serving.node_id])
        await leader.serving.topic_commands.create_all([spec])
        await until(lambda: bool((topic := other.serving.topics.get(DEAD)) and topic.partitions[0]))
        await reject_one(leader)
        assert offsets(await dead_letters(other)) == [0]
