"""Modules whose docstring calls them pure are checked by import-linter."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("anabranch", "broker", "compaction", "s3stream", "spark", "wal")
CLAIM = re.compile(r"\bpure\b|\bno IO\b", re.IGNORECASE)


def test_every_module_that_says_it_is_pure_is_in_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [contract] = [contract for contract in contracts if contract["name"] == "Pure modules do no IO"]
    claiming = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if CLAIM.search(ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    covered = tuple(contract["source_modules"])
    missing = {name for name in claiming if not any(f"{name}.".startswith(f"{module}.") for module in covered)}
    assert not missing
