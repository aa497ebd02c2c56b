import sys
from pathlib import Path

import pytest

from scripts import bootstrap


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose environment is this interpreter."""
    (tmp_path / "scripts").mkdir()
    for name in ("pyproject.toml", "constraints.txt", "scripts/bootstrap.py"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(bootstrap, "PYTHON", sys.executable)
    return tmp_path


def test_an_environment_without_a_stamp_is_not_current(checkout: Path) -> None:
    assert checkout.is_dir()
    assert not bootstrap.is_current()


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt", "scripts/bootstrap.py"])
def test_a_change_of_what_is_asked_for_is_noticed(checkout: Path, name: str) -> None:
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    assert bootstrap.is_current()
    (checkout / name).write_text("other")
    assert not bootstrap.is_current()


def test_an_environment_whose_interpreter_is_gone_is_not_current(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    monkeypatch.setattr(bootstrap, "PYTHON", str(checkout / "nothing"))
    assert not bootstrap.is_current()


def test_nothing_is_installed_when_nothing_changed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkout.is_dir()
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    monkeypatch.setattr(bootstrap, "install", lambda: pytest.fail("installed again"))
    assert bootstrap.main() == 0
