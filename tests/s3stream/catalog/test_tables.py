"""Contract of tables, on both databases: what a commit changes, what is refused, and which files are deleted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event

from anabranch.s3stream.catalog.backup import read_backup
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.table_rows import find_files
from anabranch.s3stream.catalog.table_values import (
    NewTable,
    OffsetBounds,
    TableCommit,
    TableFile,
    TableFileKind,
    TableRetention,
    TableSnapshot,
    TableTotals,
)
from anabranch.s3stream.errors import AlreadyExists, CatalogError, NodeFenced, NotFound, StorageError, TableChanged
from anabranch.s3stream.maintain.manifest import Manifest, decode_manifest, encode_manifest, json_text
from anabranch.s3stream.model import NodeIdentity, ObjectState
from tests.s3stream.catalog.test_restore import CONTENTS
from tests.support.catalog_node import DEADLINE, LATER, NODE_ID, NOW, MetadataNode, delete_topic, opened_catalog
from tests.support.table_node import NEW_TABLE, TABLE_ID, TableNode


@pytest.fixture
async def table(catalog: Catalog) -> TableNode:
    """Partition 0 has the offsets [0, 100), the table has none."""
    table = await TableNode.started(catalog)
    await table.grow(0, 100)
    return table


async def test_a_commit_moves_files_bounds_snapshot_and_pointer_at_once(table: TableNode) -> None:
    await table.grow(1, 9)
    commit = await table.append({0: [(0, 60), (60, 100)], 1: [(0, 9)]})
    state = await table.state()
    assert (state.info.version, state.info.snapshot_id) == (1, commit.snapshot_id)
    assert state.info.metadata_file == commit.added[-1].file_id
    assert state.info.options == {"table.value": "json"}
    assert state.bounds == {0: OffsetBounds(0, 100), 1: OffsetBounds(0, 9)}
    assert state.snapshots == [TableSnapshot(1, commit.snapshot_id, NOW)]
    (first, _) = await table.live()
    assert (first.state, first.added, first.removed, first.deadline_ms) == (ObjectState.COMMITTED, 1, 0, 0)
    assert (first.size_bytes, first.crc32c, first.record_count, first.schema_id) == (1_000, 7, 60, 1)
    assert first.file_key == f"{NEW_TABLE.location}/data/{first.file_id:016x}.parquet"
    assert await table.bounds(1) == [(0, 9)]


async def test_tables_at_rest_have_old_snapshots_and_no_new_one(table: TableNode) -> None:
    tables, clock = table.tables, table.node.clock
    await table.append({0: [(0, 40)]})
    assert await tables.list_at_rest(NOW) == [], "there is no older snapshot"
    clock.ms += 1_000
    last = await table.append({0: [(40, 70)]})
    assert await tables.list_at_rest(NOW + 999) == []
    assert [(each.name, each.snapshot_id) for each in await tables.list_at_rest(NOW + 1_000)] == [
        ("t", last.snapshot_id)
    ]
    await tables.commit(await table.change(snapshot=False, expire_before=2))
    assert await tables.list_at_rest(NOW + 1_000) == []


async def test_data_files_are_listed_from_the_one_that_an_offset_is_in(table: TableNode) -> None:
    await table.append({0: [(0, 40), (40, 70), (70, 100)]})
    for offset, starts in {0: [0, 40], 39: [0, 40], 40: [40, 70], 99: [70], 100: []}.items():
        files = await table.tables.list_data_files(TABLE_ID, 0, start_offset=offset, limit=2)
        assert [file.start_offset for file in files] == starts


async def test_data_files_of_the_current_snapshot_are_counted(table: TableNode) -> None:
    assert await table.tables.count_data() == {}
    await table.append({0: [(0, 60)]})
    await table.change({0: [(60, 100)]})  # prepared only
    assert await table.tables.count_data() == {TABLE_ID: TableTotals(1, 60, 1_000)}
    await table.append({0: [(60, 100)]})
    await table.append({0: [(0, 100)]}, removed=await table.live())
    assert await table.tables.count_data() == {TABLE_ID: TableTotals(1, 100, 1_000)}


async def test_a_repeated_commit_returns_its_version_and_a_late_one_of_another_is_refused(table: TableNode) -> None:
    first = await table.change({0: [(0, 60)]})
    other = await table.change({0: [(0, 50)]})
    assert await table.tables.commit(first) == 1
    assert await table.tables.commit(first) == 1
    with pytest.raises(TableChanged, match="table 't' is at version 1, and the commit replaces version 0: read the"):
        await table.tables.commit(other)
    await table.append({0: [(60, 100)]})
    assert await table.tables.commit(first) == 1
    assert await table.bounds() == [(0, 60), (60, 100)]


async def test_a_file_is_added_once(table: TableNode) -> None:
    """Its row would have the last range, and the bounds all of them."""
    commit = await table.change({0: [(0, 60), (60, 100)]})
    first, second, *others = commit.added
    twice = replace(commit, added=[first, replace(second, file_id=first.file_id), *others])
    with pytest.raises(CatalogError, match=f"file {first.file_id} is added twice"):
        await table.tables.commit(twice)
    assert await table.tables.commit(commit) == 1


async def test_of_two_committers_at_once_one_is_told_to_read_again(table: TableNode) -> None:
    other = (await table.node.catalog.register_node(2, "b", 1, now_ms=NOW, lease_ms=1)).identity
    commits = [await table.change({0: [(0, 50)]}), await table.change({0: [(0, 60)]}, node=other)]
    answers = await asyncio.gather(*(table.tables.commit(each) for each in commits), return_exceptions=True)
    assert sorted(type(answer).__name__ for answer in answers) == ["TableChanged", "int"]
    (won,) = [commit for commit, answer in zip(commits, answers, strict=True) if answer == 1]
    assert (await table.state()).info.snapshot_id == won.snapshot_id
    assert await table.bounds() == [(0, won.added[0].end_offset)]


async def test_a_commit_that_took_effect_is_found_after_its_table_was_dropped(table: TableNode) -> None:
    commit = await table.append({0: [(0, 100)]})
    await table.tables.drop(TABLE_ID, keep_files=False, now_ms=NOW, delete_after_ms=LATER)
    assert await table.tables.commit(commit) == 1


async def test_small_files_are_joined_and_the_old_ones_live_as_long_as_their_snapshot(table: TableNode) -> None:
    await table.append({0: [(0, 10), (10, 20), (20, 30)]})
    small = await table.live()
    await table.append({0: [(0, 30), (30, 100)]}, removed=small)
    assert await table.bounds() == [(0, 30), (30, 100)]
    ids = [file.file_id for file in small]
    found = await table.node.catalog._database.read(lambda c: find_files(c, ids))  # noqa: SLF001
    assert {(file.state, file.removed, file.deadline_ms) for file in found.values()} == {(ObjectState.COMMITTED, 2, 0)}
    assert await table.due(LATER) == []
    await table.append({}, expire_before=2)
    # With the small files goes the metadata of the first version.
    assert set(ids) < set(await table.due(LATER))
    assert len(await table.due(LATER)) == len(ids) + 1
    assert await table.due(LATER - 1) == []


async def test_a_file_may_replace_the_last_one_and_go_on(table: TableNode) -> None:
    await table.append({0: [(0, 60)]})
    await table.append({0: [(0, 100)]}, removed=await table.live())
    assert await table.bounds() == [(0, 100)]


async def test_files_before_the_topics_start_leave_the_table(table: TableNode) -> None:
    await table.append({0: [(0, 40), (40, 60), (60, 100)]})
    await table.trim(0, 50)
    gone = await table.tables.list_trimmed_files(TABLE_ID, limit=10)
    assert [(file.start_offset, file.end_offset) for file in gone] == [(0, 40)]
    # A file that the start lies in is cut.
    (_, cut, _) = await table.live()
    await table.append({0: [(50, 60)]}, removed=[*gone, cut])
    assert await table.bounds() == [(50, 60), (60, 100)]
    assert (await table.state()).bounds == {0: OffsetBounds(50, 100)}


async def test_a_table_that_fell_behind_goes_on_at_the_topics_start(table: TableNode) -> None:
    await table.append({0: [(0, 40)]})
    await table.trim(0, 50)
    with pytest.raises(CatalogError, match=r"partition 0: a gap: no file has the offsets \[40, 50\)"):
        await table.append({0: [(50, 60)]})
    await table.append({0: [(50, 60)]}, removed=await table.live())
    assert (await table.state()).bounds == {0: OffsetBounds(50, 60)}


async def test_a_table_begins_at_the_start_of_its_topic(table: TableNode) -> None:
    await table.trim(0, 50)
    with pytest.raises(CatalogError, match=r"a gap: no file has the offsets \[0, 51\)"):
        await table.append({0: [(51, 60)]})
    await table.append({0: [(50, 60)]})
    assert (await table.state()).bounds == {0: OffsetBounds(50, 60)}


async def test_a_table_that_lost_all_its_files_remembers_its_end(table: TableNode) -> None:
    await table.append({0: [(0, 60)]})
    await table.trim(0, 60)
    await table.append({}, removed=await table.live())
    assert (await table.state()).bounds == {0: OffsetBounds(60, 60)}
    with pytest.raises(CatalogError, match="a gap"):
        await table.append({0: [(61, 70)]})
    with pytest.raises(CatalogError, match=r"offsets \[50, 60\) are in the table already, or left it"):
        await table.append({0: [(50, 70)]})
    await table.append({0: [(60, 70)]})


async def test_files_that_are_kept_outlive_the_topics_range_and_the_topic(catalog: Catalog) -> None:
    table = await TableNode.started(catalog, retention=TableRetention.KEEP)
    await table.grow(0, 100)
    await table.append({0: [(0, 40)]})
    await table.trim(0, 50)
    assert await table.tables.list_trimmed_files(TABLE_ID, limit=10) == []
    with pytest.raises(CatalogError, match=r"offsets \[0, 40\) are removed, and the table keeps its files"):
        await table.append({}, removed=await table.live())
    await table.append({0: [(50, 100)]})
    assert await table.bounds() == [(0, 40), (50, 100)]
    await delete_topic(catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    assert await table.bounds() == [(0, 40), (50, 100)]
    with pytest.raises(NotFound, match="partition 0: the topic has no such partition, or is gone: nothing can be app"):
        await table.append({0: [(100, 101)]})
    # Joins and expiry go on.
    (_, last) = await table.live()
    await table.append({0: [(50, 70), (70, 100)]}, removed=[last], expire_before=3)
    assert await table.bounds() == [(0, 40), (50, 70), (70, 100)]


async def test_a_deleted_topic_takes_its_table_along(table: TableNode) -> None:
    commit = await table.append({0: [(0, 100)]})
    (open_file,) = await table.prepare(TableFileKind.DATA)
    await delete_topic(table.node.catalog, "t", now_ms=NOW, delete_after_ms=LATER)
    assert await table.tables.list() == []
    assert await table.due(LATER - 1) == []
    assert await table.due(LATER) == sorted([*(item.file_id for item in commit.added), open_file.file_id])


async def test_a_dropped_table_leaves_its_files_if_they_are_kept(table: TableNode) -> None:
    await table.append({0: [(0, 50)]})
    await table.append({0: [(0, 60)]}, removed=await table.live())
    (open_file,) = await table.prepare(TableFileKind.DATA)
    for _ in range(2):
        await table.tables.drop(TABLE_ID, keep_files=True, now_ms=NOW, delete_after_ms=NOW)
    assert await table.due(DEADLINE - 1) == [], "an unanswered PUT of it may still land"
    assert await table.due(DEADLINE) == [open_file.file_id]
    with pytest.raises(NotFound, match="does not exist: it was never created, or was dropped"):
        await table.state()
    # The topic may get another one.
    await table.tables.create(replace(NEW_TABLE, table_id=b"U" * 16), now_ms=NOW)


async def test_a_commit_without_a_snapshot_adds_a_schema_and_expires(table: TableNode) -> None:
    first = await table.append({0: [(0, 50)]})
    second = await table.append({0: [(50, 60)]})
    commit = await table.change(snapshot=False, schema="schema 2", expire_before=2)
    assert await table.tables.commit(commit) == 3
    state = await table.state()
    assert state.schemas == ["schema 1", "schema 2"]
    assert (state.info.snapshot_id, state.info.metadata_file) == (second.snapshot_id, commit.added[0].file_id)
    assert [each.version for each in state.snapshots] == [2]
    # The metadata of version 2 shows a snapshot that is there: whoever has its place may still read it.
    assert await table.due(LATER) == [first.added[-1].file_id]


async def test_discarded_files_are_neither_committed_nor_deleted_early(table: TableNode) -> None:
    commit = await table.change({0: [(0, 50)]})
    ids = [item.file_id for item in commit.added]
    done = await table.append({0: [(0, 60)]})
    await table.tables.discard_files(
        [*ids, *(item.file_id for item in done.added), 99], now_ms=NOW, delete_after_ms=LATER
    )
    assert await table.bounds() == [(0, 60)]
    assert await table.due(LATER - 1) == []
    assert await table.due(LATER) == ids
    with pytest.raises(NotFound, match=f"file {ids[0]} must be PREPARED to be committed, found DESTROYED"):
        await table.tables.commit(replace(commit, version=1))


async def test_a_file_past_its_deadline_expires_and_is_forgotten(table: TableNode) -> None:
    commit = await table.change({0: [(0, 50)]})
    ids = [item.file_id for item in commit.added]
    await table.tables.note_multipart(ids[0], "upload")
    assert [file.upload_id for file in await table.tables.list_reapable(now_ms=DEADLINE, limit=1)] == ["upload"]
    assert await table.tables.expire_files(ids, now_ms=DEADLINE - 1) == []
    assert sorted(await table.tables.expire_files(ids, now_ms=DEADLINE)) == ids
    with pytest.raises(NotFound, match="found DESTROYED"):
        await table.tables.commit(commit)
    await table.tables.forget_files(ids)
    with pytest.raises(NotFound, match=f"file {ids[0]} is unknown: never prepared, or reaped"):
        await table.tables.commit(commit)
    with pytest.raises(NotFound, match="is not prepared"):
        await table.tables.note_multipart(ids[0], "upload")
    done = await table.append({0: [(0, 50)]})
    with pytest.raises(CatalogError, match="is committed and cannot be forgotten"):
        await table.tables.forget_files([done.added[0].file_id])


async def test_a_file_that_a_snapshot_names_is_not_given_to_the_collector(table: TableNode) -> None:
    """Whatever has set its state: the collector's query asks the snapshots, too."""
    from sqlalchemy import update

    from anabranch.s3stream.catalog.schema import table_files

    await table.append({0: [(0, 50)]})
    removed = await table.live()
    await table.append({0: [(0, 50)]}, removed=removed)
    wrong = update(table_files).where(table_files.c.file_id == removed[0].file_id).values(state=3, deadline_ms=1)
    await table.node.catalog._database.write(lambda c: c.execute(wrong).close())  # noqa: SLF001
    assert await table.due(LATER) == []


