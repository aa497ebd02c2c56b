"""`anabranch spark table` with the real Spark, against what a READ_COMMITTED consumer sees of the topic."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from anabranch.broker.cluster.node import Node
from anabranch.s3stream.catalog.table_values import OffsetBounds, TableFile, TableFileKind
from anabranch.s3stream.maintain.gc import GarbageCollector
from anabranch.s3stream.model import ObjectState
from anabranch.spark import storage_commands
from anabranch.spark.cli import main
from anabranch.spark.storage import StorageLocation, find_storage
from anabranch.spark.table_backlog import SparkTable
from anabranch.spark.table_shares import SentFile, divide, first_gap
from anabranch.spark.tasks import TasksFailed
from anabranch.tables.requests import ShareReport
from anabranch.tables.upkeep import committer as committer_module
from anabranch.tables.upkeep.commit import TableCommits
from anabranch.tables.upkeep.data_files import MadeFile
from anabranch.tables.upkeep.plan import PartitionFacts
from tests.spark.programs import program
from tests.support.events import QUIET, Event, committed_records, create_topic, wait_stable
from tests.support.node import running_node
from tests.support.tables import created_slowly, own_committer, read_table, records_of, sent

HOUR_MS = 3_600_000


def values(start: int, end: int, partitions: int = 1) -> list[Event]:
    return [Event(at % partitions, b"value %d" % at, b"key %d" % at) for at in range(start, end)]


class Backlog:
    """A node with topics whose tables it leaves alone for an hour, and the location of its storage."""

    def __init__(self, node: Node, folder: Path, location: StorageLocation) -> None:
        self.node = node
        self.folder = folder
        self.location = location
        self.tables = node.serving.catalog.tables

    async def filled(self, topic: str, uploads: int = 6, partitions: int = 1, **configs: str) -> None:
        """Create a table, and a topic that has some blocks more than it."""
        await created_slowly(self.node, topic, partitions, {name.replace("_", "."): configs[name] for name in configs})
        for at in range(uploads):
            await sent(self.node, topic, values(at * 10, at * 10 + 10, partitions))

    async def rows(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """Partition, key and value of the table's rows."""
        metadata = (await self.tables.find(topic)).metadata
        assert metadata is not None
        uri = self.node.stores[metadata.store].uri(metadata.file_key)
        return records_of(await asyncio.to_thread(read_table, uri))

    async def consumed(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """The same of the records of a consumer."""
        return await asyncio.to_thread(committed_records, self.node.bootstrap, topic)

    async def stored(self, topic: str) -> set[str]:
        """Keys of the data files in the store."""
        info = (await self.tables.find(topic)).info
        keys = [each.key async for each in self.node.stores[info.store].list(f"{info.location}/")]
        return {key for key in keys if key.endswith(".parquet")}

    async def live(self, topic: str) -> set[str]:
        """Those of the current snapshot."""
        info = (await self.tables.find(topic)).info
        return {each.file_key for each in await self.tables.list_live_files(info.table_id, after=(-1, -1), limit=1000)}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def backlog(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Backlog]:
    folder = tmp_path_factory.mktemp("backlog")
    async with running_node(folder, storage_delete_delay_ms=0) as node:
        data_dir = node.serving.settings.node.data_dir
        yield Backlog(node, folder, find_storage({"dataDir": str(data_dir)}))


spark_and_node = pytest.mark.asyncio(loop_scope="module")


def transact(servers: str, topic: str, name: str, *, commit: bool | None) -> Producer:
    """Send a transaction to each partition, and commit it, abort it, or leave it open."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, **QUIET})
    producer.init_transactions(30)
    producer.begin_transaction()
    for at in range(10):
        producer.produce(topic, b"%s %d" % (name.encode(), at), partition=at % 2)
    producer.flush(30)
    if commit is not None:
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        wait_stable(servers, topic)
    return producer


@pytest.mark.spark
@pytest.mark.slow
@spark_and_node
async def test_rows_are_what_a_consumer_reads_and_the_next_run_has_nothing_to_do(
    spark: SparkSession, backlog: Backlog
) -> None:
    """Of several files of two partitions, with aborted transactions within and between them, and an open one last."""
    await backlog.filled("exact", 1, 2)
    servers = backlog.node.bootstrap
    for at in range(4):
        await asyncio.to_thread(transact, servers, "exact", f"txn-{at}", commit=at % 2 == 0)
        await backlog.node.serving.storage.flush()
    opened = await asyncio.to_thread(transact, servers, "exact", "txn-4", commit=None)
    await sent(backlog.node, "exact", values(100, 110, 2))  # not readable yet
    summary = await SparkTable(spark, backlog.location, "exact", share_bytes_min=1_000).run()
    rows = await backlog.rows("exact")
    assert len(rows) == summary.rows == 30
    assert summary.files > 2, "several files of a partition"
    assert (summary.errors, summary.overtaken, summary.commits) == (0, 0, 1)
    await asyncio.to_thread(opened.abort_transaction, 30)
    await asyncio.to_thread(wait_stable, backlog.node.bootstrap, "exact")
    await backlog.node.serving.storage.flush()
    assert rows == [each for at, each in enumerate(await backlog.consumed("exact")) if at % 20 < 15]
    await SparkTable(spark, backlog.location, "exact").run()
    assert await backlog.rows("exact") == await backlog.consumed("exact")
    idle = await SparkTable(spark, backlog.location, "exact").run()
    assert (idle.rows, idle.files, idle.commits) == (0, 0, 0)
    assert await backlog.stored("exact") == await backlog.live("exact")


@pytest.mark.spark
@pytest.mark.slow
@spark_and_node
async def test_of_a_job_and_a_node_that_commit_the_same_rows_one_has_each(
    spark: SparkSession, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node commits a block while the job makes its first commit, whose first file is in vain then."""
    await backlog.filled("both")
    monkeypatch.setattr(committer_module, "SHARE_BYTES_MAX", 1)
    monkeypatch.setattr(committer_module, "FILES_MAX", 1)
    own = own_committer(backlog.node, "both", tmp_path / "own")
    publish = TableCommits.publish
    overtaken: list[int] = []

    async def be_overtaken(self: TableCommits, *args: Any, **named: Any) -> Any:
        if not overtaken:
            overtaken.append(1)
            await own.run()
        return await publish(self, *args, **named)

    monkeypatch.setattr(TableCommits, "publish", be_overtaken)
    summary = await SparkTable(spark, backlog.location, "both", share_bytes_min=4_000).run()
    assert summary.overtaken == 1
    assert 0 < summary.rows < 60
    assert summary.rows + own.stats.rows == 60
    assert await backlog.rows("both") == await backlog.consumed("both")


KILLED = """\
import asyncio, sys
from anabranch.spark import table_backlog
from anabranch.spark.cli import main
from anabranch.tables.upkeep.commit import TableCommits
publish = TableCommits.publish
commits = []
async def publish_once(self, *args, **named):
    if commits:
        print("is about to commit", flush=True)
        await asyncio.sleep(3600)
    commits.append(1)
    return await publish(self, *args, **named)
TableCommits.publish = publish_once
table_backlog.FILES_MAX = 1
table_backlog.SHARE_BYTES_MAX = 1
table_backlog.SparkTable.__init__.__kwdefaults__["share_bytes_min"] = 1
main(sys.argv[1:])
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@spark_and_node
async def test_a_job_that_is_killed_between_two_commits_is_repeated_and_what_it_left_is_deleted(
    spark: SparkSession, backlog: Backlog, tmp_path: Path
) -> None:
    await backlog.filled("killed", 4)
    data_dir = str(backlog.node.serving.settings.node.data_dir)
    root = str(Path(__file__).parents[2])
    command = [
        sys.executable, "-c", KILLED, "table", "killed", "--data-dir", data_dir, "--master", "local[1]",
        "--conf", f"spark.local.dir={tmp_path / 'spark'}",
    ]  # fmt: skip
    with program(command, tmp_path, "job", {"PYTHONPATH": root}) as job:
        await asyncio.to_thread(job.wait, lambda: bool(job.said("is about to commit")))
        job.kill()
    done = await backlog.live("killed")
    left = await backlog.stored("killed") - done
    assert len(done) == 1
    assert left
    summary = await SparkTable(spark, backlog.location, "killed").run()
    assert 0 < summary.rows < 40
    assert await backlog.rows("killed") == await backlog.consumed("killed")
    now_ms = backlog.node.serving.now_ms
    await GarbageCollector(
        catalog=backlog.node.serving.catalog,
        stores=backlog.node.stores,
        cluster=backlog.location.cluster,
        now_ms=lambda: now_ms() + 2 * HOUR_MS,
    ).collect()
    assert left.isdisjoint(await backlog.stored("killed"))
    assert await backlog.rows("killed") == await backlog.consumed("killed")


async def command(spark: SparkSession, backlog: Backlog, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    """Run the command in the session of the tests."""

    @contextmanager
    def started(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(storage_commands, "started", started)
    data_dir = str(backlog.node.serving.settings.node.data_dir)
    return await asyncio.to_thread(CliRunner().invoke, main, ["table", *arguments, "--data-dir", data_dir])


@pytest.mark.spark
@pytest.mark.slow
@spark_and_node
async def test_the_command_says_what_it_has_done_and_what_is_wrong_in_one_line(
    spark: SparkSession, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
    await created_slowly(backlog.node, "typed", 1, {"table.value": "json", "table.value.schema": schema})
    await sent(backlog.node, "typed", [Event(0, b'{"n": 1}'), Event(0, b'{"n": "2"}')])
    result = await command(spark, backlog, monkeypatch, "typed")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert lines[0] == "rows 2 (1 with an error)"
    assert lines[1] == "files, commits 1, 1"
    assert [line.split()[0] for line in lines[2:]] == ["read", "seconds", "rows"]
    await asyncio.to_thread(create_topic, backlog.node.bootstrap, "plain", 1)
    await created_slowly(backlog.node, "keyed", 1, {"cleanup.policy": "compact"})
    await created_slowly(backlog.node, "registered", 1, {"table.value": "auto"})
    wanted = {
        "none": "topic none does not exist in this cluster",
        "plain": "topic plain is no table: `anabranch topic alter plain --table FORMAT` makes it one",
        "keyed": "topic keyed is compacted: its node brings its table up to date",
        "registered": "topic registered: its schemas are in a registry: give its URL with --registry",
    }
    for topic, line in wanted.items():
        result = await command(spark, backlog, monkeypatch, topic)
        assert (result.exit_code, result.output) == (1, f"Error: {line}\n")
    credentials = ("--registry-credentials-env", "NOT_SET")
    for arguments, line in {
        credentials: "--registry-credentials-env: set, but there is no --registry",
        ("--registry", "http://127.0.0.1:1", *credentials): (
            "--registry-credentials-env: the environment has no NOT_SET"
        ),
    }.items():
        result = await command(spark, backlog, monkeypatch, "typed", *arguments)
        assert (result.exit_code, result.output.splitlines()[-1]) == (2, f"Error: {line}")


@pytest.mark.spark
@pytest.mark.slow
@spark_and_node
async def test_a_node_that_starts_anew_fences_the_job(
    spark: SparkSession, backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    await backlog.filled("fenced", 1)
    get_node = type(backlog.node.serving.catalog).get_node

    async def be_older(self: Any, node_id: int) -> Any:
        from dataclasses import replace

        info = await get_node(self, node_id)
        assert info is not None
        return replace(info, epoch=info.epoch - 1)

    monkeypatch.setattr(type(backlog.node.serving.catalog), "get_node", be_older)
    with pytest.raises(TasksFailed, match=r"^Spark gave up: node 1: epoch .* is not the registered"):
        await SparkTable(spark, backlog.location, "fenced").run()
    assert await backlog.rows("fenced") == []


# pure


def sent_file(idx: int, start: int, end: int) -> SentFile:
    file = TableFile(
        start, b"", TableFileKind.DATA, ObjectState.PREPARED, "", "", 0, 0, -1, 0, 0, 0, 0, 1, "", "", 0, 0, 0, 0
    )
    return SentFile(file, MadeFile(Path(os.devnull), idx, OffsetBounds(start, end), ShareReport()))


def facts(*, table: tuple[int, int], stream: tuple[int, int], idx: int = 0) -> PartitionFacts:
    return PartitionFacts(idx, OffsetBounds(*stream), OffsetBounds(*table))


@pytest.mark.parametrize(
    ("partition", "ready", "waiting", "overtaken"),
    [
        (facts(table=(0, 10), stream=(0, 99)), [(10, 20), (20, 30)], [(40, 50)], []),
        (facts(table=(0, 15), stream=(0, 99)), [], [(20, 30), (40, 50)], [(10, 20)]),
        (facts(table=(0, 20), stream=(0, 99)), [(20, 30)], [(40, 50)], [(10, 20)]),
        (facts(table=(0, 5), stream=(0, 99)), [], [(10, 20), (20, 30), (40, 50)], []),
        (facts(table=(0, 0), stream=(10, 99)), [(10, 20), (20, 30)], [(40, 50)], []),
        (facts(table=(0, 0), stream=(15, 99)), [(10, 20), (20, 30)], [(40, 50)], []),
        (facts(table=(0, 50), stream=(0, 99)), [], [], [(10, 20), (20, 30), (40, 50)]),
    ],
)
def test_files_are_committed_in_the_order_of_offsets(
    partition: PartitionFacts,
    ready: Sequence[tuple[int, int]],
    waiting: Sequence[tuple[int, int]],
    overtaken: Sequence[tuple[int, int]],
) -> None:
    files = [sent_file(0, *bounds) for bounds in ((20, 30), (40, 50), (10, 20))]
    found = divide(files, {0: partition}, files_max=10)
    assert [each.bounds for each in found.ready] == ready
    assert [each.bounds for each in found.waiting] == waiting
    assert [each.bounds for each in found.overtaken] == overtaken


def test_a_commit_is_limited() -> None:
    files = [sent_file(idx, at, at + 10) for idx in (0, 1) for at in (0, 10)]
    partitions = {idx: facts(table=(0, 0), stream=(0, 20), idx=idx) for idx in (0, 1)}
    found = divide(files, partitions, files_max=3)
    assert [(each.made.idx, each.bounds) for each in found.ready] == [(0, (0, 10)), (0, (10, 20)), (1, (0, 10))]
    assert [(each.made.idx, each.bounds) for each in found.waiting] == [(1, (10, 20))]


@pytest.mark.parametrize(
    ("partition", "taken", "gap"),
    [
        (facts(table=(0, 10), stream=(0, 99)), [], (10, 50)),
        (facts(table=(0, 10), stream=(0, 99)), [(20, 30)], (10, 20)),
        (facts(table=(0, 10), stream=(0, 99)), [(20, 30), (10, 20)], (30, 50)),
        (facts(table=(0, 10), stream=(0, 99)), [(20, 50), (10, 20)], None),
        (facts(table=(0, 60), stream=(0, 99)), [], None),
        (facts(table=(0, 10), stream=(35, 99)), [(10, 20)], (35, 50)),
        (facts(table=(0, 10), stream=(0, 99)), [(60, 70)], (10, 50)),
    ],
)
def test_what_nobody_makes_is_planned(
    partition: PartitionFacts, taken: Sequence[tuple[int, int]], gap: tuple[int, int] | None
) -> None:
    assert first_gap(partition, 50, [OffsetBounds(*each) for each in taken]) == gap
