"""The map of topics follows the catalog, also when the catalog becomes unavailable in the middle of a change."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import or_
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.coordination.internal_topics import OFFSETS_TOPIC
from anabranch.broker.kafka.coordination.log import KeyValue
from anabranch.broker.kafka.coordination.topic_partition import TopicPartition
from anabranch.broker.kafka.groups.offsets import CommittedOffset
from anabranch.broker.kafka.partitions.producers import Producer
from anabranch.broker.kafka.topics.creation import TopicSpec
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.s3stream.append.stream import Stream
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import TopicInfo
from anabranch.s3stream.errors import CatalogError, CatalogUnavailable, NodeFenced, OutcomeUnknown
from anabranch.s3stream.model import NodeIdentity
from anabranch.wal.interface import Durable
from tests.support.node import running_node
from tests.support.raw_client import batch_of, raw_client
from tests.support.waiting import until


class CrashError(Exception):
    """The process ends here."""


@contextmanager
def answer_lost(catalog: Catalog, command: str) -> Iterator[None]:
    """Let a command of the catalog take effect, and lose its answer."""
    really = getattr(catalog, command)

    async def lost(*arguments: Any, **named: Any) -> None:
        await really(*arguments, **named)
        raise OutcomeUnknown("a commit was not answered")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, command, lost)
        yield


async def commit_offset(node: Node, topic: str) -> None:
    """Commit offset 5 of a topic's partition 0 for group `g`; returns when it is durable."""
    await node.serving.internal_topics.ensure(OFFSETS_TOPIC)
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    commits = [(TopicPartition(topic, 0), CommittedOffset(5, -1, "", 1_000))]
    node.serving.groups.shard("g").offsets.commit("g", "", None, -1, commits, done.set_result)
    assert await done is ErrorCode.NONE


def is_loaded(node: Node) -> bool:
    """Return whether the shard of the group `g` is loaded."""
    try:
        node.serving.groups.shard("g")
    except KafkaError:
        return False
    return True


def committed_offset(node: Node, topic: str) -> int | None:
    """Return the offset that `commit_offset` has committed, None if there is none."""
    offsets = node.serving.groups.shard("g").offsets.of("g")
    found = None if offsets is None else offsets.get(topic, 0)
    return None if found is None else found.offset


async def test_a_topic_whose_creation_broke_off_can_be_used(tmp_path: Path) -> None:
    async def away(stream_ids: Sequence[int]) -> list[Stream]:
        raise CatalogUnavailable(f"not now: {stream_ids}")

    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        topics = node.serving.topics
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.storage, "open_streams", away)
            with pytest.raises(CatalogUnavailable):
                await node.serving.topic_commands.create("t", partitions=2, configs={})
        assert topics.get("t") is None
        with pytest.raises(KafkaError) as caught:
            await node.serving.topic_commands.create("t", partitions=1, configs={})
        assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        topic = await node.serving.topic_commands.ensure("t", partitions=1, configs={})
        assert len(topic.partitions) == 2
        response = await client.produce("t", [batch_of(b"a")])
        assert response.responses[0].partition_responses[0].error_code == 0


@pytest.mark.parametrize("altered", [False, True])
async def test_a_change_of_configs_whose_answer_is_lost_is_found_out(tmp_path: Path, altered: bool) -> None:
    async with running_node(tmp_path) as node:
        topics, catalog = node.serving.topics, node.serving.catalog
        topic = await node.serving.topic_commands.create("t", partitions=1, configs={"retention.ms": "1000"})
        really = catalog.alter_topic

        async def answer_lost(topic_id: bytes, change: Callable[[dict[str, str]], Mapping[str, str]]) -> TopicInfo:
            if altered:
                await really(topic_id, change)
            raise CatalogUnavailable("the connection broke off")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "alter_topic", answer_lost)
            with pytest.raises(CatalogUnavailable):
                await node.serving.topic_commands.alter("t", lambda own: own | {"retention.ms": "2000"})
        assert topic.config.retention_ms == 1000
        await node.serving.membership.complete_changes()
        assert topic.config.retention_ms == (2000 if altered else 1000)
        (partition,) = topics.led_partitions()
        assert partition.config is topic.config