Make = Callable[[TableNode], Awaitable[TableCommit]]


async def of_an_older_epoch(table: TableNode) -> TableCommit:
    commit = await table.change({0: [(0, 50)]})
    await table.node.catalog.register_node(NODE_ID, "elsewhere", 1, now_ms=NOW, lease_ms=1)
    return commit


async def of_a_missing_table(table: TableNode) -> TableCommit:
    return replace(await table.change({0: [(0, 50)]}), table_id=b"X" * 16)


async def of_another_table(table: TableNode) -> TableCommit:
    commit = await table.change({0: [(0, 50)]})
    topic = await table.node.create_topic("u", 1)
    await table.tables.create(NewTable(b"U" * 16, topic.topic_id, "u", "main", "tables/test/u", "schema"), now_ms=NOW)
    return replace(commit, table_id=b"U" * 16)


async def of_another_node(table: TableNode) -> TableCommit:
    other = await table.node.catalog.register_node(2, "b", 1, now_ms=NOW, lease_ms=1)
    return replace(await table.change({0: [(0, 50)]}), node=other.identity)


def with_first(**fields: int) -> Make:
    async def make(table: TableNode) -> TableCommit:
        commit = await table.change({0: [(0, 50)]})
        return replace(commit, added=[replace(commit.added[0], **fields), *commit.added[1:]])

    return make


