"""A common verb names few operations in a layer, so that its callers can be told apart."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OWNERS_MAX = 3


def methods_of(definition: ast.ClassDef) -> set[str]:
    """Names of the functions of a class, without properties and the like."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in definition.body if isinstance(node, kinds) and not node.decorator_list}


def owners(folder: Path, verb: str) -> set[str]:
    """Functions of this name, and classes with such a method. A protocol and its implementations are one owner."""
    found: dict[str, set[str]] = {}
    protocols: set[str] = set()
    for file in folder.rglob("*.py"):
        source = file.read_text()
        if f"def {verb}" not in source:
            continue
        for node in ast.parse(source).body:
            name = f"{file.relative_to(ROOT)}:{getattr(node, 'name', '')}"
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == verb:
                found[name] = set()
            elif isinstance(node, ast.ClassDef) and verb in (methods := methods_of(node)):
                found[name] = methods
                if any(ast.unparse(base).startswith("Protocol") for base in node.bases):
                    protocols.add(name)
    return {
        name for name, methods in found.items() if not any(found[protocol] < methods for protocol in protocols - {name})
    }


@pytest.mark.parametrize("verb", ["append", "seal"])
@pytest.mark.parametrize("folder", ["src", "broker", "protocol", "s3stream", "wal", "compaction", "spark", "tables"])
def test_a_verb_has_few_owners_in_a_layer(folder: str, verb: str) -> None:
    found = owners(ROOT / folder, verb)
    assert len(found) <= OWNERS_MAX, sorted(found)
