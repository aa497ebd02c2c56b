"""A model of a table's commits: two committers and what is left of their earlier lives, on the catalog's statements.

Commits arrive late, again, or never; nodes are fenced; the topic grows and is trimmed; snapshots expire beside
commits; the collector deletes. The model is sets of offsets. It says which commits take effect, and the catalog has to
agree; each unexpired snapshot keeps the bytes of all its files. Four mistakes are planted, and must be found.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection, Engine, NullPool, create_engine, event, update
from sqlalchemy.exc import DBAPIError

from anabranch.s3stream.catalog import nodes as node_rows
from anabranch.s3stream.catalog import table_plans, table_rows, topics
from anabranch.s3stream.catalog.migration import migrate
from anabranch.s3stream.catalog.schema import streams, table_files
from anabranch.s3stream.catalog.table_rows import NewTableFiles
from anabranch.s3stream.catalog.table_values import (
    NewTable,
    NewTableFile,
    TableCommit,
    TableFileKind,
    TableRetention,
)
from anabranch.s3stream.catalog.values import NewTopic, NodeInfo
from anabranch.s3stream.errors import StorageError
from anabranch.s3stream.model import NodeIdentity, ObjectState
from tests.support.postgres import PostgresServer

TABLE = b"T" * 16
TOPIC = b"t" * 16
PARTITIONS = (0, 1)
TTL_MS = 50
DELAY_MS = 20
SETTINGS = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@dataclass
class FileModel:
    """A data file."""

    idx: int
    start: int
    end: int

    @property
    def offsets(self) -> set[int]:
        return set(range(self.start, self.end))


@dataclass
class TableModel:
    """A table: what its snapshots have, as sets."""

    keeps: bool
    version: int = 0
    live: dict[int, FileModel] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    """One past the last offset that the table ever had."""
    manifests: set[int] = field(default_factory=set)
    snapshots: dict[int, frozenset[int]] = field(default_factory=dict)
    """Files of each unexpired snapshot, with its metadata, by version."""

    def of(self, idx: int) -> list[tuple[int, FileModel]]:
        """Live files of a partition, in order."""
        found = [(key, file) for key, file in self.live.items() if file.idx == idx]
        return sorted(found, key=lambda pair: pair[1].start)

    def accepts(self, idx: int, removed: list[FileModel], added: list[FileModel], low: int, high: int) -> bool:
        """Return whether the table may change so while the topic has [low, high)."""
        before = [offset for _, file in self.of(idx) for offset in range(file.start, file.end)]
        gone = set[int]().union(*(file.offsets for file in removed))
        new = [offset for file in added for offset in range(file.start, file.end)]
        if len(new) != len(set(new)):
            return False
        after = (set(before) - gone) | set(new)
        if set(new) & (set(before) - gone):
            return False
        lost = gone - set(new)
        if lost and (self.keeps or max(lost) >= low or min(after - set(new), default=max(lost) + 1) < max(lost)):
            return False
        if lost and min(lost) != min(before):
            return False
        end = self.ends[idx]
        appended = sorted(offset for offset in new if offset >= end)
        if any(offset < end and offset not in gone for offset in new):
            return False
        if lost and any(min(lost) < offset < max(lost) for offset in after):
            return False
        if not appended:
            return True
        if appended != list(range(appended[0], appended[-1] + 1)) or appended[-1] >= high:
            return False
        left = {offset for offset in after if offset < end}
        return appended[0] == end or (appended[0] <= low and (self.keeps or not left))


class TableMachine(RuleBasedStateMachine):
    """The catalog beside the model. Each example is a transaction that is rolled back, each command a savepoint."""

    engine: Engine

    def __init__(self) -> None:
        super().__init__()
        self.connection = self.engine.connect()
        self.transaction = self.connection.begin()
        self.now_ms = 1_000
        self.snapshot_ids = itertools.count(1)
        self.epochs: dict[int, int] = {}
        self.commits: list[tuple[TableCommit, dict[int, FileModel]]] = []
        self.done: dict[int, int] = {}
        """Versions that commits have made, by their place in `commits`."""
        self.deleted: set[int] = set()
        for node_id in (1, 2):
            self.fence(node_id)

    def teardown(self) -> None:
        self.transaction.rollback()
        self.connection.close()

    @contextmanager
    def command(self) -> Iterator[Connection]:
        with self.connection.begin_nested():
            yield self.connection

    @initialize(keeps=st.booleans())
    def create(self, keeps: bool) -> None:
        self.table = TableModel(keeps)
        self.topic = {idx: [0, 4] for idx in PARTITIONS}
        retention = TableRetention.KEEP if keeps else TableRetention.TOPIC
        with self.command() as connection:
            (topic,) = topics.create_topics(connection, [NewTopic("t", TOPIC, len(PARTITIONS), {})], (1,))
            assert not isinstance(topic, StorageError)
            self.streams = [each.stream_id for each in topic.partitions]
            wanted = NewTable(TABLE, TOPIC, "t", "main", "tables/t", "schema", retention)
            table_rows.create_table(connection, wanted, self.now_ms)
            self._move_topic(connection)

    def _move_topic(self, connection: Connection) -> None:
        for idx, (start, end) in self.topic.items():
            moved = update(streams).where(streams.c.stream_id == self.streams[idx])
            connection.execute(moved.values(start_offset=start, end_offset=end))

    @rule(idx=st.sampled_from(PARTITIONS), more=st.integers(1, 6), trimmed=st.integers(0, 6))
    def change_topic(self, idx: int, more: int, trimmed: int) -> None:
        start, end = self.topic[idx]
        self.topic[idx] = [min(start + trimmed, end + more), end + more]
        with self.command() as connection:
            self._move_topic(connection)

    @rule(node_id=st.sampled_from((1, 2)))
    def fence(self, node_id: int) -> None:
        """A node starts again, and then a commit arrives that may be of its earlier life."""
        with self.command() as connection:
            info = node_rows.register_node(connection, NodeInfo(node_id, 0, "h", 1, 1 << 40), None)
        self.epochs[node_id] = info.epoch
        if self.commits:
            self._deliver(len(self.commits) - 1, 1)

    @rule(passed=st.integers(1, TTL_MS))
    def wait(self, passed: int) -> None:
        self.now_ms += passed

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """A committer prepares a commit from what the table is now: a right one, or almost."""
        draw = data.draw
        life = draw(st.sampled_from([NodeIdentity(*pair) for pair in self.epochs.items()]))
        removed: list[int] = []
        added: list[FileModel] = []
        for idx in draw(st.sampled_from(((0,), (1,), (0, 1), ()))):
            files = self.table.of(idx)
            count = draw(st.sampled_from((0, 0, 1, 2, 3)))
            first = draw(st.integers(0, max(0, len(files) - count))) if draw(st.booleans()) else 0
            some = files[first : first + count]
            removed += [key for key, _ in some]
            start = self.topic[idx][0]
            if some and draw(st.sampled_from((True, True, True, False))):
                low = max(some[0][1].start, start if draw(st.booleans()) else 0) + draw(
                    st.sampled_from((0, 0, 0, 1, -1))
                )
                high = some[-1][1].end + draw(st.sampled_from((0, 0, 0, 1, -1)))
                added += [FileModel(idx, low, high)] if 0 <= low < high else []
            if draw(st.booleans()):
                at = max(self.table.ends[idx], start if draw(st.booleans()) else 0) + draw(
                    st.sampled_from((0, 0, 1, -1))
                )
                for length in draw(st.sampled_from(((1,), (2,), (1, 3), (2, 2)))):
                    added += [FileModel(idx, at, at + length)] if at >= 0 else []
                    at += length
        has_snapshot = bool(removed or added) or draw(st.booleans())
        kinds = [TableFileKind.DATA] * len(added) + [TableFileKind.MANIFEST] * has_snapshot + [TableFileKind.METADATA]
        with self.command() as connection:
            wanted = NewTableFiles(kinds, "w", self.now_ms + TTL_MS)
            ids = [file.file_id for file in table_rows.prepare_files(connection, TABLE, wanted, life)]
        data_files = dict(zip(ids, added, strict=False))
        versions = [0, 0, *self.table.snapshots, self.table.version + 1, self.table.version + 2]
        manifests = sorted(self.table.manifests) if has_snapshot and draw(st.booleans()) else []
        commit = TableCommit(
            node=life,
            table_id=TABLE,
            version=self.table.version,
            added=[
                NewTableFile(key, 10, 1, file.idx, file.start, file.end, 1, schema_id=1)
                for key, file in data_files.items()
            ]
            + [NewTableFile(key, 10, 1) for key in ids[len(added) :]],
            now_ms=self.now_ms,
            delete_after_ms=self.now_ms + DELAY_MS,
            removed=[*removed, *manifests],
            snapshot_id=next(self.snapshot_ids) if has_snapshot else 0,
            expire_before=draw(st.sampled_from(versions)),
        )
        self.commits.append((commit, data_files))
        if draw(st.sampled_from((True, True, False))):
            self._deliver(len(self.commits) - 1, 1)

    @rule(data=st.data())
    def begin_another(self, data: st.DataObject) -> None:
        """Do so as often as all the rest together."""
        for _ in range(3):
            self.begin(data)

    @precondition(lambda self: self.commits)
    @rule(data=st.data(), times=st.integers(1, 2))
    def deliver(self, data: st.DataObject, times: int) -> None:
        """A commit arrives, for the first time or again: its answer was lost."""
        recent = range(max(0, len(self.commits) - 4), len(self.commits))
        self._deliver(data.draw(st.sampled_from(recent)), times)

    def _deliver(self, place: int, times: int) -> None:
        commit, files = self.commits[place]
        for _ in range(times):
            if place in self.done:
                expected: int | None = None if self.deleted & {commit.added[-1].file_id} else self.done[place]
            else:
                expected = self._apply(commit, files)
            try:
                with self.command() as connection:
                    made: int | None = table_rows.commit_table(connection, commit)
            except StorageError:
                made = None
            assert made == expected
            if made is not None:
                self.done[place] = made
        self.check()

    def _apply(self, commit: TableCommit, files: dict[int, FileModel]) -> int | None:
        """Apply a commit to the model; returns the version it makes, None if it must be refused."""
        ids = [item.file_id for item in commit.added]
        is_current = self.epochs[commit.node.node_id] == commit.node.epoch and commit.version == self.table.version
        if not is_current or self._unusable & set(ids):
            return None
        gone = [self.table.live[key] for key in commit.removed if key in self.table.live]
        for idx in PARTITIONS:
            removed = [file for file in gone if file.idx == idx]
            added = [file for file in files.values() if file.idx == idx]
            if not self.table.accepts(idx, removed, added, *self.topic[idx]):
                return None
        version = self.table.version + 1
        newest = version if commit.snapshot_id else max(self.table.snapshots, default=None)
        if newest is not None and newest < commit.expire_before:
            return None
        table = self.table
        table.version = version
        table.live = {key: file for key, file in table.live.items() if key not in commit.removed} | files
        for file in files.values():
            table.ends[file.idx] = max(table.ends[file.idx], file.end)
        if commit.snapshot_id:
            table.manifests = (table.manifests - set(commit.removed)) | set(ids[len(files) : -1])
            table.snapshots[version] = frozenset({*table.live, *table.manifests, ids[-1]})
        table.snapshots = {key: some for key, some in table.snapshots.items() if key >= commit.expire_before}
        return version

    @property
    def _unusable(self) -> set[int]:
        """Files that were discarded, or that the collector has expired."""
        with self.command() as connection:
            wanted = [item.file_id for commit, _ in self.commits for item in commit.added]
            found = table_rows.find_files(connection, wanted)
        return {key for key in wanted if key not in found or found[key].state is ObjectState.DESTROYED}

    @precondition(lambda self: self.commits)
    @rule()
    def discard(self) -> None:
        """A committer gives up, perhaps without knowing that its commit has taken effect."""
        with self.command() as connection:
            ids = [item.file_id for item in self.commits[-1][0].added]
            table_rows.LIFE_CYCLE.discard(connection, ids, self.now_ms + DELAY_MS)

    @rule()
    def collect(self) -> None:
        """The collector deletes all that is due."""
        with self.command() as connection:
            due = [file.file_id for file in table_rows.list_reapable_files(connection, self.now_ms, 1_000)]
            expired = table_rows.LIFE_CYCLE.expire(connection, due, self.now_ms)
            self.deleted |= set(expired)
            table_rows.LIFE_CYCLE.forget(connection, expired)
        self.check()

    def check(self) -> None:
        """Compare the catalog with the model, and look for the files of all snapshots."""
        named = set[int]().union(*self.table.snapshots.values())
        assert not named & self.deleted, "B2"
        with self.command() as connection:
            found = table_rows.find_files(connection, named)
            state = table_rows.read_table(connection, TABLE)
            live = [table_rows.list_data_files(connection, TABLE, idx, 0, 1_000) for idx in PARTITIONS]
        assert all(found[key].state is ObjectState.COMMITTED for key in named)
        assert state.info.version == self.table.version
        assert [each.version for each in state.snapshots] == sorted(self.table.snapshots)
        for idx in PARTITIONS:
            ours = [(key, file.start, file.end) for key, file in self.table.of(idx)]
            assert [(file.file_id, file.start_offset, file.end_offset) for file in live[idx]] == ours
            if idx in state.bounds:
                assert state.bounds[idx].end_offset == self.table.ends[idx]
                assert not ours or state.bounds[idx].start_offset == ours[0][1]


def engine_of(url: str) -> Engine:
    """An engine with savepoints, also on SQLite, whose driver would commit before them."""
    engine = create_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


@contextmanager
def machine_on(url: str) -> Iterator[type[TableMachine]]:
    """The machine, on an empty database."""
    engine = engine_of(url)
    with engine.begin() as connection:
        migrate(connection, engine.dialect.name, url)
    yield type("Machine", (TableMachine,), {"engine": engine})
    engine.dispose()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[type[TableMachine]]:
    """The machine on SQLite."""
    with machine_on(f"sqlite:///{tmp_path / 'catalog.db'}") as machine:
        yield machine


def test_the_catalog_and_the_model_agree(machine: type[TableMachine]) -> None:
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.server
def test_postgresql_and_the_model_agree(postgres: PostgresServer) -> None:
    with machine_on(postgres.new_database().replace("postgresql:", "postgresql+psycopg:")) as machine:
        run_state_machine_as_test(machine, settings=SETTINGS)


def a_file_twice(patch: pytest.MonkeyPatch) -> None:
    """Data that overlaps files of the table is taken as new."""
    plan = table_plans._Partition.plan  # noqa: SLF001

    def careless(self: Any, removed: Any, added: Any) -> Any:
        end = self.bounds.end_offset
        return plan(self, removed, [each for each in added if each.start_offset >= end or removed])

    patch.setattr(table_plans._Partition, "plan", careless)  # noqa: SLF001


def a_gap(patch: pytest.MonkeyPatch) -> None:
    """Files need not follow each other."""
    patch.setattr(table_plans._Partition, "_refuse_gap", lambda *_: None)  # noqa: SLF001


def expiry_in_use(patch: pytest.MonkeyPatch) -> None:
    """All that is not in the newest version is destroyed."""
    expire = table_rows._expire_snapshots  # noqa: SLF001

    def hasty(connection: Connection, commit: TableCommit, plan: table_plans.TablePlan) -> None:
        expire(connection, commit, plan)
        connection.execute(
            update(table_files)
            .where(table_files.c.removed == plan.version)
            .values(state=int(ObjectState.DESTROYED), deadline_ms=commit.delete_after_ms)
        )

    patch.setattr(table_rows, "_expire_snapshots", hasty)


def a_fenced_committer(patch: pytest.MonkeyPatch) -> None:
    """An old life of a node moves the pointer."""
    patch.setattr(table_rows, "check_node", lambda *_: None)


@pytest.mark.parametrize("plant", [a_file_twice, a_gap, expiry_in_use, a_fenced_committer])
def test_planted_mistakes_are_found(
    machine: type[TableMachine], plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    hunting = settings(SETTINGS, max_examples=400, phases=[Phase.generate], derandomize=True, print_blob=False)
    with pytest.raises((AssertionError, DBAPIError)):
        run_state_machine_as_test(machine, settings=hunting)
