"""`anabranch doctor` and `anabranch bench` on real disks, directories and an S3 server."""

import asyncio
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from anabranch.broker.node.settings.sources import load
from anabranch.broker.operator.cli import main
from anabranch.broker.operator.cli.doctor_machine import (
    Finding,
    check_machine,
    judge_clock,
    judge_descriptors,
    judge_native,
)
from anabranch.broker.operator.cli.measure import StoreProbe, probe_file, write_repeatedly
from anabranch.native import NativePart
from anabranch.wal.settings import WalSettings
from tests.support.memory_store import MemoryStore
from tests.support.s3 import S3Bucket


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    file = tmp_path / "anabranch.toml"
    file.write_text(f'[node]\ndata_dir = "{tmp_path}/data"\n[wal]\ncapacity_bytes = "64MiB"\nallow_volatile = true\n')
    return file


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def findings(result: Result) -> dict[str, Any]:
    return {each["check"]: each for each in json.loads(result.stdout)}


def left_over(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if path.name != "anabranch.toml"]


def test_a_machine_that_can_run_a_node(settings: Path, tmp_path: Path) -> None:
    result = run("doctor", "--config", settings, "--output", "json")
    found = findings(result)
    assert result.exit_code == 0, result.output
    assert "conditional PUT works" in found["store local"]["found"]
    assert found["flush"]["found"].startswith("a durable write of 4 KiB takes")
    assert found["catalog"]["status"] == "ok"
    assert left_over(tmp_path) == [], "no folder, either"
    assert run("doctor", "--config", settings).stdout.splitlines()[0].split() == ["check", "status", "found"]


def test_an_s3_store(settings: Path, bucket: S3Bucket) -> None:
    settings.write_text(
        f'{settings.read_text()}[objects]\nstore = "s3"\nbucket = "{bucket.name}"\nendpoint = "{bucket.endpoint}"\n'
    )
    result = run("doctor", "--config", settings, "--output", "json")
    assert findings(result)["store s3"]["status"] == "ok", result.output


def test_what_fails_says_what_to_change(tmp_path: Path) -> None:
    file = tmp_path / "no-directory"
    file.write_text("")
    settings = tmp_path / "bad.toml"
    settings.write_text(
        f'[node]\ndata_dir = "{tmp_path}"\n[wal]\ncapacity_bytes = "900TiB"\n'
        f'[objects]\npath = "{file}"\n[catalog]\nurl = "postgresql://127.0.0.1:1/x"\n'
    )
    result = run("doctor", "--config", settings, "--output", "json")
    found = findings(result)
    assert result.exit_code == 1
    for check in ("log space", "store local", "catalog"):
        assert found[check]["status"] == "failed"
        assert found[check]["advice"]
        assert "\n" not in found[check]["found"] + found[check]["advice"]
    assert "the log takes 900 TiB" in found["log space"]["found"]
    shown = run("doctor", "--config", settings)
    assert "change: free space, set wal.path to another disk" in shown.stdout


@pytest.mark.parametrize(
    ("state", "source", "status"),
    [(0, "tsc", "ok"), (5, "tsc", "warning"), (0, "hpet", "warning"), (None, None, "warning")],
)
def test_clocks(state: int | None, source: str | None, status: str) -> None:
    found = judge_clock(state, source)
    assert found.status == status
    assert (found.advice is None) == (status == "ok")


def test_limits_of_open_files() -> None:
    assert judge_descriptors(resource.RLIM_INFINITY, 10_000).status == "ok"
    assert judge_descriptors(10_256, 10_000).status == "ok"
    few = judge_descriptors(1_024, 10_000)
    assert few.advice == "set LimitNOFILE=10256 (ulimit -n), or network.connections_max = 768"


def test_memory_is_judged_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 2097152 kB\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(4), raising=False)

    def judged(processes: object) -> Finding:
        settings = load({"node.processes": processes, "storage.log_cache_bytes": "512MiB"}, {})
        return next(each for each in check_machine(settings, tmp_path) if each.check == "memory")

    assert [judged(count).status for count in (1, "auto", 9)] == ["ok", "warning", "failed"]
    assert judged("auto").found.startswith("2 GiB (")
    assert "for 4 processes" in judged("auto").found


def test_a_native_part_that_does_not_fit_is_a_warning() -> None:
    assert judge_native(lambda: NativePart(None, "not installed")).status == "ok"
    found = judge_native(lambda: NativePart(None, "has API 3, expected 4", "install another"))
    assert (found.status, found.advice) == ("warning", "install another")


async def test_a_measurement_that_is_cancelled_says_nothing(tmp_path: Path) -> None:
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    async with probe_file(tmp_path, WalSettings(allow_volatile=True), "probe") as device:
        writing = asyncio.create_task(write_repeatedly(device, 4096, count=100_000, in_flight=4))
        for _ in range(4):  # until the first writes are at the device
            await asyncio.sleep(0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
    assert errors == []


async def test_a_store_that_replaces_objects_is_noticed() -> None:
    store = MemoryStore("memory")
    probe = StoreProbe(store, "run")
    await probe.put(0, 10)
    assert await probe.refuses_other_writer(0)
    assert not await probe.refuses_other_writer(1)
    assert await probe.remove() is None


def test_bench_measures_and_removes(settings: Path, tmp_path: Path) -> None:
    result = run(
        "bench", "--config", settings, "--writes", "20", "--objects", "4", "--object-size", "1MiB", "--output", "json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [row["what"] for row in found["measured"]] == [
        "log: lone durable write",
        "log: full blocks",
        "store local: PUT",
        "store local: GET",
    ]
    assert all(0 < row["p50_ms"] <= row["p99_ms"] and row["bytes_per_s"] > 0 for row in found["measured"])
    assert {each["what"] for each in found["expected"]} == {"acknowledgement", "cold read", "produce, sustained"}
    assert left_over(tmp_path) == []
    refused = run("bench", "--config", settings, "--object-size", "1KiB")
    assert (refused.exit_code, "expected 1MiB to 1GiB" in refused.output) == (2, True)
