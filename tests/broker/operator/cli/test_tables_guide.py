"""The commands and queries of docs/tables.md, as they stand there."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from anabranch.testing import Broker

PAGE: Final = (Path(__file__).parents[4] / "docs" / "tables.md").read_text(encoding="utf-8")
Shell = Callable[[str], str]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Runs a line in a shell whose profile names a broker."""
    programs = Path(sys.executable).parent
    paths = f"{programs}:{os.environ['PATH']}"
    # No line is folded, as in a wide terminal.
    environment = {**os.environ, "PATH": paths, "XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "300"}

    def run(line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    with Broker() as broker:
        admin = urlsplit(broker.admin_url).netloc
        run(f"anabranch profile create guide --bootstrap-server {broker.bootstrap_servers} --admin {admin}")
        yield run


@pytest.mark.slow
def test_the_start_ends_with_a_row(shell: Shell, tmp_path: Path) -> None:
    (schema,) = re.findall(r"`order.json` is a JSON Schema, such as `(.*?)`", PAGE)
    (tmp_path / "order.json").write_text(schema)
    (block,) = blocks("console")
    install, dev, *lines = (line.removeprefix("$ ") for line in block.splitlines() if line.startswith("$ "))
    assert (install.split()[0], dev, len(lines)) == ("pip", "anabranch dev &", 3)
    said = [line for command in lines for line in shell(command).splitlines()]
    shown = [line.removesuffix("…") for line in block.splitlines() if not line.startswith("$ ")]
    assert len(said) == len(shown), said
    assert [found[: len(line)] for found, line in zip(said, shown, strict=True)] == shown

    shell("anabranch topic create users --table raw && echo nonsense | anabranch produce orders")
    shell("echo k:v | anabranch produce users --key-separator : && anabranch table commit users")
    shell("anabranch table commit orders")
    errors, newest = (block for block in blocks("sql") if block.startswith("SELECT"))
    (found,) = json.loads(shell(f"anabranch table query orders '{errors}' -o json"))
    assert found["error"].startswith("not JSON")
    assert len(json.loads(shell(f"anabranch table query users '{newest}' -o json"))) == 1
