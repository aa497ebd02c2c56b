"""`anabranch compact` on a node that runs and on one that is stopped."""

import asyncio
import json
from io import StringIO
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from click.testing import CliRunner, Result
from rich.console import Console

from anabranch.broker.operator.cli.compact import compact, print_summary
from anabranch.s3stream.catalog.catalog import Catalog
from tests.support.node import NodeProcess
from tests.support.waiting import wait_until

UPLOADS = 4


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(compact, list(arguments), env={"COLUMNS": "160", **environment})


async def fill(node: NodeProcess) -> None:
    """Records in several uploads: the age limit of the node is short."""
    producer = AIOKafkaProducer(bootstrap_servers=node.bootstrap)
    await producer.start()
    try:
        for upload in range(UPLOADS):
            for partition in range(3):
                await producer.send_and_wait("t", b"%d" % upload, partition=partition)
            await uploaded(node, upload + 1)
    finally:
        await producer.stop()
    # On a slow machine the records of one turn are more than one upload: none may arrive during a compaction.
    await asyncio.to_thread(node.wait_uploaded)


async def uploaded(node: NodeProcess, count: int) -> None:
    """Wait until there are so many stream set objects."""

    def are_there() -> bool:
        return bool(node.status()["objects"].get("SSO committed", {"count": 0})["count"] >= count)

    await asyncio.to_thread(wait_until, are_there, f"{count} stream set objects")


async def objects(data_dir: Path) -> dict[str, tuple[int, int]]:
    catalog = Catalog(f"sqlite:///{data_dir / 'catalog.db'}")
    await catalog.open(cluster="anabranch")
    try:
        return dict(await catalog.count_objects())
    finally:
        await catalog.close()


def started(tmp_path: Path) -> NodeProcess:
    return NodeProcess(tmp_path, storage_upload_age_ms=50, topic_num_partitions=3, compaction_period_ms=10_000_000)


def test_a_running_node_then_a_stopped_one(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with started(tmp_path) as node:
        asyncio.run(fill(node))
        planned = run("--admin", node.admin, "--plan")
        assert planned.exit_code == 0, planned.output
        assert "become 1 stream set object and 0 stream objects" in planned.output
        assert "is stopped" not in planned.output
        done = run("--admin", node.admin)
        assert done.exit_code == 0, done.output
        assert " -> 1\n" in done.output
        assert "nothing to do" in run("--admin", node.admin, "--plan").output
        port = node.admin.rpartition(":")[2]
        assert "nothing to do" in run("--data-dir", str(data_dir), "--plan", ANABRANCH_ADMIN_PORT=port).output
        other = run("--data-dir", str(tmp_path), ANABRANCH_ADMIN_PORT=port)
        assert "no catalog in the data directory" in other.output, "not the node that happens to be on that port"
        in_use = run("--data-dir", str(data_dir))
        assert in_use.exit_code == 1
        assert f"in use by another process (pid {node.pid}); if that is the node, give its port with" in in_use.output
        asyncio.run(fill(node))
        assert node.terminate() == 0
    before = asyncio.run(objects(data_dir))
    planned = run("--data-dir", str(data_dir), "--plan")
    assert planned.exit_code == 0, planned.output
    assert "stream set objects with 3 streams" in planned.output
    assert "node 1 is stopped: reading its storage" in planned.output
    assert asyncio.run(objects(data_dir)) == before
    done = run("--data-dir", str(data_dir), "--output", "json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["sso_before"], summary["sso_after"]) == (before["SSO committed"][0], 1)
    assert asyncio.run(objects(data_dir))["SSO committed"][0] == 1
    with started(tmp_path) as node:
        asyncio.run(fill(node))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    absent = run("--data-dir", str(tmp_path))
    assert absent.exit_code == 1
    assert f"no catalog in the data directory {tmp_path}" in " ".join(absent.output.split())
    refused = run("--admin", "127.0.0.1:1")
    assert refused.exit_code == 1
    assert "cannot reach 127.0.0.1:1" in refused.output


@pytest.mark.parametrize("admin", ["nowhere", ":1", "h:x", "ftp://h:1"])
def test_bad_addresses_are_refused(admin: str) -> None:
    assert f"expected HOST:PORT or https://HOST:PORT, found '{admin}'" in run("--admin", admin).output


def test_what_is_left_undone_is_told_in_its_own_words() -> None:
    names = (
        "sso_before", "sso_after", "so_before", "so_after", "bytes_read", "bytes_written", "bytes_copied",
        "streams_cleaned", "records_removed", "write_amplification", "iterations", "commits", "seconds",
    )  # fmt: skip
    error = "add the table [stores.cold]"
    console = Console(width=160, record=True, file=StringIO())
    print_summary({**dict.fromkeys(names, 0), "calls": {}, "errors": [error]}, console)
    assert f"not done: {error}\n" in console.export_text(), "brackets are not interpreted as markup"
