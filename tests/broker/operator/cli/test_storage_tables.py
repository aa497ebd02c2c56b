"""The storage commands on a running node with a table."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.cluster.node import Node
from anabranch.broker.operator.cli import storage as storage_module
from anabranch.broker.operator.cli.storage import storage
from anabranch.s3stream.catalog.table_values import TableFileKind
from tests.support.events import Event
from tests.support.node import running_node
from tests.support.tables import create_table, sent, table_has

pytestmark = pytest.mark.slow
ROWS = 10


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """Start a node with the table `orders`."""
    async with running_node(tmp_path) as node:
        await asyncio.to_thread(create_table, node.bootstrap, "orders")
        await sent(node, "orders", [Event(0, b"%d" % at) for at in range(ROWS)])
        await table_has(node, "orders")
        yield node


async def run(node: Node, *arguments: str) -> Result:
    command, *rest = arguments
    data_dir = str(node.serving.settings.node.data_dir)
    return await asyncio.to_thread(CliRunner().invoke, storage, [command, "--data-dir", data_dir, *rest])


async def file_of(node: Node, kind: TableFileKind) -> str:
    """Return the key of the newest file of a kind."""
    files = await node.serving.catalog.tables.list_files(after=0, limit=1_000)
    return [file.file_key for file in files if file.kind is kind and file.committed_ms][-1]


async def test_verify_checks_rows_and_inspect_shows_a_file(node: Node) -> None:
    found = await run(node, "verify", "--deep", "-o", "json")
    data = json.loads(found.stdout)
    assert (found.exit_code, data["sound"], data["not_checked"]) == (0, True, [])
    assert (data["tables"], data["table_rows"]) == (1, ROWS)
    assert data["table_files"]["committed"] >= 4
    key = await file_of(node, TableFileKind.DATA)
    shown = json.loads((await run(node, "inspect", key, "-o", "json")).stdout)
    assert (shown["table"], shown["kind"], shown["rows"], shown["state"]) == ("orders", "data", ROWS, "committed")
    assert (shown["footer"]["rows"], shown["footer"]["row_groups"]) == (ROWS, 1)
    place = {"topic": "orders", "partition": 0, "start_offset": 0, "end_offset": ROWS}
    assert shown["footer"]["range"] == place
    text = (await run(node, "inspect", key)).stdout
    assert "row groups" in text
    manifest = json.loads(
        (await run(node, "inspect", await file_of(node, TableFileKind.MANIFEST), "-o", "json")).stdout
    )
    assert (manifest["kind"], manifest["rows"], manifest["footer"]) == ("manifest", None, None)


async def test_damage_is_named(node: Node) -> None:
    key = await file_of(node, TableFileKind.DATA)
    path = node.serving.settings.node.data_dir / "objects" / key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    found = await run(node, "verify", "--deep", "-o", "json")
    assert found.exit_code == 1
    (finding,) = json.loads(found.stdout)["findings"]
    assert (finding["where"], "CRC32C" in finding["detail"]) == (f"local:{key}", True)
    shown = await run(node, "inspect", key)
    assert (shown.exit_code, "not a Parquet file" in shown.stderr) == (1, True)


async def test_without_the_packages_one_line_says_what_was_not_checked(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_module, "is_installed", lambda _extra: False)
    found = await run(node, "verify", "--deep")
    assert found.exit_code == 0
    assert "not checked: manifests and rows of tables, which need packages: " in " ".join(found.stdout.split())
    key = await file_of(node, TableFileKind.DATA)
    assert json.loads((await run(node, "inspect", key, "-o", "json")).stdout)["footer"] is None


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("table/x", "expected the key of a file of a table"),
        ("table/c/t/data/00000000000000ff.parquet", "not in the catalog"),
    ],
)
async def test_an_unknown_key_is_refused(node: Node, key: str, line: str) -> None:
    found = await run(node, "inspect", key)
    assert found.exit_code != 0
    assert line in " ".join(found.output.replace("│", "").split())
