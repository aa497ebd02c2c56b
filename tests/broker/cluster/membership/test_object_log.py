"""Nodes whose log is in the object store: starts, crashes, and the loss of everything on the machine."""

import shutil
from pathlib import Path

import pytest

from anabranch.broker.app import StartError
from anabranch.s3stream.catalog.catalog import Catalog
from anabranch.s3stream.catalog.values import WalState
from tests.support.events import Event, create_topic, receive, send
from tests.support.node import NodeProcess, running_node
from tests.support.s3 import S3Bucket, set_credentials

EVENTS = [Event(0, b"%d" % number) for number in range(500)]
MORE = [Event(0, b"more %d" % number) for number in range(100)]


def object_node(folder: Path) -> dict[str, object]:
    """Settings of a node that keeps nothing that matters in its data directory."""
    return {
        "wal_kind": "object",
        "objects_path": folder / "objects",
        "catalog_url": f"sqlite:///{folder}/catalog.db",
        "catalog_lease_ms": 1_000,
        "storage_upload_age_ms": 600_000,  # so that the log is the only place of the records
    }


@pytest.mark.timeout(180)
def test_all_acked_records_come_back_on_an_empty_data_directory(tmp_path: Path) -> None:
    with NodeProcess(tmp_path, **object_node(tmp_path)) as node:
        create_topic(node.bootstrap, "t", 1)
        send(node.bootstrap, "t", EVENTS)
        for round_number in range(2):
            node.kill9()
            shutil.rmtree(tmp_path / "data")
            node.start()
            found = receive(node.bootstrap, "t", {0: len(EVENTS) + round_number * len(MORE)})
            assert [event.value for event in found] == [event.value for event in EVENTS + MORE * round_number]
            send(node.bootstrap, "t", MORE)


async def test_a_clean_stop_leaves_an_empty_log_that_the_catalog_calls_drained(tmp_path: Path) -> None:
    settings = object_node(tmp_path)
    wal_id = ""
    for _ in range(2):
        async with running_node(tmp_path, **settings) as node:
            wal_id = node.wal.wal_id
            assert node.wal.description.startswith("local:wal/anabranch/1/")
    catalog = Catalog(f"sqlite:///{tmp_path}/catalog.db")
    await catalog.open(cluster="anabranch", new_id=bytes(16))
    try:
        (wal,) = await catalog.list_wals(1)
    finally:
        await catalog.close()

    assert (wal.wal_id, wal.node_epoch, wal.state) == (wal_id, 2, WalState.DRAINED)
    assert wal.location == "local:wal/anabranch/1/"


async def test_a_store_that_lost_an_open_log_is_refused(tmp_path: Path) -> None:
    settings = object_node(tmp_path)
    with NodeProcess(tmp_path, **settings) as process:
        create_topic(process.bootstrap, "t", 1)
        send(process.bootstrap, "t", EVENTS)
        process.kill9()
    shutil.rmtree(tmp_path / "objects" / "wal")

    with pytest.raises(StartError, match="local:wal/anabranch/1/ holds no log, but node 1 has a log"):
        async with running_node(tmp_path, **settings):
            pass


def lose_all_but_the_log(folder: Path) -> None:
    for file in folder.glob("catalog.db*"):
        file.unlink()
    shutil.rmtree(folder / "data")
    for path in (folder / "objects").iterdir():
        if path.name != "wal":
            shutil.rmtree(path)


async def test_an_empty_catalog_beside_a_log_is_refused(tmp_path: Path) -> None:
    settings = object_node(tmp_path)
    async with running_node(tmp_path, **settings):
        pass
    lose_all_but_the_log(tmp_path)

    with pytest.raises(StartError, match="is empty or missing, but local:wal/anabranch/1/ holds a log"):
        async with running_node(tmp_path, **settings):
            pass


async def test_a_log_on_a_device_may_not_be_left_behind(tmp_path: Path) -> None:
    settings = object_node(tmp_path)
    with NodeProcess(tmp_path, **{**settings, "wal_kind": "device"}) as process:
        create_topic(process.bootstrap, "t", 1)
        send(process.bootstrap, "t", EVENTS)
        process.kill9()

    with pytest.raises(StartError, match=r"holds no log, but node 1 has a log .* at .*/data/wal"):
        async with running_node(tmp_path, **settings):
            pass


async def test_a_store_that_is_not_configured_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"wal.store: no object store 'fast', expected one of local"):
        async with running_node(tmp_path, **object_node(tmp_path), wal_store="fast"):
            pass


@pytest.mark.timeout(180)
def test_a_log_on_a_real_s3_server(tmp_path: Path, bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    set_credentials(monkeypatch)
    settings = {**object_node(tmp_path), **bucket.node_settings()}
    del settings["objects_path"]
    with NodeProcess(tmp_path, **settings) as node:
        create_topic(node.bootstrap, "t", 1)
        send(node.bootstrap, "t", EVENTS)
        node.kill9()
        shutil.rmtree(tmp_path / "data")
        node.start()
        found = receive(node.bootstrap, "t", {0: len(EVENTS)})
        assert [event.value for event in found] == [event.value for event in EVENTS]