async def test_configs_that_a_newer_node_has_set_do_not_end_this_one(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        catalog = node.serving.catalog
        strange = await node.serving.topic_commands.create("strange", partitions=1, configs={"retention.ms": "1000"})
        plain = await node.serving.topic_commands.create("plain", partitions=1, configs={})
        with capture_logs() as said:
            for topic, name, value in ((strange, "compression.type", "newer"), (plain, "retention.ms", "2000")):
                await catalog.alter_topic(topic.topic_id, partial(or_, {name: value}))
            await node.serving.membership.catch_up()
        assert [line["topic"] for line in said if line["log_level"] == "error"] == ["strange"]
        assert (strange.config.retention_ms, plain.config.retention_ms) == (1_000, 2_000)
        grown = await node.serving.topic_commands.grow("strange", 2)
        assert [partition.config.retention_ms for partition in grown.partitions if partition is not None] == [1_000] * 2
        assert grown.info.configs == {"retention.ms": "1000"}


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_deletion_whose_answer_is_lost_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, deleted: bool
) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        topics, catalog = node.serving.topics, node.serving.catalog
        removed: list[str] = []
        monkeypatch.setattr(node.serving.groups, "forget_topics", removed.extend)
        topic = await node.serving.topic_commands.create("t", partitions=2, configs={})
        await node.serving.topic_commands.create("u", partitions=1, configs={})
        await client.produce("t", [batch_of(b"a")])
        really = catalog.delete_topics

        async def answer_lost(topic_ids: Sequence[bytes], *, now_ms: int, delete_after_ms: int) -> None:
            if deleted:
                await really(topic_ids, now_ms=now_ms, delete_after_ms=delete_after_ms)
            raise CatalogUnavailable("the connection broke off")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "delete_topics", answer_lost)
            with pytest.raises(CatalogUnavailable):
                await node.serving.topic_commands.delete("t", "u")
        assert topics.get("t") is None, "its state is unknown: it is not served"
        assert topics.get("u") is None
        for _ in range(2):
            await node.serving.membership.complete_changes()
            assert removed == (["t", "u"] if deleted else []), "they are told once"
        if deleted:
            assert topics.get("t") is None
            assert list(await node.serving.topic_commands.delete("t")) == []
            again = await node.serving.topic_commands.create("t", partitions=1, configs={})
            assert again.topic_id != topic.topic_id
        else:
            assert topics.get("t") is topic
            response = await client.produce("t", [batch_of(b"b")])
            assert response.responses[0].partition_responses[0].base_offset == 1
            assert list(await node.serving.topic_commands.delete("t", "v", "u")) == ["t", "u"]
            assert list(await catalog.list_topics()) == []
        await node.serving.storage.flush()


async def test_offsets_of_a_deleted_topic_are_gone_also_when_the_next_change_finds_the_deletion_out(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await commit_offset(node, "t")
        with answer_lost(node.serving.catalog, "delete_topics"), pytest.raises(OutcomeUnknown):
            await node.serving.topic_commands.delete("t")
        assert list(await node.serving.topic_commands.delete("t")) == []
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        response = await client.produce("t", [batch_of(b"a")])
        assert response.responses[0].partition_responses[0].error_code == 0, "what was written before is durable"
        assert committed_offset(node, "t") is None


async def test_a_coordinator_starts_over_when_the_next_change_finds_out_that_its_topic_was_deleted(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await commit_offset(node, "t")
        with answer_lost(node.serving.catalog, "delete_topics"), pytest.raises(OutcomeUnknown):
            await node.serving.topic_commands.delete(OFFSETS_TOPIC)
        await node.serving.topic_commands.create("u", partitions=1, configs={})
        assert not node.serving.groups.is_open
        await commit_offset(node, "t")
        assert committed_offset(node, "t") == 5


@pytest.mark.parametrize("timeout_ms", [60_000, 1])
async def test_offsets_of_a_topic_are_gone_when_its_deletion_is_answered(tmp_path: Path, timeout_ms: int) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await commit_offset(node, "t")
        held: list[Durable] = []
        log = node.serving.groups.shard("g").writer.log
        really = log.append

        def append(records: Sequence[KeyValue], producer: Producer | None = None) -> Durable:
            durable = Durable()
            really(records, producer).add_done_callback(lambda _: held.append(durable))
            return durable

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "append", append)
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=timeout_ms)
            answer = asyncio.ensure_future(client.call(request))
            await until(lambda: bool(held) and node.serving.topics.get("t") is None)
            if timeout_ms > 1:
                assert not answer.done()
                held.pop().complete(None)
                response = await answer
                assert committed_offset(node, "t") is None
            else:
                response = await answer
                assert committed_offset(node, "t") == 5, "the topic is gone, and the rest follows"
                held.pop().complete(None)
        assert [each.error_code for each in response.responses] == [ErrorCode.NONE]


