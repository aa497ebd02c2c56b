"""The process that makes columns: it may end at any time, and a bad schema or registry stops only what needs it."""

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from anabranch import child
from anabranch.extras import MissingExtra
from anabranch.protocol.compression import Compression
from anabranch.protocol.records import Record, build_batch
from anabranch.tables import worker
from anabranch.tables.process import ATTEMPTS, ColumnProcess, ColumnsError
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import Asked, Question, Registry, Share
from anabranch.tables.snapshots import Join
from tests.spark.pipeline.registry_server import running_registry
from tests.tables import versions
from tests.tables.shares import CLOSED, RAW, read_rows, share_of

pytestmark = pytest.mark.slow  # each test starts a process

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
JSON = Asked("json", json.dumps(SCHEMA).encode())


@pytest.fixture
def columns() -> Iterator[ColumnProcess]:
    made = ColumnProcess()
    yield made
    made.close()


@pytest.fixture
def share(tmp_path: Path, columns: ColumnProcess) -> Share:
    batch = build_batch([Record(None, b'{"n": %d}' % number, 5) for number in range(100)])
    return share_of(tmp_path, [bytes(batch)], columns.find(Question(JSON, RAW)))


def test_a_share_is_made_in_another_process(columns: ColumnProcess, share: Share) -> None:
    report = columns.make(share)
    assert (report.rows, report.errors) == (100, 0)
    assert [row["n"] for row in read_rows(share)] == list(range(100))
    assert columns.process_id not in (None, os.getpid())
    assert columns.cpu_s > 0


