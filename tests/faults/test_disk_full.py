"""A full disk under catalog and objects: clients wait, the log gives the reason, and free space ends the outage."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.rig import CountingProducer, Rig, read_back
from tests.support.node import NodeProcess
from tests.support.tools import missing

pytestmark = pytest.mark.timeout(400)

DISK_BYTES = 24 << 20
TOPIC = "events"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A separate small file system."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount the small file system that this needs")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        missing(f"the right to mount ({mounted.stderr.decode().strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_holds_clients_up_until_there_is_space(disk: Path, tmp_path: Path) -> None:
    data = disk / "data"
    settings = {
        "wal_path": tmp_path / "wal",  # its space is taken beforehand: a full disk cannot fail a write of the log
        "storage_upload_age_ms": 100,
        "storage_gc_period_ms": 200,
        "storage_delete_delay_ms": 0,
        "storage_prepare_ttl_ms": 4000,
        "compaction_enabled": "false",
    }
    with NodeProcess(disk, **settings) as node:
        rig = Rig(node, disk, data / "objects", {})
        load = CountingProducer(node.bootstrap, TOPIC, value_bytes=10_000)
        load.send_while(lambda: rig.node.status()["storage"]["uploads"] == 0)
        ballast = disk / "ballast"
        fill(ballast)
        load.send_while(lambda: rig.writable() or not rig.stands_still(TOPIC))
        waits = {line["reason"] for line in node.events("upload waits")}
        assert any(map(tells_of_full_disk, waits)), waits
        assert not load.errors
        status = rig.node.status()
        assert status["node"]["error"] is None
        assert status["node"]["obstacles"], "not writable, and it says why"
        where = {outage["where"]: outage["reason"] for outage in status["outages"]}
        assert any(map(tells_of_full_disk, where.values())), where
        assert all(outage["since_ms"] > 0 for outage in status["outages"])
        ballast.unlink()
        load.finish()
        rig.node.wait_uploaded()
        assert rig.node.status()["outages"] == rig.node.status()["node"]["obstacles"] == []
        await rig.expect_accounts_to_agree()
        assert node.terminate() == 0
        node.start()
        read_back(node.bootstrap, load)
        assert node.terminate() == 0


def tells_of_full_disk(reason: str) -> bool:
    """Return whether a reason is that of the operating system, of the local store ("... on the disk") or of SQLite."""
    return "no space left on " in reason.lower() or "is full" in reason


def fill(ballast: Path) -> None:
    """Take all the space there is."""
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
