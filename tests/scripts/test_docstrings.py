"""Docstrings begin with what they describe: a noun or a verb."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADLESS = frozenset({"What", "Where", "How", "Who", "Whose", "Which", "Whether", "Why", "When"})
SUSPECT = re.compile(rf"""[\"'\\]\s*({"|".join(HEADLESS)})\b""")
"""Begin of a string that may be such a docstring: only files with one are parsed."""


def docstrings(source: str) -> list[tuple[int, str]]:
    """Line and text of every docstring of a module, those of attributes included."""
    return [
        (node.lineno, node.value.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


@pytest.mark.parametrize(
    "folder",
    [
        "src",
        "broker",
        "protocol",
        "s3stream",
        "wal",
        "compaction",
        "spark",
        "tables",
        "tests",
        "scripts",
        "benchmarks",
    ],
)
def test_docstrings_begin_with_a_noun_or_a_verb(folder: str) -> None:
    found = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in sorted((ROOT / folder).rglob("*.py"))
        if SUSPECT.search(source := file.read_text())
        for line, text in docstrings(source)
        if text.split(maxsplit=1)[:1] and text.split(maxsplit=1)[0] in HEADLESS
    ]
    assert not found