def test_a_share_is_made_again_by_another_process_when_the_first_is_killed(
    columns: ColumnProcess, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = child.exchange
    killed: list[int] = []

    def killing(process: Any, *given: Any, **settings: Any) -> bytes:
        if not killed:
            killed.append(process.pid)
            process.send_signal(signal.SIGKILL)
        return exchange(process, *given, **settings)

    monkeypatch.setattr(child, "exchange", killing)
    assert columns.make(share).rows == 100
    assert columns.process_id not in (None, *killed)
    assert len(read_rows(share)) == 100


def test_a_request_over_which_each_process_ends_is_given_up(
    columns: ColumnProcess, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = child.exchange
    killed: list[int] = []

    def killing(process: Any, *given: Any, **settings: Any) -> bytes:
        killed.append(process.pid)
        process.send_signal(signal.SIGKILL)
        return exchange(process, *given, **settings)

    monkeypatch.setattr(child, "exchange", killing)
    with pytest.raises(ColumnsError, match=f"{ATTEMPTS} processes ended over this share: .* with status -9") as raised:
        columns.make(share)
    assert raised.value.kind == "ended"
    assert len(set(killed)) == ATTEMPTS
    monkeypatch.undo()
    assert columns.make(share).rows == 100


def test_too_much_memory_ends_a_share_and_not_the_process(tmp_path: Path) -> None:
    columns = ColumnProcess(memory_bytes_max=320 << 20)
    try:
        nested = b'{"n": [' + b"[]," * (3 << 20) + b"[]]}"
        deep = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "array"}}}}
        asked = columns.find(Question(Asked("json", json.dumps(deep).encode()), RAW))
        first = columns.process_id
        large = share_of(tmp_path, [bytes(build_batch([Record(None, nested, 5)]))], asked)
        with pytest.raises(ColumnsError) as raised:
            columns.make(large)
        assert raised.value.kind == "memory"
        assert columns.process_id == first
    finally:
        columns.close()


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOMEM, "memory"), (errno.ENOSPC, "file")])
def test_a_mapping_without_memory_is_no_error_of_a_file(
    share: Share, number: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(worker, "make_share", fail)
    assert worker.Worker().answer({"share": share.to_json()})["error"] == kind


def test_records_of_very_many_columns_fit_in_memory(tmp_path: Path) -> None:
    """Nulls take as much memory as values do: all at once would be 300 MiB several times."""
    wide = {"properties": {f"c{number}": {"type": "number"} for number in range(300)}}
    columns = ColumnProcess(memory_bytes_max=400 << 20)
    try:
        asked = columns.find(Question(Asked("json", json.dumps(wide).encode()), RAW))
        batch = build_batch([Record(None, b"{}", 5)] * 130_000)
        assert columns.make(share_of(tmp_path, [bytes(batch)], asked)).rows == 130_000
    finally:
        columns.close()


def test_records_that_are_compressed_very_well_fit_in_memory(tmp_path: Path, columns: ColumnProcess) -> None:
    """A read of 60 KB has 1.3 GiB of them: more than the process may have."""
    value = bytes(8 << 20)
    batches = [
        bytes(build_batch([Record(None, value, 5)], base_offset=at, compression=Compression.ZSTD)) for at in range(160)
    ]
    assert columns.make(share_of(tmp_path, batches, columns.find(Question(RAW, RAW)))).rows == 160


def test_damaged_blocks_are_named(columns: ColumnProcess, share: Share) -> None:
    with Path(share.source).open("r+b") as file:
        file.seek(share.blocks[0].position + 100)
        file.write(b"?")
    with pytest.raises(ColumnsError, match="block CRC32C") as raised:
        columns.make(share)
    assert raised.value.kind == "source"


def test_a_bad_schema_or_registry_stops_only_what_needs_it(columns: ColumnProcess, share: Share) -> None:
    with running_registry() as server:
        server.add("bad-value", '"string"')
        place = Registry(server.url)
        for asked, kind, words in (
            (Asked("auto", registry=Registry(CLOSED), subject="t-value"), "registry", "does not answer"),
            (Asked("avro", registry=place, subject="bad-value"), "schema", "must be a record"),
            (Asked("avro", registry=place, subject="none-value"), "schema", "has no /subjects/none-value"),
            (Asked("json", b"{"), "schema", "the schema can't be read"),
            (Asked("avro"), "schema", "needs a schema"),
            (Asked("json", b'{"properties": {"_kafka": {"type": "string"}}}'), "schema", "_kafka"),
        ):
            with pytest.raises(ColumnsError, match=words) as raised:
                columns.find(Question(asked, RAW))
            assert raised.value.kind == kind
        found = columns.find(Question(Asked("auto", registry=place, subject="none-value"), RAW))
        assert found.value.format == "none"
    assert columns.make(share).rows == 100


@pytest.mark.parametrize("logins", [("me:wrong", "me:secret"), ("me:secret", "me:wrong")])
def test_keys_and_values_have_logins_of_their_own_at_one_registry(logins: tuple[str, str]) -> None:
    with running_registry() as server:
        server.credentials = "me:secret"
        server.add("t", {"type": "record", "name": "T", "fields": []})
        value, key = (Asked("avro", registry=Registry(server.url, login), subject="t") for login in logins)
        refused = worker.Worker().answer({"find": Question(value, key).to_json()})
        assert (refused.get("error"), "answers 401" in refused.get("text", "")) == ("registry", True)


def test_a_process_that_is_closed_under_a_request_says_so(columns: ColumnProcess, share: Share) -> None:
    errors: list[ColumnsError] = []

    def make() -> None:
        while True:
            try:
                columns.make(share)
            except ColumnsError as error:
                errors.append(error)
                return

    thread = Thread(target=make)
    thread.start()
    columns.close()
    thread.join()
    assert [error.kind for error in errors] == ["stopped"]
    assert columns.process_id is None


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra) as raised:
        ColumnProcess()
    assert str(raised.value) == (
        "a topic that is a table needs pyarrow, which is missing or too old: pip install 'anabranch[tables]'"
    )


def test_the_parent_does_not_import_arrow() -> None:
    code = "import sys, anabranch.tables.process; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0


def test_a_version_of_a_table_is_made_in_another_process(
    columns: ColumnProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "write_snapshot", columns.write_snapshot)
    table = versions.TableFolder(tmp_path)
    schema = table.schema
    files = [table.add_rows(versions.kafka_rows(schema, 0, [at], n=[at])) for at in range(2)]
    for file in files:
        table.commit([file])
    joined = table.new_uri(".parquet")
    sources = [str(table.path(file.uri)) for file in files]
    join = Join(sources, table.schemas[-1], PartitionRange("t", 0, 0, 2), str(table.path(joined)))
    report = columns.join(join)
    found = table.commit([versions.data_file(joined, report)], [file.uri for file in files])
    assert (found.added_records, found.removed_records, found.total_files) == (2, 2, 1)
    rows = StaticTable.from_metadata(f"file://{table.metadata}").scan().to_arrow()
    assert sorted(rows["n"].to_pylist()) == [0, 1]
    with pytest.raises(ColumnsError, match="the current snapshot has no file") as raised:
        table.commit(removed=["file:///x"])
    assert raised.value.kind == "snapshot"
    with pytest.raises(ColumnsError, match="No such file") as raised:
        columns.join(Join(["/x"], table.schemas[-1], PartitionRange("t", 0, 0, 2), str(tmp_path / "y")))
    assert raised.value.kind == "file"
