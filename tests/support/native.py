"""The native part, on or off, whatever the environment says."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anabranch.native import VARIABLE, choose, native_part


def require_native() -> None:
    """Skip the test without the native part; fail it where the environment requires that."""
    part = choose("auto")
    if part.module is None:
        if os.environ.get(VARIABLE) == "require":
            pytest.fail(f"{VARIABLE} is require, but {part.description}", pytrace=False)
        pytest.skip(f"{part.description}: make setup builds it where cargo is")


@contextmanager
def native_mode(mode: str) -> Iterator[None]:
    """Start the nodes and open the logs of the body with ANABRANCH_NATIVE set so."""
    if mode == "require":
        require_native()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, mode)
        native_part.cache_clear()
        try:
            yield
        finally:
            patch.undo()
            native_part.cache_clear()