async def without_metadata(table: TableNode) -> TableCommit:
    commit = await table.change({0: [(0, 50)]})
    return replace(commit, added=commit.added[:-1])


async def without_a_snapshot(table: TableNode) -> TableCommit:
    return replace(await table.change({0: [(0, 50)]}), snapshot_id=0)


async def expiring_the_current_snapshot(table: TableNode) -> TableCommit:
    await table.append({0: [(0, 50)]})
    return await table.change(snapshot=False, expire_before=2)


def appending(*spans: tuple[int, int]) -> Make:
    async def make(table: TableNode) -> TableCommit:
        await table.append({0: [(0, 20), (20, 40)]})
        return await table.change({0: spans})

    return make


def replacing(which: int, *spans: tuple[int, int], trimmed: int = 0) -> Make:
    async def make(table: TableNode) -> TableCommit:
        await table.append({0: [(0, 20), (20, 40)]})
        if trimmed:
            await table.trim(0, trimmed)
        return await table.change({0: spans}, removed=[(await table.live())[which]])

    return make


async def removing_what_was_removed(table: TableNode) -> TableCommit:
    await table.append({0: [(0, 20)]})
    gone = await table.live()
    await table.append({0: [(0, 20)]}, removed=gone)
    return await table.change({0: [(0, 20)]}, removed=gone)


