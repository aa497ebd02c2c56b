"""Disks that become full, fail or hang under the log, the objects or the catalog of a node with real clients."""

import time
from pathlib import Path

import pytest

from tests.chaos.rig import SETTINGS, clients_on
from tests.support.disk import SmallDisk, frozen, full, small_disk, thin_device
from tests.support.node import NodeProcess
from tests.support.soak import LONG
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(400)]

MIB = 1 << 20
DISK_BYTES = 96 * MIB
WAL_BYTES = 64 * MIB
FROZEN_S = 3.0
"""Longer than the lease of the catalog."""
PLACES = ("log", "objects", "catalog")


def on(disk: SmallDisk, place: str) -> dict[str, object]:
    """Settings that put one part of the node on the disk."""
    if place == "log":
        return {"wal_path": disk.folder / "wal"}
    if place == "objects":
        return {"objects_path": disk.folder / "objects"}
    return {"catalog_url": f"sqlite:///{disk.folder}/catalog.db"}


@LONG
@pytest.mark.parametrize("place", ["objects", "catalog"])
def test_a_full_disk_is_waited_for(tmp_path: Path, place: str) -> None:
    with (
        small_disk(tmp_path, DISK_BYTES) as disk,
        NodeProcess(tmp_path, **SETTINGS, **on(disk, place)) as node,
        clients_on(node) as chaos,
    ):
        with full(disk.folder):
            wait_until(lambda: bool(node.events("upload waits")), "uploads wait for space")
            chaos.wait_for_acks(100)
            assert node.status()["outages"]
        wait_until(lambda: not node.status()["outages"], "the outage is over")
        chaos.end()


@LONG
def test_a_full_disk_does_not_keep_a_log_from_work_or_recovery(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path, DISK_BYTES) as disk,
        NodeProcess(tmp_path, **SETTINGS, **on(disk, "log")) as node,
        clients_on(node) as chaos,
    ):
        with full(disk.folder):
            chaos.wait_for_acks(200)
            node.kill9()
            node.start()
            chaos.wait_for_acks(200)
        chaos.end()


@LONG
def test_a_log_without_space_to_begin_is_refused_in_one_line(tmp_path: Path) -> None:
    with small_disk(tmp_path, DISK_BYTES) as disk:
        node = NodeProcess(tmp_path, **SETTINGS, **on(disk, "log"))
        with full(disk.folder):
            line = node.refusal()
        assert "No space left on device" in line
        assert str(disk.folder / "wal") in line
        with node, clients_on(node) as chaos:
            chaos.end()


@LONG
@pytest.mark.parametrize("place", PLACES)
def test_a_disk_that_hangs_holds_clients_up_until_it_goes_on(tmp_path: Path, place: str) -> None:
    with (
        small_disk(tmp_path, DISK_BYTES) as disk,
        NodeProcess(tmp_path, **SETTINGS, **on(disk, place)) as node,
        clients_on(node) as chaos,
    ):
        with frozen(disk.folder):
            time.sleep(FROZEN_S)  # the length of the fault itself
        chaos.end()


@LONG
def test_a_log_on_a_volume_without_space_ends_the_node_and_nothing_acked_is_lost(tmp_path: Path) -> None:
    with (
        thin_device(tmp_path, WAL_BYTES, room_bytes=16 * MIB) as (device, below),
        NodeProcess(tmp_path, **SETTINGS, wal_path=device, wal_format="true") as node,
        clients_on(node) as chaos,
    ):
        node.settings["wal_format"] = "false"
        with full(below):
            assert node.wait() == 1
        (line,) = node.events("the log failed and refuses appends")
        assert str(device) in line["error"]
        assert "No space left on device" in line["error"]
        node.start()
        chaos.end()


@pytest.mark.parametrize("place", ["log", *(pytest.param(place, marks=LONG) for place in PLACES[1:])])
def test_a_disk_that_fails_is_named_and_nothing_synced_is_lost(tmp_path: Path, place: str) -> None:
    with (
        small_disk(tmp_path, DISK_BYTES) as disk,
        NodeProcess(tmp_path, **SETTINGS, **on(disk, place)) as node,
        clients_on(node) as chaos,
    ):
        chaos.wait_for_acks(100)
        disk.fail()
        if place == "log":
            assert node.wait() == 1
            (line,) = node.events("the log failed and refuses appends")
            assert "Input/output error" in line["error"]
        elif place == "objects":
            wait_until(lambda: bool(node.events("upload waits")), "uploads wait")
            assert "Input/output error" in node.events("upload waits")[0]["reason"]
            chaos.wait_for_acks(100)
            node.kill9()
        else:  # SQLite may take what it reads now for damage, and that ends the node
            wait_until(lambda: any("disk I/O error" in line for line in node.lines), "the node says what it meets")
            node.kill9()
        disk.repair()
        node.start()
        chaos.end()
