"""The page about adding an API, followed to the letter in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILE = re.compile(r"^```python\n# (\S+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = shutil.ignore_patterns(".*", "target", "deploy", "docs", "demo-data")
"""Bytecode is copied, too: to make it takes longer than the test."""


@pytest.mark.slow
def test_an_api_is_two_files_and_a_test(tmp_path: Path) -> None:
    files = dict(FILE.findall((ROOT / "docs" / "adding-an-api.md").read_text()))
    _, handler, test = files
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=LEFT_OUT)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)

    for name, text in files.items():
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    without_guard = files[handler].replace("    guard=guard,\n", "")
    assert without_guard != files[handler]
    (copy / handler).write_text(without_guard)
    refused = run("-c", "import anabranch.broker.api.handlers")
    assert "missing 1 required keyword-only argument: 'guard'" in refused.stderr
    (copy / handler).write_text(files[handler])
    done = run("-m", "pytest", "-q", "--basetemp", str(tmp_path / "temporary"), test)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
