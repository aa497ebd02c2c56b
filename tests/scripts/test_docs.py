"""Existence of the files, modules and names that the documents refer to."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.recipes import shown_files

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FILE = re.compile(
    r"`((?:src|broker|protocol|s3stream|wal|compaction|spark|tables|benchmarks|scripts|tests|docs)/[\w/.]*)`"
)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
QUOTED = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_links_exist(page: Path) -> None:
    text = page.read_text()
    missing = [name for name in FILE.findall(text) if not (ROOT / name).exists()]
    missing += [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_exist(page: Path) -> None:
    named = set(TEST.findall(page.read_text()))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).is_file()
        or not re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
    ]
    assert not sorted(missing)


def test_where_things_are() -> None:
    """Each row of the table in docs/architecture.md names files, and things that these define."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    _, *rows = [line for line in text[text.index("## Where is it?") :].splitlines() if line.startswith("| ")]
    assert len(rows) > 50
    missing = []
    for row in rows:
        _, files, names = row.rsplit("|", 3)[:3]
        defined = {name for file in QUOTED.findall(files) for name in definitions(ROOT / file)}
        missing += [(row, name) for name in QUOTED.findall(names) if name not in defined]
        assert QUOTED.findall(names), row
    assert not missing


def definitions(file: Path) -> set[str]:
    """Names of the classes, functions, methods and constants that a module defines."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def test_each_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(r"^ +- ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


@pytest.mark.slow
def test_the_broker_for_tests_of_others_works_as_it_stands(tmp_path: Path) -> None:
    files = shown_files((ROOT / "docs" / "testing.md").read_text())
    assert list(files) == ["test_orders.py", "test_time.py", "test_reset.py"]
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    folder, temporary = str(tmp_path), str(tmp_path / "temporary")
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", folder, "--basetemp", temporary, folder]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 passed" in done.stdout
