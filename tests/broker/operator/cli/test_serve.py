"""Start of a node, seen from outside of its process."""

from pathlib import Path

import pytest

from tests.support.node import NodeProcess

COLLECTION = "a collection of all objects"
NOTE_COLLECTIONS = f"""
import gc, sys

def note(phase, info):
    if phase == "start" and info["generation"] == 2:
        print({COLLECTION!r}, file=sys.stderr, flush=True)

gc.callbacks.append(note)
"""


def test_no_collection_of_all_objects_holds_up_the_beats_of_a_node_that_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stop all threads just when other nodes begin to expect beats."""
    (tmp_path / "sitecustomize.py").write_text(NOTE_COLLECTIONS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with NodeProcess(tmp_path / "node") as node:
        node.status()  # by now it has done what it does when it serves
        served = node.lines.index(next(line for line in node.lines if '"event": "serving"' in line))
        assert node.terminate() == 0
    stopped = node.lines.index(next(line for line in node.lines if '"event": "stopping"' in line))
    assert COLLECTION not in node.lines[served:stopped]
