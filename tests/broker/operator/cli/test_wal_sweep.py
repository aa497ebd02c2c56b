"""`anabranch wal sweep` on the log of a node that was started several times."""

import asyncio
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.storage import storage
from anabranch.broker.operator.cli.wal import wal
from anabranch.broker.operator.cli.wal_sweep import parse_age
from tests.support.node import running_node

DAY_S = 86_400


async def invoke(group: click.Group, *arguments: str) -> Result:
    """Run a command in a thread, which gets an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, group, list(arguments), env={"COLUMNS": "200"})


def ends(folder: Path) -> list[Path]:
    """The last object of each epoch of the node's log."""
    return [max(epoch.iterdir()) for epoch in sorted(folder.glob("wal/*/*/*")) if any(epoch.iterdir())]


async def test_old_ends_are_deleted_by_age_and_the_node_starts_as_before(tmp_path: Path) -> None:
    for _ in range(4):
        async with running_node(tmp_path, wal_kind="object") as node:
            await node.serving.topic_commands.ensure("t", partitions=1, configs={})
    folder = tmp_path / "data" / "objects"
    before = ends(folder)
    assert len(before) == 4

    async def run(*arguments: str) -> Result:
        return await invoke(wal, "sweep", "--data-dir", str(tmp_path / "data"), *arguments)

    young = await run("--older-than", "1d", "--yes")
    assert young.exit_code == 0, young.output
    assert "deleted 0 objects" in young.output
    for path in before[:2]:
        status = path.stat()
        os.utime(path, (status.st_atime, status.st_mtime - 2 * DAY_S))
    assert "nothing was deleted; --yes deletes 2 objects" in (await run("--older-than", "36h")).output
    assert ends(folder) == before
    assert "deleted 2 objects" in (await run("--older-than", "36h", "--yes")).output
    assert ends(folder) == before[2:]
    async with running_node(tmp_path, wal_kind="object") as node:
        assert node.serving.topics.get("t") is not None
    verified = await invoke(storage, "verify", "--data-dir", str(tmp_path / "data"))
    assert verified.exit_code == 0, verified.output


async def test_a_node_with_a_log_on_a_device_has_nothing_to_sweep(tmp_path: Path) -> None:
    async with running_node(tmp_path):
        pass
    found = await invoke(wal, "sweep", "--older-than", "30d", "--data-dir", str(tmp_path / "data"))
    assert found.output == "there are no object logs\n"


def test_an_age_is_a_day_at_least() -> None:
    assert (parse_age("36h"), parse_age("30d"), parse_age("1w")) == (129_600_000, 2_592_000_000, 604_800_000)
    for text in ("5", "3m", "", "-1d", "23h", "0d"):
        with pytest.raises(click.BadParameter):
            parse_age(text)
