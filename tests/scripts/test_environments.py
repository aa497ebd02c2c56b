import subprocess
import sys
from pathlib import Path

import pytest

from scripts import environments, spark_next


def test_all_pins_hold_but_those_that_are_left_out() -> None:
    names = {line.partition("==")[0] for line in environments.pins(spark_next.UNPINNED).splitlines()}
    assert "pyarrow" in names
    assert not names & {"pyspark", "py4j"}
    assert "typing_extensions" in names
    assert "typing_extensions==" not in environments.pins(["typing-extensions"])


def test_an_environment_is_made_once_and_anew_when_its_inputs_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: installed.append(command))
    place = tmp_path / "environment"
    for _ in range(2):
        environments.make_environment(place, "tea", "tea==1\n", ["tea"])
    (command,) = installed
    assert command[:3] == [sys.executable, "-m", "pip"]
    assert command[command.index("--python") + 1] == str(environments.python_of(place))
    assert command[-1] == "tea"
    environments.make_environment(place, "tea", "tea==2\n", ["tea"])
    assert len(installed) == 2
    environments.make_environment(place, "tea", "tea==2\n", ["tea", "milk"])
    assert len(installed) == 3