async def test_offsets_of_a_deleted_topic_do_not_come_back_after_a_crash(tmp_path: Path) -> None:
    async def delete_and_crash() -> None:
        async with running_node(tmp_path) as node:
            for name in ("deleted", "detached", "kept"):
                await node.serving.topic_commands.create(name, partitions=1, configs={})
                await commit_offset(node, name)
            await node.moves.detach("detached")
            await node.serving.topic_commands.delete("deleted")
            raise CrashError

    with pytest.raises(CrashError):
        await delete_and_crash()
    async with running_node(tmp_path) as node:
        await node.serving.topic_commands.create("deleted", partitions=1, configs={})
        await until(lambda: is_loaded(node))
        await until(lambda: committed_offset(node, "deleted") is None)
        assert (committed_offset(node, "detached"), committed_offset(node, "kept")) == (5, 5)


async def test_offsets_of_a_detached_topic_stay_when_its_detachment_is_found_out(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await commit_offset(node, "t")
        with answer_lost(node.serving.catalog, "detach_topic"), pytest.raises(OutcomeUnknown):
            await node.moves.detach("t")
        await node.moves.attach("t")
        await commit_offset(node, "another")  # what was written to the log before is durable, too
        assert committed_offset(node, "t") == 5


async def test_offsets_of_a_topic_that_another_node_attaches_during_the_start_stay(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        topic = await node.serving.topic_commands.create("t", partitions=1, configs={})
        await commit_offset(node, "t")
        await node.moves.detach("t")
    read = Catalog.list_topics_and_detached

    async def then_attach(catalog: Catalog, *, settled: bool = False) -> Any:
        found = await read(catalog, settled=settled)
        if found[1]:
            other = await catalog.register_node(2, "elsewhere", 1, now_ms=0, lease_ms=1)
            await catalog.attach_topic(topic.topic_id, "t", node=NodeIdentity(2, other.epoch))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "list_topics_and_detached", then_attach)
        async with running_node(tmp_path) as node:
            assert [each.name for each in await node.serving.catalog.list_topics() if not each.internal] == ["t"]
            await until(lambda: is_loaded(node))
            await commit_offset(node, "another")
            assert committed_offset(node, "t") == 5


async def test_a_deletion_does_not_wait_for_groups_that_cannot_be_loaded(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await commit_offset(node, "t")
        shard = node.serving.groups.shard("g")
        shard.loaded, shard.unreadable = False, True
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=3_600_000)
        response = await client.call(request)
        assert [each.error_code for each in response.responses] == [ErrorCode.NONE]


async def test_a_deletion_that_meets_a_stop_is_answered(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        await commit_offset(node, "t")
        really = node.serving.catalog.delete_topics

        async def then_stop(topic_ids: Sequence[bytes], *, now_ms: int, delete_after_ms: int) -> None:
            await really(topic_ids, now_ms=now_ms, delete_after_ms=delete_after_ms)
            node.serving.groups.close()  # as the stop does, before requests under way are answered

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.catalog, "delete_topics", then_stop)
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=3_600_000)
            response = await client.call(request)
        assert [each.error_code for each in response.responses] == [ErrorCode.NONE]


async def test_a_process_that_was_replaced_changes_nothing_for_its_successor(tmp_path: Path) -> None:
    """It was only paused: requests that it had received would change topics that the successor serves."""
    async with running_node(tmp_path) as node:
        topic = await node.serving.topic_commands.create("t", partitions=1, configs={})
        await node.serving.catalog.register_node(node.serving.node_id, "elsewhere", 1, now_ms=0, lease_ms=1)
        changes: list[Callable[[], Awaitable[object]]] = [
            lambda: node.serving.topic_commands.delete("t"),
            lambda: node.serving.topic_commands.create("u", partitions=1, configs={}),
            lambda: node.serving.topic_commands.grow("t", 2),
            lambda: node.serving.topic_commands.alter("t", lambda own: own | {"retention.ms": "1"}),
            lambda: node.serving.cluster_configs.alter("group", "g", set_configs={"a": "1"}, unset=()),
        ]
        for change in changes:
            with pytest.raises(NodeFenced):
                await change()
        (left,) = await node.serving.catalog.list_topics()
        assert (left.topic_id, left.configs, len(left.partitions)) == (topic.topic_id, {}, 1)
        assert await node.serving.catalog.list_configs() == {}


