"""Bugs planted into the native part: each fits the code, and a soak builds each and finds it."""

import pytest

from scripts.bootstrap import NATIVE
from tests.native.planted import PLANTED, Planted, main
from tests.support.native import require_native
from tests.support.soak import LONG


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_each_planted_bug_fits_the_code(bug: Planted) -> None:
    source = (NATIVE / "src" / bug.file).read_text()
    assert bug.changed(source) != source


@pytest.mark.slow
@pytest.mark.timeout(7200)
@LONG  # it builds the part forty times
def test_each_planted_bug_is_found() -> None:
    require_native()
    assert main([]) == 0
