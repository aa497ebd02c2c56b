"""Scripts of events with the answers, writes and states they must give. REWRITE_SCRIPTS=1 records the current ones."""

import os
from pathlib import Path

import pytest

from tests.broker.kafka.groups.classic.script import GroupScript

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_gives_what_it_says(path: Path) -> None:
    text = path.read_text()
    found = GroupScript().run(text)
    if os.environ.get("REWRITE_SCRIPTS"):
        path.write_text(found)
    assert found == text


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 7
