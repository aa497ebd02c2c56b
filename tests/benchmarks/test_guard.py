"""Verdicts of the guard, its file, and that its paths run without an error."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.guard import Verdict, judge, store, stored_costs
from benchmarks.lab.hot_paths import hot_paths
from benchmarks.lab.in_process import in_process_node


@pytest.mark.parametrize(("now", "slower"), [(1.02, False), (1.04, True), (0.5, False)])
def test_a_path_is_slower_beyond_the_tolerance(now: float, slower: bool) -> None:
    (verdict,) = judge({"path": now}, {"path": 1.0}, 0.03)
    assert verdict.is_slower is slower


def test_a_path_without_a_stored_ratio_is_new() -> None:
    assert judge({"path": 2.0}, {}, 0.03) == [Verdict("path", None, 2.0, 0.03)]


def test_an_update_replaces_the_paths_that_were_measured(tmp_path: Path) -> None:
    file = tmp_path / "guard.json"
    store("CPU time", {"a": 1.0, "b": 2.0}, file)
    store("CPU time", {"b": 3.0}, file)
    store("instructions", {"a": 9.0}, file)
    assert stored_costs("CPU time", file) == {"a": 1.0, "b": 3.0}
    assert stored_costs("instructions", file) == {"a": 9.0}
    assert stored_costs("instructions", tmp_path / "missing.json") == {}


@pytest.mark.slow
def test_each_path_runs_and_has_a_name_of_its_own() -> None:
    async def run() -> list[str]:
        async with in_process_node() as lab:
            paths = await hot_paths(lab)
            for path in paths:
                await path.run(2)
                path.check()
            return [path.name for path in paths]

    names = asyncio.run(run())
    assert len(names) == len(set(names)) > 20
