"""Changes to the node's log between its inspection and its claim."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from anabranch.broker.cluster.membership.node_log import NodeLog
from anabranch.broker.node.settings.model import Settings
from anabranch.broker.node.settings.package_settings import wal_settings
from anabranch.wal.device import open_device
from anabranch.wal.interface import WalCorrupt, WalInUse, WalRefused
from anabranch.wal.owner import Owner
from tests.support.node import settings_for
from tests.support.waiting import until

OWNER = Owner(1, 1, "anabranch", bytes(16))


async def test_a_log_that_appears_after_the_decision_is_not_claimed(tmp_path: Path) -> None:
    """A disk is mounted while a start waits for a lease: its contents were never checked."""
    settings = settings_for(tmp_path)
    settings.node.data_dir.mkdir()
    async with NodeLog.opened(settings) as log:
        assert (log.header, log.problem) == (None, "is missing")
        log.path.write_bytes(bytes(8 << 20))
        with pytest.raises(WalRefused, match="this file appeared while the node was starting: start again"):
            await log.open_wal(OWNER, lambda: 1)
    assert not any(log.path.read_bytes())


async def test_what_was_a_log_speaks_against_an_empty_catalog(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    settings.node.data_dir.mkdir()
    async with NodeLog.opened(settings) as log:
        assert not log.why_not_blank_catalog()
        wal = await log.open_wal(OWNER, lambda: 1)
        async for _ in wal.recover():
            pass
        await wal.close()
    async with NodeLog.opened(settings) as log:
        assert "holds a log of node 1 of cluster 'anabranch'" in log.why_not_blank_catalog()
    with log.path.open("r+b") as file:
        for at in (100, 4196):
            file.seek(at)
            file.write(b"damage")
    with pytest.raises(WalCorrupt):
        async with NodeLog.opened(settings):
            pass
    async with NodeLog.opened(settings_for(tmp_path, wal_format=True)) as log:
        assert "both copies of the WAL header are damaged" in log.why_not_blank_catalog()
    log.path.write_bytes(b"something else" + bytes(8 << 20))
    async with NodeLog.opened(settings_for(tmp_path, wal_format=True)) as log:
        assert not log.why_not_blank_catalog()


async def test_a_log_that_another_node_recovers_is_waited_for(tmp_path: Path) -> None:
    settings = settings_for(tmp_path)
    settings.node.data_dir.mkdir()
    device = open_device(settings.wal_path, wal_settings(settings))
    with pytest.raises(WalInUse):
        async with NodeLog.opened(settings):
            pass
    with capture_logs() as said:
        waiting = asyncio.create_task(_open_and_close(settings))
        await until(lambda: bool(said), timeout_s=60, pause_s=0.01)
        await device.close()
        await waiting
    assert said[0]["event"] == "waiting for the log: another node may be recovering it"


async def _open_and_close(settings: Settings) -> None:
    async with NodeLog.opened(settings, wait_s=60.0):
        pass
