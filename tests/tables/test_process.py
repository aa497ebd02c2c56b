"""The process that makes columns: it may end at any time, and a bad schema or registry stops only what needs it."""

import errno
import json
import os
import select
import signal
import subprocess
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
from anabranch.tables import process, worker
from anabranch.tables.process import ATTEMPTS, FALLBACKS_AT_ONCE, ColumnProcess, ColumnsError, SlowShare
from anabranch.tables.ranges import PartitionRange
from anabranch.tables.requests import Asked, Question, Registry, Share
from anabranch.tables.share import NOT_DECODED, RECORD_BYTES_MAX
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
    send = child.send
    killed: list[int] = []

    def killing(process: Any, *given: Any, **settings: Any) -> None:
        if not killed:
            killed.append(process.pid)
            process.send_signal(signal.SIGKILL)
        send(process, *given, **settings)

    monkeypatch.setattr(child, "send", killing)
    assert columns.make(share).rows == 100
    assert columns.process_id not in (None, *killed)
    assert len(read_rows(share)) == 100


def test_a_request_over_which_each_process_ends_is_given_up(
    columns: ColumnProcess, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = child.send
    killed: list[int] = []

    def killing(process: Any, *given: Any, **settings: Any) -> None:
        killed.append(process.pid)
        process.send_signal(signal.SIGKILL)
        send(process, *given, **settings)

    monkeypatch.setattr(child, "send", killing)
    with pytest.raises(ColumnsError, match=f"{ATTEMPTS} processes ended over this share: .* with status -9") as raised:
        columns.make(share)
    assert raised.value.kind == "ended"
    assert len(set(killed)) == ATTEMPTS
    monkeypatch.undo()
    assert columns.make(share).rows == 100


def test_a_value_that_takes_too_much_memory_is_left_as_it_is(tmp_path: Path) -> None:
    columns = ColumnProcess(memory_bytes_max=320 << 20)
    try:
        nested = b'{"n": [' + b"[]," * (3 << 20) + b"[]]}"
        deep = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "array"}}}}
        asked = columns.find(Question(Asked("json", json.dumps(deep).encode()), RAW))
        values = [b'{"n": [["a"]]}', nested, b'{"n": null}']
        share = share_of(tmp_path, [bytes(build_batch([Record(None, each, 5) for each in values]))], asked)
        report = columns.make(share)
        assert (report.rows, report.errors, report.reasons) == (3, 1, [NOT_DECODED])
        rows = read_rows(share)
        assert [row["n"] for row in rows] == [[["a"]], None, None]
        assert [row["_kafka"]["value_raw"] for row in rows] == [None, nested, None]
    finally:
        columns.close()


FATAL_VALUES = """
import os, sys
from dataclasses import replace
from anabranch.tables import parts, share, worker

made = parts.json_decoder

def json_decoder(*given, **settings):
    decoder = made(*given, **settings)

    def column(values):
        if any(b"fatal" in each for each in values.to_pylist()):
            os.abort()
        while any(b"endless" in each for each in values.to_pylist()):
            pass
        return decoder.column(values)

    return replace(decoder, column=column)

parts.json_decoder = json_decoder
share.ROWS_MAX = 5
worker.DECODE_CPU_S = 0.2
worker.main()
"""


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ColumnProcess]:
    """Yield a process that ends over the values with the word `fatal`, and has no end over those with `endless`."""
    monkeypatch.setattr(process, "ATTEMPTS", 1)
    program = tmp_path / "fragile.py"
    program.write_text(FATAL_VALUES)
    made = ColumnProcess(program=[str(program)])
    yield made
    made.close()


def test_a_value_over_which_processes_end_is_left_as_it_is(tmp_path: Path, fragile: ColumnProcess) -> None:
    values = [b'{"n": %d}' % number for number in range(20)]
    values[7] = values[12] = b'{"n": 5, "s": "fatal"}'
    batch = bytes(build_batch([Record(None, each, 5) for each in values]))
    share = share_of(tmp_path, [batch], fragile.find(Question(JSON, RAW)))
    report = fragile.make(share)
    assert (report.rows, report.errors, report.reasons) == (20, 2, [NOT_DECODED])
    rows = read_rows(share)
    assert [row["n"] for row in rows] == [None if at in {7, 12} else at for at in range(20)]
    assert [row["_kafka"]["value_raw"] for row in rows if row["n"] is None] == [values[7], values[12]]


def test_a_group_of_many_values_over_which_processes_end_is_left_as_it_is(
    tmp_path: Path, fragile: ColumnProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "VALUES_MAX", 1)
    monkeypatch.setattr(process, "FALLBACKS_MAX", 3)
    values = [b'{"s": "fatal"}'] * 5 + [b'{"n": 1}'] * 2
    batch = bytes(build_batch([Record(None, each, 5) for each in values]))
    share = share_of(tmp_path, [batch], fragile.find(Question(JSON, RAW)))
    assert fragile.make(share).errors == 5
    assert [row["n"] for row in read_rows(share)] == [None] * 5 + [1] * 2


