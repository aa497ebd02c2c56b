import subprocess
from pathlib import Path

import pytest

from scripts import spark_next


def test_a_set_up_that_fails_runs_no_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(place: Path, *_: object) -> None:
        raise subprocess.CalledProcessError(1, ["pip", str(place)])

    monkeypatch.setenv("ANABRANCH_CACHE", str(tmp_path))
    monkeypatch.setattr(spark_next, "make_environment", fail)
    assert spark_next.main([]) == 1
    assert "set-up failed" in capsys.readouterr().err
