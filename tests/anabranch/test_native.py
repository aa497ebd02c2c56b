"""The choice of the native part: the switch, the number of its API, and what is said about it."""

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.native import API, MODULE, VARIABLE, NativeError, NativePart, choose, native_part
from anabranch.wal.block import WalBlock


class Native:
    """The twin of a class."""


FITTING = SimpleNamespace(API=API, __version__="1.2.3", WalBlock=Native)
OTHER = SimpleNamespace(API=API + 1, __version__="1.2.3")


def present(module: Any) -> Any:
    return lambda _: module


def missing(name: str) -> Any:
    raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def broken(_: str) -> Any:
    raise ImportError("undefined symbol: PyNothing", name="anabranch_native.anabranch_native")


@pytest.mark.parametrize("mode", ["auto", "require"])
def test_a_part_that_fits_is_used(mode: str) -> None:
    assert choose(mode, present(FITTING)) == NativePart(FITTING, "1.2.3")


def test_off_does_not_even_load_it() -> None:
    assert choose("off", broken) == NativePart(None, "ANABRANCH_NATIVE is off")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (missing, "anabranch-native is not installed"),
        (broken, "cannot be loaded: undefined symbol: PyNothing"),
        (present(OTHER), f"anabranch-native 1.2.3 has API {API + 1}, expected {API}"),
    ],
)
def test_a_part_that_cannot_be_used_is_left_or_an_error(load: Any, reason: str) -> None:
    found = choose("auto", load)
    assert (found.module, found.description, bool(found.advice)) == (None, reason, load is not missing)
    with pytest.raises(NativeError, match="ANABRANCH_NATIVE is require, but ") as caught:
        choose("require", load)
    assert str(caught.value).endswith(reason)


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(NativeError, match="'on', expected auto, require or off"):
        choose("on", present(FITTING))


def test_twins_are_the_classes_of_that_name() -> None:
    assert NativePart(FITTING, "").twin(WalBlock).__name__ == "Native"
    assert NativePart(None, "").twin(WalBlock) is WalBlock


def test_the_environment_decides_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        for value, expected in (("off", "ANABRANCH_NATIVE is off"), ("", choose("auto").description)):
            monkeypatch.setenv(VARIABLE, value)
            native_part.cache_clear()
            assert native_part().description == expected
    finally:
        native_part.cache_clear()


def test_the_installed_part_has_the_number_that_is_expected() -> None:
    module = pytest.importorskip(MODULE)
    assert module.API == API