def test_attempts_at_a_share_are_made_some_at_a_time(tmp_path: Path, fragile: ColumnProcess) -> None:
    batch = bytes(build_batch([Record(None, each, 5) for each in (b'{"n": 1}', b'{"n": 5, "s": "fatal"}')]))
    share = share_of(tmp_path, [batch], fragile.find(Question(JSON, RAW)))
    tried = None
    for _ in range(2):  # the group, and its value
        with pytest.raises(SlowShare, match=r"some of the offsets \[\d+, 2\) of partition 3 take too long") as error:
            fragile.make(share, tried, fallbacks_max=1)
        tried = error.value.tried
    assert fragile.make(share, tried, fallbacks_max=1).errors == 1
    assert [row["n"] for row in read_rows(share)] == [1, None]


def test_a_value_that_takes_for_ever_ends_its_turn_and_becomes_an_error(tmp_path: Path, fragile: ColumnProcess) -> None:
    values = [b'{"n": 1}', b'{"n": 5, "s": "endless"}', b'{"n": 3}']
    batch = bytes(build_batch([Record(None, each, 5) for each in values]))
    share = share_of(tmp_path, [batch], fragile.find(Question(JSON, RAW)))
    tried = None
    for _ in range(2):
        with pytest.raises(SlowShare) as error:
            fragile.make(share, tried, fallbacks_max=FALLBACKS_AT_ONCE)
        tried = error.value.tried
    assert fragile.make(share, tried, fallbacks_max=FALLBACKS_AT_ONCE).errors == 1
    assert [row["n"] for row in read_rows(share)] == [1, None, 3]


def test_at_last_nothing_of_a_share_is_decoded(
    tmp_path: Path, fragile: ColumnProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "FALLBACKS_MAX", 1)
    values = [b'{"n": 5, "s": "fatal"}', b'{"n": 1}']
    batch = bytes(build_batch([Record(None, each, 5) for each in values]))
    share = share_of(tmp_path, [batch], fragile.find(Question(JSON, RAW)))
    assert fragile.make(share).errors == 2


def test_the_last_line_of_a_process_that_ends_is_in_the_error(tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text("import sys\nsys.stdin.buffer.read(4)\nsys.exit('first\\nno more room\\n')")
    columns = ColumnProcess(program=[str(program)])
    with pytest.raises(ColumnsError, match=r"ended over this question: .* with status 1: no more room"):
        columns.find(Question(JSON, RAW))
    columns.close()


def test_a_process_ends_with_its_node_also_while_it_works(tmp_path: Path) -> None:
    metadata = tmp_path / "metadata"
    os.mkfifo(metadata)
    code = (
        "from anabranch.tables.process import ColumnProcess\n"
        "from anabranch.tables.requests import Asked, Question\n"
        "from anabranch.tables.snapshots import SnapshotRequest\n"
        "columns = ColumnProcess()\n"
        "columns.find(Question(Asked('raw'), Asked('raw')))\n"
        "print(columns.process_id, flush=True)\n"
        f"request = SnapshotRequest('', '', [], {{}}, 1, 1, '{metadata}', '', 0, None, {{}}, [], [], {{}}, [], '')\n"
        "columns.write_snapshot(request)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as node:
        assert node.stdout is not None
        worker_process = os.pidfd_open(int(node.stdout.readline()))
        with metadata.open("wb"):  # the process reads it now, without an end
            node.kill()
            ended = select.poll()
            ended.register(worker_process, select.POLLIN)
            assert ended.poll(30_000)
    os.close(worker_process)


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOMEM, "memory"), (errno.ENOSPC, "file")])
def test_a_mapping_without_memory_is_no_error_of_a_file(
    share: Share, number: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(worker, "make_share", fail)
    assert worker.Worker(print).answer({"share": share.to_json()})["error"] == kind


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


@pytest.mark.parametrize("size", [15 << 20, 100 << 20])
def test_large_values_fit_in_memory(tmp_path: Path, columns: ColumnProcess, size: int) -> None:
    """Those of a batch of some KiB: the larger ones are left out, and the others are copied several times."""
    values = [b'{"n": 1, "s": "' + b"x" * size + b'"}'] * ((110 << 20) // size)
    schema = {"properties": {"n": {"type": "integer"}, "s": {"type": "string"}}}
    asked = columns.find(Question(Asked("json", json.dumps(schema).encode()), RAW))
    batch = build_batch([Record(None, each, 5) for each in values], compression=Compression.ZSTD)
    share = share_of(tmp_path, [bytes(batch)], asked)
    first = columns.process_id
    report = columns.make(share)
    assert (report.rows, report.errors) == (len(values), len(values) if size > RECORD_BYTES_MAX else 0)
    assert columns.process_id == first


def test_damaged_blocks_are_named(columns: ColumnProcess, share: Share) -> None:
    with Path(share.source).open("r+b") as file:
        file.seek(share.blocks[0].position + 100)
        file.write(b"?")
    with pytest.raises(ColumnsError, match="block CRC32C") as raised:
        columns.make(share)
    assert raised.value.kind == "source"


def test_a_bad_schema_or_registry_stops_only_what_needs_it(columns: ColumnProcess, share: Share) -> None:
    with running_registry() as server:
        server.add("bad-value", ["string", "int"])
        place = Registry(server.url)
        for asked, kind, words in (
            (Asked("auto", registry=Registry(CLOSED), subject="t-value"), "registry", "does not answer"),
            (Asked("avro", registry=place, subject="bad-value"), "schema", "a union of more than"),
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
        refused = worker.Worker(print).answer({"find": Question(value, key).to_json()})
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
