"""The simulator on a fixed set of seeds and on fresh ones, in a process of its own, whose runs it forks."""

import os
import subprocess
import sys

import pytest

SOAK = os.environ.get("ANABRANCH_SOAK") == "1"
FIXED_SEEDS = 24 if SOAK else 10
FRESH_S = 3600 if SOAK else 15


def simulate(*arguments: object) -> str:
    """Run the command; returns its output. Fails with the trace of a failing seed."""
    command = [sys.executable, "-m", "tests.simulation.run", "--jobs", "1", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fixed_seeds_are_clean() -> None:
    assert f"{FIXED_SEEDS} seeds" in simulate("--first", 0, "--seeds", FIXED_SEEDS)


@pytest.mark.slow
@pytest.mark.timeout(FRESH_S + 600)
def test_fresh_seeds_are_clean() -> None:
    assert "records acked" in simulate("--seconds", FRESH_S)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_seed_gives_the_same_trace_twice(nodes: int) -> None:
    simulate("--seed", 1, "--nodes", nodes)
