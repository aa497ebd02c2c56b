"""Rounds of a table's committer, against what a READ_COMMITTED consumer sees of the topic."""

import asyncio
import errno
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from anabranch import child
from anabranch.broker.cluster.node import Node
from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.catalog.table_values import TableCommit, TableFile, TableFileKind
from anabranch.s3stream.errors import NotFound, OutcomeUnknown, StoreError
from anabranch.s3stream.model import ObjectState
from anabranch.tables.process import ColumnProcess, ColumnsError, Tried
from anabranch.tables.requests import Share, ShareReport
from anabranch.tables.upkeep import commit as commit_module
from anabranch.tables.upkeep import committer as committer_module
from anabranch.tables.upkeep import source as source_module
from anabranch.tables.upkeep import transfers as transfers_module
from anabranch.tables.upkeep.abandoned import AbandonedTables
from anabranch.tables.upkeep.committer import TableCommitter
from anabranch.tables.upkeep.context import TableTopic, TableTopics
from anabranch.tables.upkeep.service import NotLeader, TableUpkeep
from anabranch.tables.upkeep.source import BlockSource, CopiedBlocks, RowsGone
from anabranch.tables.upkeep.transfers import TableFiles
from anabranch.tables.upkeep.view import TableView
from tests.support.events import QUIET, Event, committed_records, delete_topic
from tests.support.node import running_node
from tests.support.tables import (
    create_table,
    created_slowly,
    own_committer,
    read_table,
    records_of,
    sent,
    status_of,
    table_has,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

STEPS = (
    "blocks copied",
    "rows made",
    "prepared",
    "data sent",
    "metadata written",
    "metadata sent",
    "committed",
)


class Stopped(Exception):
    """The committer was stopped at a step."""


def stop_at(name: str) -> Any:
    async def step(reached: str) -> None:
        if reached == name:
            raise Stopped(name)

    return step


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """Start a node for all tests, each of which has a topic of its own."""
    async with running_node(tmp_path_factory.mktemp("node"), storage_delete_delay_ms=0) as node:
        yield node


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return the name of the test's topic."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[-100:]


async def rows(committer: TableCommitter) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return partition, key and value of the current snapshot."""
    location = committer.status.metadata_location
    return records_of(await asyncio.to_thread(read_table, location)) if location else []


async def consumed(node: Node, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
    return await asyncio.to_thread(committed_records, node.bootstrap, topic)


async def finish(committer: TableCommitter) -> None:
    """Run rounds until nothing is left to do."""
    while any(await committer.run()):
        pass


def delete_records(node: Node, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(30)


def alter(node: Node, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def values(start: int, end: int, partitions: int = 1) -> list[Event]:
    return [Event(at % partitions, b"value %d" % at, b"key %d" % at) for at in range(start, end)]


async def test_each_round_appends_what_came_since(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic, 2)
    committer = own_committer(node, topic, tmp_path / "own")
    seen = []
    for at in range(3):
        await sent(node, topic, values(at * 10, at * 10 + 10, 2))
        await finish(committer)
        assert await rows(committer) == await consumed(node, topic)
        seen.append(committer.status.version)
    await finish(committer)  # nothing came since: no commit
    assert seen == [2, 3, 4], "the first version is without rows"
    assert committer.status.version == 4


async def test_open_and_aborted_transactions_are_left_out(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic)
    committer = own_committer(node, topic, tmp_path / "own")

    def produce(name: str, end: str) -> Producer:
        producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": name, **QUIET})
        producer.init_transactions(30)
        producer.begin_transaction()
        for at in range(5):
            producer.produce(topic, b"%s %d" % (name.encode(), at), partition=0)
        producer.flush(30)
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
        return producer

    await asyncio.to_thread(produce, "first", "commit")
    await asyncio.to_thread(produce, "second", "abort")
    opened = await asyncio.to_thread(produce, "third", "")
    await asyncio.to_thread(produce, "fourth", "commit")
    await node.serving.storage.flush()
    await finish(committer)
    assert [value for _, _, value in await rows(committer)] == [b"first %d" % at for at in range(5)]
    await asyncio.to_thread(opened.commit_transaction, 30)
    await node.serving.storage.flush()
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)
    assert len(await rows(committer)) == 15


async def test_a_marker_alone_makes_the_table_complete(node: Node, topic: str, tmp_path: Path) -> None:
    """Nothing but the end of an aborted transaction came: there is no row, and no lag."""
    await created_slowly(node, topic)
    committer = own_committer(node, topic, tmp_path / "own")
    await sent(node, topic, values(0, 3))
    await finish(committer)
    producer = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "x", **QUIET})

    def abort() -> None:
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"never", partition=0)
        producer.flush(30)
        producer.abort_transaction(30)

    await asyncio.to_thread(abort)
    await asyncio.to_thread(committed_records, node.bootstrap, topic)  # waits for the marker
    await node.serving.storage.flush()
    await finish(committer)
    assert committer.status.lag == 0
    assert await rows(committer) == await consumed(node, topic)
    assert len(await rows(committer)) == 3


async def test_files_that_land_after_they_were_forgotten_are_deleted(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    tables, now_ms = upkeep.context.catalog.tables, upkeep.context.now_ms
    forgotten: list[TableFile] = []

    async def forget(reached: str) -> None:
        """Collect prepared files, as a node does whose clock is days ahead."""
        if reached == "prepared":
            later_ms = now_ms() + 7 * 86_400_000
            due = [each for each in await tables.list_reapable(now_ms=later_ms, limit=100) if not each.committed_ms]
            forgotten.extend(due)
            ids = await tables.expire_files([each.file_id for each in due], now_ms=later_ms)
            await tables.forget_files(ids)

    with pytest.raises(NotFound):
        await finish(own_committer(node, topic, tmp_path, step=forget))
    assert len(forgotten) >= 4
    (store,) = upkeep.context.stores.values()
    left = [each.file_key for each in forgotten if await store.writer_id(each.file_key) is not None]
    assert left == []
    committer = own_committer(node, topic, tmp_path)
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)


@pytest.mark.parametrize("step", STEPS)
async def test_a_committer_that_dies_leaves_a_table_that_its_successor_completes(
    node: Node, topic: str, tmp_path: Path, step: str
) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    await finish(own_committer(node, topic, tmp_path / "first"))
    await sent(node, topic, values(10, 20))
    dying = own_committer(node, topic, tmp_path / "dying", step=stop_at(step))
    with pytest.raises(Stopped):
        await dying.run()
    successor = own_committer(node, topic, tmp_path / "successor")
    await finish(successor)
    assert await rows(successor) == await consumed(node, topic)
    assert len(await rows(successor)) == 20
    assert successor.status.version == 3
    assert not list((tmp_path / "dying").rglob("*.parquet")), "the scratch folder is left empty"


async def test_of_two_committers_one_is_told_to_read_again(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    other = own_committer(node, topic, tmp_path / "other")

    async def be_overtaken(reached: str) -> None:
        if reached == "metadata sent" and not other.status.version:
            await finish(other)

    slow = own_committer(node, topic, tmp_path / "slow", step=be_overtaken)
    assert any(await slow.run()), "it is to look again"
    assert slow.stats.conflicts == 1
    await sent(node, topic, values(10, 20))
    await finish(slow)
    assert await rows(slow) == await consumed(node, topic)
    assert slow.status.version == 3


class SomeTopics:
    """Some topics of a node's upkeep, in their order."""

    def __init__(self, topics: TableTopics, *names: str) -> None:
        self._topics = topics
        self._names = names

    def committed(self) -> Sequence[TableTopic]:
        found = {each.name: each for each in self._topics.committed()}
        return [found[name] for name in self._names]

    def followed(self) -> Sequence[TableTopic]:
        return []

    def request_upload(self, topic: TableTopic, *, waited_ms: int) -> None:
        self._topics.request_upload(topic, waited_ms=waited_ms)

    async def upload(self, topic: TableTopic) -> None:
        await self._topics.upload(topic)


async def test_who_was_overtaken_leaves_the_table_alone_for_a_while_unless_a_commit_is_asked_for(
    node: Node, topic: str, tmp_path: Path
) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    other = own_committer(node, topic, tmp_path / "other")
    made: list[str] = []

    async def be_overtaken(reached: str) -> None:
        if reached == "rows made":
            made.append(reached)
        if reached == "metadata sent" and not other.status.version:
            await finish(other)
            await sent(node, topic, values(10, 20))

    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    context = replace(upkeep.context, folder=tmp_path / "own", step=be_overtaken)
    own = TableUpkeep(context, upkeep.others, SomeTopics(upkeep.topics, topic))
    await own.look()
    assert (own.stats.conflicts, len(made)) == (1, 1)
    await own.look()
    assert len(made) == 1
    own.hurry(topic)
    await own.look()
    assert (own.stats.conflicts, len(made)) == (1, 2)
    await finish(other)
    assert await rows(other) == await consumed(node, topic)


class EndlessValue:
    """Decodes the value at the offset 3 of the partition 0 of a topic for ever, while it is `there`."""

    def __init__(self, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic = topic
        self.there = True
        self.seen: list[str] = []
        """Ends of the topics' names, and partitions, of the shares that were to be made."""
        self._send, self._receive = child.send, child.receive
        self._last_frames: list[dict[str, Any]] | None = None
        monkeypatch.setattr(child, "send", self._take_long)
        monkeypatch.setattr(child, "receive", self._be_late)

    def _take_long(self, process: Any, body: bytes, **settings: Any) -> None:
        self._last_frames = None
        if settings["what"] == "share":
            share = Share.from_json(json.loads(body)["share"])
            self.seen.append(f"{share.range.topic.rsplit('-')[-1]} {share.range.partition}")
            is_raw = any(start <= 3 < end for start, end in share.raw)
            if self.there and share.range[:2] == (self.topic, 0) and not is_raw:
                self._last_frames = [{"at": [3, 4] if share.careful else [0, 5]}]
                return
        self._send(process, body, **settings)

    def _be_late(self, process: Any, **settings: Any) -> Any:
        if self._last_frames is None:
            return self._receive(process, **settings)
        if self._last_frames:
            return json.dumps(self._last_frames.pop())
        raise TimeoutError("no answer")


JSON_TABLE = {
    "table.value": "json",
    "table.value.schema": json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}}),
}


