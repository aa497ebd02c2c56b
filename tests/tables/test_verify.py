"""Verification of tables of a node finds each disagreement of catalog, metadata, rows and records."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import pytest_asyncio
from confluent_kafka import Producer
from crc32c import crc32c
from sqlalchemy import text

from anabranch.broker.cluster.node import Node
from anabranch.s3stream.catalog.database import Database
from anabranch.s3stream.catalog.table_values import TableFile, TableFileKind
from anabranch.s3stream.maintain.findings import Finding, FindingKind, VerifyReport
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.row_files import write_rows
from anabranch.tables.schema import KAFKA, decode_schema
from anabranch.tables.verify import first_difference, verify_tables
from tests.support.events import QUIET, Event
from tests.support.node import running_node
from tests.support.tables import create_table, created_slowly, own_committer, sent, table_has

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

EVENTS = [Event(0, b'{"n": %3d}' % number, b"k%d" % (number % 5)) for number in range(60)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    """Start a node for all tests, each of which has a topic of its own."""
    async with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


class Checked:
    """The table of a topic, of which a test damages something."""

    def __init__(self, node: Node, topic: str, folder: Path) -> None:
        self.node = node
        self.topic = topic
        self.folder = folder
        self.tables = node.serving.catalog.tables
        self.store = node.upkeep.compaction_context.stores["local"]
        self.file: TableFile
        """Its data file."""

    async def make(self, **configs: str) -> None:
        """Create it, with a data file of all events."""
        await asyncio.to_thread(create_table, self.node.bootstrap, self.topic, 1, configs)
        await sent(self.node, self.topic, EVENTS)
        await table_has(self.node, self.topic)
        self.file = (await self.files(TableFileKind.DATA))[0]

    async def commit(self) -> None:
        """Let the table have all of its topic, in one file."""
        committer = own_committer(self.node, self.topic, self.folder / "own")
        while any(await committer.run()):
            pass
        (self.file,) = await self.files(TableFileKind.DATA)

    async def info(self) -> Any:
        return next(info for info in await self.tables.list() if info.name == self.topic)

    async def files(self, kind: TableFileKind) -> list[TableFile]:
        """Live files of a kind, the newest last."""
        table_id = (await self.info()).table_id
        found = await self.tables.list_files(after=0, limit=10_000)
        return [each for each in found if each.table_id == table_id and each.kind is kind and not each.removed]

    async def sql(self, statement: str) -> None:
        database = Database(self.node.serving.settings.catalog_url)
        await database.write(lambda connection: connection.execute(text(statement)).close())
        await database.close()

    async def replace(self, file: TableFile, data: bytes) -> None:
        """Give a file other bytes, with their size and checksum in the catalog."""
        await self.store.delete([file.file_key])
        await self.store.put(file.file_key, [data], writer_id=file.writer_id)
        changed = f"size_bytes = {len(data)}, crc32c = {crc32c(data)}"
        await self.sql(f"UPDATE table_files SET {changed} WHERE file_id = {file.file_id}")

    async def bytes_of(self, file: TableFile) -> bytes:
        return bytes(await self.store.get(file.file_key, 0, file.size_bytes))

    async def change_rows(self, change: Callable[[pa.Table], pa.Table], *, past: int = 0) -> None:
        """Write the data file anew, with other rows, or with more offsets in its metadata."""
        path = self.folder / "rows"
        path.write_bytes(await self.bytes_of(self.file))
        schema = decode_schema((await self.tables.read(self.file.table_id)).schemas[0])
        rows = change(pq.read_table(path)).cast(schema)
        of = PartitionRange(self.topic, self.file.idx, self.file.start_offset, self.file.end_offset + past)
        write_rows(rows.to_batches(), schema, of, path, "zstd")
        await self.replace(self.file, path.read_bytes())

    async def verify(self, *, deep: bool = True) -> tuple[list[Finding], int]:
        """Return what is found about this table, and how many rows were compared."""
        report = VerifyReport(deep)
        await verify_tables(
            catalog=self.node.serving.catalog,
            stores=self.node.upkeep.compaction_context.stores,
            cluster=self.node.serving.settings.node.cluster,
            report=report,
            folder=self.folder,
        )
        location = (await self.info()).location
        mine = [
            each for each in report.findings if each.where.endswith(f"table {self.topic}") or location in each.where
        ]
        return mine, report.table_rows


@pytest.fixture
def table(node: Node, request: pytest.FixtureRequest, tmp_path: Path) -> Checked:
    topic = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[-100:]
    return Checked(node, topic, tmp_path)


@pytest.mark.parametrize("configs", [{}, {"table.value": "json"}, {"cleanup.policy": "compact"}])
async def test_a_sound_table_has_no_findings(table: Checked, configs: dict[str, str]) -> None:
    await table.make(**configs)
    found, rows = await table.verify()
    assert found == []
    assert rows >= len(EVENTS)


ROWS: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "lost": (lambda rows: rows.slice(1), "expected 60 rows, found 59"),
    "other value": (
        lambda rows: rows.set_column(
            0, "value", [pc.replace_substring(rows["value"].cast("string"), "  7", "  8").cast("binary")]
        ),
        "offset 7: value is b'{\"n\":   8}', in the record b'{\"n\":   7}'",
    ),
    "other key": (
        lambda rows: with_kafka(rows, "key", lambda keys: [b"k9", *keys[1:]]),
        "offset 0: _kafka.key is b'k9'",
    ),
    "twice": (
        lambda rows: pa.concat_tables([rows.slice(0, 5), rows.slice(4, 55)]).slice(0, 60),
        "rows after offset -1 are not in order, or of other offsets or partitions",
    ),
    "other partition": (
        lambda rows: with_kafka(rows, "partition", lambda found: [1] * len(found)),
        "rows after offset -1 are not in order, or of other offsets or partitions",
    ),
    "other time": (
        lambda rows: with_kafka(rows, "timestamp_type", lambda found: [1] * len(found)),
        "offset 0: _kafka.timestamp_type is 1, in the record 0",
    ),
}


def with_kafka(rows: pa.Table, name: str, change: Callable[[list[Any]], list[Any]]) -> pa.Table:
    """Return rows with other values of a field of `_kafka`."""
    kafka = rows[KAFKA].to_pylist()
    for each, value in zip(kafka, change([each[name] for each in kafka]), strict=True):
        each[name] = value
    return rows.set_column(1, KAFKA, pa.array(kafka, rows.schema.field(KAFKA).type))


@pytest.mark.parametrize("damage", ROWS)
async def test_rows_that_are_not_the_records_are_found(table: Checked, damage: str) -> None:
    change, detail = ROWS[damage]
    await table.make()
    await table.change_rows(change)
    found = [each for each in (await table.verify())[0] if each.kind is FindingKind.ROWS]
    assert [each.where for each in found] == [f"local:{table.file.file_key}"]
    assert detail in found[0].detail


async def test_a_row_that_no_consumer_gets_and_one_that_is_missing_are_found(table: Checked) -> None:
    await table.make()
    await table.sql(f"UPDATE table_files SET record_count = 59 WHERE file_id = {table.file.file_id}")
    await table.change_rows(lambda rows: pa.concat_tables([rows.slice(0, 3), rows.slice(4)]))
    found = [each for each in (await table.verify())[0] if each.kind is FindingKind.ROWS]
    assert [each.detail for each in found] == ["no row has offset 3, one of 1 that a reader of committed records gets"]


async def test_a_row_of_an_aborted_transaction_is_found(table: Checked) -> None:
    def abort() -> None:
        producer = Producer({"bootstrap.servers": table.node.bootstrap, "transactional.id": table.topic, **QUIET})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(table.topic, b"aborted", partition=0)
        producer.flush(30)
        producer.abort_transaction(30)

    await created_slowly(table.node, table.topic)
    await asyncio.to_thread(abort)
    await sent(table.node, table.topic, EVENTS)
    await table.commit()
    assert (await table.verify())[0] == []
    await table.sql(f"UPDATE table_files SET record_count = 61 WHERE file_id = {table.file.file_id}")

    def with_one_more(rows: pa.Table) -> pa.Table:
        return with_kafka(pa.concat_tables([rows.slice(0, 1), rows]), "offset", lambda found: [0, *found[1:]])

    await table.change_rows(with_one_more)
    found = [each for each in (await table.verify())[0] if each.kind is FindingKind.ROWS]
    assert [each.detail for each in found] == [
        "it has a row of offset 0, one of 1 that no reader of committed records gets"
    ]


async def test_log_compaction_that_the_table_does_not_show_yet_is_no_finding(table: Checked) -> None:
    """Records that are left must be rows, as they are; others may be."""
    node, topic = table.node, table.topic
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    await created_slowly(node, topic, configs=configs)
    await sent(node, topic, EVENTS[:30])
    await sent(node, topic, EVENTS[30:])
    await table.commit()
    _, before = await table.verify()
    await node.upkeep.compaction.run_once()
    found, after = await table.verify()
    assert found == []
    assert after < before
    await table.change_rows(lambda rows: with_kafka(rows, "key", lambda keys: [*keys[:-1], b"other"]))
    found = [each for each in (await table.verify())[0] if each.kind is FindingKind.ROWS]
    assert [each.detail for each in found] == ["offset 59: _kafka.key is b'other', in the record b'k4'"]


async def test_a_file_of_another_place_is_found(table: Checked) -> None:
    await table.make()
    await table.change_rows(lambda rows: rows, past=1)
    found = [each for each in (await table.verify())[0] if each.kind is FindingKind.ROWS]
    assert "its metadata says that it has" in found[0].detail


async def test_values_that_are_decoded_are_compared(table: Checked) -> None:
    schema = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
    await table.make(**{"table.value": "json", "table.value.schema": schema})
    assert (await table.verify())[0] == []
    await table.change_rows(lambda rows: rows.set_column(0, "n", pa.array([5, *range(1, 60)])))
    found = [each for each in (await table.verify())[0] if each.kind is FindingKind.ROWS]
    assert [each.detail for each in found] == ["offset 0: n is 5, in the record 0"]


async def test_values_of_an_earlier_configuration_are_compared_where_rows_have_their_bytes(table: Checked) -> None:
    """The topic has another schema by now, and so its values are not decoded again."""
    schema = {"type": "object", "properties": {"n": {"type": "string"}}}
    await table.make(**{"table.value": "json", "table.value.schema": json.dumps(schema)})
    await table.sql(f"UPDATE topics SET configs = replace(configs, 'string', 'integer') WHERE name = '{table.topic}'")
    found, rows = await table.verify()
    assert found == []
    assert rows >= len(EVENTS)
    raw = lambda found: [*found[:-1], b"other"]  # noqa: E731
    await table.change_rows(lambda rows: with_kafka(rows, "value_raw", raw))
    found = [each for each in (await table.verify())[0] if each.kind is FindingKind.ROWS]
    assert [each.detail for each in found] == ["offset 59: _kafka.value_raw is b'other', in the record b'{\"n\":  59}'"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_value_that_is_not_a_number_is_itself() -> None:
    numbers = pa.array([1.0, float("nan"), None])
    assert first_difference(numbers, numbers) is None
    assert first_difference(numbers, pa.array([1.0, float("nan"), 2.0])) == 2


async def test_metadata_of_another_version_is_found(table: Checked) -> None:
    await table.make()
    (file,) = await table.files(TableFileKind.METADATA)
    content = json.loads(await table.bytes_of(file))
    await table.replace(file, json.dumps({**content, "current-snapshot-id": 5}).encode())
    (finding,) = (await table.verify(deep=False))[0]
    assert (finding.kind, finding.where) == (FindingKind.TABLE, f"table {table.topic}")
    assert "its metadata has the current snapshot 5, the catalog" in finding.detail


async def test_a_snapshot_that_the_catalog_has_not_is_found(table: Checked) -> None:
    await table.make()
    (file,) = await table.files(TableFileKind.METADATA)
    content = json.loads(await table.bytes_of(file))
    more = {**content["snapshots"][0], "snapshot-id": 7}
    await table.replace(file, json.dumps({**content, "snapshots": [*content["snapshots"], more]}).encode())
    (finding,) = (await table.verify(deep=False))[0]
    assert "its metadata has snapshots [7, " in finding.detail


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda entries: [], "data files: not in the catalog: []; only in the catalog: ["),
        (lambda entries: entries * 2, " twice"),
        (lambda entries: [with_file(each, record_count=3) for each in entries], "record_count: expected 60, found 3"),
        (
            lambda entries: [
                with_file(each, file_path=each["data_file"]["file_path"][:-8] + "z.parquet") for each in entries
            ],
            "which the catalog does not have in it",
        ),
        (lambda entries: [{**each, "status": 2} for each in entries], "only in the catalog: ["),
    ],
)
async def test_a_manifest_with_other_files_is_found(
    table: Checked, change: Callable[[list[Any]], list[Any]], detail: str
) -> None:
    await table.make()
    manifest, _ = await table.files(TableFileKind.MANIFEST)
    path = table.folder / "manifest"
    path.write_bytes(await table.bytes_of(manifest))
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema, entries = reader.writer_schema, list(reader)
    with path.open("wb") as file:
        fastavro.writer(file, schema, change(entries))
    await table.replace(manifest, path.read_bytes())
    (finding,) = (await table.verify(deep=False))[0]
    assert finding.kind is FindingKind.TABLE
    assert detail in finding.detail


def with_file(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**entry, "data_file": {**entry["data_file"], **changes}}


async def test_a_manifest_that_the_catalog_has_besides_is_found(table: Checked) -> None:
    await table.make()
    manifest, _ = await table.files(TableFileKind.MANIFEST)
    columns = (
        "table_id, kind, state, store, size_bytes, crc32c, idx, start_offset, end_offset, record_count, schema_id,"
    )
    columns += " node_id, writer_id, upload_id, deadline_ms, committed_ms, added, removed"
    await table.sql(
        f"INSERT INTO table_files (file_id, file_key, {columns}) SELECT file_id + 1000000, file_key || 'x', {columns}"
        f" FROM table_files WHERE file_id = {manifest.file_id}"
    )
    (finding,) = (await table.verify(deep=False))[0]
    assert "manifests: not in the catalog: []; only in the catalog: [" in finding.detail
