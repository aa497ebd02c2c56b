"""Modules whose docstring calls them pure are checked by import-linter."""

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
CLAIM = re.compile(r"\bpure\b|\bno IO\b", re.IGNORECASE)


@pytest.mark.slow
def test_every_module_that_says_it_is_pure_is_in_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [contract for contract in contracts if contract["name"] == "Pure modules do no IO"]
    claiming = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        for folder, _, files in os.walk(SOURCE / "anabranch", followlinks=True)
        for path in (Path(folder, file) for file in files if file.endswith(".py"))
        if CLAIM.search(ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    covered = tuple(contract["source_modules"])
    missing = {name for name in claiming if not any(f"{name}.".startswith(f"{module}.") for module in covered)}
    assert not missing
