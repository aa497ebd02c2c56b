"""Detaching, attaching and cloning topics in a node that serves, and crashes at each step."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from anabranch.broker.cluster.node import Node
from anabranch.broker.kafka.topics.topic import Topic
from anabranch.broker.operator.cli.client import id_text
from anabranch.broker.operator.cli.storage import storage
from anabranch.broker.operator.cli.topic import topic as topic_command
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.ids import uuid_text
from anabranch.protocol.messages.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from anabranch.s3stream.errors import CatalogUnavailable, EndMoved, OutcomeUnknown
from anabranch.s3stream.maintain.verify import verify
from anabranch.s3stream.model import NodeIdentity, ObjectState, StreamOwner
from tests.support.catalog_node import WAL_ID
from tests.support.node import running_node
from tests.support.raw_client import RawClient, batch_of, raw_client

PARTITIONS = 2


@asynccontextmanager
async def serving(tmp_path: Path, **settings: object) -> AsyncIterator[tuple[Node, RawClient]]:
    async with running_node(tmp_path, **settings) as node, raw_client(node.bootstrap) as client:
        yield node, client


async def fill(client: RawClient, name: str, values: range) -> None:
    """Each value to each partition."""
    for value in values:
        for partition in range(PARTITIONS):
            response = await client.produce(name, [batch_of(b"%d" % value)], partition=partition)
            assert response.responses[0].partition_responses[0].error_code == 0


async def made(node: Node, client: RawClient, count: int = 4, name: str = "t") -> Topic:
    """A topic with some records in objects, and some only in the log."""
    topic = await node.serving.topic_commands.create(name, partitions=PARTITIONS, configs={"retention.ms": "-1"})
    await fill(client, name, range(count // 2))
    await node.serving.storage.flush()
    await fill(client, name, range(count // 2, count))
    return topic


async def contents(node: Node, name: str) -> list[list[bytes]]:
    """The batches of each partition, from its start on."""
    topic = node.serving.topics.get(name)
    assert topic is not None, f"no topic {name}"
    found = []
    for stream in topic.streams:
        offset, batches = stream.start_offset, []
        while offset < stream.confirmed_offset:
            result = await stream.read(offset, 1 << 20)
            batches += [bytes(batch.payload[16:]) for batch in result.batches]  # without leader epoch and checksum
            offset = result.next_offset
        found.append(batches)
    return found


async def sound(node: Node) -> None:
    report = await verify(
        catalog=node.serving.catalog, stores=node.stores, cluster=node.serving.settings.node.cluster, deep=True
    )
    assert report.findings == []


async def refused(change: Awaitable[object]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        await change
    return caught.value


# detach and attach


async def test_a_topic_is_detached_with_all_it_has_and_comes_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (node, client):
        topic = await made(node, client)
        before = await contents(node, "t")
        await node.moves.detach("t")
        assert node.serving.topics.get("t") is None
        response = await client.produce("t", [batch_of(b"late")], version=9)
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (detached,) = await node.moves.detached()
        assert (detached.name, detached.topic_id) == ("t", topic.topic_id)
        assert node.wal.used_bytes == 0 or node.serving.storage.uncommitted_bytes == 0
        await node.moves.attach("t")
        assert await contents(node, "t") == before
        again = node.serving.topics.get("t")
        assert again is not None
        assert (again.topic_id, again.info.configs) == (topic.topic_id, {"retention.ms": "-1"})
        await fill(client, "t", range(4, 6))
        assert [len(batches) for batches in await contents(node, "t")] == [6] * PARTITIONS
        await sound(node)


async def test_offsets_in_a_detached_topic_are_kept_and_not_told_of(tmp_path: Path) -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=3)]
    commit = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])

    async with serving(tmp_path) as (node, client):

        async def committed() -> list[str]:
            answer = await client.call(
                OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 9
            )
            assert answer.groups[0].error_code == ErrorCode.NONE
            return [topic.name for topic in answer.groups[0].topics]

        await made(node, client)
        await client.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        async with asyncio.timeout(10):
            while error := (await client.call(commit, 9)).topics[0].partitions[0].error_code:
                assert error in {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
        assert await committed() == ["t"]
        await node.moves.detach("t")
        assert await committed() == [], "Kafka's tools ask for the ends of all topics that are named here"
        await node.moves.attach("t")
        assert await committed() == ["t"]


async def test_a_detached_topic_outlives_restarts_and_collections(tmp_path: Path) -> None:
    async with serving(tmp_path, storage_delete_delay_ms=0) as (node, client):
        await made(node, client)
        before = await contents(node, "t")
        await node.moves.detach("t")
    async with serving(tmp_path, storage_delete_delay_ms=0) as (node, client):
        assert node.serving.topics.get("t") is None
        await made(node, client)  # the name is free
        await node.upkeep.compaction.run_once()
        error = await refused(node.moves.attach("t"))
        assert error.code == ErrorCode.TOPIC_ALREADY_EXISTS
        await sound(node)
        await node.moves.attach("t", "old")
        assert await contents(node, "old") == before
    async with serving(tmp_path) as (node, _):
        assert await contents(node, "old") == before
        await node.serving.topic_commands.delete("old")
        await sound(node)


async def test_of_several_detached_topics_of_one_name_one_is_chosen_by_id(tmp_path: Path) -> None:
    async with serving(tmp_path) as (node, client):
        first = await made(node, client, 2)
        await node.moves.detach("t")
        await made(node, client, 6)
        await node.moves.detach("t")
        error = await refused(node.moves.attach("t"))
        assert uuid_text(first.topic_id) in str(error.message)
        await node.moves.attach(uuid_text(first.topic_id))
        assert [len(batches) for batches in await contents(node, "t")] == [2] * PARTITIONS
        await node.moves.detach("t")
        await node.moves.attach(first.topic_id.hex())  # as the admin port has it
        await node.moves.attach("t", "u")
        assert [len(batches) for batches in await contents(node, "u")] == [6] * PARTITIONS


async def test_what_cannot_be_moved_is_refused_in_words(tmp_path: Path) -> None:
    async with serving(tmp_path) as (node, client):
        topic = await made(node, client)
        moves = node.moves
        await node.serving.topic_commands.create("__internal", partitions=1, configs={}, internal=True)
        for change, message in (
            (moves.detach("x"), "topic x does not exist"),
            (moves.attach("x"), "No topic 'x' is detached."),
            (moves.clone("x", "y"), "topic x does not exist"),
            (moves.clone("t", "t"), "Topic 't' already exists."),
            (moves.clone("t", "a/b"), "Topic name is invalid"),
            (moves.detach("__internal"), "Topic __internal is internal."),
        ):
            assert message in str((await refused(change)).message)
        partition, topic.partitions[1] = topic.partitions[1], None
        assert "t-1 is not open here: node 1 leads it" in str((await refused(moves.detach("t"))).message)
        topic.partitions[1] = partition
        await node.moves.detach("t")


@pytest.mark.parametrize("what", ["detach", "clone"])
async def test_an_open_transaction_keeps_a_topic_where_it_is(tmp_path: Path, what: str) -> None:
    async with serving(tmp_path) as (node, client):
        topic = await made(node, client)
        partition = topic.partitions[1]
        assert partition is not None
        partition.transactions.write(7, partition.stream.next_offset, 0)
        await fill(client, "t", range(4, 5))
        change = node.moves.detach("t") if what == "detach" else node.moves.clone("t", "u")
        error = await refused(change)
        assert error.code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert "Partition t-1 has open transactions (producer ids 7)" in str(error.message)
        await fill(client, "t", range(5, 6))


# clone


async def test_a_clone_has_the_records_and_goes_its_own_way(tmp_path: Path) -> None:
    async with serving(tmp_path) as (node, client):
        await made(node, client)
        before = await contents(node, "t")
        puts = sum(store.calls.put for store in node.stores.values()) - node.upkeep.manifests.stats.writes
        written = sum(store.calls.bytes_written for store in node.stores.values())
        uncommitted = node.serving.storage.uncommitted_bytes
        await node.moves.clone("t", "u")
        puts = sum(store.calls.put for store in node.stores.values()) - node.upkeep.manifests.stats.writes - puts
        assert puts <= 3, "what was only in the log, its mark, and the mark of the new streams' owner"
        assert sum(store.calls.bytes_written for store in node.stores.values()) - written <= uncommitted + 4096
        assert await contents(node, "u") == before
        await fill(client, "t", range(4, 5))
        await fill(client, "u", range(7, 10))
        assert [len(batches) for batches in await contents(node, "t")] == [5] * PARTITIONS
        assert [len(batches) for batches in await contents(node, "u")] == [7] * PARTITIONS
        await node.serving.storage.flush()
        await sound(node)
    async with serving(tmp_path) as (node, _):
        assert [batches[:4] for batches in await contents(node, "u")] == before


async def test_the_original_may_go_and_the_clone_stays(tmp_path: Path) -> None:
    async with serving(tmp_path, storage_delete_delay_ms=0) as (node, client):
        await made(node, client)
        before = await contents(node, "t")
        await node.moves.clone("t", "u")
        await node.serving.topic_commands.delete("t")
        node.serving.storage.invalidate([stream.stream_id for stream in topic_of(node, "u").streams])
        assert await contents(node, "u") == before
        await sound(node)
        await node.upkeep.compaction.run_once()
        assert await contents(node, "u") == before
        await sound(node)
        await node.serving.topic_commands.delete("u")
        objects = await node.serving.catalog.list_objects(after=0, limit=1000)
        internal = {info.object_id for info in objects if info.state is ObjectState.COMMITTED}
        located = await node.serving.catalog.object_ranges(sorted(internal))
        assert all(located.values()), "every object that is kept has a reference"


async def test_both_are_read_after_a_compaction_and_trimmed_each_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path, storage_delete_delay_ms=0) as (node, client):
        await made(node, client, 8)
        await node.moves.clone("t", "u")
        before = await contents(node, "t")
        for stream in topic_of(node, "t").streams:
            await stream.trim(3)
        assert await contents(node, "t") == [batches[3:] for batches in before]
        assert await contents(node, "u") == before
        summary = await node.upkeep.compaction.run_once()
        assert summary.errors == []
        assert await contents(node, "t") == [batches[3:] for batches in before]
        assert await contents(node, "u") == before
        await sound(node)
        await node.moves.detach("u")
        await node.serving.topic_commands.delete("t")
        await node.moves.attach("u", "v")
        assert await contents(node, "v") == before
        await sound(node)


def topic_of(node: Node, name: str) -> Topic:
    topic = node.serving.topics.get(name)
    assert topic is not None
    return topic


async def test_a_clone_waits_for_an_upload_that_comes_between(tmp_path: Path) -> None:
    async with serving(tmp_path) as (node, client):
        await made(node, client)
        really = node.serving.catalog.clone_topic
        times = 0

        async def busy(*args: Any, **kwargs: Any) -> Any:
            nonlocal times
            times += 1
            if times < 3:
                raise EndMoved("moved")
            return await really(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.catalog, "clone_topic", busy)
            await node.moves.clone("t", "u")
            times = -100
            assert "was uploaded 10 times during the clone" in str((await refused(node.moves.clone("t", "v"))).message)
        assert await contents(node, "u") == await contents(node, "t")


# lost answers and crashes


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("command", ["detach_topic", "attach_topic", "clone_topic"])
async def test_a_lost_answer_is_settled(tmp_path: Path, command: str, applied: bool) -> None:
    async with serving(tmp_path) as (node, client):
        await made(node, client)
        before = await contents(node, "t")
        moves, topics = node.moves, node.serving.topics
        if command == "attach_topic":
            await moves.detach("t")
        change: dict[str, Callable[[], Awaitable[object]]] = {
            "detach_topic": lambda: moves.detach("t"),
            "attach_topic": lambda: moves.attach("t"),
            "clone_topic": lambda: moves.clone("t", "u"),
        }
        really = getattr(node.serving.catalog, command)

        async def lost(*args: Any, **kwargs: Any) -> None:
            if applied:
                await really(*args, **kwargs)
            raise CatalogUnavailable("the connection broke off")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(node.serving.catalog, command, lost)
            with pytest.raises(CatalogUnavailable):
                await change[command]()
        # A repeated command gives the same result, whatever the outcome of the first.
        expected = {
            "detach_topic": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "clone_topic": ErrorCode.TOPIC_ALREADY_EXISTS,
        }
        if applied and command in expected:
            assert (await refused(change[command]())).code == expected[command]
        else:
            await change[command]()
        if command == "detach_topic":
            assert topics.get("t") is None
            await moves.attach("t")
        assert await contents(node, "t") == before
        if command == "clone_topic":
            assert await contents(node, "u") == before
        await fill(client, "t", range(4, 5))
        await sound(node)


class CrashError(Exception):
    """The node dies here."""


@pytest.mark.parametrize("step", ["first flush", "second flush", "before the catalog", "after the catalog"])
async def test_a_crash_at_any_step_of_a_detach_loses_nothing(tmp_path: Path, step: str) -> None:
    before: list[list[bytes]] = []

    async def first_life() -> None:
        async with serving(tmp_path) as (node, client):
            await made(node, client)
            before.extend(await contents(node, "t"))
            flush, detach = node.serving.storage.flush, node.serving.catalog.detach_topic
            flushes = 0

            async def flushing() -> None:
                nonlocal flushes
                flushes += 1
                if step == ("first flush" if flushes == 1 else "second flush"):
                    raise CrashError
                await flush()

            async def detaching(*args: Any, **kwargs: Any) -> None:
                if step == "before the catalog":
                    raise CrashError
                await detach(*args, **kwargs)
                raise CrashError

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(node.serving.storage, "flush", flushing)
                patch.setattr(node.serving.catalog, "detach_topic", detaching)
                await node.moves.detach("t")

    with pytest.raises(CrashError):
        await first_life()
    async with serving(tmp_path) as (node, client):
        gone = step == "after the catalog"
        assert (node.serving.topics.get("t") is None) == gone
        if gone:
            await node.moves.attach("t")
        assert await contents(node, "t") == before
        await fill(client, "t", range(4, 5))
        await sound(node)


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("command", ["attach_topic", "clone_topic"])
async def test_a_crash_around_attach_and_clone_leaves_all_or_nothing(
    tmp_path: Path, command: str, applied: bool
) -> None:
    before: list[list[bytes]] = []

    async def first_life() -> None:
        async with serving(tmp_path) as (node, client):
            await made(node, client)
            before.extend(await contents(node, "t"))
            if command == "attach_topic":
                await node.moves.detach("t")
            really = getattr(node.serving.catalog, command)

            async def crash(*args: Any, **kwargs: Any) -> None:
                if applied:
                    await really(*args, **kwargs)
                raise CrashError

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(node.serving.catalog, command, crash)
                await (node.moves.attach("t") if command == "attach_topic" else node.moves.clone("t", "u"))

    with pytest.raises(CrashError):
        await first_life()
    async with serving(tmp_path) as (node, _):
        if command == "attach_topic" and not applied:
            assert node.serving.topics.get("t") is None
            await node.moves.attach("t")
        if command == "clone_topic":
            assert (node.serving.topics.get("u") is None) != applied
            if applied:
                assert await contents(node, "u") == before
        assert await contents(node, "t") == before
        await sound(node)


# the commands


async def test_the_commands_go_through_the_node(tmp_path: Path) -> None:
    # The node logs beside the commands, whose standard output is that of this process.
    with capture_logs():
        await use_commands(tmp_path)


async def use_commands(tmp_path: Path) -> None:
    async with serving(tmp_path) as (node, client):
        await made(node, client)
        address = node.ports.admin_address

        async def run(*arguments: str) -> Result:
            return await asyncio.to_thread(
                CliRunner().invoke, topic_command, [*arguments, "--admin", address], env={"COLUMNS": "200"}
            )

        result = await run("clone", "t", "u")
        assert (result.exit_code, result.output.split(",")[0]) == (0, "cloned topic t to u with 2 partitions")
        result = await run("detach", "t")
        assert result.output.startswith("detached topic t with 2 partitions, id ")
        topic_id = result.output.split()[-1]
        assert topic_id == id_text(next(iter(await node.serving.catalog.list_detached())).topic_id)
        shown = (await run("detached")).output
        assert topic_id in shown
        again = await run("detach", "t")
        assert (again.exit_code, again.output) == (
            1,
            "Error: topic t does not exist\n",
        )
        kept = await asyncio.to_thread(
            CliRunner().invoke, storage, ["ls", "--data-dir", str(tmp_path / "data")], env={"COLUMNS": "200"}
        )
        assert kept.exit_code == 0, kept.output
        result = await run("attach", topic_id, "--as", "old")
        assert result.output == f"attached topic old with 2 partitions, id {topic_id}\n"
        assert await contents(node, "old") == await contents(node, "u")
        await sound(node)
    result = CliRunner().invoke(topic_command, ["detach", "t", "--admin", address])
    assert result.exit_code == 1
    assert f"cannot reach the admin port {address}" in result.output


async def test_a_topic_that_another_node_has_attached_since_is_not_served_by_the_one_that_detached_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detachment took effect and its answer was lost; records acknowledged after it would be lost."""
    async with serving(tmp_path) as (node, client):
        topic = await made(node, client)
        catalog = node.serving.catalog
        really = catalog.detach_topic

        async def lost(*args: Any, **kwargs: Any) -> None:
            await really(*args, **kwargs)
            raise OutcomeUnknown("a commit was not answered")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(catalog, "detach_topic", lost)
            with pytest.raises(OutcomeUnknown):
                await node.moves.detach("t")
        other = await catalog.register_node(2, "elsewhere", 1, now_ms=0, lease_ms=1)
        info = await catalog.attach_topic(topic.topic_id, "t", node=NodeIdentity(2, other.epoch))
        streams = [partition.stream_id for partition in info.partitions]
        await catalog.open_streams(streams, StreamOwner(2, other.epoch, WAL_ID))
        removed: list[str] = []
        monkeypatch.setattr(node.serving.groups, "forget_topics", removed.extend)
        await node.serving.membership.complete_changes()
        assert removed == []
        response = await client.produce("t", [batch_of(b"lost")])
        refusals = {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        }  # before and after it is seen
        assert response.responses[0].partition_responses[0].error_code in refusals
        opened = await catalog.get_streams(streams)
        assert {each.node_id for each in opened.values()} == {2}, "it was not taken back"
