import subprocess
import sys
from pathlib import Path

import pytest

from scripts import spark_next


def test_all_pins_but_those_of_pyspark_hold() -> None:
    names = {line.partition("==")[0] for line in spark_next.constraints().splitlines()}
    assert "pyarrow" in names
    assert not names & {"pyspark", "py4j"}


def test_an_environment_is_made_once_and_anew_when_its_pins_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: installed.append(command))
    place = tmp_path / "environment"
    for _ in range(2):
        spark_next.make_environment(place)
    (command,) = installed
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert command[command.index("--python") + 1] == str(place / "bin" / "python")
    assert command[-1] == f"pyspark=={spark_next.VERSION}"
    monkeypatch.setattr(spark_next, "VERSION", "4.2.1")
    spark_next.make_environment(place)
    assert len(installed) == 2


def test_a_set_up_that_fails_runs_no_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(place: Path) -> None:
        raise subprocess.CalledProcessError(1, ["pip", str(place)])

    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path))
    monkeypatch.setattr(spark_next, "make_environment", fail)
    assert spark_next.main([]) == 1
    assert "set-up failed" in capsys.readouterr().err