async def removing_metadata(table: TableNode) -> TableCommit:
    done = await table.append({0: [(0, 20)]})
    return replace(await table.change({0: [(20, 40)]}), removed=[done.added[-1].file_id])


async def with_metadata_of_another_commit(table: TableNode) -> TableCommit:
    done = await table.append({0: [(0, 20)]})
    commit = await table.change({0: [(20, 40)]})
    return replace(commit, added=[*commit.added[:-1], done.added[-1]])


async def to_a_missing_partition(table: TableNode) -> TableCommit:
    return await table.change({9: [(0, 20)]})


REFUSED: dict[str, tuple[Make, type[StorageError], str]] = {
    "fenced": (of_an_older_epoch, NodeFenced, "node 1: epoch 1 is not the registered 2"),
    "missing table": (of_a_missing_table, NotFound, "table id 5858.* does not exist: it was never created, or"),
    "other table": (of_another_table, CatalogError, "file 1 was prepared for another table"),
    "other node": (of_another_node, CatalogError, "file 1 was prepared by node 1, not by node 2"),
    "no bytes": (with_first(size_bytes=0), CatalogError, "file 1 is empty: 0 bytes"),
    "no offsets": (
        with_first(end_offset=0),
        CatalogError,
        r"file 1 has the empty range \[0, 0\) of partition 0",
    ),
    "no partition": (with_first(idx=-1), CatalogError, r"file 1 has the empty range \[0, 50\) of partition -1"),
    "missing partition": (to_a_missing_partition, NotFound, "partition 9: the topic has no such partition, or is gone"),
    "unknown schema": (with_first(schema_id=2), CatalogError, "file 1 has schema 2, and the newest is 1"),
    "no metadata": (without_metadata, CatalogError, "table 't': a commit has one file of metadata, found 0"),
    "no snapshot": (without_a_snapshot, CatalogError, "a commit without a snapshot changes no data and no manifests"),
    "current expires": (
        expiring_the_current_snapshot,
        CatalogError,
        "table 't': the current snapshot, of version 1, cannot expire before version 2",
    ),
    "gap": (appending((41, 50)), CatalogError, r"partition 0: a gap: no file has the offsets \[40, 41\)"),
    "gap inside": (appending((40, 50), (51, 60)), CatalogError, r"a gap: no file has the offsets \[50, 51\)"),
    "twice in the commit": (appending((40, 50), (45, 60)), CatalogError, r"offsets \[45, 50\) are in two new files"),
    "twice in the table": (appending((30, 50)), CatalogError, r"offsets \[30, 40\) are in the table already"),
    "ahead of the topic": (
        appending((40, 101)),
        CatalogError,
        "partition 0: a file ends at 101, past the topic's committed end 100",
    ),
    "a join that loses": (
        replacing(1, (20, 39)),
        CatalogError,
        r"offsets \[39, 40\) are removed and not replaced, and the topic's begin at 0",
    ),
    "a join that doubles": (replacing(1, (19, 40)), CatalogError, r"offsets \[19, 20\) are in the table already"),
    "a hole": (
        replacing(1, trimmed=50),
        CatalogError,
        r"offsets \[20, 40\) are removed, and earlier ones are not: the table begins at 0",
    ),
    "removed before": (removing_what_was_removed, CatalogError, r"file \d+ is not in table 't': it cannot be removed"),
    "metadata removed": (removing_metadata, CatalogError, r"file \d+ is metadata, which only its successor removes"),
    "used metadata": (
        with_metadata_of_another_commit,
        CatalogError,
        r"file \d+ was committed before, by another commit",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_commit_says_why_in_one_line_and_changes_nothing(table: TableNode, name: str) -> None:
    make, kind, said = REFUSED[name]
    commit = await make(table)
    before = await table.state(), await table.live()
    with pytest.raises(kind, match=said) as raised:
        await table.tables.commit(commit)
    assert type(raised.value) is kind
    assert "\n" not in str(raised.value)
    assert (await table.state(), await table.live()) == before


async def test_who_may_prepare_and_create(table: TableNode) -> None:
    again = await table.tables.create(NEW_TABLE, now_ms=NOW + 1)
    assert again.options == {"table.value": "json"}, "it is the one that was there"
    for wanted, kind, said in (
        (replace(NEW_TABLE, table_id=b"U" * 16), AlreadyExists, "table 't' of this topic exists"),
        (replace(NEW_TABLE, table_id=b"U" * 16, topic_id=b"x" * 16), NotFound, "topic id 7878.* does not exist: it"),
    ):
        with pytest.raises(kind, match=said):
            await table.tables.create(wanted, now_ms=NOW)
    topic = await table.node.create_topic("u", 1)
    other = replace(NEW_TABLE, table_id=b"U" * 16, topic_id=topic.topic_id)
    with pytest.raises(AlreadyExists, match="table 't' of another topic exists: drop it first"):
        await table.tables.create(other, now_ms=NOW)
    with pytest.raises(NotFound, match="a of topic u is no longer 1: no table is made"):
        await table.tables.create(replace(other, name="u", topic_configs={"a": "1"}), now_ms=NOW)
    await table.node.catalog.alter_topic(topic.topic_id, lambda own: own | {"a": "1"})
    assert (await table.tables.create(replace(other, name="u", topic_configs={"a": "1"}), now_ms=NOW)).name == "u"
    await table.tables.drop(other.table_id, keep_files=False, now_ms=NOW, delete_after_ms=LATER)
    assert await table.prepare() == []
    await table.tables.drop(TABLE_ID, keep_files=False, now_ms=NOW, delete_after_ms=LATER)
    with pytest.raises(NotFound):
        await table.prepare(TableFileKind.DATA)
    await table.node.catalog.register_node(NODE_ID, "elsewhere", 1, now_ms=NOW, lease_ms=1)
    with pytest.raises(NodeFenced):
        await table.prepare(TableFileKind.DATA)


async def test_a_detached_topic_keeps_its_table_and_gets_nothing_new(table: TableNode) -> None:
    await table.append({0: [(0, 50)]})
    node: MetadataNode = table.node
    ends = {key: info.end_offset for key, info in (await node.catalog.get_streams(node.streams)).items()}
    await node.catalog.detach_topic("t", b"t" * 16, ends=ends, node=node.identity, now_ms=NOW)
    assert await table.bounds() == [(0, 50)]
    with pytest.raises(NotFound, match="or is gone: nothing can be appended"):
        await table.append({0: [(50, 60)]})
    await node.catalog.attach_topic(b"t" * 16, "renamed", node=node.identity)
    await table.append({0: [(50, 60)]})
    assert [info.name for info in await table.tables.list()] == ["t"]


async def test_statements_do_not_grow_with_files_snapshots_or_partitions(catalog: Catalog) -> None:
    table = await TableNode.started(catalog, partitions=20)
    for partition in range(20):
        await table.grow(partition, 1_000)
    engine = catalog._database._writer  # noqa: SLF001
    counted: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: counted.append(arguments[2]))

    async def statements(files: int, partitions: int, removed: bool) -> int:
        spans: dict[int, list[tuple[int, int]]] = {}
        replaced: list[TableFile] = []
        for partition in range(partitions):
            end = max((high for _, high in await table.bounds(partition)), default=0)
            replaced += await table.live(partition) if removed else []
            begin = 0 if removed else end
            spans[partition] = [(begin, end + 1), *((each, each + 1) for each in range(end + 1, end + files))]
        commit = await table.change(spans, removed=replaced, expire_before=await table.version())
        counted.clear()
        await table.tables.commit(commit)
        return len(counted)

    await statements(1, 20, removed=False)
    small = await statements(1, 1, removed=True)
    large = await statements(40, 20, removed=True)
    assert small == large <= 18


async def test_a_table_is_the_same_in_a_manifest_a_backup_and_a_restored_catalog(
    table: TableNode, tmp_path: Path
) -> None:
    await table.append({0: [(0, 40), (40, 60)]})
    await table.append({0: [(0, 60)]}, removed=await table.live())
    await table.prepare(TableFileKind.DATA)
    await table.tables.commit(await table.change(snapshot=False, schema="schema 2"))
    source = table.node.catalog
    _, state = await source.read_state()
    assert {name: len(each.rows) for name, each in state.tables.items()} == {
        "tables": 1,
        "table_schemas": 2,
        "table_partitions": 1,
        "table_snapshots": 2,
        "table_files": 9,
    }
    manifest = Manifest(1, "test", NodeIdentity(1, 1), NOW, state)
    assert decode_manifest(encode_manifest(manifest), where="here") == manifest
    await source.back_up(tmp_path / "backup", now_ms=NOW, overwrite=False, on_progress=lambda *_: None)
    assert read_backup(tmp_path / "backup").state.tables == state.tables
    expected = await table.state(), await table.live(), await table.tables.list_reapable(now_ms=LATER, limit=100)
    async with opened_catalog(f"sqlite:///{tmp_path / 'restored.db'}") as restored:
        await restored.restore(replace(CONTENTS, tables=state.tables))
        found = (
            await restored.tables.read(TABLE_ID),
            await restored.tables.list_data_files(TABLE_ID, 0, start_offset=0, limit=10),
            await restored.tables.list_reapable(now_ms=LATER, limit=100),
        )
        assert found == expected
        assert (await restored.read_state())[1].tables == state.tables


async def test_a_catalog_without_tables_says_nothing_of_them(catalog: Catalog) -> None:
    _, state = await catalog.read_state()
    assert state.tables == {}
    assert "tables" not in json.loads(json_text(Manifest(1, "test", NodeIdentity(1, 1), NOW, state)))
