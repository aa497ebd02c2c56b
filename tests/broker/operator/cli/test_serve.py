"""Start of a node, seen from outside of its process."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
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


def test_on_a_terminal_it_says_where_it_is(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    data = tmp_path / "data"
    command = [sys.executable, "-m", "anabranch", "serve", f"--data-dir={data}", "--port=0", "--admin-port=0"]
    command += ["--wal-capacity-bytes=8MiB", "--wal-allow-volatile=true"]
    with subprocess.Popen(command, stderr=end) as node, os.fdopen(terminal, "rb", buffering=0) as screen:
        os.close(end)
        said = b""
        while b"its data stays" not in said:
            part = screen.read(4096)
            assert part, said
            said += part
        node.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # EIO: the node has closed its end
            while screen.read(4096):
                pass
    assert node.returncode == 0
    lines = said.decode().splitlines()
    (kafka,) = (line.split()[1] for line in lines if line.startswith("Kafka "))
    (console,) = (line.split()[1] for line in lines if line.startswith("console "))
    assert kafka.startswith("127.0.0.1:")
    assert console.startswith("http://127.0.0.1:")
    assert f"data       in {data}, objects in {data / 'objects'}" in lines
    assert lines[-1] == "Ctrl-C stops the node; its data stays."
