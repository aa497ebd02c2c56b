import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.demo import __main__ as demo
from scripts.demo.clients import DemoError
from tests.support.soak import SOAK

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = demo.ROWS if SOAK else 60_000
PROGRAM = f"""
import sys
from itertools import islice
from scripts.demo import __main__ as demo

read_flights = demo.read_flights
demo.ROWS, demo.read_flights = {FLIGHTS}, lambda: islice(read_flights(), {FLIGHTS})
sys.exit(demo.main(sys.argv[1:]))
"""
"""The demo with the first flights: their number is no subject here, and `test_demo_flights` counts all."""


@pytest.fixture
def no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo whose steps are replaced by the test."""
    monkeypatch.setattr(demo.Demo, "verify", lambda _self: None)
    monkeypatch.setattr(logging, "disable", lambda: None)  # it is for the whole process, and for later tests


@pytest.mark.parametrize(("found", "status"), [(336_776, 0), (336_775, 1)])
@pytest.mark.usefixtures("no_node")
def test_a_count_that_differs_fails_the_demo(
    found: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.Demo, "run", lambda self: self.check("rows", demo.ROWS, found))
    assert demo.main(["--folder", str(tmp_path / "demo")]) == status
    assert ("COUNTS DIFFER" in capsys.readouterr().out) == (status == 1)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [(DemoError("no more records"), 1, "the demo failed: no more records"), (KeyboardInterrupt(), 130, "stopped")],
)
@pytest.mark.usefixtures("no_node")
def test_an_end_in_the_middle_is_told(
    error: BaseException,
    status: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(_self: demo.Demo) -> None:
        raise error

    monkeypatch.setattr(demo.Demo, "run", run)
    assert demo.main(["--folder", str(tmp_path / "demo")]) == status
    assert words in capsys.readouterr().out


def test_only_a_folder_of_its_own_is_emptied(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    demo.prepare(folder)
    (folder / "old").touch()
    demo.prepare(folder)
    assert [path.name for path in folder.iterdir()] == [demo.MARKER]
    (folder / demo.MARKER).unlink()
    (folder / "precious").touch()
    with pytest.raises(DemoError, match="was not made by the demo"):
        demo.prepare(folder)
    assert (folder / "precious").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.interop
def test_the_demo_is_exact_and_says_that_spark_was_skipped_without_java(tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path), "ANABRANCH_CACHE": str(tmp_path), "JAVA_HOME": ""}
    command = [sys.executable, "-c", PROGRAM, "--folder", str(tmp_path / "demo")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environ, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Spark skipped: Spark needs Java 17 " in done.stdout
    assert "every count is exact: 20 of 20 checks" in done.stdout