async def test_a_table_with_values_that_take_too_long_lets_others_have_their_turns(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rounds find the value one attempt at a time. Its own other partition has its turn, too."""
    slow, other = f"{topic}-slow", f"{topic}-other"
    await created_slowly(node, slow, 2, JSON_TABLE)
    await created_slowly(node, other)
    await sent(node, slow, [Event(at % 2, b'{"n": %d}' % at) for at in range(10)])
    await sent(node, other, values(0, 10))
    seen = EndlessValue(slow, monkeypatch).seen
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    context = replace(upkeep.context, folder=tmp_path / "own")
    own = TableUpkeep(context, upkeep.others, SomeTopics(upkeep.topics, slow, other))
    await own.look()
    assert seen == ["slow 0", "other 0"]
    assert re.search(r"offsets \[0, 5\) of partition 0 take too long", own.statuses()[1].last_error)
    await own.look()
    assert seen[2:] == ["slow 1", "slow 0"]
    await own.look()
    assert seen[4:] == ["slow 0"]
    statuses = own.statuses()
    assert [(each.topic, each.lag, each.errors, each.rows) for each in statuses] == [
        (other, 0, 0, 10),
        (slow, 0, 1, 10),
    ]
    found = await asyncio.to_thread(read_table, statuses[1].metadata_location)
    assert found["n"].to_pylist() == [0, 2, 4, None, 8, 1, 3, 5, 7, 9]


async def test_a_new_topic_inherits_no_values_that_take_too_long(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic, configs=JSON_TABLE)
    await sent(node, topic, [Event(0, b'{"n": %d}' % at) for at in range(5)])
    endless = EndlessValue(topic, monkeypatch)
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    context = replace(upkeep.context, folder=tmp_path / "own")
    own = TableUpkeep(context, upkeep.others, SomeTopics(upkeep.topics, topic))
    for _ in range(2):
        await own.look()
    assert len(endless.seen) == 2
    await asyncio.to_thread(delete_topic, node.bootstrap, topic)
    await created_slowly(node, topic, configs=JSON_TABLE)
    await sent(node, topic, [Event(0, b'{"n": %d}' % at) for at in range(5)])
    endless.there = False
    await own.look()
    (status,) = own.statuses()
    assert (status.rows, status.errors, status.lag) == (5, 0, 0)


async def test_a_turn_of_a_table_ends_after_a_while(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    for at in range(3):
        await sent(node, topic, values(at * 10, at * 10 + 10))
    monkeypatch.setattr(committer_module, "SHARE_BYTES_MAX", 1)
    monkeypatch.setattr(committer_module, "TURN_S", 0)
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(3):
        left = await committer.run()
        assert (left.rows, committer.status.rows) == (at < 2, at * 10 + 10)
    assert await rows(committer) == await consumed(node, topic)


@pytest.mark.parametrize("took_effect", [True, False])
async def test_a_commit_of_unknown_outcome_is_repeated_as_it_was(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, took_effect: bool
) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    waited_ms, now_ms = 0, node.serving.now_ms
    committer = own_committer(node, topic, tmp_path / "own", now_ms=lambda: now_ms() + waited_ms)
    commits: list[TableCommit] = []
    commit = TableCatalog.commit

    async def answer_late(self: TableCatalog, wanted: TableCommit) -> int:
        nonlocal waited_ms
        commits.append(wanted)
        waited_ms += 3_600_000
        if len(commits) == 1 and not took_effect:
            raise OutcomeUnknown("lost")
        version = await commit(self, wanted)
        if len(commits) == 1:
            raise OutcomeUnknown("lost")
        return version

    monkeypatch.setattr(TableCatalog, "commit", answer_late)
    monkeypatch.setattr(commit_module, "RETRY_S_MIN", 0)
    await finish(committer)
    assert len(commits) == 2
    # The snapshots that expire in it were there to be read until now.
    assert commits[1].delete_after_ms - commits[0].delete_after_ms >= 3_600_000
    assert commits[0] == replace(commits[1], delete_after_ms=commits[0].delete_after_ms)
    assert await rows(committer) == await consumed(node, topic)
    assert committer.status.version == 2


async def test_a_store_that_is_away_leaves_the_table_as_it_was(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    committer = own_committer(node, topic, tmp_path / "own")
    await finish(committer)
    before = committer.status.version
    await sent(node, topic, values(10, 20))
    store = type(next(iter(node.stores.values())))
    put = store.put

    async def refuse(self: Any, key: str, *args: Any, **named: Any) -> None:
        if key.endswith(".metadata.json"):
            raise StoreError(f"{key}: the store is away")
        await put(self, key, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", refuse)
        with pytest.raises(StoreError, match="the store is away"):
            await committer.run()
    info = await node.serving.catalog.tables.of_topic(committer.topic.topic_id)
    assert info is not None
    assert info.version == before
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)


async def test_deleted_records_leave_the_table(node: Node, topic: str, tmp_path: Path) -> None:
    """The file that they are in is cut, and files that they fill are dropped."""
    await created_slowly(node, topic)
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(3):
        await sent(node, topic, values(at * 10, at * 10 + 10))
        await finish(committer)
    await asyncio.to_thread(delete_records, node, topic, 13)
    await finish(committer)
    assert [value for _, _, value in await rows(committer)] == [b"value %d" % at for at in range(13, 30)]
    assert await rows(committer) == await consumed(node, topic)
    assert (committer.stats.cut_files, committer.stats.dropped_files) == (1, 1)
    await asyncio.to_thread(delete_records, node, topic, 30)
    await finish(committer)
    assert await rows(committer) == []
    await sent(node, topic, values(30, 35))
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)


async def test_records_that_were_lost_before_they_became_rows(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic)
    committer = own_committer(node, topic, tmp_path / "own")
    await sent(node, topic, values(0, 10))
    await finish(committer)
    await sent(node, topic, values(10, 30))
    await asyncio.to_thread(delete_records, node, topic, 20)
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)
    assert len(await rows(committer)) == 10


async def test_small_files_are_joined(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic, 2)
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(9):
        await sent(node, topic, values(at * 10, at * 10 + 10, 2))
        await finish(committer)
    assert committer.status.files == 4
    assert committer.stats.joined_files == 16
    assert await rows(committer) == await consumed(node, topic)


async def test_data_files_and_those_they_are_joined_to_have_the_compression_of_the_topic(
    node: Node, topic: str, tmp_path: Path
) -> None:
    await created_slowly(node, topic, configs={"table.compression.type": "lz4"})
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(8):
        await sent(node, topic, values(at * 10, at * 10 + 10))
        await finish(committer)
    assert committer.stats.joined_files > 0
    folder = Path(committer.status.metadata_location.removeprefix("file://")).parent.parent
    groups = [pq.read_metadata(path).row_group(0) for path in folder.rglob("*.parquet")]
    assert len(groups) > 8
    assert {each.column(at).compression for each in groups for at in range(each.num_columns)} == {"LZ4"}


async def test_old_snapshots_go_with_their_files(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic, configs={"table.snapshot.retention.ms": "0"})
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(9):
        await sent(node, topic, values(at * 10, at * 10 + 10))
        await finish(committer)
    assert committer.status.snapshots == 1
    await node.upkeep.collector.collect()
    assert await rows(committer) == await consumed(node, topic)
    store = next(iter(node.stores.values()))
    left = [each.key async for each in store.list(f"table/anabranch/{UUID(committer.status.table_id)}/")]
    assert sum(key.endswith(".parquet") for key in left) == committer.status.files == 2
    assert sum(key.endswith(".metadata.json") for key in left) == 1


async def test_a_compacted_topic_has_one_row_for_each_key(node: Node, topic: str, tmp_path: Path) -> None:
    """The files of what log compaction has rewritten are made anew, once, and not what was appended since."""
    await created_slowly(node, topic, configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(3):
        await sent(node, topic, [Event(0, b"value %d %d" % (at, key), b"key %d" % key) for key in range(4)])
        await finish(committer)
    assert len(await rows(committer)) == 12
    await node.upkeep.compaction.run_once()
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)
    assert len(await rows(committer)) < 12
    version, remade = committer.status.version, committer.stats.remade_files
    assert remade
    await finish(committer)
    successor = own_committer(node, topic, tmp_path / "successor")  # it knows from the snapshot what is shown
    await finish(successor)
    assert (successor.status.version, successor.stats.remade_files) == (version, 0)
    await sent(node, topic, [Event(0, b"last", b"key 1")])
    await finish(successor)
    await node.upkeep.compaction.run_once()
    await finish(successor)
    assert await rows(successor) == await consumed(node, topic)


@pytest.mark.parametrize("kept", [False, True])
async def test_a_compacted_topic_may_have_lost_the_first_rows_of_a_file(
    node: Node, topic: str, tmp_path: Path, *, kept: bool
) -> None:
    """The rest of the file is made anew. The first rows stay if the table keeps them, and otherwise leave."""
    configs = {"cleanup.policy": "compact,delete", "retention.ms": "3600000", "min.cleanable.dirty.ratio": "0"}
    await created_slowly(node, topic, configs={**configs, "table.retention": "keep" if kept else "topic"})
    for at in range(3):
        await sent(node, topic, [Event(0, b"value %d %d" % (at, key), b"key %d" % key) for key in range(4)])
    await finish(own_committer(node, topic, tmp_path / "first"))
    lost = (await consumed(node, topic))[:4] if kept else []
    await node.serving.topics.partition(topic, 0).stream.trim(4)  # as retention does: the file is not cut for it
    await node.upkeep.compaction.run_once()
    await sent(node, topic, [Event(0, b"later", b"key 9")])
    committer = own_committer(node, topic, tmp_path / "own")
    await finish(committer)
    assert (committer.stats.cut_files, committer.stats.remade_files) == (0, 1)
    assert await rows(committer) == [*lost, *await consumed(node, topic)]


async def test_rows_that_were_made_before_a_log_compaction_are_made_anew_though_later_ones_were_not(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a range of log compaction, the first file of a commit has the rows of before, and the second one its own."""
    await created_slowly(node, topic, configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for at in range(3):
        await sent(node, topic, [Event(0, b"value %d %d" % (at, key), b"key %d" % key) for key in range(4)])
    copy = BlockSource.copy
    starts: list[int] = []

    async def clean_between(self: BlockSource, stream_id: int, start: int, *args: Any, **named: Any) -> CopiedBlocks:
        starts.append(start)
        if len(starts) == 2:
            await node.upkeep.compaction.run_once()
        return await copy(self, stream_id, start, *args, **named)

    monkeypatch.setattr(BlockSource, "copy", clean_between)
    monkeypatch.setattr(committer_module, "SHARE_BYTES_MAX", 1)
    committer = own_committer(node, topic, tmp_path / "own")
    await finish(committer)
    assert starts[:2] == [0, 4]
    await finish(committer)  # the next round sees that there was a log compaction
    assert await rows(committer) == await consumed(node, topic)


async def test_partitions_take_turns_while_a_commit_cannot_have_rows_of_all(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic, 5)
    monkeypatch.setattr(committer_module, "FILES_MAX", 2)
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(3):  # the first ones have new rows each time
        await sent(node, topic, values(at * 10, at * 10 + 10, 5))
        await committer.run()
    assert all(each.end_offset for each in committer.status.partitions.values())


async def test_a_dropped_table_is_not_made_anew_by_a_node_that_does_not_know_yet(
    node: Node, topic: str, tmp_path: Path
) -> None:
    await created_slowly(node, topic)
    committer = own_committer(node, topic, tmp_path / "own")
    tables, topic_id = node.serving.catalog.tables, committer.topic.topic_id
    info = await tables.of_topic(topic_id)
    assert info is not None
    await asyncio.to_thread(alter, node, topic, "table.enable", "false")
    await tables.drop(info.table_id, keep_files=False, now_ms=1, delete_after_ms=1)
    with pytest.raises(NotFound, match=r"table\.enable of topic .* is no longer true: no table is made"):
        await committer.run()
    assert await tables.of_topic(topic_id) is None


async def test_a_new_schema_adds_its_columns(node: Node, topic: str, tmp_path: Path) -> None:
    def schema(*names: str) -> str:
        return json.dumps({"type": "object", "properties": {name: {"type": "integer"} for name in names}})

    configs = {"table.value": "json", "table.value.schema": schema("a")}
    await created_slowly(node, topic, configs=configs)
    committer = own_committer(node, topic, tmp_path / "own")
    await sent(node, topic, [Event(0, b'{"a": 1}'), Event(0, b"bad")])
    await finish(committer)
    assert (committer.status.errors, len(committer.status.reasons)) == (1, 1)
    options = committer.topic.options
    value = replace(options.value, schema=schema("a", "b"))
    committer.topic = replace(committer.topic, options=replace(options, value=value))
    await sent(node, topic, [Event(0, b'{"a": 2, "b": 3}')])
    await finish(committer)
    found = await asyncio.to_thread(read_table, committer.status.metadata_location)
    assert found.column_names == ["a", "_kafka", "b"] or found.column_names == ["a", "b", "_kafka"]
    assert (found["a"].to_pylist(), found["b"].to_pylist()) == ([1, None, 2], [None, None, 3])


async def test_a_process_that_is_killed_is_replaced(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None

    async def kill(_name: str) -> None:
        if (process_id := upkeep.process_id) is not None:
            os.kill(process_id, signal.SIGKILL)

    committer = own_committer(node, topic, tmp_path / "own", step=kill)
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)


async def test_a_topic_that_is_no_table_any_more_keeps_the_one_that_it_has(node: Node, topic: str) -> None:
    await asyncio.to_thread(create_table, node.bootstrap, topic)
    await sent(node, topic, values(0, 10))
    status = await table_has(node, topic)
    await asyncio.to_thread(alter, node, topic, "table.enable", "false")
    await until(lambda: status_of(node, topic) is None, pause_s=0.02)
    await sent(node, topic, values(10, 20))
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    await upkeep.look()
    found = {each.name: each.version for each in await node.serving.catalog.tables.list()}
    assert found[topic] == status.version
    assert len(records_of(await asyncio.to_thread(read_table, status.metadata_location))) == 10


@pytest.mark.parametrize("kept", [False, True])
async def test_a_deleted_topic_takes_its_table_along_unless_it_is_kept(
    node: Node, topic: str, tmp_path: Path, *, kept: bool
) -> None:
    await created_slowly(node, topic, configs={"table.retention": "keep" if kept else "topic"})
    committer = own_committer(node, topic, tmp_path / "own")
    await sent(node, topic, values(0, 10))
    await finish(committer)
    await asyncio.to_thread(delete_topic, node.bootstrap, topic)
    assert not any(await committer.run()), "there is nothing to do"
    found = await node.serving.catalog.tables.of_topic(committer.topic.topic_id)
    assert (found is not None) == kept
    await node.upkeep.collector.collect()
    if kept:
        assert len(await rows(committer)) == 10
    else:
        store = next(iter(node.stores.values()))
        prefix = f"table/anabranch/{UUID(committer.status.table_id)}/"
        assert [each.key async for each in store.list(prefix)] == []


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_old_snapshots_go_though_nobody_commits_the_table(
    node: Node, topic: str, tmp_path: Path, *, is_deleted: bool
) -> None:
    day_ms = 24 * 3_600_000
    await created_slowly(
        node, topic, configs={"table.retention": "keep", "table.snapshot.retention.ms": str(3 * day_ms)}
    )
    committer = own_committer(node, topic, tmp_path / "own")
    for at in range(9):
        await sent(node, topic, values(at * 10, at * 10 + 10))
        await finish(committer)
    if is_deleted:
        await asyncio.to_thread(delete_topic, node.bootstrap, topic)
    else:
        await asyncio.to_thread(alter, node, topic, "table.enable", "false")
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    tables = node.serving.catalog.tables
    table_id = bytes.fromhex(committer.status.table_id)
    left = []
    for rank, later_ms in ((0, 2 * day_ms), (1, 3 * day_ms + 900_000), (0, 3 * day_ms + 900_000), (0, 9 * day_ms)):
        now_ms = partial(lambda later_ms: upkeep.context.now_ms() + later_ms, later_ms)
        context = replace(upkeep.context, folder=tmp_path / "other", now_ms=now_ms, rank=partial(int, rank))
        is_done = await AbandonedTables(context).look()
        files = [file for file in await tables.list_files(after=0, limit=10_000) if file.table_id == table_id]
        data = sum(file.kind is TableFileKind.DATA and file.state is ObjectState.COMMITTED for file in files)
        left.append((is_done, len((await tables.read(table_id)).snapshots) > 1, data))
    many = left[0][2]
    assert left == [(False, True, many), (False, True, many), (True, False, 2), (False, False, 2)]
    assert many > 2
    await node.upkeep.collector.collect()
    file_id = (await tables.read(table_id)).info.metadata_file
    file = (await tables.get_files([file_id]))[file_id]
    location = node.stores[file.store].uri(file.file_key)
    assert len(await asyncio.to_thread(read_table, location)) == 90


async def test_a_table_that_keeps_its_rows_shows_what_the_topic_has_lost(
    node: Node, topic: str, tmp_path: Path
) -> None:
    await created_slowly(node, topic, configs={"table.retention": "keep"})
    committer = own_committer(node, topic, tmp_path / "own")
    await sent(node, topic, values(0, 10))
    await finish(committer)
    await sent(node, topic, values(10, 20))
    await asyncio.to_thread(delete_records, node, topic, 15)
    await finish(committer)
    wanted = [b"value %d" % at for at in (*range(10), *range(15, 20))]
    assert [value for _, _, value in await rows(committer)] == wanted


async def test_rows_that_take_too_much_memory_are_made_in_smaller_files(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    for at in range(3):  # three blocks at least
        await sent(node, topic, values(at * 10, at * 10 + 10))
    make = ColumnProcess.make

    def refuse(self: ColumnProcess, share: Share, tried: Tried | None, **settings: int) -> ShareReport:
        if len(share.blocks) > 1:
            raise ColumnsError("memory", "too large")
        return make(self, share, tried, **settings)

    monkeypatch.setattr(ColumnProcess, "make", refuse)
    committer = own_committer(node, topic, tmp_path / "own")
    await finish(committer)
    assert committer.status.files == 3
    assert await rows(committer) == await consumed(node, topic)


@pytest.mark.parametrize(
    ("expired", "deleted", "rows_left"),
    [
        (3, None, 10),  # the rows stay for now, or the file would be written again and again
        (5, None, 5),
        (0, 3, 7),
        (3, 2, 7),  # what a client has deleted leaves at once, also after retention
    ],
)
async def test_deleted_rows_leave_at_once_and_expired_ones_when_half_of_a_file_is_gone(
    node: Node, topic: str, tmp_path: Path, expired: int, deleted: int | None, rows_left: int
) -> None:
    await created_slowly(node, topic, configs={"retention.ms": "3600000", "retention.bytes": "1000000000"})
    await sent(node, topic, values(0, 10))
    committer = own_committer(node, topic, tmp_path / "own")
    await finish(committer)
    await node.serving.topics.partition(topic, 0).stream.trim(expired)  # as retention does
    if deleted is not None:
        await asyncio.to_thread(delete_records, node, topic, deleted)
    await finish(committer)
    assert len(await rows(committer)) == rows_left


async def test_a_table_is_read_once_while_no_other_node_commits_it(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    committer = own_committer(node, topic, tmp_path / "own")
    reads: list[bytes] = []
    read = TableView.read

    async def count(tables: TableCatalog, table_id: bytes) -> TableView:
        reads.append(table_id)
        return await read(tables, table_id)

    monkeypatch.setattr(TableView, "read", count)
    for at in range(3):
        await sent(node, topic, values(at * 10, at * 10 + 10))
        await finish(committer)
    fetched = []
    fetch = TableFiles.fetch

    async def note(self: TableFiles, file: TableFile, path: Path) -> None:
        fetched.append(file)
        await fetch(self, file, path)

    monkeypatch.setattr(TableFiles, "fetch", note)
    await sent(node, topic, values(30, 40))
    await finish(committer)
    assert (len(reads), fetched) == (1, []), "what it has written itself is not read again"


async def test_a_disk_that_is_full_fails_the_round_and_the_next_one_goes_on(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    committer = own_committer(node, topic, tmp_path / "own")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(source_module, "_write", refuse)
        with pytest.raises(OSError, match="No space left"):
            await committer.run()
    assert not list((tmp_path / "own").rglob("blocks"))
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)


async def test_large_files_are_sent_and_read_in_parts(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    monkeypatch.setattr(transfers_module, "PUT_BYTES_MAX", 1_000_000)
    await sent(node, topic, [Event(0, os.urandom(900_000)) for _ in range(12)])
    await finish(own_committer(node, topic, tmp_path / "own"))
    cutting = own_committer(node, topic, tmp_path / "cutting")
    await asyncio.to_thread(delete_records, node, topic, 1)
    await finish(cutting)
    assert cutting.stats.cut_files == 1
    assert await rows(cutting) == await consumed(node, topic)


async def test_a_node_that_leads_the_table_no_more_stops_before_its_next_step(node: Node, topic: str) -> None:
    await created_slowly(node, topic)
    upkeep = node.upkeep.tables.upkeep
    assert upkeep is not None
    (found,) = (each for each in upkeep.topics.committed() if each.name == topic)
    step = upkeep.step_of(found.topic_id)
    await step("any")
    await asyncio.to_thread(alter, node, topic, "table.enable", "false")
    await until(lambda: found.topic_id not in {each.topic_id for each in upkeep.topics.committed()}, pause_s=0.02)
    with pytest.raises(NotLeader, match="no longer commits the table"):
        await step("any")


async def test_a_table_of_what_was_cleaned_before_is_made_once(node: Node, topic: str, tmp_path: Path) -> None:
    await created_slowly(node, topic, configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    for at in range(3):
        await sent(node, topic, [Event(0, b"value %d %d" % (at, key), b"key %d" % key) for key in range(4)])
    await node.upkeep.compaction.run_once()
    committer = own_committer(node, topic, tmp_path / "own")
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)
    assert len(await rows(committer)) < 12
    assert committer.stats.remade_files == 0
    successor = own_committer(node, topic, tmp_path / "successor")
    await finish(successor)
    assert successor.stats.commits == 0


async def test_a_table_without_rows_can_be_read(node: Node, topic: str) -> None:
    await created_slowly(node, topic)
    status = status_of(node, topic)
    assert status is not None
    found = await asyncio.to_thread(read_table, status.metadata_location)
    assert (found.column_names, len(found)) == (["value", "_kafka"], 0)


async def test_a_clone_has_a_table_of_its_own_from_the_blocks_of_its_original(node: Node, topic: str) -> None:
    await created_slowly(node, topic, 2)
    await sent(node, topic, values(0, 20, 2))
    clone = f"{topic}-clone"
    await node.moves.clone(topic, clone)
    await sent(node, clone, values(20, 30, 2))
    node.upkeep.tables.hurry(clone)
    status = await table_has(node, clone)
    assert records_of(await asyncio.to_thread(read_table, status.metadata_location)) == await consumed(node, clone)
    assert status.rows == 30


async def test_an_object_that_is_replaced_meanwhile_is_looked_up_again(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    for at in range(3):
        await sent(node, topic, values(at * 10, at * 10 + 10))
    committer = own_committer(node, topic, tmp_path / "own")
    store = next(iter(node.stores.values()))
    get = type(store).get
    replaced: list[str] = []

    async def replace_first(self: Any, key: str, start: int, end: int) -> memoryview:
        if not replaced and not key.startswith("table/"):
            replaced.append(key)
            await node.upkeep.compaction.run_once()
            await node.upkeep.collector.collect()
        return await get(self, key, start, end)

    monkeypatch.setattr(type(store), "get", replace_first)
    await finish(committer)
    assert await store.writer_id(replaced[0]) is None, "it is gone"
    assert await rows(committer) == await consumed(node, topic)


async def test_records_that_are_lost_while_they_are_read_fail_the_round_only(
    node: Node, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created_slowly(node, topic)
    await sent(node, topic, values(0, 10))
    await sent(node, topic, values(10, 20))
    committer = own_committer(node, topic, tmp_path / "own")
    copy = BlockSource.copy

    async def lose_first(self: BlockSource, *args: Any, **named: Any) -> CopiedBlocks:
        await asyncio.to_thread(delete_records, node, topic, 15)
        await node.upkeep.collector.collect()
        return await copy(self, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(BlockSource, "copy", lose_first)
        with pytest.raises(RowsGone, match=r"offset 0 of \[0, 20\) is in no object any more"):
            await committer.run()
    await finish(committer)
    assert await rows(committer) == await consumed(node, topic)
    assert len(await rows(committer)) == 5
