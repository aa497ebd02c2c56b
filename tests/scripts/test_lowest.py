import subprocess
import tomllib

import pytest

from scripts import lowest
from scripts.environments import ROOT


def test_each_extra_of_a_node_is_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"cli", "console", "s3", "security", "tables"} <= set(lowest.extras()) <= set(extras)


def test_the_tests_exist() -> None:
    assert [each for each in lowest.TESTS if not (ROOT / each).exists()] == []


def test_versions_that_do_not_resolve_are_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise subprocess.CalledProcessError(1, ["uv"])

    monkeypatch.setattr(lowest, "lowest_versions", fail)
    assert lowest.main([]) == 1
    assert "set-up failed" in capsys.readouterr().err
