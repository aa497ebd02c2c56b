"""The files of docs/recipes.md as they stand there, in an environment of their own."""

import re
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Final

import pytest

from scripts.tools import ENVIRONMENTS
from tests.support import tools
from tests.support.recipes import RECIPES, shown_files
from tests.support.wheel import ROOT, run

ROW: Final = re.compile(r"^\| \[[^]]+\]\(#[\w-]+\) \| ([\d.]+) \|", re.MULTILINE)


@pytest.mark.slow
def test_the_recipes_work_as_they_stand(tmp_path: Path) -> None:
    python = tools.recipes("python")
    files = shown_files(RECIPES.read_text())
    del files["test_spark.py"]  # tests/spark/test_recipe.py
    assert len(files) == 6
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    # This checkout with its version and its plug-in, as it is installed here, and nothing of what is beside it.
    site = tmp_path / "site"
    site.mkdir()
    (information,) = Path(str(distribution("anabranch").locate_file(""))).glob("anabranch-*.dist-info")
    (site / information.name).symlink_to(information)
    (site / "anabranch").symlink_to(ROOT / "src" / "anabranch")
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path]
    found = run([*command, *(tmp_path / name for name in files)], tmp_path, environment={"PYTHONPATH": str(site)})
    tests = sum(code.count("\ndef test_") + code.count("\nasync def test_") for code in files.values())
    assert f"{tests} passed" in found.stdout


def test_the_versions_are_those_of_the_environment() -> None:
    pinned = {version("pyspark"), *(each.rpartition("==")[2] for each in ENVIRONMENTS["recipes"])}
    page = RECIPES.read_text()
    named = ROW.findall(page)
    assert len(named) == len(shown_files(page))
    assert set(named) <= pinned
