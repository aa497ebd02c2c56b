"""The log's commands on a real file."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.operator.cli.wal import wal
from anabranch.wal.device import open_device
from anabranch.wal.format import CATALOG_UNKNOWN
from anabranch.wal.log import DeltaWal
from anabranch.wal.settings import WalSettings

MIB = 1 << 20
CATALOG = bytes(range(16))
SETTINGS = WalSettings(capacity_bytes=4 * MIB, window_bytes=256 << 10, allow_volatile=True)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(wal, arguments, env={"COLUMNS": "200"})


async def fill(path: Path, *, clean: bool, catalog: bytes = CATALOG_UNKNOWN) -> None:
    log = DeltaWal(
        open_device(path, SETTINGS),
        SETTINGS,
        node_id=3,
        node_epoch=7,
        now_ms=lambda: 1_700_000_000_000,
        cluster="demo",
        catalog_id=catalog,
    )
    async for _ in log.recover():
        pass
    offsets = []
    for number in range(20):
        appended = log.append([bytes([number]) * 100_000])
        offsets.append(appended.offset)
        await appended.durable
    await log.trim(offsets[4])
    if clean:
        await log.close()
    else:
        await log.device.close()


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    path = tmp_path / "wal"
    asyncio.run(fill(path, clean=True))
    return path


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    path = tmp_path / "wal"
    asyncio.run(fill(path, clean=False))
    return path


def test_inspect_shows_owner_records_and_fill(stopped: Path) -> None:
    result = run("inspect", str(stopped))
    assert result.exit_code == 0, result.output
    for text in (
        "cluster 'demo', node 3, epoch 7",
        "graceful",
        "2023-11-14T22:13:20Z",
        "graceful stop",
        "% of 4 MiB",
    ):
        assert text in result.output
    found = json.loads(run("inspect", str(stopped), "--output", "json").stdout)
    assert (found["cluster"], found["node"], found["epoch"], found["graceful"]) == ("demo", 3, 7, True)
    assert (found["capacity_bytes"] > found["used_bytes"] > 0, found["damage"]) == (True, None)


def test_inspect_names_the_catalog_and_a_resize_keeps_it(stopped: Path, tmp_path: Path) -> None:
    assert re.search(r"catalog +unknown", run("inspect", str(stopped)).output)
    known = tmp_path / "known"
    asyncio.run(fill(known, clean=False, catalog=CATALOG))
    assert run("resize", str(known), "--capacity", "8MiB").exit_code == 0
    assert re.search(rf"catalog +{CATALOG.hex()}", run("inspect", str(known)).output)


def test_inspect_finds_the_log_by_the_data_directory(stopped: Path) -> None:
    result = run("inspect", "--data-dir", str(stopped.parent))
    assert result.exit_code == 0, result.output
    assert str(stopped) in result.output


def test_verify_tells_sound_from_damaged(crashed: Path) -> None:
    result = run("verify", str(crashed))
    assert result.exit_code == 0, result.output
    assert "sound: 15 records valid" in result.output.replace("\n", " ")
    with crashed.open("r+b") as file:
        file.seek(8192 + 10 * 102_400 + 50_000)
        file.write(b"damage")
    result = run("verify", str(crashed))
    assert result.exit_code == 1
    assert "damaged at offset 1024000: found record of 100000 bytes with body CRC" in result.output


def test_verify_names_a_damaged_header_copy(stopped: Path) -> None:
    with stopped.open("r+b") as file:
        file.seek(30)
        file.write(b"x")
    result = run("verify", str(stopped))
    assert result.exit_code == 0, result.output
    assert "header copy 0 is not valid: header CRC" in result.output


def test_resize_grows_and_shrinks_the_file_and_keeps_records(crashed: Path) -> None:
    for size, expected in (("8MiB", 8 * MIB), (str(3 * MIB), 3 * MIB)):
        result = run("resize", str(crashed), "--capacity", size)
        assert result.exit_code == 0, result.output
        assert f"wal.capacity_bytes = {expected}" in result.output.replace("\n", " ")
        assert crashed.stat().st_size == expected
        result = run("verify", str(crashed))
        assert "15 records valid" in result.output, result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("inspect", "{}/none"), "cannot open the WAL device: No such file"),
        (("resize", "{}/wal", "--capacity", "12x"), "'12x' should be a whole number of bytes, or one with a unit"),
        (("resize", "{}/wal", "--capacity", "5000"), "expected whole pages"),
        (("inspect", "{}/blank"), "blank, no WAL was formatted here"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(stopped: Path, arguments: tuple[str, ...], message: str) -> None:
    (stopped.parent / "blank").write_bytes(bytes(MIB))
    result = run(*(argument.format(stopped.parent) for argument in arguments))
    assert result.exit_code != 0
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_running_nodes_log_is_refused(stopped: Path) -> None:
    async def main() -> Result:
        device = open_device(stopped, SETTINGS)
        result = await asyncio.to_thread(run, "inspect", str(stopped))
        await device.close()
        return result

    result = asyncio.run(main())
    assert result.exit_code == 1
    assert "in use by another process" in result.output
