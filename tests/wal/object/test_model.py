"""Seeded histories of the object log in a simulated world, and planted bugs that they must find.

50 histories; 10,000 with ANABRANCH_SOAK set. `python -m tests.wal.object.run --first SEED --count 1` repeats one.
"""

import importlib
import os
import subprocess
import sys

import pytest

from tests.simulation.planted.patch import Planted, changed_source
from tests.wal.object.planted import PLANTED

pytestmark = pytest.mark.slow

HISTORIES = 10_000 if os.environ.get("ANABRANCH_SOAK") == "1" else 50
BATCH = 50


def run(*arguments: object) -> str:
    """Run histories in a process of their own; return what it says. Fails with that if one is violated."""
    command = [sys.executable, "-m", "tests.wal.object.run", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_what_was_acked_is_recovered_or_committed(first: int) -> None:
    assert "clean" in run("--first", first, "--count", BATCH)


@pytest.mark.timeout(300)
def test_each_planted_bug_is_found_within_its_number_of_seeds() -> None:
    assert run("--planted", *(bug.name for bug in PLANTED)).count("found after") == len(PLANTED)


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_each_planted_bug_fits_the_code(bug: Planted) -> None:
    for name in {edit.module for edit in bug.edits}:
        module = importlib.import_module(name)

        compile(changed_source(module, [edit for edit in bug.edits if edit.module == name]), name, "exec")
