"""Each planted bug is found: a few of them in each run of the tests, the whole catalogue in a soak."""

import importlib

import pytest

from tests.simulation.planted.catalogue import PLANTED
from tests.simulation.planted.patch import Planted, changed_source
from tests.simulation.test_simulation import SOAK, simulate

QUICK = (
    "committed-reads",
    "aborted-not-recovered",
    "response-order",
    "producers-not-replayed",
    "index-before-data",
    "fence-collected",
    "claim-ignored",
    "end-judged-too-early",
    "stream-taken",
    "table-aborted-rows",
    "table-manifest-kept",
    "table-join-loses-row",
)
"""Bugs that a few seeds find."""
QUICK_SEEDS = 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_some_planted_bugs_are_found_at_once() -> None:
    found = simulate("--planted", *QUICK, "--seeds", QUICK_SEEDS)

    assert found.count("found after") == len(QUICK)


@pytest.mark.skipif(not SOAK, reason="takes up to an hour: set ANABRANCH_SOAK=1")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [bug.name for bug in PLANTED])
def test_each_planted_bug_is_found_within_its_number_of_seeds(name: str) -> None:
    assert "found after" in simulate("--planted", name)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_each_planted_bug_fits_the_code(bug: Planted) -> None:
    for name in {edit.module for edit in bug.edits}:
        module = importlib.import_module(name)
        edits = [edit for edit in bug.edits if edit.module == name]

        compile(changed_source(module, edits), name, "exec")


def test_planted_bugs_have_different_names() -> None:
    names = [bug.name for bug in PLANTED]

    assert sorted(set(names)) == sorted(names)