async def test_the_next_change_finds_out_what_became_of_a_deletion(tmp_path: Path) -> None:
    async def away(names: Sequence[str], **_: int) -> None:
        raise CatalogUnavailable(f"not now: {names}")

    async with running_node(tmp_path) as node:
        topics = node.serving.topics
        await node.serving.topic_commands.create("t", partitions=1, configs={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.catalog, "delete_topics", away)
            with pytest.raises(CatalogUnavailable):
                await node.serving.topic_commands.delete("t")
        await node.serving.topic_commands.delete("t")
        assert topics.get("t") is None
        assert list(await node.serving.catalog.list_topics()) == []


async def test_topics_of_a_request_are_created_together_or_not_at_all(tmp_path: Path) -> None:
    async def away(stream_ids: Sequence[int]) -> list[Stream]:
        raise CatalogUnavailable(f"not now: {len(stream_ids)} streams")

    wanted = [TopicSpec("a", 2, {}), TopicSpec("b", 1, {"retention.ms": "5"})]
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        topics, catalog = node.serving.topics, node.serving.catalog
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.storage, "open_streams", away)
            with pytest.raises(CatalogUnavailable, match="3 streams"):
                await node.serving.topic_commands.create_all(wanted)
        assert len(topics) == 0
        assert [topic.name for topic in await catalog.list_topics()] == ["a", "b"]
        # Asked for again, with one more: those the catalog has are served from now on.
        answers = await node.serving.topic_commands.create_all([*wanted, TopicSpec("c", 1, {})])
        assert [answer.code if isinstance(answer, KafkaError) else answer.name for answer in answers] == [
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            "c",
        ]
        assert [(topic.name, len(topic.streams)) for topic in topics] == [("a", 2), ("b", 1), ("c", 1)]
        for name in "abc":
            response = await client.produce(name, [batch_of(b"a")])
            assert response.responses[0].partition_responses[0].error_code == 0


async def test_a_start_serves_what_a_crash_left_between_the_catalog_and_the_map(tmp_path: Path) -> None:
    async def crash(_: Sequence[int]) -> list[Stream]:
        raise CrashError

    async def create() -> None:
        async with running_node(tmp_path) as node:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(node.serving.storage, "open_streams", crash)
                await node.serving.topic_commands.create_all([TopicSpec("a", 2, {}), TopicSpec("b", 1, {})])

    with pytest.raises(CrashError):
        await create()
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        assert [(topic.name, len(topic.streams)) for topic in node.serving.topics] == [("a", 2), ("b", 1)]
        response = await client.produce("b", [batch_of(b"a")])
        assert response.responses[0].partition_responses[0].error_code == 0


async def test_topics_are_served_on_when_the_catalog_refuses_to_delete_them(tmp_path: Path) -> None:
    async def refuse(names: Sequence[str], **_: int) -> None:
        raise CatalogError(f"no: {names}")

    async with running_node(tmp_path) as node:
        topics = node.serving.topics
        before = await node.serving.topic_commands.create_all([TopicSpec("a", 2, {}), TopicSpec("b", 1, {})])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.catalog, "delete_topics", refuse)
            with pytest.raises(CatalogError):
                await node.serving.topic_commands.delete("a", "b")
        assert list(topics) == list(before)


@pytest.mark.parametrize("grown", [False, True])
async def test_added_partitions_whose_answer_is_lost_are_found_out(tmp_path: Path, grown: bool) -> None:
    async with running_node(tmp_path) as node, raw_client(node.bootstrap) as client:
        catalog = node.serving.catalog
        topic = await node.serving.topic_commands.create("t", partitions=1, configs={})
        really = catalog.add_partitions

        async def answer_lost(topic_id: bytes, total: int, **placed: Any) -> TopicInfo:
            if grown:
                await really(topic_id, total, **placed)
            raise OutcomeUnknown("a commit was not answered")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "add_partitions", answer_lost)
            with pytest.raises(OutcomeUnknown):
                await node.serving.topic_commands.grow("t", 4)
        await node.serving.membership.complete_changes()
        assert [partition is not None for partition in topic.partitions] == [True] * (4 if grown else 1)
        if grown:
            response = await client.produce("t", [batch_of(b"a")], partition=3)
            assert response.responses[0].partition_responses[0].error_code == 0
            with pytest.raises(KafkaError, match="currently has 4"):
                await node.serving.topic_commands.grow("t", 3)
        else:
            await node.serving.topic_commands.grow("t", 3)
            assert len(topic.streams) == 3


async def test_partitions_that_could_not_be_opened_are_opened_later(tmp_path: Path) -> None:
    async def away(stream_ids: Sequence[int]) -> list[Stream]:
        raise CatalogUnavailable(f"not now: {stream_ids}")

    async with running_node(tmp_path) as node:
        topic = await node.serving.topic_commands.create("t", partitions=1, configs={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.storage, "open_streams", away)
            with pytest.raises(CatalogUnavailable):
                await node.serving.topic_commands.grow("t", 2)
        assert len(topic.partitions) == 1
        await node.serving.membership.complete_changes()
        assert len(topic.streams) == 2
