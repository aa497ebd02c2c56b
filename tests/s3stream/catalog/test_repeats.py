"""Every command that changes the catalog, run twice: the first answer was lost, and the repetition must succeed."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, RowMapping, text

from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.schema import NEWEST, schema_version
from anabranch.s3stream.catalog.table_catalog import TableCatalog
from anabranch.s3stream.catalog.table_values import TableFileKind
from anabranch.s3stream.catalog.values import AclRow, MoveReason, NewTopic, NodeBeat, StreamTransfer, TokenRow
from anabranch.s3stream.errors import NodeFenced
from anabranch.s3stream.model import NodeIdentity, ObjectState, StreamOwner
from tests.support.catalog_node import DEADLINE, LATER, NODE_ID, NOW, WAL_ID, MetadataNode, span
from tests.support.table_node import NEW_TABLE, TABLE_ID, TableNode

TOPIC = b"t" * 16
OTHER = b"o" * 16
READS = frozenset(
    {
        "back_up",
        "check_has",
        "count_committed",
        "count_objects",
        "count_open_streams",
        "find_ranges",
        "find_time",
        "get_node",
        "get_objects",
        "get_streams",
        "get_uploaded_streams",
        "list_compactable_streams",
        "list_moves",
        "list_acls",
        "list_tokens",
        "list_configs",
        "list_detached",
        "list_node_ssos",
        "list_nodes",
        "list_objects",
        "list_reapable",
        "list_stream_objects",
        "list_streams",
        "list_topic_configs",
        "list_topics",
        "list_topics_and_detached",
        "current_secret",
        "last_change",
        "last_commits",
        "last_manifest",
        "progress",
        "read_changes",
        "read_streams",
        "list_all_wals",
        "list_wals",
        "next_stream_id",
        "object_ranges",
        "observe_node",
        "read_state",
        "shared_objects",
        "stream_bytes",
    }
)
NO_COMMANDS = frozenset({"act_for", "open", "close", "identity", "is_blank", "wait_for_change", "watch_metadata"})
OF_A_PERSON = frozenset({"restore", "advance"})
"""Run by hand while no node runs: repeated, `fill` refuses a catalog that is not empty, `advance` skips more ids."""

Command = Callable[[], Awaitable[Any]]
Prepare = Callable[[MetadataNode], Awaitable[Command]]


async def register_node(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.register_node(2, "a", 1, now_ms=NOW, lease_ms=1)


async def beat(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.beat(NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW, lease_ms=1)


async def secret(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.secret(b"s" * 32)


async def replace_secret(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.replace_secret(b"s" * 32)


async def stop_node(scene: MetadataNode) -> Command:
    await scene.catalog.open_wal("w", node=NodeIdentity(NODE_ID, scene.epoch), location="/w", now_ms=NOW)
    return lambda: scene.catalog.stop_node(NodeIdentity(NODE_ID, scene.epoch), drained_wal="w", now_ms=NOW)


async def open_wal(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.open_wal("w", node=NodeIdentity(NODE_ID, scene.epoch), location="/w", now_ms=NOW)


async def give_up_wal(scene: MetadataNode) -> Command:
    await (await open_wal(scene))()
    seen = await scene.catalog.get_node(NODE_ID)
    assert seen is not None
    return lambda: scene.catalog.give_up_wal("w", seen=seen, now_ms=NOW)


async def taken_over(scene: MetadataNode) -> tuple[NodeBeat, NodeIdentity]:
    """Open the node's log and register its recoverer; returns the node's last beat, and the recoverer."""
    await (await open_wal(scene))()
    other = await scene.catalog.register_node(2, "a", 1, now_ms=NOW, lease_ms=1)
    return NodeBeat(scene.epoch, 0, has_lease=True), other.identity


async def take_over(scene: MetadataNode) -> Command:
    seen, recoverer = await taken_over(scene)
    return lambda: scene.catalog.take_over(NODE_ID, seen, wal_id="w", recoverer=recoverer, leaders=(2,), now_ms=NOW)


async def release_recovered(scene: MetadataNode) -> Command:
    epoch = await (await take_over(scene))()
    kept = scene.streams[:1]
    return lambda: scene.catalog.release_recovered(NodeIdentity(NODE_ID, epoch), "w", kept=kept, now_ms=NOW)


async def return_streams(scene: MetadataNode) -> Command:
    epoch = await (await take_over(scene))()
    return lambda: scene.catalog.return_streams(NodeIdentity(NODE_ID, epoch))


async def reclaim_streams(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.reclaim_streams("w", node=NodeIdentity(NODE_ID, scene.epoch), claimed_epoch=2)


async def give_up_streams(scene: MetadataNode) -> Command:
    await (await open_wal(scene))()
    seen = await scene.catalog.get_node(NODE_ID)
    assert seen is not None
    return lambda: scene.catalog.give_up_streams(scene.streams[:1], seen=seen, leaders=(2,))


async def remove_node(scene: MetadataNode) -> Command:
    seen = await scene.catalog.register_node(2, "a", 1, now_ms=0, lease_ms=1)
    return lambda: scene.catalog.remove_node(seen, heir=NODE_ID, now_ms=NOW)


async def drain_node(scene: MetadataNode) -> Command:
    await scene.catalog.register_node(2, "a", 1, now_ms=NOW, lease_ms=1)
    await scene.catalog.request_moves({scene.streams[0]: 2}, reason=MoveReason.OPERATOR, now_ms=NOW)
    return lambda: scene.catalog.drain_node(2, draining=True)


async def request_moves(scene: MetadataNode) -> Command:
    await scene.catalog.register_node(2, "a", 1, now_ms=NOW, lease_ms=1)
    wanted = {scene.streams[0]: 2, scene.streams[1]: NODE_ID}
    return lambda: scene.catalog.request_moves(wanted, reason=MoveReason.OPERATOR, now_ms=NOW)


async def cancel_moves(scene: MetadataNode) -> Command:
    await (await request_moves(scene))()
    return lambda: scene.catalog.cancel_moves(scene.streams)


async def ordered(scene: MetadataNode) -> StreamTransfer:
    """Order the first stream to another node, and return its transfer."""
    target = await scene.catalog.register_node(2, "a", 1, now_ms=NOW, lease_ms=1)
    await scene.catalog.open_wal("w2", node=NodeIdentity(2, target.epoch), location="/w", now_ms=NOW)
    stream_id = scene.streams[0]
    await scene.catalog.request_moves({stream_id: 2}, reason=MoveReason.OPERATOR, now_ms=NOW)
    info = (await scene.catalog.get_streams((stream_id,)))[stream_id]
    partition = next(each for each in (await scene.find_topic()).partitions if each.stream_id == stream_id)
    source = StreamOwner(NODE_ID, scene.epoch, info.wal_id)
    return StreamTransfer(
        stream_id, info.epoch, partition.leader_epoch, info.end_offset, source, StreamOwner(2, target.epoch, "w2")
    )


async def transfer_streams(scene: MetadataNode) -> Command:
    wanted = await ordered(scene)
    return lambda: scene.catalog.transfer_streams([wanted])


async def cancel_transfer(scene: MetadataNode) -> Command:
    wanted = await ordered(scene)
    return lambda: scene.catalog.cancel_transfer(wanted.stream_id, wanted.epoch, wanted.source)


async def fail_move(scene: MetadataNode) -> Command:
    await (await request_moves(scene))()
    (order,) = await scene.catalog.list_moves()
    return lambda: scene.catalog.fail_move(order, "busy")


async def create_topic(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.create_topic("new", OTHER, partitions=2, configs={}, leader=NODE_ID, internal=False)


async def create_topics(scene: MetadataNode) -> Command:
    wanted = [NewTopic("new", OTHER, 2, {}), NewTopic("t", b"x" * 16, 1, {})]
    return lambda: _told(scene.catalog.create_topics(wanted, leader=NODE_ID))


async def _told(answers: Awaitable[Any]) -> list[str]:
    return [str(answer) for answer in await answers]


async def add_partitions(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.add_partitions(TOPIC, 5, leader=NODE_ID)


async def delete_topics(scene: MetadataNode) -> Command:
    await scene.upload([span(scene.streams[0], 0, 5)])
    return lambda: scene.catalog.delete_topics([TOPIC], now_ms=NOW, delete_after_ms=LATER)


async def alter_topic(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.alter_topic(TOPIC, lambda own: own | {"a": "1"})


async def detach_topic(scene: MetadataNode) -> Command:
    ends = dict.fromkeys(scene.streams, 0)
    return lambda: scene.catalog.detach_topic(
        "t", TOPIC, ends=ends, node=NodeIdentity(NODE_ID, scene.epoch), now_ms=NOW
    )


async def attach_topic(scene: MetadataNode) -> Command:
    await (await detach_topic(scene))()
    return lambda: scene.catalog.attach_topic(TOPIC, "back", node=NodeIdentity(NODE_ID, scene.epoch))


async def clone_topic(scene: MetadataNode) -> Command:
    ends = dict.fromkeys(scene.streams, 0)
    return lambda: scene.catalog.clone_topic("t", "c", OTHER, ends=ends, node=NodeIdentity(NODE_ID, scene.epoch))


async def open_streams(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.open_streams(scene.streams, StreamOwner(NODE_ID, scene.epoch, WAL_ID))


async def trim_stream(scene: MetadataNode) -> Command:
    await scene.upload([span(scene.streams[0], 0, 5)], [span(scene.streams[0], 5, 9)])
    return lambda: scene.catalog.trim_stream(scene.streams[0], 1, 6, now_ms=NOW, delete_after_ms=LATER)


async def prepare_objects(scene: MetadataNode) -> Command:
    return lambda: scene.prepare(2)


async def note_multipart(scene: MetadataNode) -> Command:
    (object_id,) = await scene.prepare()
    return lambda: scene.catalog.note_multipart(object_id, "upload")


async def commit_upload(scene: MetadataNode) -> Command:
    objects = await scene.new_objects([span(scene.streams[0], 0, 5)], [span(scene.streams[1], 0, 5)])
    return lambda: scene.catalog.commit_upload(scene.upload_commit(objects, {scene.streams[0]: b"state"}))


async def commit_compaction(scene: MetadataNode) -> Command:
    stream = scene.streams[0]
    inputs = await scene.upload([span(stream, 0, 5)], [span(stream, 5, 9)])
    outputs = await scene.new_objects([span(stream, 0, 9)])
    return lambda: scene.catalog.commit_compaction(scene.compaction(inputs, outputs))


async def expire_objects(scene: MetadataNode) -> Command:
    ids = await scene.prepare(2)
    return lambda: scene.catalog.expire_objects(ids, now_ms=DEADLINE)


async def discard_objects(scene: MetadataNode) -> Command:
    ids = await scene.prepare(2)
    return lambda: scene.catalog.discard_objects(ids, now_ms=NOW, delete_after_ms=LATER)


async def forget_objects(scene: MetadataNode) -> Command:
    ids = await scene.prepare(2)
    return lambda: scene.catalog.forget_objects(ids)


async def alter_config(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.alter_config("k", "n", set_configs={"a": "1"}, unset=["b"])


async def alter_acls(scene: MetadataNode) -> Command:
    kept, gone = AclRow(2, "t", 3, "User:a", "*", 3, 3), AclRow(2, "t", 3, "User:a", "*", 4, 3)
    await scene.catalog.alter_acls([gone], [])
    return lambda: scene.catalog.alter_acls([kept], [gone])


TOKEN = TokenRow("id", "User:a", "User:b", ("User:c",), 1000, 2000, 3000)


async def create_token(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.create_token(TOKEN)


async def expire_token(scene: MetadataNode) -> Command:
    await scene.catalog.create_token(TOKEN)
    return lambda: scene.catalog.expire_token("id", 2500)


async def remove_token(scene: MetadataNode) -> Command:
    await scene.catalog.create_token(TOKEN)
    return lambda: scene.catalog.remove_token("id")


async def remove_expired_tokens(scene: MetadataNode) -> Command:
    await scene.catalog.create_token(TOKEN)
    return lambda: scene.catalog.remove_expired_tokens(2001)


async def raise_level(scene: MetadataNode) -> Command:
    lowered = schema_version.delete().where(schema_version.c.version == NEWEST)
    await scene.catalog._database.write(lambda c: c.execute(lowered).close())  # noqa: SLF001
    return lambda: scene.catalog.raise_level(NEWEST)


async def next_manifest(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.next_manifest(0)


async def next_producer_ids(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.next_producer_ids(10)


async def table_of(scene: MetadataNode) -> TableNode:
    """A table with one file."""
    await scene.catalog.tables.create(NEW_TABLE, now_ms=NOW)
    table = TableNode(scene)
    await table.grow(0, 20)
    await table.append({0: [(0, 10)]})
    return table


async def create(scene: MetadataNode) -> Command:
    return lambda: scene.catalog.tables.create(NEW_TABLE, now_ms=NOW)


async def drop(scene: MetadataNode) -> Command:
    table = await table_of(scene)
    await table.prepare(TableFileKind.DATA)
    return lambda: scene.catalog.tables.drop(TABLE_ID, keep_files=False, now_ms=NOW, delete_after_ms=LATER)


async def prepare_files(scene: MetadataNode) -> Command:
    table = await table_of(scene)
    return lambda: table.prepare(TableFileKind.DATA, TableFileKind.METADATA)


async def note_table_multipart(scene: MetadataNode) -> Command:
    (file,) = await (await table_of(scene)).prepare(TableFileKind.DATA)
    return lambda: scene.catalog.tables.note_multipart(file.file_id, "upload")


async def commit(scene: MetadataNode) -> Command:
    table = await table_of(scene)
    wanted = await table.change(
        {0: [(0, 10), (10, 20)]}, removed=await table.live(), schema="schema 2", expire_before=2
    )
    return lambda: scene.catalog.tables.commit(wanted)


async def discard_files(scene: MetadataNode) -> Command:
    (file,) = await (await table_of(scene)).prepare(TableFileKind.DATA)
    return lambda: scene.catalog.tables.discard_files([file.file_id], now_ms=NOW, delete_after_ms=LATER)


async def expire_files(scene: MetadataNode) -> Command:
    (file,) = await (await table_of(scene)).prepare(TableFileKind.DATA)
    return lambda: scene.catalog.tables.expire_files([file.file_id], now_ms=DEADLINE)


async def forget_files(scene: MetadataNode) -> Command:
    (file,) = await (await table_of(scene)).prepare(TableFileKind.DATA)
    return lambda: scene.catalog.tables.forget_files([file.file_id])


async def set_options(scene: MetadataNode) -> Command:
    await table_of(scene)
    return lambda: scene.catalog.tables.set_options(TABLE_ID, {"a": "b"})


OF_TABLES: dict[str, Prepare] = {
    "create": create,
    "drop": drop,
    "prepare_files": prepare_files,
    "note_multipart": note_table_multipart,
    "commit": commit,
    "discard_files": discard_files,
    "expire_files": expire_files,
    "forget_files": forget_files,
    "set_options": set_options,
}
READS_OF_TABLES = {
    *("list", "read", "find", "of_topic", "count_data", "list_data_files", "list_live_files", "list_manifests"),
    *("list_files", "get_files", "list_trimmed_files", "list_reapable", "list_at_rest"),
}
COMMANDS: dict[str, Prepare] = {
    each.__name__: each
    for each in (
        register_node,
        beat,
        secret,
        replace_secret,
        stop_node,
        drain_node,
        request_moves,
        cancel_moves,
        fail_move,
        transfer_streams,
        cancel_transfer,
        remove_node,
        open_wal,
        give_up_wal,
        give_up_streams,
        reclaim_streams,
        take_over,
        release_recovered,
        return_streams,
        create_topic,
        create_topics,
        add_partitions,
        delete_topics,
        alter_topic,
        detach_topic,
        attach_topic,
        clone_topic,
        open_streams,
        trim_stream,
        prepare_objects,
        note_multipart,
        commit_upload,
        commit_compaction,
        expire_objects,
        discard_objects,
        forget_objects,
        alter_config,
        alter_acls,
        create_token,
        expire_token,
        remove_token,
        remove_expired_tokens,
        next_producer_ids,
        raise_level,
        next_manifest,
    )
} | {f"tables.{name}": prepare for name, prepare in OF_TABLES.items()}
TAKES_MORE = {"beat", "register_node", "open_streams", "prepare_objects", "next_producer_ids", "next_manifest"} | {
    "tables.prepare_files"
}
"""A repetition gets another epoch, or other ids: those of the lost answer stay unused and do no harm."""
CHANGE_NUMBERS = {"change", "last_deletion", "last_config", "last_acl", "last_token", "changed"}
"""Counters and a column that a repetition may raise: other nodes look once more."""


def test_every_command_of_the_catalog_is_here() -> None:
    of_tables = {f"tables.{name}" for name in methods_of(TableCatalog) - READS_OF_TABLES}
    assert set(COMMANDS) == methods_of(Catalog) - READS - NO_COMMANDS - OF_A_PERSON | of_tables


def methods_of(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


async def state_of(url: str) -> dict[str, list[Any]]:
    """All rows of all tables."""
    tables = (
        "nodes",
        "topics",
        "partitions",
        "streams",
        "objects",
        "ranges",
        "configs",
        "acls",
        "delegation_tokens",
        "detached_topics",
        "counters",
        "wals",
        "moves",
        "tables",
        "table_schemas",
        "table_partitions",
        "table_snapshots",
        "table_files",
        "schema_version",
    )

    def rows(connection: Connection) -> dict[str, list[Any]]:
        return {
            name: sorted(map(kept, connection.execute(text(f"SELECT * FROM {name}")).mappings())) for name in tables
        }

    def kept(row: RowMapping) -> tuple[Any, ...]:
        if row.get("name") in CHANGE_NUMBERS:
            return (row["name"],)
        return tuple(value for name, value in row.items() if name not in CHANGE_NUMBERS)

    database = Database(url)
    try:
        return await database.read(rows)
    finally:
        await database.close()


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_repeated_command_succeeds_and_changes_no_more(catalog: Catalog, url: str, name: str) -> None:
    command = await COMMANDS[name](await MetadataNode.started(catalog))
    lost = await command()
    state = await state_of(url)
    again = await command()
    if name not in TAKES_MORE:
        assert again == lost
        assert await state_of(url) == state


@pytest.mark.parametrize(
    "name", ["detach_topic", "attach_topic", "clone_topic", "commit_upload", "commit_compaction", "tables.commit"]
)
async def test_a_command_that_took_effect_is_not_refused_to_who_is_fenced_by_now(
    catalog: Catalog, url: str, name: str
) -> None:
    scene = await MetadataNode.started(catalog)
    command = await COMMANDS[name](scene)
    lost = await command()
    await catalog.register_node(NODE_ID, "elsewhere", 1, now_ms=NOW, lease_ms=1)
    assert await command() == lost
    with pytest.raises(NodeFenced):
        await scene.prepare()


async def test_what_is_discarded_is_neither_committed_nor_forgotten_before_its_time(catalog: Catalog) -> None:
    scene = await MetadataNode.started(catalog)
    stream = scene.streams[0]
    done, open_ = await scene.new_objects([span(stream, 0, 5)], [span(stream, 5, 9)])
    await catalog.commit_upload(scene.upload_commit([done]))
    await catalog.discard_objects([done.object_id, open_.object_id, 99], now_ms=NOW, delete_after_ms=LATER)
    assert await scene.state(done) == (ObjectState.COMMITTED, 0)
    assert await scene.state(open_) == (ObjectState.DESTROYED, LATER)
    assert await catalog.list_reapable(now_ms=LATER - 1, limit=10) == []
    assert [info.object_id for info, _ in await catalog.list_reapable(now_ms=LATER, limit=10)] == [open_.object_id]
    # Replaced objects that were committed keep the delay that their readers need.
    await scene.compact([done], [span(stream, 0, 5)])
    state = await scene.state(done)
    await catalog.discard_objects([done.object_id], now_ms=NOW, delete_after_ms=NOW)
    assert await scene.state(done) == state
