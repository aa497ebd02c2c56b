"""The extras: their table, and the line that names one that is missing."""

import sys
import tomllib
from pathlib import Path

import pytest

from anabranch.extras import EXTRAS, MissingExtra, is_installed, needed

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
GATHERED = {"all", "demo", "native", "node"}
"""Extras of other extras, or of what is asked for elsewhere."""


def test_the_table_has_the_extras_of_the_project() -> None:
    assert set(EXTRAS) | GATHERED == set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("extra", EXTRAS)
def test_what_is_installed_is_found(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed(extra)
    monkeypatch.setitem(sys.modules, EXTRAS[extra][0], None)
    assert not is_installed(extra)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(MissingExtra) as raised, needed("this test"):
        import uvloop  # noqa: F401
    assert str(raised.value) == ("this test needs uvloop, which is missing or too old: pip install 'anabranch[speed]'")


def test_a_package_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(MissingExtra, match=r"^this test needs pydantic, .*'anabranch\[console\]'$"),
        needed("this test"),
    ):
        raise ImportError("cannot import name 'ConfigDict' from 'pydantic'", name="pydantic")


def test_other_errors_remain() -> None:
    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"), needed("this test"):
        import nothing_of_this_name  # type: ignore[import-not-found]  # noqa: F401
